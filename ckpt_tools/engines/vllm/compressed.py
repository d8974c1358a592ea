"""compressed-tensors blocks (``model_executor/layers/quantization/compressed_tensors/compressed_tensors.py``).

Modelled are int weights packed by group or channel, and fp8 weights; other schemes raise :class:`NotModelled`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.refusal import refuse_class
from ckpt_tools.engines.vllm.schemes import Layout, Linear, Method, NotModelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckpt_tools.engines.vllm.modules import Parameter

CACHE: Mapping[str, tuple[int, ...]] = dict.fromkeys(
    ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "q_zero_point"), (1,)
)
ACTIVATION_FORMATS = (
    "naive-quantized",
    "int-quantized",
    "float-quantized",
    "nvfp4-pack-quantized",
)  # utils.py:51-58
STRATEGIES = frozenset({"tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"})


@dataclass(frozen=True)
class Arguments:
    """``QuantizationArgs`` of the compressed-tensors package (``quantization/quant_args.py:150-420``)."""

    bits: Any
    kind: str
    symmetric: Any
    strategy: str
    size: int | None
    block: list[int] | None
    dynamic: Any

    @classmethod
    def parse(cls, stated: Any) -> Arguments:
        """Validated as the package does."""
        if not isinstance(stated, dict):
            raise refuse_class("ValidationError", "Input should be a valid dictionary")
        size, block, dynamic = (
            stated.get("group_size"),
            stated.get("block_structure"),
            stated.get("dynamic", False),
        )
        kind, strategy = str(stated.get("type", "int")).lower(), stated.get("strategy")
        if kind not in ("int", "float"):
            raise _invalid(f"'{kind}' is not a valid QuantizationType")
        if strategy is None:
            strategy = "tensor" if size is None else "group" if size > 0 else "channel"
        strategy = str(strategy).lower()
        if strategy not in STRATEGIES:
            raise _invalid(f"'{strategy}' is not a valid QuantizationStrategy")
        ordering = stated.get("actorder")
        ordering = {True: "group", "dynamic": "group", "static": "weight"}.get(ordering, ordering)
        grouped = strategy in ("group", "tensor_group")
        if strategy == "token" and not dynamic:
            raise _invalid("Cannot perform static token quantization, please use `dynamic=True`")
        if grouped and (size is None or size <= 0):
            raise _invalid(f"strategy {strategy} requires group_size to be set to a positive value")
        if size is not None and size > 0 and not grouped:
            raise _invalid("group_size requires strategy to be set to 'group'")
        if (strategy == "block") != (block is not None):
            raise _invalid("Block str")
        if ordering == "group" and not grouped:
            raise _invalid(
                "Must use group or tensor_group quantization strategy in order to apply group activation"
            )
        if dynamic and strategy not in ("token", "tensor", "tensor_group", "group"):
            raise _invalid("One of (")
        if kind == "float" and stated.get("num_bits", 8) not in (4, 8):
            raise refuse_class("NotImplementedError", "Only num_bits in (8) are supported")
        return cls(
            stated.get("num_bits", 8), kind, stated.get("symmetric", True), strategy, size, block, dynamic
        )


@dataclass(frozen=True)
class _Group:
    """One target of one config group: how its layers' weights and inputs are quantised."""

    weights: Arguments
    inputs: Arguments | None
    layout: str | None

    def scheme(self, name: str) -> Callable[[Linear], Layout]:
        """The scheme that the engine picks for a layer (:700-900).

        Raises:
            Refused: It has none.
            NotModelled: It has one that this package has no table for.
        """
        w, i = self.weights, self.inputs
        packed_int = w.kind == "int" and not w.dynamic and w.strategy in ("channel", "group")
        if w.kind == "float" and w.strategy in ("group", "tensor_group"):
            raise NotModelled("compressed-tensors of 4-bit or mx floats")
        if (
            packed_int
            and i is not None
            and i.kind == "int"
            and self.layout in ("pack-quantized", "int-quantized")
        ):
            raise NotModelled("compressed-tensors with int activations")
        if (
            w.strategy in ("channel", "group")
            and i is None
            and not w.dynamic
            and self.layout == "pack-quantized"
        ):
            return self._packed
        if self.layout in ACTIVATION_FORMATS:
            fp8 = (
                w.kind == "float"
                and w.symmetric
                and not w.dynamic
                and w.strategy in ("tensor", "channel", "block")
            )
            if fp8:
                static = i is not None and not i.dynamic and i.kind == "float"
                return lambda linear: self._fp8(linear, static)
            if w.kind == "int" and i is not None and w.bits in (4, 8):
                raise NotModelled("compressed-tensors with int activations")
        raise refuse_class(
            "NotImplementedError",
            f"No compressed-tensors compatible scheme was found for layer_name='{name}'",
        )

    def _packed(self, linear: Linear) -> Layout:  # schemes/compressed_tensors_wNa16.py:58-225
        w = self.weights
        size = -1 if w.size is None else w.size
        if w.bits not in range(2, 9):
            raise refuse_class("ValueError", f"Unsupported num_bits = {w.bits}. Supported num_bits =")
        size = linear.inputs if size == -1 else size
        if linear.inputs % size:
            raise refuse_class(
                "ValueError",
                f"Weight input_size_per_partition={linear.inputs} for layer '{linear.name}' is not",
            )
        many = linear.inputs // size
        out: dict[str, Parameter] = {
            "weight_packed": linear.matrix(inputs=ceil(linear.inputs * w.bits / 32)),
            "weight_scale": linear.matrix(inputs=many),
            "weight_shape": linear.whole((2,)),
        }
        if not w.symmetric:
            out["weight_zero_point"] = linear.matrix(int(Fraction(32, w.bits)), inputs=many)
        return out

    def _fp8(self, linear: Linear, static: bool) -> Layout:  # schemes/compressed_tensors_w8a8_fp8.py:85-135
        w = self.weights
        out = {"weight": linear.matrix()}
        if w.block is not None:
            linear.check_blocks(w.block[0])
            out["weight_scale"] = linear.matrix(w.block[0], w.block[1])
        elif w.strategy == "tensor":
            out["weight_scale"] = linear.scale()
        elif linear.rule == "row":
            out["weight_scale"] = linear.whole((linear.outputs, 1))
        else:
            out["weight_scale"] = linear.matrix(inputs=1)
        return out | ({"input_scale": linear.scale()} if static else {})


def read(settings: Mapping[str, Any], _tensors: Mapping[str, str]) -> Method:
    """Groups by target, and what no group touches (:200-370, :956-1020)."""
    groups: dict[str, _Group] = {}
    layout = settings.get("format")
    for _, group in settings.get("config_groups", {}).items():
        targets = group["targets"]
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue
        for target in targets:
            groups[target] = _group(group, layout)
    sparsity = settings.get("sparsity_config")
    if sparsity and sparsity.get("targets"):
        raise refuse_class("DeprecationWarning", "Sparsity support has been removed from compressed-tensors.")
    ignored = settings.get("ignore", [])

    def scheme(name: str, cls: str) -> Callable[[Linear], Layout] | None:
        if _first(name, ignored):
            return None
        target = _first(name, groups) or _first(cls, groups, contains=True)
        return None if target is None else groups[target].scheme(name)

    return Method(scheme, lambda name, cls: scheme(name, cls) is not None, CACHE)


def _group(group: Mapping[str, Any], layout: Any) -> _Group:
    weights = Arguments.parse(group.get("weights"))
    ordering = (group["weights"] or {}).get("actorder")
    if ordering in ("group", "dynamic", True):
        stated = "group" if ordering is True else ordering
        raise refuse_class(
            "ValueError",
            f"Compressed-tensors group/dynamic activation ordering (actorder='{stated}') is no longer",
        )
    own = group.get("format")
    inputs = group.get("input_activations")
    if (layout if own is None else own) in ACTIVATION_FORMATS and not inputs and weights.kind != "float":
        raise refuse_class("AssertionError", "")
    parsed = Arguments.parse(inputs) if inputs else None
    if group.get("output_activations"):
        Arguments.parse(group["output_activations"])
    return _Group(weights, parsed, layout if own is None else own)


def _first(value: str, targets: Iterable[str], contains: bool = False) -> str | None:
    """The first target that is the value, a pattern of it, or part of it (``utils/config_utils.py:392-412``)."""
    for target in targets:
        if target.startswith("re:"):
            if re.match(target[3:], value):
                return target
        elif target.lower() in value.lower() if contains else target == value:
            return target
    return None


def _invalid(message: str) -> Exception:
    return refuse_class("ValidationError", f"Value error, {message}")
