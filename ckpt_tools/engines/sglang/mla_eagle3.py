"""``Eagle3DeepseekV2ForCausalLM``, the MLA head of Kimi K2 (SGLang models/kimi_k25_eagle3.py; lines are of 0.5.23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang import modules, shapes
from ckpt_tools.engines.sglang.parameters import Model
from ckpt_tools.engines.sglang.quantization import NONE
from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig
    from ckpt_tools.engines.sglang.modules import Parameters
    from ckpt_tools.engines.sglang.quantization import Quantization
    from ckpt_tools.model import TensorInfo

CLASSES = ("Eagle3DeepseekV2ForCausalLM",)
STACKED: tuple[tuple[str, str, str | int], ...] = (
    (".gate_up_proj", ".gate_proj", 0),
    (".gate_up_proj", ".up_proj", 1),
)
DOWN = ("q_a_proj", "kv_a_proj_with_mqa")  # joined into one (:467-492)
LAYER = "model.midlayer"


def build(name: str, config: HfConfig, features: Features, quantization: Quantization) -> Model:
    """The parameters (:189-255, :315-378).

    Raises:
        Refused: At stage ``class``.
    """
    if quantization.name == "modelopt_fp4":  # :335-340
        quantization = NONE
    hidden = config.need("hidden_size")
    wide = config.get("target_hidden_size") or hidden  # :208-210
    aux = aux_count(config)
    out = modules.vocabulary("model.embed_tokens", config.need("vocab_size"), hidden)
    bias = bool(config.get("bias", False))  # :215
    if features.mla_parallel_fc:
        out |= modules.column("model.fc", wide * aux, hidden, quantization.linear, bias=bias)
    else:
        out |= modules.torch_linear("model.fc", wide * aux, hidden, bias=bias)
    if features.mla_fc_norm and (config.get("fc_norm") or config.get("use_aux_norm", False)):  # :230-241
        for j in range(modules.repeated(aux)):
            out |= modules.norm(f"model.fc_norm.{j}", wide)
    if config.need("num_hidden_layers") != 1:  # :243
        raise Refused("ValueError", "EAGLE3 currently only supports 1 layer", "class")
    out |= _layer(config, features, quantization)
    out |= modules.norm("model.norm", hidden)
    return Model(name, out | _head(config, hidden, quantization))


def _head(config: HfConfig, hidden: int, quantization: Quantization) -> Parameters:
    """:349-365; unlike the Llama head, ``draft_vocab_size`` may be missing."""
    if config.get("tie_word_embeddings"):
        return {}
    rows: Any = config.get("draft_vocab_size")
    return modules.head(config.need("vocab_size") if rows is None else rows, hidden, quantization)


def aux_count(config: HfConfig) -> int:
    """How many captured layers fc takes (:48-59): also from the top-level ids, and an empty list is none."""
    nested = config.get("eagle_config")
    ids = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, dict) else None
    if ids is None:
        ids = config.get("eagle_aux_hidden_state_layer_ids")
    return 3 if ids is None else len(ids)


def _layer(config: HfConfig, features: Features, quantization: Quantization) -> Parameters:
    """:73-160 over models/deepseek_v2.py:2040-2215."""
    hidden, heads = config.need("hidden_size"), config.need("num_attention_heads")
    nope, rope, value = (
        config.need("qk_nope_head_dim"),
        config.need("qk_rope_head_dim"),
        config.need("v_head_dim"),
    )
    query, latent = config.need("q_lora_rank"), config.need("kv_lora_rank")
    method, name = quantization.linear, f"{LAYER}.self_attn"
    # the layer is built under its model's prefix (:248)
    path = "model.self_attn"
    if query is None:
        raise Refused("ValueError", "Eagle3 MLA layer requires q_lora_rank in the draft config", "class")
    out = modules.replicated(
        f"{name}.fused_qkv_a_proj_with_mqa",
        2 * hidden,
        query + latent + rope,
        method,
        path=f"{path}.fused_qkv_a_proj_with_mqa",
    )
    if not features.mla_parallel_fc and f"{name}.fused_qkv_a_proj_with_mqa.weight" not in out:
        # the constructor looks at the weight's dtype (0.5.12 models/kimi_k25_eagle3.py)
        raise Refused("AttributeError", "'ReplicatedLinear' object has no attribute 'weight'", "class")
    out |= modules.norm(f"{name}.q_a_layernorm", query)
    out |= modules.column(f"{name}.q_b_proj", query, heads * (nope + rope), method, path=f"{path}.q_b_proj")
    out |= modules.column(
        f"{name}.kv_b_proj", latent, heads * (nope + value), method, path=f"{path}.kv_b_proj"
    )
    out |= modules.row(f"{name}.o_proj", heads * value, hidden, method, path=f"{path}.o_proj")
    out |= modules.norm(f"{name}.kv_a_layernorm", latent)
    modules.check_rope(config, features)
    if quantization.attention_scales:
        out |= modules.attention_scales(f"{name}.attn_mqa") | modules.attention_scales(f"{name}.attn_mha")
    out |= modules.mlp(f"{LAYER}.mlp", config, config.need("intermediate_size"), method, path="model.mlp")
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        out |= modules.norm(f"{LAYER}.{norm}", hidden)
    return out


def load(model: Model, tensors: Iterable[TensorInfo], features: Features) -> None:  # noqa: ARG001
    """``load_weights`` (:428-497), the same in every release that has the class.

    Raises:
        Refused: At stage ``load``.
    """
    pending: dict[str, TensorInfo] = {}  # down projections that wait for their partner
    for tensor in tensors:
        _load_one(model, tensor, pending)
    _split_kv_b(model)


def _load_one(model: Model, tensor: TensorInfo, pending: dict[str, TensorInfo]) -> None:
    name = tensor.name
    if name == "d2t" or name.endswith(".d2t"):
        shapes.d2t(tensor)
        model.hold("hot_token_id", name)
        return
    if name == "t2d" or name.endswith(".t2d"):
        return
    mapped = "midlayer." + name[len("layers.0.") :] if name.startswith("layers.0.") else name
    if not mapped.startswith("lm_head."):
        mapped = f"model.{mapped}"
    for fused, part, shard in STACKED:
        if part in mapped and mapped.replace(part, fused) in model.parameters:
            model.load(mapped.replace(part, fused), tensor, shard)
            return
    if any(part in mapped for part in DOWN):
        _join(model, mapped, tensor, pending)
    elif mapped in model.parameters:
        model.load(mapped, tensor)


def _join(model: Model, mapped: str, tensor: TensorInfo, pending: dict[str, TensorInfo]) -> None:
    """:467-492: one half alone, or one already fused, is dropped without a word."""
    pending[mapped] = tensor
    query = mapped if DOWN[0] in mapped else mapped.replace(DOWN[1], DOWN[0])
    latent = mapped if DOWN[1] in mapped else mapped.replace(DOWN[0], DOWN[1])
    if query not in pending or latent not in pending:
        return
    first, second = pending.pop(query), pending.pop(latent)
    joined = shapes.cat(first, second)
    fused = query.replace(DOWN[0], "fused_qkv_a_proj_with_mqa")
    if fused in model.parameters:
        model.load_joined(fused, (first, second), joined)


def _split_kv_b(model: Model) -> None:
    """``post_load_weights`` (:501-520): kv_b_proj is split, and must be a plain float weight."""
    name = f"{LAYER}.self_attn.kv_b_proj.weight"
    if name not in model.parameters:
        raise Refused("AttributeError", "'ColumnParallelLinear' object has no attribute 'weight'", "load")
    if model.parameters[name].dtype not in (None, "BF16"):
        raise Refused(
            "NotImplementedError", "Eagle3 MLA draft post_load_weights only supports float dtypes", "load"
        )
    for half in ("w_kc", "w_vc"):
        model.held[f"{LAYER}.self_attn.{half}"] = set(model.filling[name].sources)
