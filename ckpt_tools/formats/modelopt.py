"""NVIDIA Model-Optimizer's exports: ``layers.0.*`` without ``t2d`` or embedding, and its Megatron, MLA, DFlash and Medusa kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import dflash, limits, sglang
from ckpt_tools.formats.base import (
    CaptureIds,
    Caution,
    Clue,
    Format,
    Limit,
    Seen,
    Variant,
    WriteRequest,
    any_of,
    architecture_is,
    architecture_not,
    has_field,
    has_file,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.canonical import vocabulary
from ckpt_tools.formats.eagle3 import (
    DROPS,
    LAYERS,
    MLA,
    NO_EMBEDDING,
    NO_OTHER_HEAD,
    NOT_MLA,
    SIGNATURE,
    TWIN_DROP,
    VOCABULARY,
)
from ckpt_tools.formats.facts import overlay
from ckpt_tools.formats.flat import flat_config
from ckpt_tools.formats.names import NameMap, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: Fields of ``eagle_config`` that Model-Optimizer alone writes (modelopt torch/export/plugins/hf_spec_configs.py).
OWN_FIELDS: Mapping[str, Any] = {
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
_OWN = any_of(
    "fields of Model-Optimizer's eagle_config",
    *(has_field(f"eagle_config/{name}", "") for name in OWN_FIELDS),
    weight=5,
)
_T2D = (("t2d", "Model-Optimizer writes none; d2t alone says the ids"),)
_PLAIN_HF = (
    no_tensor("t2d", "no t2d"),
    no_tensor("embed_tokens.weight", "no embedding"),
    no_tensor("midlayer.**", "no midlayer"),
    no_field("speculators_model_type", "not speculators' layout"),
    no_field("target_model_type", "no target_model_type"),
)
#: Multi-layer Megatron exports number the layer inside ``midlayer``, and norm later ones by ``hidden_norm``.
MEGATRON = NameMap(
    (
        Row("midlayer.{n}.hidden_norm.weight", "layers.{n}.input_layernorm.weight"),
        Row("midlayer.{i}.**", "layers.{i}.**"),
        Row("**", "**"),
    ),
    VOCABULARY,
)


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:
    """Facts of an exported config; what DSpark's flat tensors show where its config is silent."""
    if variant.algorithm not in dflash.FAMILY:
        return sglang.read(config, seen, variant)
    facts = dflash.read_flat(config)
    if variant.algorithm != "dspark":
        return facts
    shown: dict[str, Any] = {}
    codebook = seen.tensors.get("markov_w1.weight")
    if codebook is not None and len(codebook.shape) == 2:
        shown["markov_rank"] = codebook.shape[1]
        kind = (
            "rnn"
            if "joint_proj.weight" in seen.tensors
            else "gated"
            if "gate_proj.weight" in seen.tensors
            else "vanilla"
        )
        shown["markov_head_type"] = kind
    confidence = seen.tensors.get("confidence_proj.weight")
    if seen.tensors:
        shown["enable_confidence_head"] = confidence is not None
    if confidence is not None and facts.hidden_size is not None:
        shown["confidence_head_with_markov"] = confidence.shape[-1] > facts.hidden_size
    return overlay(facts, extra={**shown, **facts.extra})


def write(request: WriteRequest) -> dict[str, Any]:
    """An EAGLE-3 config as the exporter's template has it, without its nulls."""
    facts = request.facts
    mla = request.variant.layer_type == "mla"
    config = flat_config(
        request,
        "Eagle3DeepseekV2ForCausalLM" if mla else "LlamaForCausalLMEagle3",
        "kimi_k2" if mla else "llama",
    )
    block: dict[str, Any] = {"use_aux_hidden_state": True, **OWN_FIELDS}
    if request.nested_ids is not None:
        block["eagle_aux_hidden_state_layer_ids"] = list(request.nested_ids)
    config["eagle_config"] = dict(sorted(block.items()))
    if request.top_level_ids is not None:
        # Nested ids of published exports are counted both ways; vLLM's spelling beside them settles it.
        config["eagle_aux_hidden_state_layer_ids"] = list(request.top_level_ids)
    config["attention_bias"] = bool(facts.attention_bias)
    config["mlp_bias"] = bool(facts.mlp_bias)
    return {k: config[k] for k in sorted(config)}


def _double_norm(facts: DraftFacts, config: Mapping[str, Any]) -> str | None:  # noqa: ARG001
    if facts.layer_type == "mla" or sglang.LAST_HIDDEN in facts.extra:
        return None
    return (
        "Model-Optimizer 0.43 to 0.47 trains layer 0 with input_layernorm applied to the hidden state as well, before hidden_norm; "
        "no engine does, and the files don't say which release trained this draft"
    )


def _residual(facts: DraftFacts, config: Mapping[str, Any]) -> str | None:  # noqa: ARG001
    if not facts.norm_before_residual:
        return None
    return (
        "norm_before_residual is true, as Model-Optimizer's convert_to_vllm_ckpt writes it, although its module keeps the raw state as "
        "the residual"
    )


def _inside(seen: Seen) -> tuple[str, ...]:  # noqa: ARG001
    """Patterns of a head's tensors in a training checkpoint."""
    return ("eagle_module.**", "dflash_module.**")


CAUTIONS = (
    Caution(
        "NRM010",
        _double_norm,
        "if acceptance is low, --repair modelopt-double-norm folds input_layernorm into hidden_norm (direction exact, scale off by "
        "0.2 to 7 % per token, up to 20 % with a few massive channels)",
        repair="modelopt-double-norm",
        algorithms=("eagle3",),
    ),
    Caution(
        "NRM012",
        _residual,
        "--repair raw-residual writes false",
        pointer="/norm_before_residual",
        repair="raw-residual",
        algorithms=("eagle3",),
    ),
)

LIMITS = (
    *(limits.flag(name) for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")),
    limits.QK_NORMS,
    limits.FC_BIAS,
    limits.WINDOW,
    limits.OWN_WIDTH,
    limits.SILU,
    Limit(
        "HED003",
        "trained-embedding-replaced",
        lambda facts, tensors: "embed_requires_grad is true, and this format's folders hold no embedding"
        if facts.embed_requires_grad and "embed_tokens.weight" in tensors
        else None,
        limits.KEEP,
        algorithms=("eagle3",),
    ),
)

FORMAT = Format(
    name="modelopt",
    title="NVIDIA Model-Optimizer",
    variants=(
        Variant(
            algorithm="eagle3",
            layer_type="llama",
            must=(
                SIGNATURE,
                NOT_MLA,
                *_PLAIN_HF,
                *NO_OTHER_HEAD,
                architecture_is("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"),
                _OWN,
            ),
            hints=(
                has_tensor("layers.0.hidden_norm.weight", "layer 0 is named layers.0", 2),
                has_field(
                    "eagle_config/eagle_aux_hidden_state_layer_ids", "capture ids nested in eagle_config", 2
                ),
                architecture_is("LlamaForCausalLMEagle3"),
            ),
            names=LAYERS,
            drops=(*DROPS, *TWIN_DROP),
            omits=(*NO_EMBEDDING, *_T2D),
        ),
        Variant(
            algorithm="eagle3",
            layer_type="mla",
            must=(
                SIGNATURE,
                MLA,
                *_PLAIN_HF,
                *NO_OTHER_HEAD,
                architecture_is("Eagle3DeepseekV2ForCausalLM"),
                any_of(
                    "Model-Optimizer's template: its eagle_config, or no draft_vocab_size",
                    *(has_field(f"eagle_config/{name}", "") for name in OWN_FIELDS),
                    no_field("draft_vocab_size", ""),
                    weight=5,
                ),
            ),
            hints=(
                MLA,
                has_field("kv_lora_rank", "MLA dimensions in the config", 2),
                architecture_is("Eagle3DeepseekV2ForCausalLM"),
                has_tensor("layers.0.**", "layer 0 is named layers.0", 2),
            ),
            names=LAYERS,
            drops=DROPS,
            omits=(*NO_EMBEDDING, *_T2D),
        ),
        Variant(
            algorithm="eagle3",
            layer_type="llama",
            must=(
                NOT_MLA,
                sglang.NOT_SPECULATORS,
                *NO_OTHER_HEAD,
                has_tensor("midlayer.{j}.**", "layers inside midlayer (Megatron export)", 4),
                architecture_not(*(n for n in sglang.FOREIGN if n != "LlamaForCausalLMEagle3Deep")),
            ),
            hints=(architecture_is("LlamaForCausalLMEagle3Deep"), _OWN),
            names=MEGATRON,
            drops=DROPS,
            read_only=True,
        ),
        Variant(
            algorithm="dflash",
            layer_type="qwen3",
            must=(
                dflash.SIGNATURE,
                sglang.NOT_SPECULATORS,
                *dflash.only("dflash"),
                architecture_is("DFlashDraftModel"),
                any_of(
                    "fields of Model-Optimizer's dflash_config",
                    *(
                        has_field(f"dflash_config/{name}", "")
                        for name in ("use_swa", "swa_window_size", "causal", "attention_sink_bias")
                    ),
                    weight=4,
                ),
            ),
            hints=(has_field("dflash_config", "a dflash_config block", 2),),
            names=dflash.names("dflash"),
            drops=DROPS,
            read_only=True,
        ),
        Variant(
            algorithm="dspark",
            layer_type="qwen3",
            must=(
                dflash.SIGNATURE,
                sglang.NOT_SPECULATORS,
                any_of(
                    "DSpark's heads under flat names",
                    has_tensor("markov_w1.weight", ""),
                    has_field("dflash_config/use_confidence_head", ""),
                    weight=4,
                ),
                no_tensor("markov_head.**", "no markov_head (SpecForge, SGLang)"),
                no_tensor("candidate_selector.**", "no candidate selector (DFlash2)"),
            ),
            hints=(
                has_field("dflash_config", "a dflash_config block", 2),
                has_tensor("confidence_proj.weight", "a flat confidence_proj"),
            ),
            names=dflash.names("dspark", *dflash.FLAT_HEADS),
            drops=DROPS,
            read_only=True,
        ),
        Variant(
            algorithm="unexported",
            must=(
                any_of(
                    "a head inside its target: a training checkpoint",
                    has_tensor("eagle_module.**", ""),
                    has_tensor("dflash_module.**", ""),
                    weight=6,
                ),
                Clue("any", "tensors", "weights to look at", lambda seen: bool(seen.tensors), weight=0),
            ),
            hints=(has_file("modelopt_state.pth", "modelopt_state.pth beside the weights", 2),),
            names=NameMap((Row("**", "**"),), vocabulary("unexported")),
            inside=_inside,
            read_only=True,
        ),
        Variant(
            algorithm="medusa",
            must=(
                any_of(
                    "Medusa's heads",
                    has_tensor("medusa_heads.**", ""),
                    has_tensor("parallel_draft_heads.**", ""),
                    Clue(
                        "config",
                        "medusa",
                        "",
                        lambda seen: isinstance((seen.config or {}).get("medusa"), dict),
                    ),
                ),
                sglang.NOT_SPECULATORS,
            ),
            hints=(
                has_tensor("medusa_heads.**", "medusa_heads.*", 3),
                has_tensor("parallel_draft_heads.**", "parallel_draft_heads.* (EAGLE-Medusa)", 3),
                has_field("medusa", "a medusa block", 3),
            ),
            names=NameMap((Row("**", "**"),), vocabulary("medusa")),
            read_only=True,
        ),
    ),
    read=read,
    capture=CaptureIds(
        paths=(
            "eagle_config/eagle_aux_hidden_state_layer_ids",
            "eagle_aux_hidden_state_layer_ids",
            "dflash_config/target_layer_ids",
            "target_layer_ids",
        ),
        convention=("layer_output", "layer_input", "layer_output", "layer_output"),
        # A published export for gpt-oss counts otherwise than its own hooks do.
        certain=(False, True, True, True),
    ),
    references=(
        "Model-Optimizer 0.47.0 modelopt/torch/export/plugins/hf_spec_export.py (EagleExporter), hf_spec_configs.py",
        "Model-Optimizer 0.47.0 modelopt/torch/speculative/plugins/hf_eagle.py:58-63, :406 (captures outputs)",
        "Model-Optimizer 0.47.0 modelopt/torch/speculative/plugins/modeling_eagle.py:77-161 (the norm that is applied twice)",
        "Model-Optimizer 0.47.0 modelopt/torch/speculative/utils.py:62-75 (d2t in frequency order)",
    ),
    schema="modelopt.config.json",
    write=write,
    limits=LIMITS,
    cautions=CAUTIONS,
    implied=sglang.ANCHOR_FIRST,
)
