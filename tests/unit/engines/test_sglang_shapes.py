"""One tensor into one parameter, rule by rule."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.engines.sglang import shapes
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.sglang.shapes import Shape
from ckpt_tools.model import TensorInfo

Loader = Callable[[Shape, Shape], str | None]
DIM = st.integers(1, 6)


@pytest.mark.parametrize(
    ("loader", "parameter", "tensor", "cut"),
    [
        (shapes.plain, (4, 2), (4, 2), None),
        (shapes.plain, (1,), (), None),
        (shapes.replicated, (4, 2), (4, 2), None),
        (shapes.column, (4, 2), (6, 2), "only 4 of 6 rows are kept"),
        (shapes.qkv, (4, 2), (6, 2), "only 4 of 6 rows are kept"),
        (shapes.merged, (4, 2), (6, 2), "only 4 of 6 rows are kept"),
        (shapes.merged, (4, 2), (3, 2), "1 of 4 rows are zeros"),
        (shapes.merged, (4, 2), (0, 2), "4 of 4 rows are zeros"),
        (shapes.row, (4, 2), (4, 3), "only 2 of 3 columns are kept"),
        (shapes.row, (4, 2), (4, 1), "1 of 2 columns are zeros"),
        (shapes.row, (4,), (4,), None),
        (shapes.sharded, (4,), (6,), "only 4 of 6 rows are kept"),
        (shapes.vocabulary, (4, 2), (4, 2), None),
        (shapes.vocabulary, (4, 2), (4, 1), "[4, 1] is repeated to [4, 2]"),
        (shapes.vocabulary, (2, 2), (2,), "[2] is repeated to [2, 2]"),
    ],
)
def test_what_enters(loader: Loader, parameter: Shape, tensor: Shape, cut: str | None) -> None:
    assert loader(parameter, tensor) == cut


@pytest.mark.parametrize(
    ("loader", "parameter", "tensor", "error"),
    [
        (
            shapes.plain,
            (4, 2),
            (4, 3),
            "AssertionError: Attempted to load weight (torch.Size([4, 3])) into parameter (torch.Size([4, 2]))",
        ),
        (
            shapes.replicated,
            (4, 2),
            (),
            "AssertionError: param.shape=torch.Size([4, 2]) loaded_weight.shape=torch.Size([1])",
        ),
        (shapes.column, (4, 2), (3, 2), "RuntimeError: start (0) + length (4) exceeds dimension size (3)."),
        (shapes.column, (4, 2), (), "RuntimeError: narrow() cannot be applied to a 0-dim tensor."),
        (
            shapes.column,
            (4, 2),
            (4, 3),
            "AssertionError: param_data.shape=torch.Size([4, 2]) != loaded_weight.shape=torch.Size([4, 3])",
        ),
        (shapes.qkv, (4, 2), (3, 2), "RuntimeError: start (0) + length (4) exceeds dimension size (3)."),
        (shapes.merged, (4, 2), (4, 3), "AssertionError: "),
        (shapes.merged, (4, 2), (), "IndexError: tuple index out of range"),
        (shapes.row, (4, 2), (8,), "IndexError: tuple index out of range"),
        (
            shapes.row,
            (4, 2),
            (5, 2),
            "AssertionError: param_data.shape=torch.Size([4, 2]) loaded_weight.shape=torch.Size([5, 2])",
        ),
        (
            shapes.vocabulary,
            (4, 2),
            (5, 2),
            "AssertionError: self.org_vocab_size=4 self.use_presharded_weights=False loaded_weight.shape[output_dim]=5",
        ),
        (
            shapes.vocabulary,
            (4, 2),
            (4, 3),
            "RuntimeError: The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 1",
        ),
        (
            shapes.vocabulary,
            (4, 2),
            (4, 2, 1),
            "RuntimeError: The size of tensor a (4) must match the size of tensor b (2) at non-singleton dimension 1",
        ),
        (
            shapes.vocabulary,
            (4, 4),
            (4, 4, 4),
            "RuntimeError: output with shape [4, 4] doesn't match the broadcast shape [4, 4, 4]",
        ),
        (
            shapes.vocabulary,
            (4, 1),
            (4, 4),
            "RuntimeError: output with shape [4, 1] doesn't match the broadcast shape [4, 4]",
        ),
    ],
)
def test_what_is_refused(loader: Loader, parameter: Shape, tensor: Shape, error: str) -> None:
    with pytest.raises(Refused) as caught:
        loader(parameter, tensor)
    assert (str(caught.value), caught.value.stage) == (error, "load")


@given(rows=DIM, columns=DIM)
def test_the_right_shape_enters_whole(rows: int, columns: int) -> None:
    shape = (rows, columns)
    for loader in (
        shapes.plain,
        shapes.replicated,
        shapes.column,
        shapes.row,
        shapes.merged,
        shapes.qkv,
        shapes.vocabulary,
        shapes.sharded,
    ):
        assert loader(shape, shape) is None


@given(parameter=st.tuples(DIM, DIM), tensor=st.lists(DIM, max_size=3).map(tuple))
def test_a_loader_takes_says_what_is_lost_or_refuses(parameter: tuple[int, int], tensor: Shape) -> None:
    for loader in (
        shapes.plain,
        shapes.replicated,
        shapes.column,
        shapes.row,
        shapes.merged,
        shapes.qkv,
        shapes.vocabulary,
        shapes.sharded,
    ):
        try:
            cut = loader(parameter, tensor)
        except Refused:
            continue
        assert cut is not None or math.prod(parameter) == math.prod(tensor), (loader, parameter, tensor)


def info(shape: Shape, dtype: str = "I64") -> TensorInfo:
    return TensorInfo("d2t", dtype, shape, "f", 0, 0)


def test_d2t_is_a_sum() -> None:
    for shape in ((128,), (128, 1), (1, 128), (4, 4)):
        shapes.d2t(info(shape))
    for tensor, error in (
        (info(()), "IndexError"),
        (info((2, 3)), "RuntimeError"),
        (info((4,), "F8_E4M3"), "RuntimeError"),
    ):
        with pytest.raises(Refused, match=error):
            shapes.d2t(tensor)


def test_cat_joins_rows() -> None:
    assert shapes.cat(info((2, 3), "BF16"), info((4, 3), "F32")) == (6, 3)
    for other, error in (
        (info((4, 2), "BF16"), "Sizes"),
        (info((4,), "BF16"), "dimensions"),
        (info((4, 3), "F8_E4M3"), "Promotion"),
    ):
        with pytest.raises(Refused, match=error):
            shapes.cat(info((2, 3), "BF16"), other)
    with pytest.raises(Refused, match="zero-dimensional"):
        shapes.cat(info(()), info(()))


def test_wide_floats_do_not_enter_narrow_ones() -> None:
    shapes.check_dtype("F8_E4M3", "F8_E4M3")
    shapes.check_dtype("BF16", "F16")
    shapes.check_dtype("F32", "BF16")
    shapes.check_dtype(None, "F64")
    with pytest.raises(Refused, match="Downcasting not allowed"):
        shapes.check_dtype("F8_E4M3", "BF16")


@pytest.mark.parametrize(("parameter", "tensor"), [("I8", "BF16"), ("BF16", "I64"), ("U8", "I8")])
def test_floats_and_integers_do_not_mix(parameter: str, tensor: str) -> None:
    with pytest.raises(Refused, match="Unsupported copy between dtypes"):
        shapes.check_dtype(parameter, tensor)
