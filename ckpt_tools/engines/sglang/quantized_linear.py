"""The parameters that each quantisation method gives a linear layer.

References are to SGLang 0.5.23, below ``sglang/srt/layers/quantization/``.
"""

from __future__ import annotations

from typing import Any

from ckpt_tools.engines.sglang import shapes
from ckpt_tools.engines.sglang.linear import LOADERS, Linear, Method, matrix, slices
from ckpt_tools.engines.sglang.parameters import Parameter, Part
from ckpt_tools.engines.sglang.refusal import Refused


def refuse(message: str, error: str = "ValueError") -> Refused:
    """A refusal while the model is built."""
    return Refused(error, message, "class")


def fp8_tensor(name: str, linear: Linear, *, static: bool, dtype: str = "F8_E4M3") -> dict[str, Parameter]:
    """A scale per part, and for static activations one more of each (fp8.py:686-712, modelopt_quant.py:560-609)."""
    out = {f"{name}.weight": matrix(linear, dtype=dtype), f"{name}.weight_scale": scales(linear)}
    return out | ({f"{name}.input_scale": scales(linear)} if static else {})


def fp8_unserialized(name: str, linear: Linear) -> dict[str, Parameter]:
    """A method that isn't spelled ``fp8`` exactly quantises plain weights itself after loading (fp8.py:354, :661)."""
    return {f"{name}.weight": matrix(linear, dtype="BF16")}


def fp8_block(block: Any) -> Method:
    """A scale per block (fp8.py:663-684); fused rows must be whole blocks (fp8.py:582-598)."""
    rows, columns = (int(n) for n in block)

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        if len(linear.parts) > 1 and any(part % rows for part in linear.parts.values()):
            raise refuse(
                f"Weight output_partition_size = {next(p for p in linear.parts.values() if p % rows)} is not divisible by "
                f"weight quantization block_n = {rows}."
            )
        size = (-(-linear.outputs // rows), -(-linear.inputs // columns))
        return {
            f"{name}.weight": matrix(linear, dtype="F8_E4M3"),
            f"{name}.weight_scale_inv": _by_rows(linear, size, rows),
        }

    return method


def channel(dtype: str, *, static: bool = False) -> Method:
    """A scale per row (compressed_tensors/schemes/compressed_tensors_w8a8_fp8.py:105-110)."""

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        out = {
            f"{name}.weight": matrix(linear, dtype=dtype),
            f"{name}.weight_scale": _by_rows(linear, (linear.outputs, 1)),
        }
        return out | ({f"{name}.input_scale": scales(linear)} if static else {})

    return method


def packed(bits: int, group: int | None, *, symmetric: bool = True, ordered: bool = False) -> Method:
    """Integers packed into int32, scales per group (compressed_tensors/schemes/compressed_tensors_wNa16.py:96-213)."""
    pack = 32 // bits

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        size = linear.inputs if group in (None, -1) else int(group or 0)
        if not ordered and linear.inputs % size:  # :128
            raise refuse("", "AssertionError")
        groups = linear.inputs // size
        out = {
            f"{name}.weight_packed": matrix(linear, pack=pack, dtype="I32"),
            f"{name}.weight_scale": _by_rows(linear, (linear.outputs, groups)),
            f"{name}.weight_shape": Parameter((2,), shapes.plain),
        }
        if not symmetric:
            out[f"{name}.weight_zero_point"] = _by_rows(linear, (linear.outputs // pack, groups), pack)
        if ordered:
            out[f"{name}.weight_g_idx"] = Parameter((linear.inputs,), shapes.plain)
        return out

    return method


def gptq(bits: int, group: int) -> Method:
    """gptq.py and gptq_marlin.py: the same names and shapes; rows and columns are swapped."""
    pack = 32 // bits

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        groups = linear.inputs // group if group > 0 else 1
        return {
            f"{name}.qweight": Parameter((linear.inputs // pack, linear.outputs), shapes.plain),
            f"{name}.g_idx": Parameter((linear.inputs,), shapes.plain),
            f"{name}.qzeros": Parameter((groups, linear.outputs // pack), shapes.plain),
            f"{name}.scales": Parameter((groups, linear.outputs), shapes.plain),
        }

    return method


def awq(bits: int, group: int) -> Method:
    """awq.py and awq_marlin.py: packed along the outputs; on a GPU that can, the marlin method is taken."""
    pack = 32 // bits

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        groups = linear.inputs // group if group > 0 else 1
        return {
            f"{name}.qweight": Parameter((linear.inputs, linear.outputs // pack), shapes.plain),
            f"{name}.qzeros": Parameter((groups, linear.outputs // pack), shapes.plain),
            f"{name}.scales": Parameter((groups, linear.outputs), shapes.plain),
        }

    return method


def nvfp4(group: int) -> Method:
    """modelopt_quant.py ``ModelOptFp4LinearMethod`` (:1796-1884): two values per byte, scales per group of inputs."""

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        if linear.inputs % 16:
            raise refuse("Unsupported model when in features size is not multiple of 16")
        return {
            f"{name}.weight": matrix(linear, pack=2, dtype="U8"),
            f"{name}.input_scale": scales(linear),
            f"{name}.weight_scale_2": scales(linear),
            f"{name}.weight_scale": _by_rows(linear, (linear.outputs, linear.inputs // group)),
        }

    return method


def scales(linear: Linear) -> Parameter:
    """``PerTensorScaleParameter`` (layers/parameter.py): one value per part."""
    parts: dict[str | int, Part] = {}
    if linear.kind in ("qkv", "merged"):
        parts = {shard: Part(i, 1) for i, shard in enumerate(linear.parts)}
    return Parameter((len(linear.parts),), shapes.plain, "nothing", parts, shapes.plain if parts else None)


def _by_rows(linear: Linear, size: shapes.Shape, rows_per: int = 1) -> Parameter:
    """A parameter that is sliced as its weight is, *rows_per* rows to one of its own."""
    parts, part_loader = slices(linear, rows_per)
    return Parameter(size, LOADERS.get(linear.kind, shapes.plain), "nothing", parts, part_loader)
