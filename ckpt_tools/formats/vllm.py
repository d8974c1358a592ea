"""vLLM's plain drafts: a flat config with capture ids on top, ``layers.N.*`` names, q/k norms and biases kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import dflash, eagle1, limits, sglang
from ckpt_tools.formats.base import (
    CaptureIds,
    Format,
    Limit,
    Seen,
    Variant,
    WriteRequest,
    any_of,
    architecture_is,
    architecture_not,
    field_differs,
    field_is,
    has_field,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.eagle3 import (
    DROPS,
    MLA,
    NO_OTHER_HEAD,
    NOT_MLA,
    PEAGLE_VLLM,
    SIGNATURE,
    TWIN_DROP,
    VLLM,
)
from ckpt_tools.formats.facts import id_list, integer, overlay, text
from ckpt_tools.formats.flat import flat_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

_TOP_LEVEL_IDS = has_field("eagle_aux_hidden_state_layer_ids", "capture ids on the config's top level", 2)
_OWN_VOCABULARY = any_of(
    "a vocabulary of its own, which vLLM alone reads from a plain folder",
    has_tensor("d2t", ""),
    field_differs("draft_vocab_size", "vocab_size"),
)
_OWN = ("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
_FOREIGN = tuple(name for name in sglang.FOREIGN if name not in _OWN)


def unwrap(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inner config of vLLM's own ``model_type: eagle`` form, else the config itself."""
    model = config.get("model")
    return model if config.get("model_type") == "eagle" and isinstance(model, dict) else config


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:
    """Facts of a flat vLLM config."""
    flat = unwrap(config)
    if variant.algorithm in dflash.FAMILY:
        return dflash.read_flat(flat)
    if variant.algorithm == "eagle":
        return replace(sglang.read(flat, seen, variant), layer_type="llama")
    facts = sglang.read(flat, seen, variant)
    ids = id_list(flat.get("eagle_aux_hidden_state_layer_ids"))
    qk = any(n.endswith("self_attn.q_norm.weight") for n in seen.tensors)
    named = text(flat, "model_type") == "qwen3"
    return overlay(
        facts,
        layer_type="qwen3" if (qk or named) and facts.layer_type != "mla" else None,
        num_aux=integer(flat, "num_aux_hidden_states", "num_aux_layers") or (len(ids) if ids else None),
        mask_token_id=integer(flat, "mask_token_id", "pard_token", "ptd_token_id"),
    )


def write(request: WriteRequest) -> dict[str, Any]:
    """A config that both of vLLM's runners read alike, under the class name that every vLLM release knows.

    ``num_aux_hidden_states`` is written whenever fc doesn't take three layers: the llama class doesn't count
    top-level ids (vllm 0.33.0 model_executor/models/llama_eagle3.py:209-221).
    """
    facts = request.facts
    if request.algorithm == "eagle":
        return _write_eagle(request)
    if request.algorithm in dflash.FAMILY:
        return _write_dflash(request)
    architecture, model_type = {
        "qwen3": ("Eagle3Qwen3ForCausalLM", "qwen3"),
        "mla": ("Eagle3DeepseekV2ForCausalLM", "kimi_k2"),
    }.get(facts.layer_type or "llama", ("Eagle3LlamaForCausalLM", "llama"))
    config = flat_config(request, architecture, model_type)
    config["norm_before_residual"] = bool(facts.norm_before_residual)
    if request.top_level_ids is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(request.top_level_ids)
    if facts.num_aux not in (None, 3):
        config["num_aux_hidden_states"] = facts.num_aux
    if sglang.LAST_HIDDEN in facts.extra:
        config["eagle_config"] = {"use_aux_hidden_state": False}
    if facts.attention_bias:
        config["attention_bias"] = True
    if facts.mlp_bias:
        config["mlp_bias"] = True
    if facts.sliding_window is not None:
        config["sliding_window"] = facts.sliding_window
        config["layer_types"] = list(facts.layer_types or ("sliding_attention",) * (facts.num_layers or 1))
        config["use_sliding_window"] = True
    if request.algorithm == "peagle":
        config["parallel_drafting"] = True
        config["ptd_token_id"] = facts.mask_token_id
    return config


def _write_eagle(request: WriteRequest) -> dict[str, Any]:
    """EAGLE-1 under the class that vLLM takes with ``--method eagle``."""
    config = flat_config(request, "EagleLlamaForCausalLM", "llama")
    if request.facts.attention_bias:
        config["attention_bias"] = True
    return {k: v for k, v in config.items() if k not in ("bias", "draft_vocab_size")}


def _write_dflash(request: WriteRequest) -> dict[str, Any]:
    """The DFlash family: as SGLang's, with the draft's own vocabulary where it has one."""
    config = sglang.write(request)
    if request.facts.draft_vocab_size is not None:
        config["draft_vocab_size"] = request.facts.draft_vocab_size
    return {k: config[k] for k in sorted(config)}


def _fc_bias(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    if facts.fc_bias or "fc.bias" in tensors:
        return "fc.bias: vLLM's EAGLE-3 classes build fc without a bias and drop the tensor without a word"
    return None


LIMITS = (
    Limit(
        "KEY005",
        "bias-dropped-by-engine",
        _fc_bias,
        "SGLang keeps it when the config says bias: true (--to sglang)",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "NRM005",
        "norm-flag-not-implemented",
        lambda facts, tensors: (
            "norm_before_fc: vLLM's MLA class has no input_norm and raises"
            if facts.layer_type == "mla" and (facts.norm_before_fc or "input_norm.weight" in tensors)
            else None
        ),
        "no engine serves an MLA head with norm_before_fc",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "NRM011",
        "eagle-norms-unsupported",
        eagle1.norms,
        "no engine serves EAGLE-1 with norms of its own (HASS); keep it as it is",
        algorithms=("eagle",),
    ),
    replace(limits.SILU, algorithms=()),
    limits.VANILLA_MARKOV,
    dflash.ANCHOR,
    dflash.CAPTURE,
    dflash.MASK,
)

FORMAT = Format(
    name="vllm",
    title="vLLM (plain config)",
    variants=(
        Variant(
            algorithm="eagle3",
            must=(SIGNATURE, NOT_MLA, sglang.NOT_SPECULATORS, architecture_not(*_FOREIGN), *NO_OTHER_HEAD),
            hints=(
                architecture_is("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"),
                field_is("model_type", "eagle", "qwen3"),
                _TOP_LEVEL_IDS,
                no_field("eagle_config/eagle_aux_hidden_state_layer_ids", "no capture ids in eagle_config"),
                has_tensor("layers.0.**", "layer 0 is named layers.0"),
                has_tensor("layers.{i}.self_attn.q_norm.weight", "q/k norms (qwen3 layers)", 2),
                has_field("norm_before_residual", "norm_before_residual is stated"),
            ),
            names=VLLM,
            drops=(*DROPS, *TWIN_DROP),
        ),
        Variant(
            algorithm="eagle3",
            layer_type="mla",
            must=(sglang.NOT_SPECULATORS, architecture_not(*_FOREIGN), *NO_OTHER_HEAD, SIGNATURE, MLA),
            hints=(
                architecture_is("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"),
                field_is("model_type", "kimi_k2", "deepseek_v2", "deepseek_v3"),
                has_field("kv_lora_rank", "MLA dimensions in the config", 2),
                MLA,
                _TOP_LEVEL_IDS,
                has_tensor("layers.0.**", "layer 0 is named layers.0"),
            ),
            names=VLLM,
            drops=(*DROPS, *TWIN_DROP),
        ),
        Variant(
            algorithm="peagle",
            must=(
                any_of(
                    "P-EAGLE's mask_hidden, or a config that asks for parallel drafting",
                    has_tensor("mask_hidden", ""),
                    has_field("parallel_drafting", ""),
                    has_field("ptd_token_id", ""),
                    has_field("pard_token", ""),
                    weight=2,
                ),
                sglang.NOT_SPECULATORS,
                architecture_not("PEagleDraftModel"),
            ),
            hints=(
                architecture_is("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "PeagleLlamaForCausalLM"),
                has_field("parallel_drafting", "parallel_drafting is stated", 2),
                has_field("ptd_token_id", "a mask token in vLLM's spelling", 2),
                _TOP_LEVEL_IDS,
            ),
            names=PEAGLE_VLLM,
            drops=(*DROPS, *TWIN_DROP),
        ),
        Variant(
            algorithm="eagle",
            must=(
                eagle1.SIGNATURE,
                sglang.NOT_SPECULATORS,
                *eagle1.NO_LATER_HEAD,
                any_of(
                    "a class name that begins with Eagle, or vLLM's own form",
                    architecture_is(*eagle1.VLLM_CLASSES),
                    field_is("model_type", "eagle"),
                ),
            ),
            hints=(architecture_is(*eagle1.VLLM_CLASSES), no_tensor("fc.bias", "fc has no bias")),
            names=eagle1.NAMES,
            drops=DROPS,
            omits=(*eagle1.TARGETS_HEAD, ("fc.bias", "all zero, and vLLM builds fc without a bias")),
        ),
        # With the target's whole vocabulary what is written is recognised as z-lab's or SGLang's, whose layouts it is.
        *(
            Variant(
                algorithm=algorithm,
                layer_type="qwen3",
                must=(
                    dflash.SIGNATURE,
                    sglang.NOT_SPECULATORS,
                    *dflash.only(algorithm),
                    dflash.NOT_FLAT,
                    architecture_is(name),
                    _OWN_VOCABULARY,
                ),
                hints=(
                    architecture_is(name),
                    has_field("dflash_config", "a dflash_config block", 2),
                    has_tensor("d2t", "a d2t: the draft's own vocabulary", 2),
                ),
                names=dflash.names(algorithm),
                drops=DROPS,
            )
            for algorithm, name in sglang.DFLASH_CLASSES.items()
            if algorithm != "domino"
        ),
    ),
    read=read,
    capture=CaptureIds(
        paths=(
            "eagle_aux_hidden_state_layer_ids",
            "dflash_config/target_layer_ids",
            "target_layer_ids",
            "eagle_config/eagle_aux_hidden_state_layer_ids",
        ),
        convention=("layer_input", "layer_output", "layer_output", "layer_output"),
        certain=(True, True, True, False),
    ),
    references=(
        "vllm 0.33.0 transformers_utils/configs/eagle.py:42-88",
        "vllm 0.33.0 model_executor/models/llama_eagle3.py:82-442",
        "vllm 0.33.0 v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:119",
        "vllm 0.33.0 model_executor/models/llama_eagle.py, qwen3_dflash.py:84-93, qwen3_dspark.py:209-357",
    ),
    schema="vllm.eagle3.config.json",
    write=write,
    engine="vllm",
    limits=LIMITS,
    implied=sglang.ANCHOR_FIRST,
)
