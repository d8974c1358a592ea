"""``--probe``: the installed engine loads the draft itself, and its answer is compared with the contract's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.reports import load_json
from ckpt_tools.checks.base import finding
from ckpt_tools.errors import UsageError

if TYPE_CHECKING:
    from ckpt_tools.api.subjects import Opened
    from ckpt_tools.model import Draft, Engine, Finding, LoadMap, Target
    from ckpt_tools.serving.probe import Probe


@dataclass(frozen=True)
class Probed:
    """What one installed engine did with the draft; ``installed`` is it, as ``sglang==0.5.23``."""

    installed: str
    facts: dict[str, Any]
    findings: tuple[Finding, ...]


def probe(
    opened: Opened,
    draft: Draft | None,
    target: Target | None,
    engine: Engine,
    load: LoadMap | None,
    *,
    engine_python: str | None = None,
) -> Probed:
    """Ask the installed engine, and say where it differs from what the contract says.

    Raises:
        UsageError: The draft isn't on this machine, or the engine can't be probed.
        Unavailable: The engine isn't installed, or the probe died.
    """
    from ckpt_tools.serving import probe as probing

    folder = Path(opened.checkpoint.path)
    if opened.checkpoint.root.startswith("hf://") or not folder.is_dir():
        raise UsageError("--probe takes a local folder", "download the draft first: `hf download`")
    if engine.name not in ("sglang", "vllm"):
        raise UsageError(f"--probe can't ask {engine.name}", "engines: sglang, vllm")
    place = Path(target.id) if target is not None and target.origin == "local" else None
    made = probing.probe(
        engine.name,
        folder,
        algorithm=draft.algorithm if draft is not None else "eagle3",
        target=place if place is not None and place.is_dir() else None,
        engine_python=engine_python,
    )
    facts = {"seconds": round(made.seconds, 3), "load": load_json(made.load)}
    name = f"{engine.name}=={made.installed.version}"
    found = tuple(replace(f, engine=name) for f in _findings(made, engine, load))
    return Probed(name, facts, found)


def _findings(made: Probe, engine: Engine, load: LoadMap | None) -> list[Finding]:
    name = f"{engine.name} {made.installed.version}"
    if made.load.refused:
        said = made.load.refused.strip().splitlines() or ["without a word"]
        out = [finding("ENG020", f"{name} refuses this draft: {said[0]}")]
        if load is not None and load.refused is None:
            out.append(_otherwise(name, "refuses it", made, engine))
        return out
    out = []
    unused, empty = made.load.unused, _empty(made.load)
    news = [t for t in unused if load is None or t not in load.unused]
    if empty:
        out.append(
            finding(
                "ENG020",
                f"{name} loads it and leaves {len(empty)} parameters unfilled: {', '.join(empty[:3])}"
                f"{', and ignores ' + ', '.join(news[:3]) if news else ''}",
                hint="`ckpt fix-keys IN OUT` writes the names that the engine reads",
            )
        )
    if load is not None and load.refused is not None:
        out.append(_otherwise(name, "loads it", made, engine))
    elif load is not None and (_empty(load) != empty or set(load.unused) != set(unused)):
        more = sorted(set(load.unused) ^ set(unused)) or sorted(set(_empty(load)) ^ set(empty))
        out.append(_otherwise(name, f"loads it otherwise ({', '.join(more[:3])})", made, engine))
    return out


def _otherwise(name: str, does: str, made: Probe, engine: Engine) -> Finding:
    """The contract is of the installed release and wrong, or it is of another release."""
    same = made.installed.version == engine.contract
    return finding(
        "ENG021",
        f"{name} {does}, which isn't what the contract {engine.contract} says",
        hint="the installed engine is right about itself; report the difference"
        if same
        else f"the contract is of another release: verify with --engine {engine.name}==installed",
    )


def _empty(load: LoadMap) -> list[str]:
    return sorted(n for n, f in load.parameters.items() if f.filled_by in ("nothing", "partly"))


__all__ = ["Probed", "probe"]
