"""What a ``quantization_config`` in the draft's config makes of its linear layers.

A config copied from a quantised target is enough: the parameters then have other names, or other dtypes, and plain weights
reach none of them. References are to SGLang 0.5.23, below ``sglang/srt/layers/quantization/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.engines.sglang import shapes
from ckpt_tools.engines.sglang.parameters import Parameter, Part
from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.shapes import Shape

Kind = Literal["column", "row", "replicated", "qkv", "merged"]
# layers/quantization/__init__.py: the methods by name
METHODS = frozenset(
    {"fp8", "mxfp8", "minimax_m3_nvfp4", "blockwise_int8", "modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed", "nvfp4_online",
     "w8a8_int8", "w8a8_fp8", "awq", "awq_marlin", "bitsandbytes", "gguf", "gptq", "gptq_marlin", "moe_wna16", "compressed-tensors",
     "qoq", "w4afp8", "petit_nvfp4", "fbgemm_fp8", "quark", "auto-round", "auto-round-int8", "modelslim", "quark_int4fp8_moe", "mxfp4",
     "quark_mxfp4", "humming"}
)  # fmt: skip


@dataclass(frozen=True)
class Linear:
    """A linear layer before its method decides on its parameters.

    Attributes:
        kind: Which class of parallel linear.
        inputs: Width.
        parts: Shard id -> rows.
    """

    kind: Kind
    inputs: int
    parts: Mapping[str | int, int]

    @property
    def outputs(self) -> int:
        """All rows."""
        return sum(self.parts.values())

    @property
    def sizes(self) -> tuple[Shape, ...]:
        """Rows of each part as shapes."""
        return tuple((rows, self.inputs) for rows in self.parts.values())


Method = Callable[[str, Linear], dict[str, Parameter]]
_LOADERS = {"column": shapes.column, "row": shapes.row, "replicated": shapes.replicated}


@dataclass(frozen=True)
class Quantization:
    """The method of a config.

    Attributes:
        name: ``None`` when not quantised.
        linear: Gives a linear layer's parameters.
        attention_scales: Whether attention gets ``k_scale`` and ``v_scale`` parameters.
        modelled: Whether the parameters are known here.
    """

    name: str | None
    linear: Method
    attention_scales: bool = False
    modelled: bool = True


def matrix(linear: Linear, *, pack: int = 1, dtype_rank: int | None = None) -> Parameter:
    """A weight of [rows, inputs / pack]."""
    parts, part_loader = slices(linear)
    return Parameter(
        (linear.outputs, linear.inputs // pack),
        _LOADERS.get(linear.kind, shapes.plain),
        "nothing",
        parts,
        part_loader,
        dtype_rank=dtype_rank,
    )


def slices(
    linear: Linear, rows_per: int = 1
) -> tuple[dict[str | int, Part], Callable[[Shape, Shape], str | None] | None]:
    """The slices of a fused linear, and how one part enters."""
    if linear.kind not in ("qkv", "merged"):
        return {}, None
    start, parts = 0, {}
    for shard, rows in linear.parts.items():
        parts[shard] = Part(start, -(-rows // rows_per))
        start += -(-rows // rows_per)
    return parts, shapes.qkv if linear.kind == "qkv" else shapes.merged


def unquantized(name: str, linear: Linear) -> dict[str, Parameter]:
    """``UnquantizedLinearMethod`` (unquant.py): one weight, uninitialised memory until loaded."""
    return {f"{name}.weight": matrix(linear)}


UNQUANTIZED: Method = unquantized
NONE = Quantization(None, unquantized)


def resolve(config: Mapping[str, Any] | None, features: Features) -> Quantization:
    """The method that ``_verify_quantization`` (configs/model_config.py:2000-2171) and the method's own config choose.

    Raises:
        Refused: The method is unknown.
    """
    if config is None:
        return NONE
    name = str(config.get("quant_method", "")).lower()
    if name == "modelopt" and "FP4" in str(config.get("quant_algo", "")).upper():
        if not features.modelopt_from_config:
            raise Refused(
                "ValueError", "ModelOptFp8Config only supports static FP8 quantization in SGLang.", "class"
            )
        name = "modelopt_fp4"
    if name not in METHODS:
        raise Refused("ValueError", f"Unknown quantization method: {name}.", "config")
    if name == "fp8":
        block = config.get("weight_block_size")
        return Quantization(name, _fp8_block(block) if block else _fp8_tensor, attention_scales=True)
    if name == "compressed-tensors":
        packed = _packed_weights(config)
        return Quantization(name, packed) if packed else Quantization(name, unquantized, modelled=False)
    if name in ("gptq", "gptq_marlin"):
        return Quantization(name, _gptq(config))
    if name in ("awq", "awq_marlin"):
        return Quantization(name, _awq(config))
    if name == "modelopt_fp4":
        return Quantization(name, _nvfp4(int(config.get("group_size") or 16)), attention_scales=True)
    return Quantization(name, unquantized, modelled=False)


def _fp8_tensor(name: str, linear: Linear) -> dict[str, Parameter]:
    """``Fp8LinearMethod`` with one scale per part (fp8.py:create_fp8_weight_)."""
    return {f"{name}.weight": matrix(linear, dtype_rank=0), f"{name}.weight_scale": _scales(linear)}


def _fp8_block(block: Any) -> Method:
    rows, columns = (int(n) for n in block)

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        parts, part_loader = slices(linear, rows)
        scale = (-(-linear.outputs // rows), -(-linear.inputs // columns))
        loader = _LOADERS.get(linear.kind, shapes.plain)
        return {
            f"{name}.weight": matrix(linear, dtype_rank=0),
            f"{name}.weight_scale_inv": Parameter(scale, loader, "nothing", parts, part_loader),
        }

    return method


def _scales(linear: Linear) -> Parameter:
    """``PerTensorScaleParameter`` (layers/parameter.py): one value per part."""
    parts: dict[str | int, Part] = {}
    if linear.kind in ("qkv", "merged"):
        parts = {shard: Part(i, 1) for i, shard in enumerate(linear.parts)}
    return Parameter((len(linear.parts),), shapes.plain, "nothing", parts, shapes.plain if parts else None)


def _packed_weights(config: Mapping[str, Any]) -> Method | None:
    """compressed_tensors/schemes/compressed_tensors_wNa16.py: integers packed into int32, scales per group."""
    groups = config.get("config_groups") or {}
    weights = next((g.get("weights") or {} for g in groups.values()), {})
    if weights.get("type") != "int" or weights.get("num_bits") not in (4, 8):
        return None
    pack, group = 32 // int(weights["num_bits"]), int(weights.get("group_size") or 0)

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        parts, part_loader = slices(linear)
        loader = _LOADERS.get(linear.kind, shapes.plain)
        width = linear.inputs // group if group > 0 else 1
        return {
            f"{name}.weight_packed": matrix(linear, pack=pack),
            f"{name}.weight_scale": Parameter((linear.outputs, width), loader, "nothing", parts, part_loader),
            f"{name}.weight_shape": Parameter((2,), shapes.plain),
        }

    return method


def _gptq(config: Mapping[str, Any]) -> Method:
    """gptq.py and gptq_marlin.py: the same names and shapes; rows and columns are swapped."""
    pack, group = 32 // int(config.get("bits", 4)), int(config.get("group_size", -1))

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        groups = linear.inputs // group if group > 0 else 1
        return {
            f"{name}.qweight": Parameter((linear.inputs // pack, linear.outputs), shapes.plain),
            f"{name}.g_idx": Parameter((linear.inputs,), shapes.plain),
            f"{name}.qzeros": Parameter((groups, linear.outputs // pack), shapes.plain),
            f"{name}.scales": Parameter((groups, linear.outputs), shapes.plain),
        }

    return method


def _awq(config: Mapping[str, Any]) -> Method:
    """awq.py and awq_marlin.py: packed along the outputs; on a GPU that can, the marlin method is taken."""
    pack, group = (
        32 // int(config.get("bits", config.get("w_bit", 4))),
        int(config.get("group_size", config.get("q_group_size", -1))),
    )

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        groups = linear.inputs // group if group > 0 else 1
        return {
            f"{name}.qweight": Parameter((linear.inputs, linear.outputs // pack), shapes.plain),
            f"{name}.qzeros": Parameter((groups, linear.outputs // pack), shapes.plain),
            f"{name}.scales": Parameter((groups, linear.outputs), shapes.plain),
        }

    return method


def _nvfp4(group: int) -> Method:
    """modelopt_quant.py ``ModelOptFp4LinearMethod``: two values per byte, scales per group of inputs."""

    def method(name: str, linear: Linear) -> dict[str, Parameter]:
        parts, part_loader = slices(linear)
        loader = _LOADERS.get(linear.kind, shapes.plain)
        return {
            f"{name}.weight": matrix(linear, pack=2),
            f"{name}.input_scale": _scales(linear),
            f"{name}.weight_scale_2": _scales(linear),
            f"{name}.weight_scale": Parameter(
                (linear.outputs, linear.inputs // group), loader, "nothing", parts, part_loader
            ),
        }

    return method
