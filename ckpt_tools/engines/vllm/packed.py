"""fp8, AWQ and GPTQ blocks (``model_executor/layers/quantization/fp8.py``, ``auto_awq.py``, ``auto_gptq.py``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.refusal import refuse_class
from ckpt_tools.engines.vllm.schemes import FLOATS, FP8_CACHE, Layout, Linear, Method, needed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARLIN_GROUPS = [-1, 32, 64, 128]  # quantization/utils/marlin_utils.py:143-149


def fp8(settings: Mapping[str, Any], _tensors: Mapping[str, str]) -> Method:
    """Every linear layer but those listed by their full runtime name (fp8.py:90-205)."""
    scheme = needed(settings, ("activation_scheme",))
    if scheme not in ("static", "dynamic"):
        raise refuse_class("ValueError", f"Unsupported activation scheme {scheme}")
    block = settings.get("weight_block_size")
    if block is not None:
        if len(block) != 2:
            raise refuse_class(
                "ValueError",
                f"The quantization block size of weight must have 2 dimensions, but got {len(block)} dimensions",
            )
        if scheme != "dynamic":
            raise refuse_class(
                "ValueError", "The block-wise quantization only supports dynamic activation scheme for now"
            )
    listed = settings.get("ignored_layers") or settings.get("modules_to_not_convert") or []

    def layout(linear: Linear) -> Layout:  # fp8.py:276-345
        out: Layout = {"weight": linear.matrix()}
        if block is None:
            out["weight_scale"] = linear.scale()
        else:
            linear.check_blocks(block[0])
            out["weight_scale_inv"] = linear.matrix(block[0], block[1])
        return out | ({"input_scale": linear.scale()} if scheme == "static" else {})

    return Method(lambda name, _: None if name in listed else layout, cache=FP8_CACHE)


def awq(settings: Mapping[str, Any], tensors: Mapping[str, str]) -> Method:
    """Every layer unless its *file* name is part of the runtime name and its tensors are floats (auto_awq.py:177-390)."""
    bits = needed(settings, ("w_bit", "bits"))
    size = needed(settings, ("q_group_size", "group_size"))
    needed(settings, ("zero_point",))
    pack = 32 // bits
    if bits != 4:
        raise refuse_class("ValueError", f"Unsupported num_bits = {bits}. Supported: 4.")
    listed = settings.get("modules_to_not_convert")
    if not listed:
        quantised = {name.rsplit(".", 1)[0] for name, dtype in tensors.items() if dtype not in FLOATS}
        listed = sorted({name.rsplit(".", 1)[0] for name in tensors} - quantised)

    def layout(linear: Linear) -> Layout:  # auto_awq.py:408-490
        groups = 1 if size == -1 else linear.inputs // size
        return {
            "qweight": linear.packed(pack, linear.inputs),
            "qzeros": linear.packed(pack, groups),
            "scales": linear.packed(1, groups),
        }

    def skipped(name: str) -> bool:
        return any(item in name for item in listed)

    return Method(
        lambda name, _: None if skipped(name) else layout,
        lambda name, _: bool(settings.get("lm_head", False)) and not skipped(name),
    )


@dataclass(frozen=True)
class _Gptq:
    """Bits, group size and symmetry of one layer."""

    bits: Any
    size: Any
    symmetric: Any

    def layout(self, linear: Linear) -> Layout:  # auto_gptq.py:335-425
        """The packed parameters."""
        if self.size not in MARLIN_GROUPS:
            raise refuse_class(
                "ValueError",
                f"Marlin does not support group_size = {self.size}. Only group_sizes = {MARLIN_GROUPS} are supported.",
            )
        pack, groups = 32 // self.bits, 1 if self.size == -1 else linear.inputs // self.size
        return {
            "qweight": linear.packed(1, linear.inputs // pack),
            "scales": linear.packed(1, groups),
            "qzeros": linear.packed(pack, groups),
        }

    def checked(self) -> _Gptq:
        """Itself, if the engine has a kernel type for it."""
        if (self.bits, self.symmetric) not in ((4, True), (8, True)):
            raise refuse_class(
                "ValueError", f"Unsupported quantization config: bits={self.bits}, sym={self.symmetric}"
            )
        return self


def gptq(settings: Mapping[str, Any], tensors: Mapping[str, str]) -> Method:
    """Layers whose *file* name, with tensors that are no floats, is part of the runtime name; all when there is none
    (auto_gptq.py:96-298, utils/gptq_utils.py:23-202)."""
    rules = settings.get("dynamic")
    rules = {} if rules is None else rules
    bits, size, ordered, symmetric = (
        needed(settings, (key,)) for key in ("bits", "group_size", "desc_act", "sym")
    )
    if ordered and size != -1:
        raise refuse_class(
            "ValueError", "GPTQ group activation ordering (desc_act=True) is no longer supported."
        )
    _ = 32 // bits
    base = _Gptq(bits, size, symmetric).checked()
    listed = settings.get("modules_in_block_to_quantize")
    names = _flat(listed or [])
    if not names:
        names = sorted({name.rsplit(".", 1)[0] for name, dtype in tensors.items() if dtype not in FLOATS})

    def scheme(name: str, _cls: str) -> Callable[[Linear], Layout] | None:
        if names and not any(item in name for item in names):
            return None
        for pattern, change in rules.items():
            if re.match(pattern.removeprefix("-:").removeprefix("+:"), name):
                if pattern.startswith("-:") or change is False:
                    return None
                return (
                    _Gptq(
                        change.get("bits", bits), change.get("group_size", size), change.get("sym", symmetric)
                    )
                    .checked()
                    .layout
                )
        return base.layout

    return Method(
        scheme, lambda name, cls: bool(settings.get("lm_head", False)) and scheme(name, cls) is not None
    )


def _flat(listed: Any) -> list[Any]:
    return [inner for item in listed for inner in (_flat(item) if isinstance(item, list) else [item])]
