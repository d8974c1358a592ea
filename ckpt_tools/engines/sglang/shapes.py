"""How one tensor enters one parameter: narrowed, zero-padded, broadcast or refused.

Functions follow SGLang's weight loaders at tensor-parallel size 1 on a GPU; ``layers/`` and ``model_loader/`` are below
``sglang/srt/`` of 0.5.23, the same code as in 0.5.9 and 0.5.12. A loader returns ``None`` when every value arrives, or what is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from ckpt_tools.model import TensorInfo

Shape = tuple[int, ...]
_RANKS = {"F8_E4M3": 0, "F8_E5M2": 0, "F16": 1, "BF16": 1, "F32": 2, "F64": 3}


def size(shape: Shape) -> str:
    """A shape as torch prints it."""
    return f"torch.Size([{', '.join(map(str, shape))}])"


def refuse(error: str, message: str) -> Refused:
    """A refusal at load time."""
    return Refused(error, message, "load")


def plain(parameter: Shape, tensor: Shape) -> str | None:
    """``default_weight_loader`` (model_loader/weight_utils.py:1574-1586): sizes must agree, one value fits any one."""
    if _numel(parameter) == _numel(tensor) == 1 or parameter == tensor:
        return None
    raise refuse(
        "AssertionError", f"Attempted to load weight ({size(tensor)}) into parameter ({size(parameter)})"
    )


def replicated(parameter: Shape, tensor: Shape) -> str | None:
    """``ReplicatedLinear.weight_loader`` (layers/linear.py:363-392): sizes must agree."""
    tensor = tensor or (1,)
    if parameter == tensor:
        return None
    raise refuse("AssertionError", f"param.shape={size(parameter)} loaded_weight.shape={size(tensor)}")


def column(parameter: Shape, tensor: Shape) -> str | None:
    """``ColumnParallelLinear.weight_loader`` (layers/linear.py:526-577): rows are narrowed, the rest must agree."""
    cut = narrow(tensor, 0, 0, parameter[0])
    return _copy((parameter[0], *tensor[1:]), parameter, cut, "param_data.shape={} != loaded_weight.shape={}")


def row(parameter: Shape, tensor: Shape) -> str | None:
    """``RowParallelLinear.weight_loader`` (layers/linear.py:1650-1711): columns are narrowed or zero-padded."""
    if len(parameter) == 1:  # a bias has no input dimension
        return _copy(tensor or (1,), parameter, None, "param_data.shape={} loaded_weight.shape={}")
    tensor, cut = _fit(tensor, 1, parameter[1])
    return _copy(tensor, parameter, cut, "param_data.shape={} loaded_weight.shape={}")


def merged(parameter: Shape, tensor: Shape) -> str | None:
    """One part of ``MergedColumnParallelLinear`` (layers/linear.py:830-917): rows are narrowed or zero-padded."""
    tensor, cut = _fit(tensor, 0, parameter[0])
    return _copy(tensor, parameter, cut, "")


def qkv(parameter: Shape, tensor: Shape) -> str | None:
    """One part of ``QKVParallelLinear`` (layers/linear.py:1467-1557): rows are narrowed, too few are refused."""
    cut = narrow(tensor, 0, 0, parameter[0])
    return _copy((parameter[0], *tensor[1:]), parameter, cut, "param_data.shape={} loaded_weight.shape={}")


def sharded(parameter: Shape, tensor: Shape) -> str | None:
    """``sharded_weight_loader`` (model_loader/weight_utils.py:1596-1646): rows are narrowed, then sizes must agree."""
    cut = narrow(tensor, 0, 0, parameter[0])
    plain(parameter, (parameter[0], *tensor[1:]))
    return cut


def vocabulary(parameter: Shape, tensor: Shape) -> str | None:
    """``VocabParallelEmbedding.weight_loader`` (layers/vocab_parallel_embedding.py:390-447): rows must agree, the rest broadcasts.

    ``parameter`` is the unpadded shape: the rows that pad it to a multiple of 64 are filled with zeros.
    """
    rows = _dimension(tensor, 0)
    if rows != parameter[0]:
        raise refuse(
            "AssertionError",
            f"self.org_vocab_size={parameter[0]} self.use_presharded_weights=False loaded_weight.shape[output_dim]={rows}",
        )
    return broadcast(parameter, tensor)


def broadcast(parameter: Shape, tensor: Shape) -> str | None:
    """``Tensor.copy_``: dimensions of one are repeated, compared from the last one on."""
    if parameter == tensor:
        return None
    rank = max(len(parameter), len(tensor))
    pairs = list(zip(reversed(parameter), reversed(tensor), strict=False))
    for back, (want, have) in enumerate(pairs, start=1):
        if have != want and 1 not in (want, have):
            raise refuse(
                "RuntimeError",
                f"The size of tensor a ({want}) must match the size of tensor b ({have}) "
                f"at non-singleton dimension {rank - back}",
            )
    if len(tensor) > len(parameter) or any(have not in (want, 1) for want, have in pairs):
        raise refuse(
            "RuntimeError",
            f"output with shape {list(parameter)} doesn't match the broadcast shape {list(tensor)}",
        )
    return f"{list(tensor)} is repeated to {list(parameter)}"


def d2t(tensor: TensorInfo) -> None:
    """``hot_token_id = d2t + arange(len(d2t))`` (models/llama_eagle3.py:350-353): what that sum refuses."""
    shape = tensor.shape
    rows = _dimension(shape, 0)
    if tensor.dtype.startswith("F8"):
        raise refuse(
            "RuntimeError",
            "Promotion for Float8 Types is not supported, attempted to promote Float8_e4m3fn and Long",
        )
    if shape[-1] not in (1, rows) and rows != 1:
        raise refuse(
            "RuntimeError",
            f"The size of tensor a ({shape[-1]}) must match the size of tensor b ({rows}) at non-singleton dimension {len(shape) - 1}",
        )


def cat(one: TensorInfo, other: TensorInfo) -> Shape:
    """``torch.cat`` along the rows; 8-bit floats aren't promoted."""
    first, second = one.shape, other.shape
    if one.dtype != other.dtype and "F8" in (one.dtype[:2], other.dtype[:2]):
        raise refuse(
            "RuntimeError",
            f"Promotion for Float8 Types is not supported, attempted to promote {one.dtype} and {other.dtype}",
        )
    if len(first) != len(second):
        raise refuse(
            "RuntimeError", f"Tensors must have same number of dimensions: got {len(first)} and {len(second)}"
        )
    if not first:
        raise refuse("RuntimeError", "zero-dimensional tensor (at position 0) cannot be concatenated")
    if first[1:] != second[1:]:
        raise refuse(
            "RuntimeError",
            f"Sizes of tensors must match except in dimension 0. Got {list(first)} and {list(second)}.",
        )
    return (first[0] + second[0], *first[1:])


def check_dtype(parameter: str | None, tensor: str) -> None:
    """``copy_with_check`` (layers/parameter.py:51-79): a wider float doesn't go into a narrower one, nor a float into integers."""
    if parameter is None or parameter == tensor:
        return
    want, have = _RANKS.get(parameter), _RANKS.get(tensor)
    if want is None or have is None:
        raise refuse(
            "ValueError",
            f"Unsupported copy between dtypes: target.dtype={parameter}, loaded_weight.dtype={tensor}",
        )
    if have > want:
        raise refuse(
            "ValueError", f"Downcasting not allowed: target.dtype={parameter}, loaded_weight.dtype={tensor}"
        )


def narrow(tensor: Shape, axis: int, start: int, length: int) -> str | None:
    """``Tensor.narrow``: what is lost, or a refusal when the tensor is too short."""
    if not tensor:
        raise refuse("RuntimeError", "narrow() cannot be applied to a 0-dim tensor.")
    if start + length > tensor[axis]:
        raise refuse(
            "RuntimeError", f"start ({start}) + length ({length}) exceeds dimension size ({tensor[axis]})."
        )
    return f"only {length} of {tensor[axis]} rows are kept" if length < tensor[axis] and start == 0 else None


def _fit(tensor: Shape, axis: int, length: int) -> tuple[Shape, str | None]:
    """``narrow`` where it is long enough, else zeros after it (layers/utils/common.py:20-40)."""
    have = _dimension(tensor, axis)
    what = ("rows", "columns")[axis]
    cut = None
    if have > length:
        cut = f"only {length} of {have} {what} are kept"
    elif have < length:
        cut = f"{length - have} of {length} {what} are zeros"
    return (*tensor[:axis], length, *tensor[axis + 1 :]), cut


def _copy(tensor: Shape, parameter: Shape, cut: str | None, message: str) -> str | None:
    if tensor != parameter:
        raise refuse("AssertionError", message.format(size(parameter), size(tensor)))
    return cut


def _dimension(tensor: Shape, axis: int) -> int:
    if axis >= len(tensor):
        raise refuse("IndexError", "tuple index out of range")
    return tensor[axis]


def _numel(shape: Shape) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count
