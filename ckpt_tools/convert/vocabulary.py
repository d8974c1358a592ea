"""The vocabulary tables of the output: taken, derived from one another, repaired, put in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import finding
from ckpt_tools.container.read import INTEGERS
from ckpt_tools.formats import tables
from ckpt_tools.formats.canonical import slot_of
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.convert.options import Options, Readers
    from ckpt_tools.formats.base import Format, Variant
    from ckpt_tools.model import Checkpoint, Draft, DraftFacts, Finding, TensorInfo

TABLES = ("d2t", "t2d")
_CODES = {
    "absolute": "VOC001",
    "range": "VOC002",
    "duplicate": "VOC003",
    "length": "VOC004",
    "mask": "VOC005",
}


@dataclass(frozen=True)
class Vocabulary:
    """What becomes of the tables.

    Attributes:
        made: New tables: canonical name -> (dtype, length, bytes, how it came about).
        drops: Names in the input's files that are left behind, with the reason.
        order: Rows of the head in the output as rows of the input, when they move.
        draft_vocab_size: As the tables show it; ``None`` for a whole vocabulary.
    """

    made: Mapping[str, tuple[str, int, bytes, str]] = field(default_factory=dict)
    drops: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    order: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None


@dataclass
class _Work:
    made: dict[str, tuple[str, int, bytes, str]] = field(default_factory=dict)
    drops: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    order: tuple[int, ...] | None = None

    def d2t(self, values: tuple[int, ...], how: str) -> None:
        self.made["d2t"] = ("I64", len(values), tables.int64_bytes(values), how)

    def t2d(self, mask: bytes, how: str) -> None:
        self.made["t2d"] = ("BOOL", len(mask), mask, how)

    def done(self, size: int | None = None) -> Vocabulary:
        return Vocabulary(self.made, self.drops, tuple(self.findings), self.order, size)


def plan_tables(
    checkpoint: Checkpoint,
    draft: Draft,
    facts: DraftFacts,
    to: Format,
    variant: Variant,
    readers: Readers,
    asked: Options,
) -> Vocabulary:
    """Both tables as the output needs them."""
    work = _Work()
    if slot_of(variant.algorithm, "d2t") is None or any(name == "d2t" for name, _ in variant.omits):
        return work.done()
    names = {n: draft.tensors[n] for n in TABLES if n in draft.tensors}
    wrong = [_misshapen(checkpoint.tensors[native]) for native in names.values()]
    if any(wrong):
        work.findings += [f for f in wrong if f is not None]
        return work.done()
    d2t, t2d = (readers.ints(names[n]) if n in names else None for n in TABLES)
    beside = readers.beside
    if d2t is not None and beside is not None and beside.d2t not in (None, d2t):
        work.findings.append(
            finding(
                "VOC005",
                f"{beside.file} holds another d2t than {names['d2t']} of the weights, which is the one that is written",
                tensor=names["d2t"],
                hint=f"find out which of the two training used, and remove {beside.file} if it isn't its",
            )
        )
    if d2t is None and t2d is None and beside is not None:
        d2t, t2d = beside.d2t, beside.t2d
        if d2t is not None:
            work.d2t(d2t, f"read from {beside.file}")
        if t2d is not None:
            work.t2d(bytes(bytearray(t2d)), f"read from {beside.file}")
    vocab, small = facts.vocab_size, facts.draft_vocab_size
    if vocab is not None and small in (None, vocab) and (d2t is None or tables.is_identity(d2t)):
        return _whole(work, names, t2d, vocab, small, variant)
    if d2t is None and t2d is not None and small not in (None, len(t2d)):
        d2t = tables.d2t_from_mask(t2d)
        work.d2t(d2t, "the ids that t2d selects, as offsets")
    if d2t is None:
        if small is not None and vocab is not None and small < vocab:
            work.findings.append(
                finding(
                    "VOC006",
                    f"the draft has {small} of the target's {vocab} ids and neither d2t nor t2d says which"
                    + (
                        f" ({beside.file} can't be read: {beside.damage})" if beside and beside.damage else ""
                    ),
                    file=checkpoint.weight_files[0].name if checkpoint.weight_files else None,
                    hint="take d2t from the training run's vocabulary mapping (as vocab_mapping.pt or d2t.pt beside the weights)",
                )
            )
        return work.done()
    d2t = _checked(work, names, d2t, t2d, facts, to, asked)
    if "t2d" in readers.recorded.derived and "t2d" in names:
        work.drops[names["t2d"]] = "derived from d2t by the conversion that made this folder"
        t2d = None
    if to.sorted_rows:
        _in_order(work, names, d2t, t2d, vocab, draft)
    return work.done(len(d2t))


def _misshapen(table: TensorInfo) -> Finding | None:
    """Why a tensor can't be a table of ids at all."""
    if len(table.shape) == 1 and table.dtype in INTEGERS:
        return None
    return finding(
        "VOC004",
        f"{table.name} is {table.dtype} {list(table.shape)}, expected integers in one dimension",
        tensor=table.name,
        file=table.file,
        severity=Severity.ERROR,
        hint="take the table from the training run's vocabulary mapping",
    )


def _whole(
    work: _Work,
    names: Mapping[str, str],
    t2d: tuple[int, ...] | None,
    vocab: int,
    small: int | None,
    variant: Variant,
) -> Vocabulary:
    """The draft has the target's whole vocabulary: no table, or the identity for readers that insist on one."""
    work.made.clear()
    if t2d is not None and (len(t2d) != vocab or not all(t2d)):
        work.findings.append(
            finding(
                "VOC005",
                f"t2d selects {sum(map(bool, t2d))} of {len(t2d)} target ids, and the draft's vocabulary is the whole of {vocab}",
                tensor=names.get("t2d"),
                severity=Severity.ERROR,
                hint="draft_vocab_size and lm_head's rows are the number of ids that t2d selects; take the tables and the head from one run",
            )
        )
    for table in TABLES:
        if table in variant.needs:
            if table not in names and table == "d2t":
                work.d2t((0,) * vocab, "the identity: the draft has the target's whole vocabulary")
            elif table not in names:
                work.t2d(b"\1" * vocab, "every id: the draft has the target's whole vocabulary")
        elif table in names:
            work.drops[names[table]] = (
                "the draft has the target's whole vocabulary; the table is the identity"
            )
    return work.done(small)


def _checked(
    work: _Work,
    names: Mapping[str, str],
    d2t: tuple[int, ...],
    t2d: tuple[int, ...] | None,
    facts: DraftFacts,
    to: Format,
    asked: Options,
) -> tuple[int, ...]:
    """The offsets, repaired where that was asked for; what is wrong with what will be written."""
    sizes = facts.vocab_size, facts.draft_vocab_size
    found = tables.problems(d2t, *sizes, t2d)
    if "d2t-absolute" in asked.repairs and any(p.kind == "absolute" for p in found):
        d2t = tables.offsets(d2t)
        work.d2t(d2t, "offsets of the absolute ids (--repair d2t-absolute)")
        if "d2t" in names:
            work.drops[names["d2t"]] = "absolute ids, rewritten as offsets"
        found = tables.problems(d2t, *sizes, t2d)
    for problem in found:
        work.findings.append(
            finding(
                _CODES[problem.kind],
                problem.message,
                tensor=names.get("d2t") or names.get("t2d"),
                severity=Severity.WARNING
                if problem.kind == "mask" and not to.sorted_rows
                else Severity.ERROR,
                hint="--repair d2t-absolute rewrites it" if problem.kind == "absolute" else None,
            )
        )
    return d2t


def _in_order(
    work: _Work,
    names: Mapping[str, str],
    d2t: tuple[int, ...],
    t2d: tuple[int, ...] | None,
    vocab: int | None,
    draft: Draft,
) -> None:
    """Ascending rows and a mask, for formats that take the head's rows in the order of the mask."""
    if any(f.severity is Severity.ERROR for f in work.findings):
        return
    if not tables.is_ascending(d2t):
        ids = tables.target_ids(d2t)
        work.order = tuple(sorted(range(len(ids)), key=lambda row: ids[row]))
        work.d2t(
            tables.offsets(tuple(sorted(ids))),
            "the same ids in ascending order, as t2d takes the head's rows",
        )
        if "d2t" in names:
            work.drops[names["d2t"]] = (
                "in another order (Model-Optimizer's is by frequency); written ascending"
            )
        work.findings.append(
            finding(
                "VOC007",
                "d2t isn't in ascending order of target id; the head's rows are put in the order of t2d, which changes no logit",
                tensor=draft.tensors.get("d2t"),
                severity=Severity.INFO,
            )
        )
    if t2d is None and vocab is not None:
        work.t2d(tables.mask_from_d2t(d2t, vocab), "the ids that d2t maps to")
