"""Canonical facts from flat configs and from tensor shapes.

Most formats spell the decoder's fields as transformers' LlamaConfig does; what differs is where they stand.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats.canonical import slot_of
from ckpt_tools.formats.names import fits
from ckpt_tools.formats.rope import read_rope
from ckpt_tools.model import DraftFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import TensorInfo

MLA_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def integer(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of the keys that holds an integer (a bool is none)."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    return None


def boolean(config: Mapping[str, Any], *keys: str) -> bool | None:
    """The first of the keys that holds a bool."""
    return next((config[k] for k in keys if isinstance(config.get(k), bool)), None)


def text(config: Mapping[str, Any], *keys: str) -> str | None:
    """The first of the keys that holds a string, without a ``torch.`` prefix."""
    value = next((config[k] for k in keys if isinstance(config.get(k), str)), None)
    return None if value is None else value.removeprefix("torch.")


def id_list(value: object) -> tuple[int, ...] | None:
    """A list of integers as a tuple, else ``None``."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return None
    return tuple(value)


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """The window that some layer really uses; ``None`` when every layer sees everything.

    ``layer_types`` decides where it is there, ``use_sliding_window`` where it isn't.
    """
    window = integer(config, "sliding_window")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return window if "sliding_attention" in kinds else None
    return window if config.get("use_sliding_window", window is not None) else None


def decoder_facts(config: Mapping[str, Any]) -> DraftFacts:
    """Facts of a flat decoder config (LlamaConfig spelling). Nothing is defaulted."""
    float_or_none = config.get("rms_norm_eps")
    kinds = config.get("layer_types")
    mla = {k: config[k] for k in MLA_FIELDS if isinstance(config.get(k), int)}
    model_type = text(config, "model_type")
    return DraftFacts(
        num_layers=integer(config, "num_hidden_layers"),
        hidden_size=integer(config, "hidden_size"),
        target_hidden_size=integer(config, "target_hidden_size"),
        num_attention_heads=integer(config, "num_attention_heads"),
        num_key_value_heads=integer(config, "num_key_value_heads"),
        head_dim=integer(config, "head_dim"),
        intermediate_size=integer(config, "intermediate_size"),
        vocab_size=integer(config, "vocab_size"),
        draft_vocab_size=integer(config, "draft_vocab_size"),
        norm_before_residual=boolean(config, "norm_before_residual"),
        norm_before_fc=boolean(config, "norm_before_fc"),
        fc_norm=boolean(config, "fc_norm"),
        norm_output=boolean(config, "norm_output"),
        rope=read_rope(config),
        max_position_embeddings=integer(config, "max_position_embeddings"),
        sliding_window=sliding_window(config),
        layer_type="mla" if "kv_lora_rank" in mla else "qwen3" if model_type == "qwen3" else "llama",
        hidden_act=text(config, "hidden_act"),
        rms_norm_eps=float(float_or_none) if isinstance(float_or_none, (int, float)) else None,
        attention_bias=boolean(config, "attention_bias"),
        mlp_bias=boolean(config, "mlp_bias"),
        fc_bias=boolean(config, "bias"),
        tie_word_embeddings=boolean(config, "tie_word_embeddings"),
        dtype=text(config, "dtype", "torch_dtype"),
        layer_types=tuple(map(str, kinds)) if isinstance(kinds, list) else None,
        block_size=integer(config, "block_size"),
        mask_token_id=integer(config, "mask_token_id"),
        extra=mla,
    )


def overlay(base: DraftFacts, **stated: Any) -> DraftFacts:
    """Facts with those replaced that are stated (not ``None``)."""
    return replace(base, **{k: v for k, v in stated.items() if v is not None})


def complete_from_shapes(
    facts: DraftFacts, algorithm: str, tensors: Mapping[str, str], infos: Mapping[str, TensorInfo]
) -> DraftFacts:
    """Fill what the config leaves out and the tensors' shapes state.

    Args:
        tensors: Canonical name -> name in the files.
        infos: By name in the files.

    Heads can't be read from shapes (only heads x head_dim can), so they stay as the config has them.
    """
    shapes = {name: infos[native].shape for name, native in tensors.items()}
    stated: dict[str, Any] = {}

    def take(fact: str, tensor: str, axis: int) -> None:
        shape = shapes.get(tensor)
        if getattr(facts, fact) is None and shape is not None and len(shape) > axis:
            stated[fact] = shape[axis]

    take("hidden_size", "norm.weight", 0)
    take("hidden_size", "fc.weight", 0)
    take("intermediate_size", "layers.0.mlp.gate_proj.weight", 0)
    take("vocab_size", "embed_tokens.weight", 0)
    take("vocab_size", "t2d", 0)
    take("draft_vocab_size", "lm_head.weight", 0)
    take("draft_vocab_size", "d2t", 0)
    if facts.num_layers is None:
        layers = [int(n.split(".")[1]) for n in shapes if fits("layers.{i}.**", n)]
        if layers:
            stated["num_layers"] = max(layers) + 1
    q = shapes.get("layers.0.self_attn.q_proj.weight")
    if facts.head_dim is None and q and facts.num_attention_heads and q[0] % facts.num_attention_heads == 0:
        stated["head_dim"] = q[0] // facts.num_attention_heads
    hidden = facts.target_hidden_size or facts.hidden_size or stated.get("hidden_size")
    fc = shapes.get("fc.weight")
    if (
        facts.num_aux is None
        and algorithm != "eagle"
        and fc
        and len(fc) == 2
        and hidden
        and fc[1] % hidden == 0
    ):
        stated["num_aux"] = fc[1] // hidden
    return replace(facts, **stated) if stated else facts


def plain(value: Any) -> Any:
    """A fact as JSON has it: tuples become lists, nested records objects."""
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return dict(value) if hasattr(value, "items") else value


def facts_json(facts: DraftFacts) -> dict[str, Any]:
    """Facts as the report shows them."""
    return {f.name: plain(getattr(facts, f.name)) for f in fields(facts)}


def qk_norms(algorithm: str, tensors: Mapping[str, str]) -> tuple[str, ...]:
    """Canonical names of per-head norms among the tensors."""
    return tuple(n for n in tensors if (slot := slot_of(algorithm, n)) is not None and slot.need == "qk_norm")
