"""EAGLE-1 heads and the plain Llama class that a wrong ``architectures`` resolves to.

``LlamaForCausalLMEagle`` (SGLang models/llama_eagle.py), ``Qwen2ForCausalLMEagle`` (qwen2_eagle.py), ``MistralForCausalLMEagle``
(mistral_eagle.py), ``LlamaForCausalLM`` (llama.py); lines are of 0.5.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang import modules
from ckpt_tools.engines.sglang.llama_eagle3 import STACKED
from ckpt_tools.engines.sglang.parameters import Model
from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig
    from ckpt_tools.engines.sglang.modules import Parameters
    from ckpt_tools.engines.sglang.quantization import Quantization
    from ckpt_tools.model import TensorInfo

# mistral_eagle.py:143-163, whole names
MISTRAL_NAMES: Mapping[str, str] = {
    r"layers\.(\d+)\.attention_norm\.weight": r"model.layers.\1.input_layernorm.weight",
    r"layers\.(\d+)\.attention\.wq\.(\w+)": r"model.layers.\1.self_attn.q_proj.\2",
    r"layers\.(\d+)\.attention\.wk\.(\w+)": r"model.layers.\1.self_attn.k_proj.\2",
    r"layers\.(\d+)\.attention\.wv\.(\w+)": r"model.layers.\1.self_attn.v_proj.\2",
    r"layers\.(\d+)\.attention\.wo\.(\w+)": r"model.layers.\1.self_attn.o_proj.\2",
    r"layers\.(\d+)\.ffn_norm\.weight": r"model.layers.\1.post_attention_layernorm.weight",
    r"layers\.(\d+)\.feed_forward\.w1\.(\w+)": r"model.layers.\1.mlp.gate_proj.\2",
    r"layers\.(\d+)\.feed_forward\.w2\.(\w+)": r"model.layers.\1.mlp.down_proj.\2",
    r"layers\.(\d+)\.feed_forward\.w3\.(\w+)": r"model.layers.\1.mlp.up_proj.\2",
    r"norm\.weight": "model.norm.weight",
    r"eagle_linear\.weight": "model.fc.weight",
    r"eagle_linear\.qscale_act": "model.fc.input_scale",
    r"eagle_linear\.qscale_weight": "model.fc.weight_scale",
}
# llama.py:736-743 and qwen2.py: these never load
_SKIPPED = ("rotary_emb.inv_freq", "projector", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


@dataclass(frozen=True)
class Family:
    """How one class of this kind differs.

    Attributes:
        name: The class.
        eagle: It has fc and lacks what only a target has.
        first_norm: Layer 0 keeps its input_layernorm (llama_eagle.py:54-55 deletes it).
        qkv_bias: ``config``: as attention_bias or bias say; ``always`` (qwen2.py:qkv_proj).
        torch_fc: fc is an ``nn.Linear`` with a bias (llama_eagle.py:91), else a row-parallel linear without.
        final_norm: There is a norm after the layers.
        names: ``prefixed`` with ``model.`` before loading, ``mistral`` or ``own``.
        dotted: Fused names are found by ``.q_proj``; qwen2 looks for ``q_proj``.
        hot_vocabulary: ``hot_vocab_size`` shrinks the head.
    """

    name: str
    eagle: bool = True
    first_norm: bool = False
    qkv_bias: str = "config"
    torch_fc: bool = True
    final_norm: bool = False
    names: str = "prefixed"
    dotted: bool = True
    hot_vocabulary: bool = False


FAMILIES = {
    family.name: family
    for family in (
        Family("LlamaForCausalLMEagle", hot_vocabulary=True),
        Family("Qwen2ForCausalLMEagle", qkv_bias="always", dotted=False),
        Family(
            "MistralForCausalLMEagle",
            first_norm=True,
            torch_fc=False,
            final_norm=True,
            names="mistral",
            hot_vocabulary=True,
        ),
        Family("LlamaForCausalLM", eagle=False, first_norm=True, final_norm=True, names="own"),
    )
}


CLASSES = tuple(FAMILIES)


def build(name: str, config: HfConfig, features: Features, quantization: Quantization) -> Model:
    """The parameters.

    Raises:
        Refused: At stage ``class``.
    """
    family, hidden = FAMILIES[name], config.need("hidden_size")
    out = modules.vocabulary("model.embed_tokens", config.need("vocab_size"), hidden)
    count = modules.layer_count(config)
    if not family.eagle and count < 1:  # utils/common.py:1635
        raise Refused("AssertionError", "", "class")
    for i in range(count):
        out |= _layer(f"model.layers.{i}", family, i, config, features, quantization)
    if family.eagle and family.torch_fc:
        out |= modules.torch_linear("model.fc", 2 * hidden, hidden, bias=True)
    elif family.eagle:
        out |= modules.row("model.fc", 2 * hidden, hidden, quantization.linear)
    if family.final_norm:
        out |= modules.norm("model.norm", hidden)
    return Model(
        name, out | _head(family, config, hidden, quantization), tied=bool(config.get("tie_word_embeddings"))
    )


def _head(family: Family, config: HfConfig, hidden: int, quantization: Quantization) -> Parameters:
    """llama_eagle.py:130-143, qwen2_eagle.py, llama.py; a tied head is the embedding, and no parameter of its own."""
    rows = config.need("vocab_size")
    if config.need("tie_word_embeddings"):
        # LlamaForCausalLMEagle ties its head to the model that Mistral's class then replaces (mistral_eagle.py:172-180)
        return modules.head(rows, hidden, quantization) if family.names == "mistral" else {}
    if family.hot_vocabulary:
        rows = config.get("hot_vocab_size", rows)
    return modules.head(rows, hidden, quantization)


def _layer(
    name: str, family: Family, index: int, config: HfConfig, features: Features, quantization: Quantization
) -> Parameters:
    hidden, method = config.need("hidden_size"), quantization.linear
    heads, kv_heads, head_dim = modules.attention(config)
    by_config = bool(config.get("attention_bias", False) or config.get("bias", False))
    always = family.qkv_bias == "always"
    out = modules.qkv(
        f"{name}.self_attn.qkv_proj", hidden, heads, kv_heads, head_dim, method, bias=always or by_config
    )
    out |= modules.row(
        f"{name}.self_attn.o_proj", heads * head_dim, hidden, method, bias=by_config and not always
    )
    modules.check_rope(config, features)
    if quantization.attention_scales:
        out |= modules.attention_scales(f"{name}.self_attn.attn")
    out |= modules.mlp(f"{name}.mlp", config, config.need("intermediate_size"), method)
    if index > 0 or family.first_norm:
        out |= modules.norm(f"{name}.input_layernorm", hidden)
    return out | modules.norm(f"{name}.post_attention_layernorm", hidden)


def load(model: Model, tensors: Iterable[TensorInfo], features: Features) -> None:  # noqa: ARG001
    """``load_weights``, the same in every release that was loaded.

    Raises:
        Refused: At stage ``load``.
    """
    for tensor in tensors:
        _load_one(FAMILIES[model.name], model, tensor)


def _load_one(family: Family, model: Model, tensor: TensorInfo) -> None:
    name = _mapped(family, tensor.name)
    if name is None or any(word in name for word in _SKIPPED):
        return
    if model.tied and family.dotted and "lm_head.weight" in name:  # llama.py:744
        return
    for fused, part, shard in STACKED:
        fused, part = (fused, part) if family.dotted else (fused[1:], part[1:])
        if part not in name:
            continue
        name = name.replace(part, fused)
        if name in model.parameters:
            model.load(name, tensor, shard)
            return
    if name in model.parameters:
        model.load(name, tensor)


def _mapped(family: Family, name: str) -> str | None:
    """The name that the Llama loader sees; ``None`` when the tensor is skipped before."""
    if family.names == "prefixed":  # llama_eagle.py:146-150
        return None if "lm_head" in name else f"model.{name}"
    if family.names == "mistral":  # mistral_eagle.py:187-207
        if name.startswith(("model.", "lm_head.")):
            return name
        for pattern, new in MISTRAL_NAMES.items():
            match = re.fullmatch(pattern, name)
            if match:
                return match.expand(new)
        return None
    return name
