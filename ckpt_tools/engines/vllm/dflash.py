"""DFlash, DFlash-2 and DSpark drafts on qwen3 layers.

References: ``model_executor/models/qwen3_dflash.py``, ``qwen3_dflash2.py``, ``qwen3_dspark.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import rope
from ckpt_tools.engines.vllm.layers import (
    attention,
    check_groups,
    head_counts,
    mlp,
)
from ckpt_tools.engines.vllm.loading import GATE_UP, QKV, Built, Offered
from ckpt_tools.engines.vllm.modules import (
    Module,
    Parameter,
    allocated,
    load_error,
    norm,
    replicated,
    vocabulary,
)
from ckpt_tools.engines.vllm.refusal import refuse_class

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.config import Fields

SIDE_FILE = "mask_embedding.pt"  # qwen3_dflash.py:894-931
RENAMES: Mapping[str, str | None] = {
    "midlayer.": "layers.0.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "encoder.fc.": "fc.",
}
_TOP = {
    "dflash": "DFlashQwen3ForCausalLM",
    "dflash2": "DFlash2Qwen3ForCausalLM",
    "dspark": "Qwen3DSparkForCausalLM",
}
_INNER = {"dflash": "DFlashQwen3Model", "dflash2": "DFlash2Qwen3Model", "dspark": "Qwen3DSparkModel"}


def aux_layers(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Captured boundaries as the V2 runner and DFlash's ``fc`` count them (``eagle3_utils.py:104-150``).

    Returns:
        vLLM ids (k is the state that enters layer k), in the config's order; empty when the config names none.
    """
    ids = fields.get("eagle_aux_hidden_state_layer_ids")
    nested = fields.get("dflash_config")
    if not ids and isinstance(nested, Mapping):
        ids = [i + 1 for i in nested.get("target_layer_ids") or ()]
    if not ids and fields.get("dspark_target_layer_ids"):
        shift = 0 if fields.get("model_type") == "deepseek_v41" else 1
        ids = [i + shift for i in fields["dspark_target_layer_ids"]]
    if not ids and fields.get("target_layer_ids"):
        ids = [i + 1 for i in fields["target_layer_ids"]]
    for key in ("dflash_config", "eagle_config"):
        block = fields.get(key)
        if not ids and isinstance(block, Mapping):
            ids = block.get("layer_ids")
    return tuple(ids) if isinstance(ids, (list, tuple)) else ()


def drafter_config(fields: Fields) -> dict[str, Any]:
    """``eagle_config`` updated with ``dflash_config``; a null block raises (qwen3_dflash.py:433-434)."""
    eagle = fields.get("eagle_config", {})
    if not isinstance(eagle, Mapping):
        raise refuse_class("AttributeError", f"'{type(eagle).__name__}' object has no attribute 'update'")
    dflash = fields.get("dflash_config", {})
    if not isinstance(dflash, Mapping):
        raise refuse_class("TypeError", f"'{type(dflash).__name__}' object is not iterable")
    return {**eagle, **dflash}


def build(fields: Fields, kind: str, target_vocab: int, runner: str, side_files: frozenset[str]) -> Built:
    """The module tree of a DFlash-family draft.

    Args:
        fields: The resolved config.
        kind: ``dflash``, ``dflash2`` or ``dspark``.
        target_vocab: The target's vocabulary.
        runner: V1 refuses mixed sliding and full layers.
        side_files: Names of the other files in the folder.
    """
    draft_vocab: Any = fields.get("draft_vocab_size")
    draft_vocab = fields.get("vocab_size") if draft_vocab is None else draft_vocab
    rows, settings = fields.need("vocab_size"), drafter_config(fields)
    hidden, count = fields.need("hidden_size"), fields.need("num_hidden_layers")
    aux = bool(settings.get("use_aux_hidden_state", fields.get("use_aux_hidden_state", True)))
    mask_token = settings.get("mask_token_id", fields.get("mask_token_id"))
    model = Module(
        _INNER[kind],
        own_loader=True,
        renames=RENAMES,
        stacked={**QKV, **GATE_UP},
        children={"embed_tokens": vocabulary("VocabParallelEmbedding", rows, hidden)},
    )
    model.parameters["mask_embedding"] = Parameter(allocated("zeros", hidden), initial="default")
    layers = {str(i): _layer(fields, i, kind, runner) for i in range(count)}
    model.children["layers"] = Module("ModuleList", children=layers)
    if aux:
        states = len(aux_layers(fields)) or count
        model.children["fc"] = replicated(hidden, (fields.get("target_hidden_size") or hidden) * states)
    model.children |= {"hidden_norm": norm(hidden), "norm": norm(hidden)}
    if kind == "dflash2":
        model.children["candidate_selector"] = _selector(settings, rows, hidden)
    if kind == "dspark":
        _dspark_heads(model, fields, rows, fields.get("draft_vocab_size") or rows, hidden)
    head = vocabulary("ParallelLMHead", draft_vocab, hidden)
    root = Module(
        _TOP[kind],
        children={"model": model, "lm_head": head, "logits_processor": Module("LogitsProcessor")},
    )
    if draft_vocab != target_vocab if kind != "dspark" else draft_vocab < target_vocab:
        root.parameters["draft_id_to_target_id"] = Parameter(
            allocated("zeros", draft_vocab), initial="default"
        )
    built = Built(root, _prepare(kind, aux, mask_token, side_files, rows, draft_vocab, target_vocab))
    if kind == "dspark":  # v1/worker/gpu/spec_decode/dspark/utils.py:131-149
        built.shares_embed, built.shares_head = rows <= target_vocab, draft_vocab == target_vocab
    return built


def _layer(fields: Fields, index: int, kind: str, runner: str) -> Module:
    _check_window(fields, index, runner)
    hidden = fields.need("hidden_size")
    fields.need("max_position_embeddings")
    heads, groups, head_dim = head_counts(fields, kv_default=False)
    fields.need("rms_norm_eps")
    bias = bool(fields.get("attention_bias", False))
    nested = fields.get("dflash_config") or {}
    self_attn = attention(heads, groups, head_dim, hidden, qkv_bias=bias, o_bias=bias)
    self_attn.cls = "DFlashQwen3Attention"
    rope.build(fields.get("rope_parameters"), head_dim, fields["max_position_embeddings"])
    if nested.get("attention_sink_bias", fields.get("add_swa_attention_sink_bias", False)):
        self_attn.parameters["attention_sink_bias"] = Parameter(allocated("empty", heads))
    check_groups(heads, groups)
    self_attn.children |= {"q_norm": norm(head_dim), "k_norm": norm(head_dim)}
    layer = Module(
        "DFlashQwen3DecoderLayer" if kind != "dflash2" else "DFlash2Qwen3DecoderLayer",
        children={
            "self_attn": self_attn,
            "mlp": mlp(fields, "Qwen2MLP"),
            "input_layernorm": norm(hidden),
            "post_attention_layernorm": norm(hidden),
        },
    )
    if kind == "dflash2":
        taps, group = (_required(nested, key) for key in ("conv_kernel_size", "conv_group_size"))
        if hidden % group:
            raise refuse_class("ValueError", f"conv_group_size={group} must divide hidden_size={hidden}.")
        for name in ("attention_conv", "mlp_conv"):
            conv = Module(
                "DFlashGroupedConv",
                parameters={"base_kernel": Parameter(allocated("empty", 2, taps, hidden))},
            )
            conv.children["kernel_projection"] = replicated(2 * taps * (hidden // group), hidden)
            layer.children[name] = conv
    return layer


def _check_window(fields: Fields, index: int, runner: str) -> None:
    """Which layers slide (qwen3_dflash.py:118-172)."""
    nested = fields.get("dflash_config") or {}
    kinds = fields.get("layer_types")
    sliding = [kind == "sliding_attention" for kind in kinds] if kinds is not None else []
    if runner == "V1" and 0 < sum(sliding) < len(sliding):
        raise refuse_class(
            "NotImplementedError",
            "DFlash drafters with mixed sliding/full attention require the V2 model runner",
        )
    forced = nested.get("use_swa", False)
    if kinds is None or (forced and not any(sliding)):
        slides = bool(forced)
    elif index >= len(sliding):
        raise refuse_class("IndexError", "list index out of range")
    else:
        slides = sliding[index]
    if slides and nested.get("swa_window_size", fields.get("sliding_window")) is None:
        raise refuse_class("ValueError", "DFlash sliding attention requires a window size configured in")


def _required(block: Mapping[str, Any], key: str) -> int:
    if key not in block:
        raise refuse_class("KeyError", f"'{key}'")
    return int(block[key])


def _selector(settings: Mapping[str, Any], rows: int, hidden: int) -> Module:
    rank = _required(settings, "selector_rank")
    _required(settings, "selector_top_k")
    books = {
        name: Parameter(allocated("empty", rows, rank))
        for name in ("predecessor_codebook", "successor_codebook")
    }
    return Module(
        "CandidateSelector", parameters=books, children={"hidden_projection": replicated(rank, hidden)}
    )


def _dspark_heads(model: Module, fields: Fields, rows: int, draft_vocab: int, hidden: int) -> None:
    rank = fields.need("markov_rank")
    first = Module(
        "Embedding", parameters={"weight": Parameter(allocated("empty", rows, rank, together=True))}
    )
    model.children["markov_head"] = Module(
        "DSparkMarkovHead",
        children={"markov_w1": first, "markov_w2": vocabulary("ParallelLMHead", draft_vocab, rank)},
    )
    if fields.get("enable_confidence_head", False):
        width = hidden + (rank if fields.get("confidence_head_with_markov", False) else 0)
        proj = replicated(1, width)
        proj.parameters["bias"] = Parameter((1,), "replicated")
        model.children["confidence_head"] = Module("DSparkConfidenceHead", children={"proj": proj})


def _prepare(
    kind: str,
    aux: bool,
    mask_token: Any,
    side_files: frozenset[str],
    rows: int,
    draft_vocab: int,
    target_vocab: int,
) -> Callable[[Built, list[Offered]], list[Offered]]:
    """The classes' own pass over the names (qwen3_dflash.py:846-892, qwen3_dspark.py:302-372)."""

    def prepare(built: Built, tensors: list[Offered]) -> list[Offered]:
        named: dict[str, Offered] = {}
        mapped = confident = False
        for tensor in tensors:
            name = tensor.name
            if kind != "dspark" and "mask_hidden" in name:
                raise load_error("AssertionError", "DFlash embeds masked slots via mask_token_id")
            if "t2d" in name:
                continue
            if "d2t" in name:
                name, mapped = name.replace("d2t", "draft_id_to_target_id"), True
            elif "lm_head" not in name:
                name = "model." + name
            built.own_embed |= "embed_tokens" in name
            built.own_head |= "lm_head" in name
            confident |= "confidence_head" in name
            named[name] = Offered(tensor.source, name, tensor.shape)
        dropped = {
            "draft_id_to_target_id": not mapped,
            "embed_tokens": not built.own_embed,
            "fc.": not aux and kind != "dspark",
        }
        if kind == "dspark":
            _check_dspark(built, mapped, rows, draft_vocab, target_vocab)
            model = built.root.children["model"]
            if not confident:
                model.children.pop("confidence_head", None)
            dropped |= {
                "mask_embedding": True,
                "lm_head": not built.own_head,
                "confidence_head": "confidence_head" not in model.children,
            }
        elif SIDE_FILE in side_files and mask_token is not None:
            mask = built.root.children["model"].parameters["mask_embedding"]
            mask.sources.append(SIDE_FILE)
            mask.filled.add(None)
        else:
            dropped["mask_embedding"] = True
        built.root.renames = dict.fromkeys(key for key, on in dropped.items() if on)
        return list(named.values())

    return prepare


def _check_dspark(built: Built, mapped: bool, rows: int, draft_vocab: int, target_vocab: int) -> None:
    """The only drafts that vLLM checks for completeness (qwen3_dspark.py:341-357)."""
    if rows > target_vocab and not built.own_embed:
        raise load_error(
            "ValueError",
            "Qwen3 DSpark checkpoints whose input vocab_size is larger than the target vocabulary must include embed_tokens weights.",
        )
    if draft_vocab < target_vocab and not built.own_head:
        raise load_error(
            "ValueError", "Reduced-vocabulary Qwen3 DSpark checkpoints must include lm_head weights"
        )
    if draft_vocab < target_vocab and not mapped:
        raise load_error(
            "ValueError", "Reduced-vocabulary Qwen3 DSpark checkpoints must include a d2t mapping"
        )
