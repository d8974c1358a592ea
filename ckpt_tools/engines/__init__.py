"""Engines: which there are, which contract answers for a version, what their loaders do with a draft.

An engine is a package below this one whose module ``engine`` holds an ``ENGINE``
(:class:`~ckpt_tools.engines.contract.EngineContract`); it is found, not listed.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.versions import nearest, parse
from ckpt_tools.errors import UsageError
from ckpt_tools.model import Engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.engines.contract import EngineContract
    from ckpt_tools.model import Checkpoint, LoadMap, Target


def engines() -> Mapping[str, EngineContract]:
    """Every engine by name."""
    return _discover()


def resolve(text: str, why: str) -> Engine:
    """The engine that *text* names: ``sglang``, ``sglang==0.5.9``, ``vllm==0.33.0``.

    A version without its own contract is answered by the nearest older one, a version older than all by the
    oldest; ``Engine.contract`` says which.

    Args:
        text: Name, and after ``==`` a version.
        why: What chose it: ``--engine``, ``launch``, ``log``, ``policy`` or ``default``.

    Raises:
        UsageError: No such engine, or no version.
    """
    name, separator, version = (part.strip() for part in text.partition("=="))
    known = _discover()
    contract = known.get(name.lower())
    if contract is None:
        raise UsageError(f"unknown engine {name!r}", f"known engines: {', '.join(sorted(known))}")
    if separator and not version:
        raise UsageError(f"{text!r} names no version", f"write {name}=={contract.default}")
    asked = version or contract.default
    return Engine(contract.name, asked, nearest(contract.contracts, asked), why)


def contract_note(engine: Engine) -> str | None:
    """One sentence when the contract that answers isn't that of *engine*'s version, else ``None``."""
    if parse(engine.contract) == parse(engine.version):
        return None
    age = "nearest older" if parse(engine.contract) < parse(engine.version) else "oldest known"
    return f"{engine} has no contract of its own; the {age} one, {engine.contract}, answers"


def load_map(
    engine: Engine,
    checkpoint: Checkpoint,
    target: Target | None = None,
    *,
    algorithm: str | None = None,
    **options: Any,
) -> LoadMap:
    """What *engine*'s loader does with *checkpoint*: what fills each parameter, what is unused or refused."""
    return _discover()[engine.name].load_map(engine, checkpoint, target, algorithm=algorithm, **options)


@lru_cache(maxsize=1)
def _discover() -> Mapping[str, EngineContract]:
    found: dict[str, EngineContract] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            contract: EngineContract = importlib.import_module(f"{__name__}.{module.name}.engine").ENGINE
            found[contract.name] = contract
    return found
