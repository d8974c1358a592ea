"""``LlamaForCausalLMEagle3`` (SGLang models/llama_eagle3.py; lines are of 0.5.23)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang import modules
from ckpt_tools.engines.sglang.parameters import Model
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.sglang.shapes import d2t

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig
    from ckpt_tools.engines.sglang.modules import Parameters
    from ckpt_tools.engines.sglang.quantization import Quantization
    from ckpt_tools.model import TensorInfo

CLASSES = ("LlamaForCausalLMEagle3",)

# :338-343, applied in order wherever they occur in a name
LEGACY_NAMES = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
# :327-334
STACKED: tuple[tuple[str, str, str | int], ...] = (
    (".qkv_proj", ".q_proj", "q"),
    (".qkv_proj", ".k_proj", "k"),
    (".qkv_proj", ".v_proj", "v"),
    (".gate_up_proj", ".gate_proj", 0),
    (".gate_up_proj", ".up_proj", 1),
)


def build(name: str, config: HfConfig, features: Features, quantization: Quantization) -> Model:
    """The parameters (:125-209, :284-318).

    Raises:
        Refused: At stage ``class``.
    """
    config = _sections_as_default(config, features)
    layers = config.need("num_hidden_layers")
    if not features.layers and layers != 1:
        raise Refused("ValueError", "EAGLE3 currently only supports 1 layer", "class")
    hidden = config.need("hidden_size")
    wide = config.get("target_hidden_size") if config.has("target_hidden_size") else hidden  # :151-154
    aux = aux_count(config, features)
    out = modules.vocabulary("model.embed_tokens", config.need("vocab_size"), hidden)
    bias = bool(config.get("bias", False)) if features.fc_bias_from_config else True  # :166
    out |= modules.torch_linear("model.fc", wide * aux, hidden, bias=bias)
    eagle = config.get("eagle_config") or {}
    if features.norm_before_fc and bool(
        eagle.get("norm_before_fc", config.get("norm_before_fc", False))
    ):  # :173-180
        out |= modules.norm("model.input_norm", wide * aux)
    if features.fc_norm and (config.get("fc_norm") or config.get("use_aux_norm", False)):  # :185-196
        for j in range(modules.repeated(aux)):
            out |= modules.norm(f"model.fc_norm.{j}", wide)
    for i in range(modules.repeated(layers) if features.layers else 1):
        layer = f"model.layers.{i}" if features.layers else "model.midlayer"
        out |= _layer(layer, i, config, features, quantization)
    out |= modules.norm("model.norm", hidden)
    return Model(name, out | _head(config, hidden, features, quantization))


def _sections_as_default(config: HfConfig, features: Features) -> HfConfig:
    """A rope with mrope_section is read as the default one, whatever its type says (:132-142; 0.5.9 :113-121)."""
    key = (
        "rope_parameters"
        if features.rope_parameters and config.get("rope_parameters") is not None
        else "rope_scaling"
    )
    scaling = config.get(key)
    if not isinstance(scaling, dict) or "mrope_section" not in scaling:
        return config
    return replace(config, attributes={**config.attributes, key: {**scaling, "rope_type": "default"}})


def _head(config: HfConfig, hidden: int, features: Features, quantization: Quantization) -> Parameters:
    """:303-318; a tied head is the embedding, and no parameter of its own."""
    if config.get("tie_word_embeddings"):
        config.need("draft_vocab_size")
        return {}
    rows: Any = config.need("draft_vocab_size")
    if rows is None and features.null_draft_vocab:
        rows = config.need("vocab_size")
    return modules.head(rows, hidden, quantization)


def aux_count(config: HfConfig, features: Features) -> Any:
    """How many captured layers fc takes (:157-161), as the config says it."""
    if not features.aux_count:
        return 3
    count = config.get("num_aux_hidden_states")
    if count is None:
        ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        return len(ids) if ids else 3
    return count


def _layer(
    name: str, index: int, config: HfConfig, features: Features, quantization: Quantization
) -> Parameters:
    """:46-85 over models/llama.py:307-371."""
    hidden, method = config.need("hidden_size"), quantization.linear
    heads, kv_heads, head_dim = modules.attention(config)
    biased = bool(config.get("attention_bias", False) or config.get("bias", False))  # models/llama.py:339
    width = 2 * hidden if index == 0 or not features.layers else hidden  # :61-62
    # every layer is built under its model's prefix (:200); a Llama layer's own first, and then two of its parts again
    modules.qkv(name, hidden, heads, kv_heads, head_dim, method, bias=biased, path="model.self_attn.qkv_proj")
    out = modules.qkv(
        f"{name}.self_attn.qkv_proj", width, heads, kv_heads, head_dim, method, path="model.qkv_proj"
    )  # :67-75, never a bias
    out |= modules.row(
        f"{name}.self_attn.o_proj",
        heads * head_dim,
        hidden,
        method,
        bias=biased,
        path="model.self_attn.o_proj",
    )
    modules.check_rope(config, features)
    if quantization.attention_scales:
        out |= modules.attention_scales(f"{name}.self_attn.attn")
    inner = config.need(
        "intermediate_size_mlp" if config.get("model_type") == "llama4_text" else "intermediate_size"
    )  # :77
    modules.mlp(name, config, config.need("intermediate_size"), method, path="model.mlp")
    out |= modules.mlp(f"{name}.mlp", config, inner, method, path="model")
    for norm in ("input_layernorm", "post_attention_layernorm", "hidden_norm"):
        out |= modules.norm(f"{name}.{norm}", hidden)
    return out


def load(model: Model, tensors: Iterable[TensorInfo], features: Features) -> None:
    """``load_weights`` (:325-378).

    Raises:
        Refused: At stage ``load``.
    """
    for tensor in tensors:
        _load_one(model, tensor, features)


def _load_one(model: Model, tensor: TensorInfo, features: Features) -> None:
    name = tensor.name
    if features.layers:
        for legacy, new in LEGACY_NAMES.items():
            name = name.replace(legacy, new)
    if "d2t" in name:
        d2t(tensor)
        model.hold("hot_token_id", tensor.name)
        return
    if "t2d" in name:
        return
    for fused, part, shard in STACKED:
        if part in name:
            name = name.replace(part, fused)
            found = name if name in model.parameters else f"model.{name}"
            if found in model.parameters:
                model.load(found, tensor, shard)
            return
    found = name if name in model.parameters else f"model.{name}"
    if found in model.parameters:
        model.load(found, tensor)
