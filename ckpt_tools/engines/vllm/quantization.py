"""Quantised drafts: which parameters a linear layer has under the draft's ``quantization_config``.

vLLM quantises by the draft's own config alone (``models/utils.py:985-1007``): a block that was copied from the target
onto a bf16 draft changes what is built. The runtime names count the draft's layers after the target's
(``model.layers.{target layers + i}``), so lists of modules written with the draft's own numbers don't match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from ckpt_tools.engines.vllm.modules import Module, Parameter, Rule, ShardId
from ckpt_tools.engines.vllm.refusal import refuse_class

# model_executor/layers/quantization/__init__.py:15-49
METHODS = frozenset(
    {
        "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed",
        "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors", "experts_int8", "quark",
        "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor",
        "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "mxfp8",
    }
)  # fmt: skip
FLOATS = frozenset({"F16", "BF16", "F32"})
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj"),
         "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa")}  # fmt: skip
Settings = Mapping[str, Any]


class NotModelled(Exception):
    """A scheme that this package has no table for."""


@dataclass(frozen=True)
class Linear:
    """One linear layer before quantisation: outputs, inputs, and the outputs of each fused part."""

    rule: Rule
    outputs: int
    inputs: int
    shards: Mapping[ShardId, tuple[int, int]]

    def matrix(
        self, out_div: int = 1, in_div: int = 1, out_axis: int = 0, inputs: int | None = None
    ) -> Parameter:
        """A matrix whose outputs are packed by ``out_div`` and whose inputs by ``in_div`` (or are ``inputs`` many)."""
        rows = ceil(self.outputs / out_div)
        columns = ceil(self.inputs / in_div) if inputs is None else inputs
        shards = {
            k: (ceil(first / out_div), ceil(size / out_div)) for k, (first, size) in self.shards.items()
        }
        shape = (rows, columns) if out_axis == 0 else (columns, rows)
        return Parameter(shape, self.rule, shards=shards, out_axis=out_axis)

    def whole(self, shape: tuple[int, ...]) -> Parameter:
        """A tensor of the whole layer that no axis is narrowed of."""
        return Parameter(shape, "replicated" if self.rule == "replicated" else "exact")

    def scale(self) -> Parameter:
        """One number per fused part."""
        shards: dict[ShardId, tuple[int, int]] = {key: (i, 1) for i, key in enumerate(self.shards)}
        return Parameter((max(1, len(shards)),), "scale", shards=shards)


def quantise(
    root: Module, settings: Settings | None, tensors: Mapping[str, str], target_layers: int | None
) -> None:
    """Replace the linear layers' parameters in place.

    Args:
        root: The draft's modules as unquantised.
        settings: ``quantization_config`` of the draft's config.
        tensors: Names in the files -> dtype.
        target_layers: Layers of the target, from which the engine counts on.

    Raises:
        NotModelled: For a method without a table here.
    """
    method = name_of(settings)
    if settings is None or not method:
        return
    if method not in _METHODS:
        raise NotModelled(method)
    scheme, selects, cache = _METHODS[method]
    chosen = selects(settings, tensors)
    for path, module in _linears(root):
        if chosen(_runtime(path, target_layers)):
            weight = module.parameters.pop("weight")
            linear = Linear(weight.rule, weight.shape[0], weight.shape[1], weight.shards)
            module.parameters = {**scheme(linear, settings), **module.parameters}
    for module in (root, *(child for child in root.children.values() if child.own_loader)):
        module.quantised = True
    for _, module in _walk(root):
        if module.cls == "Attention":
            module.parameters |= {name: Parameter(shape, initial="default") for name, shape in cache.items()}


def name_of(settings: Settings | None) -> str:
    """``quant_method`` in vLLM's spelling; ModelOpt's files name theirs by ``quant_algo``."""
    if not settings:
        return ""
    method = (
        str(settings.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    )
    producer = settings.get("producer")
    if isinstance(producer, Mapping) and producer.get("name") == "modelopt":
        algorithm = str((settings.get("quantization") or {}).get("quant_algo")).upper()
        return "modelopt_fp4" if algorithm == "NVFP4" else "modelopt"
    if method == "modelopt" and str(settings.get("quant_algo")).upper() == "NVFP4":
        return "modelopt_fp4"
    return method


def _fp8(linear: Linear, settings: Settings) -> dict[str, Parameter]:  # quantization/fp8.py:265-345
    block = settings.get("weight_block_size")
    static = settings.get("activation_scheme") == "static"
    out = {"weight": linear.matrix()}
    if block:
        out["weight_scale_inv"] = linear.matrix(block[0], block[1])
    else:
        out["weight_scale"] = linear.scale()
    return out | ({"input_scale": linear.scale()} if static else {})


def _awq(linear: Linear, settings: Settings) -> dict[str, Parameter]:  # quantization/auto_awq.py:414-490
    pack, groups = 32 // _bits(settings), _groups(linear, settings)
    return {
        "qweight": linear.matrix(pack, 1, 1),
        "qzeros": linear.matrix(pack, out_axis=1, inputs=groups),
        "scales": linear.matrix(out_axis=1, inputs=groups),
    }


def _gptq(linear: Linear, settings: Settings) -> dict[str, Parameter]:  # quantization/auto_gptq.py:335-425
    pack, groups = 32 // _bits(settings), _groups(linear, settings)
    return {
        "qweight": linear.matrix(1, pack, 1),
        "scales": linear.matrix(out_axis=1, inputs=groups),
        "qzeros": linear.matrix(pack, out_axis=1, inputs=groups),
    }


def _nvfp4(linear: Linear, _settings: Settings) -> dict[str, Parameter]:  # quantization/modelopt.py
    return {
        "weight": linear.matrix(1, 2),
        "input_scale": linear.scale(),
        "weight_scale_2": linear.scale(),
        "weight_scale": linear.matrix(1, 16),
    }


def _compressed(linear: Linear, settings: Settings) -> dict[str, Parameter]:
    """compressed-tensors with one group of schemes: int weights packed by group or channel, or fp8 weights."""
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise NotModelled("compressed-tensors with several groups")
    group: Mapping[str, Any] = next(iter(groups.values()))
    weights: Mapping[str, Any] = group.get("weights") or {}
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if kind == "int" and settings.get("format") == "pack-quantized" and isinstance(bits, int):
        many = 1 if strategy == "channel" else linear.inputs // int(weights["group_size"])
        out = {  # compressed_tensors_wNa16.py:110-225
            "weight_packed": linear.matrix(inputs=ceil(linear.inputs * bits / 32)),
            "weight_scale": linear.matrix(inputs=many),
            "weight_shape": linear.whole((2,)),
        }
        if not weights.get("symmetric", True):
            out["weight_zero_point"] = linear.matrix(32 // bits, inputs=many)
        return out
    if kind == "float" and bits == 8 and strategy in ("channel", "tensor"):
        out = {"weight": linear.matrix()}  # compressed_tensors_w8a8_fp8.py
        if strategy == "tensor":
            out["weight_scale"] = linear.scale()
        else:
            out["weight_scale"] = (
                linear.whole((linear.outputs, 1)) if linear.rule == "row" else linear.matrix(inputs=1)
            )
        inputs = group.get("input_activations") or {}
        return out | ({"input_scale": linear.scale()} if inputs and not inputs.get("dynamic") else {})
    raise NotModelled("compressed-tensors of another scheme")


def _bits(settings: Settings) -> int:
    bits = settings.get("bits", settings.get("w_bit"))
    if not isinstance(bits, int) or bits not in (2, 4, 8):
        raise refuse_class("ValueError", f"Unsupported quantization config: bits={bits}")
    return bits


def _groups(linear: Linear, settings: Settings) -> int:
    size = settings.get("group_size", settings.get("q_group_size"))
    return 1 if size == -1 else linear.inputs // int(size or linear.inputs)


Chooser = Callable[[Settings, Mapping[str, str]], Callable[[str], bool]]


def _all_but_listed(settings: Settings, _tensors: Mapping[str, str]) -> Callable[[str], bool]:
    """fp8: every linear layer but those listed by their full runtime name."""
    listed = settings.get("ignored_layers") or settings.get("modules_to_not_convert") or ()
    return lambda path: not any(name in listed for name in _parts(path))


def _all_but_matched(settings: Settings, _tensors: Mapping[str, str]) -> Callable[[str], bool]:
    """compressed-tensors and ModelOpt: ``ignore`` holds full names, ``re:`` patterns or wildcards."""
    patterns = [
        re.compile(p[3:] if p.startswith("re:") else re.escape(p).replace(r"\*", ".*"))
        for p in _ignored(settings)
    ]
    return lambda path: not all(any(p.fullmatch(name) for p in patterns) for name in _parts(path))


def _ignored(settings: Settings) -> list[str]:
    listed = settings.get("ignore") or settings.get("exclude_modules") or ()
    nested = settings.get("quantization") or {}
    return [str(item) for item in (*listed, *(nested.get("exclude_modules") or ()))]


def _not_float(settings: Settings, tensors: Mapping[str, str]) -> Callable[[str], bool]:
    """AWQ: every layer unless its *file* name is part of the runtime name and its tensors are floats (auto_awq.py:370-388)."""
    listed = settings.get("modules_to_not_convert")
    if not listed:
        quantised = {name.rsplit(".", 1)[0] for name, dtype in tensors.items() if dtype not in FLOATS}
        listed = {name.rsplit(".", 1)[0] for name in tensors} - quantised
    return lambda path: not all(any(item in name for item in listed) for name in _parts(path))


def _listed_or_packed(settings: Settings, tensors: Mapping[str, str]) -> Callable[[str], bool]:
    """GPTQ: layers whose *file* name, with tensors that are no floats, is part of the runtime name; all when there is none
    (auto_gptq.py:273-298, gptq_utils.py:120-170)."""
    listed = settings.get("modules_in_block_to_quantize")
    flat = [item for sub in listed or () for item in (sub if isinstance(sub, list) else [sub])]
    names = flat or sorted({name.rsplit(".", 1)[0] for name, dtype in tensors.items() if dtype not in FLOATS})
    return lambda path: not names or all(any(item in name for item in names) for name in _parts(path))


_FP8_CACHE: Mapping[str, tuple[int, ...]] = {"q_scale": (), "k_scale": (), "v_scale": (), "prob_scale": ()}
_CT_CACHE: Mapping[str, tuple[int, ...]] = dict.fromkeys(
    ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "q_zero_point"), (1,)
)
_METHODS: Mapping[
    str, tuple[Callable[[Linear, Settings], dict[str, Parameter]], Chooser, Mapping[str, tuple[int, ...]]]
] = {
    "fp8": (_fp8, _all_but_listed, _FP8_CACHE),
    "awq": (_awq, _not_float, {}),
    "gptq": (_gptq, _listed_or_packed, {}),
    "compressed-tensors": (_compressed, _all_but_matched, _CT_CACHE),
    "modelopt_fp4": (_nvfp4, _all_but_matched, _FP8_CACHE),
}


def _parts(path: str) -> list[str]:
    """A fused layer answers for each of its parts."""
    stem, _, last = path.rpartition(".")
    return [f"{stem}.{part}" for part in FUSED.get(last, (last,))]


def _runtime(path: str, target_layers: int | None) -> str:
    """``model.layers.0.…`` of the draft as the engine calls it."""
    start = "model.layers."
    if not path.startswith(start):
        return path
    index, _, rest = path[len(start) :].partition(".")
    number = f"T+{index}" if target_layers is None else str(target_layers + int(index))
    return f"{start}{number}.{rest}"


def _walk(module: Module, prefix: str = "") -> list[tuple[str, Module]]:
    out = [(prefix.rstrip("."), module)]
    for name, child in module.children.items():
        out += _walk(child, f"{prefix}{name}.")
    return out


_LINEAR = frozenset(
    {"QKVParallelLinear", "MergedColumnParallelLinear", "RowParallelLinear", "ReplicatedLinear", "ColumnParallelLinear",
     "DeepSeekV2FusedQkvAProjLinear"}
)  # fmt: skip


def _linears(root: Module) -> list[tuple[str, Module]]:
    return [(path, module) for path, module in _walk(root) if module.cls in _LINEAR]
