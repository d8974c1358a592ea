"""What vLLM computes with a draft once it is loaded, as far as its config decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import eagle3
from ckpt_tools.engines.vllm.config import Asked, Fields, config_of, resolve_config
from ckpt_tools.engines.vllm.contract import CONTRACTS
from ckpt_tools.engines.vllm.dflash import aux_layers
from ckpt_tools.engines.vllm.refusal import Refused, on_values_of_the_file
from ckpt_tools.engines.vllm.registry import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Checkpoint, Engine

# models/qwen3.py:177 (set_default_rope_theta), rotary_embedding/__init__.py:64
DEFAULT_THETA = {"qwen3": 1000000, "dflash": 1000000, "dflash2": 1000000, "dspark": 1000000}


def semantics(
    engine: Engine,
    checkpoint: Checkpoint,
    *,
    algorithm: str | None = None,
    method: str | None = None,
    parallel_drafting: bool | None = None,
) -> dict[str, Any]:
    """The computation that the engine will run, with its own defaults filled in.

    Returns:
        ``{"refused": message}`` when config.json is refused, else: ``architecture``, ``method``, ``layer_type``
        (llama, qwen3, mla), ``parallel_drafting``, the norm switches, ``residual`` (``normed`` or ``raw``: what
        layer 0 adds its attention to), ``upper_layer_norm`` (the norm before attention of layers above 0),
        ``next_state`` (``normed`` or ``raw``: what the next draft step is fed), ``use_aux_hidden_state``,
        ``num_aux``, ``capture_ids_v2``, sizes, ``rope``, ``sliding_window`` per layer, ``hidden_act``,
        ``attention_bias``, ``logit_scale``, ``vocab_size``, ``draft_vocab_size``, ``d2t`` (``offset``).
    """
    try:
        with on_values_of_the_file("class"):
            return _semantics(engine, checkpoint, Asked(method, parallel_drafting, algorithm))
    except Refused as refused:
        return {"refused": str(refused)}


def _semantics(engine: Engine, checkpoint: Checkpoint, asked: Asked) -> dict[str, Any]:
    resolved = resolve_config(config_of(checkpoint), asked, CONTRACTS[engine.contract])
    fields, kind = resolved.fields, kind_of(resolved.architecture)
    out = {
        "architecture": resolved.architecture,
        "config_class": resolved.config_class,
        "method": resolved.method,
        "parallel_drafting": resolved.parallel_drafting,
        "kind": kind,
        **_sizes(fields),
        "rope": rope(fields, kind),
        "sliding_window": windows(fields, kind),
        "logit_scale": fields.get("logit_scale", 1.0),
        "d2t": "offset",
    }
    if kind in ("llama", "qwen3", "mla"):
        out |= _eagle3(fields, kind, engine)
    elif kind == "eagle":
        out |= {
            "layer_type": "llama",
            "residual": "raw",
            "upper_layer_norm": "input_layernorm",
            "first_layer_norm": None,
            "final_norm": False,
            "fc_order": ("embedding", "hidden"),
            "next_state": "raw",
        }
    elif kind is not None:
        out |= {
            "layer_type": "qwen3",
            "capture_ids_v2": aux_layers(fields),
            "upper_layer_norm": "input_layernorm",
        }
    return out


def _eagle3(fields: Fields, kind: str, engine: Engine) -> dict[str, Any]:
    contract = CONTRACTS[engine.contract]
    aux = kind == "mla" or eagle3.uses_aux(fields)
    before_residual = bool(fields.get("norm_before_residual", False))
    output = contract.norm_output and bool(fields.get("norm_output", False))
    return {
        "layer_type": kind,
        "norm_before_residual": before_residual,
        "norm_before_fc": kind != "mla" and eagle3.norm_before_fc(fields, contract),
        "fc_norm": contract.fc_norm and bool(fields.get("fc_norm", False)),
        "norm_output": output,
        "residual": "normed" if before_residual else "raw",
        "upper_layer_norm": "input_layernorm",
        "next_state": "normed" if output else "raw",
        "use_aux_hidden_state": aux,
        "num_aux": eagle3.num_aux(fields, kind, contract) if aux else 0,
        "target_hidden_size": fields.get("target_hidden_size", fields.get("hidden_size")),
        "capture_ids_v2": aux_layers(fields),
    }


def _sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes as read; ``head_dim`` is hidden size over heads when unset, key/value heads equal heads when unset."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "vocab_size", "draft_vocab_size", "rms_norm_eps", "hidden_act", "max_position_embeddings")  # fmt: skip
    out = {key: fields.get(key) for key in keys}
    heads, hidden = out["num_attention_heads"], out["hidden_size"]
    out["num_key_value_heads"] = heads if out["num_key_value_heads"] is None else out["num_key_value_heads"]
    if not out["head_dim"] and heads and hidden:
        out["head_dim"] = hidden // heads
    out["draft_vocab_size"] = (
        out["vocab_size"] if out["draft_vocab_size"] is None else out["draft_vocab_size"]
    )
    out["attention_bias"] = bool(fields.get("attention_bias", False))
    out["mlp_bias"] = bool(fields.get("mlp_bias", False))
    return out


def rope(fields: Mapping[str, Any], kind: str | None) -> dict[str, Any]:
    """``rope_parameters`` as ``get_rope`` takes them: theta and type always there.

    ``stated`` tells whether the files state the base or the class's default is used.
    """
    given = dict(fields.get("rope_parameters") or {})
    stated = "rope_theta" in given
    given.setdefault("rope_theta", DEFAULT_THETA.get(kind or "", 10000))
    given.setdefault("rope_type", "default")
    if kind == "mla" and given["rope_type"] != "default":
        given["rope_type"] = (
            "deepseek_llama_scaling" if given.get("attention_factor") == 1.0 else "deepseek_yarn"
        )
    return {**given, "stated": stated, "neox": kind != "mla" and bool(fields.get("is_neox_style", True))}


def windows(fields: Mapping[str, Any], kind: str | None) -> tuple[int | None, ...]:
    """The attention window of each draft layer, ``None`` for full attention."""
    kinds, layers = fields.get("layer_types"), fields.get("num_hidden_layers")
    nested = fields.get("dflash_config") or {}
    window = fields.get("sliding_window")
    if kind in ("dflash", "dflash2", "dspark"):
        window = nested.get("swa_window_size", window)
        slides = [k == "sliding_attention" for k in kinds or ()]
        if kinds is None or (nested.get("use_swa") and not any(slides)):
            slides = [bool(nested.get("use_swa"))] * (layers or 0)
    elif kind == "mla":
        slides = []
    else:
        slides = [k == "sliding_attention" for k in kinds or ()]
    return tuple(window if i < len(slides) and slides[i] else None for i in range(layers or 0))
