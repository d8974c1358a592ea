"""The plan of an output: headers, merged ranges, blocks that keep their phase."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_tools.container import layout
from ckpt_tools.container.layout import (
    Emit,
    FileRange,
    Move,
    OutFile,
    OutTensor,
    OutWeights,
    Produced,
    plan_layout,
)
from ckpt_tools.errors import WriteError

BLOCK = 4096
A, B = Path("/in/a.safetensors"), Path("/in/b.safetensors")


def tensor(name: str, start: int, stop: int, path: Path = A) -> OutTensor:
    return OutTensor(name, "U8", (stop - start,), FileRange(path, start, stop))


def one(*tensors: OutTensor, shareable: set[Path] | None = None) -> layout.FileLayout:
    return plan_layout([OutWeights("m.safetensors", tensors)], BLOCK, shareable).files[0]


def header(plan: layout.FileLayout) -> dict[str, object]:
    length = int.from_bytes(plan.prefix[:8], "little")
    assert len(plan.prefix) == 8 + length
    found = json.loads(plan.prefix[8:])
    assert isinstance(found, dict)
    return found


def test_renames_share_every_whole_block() -> None:
    plan = one(tensor("x", 1000, 9000), tensor("y", 9000, 50000))
    (move,) = plan.steps
    assert isinstance(move, Move)
    assert move.source == FileRange(A, 1000, 50000)
    assert (move.source.start - move.at) % BLOCK == 0
    assert list(move.pieces()) == [
        (1000, 4096, move.at, False),
        (4096, 49152, move.at + 3096, True),
        (49152, 50000, move.at + 48152, False),
    ]
    assert plan.bytes_shared == 49152 - 4096
    assert plan.size == len(plan.prefix) + 49000


def test_header_lists_tensors_in_order_without_gaps() -> None:
    plan = plan_layout(
        [
            OutWeights(
                "m.safetensors",
                (
                    OutTensor("ü/b", "F16", (2, 3), FileRange(A, 104, 116)),
                    OutTensor("empty", "F32", (0, 7), FileRange(A, 0, 0)),
                    OutTensor("a", "I64", (), Produced(8, lambda: iter([b"\0" * 8]))),
                    OutTensor("packed", "F4", (4,), FileRange(A, 116, 118)),
                ),
                {"format": "pt", "note": "é"},
            )
        ],
        BLOCK,
    ).files[0]
    assert list(header(plan).items()) == [
        ("__metadata__", {"format": "pt", "note": "é"}),
        ("ü/b", {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}),
        ("empty", {"dtype": "F32", "shape": [0, 7], "data_offsets": [12, 12]}),
        ("a", {"dtype": "I64", "shape": [], "data_offsets": [12, 20]}),
        ("packed", {"dtype": "F4", "shape": [4], "data_offsets": [20, 22]}),
    ]
    start = len(plan.prefix)
    assert start % 8 == 0
    assert [step.at for step in plan.steps] == [start, start + 12, start + 20]
    assert [step.nbytes for step in plan.steps] == [12, 8, 2]


def test_no_metadata_writes_none() -> None:
    assert header(one()) == {}
    assert one().size % 8 == 0


def test_phase_follows_the_bigger_range() -> None:
    small, big = tensor("small", 64, 64 + 3 * BLOCK, B), tensor("big", 128, 128 + 90 * BLOCK)
    plan = one(small, big)
    kept = {step.source.path: step.blocks for step in plan.steps if isinstance(step, Move)}
    assert kept == {A: 89 * BLOCK, B: 0}


def test_dropping_whole_blocks_keeps_the_rest_shared() -> None:
    plan = one(tensor("x", 800, 800 + 4 * BLOCK), tensor("z", 800 + 9 * BLOCK, 800 + 20 * BLOCK))
    assert [step.blocks for step in plan.steps if isinstance(step, Move)] == [3 * BLOCK, 10 * BLOCK]


def test_dropping_part_of_a_block_copies_what_follows() -> None:
    plan = one(tensor("x", 800, 800 + 9 * BLOCK), tensor("z", 840 + 9 * BLOCK, 840 + 12 * BLOCK))
    assert [step.blocks for step in plan.steps if isinstance(step, Move)] == [8 * BLOCK, 0]


def test_one_range_under_two_names() -> None:
    x = tensor("x", 512, 512 + 3 * BLOCK)
    plan = one(x, tensor("twin", 512, 512 + 3 * BLOCK))
    assert len(plan.steps) == 2
    assert plan.bytes_shared == 2 * 2 * BLOCK


def test_produced_tensors_separate_ranges() -> None:
    made = OutTensor("p", "U8", (BLOCK,), Produced(BLOCK, lambda: iter([bytes(BLOCK)])))
    plan = one(tensor("x", 0, BLOCK), made, tensor("y", BLOCK, 2 * BLOCK))
    assert [type(step) for step in plan.steps] == [Move, Emit, Move]
    assert [step.at - len(plan.prefix) for step in plan.steps] == [0, BLOCK, 2 * BLOCK]


def test_a_phase_that_is_no_multiple_of_eight_is_not_kept() -> None:
    plan = one(tensor("x", 1001, 1001 + 8 * BLOCK))
    assert len(plan.prefix) % 8 == 0
    assert plan.bytes_shared == 0


def test_the_shortest_padding_without_blocks_to_share() -> None:
    plan = one(tensor("x", 1000, 1100))
    assert len(plan.prefix) - 8 - len(json.dumps(header(plan), separators=(",", ":"))) < 8


def test_padding_is_less_than_a_block() -> None:
    for start in range(8, 2 * BLOCK, 8):
        plan = one(tensor("x", start, start + 2 * BLOCK))
        assert plan.bytes_shared >= BLOCK
        assert len(plan.prefix) < 2 * BLOCK


def test_the_bytes_do_not_depend_on_what_can_be_shared() -> None:
    everything, nothing = one(tensor("x", 96, 99999)), one(tensor("x", 96, 99999), shareable=set())
    assert nothing.prefix == everything.prefix
    assert nothing.size == everything.size
    assert nothing.bytes_shared == 0 < everything.bytes_shared


def test_totals_and_sources() -> None:
    plan = plan_layout(
        [
            OutWeights("1.safetensors", (tensor("x", 0, 10 * BLOCK, B),)),
            OutWeights("2.safetensors", (tensor("y", 0, 20 * BLOCK, A), tensor("z", 0, 8, B))),
            OutFile("config.json", b"{}"),
            OutFile("tokenizer.json", FileRange(Path("/in/t"), 0, 3 * BLOCK + 1)),
            OutFile("empty", FileRange(Path("/in/e"), 0, 0)),
        ],
        BLOCK,
    )
    assert [f.name for f in plan.files] == [
        "1.safetensors",
        "2.safetensors",
        "config.json",
        "tokenizer.json",
        "empty",
    ]
    assert plan.bytes_shared == 33 * BLOCK
    assert plan.total_bytes == sum(f.size for f in plan.files)
    assert plan.bytes_copied == sum(len(f.prefix) for f in plan.files) + 8 + 1
    assert plan.sources == (B, A, Path("/in/t"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\\b", "C:x", "x\0y", "x/"])
def test_names_that_leave_the_folder(name: str) -> None:
    with pytest.raises(WriteError, match="no plain file name"):
        plan_layout([OutFile(name, b"")], BLOCK)
    with pytest.raises(WriteError, match="no plain file name"):
        plan_layout([OutWeights(name, ())], BLOCK)


@pytest.mark.parametrize(
    "name", ["model-00001-of-00002.safetensors", "a..b", ".gitattributes", "mödel", "a b"]
)
def test_names_that_stay(name: str) -> None:
    assert plan_layout([OutFile(name, b"x")], BLOCK).files[0].name == name


def test_a_file_twice() -> None:
    with pytest.raises(WriteError, match=r"'config\.json' is to be written 2 times"):
        plan_layout([OutFile("config.json", b"1"), OutFile("config.json", b"2")], BLOCK)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (OutTensor("x", "F128", (1,), FileRange(A, 0, 16)), "dtype 'F128'"),
        (OutTensor("x", "F32", (2, 2), FileRange(A, 0, 12)), "takes 16 bytes, its data has 12"),
        (OutTensor("x", "F32", (-1, -1), FileRange(A, 0, 4)), "negative dimension"),
        (OutTensor("x", "F4", (3,), FileRange(A, 0, 1)), "ends inside a byte"),
        (OutTensor("x", "U8", (4,), FileRange(A, 4, 0)), "are no range"),
        (OutTensor("x", "U8", (4,), FileRange(A, -4, 0)), "are no range"),
        (OutTensor("__metadata__", "U8", (4,), FileRange(A, 0, 4)), "reserved"),
        (OutTensor("\ud800", "U8", (4,), FileRange(A, 0, 4)), "no Unicode text"),
        (OutTensor("x", "U8", (4,), Produced(5, lambda: iter([]))), "its data has 5"),
    ],
)
def test_tensors_that_contradict_themselves(bad: OutTensor, says: str) -> None:
    with pytest.raises(WriteError, match=says):
        one(bad)


def test_a_tensor_name_twice() -> None:
    with pytest.raises(WriteError, match="taken twice"):
        one(tensor("x", 0, 4), tensor("x", 4, 8))


def test_metadata_must_be_text() -> None:
    nested = OutWeights("m.safetensors", (), {"a": {"b": 1}})  # type: ignore[dict-item]
    with pytest.raises(WriteError, match="metadata 'a' is dict"):
        plan_layout([nested], BLOCK)


def test_a_file_range_must_be_one() -> None:
    with pytest.raises(WriteError, match="are no range"):
        plan_layout([OutFile("x", FileRange(A, 9, 3))], BLOCK)


def test_a_header_that_no_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_HEADER", 64)
    with pytest.raises(WriteError, match="its header would take") as caught:
        one(tensor("a" * 40, 0, 8))
    assert caught.value.hint is not None
    assert "--max-shard-size" in caught.value.hint


@pytest.mark.parametrize("block", [0, -8, 100])
def test_block_sizes_that_make_no_sense(block: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        plan_layout([], block)
