"""What a head borrows, byte by byte; shapes that fit; ranks of block heads."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ckpt_tools import targets
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.source import LocalSource
from ckpt_tools.errors import InputError
from ckpt_tools.forward import semantics
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.borrow import FileRange, Reader, borrow, stand_in
from ckpt_tools.forward.equivalence import Side
from ckpt_tools.forward.fit import check_captured, check_fit, expected_shapes
from ckpt_tools.forward.parts import NOTHING, Rows, Table
from ckpt_tools.forward.ranks import compare
from ckpt_tools.forward.spec import HeadSpec, Mla, resolve
from ckpt_tools.model import Target

from .drafts import FIXTURES, Recorded
from .pair import PAIR, pair_side

SPEC = pair_side(semantics=semantics.sglang).spec
TABLE = torch.arange(320 * 64, dtype=torch.float32).view(320, 64)


class Counted(LocalSource):
    """A local source that remembers what was read, and can hide that it is local."""

    def __init__(self, root: Path, local: bool = True) -> None:
        super().__init__(root)
        self.folder = root
        self.reads: list[tuple[int, int]] = []
        self.is_local = local

    def read(self, name: str, start: int, stop: int) -> bytes:
        self.reads.append((start, stop))
        return (self.folder / name).read_bytes()[start:stop]

    def local(self, name: str) -> Path | None:
        return super().local(name) if self.is_local else None


def lender(
    folder: Path, local: bool = True, pickled: bool = False, **tensors: torch.Tensor
) -> tuple[Target, Reader, Counted]:
    """A target of these tensors (dots as double underscores)."""
    named = {k.replace("__", "."): v for k, v in tensors.items()}
    config = json.loads((PAIR / "target" / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    if pickled:
        torch.save(named, folder / "pytorch_model.bin")
    else:
        save_file(named, folder / "model.safetensors", {"format": "pt"})
    opened = open_checkpoint(folder)
    source = Counted(folder, local)
    found = targets.from_config(config, str(folder), tensors=opened.tensors)
    return found, Reader(opened, source), source


@settings(max_examples=40, deadline=None)
@given(ids=st.sets(st.integers(0, 319), min_size=1, max_size=40))
def test_rows_are_the_rows(ids: set[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    target, reader, source = lender(tmp_path_factory.mktemp("t"), model__embed_tokens__weight=TABLE)
    parts = borrow(SPEC, target, reader)
    assert isinstance(parts.embed, Rows)
    assert reader.bytes_read == 0, "nothing is read before it is looked up"
    wanted = torch.tensor(sorted(ids))
    assert torch.equal(parts.embed(wanted), TABLE[wanted])
    assert reader.bytes_read == len(ids) * 256
    runs = sum(1 for i in ids if i - 1 not in ids)
    assert len(source.reads) == runs, "neighbours are one read"
    parts.embed(wanted.flip(0))
    assert reader.bytes_read == len(ids) * 256, "what is known isn't read again"


def test_rows_over_a_network_are_asked_for_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, reader, source = lender(tmp_path, local=False, model__embed_tokens__weight=TABLE)
    meeting = threading.Barrier(4, timeout=20)  # one after another, the first would wait in vain
    plain = source.read

    def read(name: str, start: int, stop: int) -> bytes:
        meeting.wait()
        return plain(name, start, stop)

    monkeypatch.setattr(source, "read", read)
    parts = borrow(SPEC, target, reader)
    wanted = torch.tensor([1, 2, 3, 50, 7, 9, 100, 102, 104, 319])
    assert torch.equal(parts.embed(wanted), TABLE[wanted])
    assert len(source.reads) == 8


def test_dtypes_are_cast(tmp_path: Path) -> None:
    half = (TABLE / 1e5).bfloat16()
    target, reader, _ = lender(tmp_path, model__embed_tokens__weight=half, lm_head__weight=half.clone())
    parts = borrow(replace(SPEC, head="target"), target, reader, dtype=torch.float32)
    assert parts.embed is not None and parts.head is not None
    assert torch.equal(parts.embed(torch.tensor([3, 5])), half[[3, 5]].float())
    assert torch.equal(parts.head, half.float())
    assert parts.head.dtype == torch.float32


@pytest.mark.parametrize("local", [True, False])
def test_a_whole_matrix(tmp_path: Path, local: bool) -> None:
    target, reader, _ = lender(tmp_path, local, model__embed_tokens__weight=TABLE, lm_head__weight=-TABLE)
    found = reader("lm_head.weight")
    assert isinstance(found, FileRange) == local
    parts = borrow(replace(SPEC, embedding="own", head="target"), target, reader)
    assert parts.embed is None
    assert parts.head is not None and torch.equal(parts.head, -TABLE)
    assert reader.bytes_read == 2 * TABLE.numel() * 4


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    target, reader, _ = lender(tmp_path, model__embed_tokens__weight=TABLE)
    tied = replace(target, tie_word_embeddings=True)
    parts = borrow(replace(SPEC, embedding="own", head="target"), tied, reader)
    assert parts.head is not None and torch.equal(parts.head, TABLE)
    with pytest.raises(InputError, match="no lm_head among its 1 tensors"):
        borrow(replace(SPEC, head="target"), replace(target, tie_word_embeddings=False), reader)


def test_a_draft_that_ties_takes_all_rows(tmp_path: Path) -> None:
    target, reader, _ = lender(tmp_path, model__embed_tokens__weight=TABLE)
    parts = borrow(replace(SPEC, head="embedding"), target, reader)
    assert isinstance(parts.embed, Table)
    assert torch.equal(parts.embed.weight, TABLE)


def test_nothing_to_borrow(tmp_path: Path) -> None:
    target, reader, _ = lender(tmp_path, model__embed_tokens__weight=TABLE)
    assert borrow(replace(SPEC, embedding="own"), target, reader) is NOTHING


def test_pickled_rows(tmp_path: Path) -> None:
    target, reader, _ = lender(
        tmp_path, pickled=True, model__embed_tokens__weight=TABLE, lm_head__weight=-TABLE
    )
    parts = borrow(replace(SPEC, head="target"), target, reader)
    assert parts.embed is not None and parts.head is not None
    assert torch.equal(parts.embed(torch.tensor([0, 319])), TABLE[[0, 319]])
    assert torch.equal(parts.head, -TABLE)
    read = reader.bytes_read
    parts.embed(torch.tensor([7]))
    assert reader.bytes_read == read, "a pickle is read once"


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    target, reader, _ = lender(tmp_path, model__embed_tokens__weight=TABLE)
    parts = borrow(SPEC, target, reader)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert parts.embed is not None
    with pytest.raises(InputError, match=r"ends|truncated|short"):
        parts.embed(torch.tensor([319]))


class Short(LocalSource):
    """A source that gives less than it was asked for."""

    def read(self, name: str, start: int, stop: int) -> bytes:
        return super().read(name, start, stop)[:-1]


def test_a_source_that_gives_less(tmp_path: Path) -> None:
    target, reader, _ = lender(tmp_path, model__embed_tokens__weight=TABLE)
    short = Reader(reader.checkpoint, Short(tmp_path))
    parts = borrow(SPEC, target, short)
    assert parts.embed is not None
    with pytest.raises(InputError, match=r"ends inside tensor 'model.embed_tokens.weight'"):
        parts.embed(torch.tensor([1]))


@pytest.mark.parametrize("table", [None, TABLE])
def test_stand_ins(table: torch.Tensor | None) -> None:
    spec = replace(SPEC, head="target")
    a, b = stand_in(spec, table), stand_in(spec, table)
    ids = torch.tensor([[3, 5], [5, 7]])
    for parts in (a, b):
        assert parts.embed is not None and parts.head is not None
        assert parts.head.shape == (160, 64)
    assert a.embed is not None and b.embed is not None and a.head is not None and b.head is not None
    assert torch.equal(a.embed(ids), b.embed(ids.clone()))
    assert torch.equal(a.head, b.head)
    if table is not None:
        assert torch.equal(a.embed(ids), TABLE[ids])
    other = stand_in(spec, table, seed=1)
    assert other.head is not None and not torch.equal(a.head, other.head)
    neither = stand_in(replace(SPEC, embedding="own"), table)
    assert neither.embed is None and neither.head is None


def every_recorded() -> list[Path]:
    return [
        p
        for folder in ("speculators", "sglang")
        for p in sorted((FIXTURES / "forward" / folder).glob("*.safetensors"))
    ]


def spec_and_shapes(path: Path) -> tuple[HeadSpec, dict[str, tuple[int, ...]]]:
    recorded = Recorded(path)
    framework = semantics.speculators if path.parent.name == "speculators" else semantics.sglang
    return resolve(recorded.draft, recorded.shapes, framework), recorded.shapes


@pytest.mark.parametrize("path", every_recorded(), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_recorded_head_fits(path: Path) -> None:
    spec, shapes = spec_and_shapes(path)
    check_fit(spec, shapes)
    wanted = expected_shapes(spec, shapes)
    read = {n for n in shapes if n not in spec.unused and n in wanted}
    assert {n for n in shapes if n.endswith("o_proj.weight")} <= read | set(spec.unused)
    for name in read:
        for bad in ((*shapes[name], 2), tuple(d + 1 for d in shapes[name])):
            if (
                name in ("lm_head.weight", "embed_tokens.weight")
                and len(bad) == 2
                and bad[1] == spec.hidden_size
            ):
                continue
            broken = {**shapes, name: bad}
            if name.endswith("gate_proj.weight") and len(bad) == 2:
                continue  # its rows are what the others are held against
            with pytest.raises(InputError, match="the head can't be run"):
                check_fit(spec, broken)


def test_mla_heads() -> None:
    spec = replace(
        SPEC, layer_type="mla", num_heads=4, num_kv_heads=4, mla=Mla(24, 16, 32, 8, 32), head_dim=40
    )
    attn = "layers.0.self_attn."
    shapes = {
        attn + "q_a_proj.weight": (24, 128),
        attn + "q_b_proj.weight": (160, 24),
        attn + "kv_a_proj_with_mqa.weight": (24, 128),
        attn + "kv_b_proj.weight": (256, 16),
        attn + "o_proj.weight": (64, 128),
        "layers.0.mlp.gate_proj.weight": (192, 64),
    }
    check_fit(spec, shapes)
    for name in [n for n in shapes if "self_attn" in n]:
        with pytest.raises(InputError, match=f"{name} is"):
            check_fit(spec, {**shapes, name: (7, 7)})


def test_a_head_of_eagle_1() -> None:
    spec = replace(SPEC, algorithm="eagle")
    shapes = {
        "fc.weight": (64, 128),
        "layers.0.mlp.gate_proj.weight": (192, 64),
        "layers.0.self_attn.q_proj.weight": (128, 64),
    }
    check_fit(spec, shapes)
    with pytest.raises(InputError, match=r"fc.weight is \[64, 192\], expected \[64, 128\]"):
        check_fit(spec, {**shapes, "fc.weight": (64, 192)})
    # a layer whose gate isn't there has nothing to be held against
    check_fit(spec, {"fc.weight": (64, 128), "layers.0.mlp.up_proj.weight": (1, 1)})


def test_heads_that_dont_divide() -> None:
    with pytest.raises(InputError, match="2 heads of q over 4 of k and v"):
        check_fit(replace(SPEC, num_heads=2, num_kv_heads=4), {})


def test_captured_layers() -> None:
    check_captured(SPEC, (1, 3, 4))
    check_captured(SPEC, None)
    check_captured(replace(SPEC, algorithm="eagle"), (1,))
    with pytest.raises(InputError, match=r"fc takes 3 captured layers, config.json names \[1, 3\]"):
        check_captured(SPEC, (1, 3))


class Alone:
    """A group of one."""

    rank, size, device = 0, 1, torch.device("cpu")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    all_gather = all_reduce


@pytest.mark.parametrize(
    "path", [p for p in every_recorded() if p.parent.name == "speculators"], ids=lambda p: p.stem
)
def test_ranks_of_every_algorithm(path: Path) -> None:
    recorded = Recorded(path)
    spec = resolve(recorded.draft, recorded.shapes, semantics.speculators)
    check = compare(Side(spec, recorded.tensors, recorded.target), Alone(), 50 if spec.block_size else 3)  # type: ignore[arg-type]
    assert check.ok, check.detail
