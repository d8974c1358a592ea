"""The layers that SGLang's draft classes are made of, as parameters.

Each function gives ``{name: Parameter}`` at tensor-parallel size 1. Linear layers go through the quantisation method; the
embedding, the head, the norms and a plain ``nn.Linear`` don't.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang import shapes
from ckpt_tools.engines.sglang.linear import UNQUANTIZED, Linear, slices
from ckpt_tools.engines.sglang.parameters import Parameter
from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig
    from ckpt_tools.engines.sglang.linear import Method
    from ckpt_tools.engines.sglang.quantization import Quantization

Parameters = dict[str, Parameter]
MOST_MODULES = 10_000
PADDING = 64  # layers/vocab_parallel_embedding.py:48 DEFAULT_VOCAB_PADDING_SIZE


def vocabulary(name: str, rows: Any, width: int) -> Parameters:
    """``VocabParallelEmbedding`` or ``ParallelLMHead``: rows padded to a multiple of 64."""
    if isinstance(rows, str):  # layers/vocab_parallel_embedding.py:51 pads with +
        raise Refused("TypeError", 'can only concatenate str (not "int") to str', "class")
    if rows is None:
        raise Refused("TypeError", "unsupported operand type(s) for +: 'NoneType' and 'int'", "class")
    padded = -(-rows // PADDING) * PADDING
    return {f"{name}.weight": Parameter((padded, width), shapes.vocabulary, logical=(rows, width))}


def head(rows: Any, width: int, quantization: Quantization) -> Parameters:
    """``ParallelLMHead``; a method that takes it packs its columns (layers/vocab_parallel_embedding.py:344-352)."""
    plain = vocabulary("lm_head", rows, width)
    if quantization.head is None:
        return plain
    (padded, _), out = plain["lm_head.weight"].shape, {}
    for name, built in quantization.head("lm_head", Linear("column", width, {0: padded}, "lm_head")).items():
        by_rows = len(built.shape) > 1
        loader = shapes.vocabulary if by_rows else shapes.plain
        logical = (rows, *built.shape[1:]) if by_rows else None
        out[name] = Parameter(built.shape, loader, logical=logical)
    return out


def norm(name: str, width: int) -> Parameters:
    """``RMSNorm``: ones until loaded."""
    return {f"{name}.weight": Parameter((width,), shapes.plain, "default")}


def torch_linear(name: str, inputs: int, outputs: int, *, bias: bool) -> Parameters:
    """``torch.nn.Linear``: random values until loaded, its bias too."""
    out = {f"{name}.weight": Parameter((outputs, inputs), shapes.plain)}
    return out | ({f"{name}.bias": Parameter((outputs,), shapes.plain)} if bias else {})


def column(
    name: str,
    inputs: int,
    outputs: int,
    method: Method = UNQUANTIZED,
    *,
    bias: bool = False,
    path: str | None = None,
) -> Parameters:
    """``ColumnParallelLinear``."""
    return _linear(name, Linear("column", inputs, {0: outputs}, path or name), method, bias)


def row(
    name: str,
    inputs: int,
    outputs: int,
    method: Method = UNQUANTIZED,
    *,
    bias: bool = False,
    path: str | None = None,
) -> Parameters:
    """``RowParallelLinear``."""
    return _linear(name, Linear("row", inputs, {0: outputs}, path or name), method, bias)


def replicated(
    name: str, inputs: int, outputs: int, method: Method = UNQUANTIZED, *, path: str | None = None
) -> Parameters:
    """``ReplicatedLinear``."""
    return _linear(name, Linear("replicated", inputs, {0: outputs}, path or name), method, bias=False)


def qkv(
    name: str,
    inputs: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    method: Method = UNQUANTIZED,
    *,
    bias: bool = False,
    path: str | None = None,
) -> Parameters:
    """``QKVParallelLinear``."""
    parts: dict[str | int, int] = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    return _linear(name, Linear("qkv", inputs, parts, path or name), method, bias)


def gate_up(
    name: str, inputs: int, width: int, method: Method = UNQUANTIZED, *, path: str | None = None
) -> Parameters:
    """``MergedColumnParallelLinear`` of gate and up."""
    return _linear(name, Linear("merged", inputs, {0: width, 1: width}, path or name), method, bias=False)


def mlp(name: str, config: HfConfig, width: int, method: Method, *, path: str | None = None) -> Parameters:
    """``LlamaMLP``, ``Qwen2MLP`` or ``DeepseekV2MLP``; each refuses another activation than silu (models/llama.py:116-119)."""
    if width is None:
        raise Refused("TypeError", "unsupported operand type(s) for %: 'NoneType' and 'int'", "class")
    hidden, path = config.need("hidden_size"), path or name
    out = gate_up(f"{name}.gate_up_proj", hidden, width, method, path=f"{path}.gate_up_proj")
    out |= row(f"{name}.down_proj", width, hidden, method, path=f"{path}.down_proj")
    if config.need("hidden_act") != "silu":
        raise Refused(
            "ValueError",
            f"Unsupported activation: {config.get('hidden_act')}. Only silu is supported for now.",
            "class",
        )
    return out


def attention_scales(name: str) -> Parameters:
    """The KV cache's scales that a quantised attention has: minus one until loaded (layers/quantization/kv_cache.py)."""
    return {f"{name}.{which}": Parameter((), shapes.plain, "default") for which in ("k_scale", "v_scale")}


def layer_count(config: HfConfig) -> int:
    """``range(num_hidden_layers)``."""
    return repeated(config.need("num_hidden_layers"))


def repeated(count: Any) -> int:
    """How often a module is built; more than any memory holds is refused as by a server that runs out of it."""
    if not isinstance(count, int):
        raise Refused(
            "TypeError", f"'{type(count).__name__}' object cannot be interpreted as an integer", "class"
        )
    if count > MOST_MODULES:
        raise Refused("MemoryError", f"{count} modules", "class")
    return count


def attention(config: HfConfig) -> tuple[int, int, int]:
    """Heads, key-value heads and head_dim, with what attention refuses (models/llama.py:181-203)."""
    heads, kv_heads = config.need("num_attention_heads"), config.need("num_key_value_heads")
    head_dim = config.get("head_dim", config.need("hidden_size") // heads)  # divided even where it is given
    if kv_heads < 1 and 1 % kv_heads:  # one rank replicates them
        raise Refused("AssertionError", "", "class")
    if head_dim == 0:
        raise Refused("ZeroDivisionError", "0.0 cannot be raised to a negative power", "class")
    int(config.get("partial_rotary_factor", 1) * head_dim)  # the rotated width (models/llama.py:206)
    if not isinstance(head_dim, int):
        raise Refused(
            "TypeError", f"unsupported operand type(s) for *: 'int' and '{type(head_dim).__name__}'", "class"
        )
    return heads, kv_heads, head_dim


# layers/rotary_embedding/factory.py; what a type's branch indexes without a default
_ROPE_TYPES = frozenset({"llama3", "default", "linear", "dynamic", "yarn", "deepseek_yarn", "longrope"})
_ROPE_KEYS_BEFORE_5 = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "deepseek_yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}


def check_rope(config: HfConfig, features: Features, *, reads_theta: bool = True) -> None:
    """What ``get_rope`` refuses; a class that doesn't read the base uses one of its own."""
    scaling = config.get("rope_parameters") if features.rope_parameters else None
    theta = scaling.get("rope_theta", 10000) if scaling else config.get("rope_theta", 10000)
    if scaling is None:
        scaling = config.get("rope_scaling")
    positions = config.get("max_position_embeddings", 8192)
    # the key of the cache (layers/rotary_embedding/factory.py:138-166): lists in a scaling become tuples
    values = [tuple(v) if isinstance(v, list) else v for v in (scaling or {}).values()]
    hash((theta if reads_theta else None, positions, *values))
    if scaling is not None:
        _check_rope_type(scaling, features)
        if scaling.get("rope_type", scaling.get("type")) == "longrope":
            _check_factors(scaling, config)
    if reads_theta and (theta is None or isinstance(theta, str)):
        raise Refused(
            "TypeError",
            f"unsupported operand type(s) for ** or pow(): '{type(theta).__name__}' and 'Tensor'",
            "class",
        )
    if scaling and scaling.get("rope_type", scaling.get("type")) in ("yarn", "deepseek_yarn"):
        positions = scaling.get("original_max_position_embeddings", positions)
    if positions is None or isinstance(positions, str):
        raise Refused("TypeError", "arange() received an invalid combination of arguments", "class")
    if positions < 0:
        raise Refused("RuntimeError", "upper bound and lower bound inconsistent with step sign", "class")
    if reads_theta and scaling and scaling.get("rope_type", scaling.get("type")) in ("yarn", "deepseek_yarn"):
        math.log(theta)  # layers/rotary_embedding/yarn.py: where the ramp begins, and how far it scales
        _ = scaling.get("factor", 1.0) <= 1


def _check_factors(scaling: Mapping[str, Any], config: HfConfig) -> None:
    """layers/rotary_embedding/rope_variant.py ``Phi3LongRoPEScaledRotaryEmbedding``: a factor for every rotated pair."""
    _, _, head_dim = attention(config)
    pairs = (int(config.get("partial_rotary_factor", 1) * head_dim) + 1) // 2
    for key in ("short_factor", "long_factor"):
        if len(scaling[key]) not in (1, pairs):
            raise Refused(
                "RuntimeError",
                f"The size of tensor a ({len(scaling[key])}) must match the size of tensor b ({pairs}) at non-singleton dimension 0",
                "class",
            )


def _check_rope_type(scaling: Mapping[str, Any], features: Features) -> None:
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in _ROPE_TYPES and not (kind == "proportional" and features.rope_proportional):
        raise Refused("ValueError", f"Unknown RoPE scaling type {kind}", "class")
    if not features.rope_parameters:
        for key in _ROPE_KEYS_BEFORE_5.get(kind, ()):
            if key not in scaling:
                raise Refused("KeyError", f"'{key}'", "class")


def _linear(name: str, linear: Linear, method: Method, bias: bool) -> Parameters:
    out = method(name, linear)
    if bias:
        out[f"{name}.bias"] = bias_parameter(linear)
    return out


def bias_parameter(linear: Linear) -> Parameter:
    """A linear's bias: zeros until loaded."""
    loader = {"column": shapes.column, "row": shapes.row, "replicated": shapes.replicated}.get(
        linear.kind, shapes.plain
    )
    return Parameter((linear.outputs,), loader, "default", *slices(linear))
