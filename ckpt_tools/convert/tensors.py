"""The tensors of the output: names, copies, order of rows, experts in one tensor or in many."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt_tools.convert.plan import Cast, Part, Rename, Synthesised, Tensor
from ckpt_tools.formats.canonical import slot_of
from ckpt_tools.model import DTYPE_BITS, FLOAT_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckpt_tools.convert.options import Options
    from ckpt_tools.convert.vocabulary import Vocabulary
    from ckpt_tools.formats.base import Variant
    from ckpt_tools.model import Checkpoint, Draft, TensorInfo

#: Tensors with one row per id of the draft's vocabulary.
DRAFT_ROWS = ("lm_head.weight", "markov_head.markov_w2.weight", "refiner_head.readout.weight")
EXPERT = re.compile(r"(mtp_layers\.\d+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight\Z")
FUSED = re.compile(r"(mtp_layers\.\d+\.mlp\.experts)\.(gate_up|down)_proj\Z")


@dataclass(frozen=True)
class Made:
    """A tensor whose bytes are made, in place of a source's or beside it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    how: str


@dataclass
class Output:
    """The output's tensors as they come together."""

    tensors: list[Tensor] = field(default_factory=list)
    renames: list[Rename] = field(default_factory=list)
    copies: list[Rename] = field(default_factory=list)
    casts: list[Cast] = field(default_factory=list)
    synthesised: list[Synthesised] = field(default_factory=list)


@dataclass(frozen=True)
class _Piece:
    """One canonical tensor of the output before it has its name there."""

    canonical: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    parts: tuple[Part, ...] = ()


def plan_tensors(
    checkpoint: Checkpoint,
    draft: Draft,
    variant: Variant,
    drops: Mapping[str, str],
    vocabulary: Vocabulary,
    made: Mapping[str, Made],
    asked: Options,
) -> Output:
    """Output tensors in the order of the input's files, then what is made.

    Args:
        drops: Names in the input's files that stay behind.
        made: Canonical name -> what is made in its place.
    """
    out = Output()
    pieces = [p for p in _pieces(checkpoint, draft, drops) if p.canonical not in made]
    for piece in _expert_layout(pieces, checkpoint, variant.experts):
        _place(piece, checkpoint, variant, vocabulary, asked, out)
    shards = [t.shard for t in out.tensors] or ["model.safetensors"]
    tables = {n: Made(d, (rows,), data, how) for n, (d, rows, data, how) in vocabulary.made.items()}
    for canonical, new in {**made, **tables}.items():
        if slot_of(variant.algorithm, canonical) is None:
            continue
        # Readers map values in place: 8-byte elements first, single bytes last.
        wide = DTYPE_BITS[new.dtype] == 64
        for name in variant.names.natives(canonical) or (canonical,):
            tensor = Tensor(name, new.dtype, new.shape, shards[0 if wide else -1], data=new.data)
            out.tensors.insert(0 if wide else len(out.tensors), tensor)
            out.synthesised.append(Synthesised(name, new.dtype, new.shape, new.how))
    return out


def _pieces(checkpoint: Checkpoint, draft: Draft, drops: Mapping[str, str]) -> list[_Piece]:
    canonical = {native: name for name, native in draft.tensors.items()}
    return [
        _Piece(canonical[native], info.dtype, info.shape, (native,))
        for native, info in checkpoint.tensors.items()
        if native in canonical and native not in drops
    ]


def _place(
    piece: _Piece,
    checkpoint: Checkpoint,
    variant: Variant,
    vocabulary: Vocabulary,
    asked: Options,
    out: Output,
) -> None:
    first, *more = variant.names.natives(piece.canonical) or (piece.canonical,)
    dtype = asked.dtype if asked.dtype and piece.dtype in FLOAT_DTYPES else piece.dtype
    if dtype != piece.dtype:
        out.casts.append(Cast(first, piece.dtype, dtype))
    out.renames += [Rename(native, first) for native in piece.sources]
    out.copies += [Rename(native, extra) for extra in more for native in piece.sources]
    moved = piece.canonical in DRAFT_ROWS and vocabulary.order is not None
    moved = moved and piece.shape[:1] == (len(vocabulary.order or ()),)
    shard = checkpoint.tensors[piece.sources[0]].file
    for name in (first, *more):
        out.tensors.append(
            Tensor(
                name,
                dtype,
                piece.shape,
                shard,
                piece.sources[0],
                piece.dtype,
                rows=vocabulary.order if moved else None,
                parts=piece.parts,
            )
        )


def _expert_layout(pieces: Sequence[_Piece], checkpoint: Checkpoint, layout: str | None) -> Iterator[_Piece]:
    """Experts as the format holds them: one tensor for all, or one each (both are the same bytes in the same order)."""
    if layout == "fused":
        yield from _fuse(pieces, checkpoint)
    elif layout == "split":
        for piece in pieces:
            yield from _split(piece, checkpoint) if FUSED.match(piece.canonical) else (piece,)
    else:
        yield from pieces


def _fuse(pieces: Sequence[_Piece], checkpoint: Checkpoint) -> Iterator[_Piece]:
    groups: dict[tuple[str, str], dict[tuple[int, int], _Piece]] = {}
    for piece in pieces:
        hit = EXPERT.match(piece.canonical)
        if hit is None:
            yield piece
            continue
        kind = "down" if hit[3] == "down" else "gate_up"
        groups.setdefault((hit[1], kind), {})[int(hit[2]), int(hit[3] == "up")] = piece
    for (base, kind), found in groups.items():
        ordered = [found[key] for key in sorted(found)]
        experts = len({expert for expert, _ in found})
        rows, columns = ordered[0].shape
        shape = (experts, rows * (2 if kind == "gate_up" else 1), columns)
        parts = tuple(Part(p.sources[0], 0, checkpoint.tensors[p.sources[0]].nbytes) for p in ordered)
        yield _Piece(
            f"{base}.{kind}_proj", ordered[0].dtype, shape, tuple(p.sources[0] for p in ordered), parts
        )


def _split(piece: _Piece, checkpoint: Checkpoint) -> Iterator[_Piece]:
    hit = FUSED.match(piece.canonical)
    assert hit is not None
    experts, rows, columns = piece.shape
    kinds = ("gate", "up") if hit[2] == "gate_up" else ("down",)
    size = checkpoint.tensors[piece.sources[0]].nbytes // (experts * len(kinds))
    for index in range(experts * len(kinds)):
        expert, kind = divmod(index, len(kinds))
        part = Part(piece.sources[0], index * size, (index + 1) * size)
        yield _Piece(
            f"{hit[1]}.{expert}.{kinds[kind]}_proj.weight",
            piece.dtype,
            (rows // len(kinds), columns),
            piece.sources,
            (part,),
        )


def missing(draft: Draft, variant: Variant, infos: Mapping[str, TensorInfo]) -> dict[str, Made]:
    """What readers can't do without and the draft hasn't: made where its value is certain."""
    made: dict[str, Made] = {}
    if "fc.bias" in variant.needs and "fc.bias" not in draft.tensors and "fc.weight" in draft.tensors:
        fc = infos[draft.tensors["fc.weight"]]
        rows = fc.shape[0]
        made["fc.bias"] = Made(
            fc.dtype,
            (rows,),
            bytes(rows * DTYPE_BITS[fc.dtype] // 8),
            "zeros: SGLang's class always builds this bias, and without data it is random (sglang 0.5.23 models/llama_eagle.py:91)",
        )
    return made
