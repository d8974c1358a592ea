"""Any selection of any tensors, written and read back by the reference library, is what went in."""

from __future__ import annotations

import json
import tempfile
from itertools import accumulate
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import deserialize, safe_open

from ckpt_tools.container.layout import FileRange, Move, OutFile, OutTensor, OutWeights, Produced, plan_layout
from ckpt_tools.container.write import write_folder
from ckpt_tools.model import DTYPE_BITS

Stored = dict[str, tuple[str, list[int], bytes]]

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
    dims = draw(st.lists(st.integers(0, 9), max_size=3))
    if DTYPE_BITS[dtype] % 8:  # packed kinds fill whole bytes
        dims.append(4)
    elif draw(st.booleans()):
        dims.append(draw(st.sampled_from([512, 1000, 2048, 4096, 5000])))
        dims = dims[-2:]
    return dtype, tuple(dims)


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    bits = DTYPE_BITS[dtype]
    for dim in shape:
        bits *= dim
    return bits // 8


@st.composite
def sources(draw: st.DrawFn) -> tuple[bytes, list[OutTensor]]:
    """A safetensors file made of nothing but its definition, and its tensors as ranges of a file "src"."""
    kinds = draw(st.lists(shapes(), min_size=1, max_size=6))
    sizes = [nbytes(*kind) for kind in kinds]
    ends = list(accumulate(sizes))
    entries = {
        str(i): {"dtype": dtype, "shape": shape, "data_offsets": [end - size, end]}
        for i, ((dtype, shape), size, end) in enumerate(zip(kinds, sizes, ends, strict=True))
    }
    text = json.dumps(entries).encode() + b" " * draw(st.integers(0, 5000))
    start = 8 + len(text)
    seed = draw(st.binary(min_size=1, max_size=50))
    data = (seed * (ends[-1] // len(seed) + 1))[: ends[-1]]
    tensors = [
        OutTensor(str(i), dtype, shape, FileRange(Path("src"), start + end - size, start + end))
        for i, ((dtype, shape), size, end) in enumerate(zip(kinds, sizes, ends, strict=True))
    ]
    return len(text).to_bytes(8, "little") + text + data, tensors


@st.composite
def outputs(draw: st.DrawFn, tensors: list[OutTensor]) -> list[OutTensor]:
    """Any of the tensors, in any order, any number of times, between produced ones, under new names."""
    chosen = draw(st.lists(st.sampled_from(tensors), max_size=8))
    if draw(st.booleans()):  # mostly in file order, as real conversions are
        chosen.sort(key=lambda t: int(t.name))
    names = draw(st.lists(NAMES, min_size=len(chosen), max_size=len(chosen), unique=True))
    made = []
    for name, tensor in zip(names, chosen, strict=True):
        data: FileRange | Produced = tensor.data
        if draw(st.integers(0, 4)) == 0:
            chunks = [b"ab" * (tensor.data.nbytes // 2), b"c" * (tensor.data.nbytes % 2)]
            data = Produced(tensor.data.nbytes, lambda chunks=chunks: iter(chunks))
        made.append(OutTensor(name, tensor.dtype, tensor.shape, data))
    return made


def stored(tensors: list[OutTensor], source: bytes) -> Stored:
    """What a reader must find."""
    return {
        t.name: (
            t.dtype,
            list(t.shape),
            source[t.data.start : t.data.stop]
            if isinstance(t.data, FileRange)
            else b"".join(t.data.chunks()),
        )
        for t in tensors
    }


def found(path: Path) -> Stored:
    return {
        name: (e["dtype"], list(e["shape"]), bytes(e["data"])) for name, e in deserialize(path.read_bytes())
    }


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_what_is_written_is_what_was_asked_for(data: st.DataObject) -> None:
    source, tensors = data.draw(sources())
    chosen = data.draw(outputs(tensors))
    metadata = data.draw(
        st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"])), max_size=2)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "src"
        path.write_bytes(source)
        located = [
            OutTensor(t.name, t.dtype, t.shape, FileRange(path, t.data.start, t.data.stop))
            if isinstance(t.data, FileRange)
            else t
            for t in chosen
        ]
        out = Path(folder) / "out"
        written = write_folder(
            out,
            [OutWeights("m.safetensors", tuple(located), metadata), OutFile("config.json", source[:20])],
            checksum=data.draw(st.booleans()),
        )
        assert found(out / "m.safetensors") == stored(chosen, source)
        assert (out / "config.json").read_bytes() == source[:20]
        with safe_open(out / "m.safetensors", "np") as file:
            assert (file.metadata() or {}) == metadata
        assert written.bytes_shared + written.bytes_copied == sum(f.stat().st_size for f in out.iterdir())
        assert sorted(p.name for p in Path(folder).iterdir()) == ["out", "src"]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([512, 4096, 65536]), st.booleans())
def test_every_byte_is_placed_once_and_shared_blocks_are_aligned(
    data: st.DataObject, block: int, shareable: bool
) -> None:
    source, tensors = data.draw(sources())
    chosen = data.draw(outputs(tensors))
    (plan,) = plan_layout([OutWeights("m", tuple(chosen))], block, None if shareable else frozenset()).files
    rebuilt = plan.prefix
    for step in plan.steps:
        assert step.at == len(rebuilt)
        if not isinstance(step, Move):
            rebuilt += b"".join(step.source.chunks())
            continue
        for start, stop, at, share in step.pieces():
            assert at == len(rebuilt)
            assert start < stop
            if share:
                assert start % block == stop % block == at % block == 0
            rebuilt += source[start:stop]
    assert len(rebuilt) == plan.size
    assert {n: (e["dtype"], list(e["shape"]), bytes(e["data"])) for n, e in deserialize(rebuilt)} == stored(
        chosen, source
    )
    assert len(plan.prefix) % 8 == 0
    if not shareable:
        assert plan.bytes_shared == 0


@settings(max_examples=300, deadline=None)
@given(sources(), st.sampled_from([512, 4096, 65536]))
def test_a_pure_rename_shares_every_whole_block_that_can_be(
    made: tuple[bytes, list[OutTensor]], block: int
) -> None:
    _, tensors = made
    (plan,) = plan_layout([OutWeights("m", tuple(tensors))], block).files
    ranges = [t.data for t in tensors if isinstance(t.data, FileRange)]
    start, stop = ranges[0].start, ranges[-1].stop
    whole = max(0, stop // block * block - -(-start // block) * block)
    assert plan.bytes_shared == (whole if start % 8 == 0 else 0)
