"""``ckpt verify``: what these engines will do with this draft and this target."""

from __future__ import annotations

import os.path
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.choosing import choose_engine
from ckpt_tools.api.compare import comparer, glancer
from ckpt_tools.api.inputs import launch_problems_of, rate_note, read_launch, read_log_text
from ckpt_tools.api.inspecting import load_map_of, unrecognised
from ckpt_tools.api.proving import Known, combined, lost, prove_or_skip
from ckpt_tools.api.recorded import with_record
from ckpt_tools.api.reports import draft_facts, load_json, report, value_facts
from ckpt_tools.api.subjects import Opened, find_target, named_target, open_draft
from ckpt_tools.checks.base import Context
from ckpt_tools.checks.runner import for_engines, run_checks, selected
from ckpt_tools.container.fingerprint import content_hashes
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.read import read_ints, read_rows
from ckpt_tools.container.source import LocalSource
from ckpt_tools.engines import resolve
from ckpt_tools.errors import CkptError, InputError, Unavailable, UsageError
from ckpt_tools.formats import detect, formats, read_draft
from ckpt_tools.model import EMPTY, Severity, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ckpt_tools.container.screen import Screened
    from ckpt_tools.model import (
        CaptureConvention,
        Checkpoint,
        Draft,
        Engine,
        Finding,
        LoadMap,
        Location,
        Report,
        Target,
    )
    from ckpt_tools.serving.args.launch import Launch
    from ckpt_tools.serving.logs.state import LogState


@dataclass(frozen=True)
class VerifyRequest:
    """What the user asked ``verify`` for; see the command's help.

    Attributes:
        tp, context_length: Of the flags. ``standing_tp`` and ``standing_length`` are the policy's, which the launch command goes
            before.
    """

    path: str = "."
    target: str | None = None
    engines: tuple[str, ...] = ()
    tp: int | None = None
    context_length: int | None = None
    launch: str | None = None
    log: str | None = None
    deep: bool = False
    stats: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: Severity | None = Severity.ERROR
    convention: CaptureConvention | None = None
    offline: bool = False
    why: str = "--engine"
    ignored_because: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    against: str | None = None
    probe: bool = False
    engine_python: str | None = None
    standing_tp: int | None = None
    standing_length: int | None = None


def chosen_engines(request: VerifyRequest, launch: Launch | None, log: LogState | None) -> tuple[Engine, ...]:
    """``--engine``, else the program of the launch command or the log, else SGLang's newest contract.

    Raises:
        UsageError: ``--engine``, the launch command and the log name different programs.
    """
    named = tuple(choose_engine(e, request.why, request.engine_python) for e in request.engines)
    program = launch.engine if launch is not None else None
    written = log.engine if log is not None else None
    if program is not None and written is not None and program != written:
        raise UsageError(f"--launch starts {program} and --log is of {written}", "give the two of one server")
    if named:
        families = {e.name.removesuffix("-ext") for e in named}
        for flag, found in (("--launch starts", program), ("--log is of", written)):
            if found is not None and found not in families:
                raise UsageError(
                    f"--engine {named[0].name} and {flag} {found}", "give the engine that really serves"
                )
        return named
    if program is not None:
        version = launch.version if launch is not None else None
        return (resolve(f"{program}=={version}" if version else program, "launch"),)
    if log is not None and log.engine is not None:
        return (resolve(f"{log.engine}=={log.version}" if log.version else log.engine, "log"),)
    return (resolve("sglang", "default"),)


def verify(request: VerifyRequest) -> Report:
    """Check a draft against engines and a target.

    Raises:
        InputError: PATH isn't there, isn't a checkpoint, or is a training output (the hint is the line to type).
        UsageError: Arguments that contradict each other.
    """
    if request.launch == request.log == "-":
        raise UsageError("--launch - and --log - both read stdin", "give one of them as a file")
    opened = open_draft(request.path, offline=request.offline)
    launch = read_launch(request.launch) if request.launch is not None else None
    log = read_log_text(request.log) if request.log is not None else None
    engines = chosen_engines(request, launch, log)
    checkpoint = opened.checkpoint
    given = find_target(request.target, offline=request.offline) if request.target else None
    found = detect(checkpoint)
    draft = read_draft(checkpoint, given, request.convention, found)
    target = given or named_target(draft)
    if target is not given:
        draft = read_draft(checkpoint, target, request.convention, found)
    if draft is not None:
        draft = with_record(opened, draft)
    at_hand = _files_of(target)
    target_files = at_hand if at_hand is not None and at_hand.checkpoint.tensors else None
    maps = {e: _load(e, opened, target, draft) for e in engines}
    values, content = _deep(opened) if request.deep else (None, None)
    contexts = [
        _context(request, opened, draft, target, target_files, e, maps[e], launch, log, values)
        for e in engines
    ]
    container = for_engines(checkpoint.findings, engines)
    own = [f for f in container if selected(f.code, request.select, request.ignore)]
    own += [
        f
        for f in (draft.findings if draft else unrecognised(checkpoint, draft))
        if selected(f.code, request.select, request.ignore)
    ]
    own += [f for f in _left_open(checkpoint, draft) if selected(f.code, request.select, request.ignore)]
    theirs = for_engines(_target_defects(at_hand, request), engines)
    outcome = run_checks(contexts, select=request.select, ignore=request.ignore, known=own)
    skipped = list(outcome.skipped)
    cause = next(
        (f.code for f in (*own, *outcome.findings) if f.severity is Severity.ERROR and f.code != "CFG011"),
        None,
    )
    if cause is not None and any(f.code == "CFG011" for f in own):
        own = [f for f in own if f.code != "CFG011"]  # what is wrong with it says why it is no draft
        skipped.append(Skipped("CFG011", f"{cause} explains it"))
    facts = draft_facts(checkpoint, draft)
    if (first := maps[engines[0]]) is not None:
        facts["load"] = load_json(first)
        if len(maps) > 1:
            facts["loads"] = {str(e): load_json(m) for e, m in maps.items() if m is not None}
    facts["ran"] = list(outcome.ran)
    facts["serves"] = _serves(contexts)
    if request.deep and request.stats:
        facts["stats"] = value_facts(opened)
    beside = _beside(request, opened, draft, target, maps, facts)
    return report(
        "verify",
        checkpoint,
        draft,
        findings=(*own, *theirs, *outcome.findings, *beside.findings),
        facts=facts,
        target=target,
        engines=engines,
        skipped=(
            *skipped,
            *beside.skipped,
            *(Skipped(c, f"ignored: {why}") for c, why in request.ignored_because.items()),
        ),
        fail_on=request.fail_on,
        content=content,
    )


def _left_open(checkpoint: Checkpoint, draft: Draft | None) -> Iterator[Finding]:
    """What the draft's own framework gets wrong, as errors; what its files can't tell, as remarks."""
    form = formats()[draft.format] if draft is not None else None
    if draft is None or form is None or not form.cautions:
        return
    from ckpt_tools.convert.hazards import cautions  # it brings conversions along, and few formats have any

    for f in cautions(draft, form, checkpoint.config or {}, ()):
        yield f if f.severity is Severity.ERROR else replace(f, severity=Severity.INFO)


@dataclass(frozen=True)
class _Beside:
    """What the installed engine and the source of a conversion say, beside the checks."""

    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def _beside(
    request: VerifyRequest,
    opened: Opened,
    draft: Draft | None,
    target: Target | None,
    maps: Mapping[Engine, LoadMap | None],
    facts: dict[str, Any],
) -> _Beside:
    found: list[Finding] = []
    skipped: list[Skipped] = []
    if request.probe:
        from ckpt_tools.api.probing import probe

        probed = [
            probe(opened, draft, target, engine, load, engine_python=request.engine_python)
            for engine, load in maps.items()
        ]
        facts["probe"] = {str(p.installed): p.facts for p in probed}
        found += [f for p in probed for f in p.findings]
    if request.against is not None and draft is not None:
        source = open_draft(request.against, offline=request.offline)
        before = read_draft(source.checkpoint, target, request.convention)
        if before is None:
            raise InputError(
                f"{request.against}: no draft format fits its config and tensors",
                "--against takes the draft that this one was converted from",
            )
        a, b = Known(source, before), Known(opened, draft)
        found += lost(a, b)
        if not any(f.code == "EQV002" for f in found):
            verdicts = [
                prove_or_skip(
                    a,
                    b,
                    framework=engine.name,
                    version=engine.version,
                    engine=engine,
                    load=load,
                    target=target,
                )
                for engine, load in maps.items()
            ]
            facts["proof"] = combined(verdicts)
            found += [f for v in verdicts for f in v.findings]
            skipped += dict.fromkeys(s for v in verdicts for s in v.skipped)
        else:
            skipped.append(Skipped("EQV001", "tensors are lost or changed (EQV002)"))
    return _Beside(
        tuple(f for f in found if selected(f.code, request.select, request.ignore)), tuple(skipped)
    )


def _load(engine: Engine, opened: Opened, target: Target | None, draft: Draft | None) -> LoadMap | None:
    if not opened.checkpoint.tensors or opened.checkpoint.config is None:
        return None
    if draft is None:
        return None
    return load_map_of(engine, opened.checkpoint, target, draft)


def _deep(opened: Opened) -> tuple[Mapping[str, Screened], Mapping[str, str]]:
    """What the values are like, and hashes of every weight file; the hashing runs beside the reading."""
    from ckpt_tools.container.screen import screen

    with ThreadPoolExecutor(1) as pool:
        hashing = pool.submit(content_hashes, opened.checkpoint, opened.source)
        return screen(opened.checkpoint, source=opened.source), hashing.result()


def _context(
    request: VerifyRequest,
    opened: Opened,
    draft: Draft | None,
    target: Target | None,
    target_files: Opened | None,
    engine: Engine,
    load: LoadMap | None,
    launch: Launch | None,
    log: LogState | None,
    values: Mapping[str, Screened] | None,
) -> Context:
    sizes = (request.tp, launch.tp if launch is not None else None, request.standing_tp)
    return Context(
        checkpoint=opened.checkpoint,
        draft=draft,
        target=target,
        engine=engine,
        load=load,
        table=_table(opened),
        values=values,
        rows=_rows(opened) if request.deep else None,
        target_tensors=target_files.checkpoint.tensors if target_files else None,
        same=_same(request, opened, target_files) if target_files else None,
        launch=launch,
        launch_problems=launch_problems_of(launch, engine, draft, target, opened.checkpoint.config),
        log=log,
        rate_note=rate_note(engine, log),
        tp=next((n for n in sizes if n is not None), None),
        context_length=request.context_length,
        standing_length=request.standing_length,
    )


def _table(opened: Opened) -> Callable[[str], tuple[int, ...] | None]:
    def read(name: str) -> tuple[int, ...] | None:
        try:
            return tuple(read_ints(opened.checkpoint, name, opened.source))
        except (CkptError, ValueError, KeyError):
            return None

    return read


def _rows(opened: Opened) -> Callable[[str, int, int], bool]:
    def hold(name: str, first: int, stop: int) -> bool:
        return any(read_rows(opened.checkpoint, name, first, stop, opened.source))

    return hold


def _same(request: VerifyRequest, opened: Opened, target_files: Opened) -> Callable[[str, str], bool | None]:
    """Whether a draft's tensor is the target's: every byte with --deep, else a few rows of each."""
    return comparer(opened, target_files) if request.deep else glancer(opened, target_files)


def _files_of(target: Target | None) -> Opened | None:
    """A target's folder (also by its config.json) or single weight file on this machine, whatever can be read of it."""
    if target is None or target.origin != "local":
        return None
    place = Path(target.id).expanduser()
    place = place.parent if place.name == "config.json" else place
    if not place.is_dir() and (not place.is_file() or place.suffix == ".json"):
        return None
    try:
        return Opened(open_checkpoint(place), LocalSource(place))
    except Unavailable:  # pickled weights and no torch: its config alone has to do
        return None


def _target_defects(at_hand: Opened | None, request: VerifyRequest) -> list[Finding]:
    """Broken files of a target at hand: the server loads them, too. Their places are the target's, not the draft's."""
    if at_hand is None or Path(request.path).resolve() == Path(at_hand.checkpoint.path).resolve():
        return []
    theirs = at_hand.checkpoint
    return [
        replace(
            f, message=f"in the target {theirs.path}: {f.message}", location=_beside_draft(f, theirs, request)
        )
        for f in theirs.findings
        if f.severity is not Severity.INFO
        and f.code != "FIL001"  # the config alone will do for a target
        and selected(f.code, request.select, request.ignore)
    ]


def _beside_draft(f: Finding, theirs: Checkpoint, request: VerifyRequest) -> Location:
    """A place in the target, from the draft's folder; absolute for a draft that isn't on this machine."""
    where = f.location
    if where.file is None:
        return where
    target, draft = Path(theirs.path), Path(request.path)
    file = (target if target.is_dir() else target.parent).resolve() / where.file
    if not draft.exists():
        return replace(where, file=file.as_posix())
    folder = (draft if draft.is_dir() else draft.parent).resolve()
    return replace(where, file=Path(os.path.relpath(file, folder)).as_posix())


def _serves(contexts: list[Context]) -> dict[str, Any] | None:
    """The first SGLang release that serves the pair as it is."""
    from ckpt_tools.checks.needs import needed_release

    ctx = next((c for c in contexts if c.engine is not None and c.engine.name.startswith("sglang")), None)
    if ctx is None or ctx.draft is None:
        return None
    first, needs = needed_release(ctx)
    return {"sglang": {"from": first, "because": [{"release": v, "what": w} for v, w in needs]}}
