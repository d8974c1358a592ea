"""``ckpt fix-keys``: plan, refuse or write."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ckpt_tools
from ckpt_tools.api.compare import comparer
from ckpt_tools.api.inspecting import load_map_of
from ckpt_tools.api.recorded import conversion_record
from ckpt_tools.api.reports import draft_facts, report
from ckpt_tools.api.subjects import (
    Opened,
    find_target,
    named_target,
    open_draft,
    target_checkpoint,
)
from ckpt_tools.checks.base import finding
from ckpt_tools.container.fingerprint import fingerprint
from ckpt_tools.container.read import read_ints, read_tensor
from ckpt_tools.container.write import plan_write, write_folder
from ckpt_tools.convert.apply import Input, output_files
from ckpt_tools.convert.build import plan_conversion
from ckpt_tools.convert.casts import OverflowsError
from ckpt_tools.convert.options import Options, Readers, allowable
from ckpt_tools.convert.plan import Plan, plan_json
from ckpt_tools.convert.record import Recorded, with_recorded
from ckpt_tools.convert.repairs import REPAIRS
from ckpt_tools.convert.sidecars import tables_beside
from ckpt_tools.engines import engines, resolve
from ckpt_tools.errors import InputError, UsageError
from ckpt_tools.formats import formats, read_draft
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.container.layout import OutFile, OutWeights
    from ckpt_tools.model import CaptureConvention, Draft, Finding, Report, Target

DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


@dataclass(frozen=True)
class Request:
    """What the user asked ``fix-keys`` for; see the command's help."""

    source: str
    out: str
    to: str = "sglang"
    target: str | None = None
    dry_run: bool = False
    force: bool = False
    allow: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    checksum: bool = False
    prove: bool = False
    dtype: str | None = None
    max_shard_size: int | None = None
    convention: CaptureConvention | None = None
    offline: bool = False


def writable_formats() -> tuple[str, ...]:
    """Names that ``--to`` takes."""
    return tuple(name for name, form in formats().items() if form.write is not None)


def fix_keys(request: Request, progress: Callable[[int, int], None] | None = None) -> Report:
    """Rewrite a draft's names and config for another framework.

    Returns:
        A report whose ``facts.plan`` is the plan; verdict ``fail`` when it is refused, and then nothing is written.

    Raises:
        UsageError: An unknown format, code or repair, or OUT overlaps with IN.
        InputError: IN can't be read or is no draft.
        WriteError: OUT can't be written; it is as it was.
    """
    to = formats().get(request.to)
    if to is None or to.write is None:
        raise UsageError(f"--to {request.to}: no such format", f"formats: {', '.join(writable_formats())}")
    _check_words(request)
    opened = _open(request)
    record = conversion_record(opened) or Recorded()
    draft, target = _read(opened, request, record)
    broken = [f for f in opened.checkpoint.findings if f.severity is Severity.ERROR]
    if broken:
        # A file that can't be read whole can't be rewritten whole; values aren't even looked at.
        facts = draft_facts(opened.checkpoint, draft)
        return report(
            "fix-keys",
            opened.checkpoint,
            draft,
            findings=opened.checkpoint.findings,
            facts=facts,
            target=target,
        )
    plan = plan_conversion(
        opened.checkpoint,
        draft,
        to,
        fingerprint(opened.checkpoint),
        readers_of(opened, target, record, stitch=request.target is not None),
        target=target,
        options=Options(
            request.allow,
            request.repairs,
            DTYPES[request.dtype] if request.dtype else None,
            request.max_shard_size,
        ),
    )
    facts = draft_facts(opened.checkpoint, draft)
    content = None
    proven: tuple[Finding, ...] = ()
    try:
        if not plan.refused and request.prove:
            facts["proof"], proven = _prove(plan, opened, draft, target, request)
        if not plan.refused and not proven:
            plan, content = _carry_out(plan, opened, target, request, progress)
            facts["written"] = None if request.dry_run else str(Path(request.out))
    except OverflowsError as error:
        plan = replace(plan, refusals=(*plan.refusals, _overflows(error, opened)))
    facts["plan"] = plan_json(plan)
    return report(
        "fix-keys",
        opened.checkpoint,
        draft,
        findings=(*opened.checkpoint.findings, *plan.refusals, *plan.notes, *proven),
        facts=facts,
        target=target,
        content=content,
    )


def readers_of(
    opened: Opened, target: Target | None, recorded: Recorded | None = None, *, stitch: bool = False
) -> Readers:
    """What a plan may read of a draft and of its target, beside headers.

    Args:
        stitch: Next-token layers may go into the target's files: only into one that the user names.
    """
    theirs = target_checkpoint(target)
    return Readers(
        ints=lambda name: tuple(read_ints(opened.checkpoint, name, opened.source)),
        raw=lambda name: read_tensor(opened.checkpoint, name, opened.source),
        same=comparer(opened, theirs),
        equal=comparer(opened, opened),
        beside=tables_beside(
            tuple(f.name for f in opened.checkpoint.files), lambda n: _side_tables(opened, n)
        ),
        target=theirs.checkpoint if theirs is not None and stitch else None,
        recorded=recorded or Recorded(),
    )


def _side_tables(opened: Opened, name: str) -> Mapping[str, tuple[int, ...]]:
    """The integer tensors of a pickled file beside the weights; none when it isn't on this machine."""
    from ckpt_tools.container.pickle import read_tables

    path = opened.source.local(name)
    return read_tables(path) if path is not None else {}


def _open(request: Request) -> Opened:
    """The input; of a training output, the line to type names this command and its OUT.

    Raises:
        InputError: IN can't be read, or is a training output of several checkpoints.
    """
    try:
        return open_draft(request.source, offline=request.offline)
    except InputError as error:
        from ckpt_tools.container.training import training_output

        run = training_output(request.source)
        if run is None:
            raise
        raise InputError(error.message, run.line("ckpt fix-keys", request.out)) from error


def _overflows(error: OverflowsError, opened: Opened) -> Finding:
    """The refusal of a cast, once the values showed that it can't be made."""
    info = opened.checkpoint.tensors.get(error.tensor)
    return finding(
        "VAL005",
        error.message,
        tensor=error.tensor,
        file=info.file if info is not None else None,
        severity=Severity.ERROR,
        hint=error.hint,
    )


def _check_words(request: Request) -> None:
    for what, given in (("IN", request.source), ("OUT", request.out)):
        if not given:
            raise UsageError(f"{what} is empty", "name the folder; a variable in the command may be unset")
    try:
        allowable(request.allow)
    except ValueError as error:
        raise UsageError(f"--allow {error}: no such code", "`ckpt explain` lists the codes") from error
    unknown = [r for r in request.repairs if r not in REPAIRS]
    if unknown:
        raise UsageError(f"--repair {', '.join(unknown)}: no such repair", f"repairs: {', '.join(REPAIRS)}")


def _read(opened: Opened, request: Request, recorded: Recorded) -> tuple[Draft, Target | None]:
    target = find_target(request.target, offline=request.offline) if request.target else None
    draft = _draft(opened, target, request, recorded)
    if target is None and (target := named_target(draft)) is not None:
        draft = _draft(opened, target, request, recorded)
    if draft is None:
        raise InputError(
            f"{request.source}: no draft format fits its config and tensors",
            "`ckpt inspect --tensors` shows what is there",
        )
    return draft, target


def _draft(opened: Opened, target: Target | None, request: Request, recorded: Recorded) -> Draft | None:
    draft = read_draft(opened.checkpoint, target, request.convention)
    return with_recorded(draft, recorded) if draft is not None else None


def _files(plan: Plan, opened: Opened, target: Target | None) -> tuple[OutWeights | OutFile, ...]:
    """What the output folder will hold; a stitched plan takes the target's tensors from the target's files."""
    theirs = target_checkpoint(target) if any(t.origin == "target" for t in plan.tensors) else None
    return output_files(
        plan,
        Input(opened.checkpoint, opened.source),
        ckpt_tools.__version__,
        Input(theirs.checkpoint, theirs.source) if theirs is not None else None,
    )


def _prove(
    plan: Plan, opened: Opened, draft: Draft, target: Target | None, request: Request
) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
    """(proof, findings): the planned folder is written beside OUT, run, and removed; OUT itself isn't touched.

    Raises:
        Unavailable: torch is missing.
    """
    from ckpt_tools.api.proving import Known, combined, engines_of, prove

    files = _files(plan, opened, target)
    parent = None if request.dry_run else Path(request.out).absolute().parent
    if parent is not None and not parent.is_dir():
        parent = None
    with tempfile.TemporaryDirectory(prefix=".ckpt-prove-", dir=parent) as place:
        folder = Path(place) / "draft"
        write_folder(folder, files, source=request.source)
        result = open_draft(str(folder))
        read = read_draft(result.checkpoint, target)
        if read is None:
            raise InputError(f"{request.out}: what would be written fits no draft format")
        before, after = Known(opened, draft), Known(result, read)
        verdicts = []
        for name in engines_of(request.to):
            engine = resolve(name, "--to") if name is not None and name in engines() else None
            load = load_map_of(engine, result.checkpoint, target, read) if engine is not None else None
            verdicts.append(prove(before, after, framework=name, engine=engine, load=load, target=target))
    return combined(verdicts), tuple(f for v in verdicts for f in v.findings)


def _carry_out(
    plan: Plan,
    opened: Opened,
    target: Target | None,
    request: Request,
    progress: Callable[[int, int], None] | None,
) -> tuple[Plan, dict[str, str] | None]:
    files = _files(plan, opened, target)
    if request.dry_run:
        layout = plan_write(request.out, files)
        return replace(plan, bytes_shared=layout.bytes_shared, bytes_copied=layout.bytes_copied), None
    written = write_folder(
        request.out,
        files,
        source=request.source,
        force=request.force,
        checksum=request.checksum,
        progress=progress,
    )
    done = replace(plan, bytes_shared=written.bytes_shared, bytes_copied=written.bytes_copied)
    return done, dict(written.content) if written.content else None
