"""Quantised drafts: which parameters a linear layer has under the draft's ``quantization_config``.

vLLM quantises by the draft's own config alone (``models/utils.py:985-1007``): a block that was copied from the target
onto a bf16 draft changes what is built. The runtime names count the draft's layers after the target's
(``model.layers.{target layers + i}``), so lists of modules written with the draft's own numbers don't match; and q/k/v
or gate/up are known by their fused names alone, for a draft's block is read without the class's list of fused layers
(``:1003``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import compressed, modelopt, packed
from ckpt_tools.engines.vllm.schemes import Linear, Method, NotModelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ckpt_tools.engines.vllm.modules import Module

# model_executor/layers/quantization/__init__.py:15-49
METHODS = frozenset(
    {
        "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed",
        "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors", "experts_int8", "quark",
        "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor",
        "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "mxfp8",
    }
)  # fmt: skip
DEPRECATED = frozenset(
    {"fbgemm_fp8", "fp_quant"}
)  # refused unless asked for (:51-54, config/model.py:1446-1458)
# :150-185
_READERS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, str]], Method]] = {
    "fp8": packed.fp8,
    "awq": packed.awq,
    "auto_awq": packed.awq,
    "awq_marlin": packed.awq,
    "gptq": packed.gptq,
    "auto_gptq": packed.gptq,
    "gptq_marlin": packed.gptq,
    "compressed-tensors": compressed.read,
    "modelopt": modelopt.read,
    "modelopt_fp4": modelopt.read,
}


def read(settings: Mapping[str, Any] | None, tensors: Mapping[str, str]) -> Method | None:
    """The method that the draft's block names, which the engine reads before it builds anything.

    Args:
        settings: ``quantization_config`` of the resolved config, its ``quant_method`` in vLLM's spelling.
        tensors: Names in the files -> dtype.

    Raises:
        NotModelled: For a method without a table here.
        Refused: Where the engine refuses a setting.
    """
    method = (settings or {}).get("quant_method")
    if settings is None or not method:
        return None
    if method not in _READERS:
        raise NotModelled(method)
    return _READERS[method](settings, tensors)


def quantise(root: Module, method: Method, target_layers: int | None) -> None:
    """Replace the linear layers' parameters in place.

    Args:
        root: The draft's modules as unquantised.
        method: What :func:`read` gave.
        target_layers: Layers of the target, from which the engine counts on.

    Raises:
        NotModelled: For a quantised head.
    """
    for path, module in _walk(root):
        plain = _runtime(path, target_layers)
        # qwen3's EAGLE-3 names the q/k/v that it puts in place without their self_attn (qwen3_eagle3.py:72-81)
        name = plain.replace(".self_attn.qkv", ".qkv") if root.cls == "Eagle3Qwen3ForCausalLM" else plain
        if module.cls == "ParallelLMHead" and _offered(path, root) and method.head(name, module.cls):
            raise NotModelled(f"quantised {path}")
        if module.cls in _LINEAR:
            if module.before is not None:
                _replace(module.before, plain, method)
            _replace(module, name, method)
    for module in (root, *(child for child in root.children.values() if child.own_loader)):
        module.quantised = True
    for _, module in _walk(root):
        if module.cls == "Attention" or (method.latent and module.cls == "MLAAttention"):
            module.parameters |= method.cache_parameters()


def _replace(module: Module, name: str, method: Method) -> None:
    scheme = method.scheme(name, module.cls)
    if scheme is not None:
        weight = module.parameters.pop("weight")
        linear = Linear(name, weight.rule, weight.shape[0], weight.shape[1], weight.shards)
        module.parameters = {**scheme(linear), **module.parameters}


def _offered(path: str, root: Module) -> bool:
    """Which heads are built with the block: EAGLE-3's, and DSpark's markov head (``qwen3_dspark.py:198-206``)."""
    return "markov" in path or "Eagle3" in root.cls


def _runtime(path: str, target_layers: int | None) -> str:
    """``model.layers.0.…`` of the draft as the engine calls it."""
    start = "model.layers."
    if not path.startswith(start):
        return path
    index, _, rest = path[len(start) :].partition(".")
    number = f"T+{index}" if target_layers is None else str(target_layers + int(index))
    return f"{start}{number}.{rest}"


def _walk(module: Module, prefix: str = "") -> Iterator[tuple[str, Module]]:
    yield prefix.rstrip("."), module
    for name, child in module.children.items():
        yield from _walk(child, f"{prefix}{name}.")


_LINEAR = frozenset(
    {"QKVParallelLinear", "MergedColumnParallelLinear", "RowParallelLinear", "ReplicatedLinear", "ColumnParallelLinear",
     "DeepSeekV2FusedQkvAProjLinear"}
)  # fmt: skip
