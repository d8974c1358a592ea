"""``ckpt smoke``: the head runs, with what it borrows of its target."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.choosing import choose_engine
from ckpt_tools.api.inspecting import load_map_of
from ckpt_tools.api.numbers import stated
from ckpt_tools.api.reports import draft_facts, report
from ckpt_tools.api.subjects import find_target, open_draft
from ckpt_tools.checks.base import finding
from ckpt_tools.container.fingerprint import content_hashes
from ckpt_tools.errors import InputError
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.api.subjects import Opened
    from ckpt_tools.forward.equivalence import Side
    from ckpt_tools.forward.smoke import Check, Smoke
    from ckpt_tools.forward.states import States
    from ckpt_tools.model import CaptureConvention, Draft, Engine, Finding, LoadMap, Report, Target

# Share of first proposals that has to survive what the engine leaves unfilled.
SURVIVES = 0.98
# Check of the run (or the start of its name) -> code.
CODES = (
    ("finite-", "VAL021"),
    ("logits-", "VAL022"),
    ("ids-", "VAL023"),
    ("alive-", "VAL024"),
    ("steps-", "VAL025"),
    ("precision", "VAL026"),
    ("batch-", "VAL027"),
    ("trained-", "VAL028"),
    ("learned-", "VAL029"),
    ("ranks-", "VAL031"),
)
# Checks that leave the ranks nothing to compare: logits that are no numbers, ids that can't be fed back.
BEFORE_RANKS = ("finite-float32", "ids-map-to-target")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class SmokeRequest:
    """What the user asked ``smoke`` for; see the command's help."""

    path: str
    target: str
    engine: str | None = None
    device: str = "auto"
    dtype: str | None = None
    steps: int = 5
    tokens: int = 32
    batch: int = 2
    states: str | None = None
    tp: int = 1
    bench: bool = False
    convention: CaptureConvention | None = None
    offline: bool = False


def smoke(request: SmokeRequest) -> Report:
    """Run the head of a draft and check what comes out.

    Under torchrun (``tp`` > 1) every rank gets the report; rank 0 prints it.

    Raises:
        InputError: The draft, the target or the states can't be read, or are no ones for each other.
        UsageError: ``tp`` without torchrun, or an engine without reference semantics.
        Unavailable: torch, the device or the Hub isn't there.
    """
    device = choose_device(request.device)
    engine = choose_engine(request.engine or "sglang", "--engine" if request.engine else "default")
    opened = open_draft(request.path, offline=request.offline)
    target = find_target(request.target, offline=request.offline)
    draft = read_draft(opened.checkpoint, target, request.convention)
    if draft is None or not opened.checkpoint.tensors:
        raise InputError(
            f"{request.path}: no draft with weights that a format fits", "`ckpt inspect` shows what is there"
        )
    broken = [f for f in opened.checkpoint.findings if f.severity is Severity.ERROR]
    facts = draft_facts(opened.checkpoint, draft)
    found: list[Finding] = list(broken)
    content: dict[str, str] | None = None
    if not broken:
        load = load_map_of(engine, opened.checkpoint, target, draft)
        with ThreadPoolExecutor(1) as pool:  # hashing gigabytes takes as long as running the head
            hashing = pool.submit(content_hashes, opened.checkpoint, opened.source)
            ran, more = _run(request, opened, draft, target, engine, load, device)
            content = hashing.result()
        found += more
        facts |= ran
    return report(
        "smoke",
        opened.checkpoint,
        draft,
        findings=found,
        facts=facts,
        target=target,
        engines=(engine,),
        content=content,
    )


def choose_device(wanted: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` as a device that is there.

    Raises:
        Unavailable: A GPU was asked for and there is none of that number.
        UsageError: Another word.
    """
    from ckpt_tools.forward import devices

    return devices.choose(wanted)


def _run(
    request: SmokeRequest,
    opened: Opened,
    draft: Draft,
    target: Target,
    engine: Engine,
    load: LoadMap,
    device: str,
) -> tuple[dict[str, Any], list[Finding]]:
    from ckpt_tools.api import sides
    from ckpt_tools.forward import devices
    from ckpt_tools.forward.semantics import find

    semantics = find(engine.name, engine.version)
    place = device if request.tp == 1 else "cpu"  # each rank takes its own part to its own device
    made = sides.ready(opened, draft, target, semantics, device=place, offline=request.offline)
    if not isinstance(made, sides.Ready):
        return {"device": device, "checks": []}, [made]
    lender = made.lender
    states = _states(request, draft)
    missing = sides.unfilled(draft, made.side.spec, load)
    vocabulary = (lender.target.vocab_size if lender else None) or target.vocab_size
    with devices.threads_for(made.parameters):
        result, extra = _measure(request, made.side, vocabulary, missing, states, device)
    facts = _facts(result, extra)
    facts["semantics"] = str(semantics)
    facts["target_bytes_read"] = lender.reader.bytes_read if lender is not None else 0
    return facts, [*_refusal(load, engine), *_findings(facts["checks"], result, engine)]


def _refusal(load: LoadMap, engine: Engine) -> Iterator[Finding]:
    if load.refused is not None:
        raw = finding(
            "VAL032",
            f"{engine} refuses this folder ({load.refused}): the head is run as if it had loaded",
            hint="`ckpt fix-keys IN OUT` writes a folder that the engine loads",
        )
        yield replace(raw, engine=str(engine))


def _states(request: SmokeRequest, draft: Draft) -> States | None:
    return read_states_for(request.states, draft) if request.states is not None else None


def read_states_for(path: str, draft: Draft) -> States:
    """Recorded states, of the layers that the draft captures.

    Raises:
        InputError: They can't be read, or are of other layers.
    """
    from ckpt_tools.forward.states import read_states

    states = read_states(path)
    wanted = draft.facts.capture_layers
    if states.capture_layers is not None and wanted is not None and states.capture_layers != wanted:
        raise InputError(
            f"{path}: states of layers {list(states.capture_layers)}, the draft captures {list(wanted)}",
            "record the states of the draft's layers, or correct the ids in its config.json",
        )
    return states


def _measure(
    request: SmokeRequest,
    side: Side,
    vocabulary: int | None,
    missing: tuple[str, ...],
    states: States | None,
    device: str,
) -> tuple[Smoke, tuple[Check, ...]]:
    from ckpt_tools.forward import devices, ranks
    from ckpt_tools.forward import smoke as running

    def once(place: str) -> Smoke:
        return running.smoke(
            side,
            target_vocab=vocabulary,
            steps=request.steps,
            tokens=request.tokens,
            batch=request.batch,
            states=states,
            device=place,
            dtype=devices.dtype(DTYPES[request.dtype]) if request.dtype else None,
            unfilled=missing,
            repeats=100 if request.bench else 20,
        )

    if request.tp == 1:
        return once(device), ()
    from ckpt_tools.forward.parallel import torchrun

    with torchrun(request.tp, device) as group:
        result = once(str(group.device))
        if any(c.name in BEFORE_RANKS and not c.ok for c in result.checks):
            return result, ()
        return result, (ranks.compare(side, group, request.steps),)


def is_first_rank() -> bool:
    """Whether this process prints: the only one, or rank 0 of a torchrun."""
    import os

    return os.environ.get("RANK", "0") == "0"


def _facts(result: Smoke, extra: tuple[Check, ...]) -> dict[str, Any]:
    time = result.time
    checks = (*result.checks, *extra)
    facts: dict[str, Any] = {
        "device": result.device,
        "dtype": result.dtype,
        "steps": result.steps,
        "tokens": result.tokens,
        "batch": result.batch,
        "states": result.states,
        "step_ms": time.step_ms if time else None,
        "floor_ms": time.floor_ms if time else None,
        "over_floor": time.over_floor if time else None,
        "step_bytes": time.bytes_read if time else None,
        "bandwidth": time.bandwidth if time else None,
        "cuda_graph": time.graph if time else None,
        "peak_bytes": result.peak_bytes,
        "checks": stated([asdict(c) for c in checks]),
        "damage": stated(asdict(result.damage)) if result.damage is not None else None,
        "tables": {
            "checks": [{"check": c.name, "ok": "yes" if c.ok else "NO", "what": c.detail} for c in checks]
        },
    }
    return facts


def _findings(checks: list[dict[str, Any]], result: Smoke, engine: Engine) -> Iterator[Finding]:
    failed = [
        (next(c for start, c in CODES if k["name"].startswith(start)), k) for k in checks if not k["ok"]
    ]
    for code, check in failed:
        what = check["name"].removeprefix("finite-") if code == "VAL021" else ""
        found = finding(code, f"{what}: {check['detail']}" if what else check["detail"])
        # Statistics of weights: one that is unusual may be the training's; two together are not.
        lone = code == "VAL028" and [c for c, _ in failed].count(code) == 1
        yield replace(found, severity=Severity.WARNING) if lone else found
    hurt = result.damage
    if hurt is not None and hurt.top1_agreement[0] < SURVIVES:
        names = ", ".join(hurt.parameters[:3]) + (", …" if len(hurt.parameters) > 3 else "")
        raw = finding(
            "VAL030",
            f"{len(hurt.parameters)} matrices that {engine} leaves unfilled ({names}): "
            f"{hurt.top1_agreement[0]:.0%} of the first proposals stay as they were",
            hint="`ckpt fix-keys IN OUT` writes the names that the engine reads",
        )
        yield replace(raw, engine=str(engine))
