"""Facts of a target from its config.json and, when at hand, its tensors' headers.

A multimodal target wraps its language model: the numbers that a draft must match live in an inner config
(``text_config`` and its like), while the class that an engine builds is named outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.model import Target
from ckpt_tools.targets.rope import rope_of

if TYPE_CHECKING:
    from ckpt_tools.model import TensorInfo

# The order in which SGLang looks for the language model (0.5.23 utils/hf_transformers/common.py:577-600).
WRAPPERS = ("thinker_config", "llm_config", "language_config", "text_config")

# Canonical field -> spellings, the usual one first (the others: GPT-2, Falcon, DBRX, ChatGLM, Mistral's own).
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "model_dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_sequence_length",
        "seq_length",
        "max_seq_len",
        "model_max_length",
    ),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
    ),
    "head_dim": ("head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "hidden_dim"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
}
EPS_SPELLINGS = ("rms_norm_eps", "norm_eps", "layernorm_epsilon", "layer_norm_epsilon")

# What transformers 5.19 takes when a config.json leaves `tie_word_embeddings` out; only classes whose own
# default is stated in their configuration file (models/<type>/configuration_<type>.py).
TIED_BY_DEFAULT: Mapping[str, bool] = {
    **dict.fromkeys(("cohere", "cohere2", "gemma", "gemma2", "gemma3", "gemma3_text"), True),
    **dict.fromkeys(("gemma4", "gemma4_text"), True),
    **dict.fromkeys(
        (
            "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granite",
            "llama", "llama4_text", "minimax_m2", "ministral3", "mistral", "mixtral", "nemotron_h", "olmo2",
            "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text",
            "qwen3_5_moe_text",
        ),
        False,
    ),
}  # fmt: skip

# Names of the two matrices in published checkpoints, the most specific first: a name is matched as a whole
# or behind a dot, so that any wrapper prefix is allowed.
EMBED_NAMES = (
    "embed_tokens.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "transformer.wte.weight",
    "model.llm.embed.weight",
    "backbone.embeddings.weight",
    "embed_in.weight",
    "wte.weight",
    "embed.weight",
    "embeddings.weight",
)
HEAD_NAMES = ("lm_head.weight", "output_layer.weight", "output.weight", "embed_out.weight", "head.weight")
# Modules beside the language model, and bundled next-token heads, that own tables of the same names.
NOT_LANGUAGE = ("visual", "vision", "audio", "encoder", "mtp", "nextn", "layers", "experts", "talker")


@dataclass(frozen=True)
class Unwrapped:
    """The language model's config, and its *path* in the whole one ("" when there is no wrapper)."""

    inner: Mapping[str, Any]
    path: str = ""


@dataclass
class _Facts:
    """Values as they are found, each with where it stood."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: Any, source: str) -> None:
        self.values[name] = value
        self.sources[name] = source


def unwrap(config: Mapping[str, Any]) -> Unwrapped:
    """The language model's own config, as SGLang finds it, and its path in *config*."""
    for key in WRAPPERS:
        inner = config.get(key)
        if not isinstance(inner, Mapping):
            continue
        deeper = inner.get("text_config")
        if key == "thinker_config" and isinstance(deeper, Mapping):
            return Unwrapped(deeper, f"{key}/text_config")
        return Unwrapped(inner, key)
    return Unwrapped(config)


def from_config(
    config: Mapping[str, Any],
    name: str,
    hf_quant: Mapping[str, Any] | None = None,
    tensors: Mapping[str, TensorInfo] | None = None,
    *,
    origin: Literal["local", "hub"] = "local",
) -> Target:
    """Facts of the target that *config* describes; what it doesn't state is ``None``.

    Args:
        config: Parsed config.json of the target.
        name: How the user named it (a path or a Hub id); becomes the target's id.
        hf_quant: Parsed hf_quant_config.json (ModelOpt), when there is one.
        tensors: Headers of the target's files, when they are at hand: they decide which tensors are the
            embedding and the output head, and whether there is a head of its own.
        origin: Where the files are.
    """
    unwrapped = unwrap(config)
    facts = _Facts()
    for canonical, spellings in SPELLINGS.items():
        _take(facts, canonical, spellings, config, unwrapped, int)
    _take(facts, "rms_norm_eps", EPS_SPELLINGS, config, unwrapped, (int, float))
    _take(facts, "dtype", ("dtype", "torch_dtype"), config, unwrapped, str)
    if "dtype" in facts.values:
        facts.values["dtype"] = facts.values["dtype"].removeprefix("torch.")
    _quantization(facts, config, unwrapped, hf_quant)
    rope = rope_of(unwrapped.inner)
    if rope is not None:
        facts.put("rope", rope, _at(unwrapped.path, "rope_parameters/rope_scaling/rope_theta"))

    architectures = _strings(config.get("architectures"))
    text_architectures = _strings(unwrapped.inner.get("architectures")) if unwrapped.path else architectures
    model_type = _string(config.get("model_type"))
    text_model_type = _string(unwrapped.inner.get("model_type"))
    notes: list[str] = []
    _tied(facts, config, unwrapped, text_model_type)
    if tensors:
        _matrices(facts, tensors, notes)
    for key, value, source in (
        ("architectures", architectures, _at("", "architectures")),
        ("model_type", model_type, _at("", "model_type")),
        ("text_architectures", text_architectures, _at(unwrapped.path, "architectures")),
        ("text_model_type", text_model_type, _at(unwrapped.path, "model_type")),
    ):
        if value:
            facts.put(key, value, source)
    return Target(
        id=name,
        origin=origin,
        **facts.values,
        sources=facts.sources,
        notes=tuple(notes),
        config=config,
    )


def _take(
    facts: _Facts,
    canonical: str,
    spellings: tuple[str, ...],
    config: Mapping[str, Any],
    unwrapped: Unwrapped,
    kind: type | tuple[type, ...],
) -> None:
    """The first spelling that states a value of *kind*, inside the wrapper before outside."""
    places = [(unwrapped.inner, unwrapped.path)] + ([(config, "")] if unwrapped.path else [])
    for where, path in places:
        for key in spellings:
            value = where.get(key)
            if isinstance(value, kind) and not isinstance(value, bool):
                facts.put(canonical, value, _at(path, key))
                return


def _quantization(
    facts: _Facts, config: Mapping[str, Any], unwrapped: Unwrapped, hf_quant: Mapping[str, Any] | None
) -> None:
    """Stated outside the wrapper, inside it, or in ModelOpt's own file; in this order."""
    places = [(config, ""), (unwrapped.inner, unwrapped.path)]
    for where, path in places:
        for key in ("quantization_config", "compression_config"):
            value = where.get(key)
            if isinstance(value, Mapping) and value:
                facts.put("quantization", value, _at(path, key))
                return
    value = (hf_quant or {}).get("quantization", hf_quant)
    if isinstance(value, Mapping) and value:
        facts.put("quantization", {"quant_method": "modelopt", **value}, "hf_quant_config.json")


def _tied(
    facts: _Facts, config: Mapping[str, Any], unwrapped: Unwrapped, text_model_type: str | None
) -> None:
    for where, path in ((unwrapped.inner, unwrapped.path), (config, "")):
        value = where.get("tie_word_embeddings")
        if isinstance(value, bool):
            facts.put("tie_word_embeddings", value, _at(path, "tie_word_embeddings"))
            return
    default = TIED_BY_DEFAULT.get(text_model_type or "")
    if default is not None:
        facts.put(
            "tie_word_embeddings", default, f"transformers 5.19 default of model_type {text_model_type}"
        )


def _matrices(facts: _Facts, tensors: Mapping[str, TensorInfo], notes: list[str]) -> None:
    """Which tensors are the embedding and the head, and what their presence says about tying."""
    embed = _find(tensors, EMBED_NAMES)
    head = _find(tensors, HEAD_NAMES)
    if embed is not None:
        facts.put("embed_tensor", embed.name, f"{embed.file} header")
        if len(embed.shape) == 2:
            for name, size in zip(("vocab_size", "hidden_size"), embed.shape, strict=True):
                if name not in facts.values:
                    facts.put(name, size, f"{embed.file} header: the shape of {embed.name}")
        vocab = facts.values.get("vocab_size")
        if vocab is not None and embed.shape and embed.shape[0] > vocab:
            notes.append(f"{embed.name} has {embed.shape[0]} rows for a vocabulary of {vocab}: padded.")
    if head is not None:
        facts.put("lm_head_tensor", head.name, f"{head.file} header")
        if facts.values.get("tie_word_embeddings") is True:
            notes.append(f"tie_word_embeddings is true, yet the files hold {head.name}.")
    elif embed is not None and "tie_word_embeddings" not in facts.values:
        facts.put("tie_word_embeddings", True, "no output head among the tensors")
    elif embed is not None and facts.values["tie_word_embeddings"] is False:
        notes.append("tie_word_embeddings is false, yet no output head was found among the tensors.")


def _find(tensors: Mapping[str, TensorInfo], names: tuple[str, ...]) -> TensorInfo | None:
    """The tensor with the most specific of *names*, at the shallowest place outside other modules."""
    for wanted in names:
        found = [
            info
            for name, info in tensors.items()
            if (name == wanted or name.endswith(f".{wanted}")) and _is_language(name, wanted)
        ]
        if found:
            return min(found, key=lambda info: (info.name.count("."), info.name))
    return None


def _is_language(name: str, wanted: str) -> bool:
    parts = name.removesuffix(wanted).lower().split(".")
    return not any(part.startswith(other) for part in parts if part for other in NOT_LANGUAGE)


def _at(path: str, key: str) -> str:
    """Where in config.json, as a JSON pointer."""
    return f"config.json /{path}/{key}" if path else f"config.json /{key}"


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _strings(value: object) -> tuple[str, ...]:
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list | tuple) else ()
