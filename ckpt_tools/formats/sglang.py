"""SGLang's drafts: a flat config with nested capture ids, ``midlayer.*`` names (EAGLE-3), DSpark's heads' facts on top."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import dflash, eagle1, limits
from ckpt_tools.formats.base import (
    CaptureIds,
    Clue,
    Format,
    Implied,
    Limit,
    Seen,
    Variant,
    WriteRequest,
    any_of,
    architecture_is,
    architecture_not,
    field_is,
    has_field,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.eagle3 import DROPS, MLA, NO_OTHER_HEAD, NOT_MLA, SGLANG, SIGNATURE
from ckpt_tools.formats.facts import decoder_facts, id_list, integer, overlay, qk_norms
from ckpt_tools.formats.flat import flat_config
from ckpt_tools.formats.names import fits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: Classes that belong to other formats or algorithms, by name.
FOREIGN = (
    "Eagle3Speculator",
    "Eagle3DraftModel",
    "PEagleDraftModel",
    "PEagleSpeculator",
    "PeagleLlamaForCausalLM",
    "LlamaForCausalLM",
    "Eagle3LlamaForCausalLM",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM",
    "LlamaForCausalLMEagle",
    "EagleLlamaForCausalLM",
    "LlamaForCausalLMEagle3Deep",
    "CosyVoice3Eagle3LlamaForCausalLM",
)
DSPARK = ("Qwen3DSparkModel", "LingDSparkModel", "Lfm2DSparkDraftModel", "DSparkMiniMaxDraftModel")
#: Classes written per algorithm of the DFlash family.
DFLASH_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "dflash": "DFlashDraftModel",
        "dflash2": "DFlash2DraftModel",
        "domino": "DFlashDraftModel",
        "dspark": "Qwen3DSparkModel",
    }
)  # fmt: skip

LATER_HIDDEN_NORM = Clue(
    "tensor",
    "layers.{n}.hidden_norm.weight",
    "later layers are normed by hidden_norm alone",
    lambda seen: (
        any(fits("layers.{n}.hidden_norm.weight", n) for n in seen.tensors)
        and not any(fits("layers.{n}.input_layernorm.weight", n) for n in seen.tensors)
    ),
    weight=2,
)

#: A fact beside the canonical ones: no captured layers, the head takes the target's last hidden state alone.
LAST_HIDDEN = "last_hidden_alone"

NOT_SPECULATORS = no_field("speculators_model_type", "not speculators' layout")


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:  # noqa: ARG001
    """Facts of a flat config; ``eagle_config`` may hold some of them too."""
    if variant.algorithm in dflash.FAMILY:
        return dflash.read_flat(config)
    facts = decoder_facts(config)
    if variant.algorithm == "eagle":
        return replace(facts, draft_vocab_size=None, fc_bias=None)
    nested = config.get("eagle_config")
    block: Mapping[str, Any] = nested if isinstance(nested, dict) else {}
    ids = id_list(block.get("eagle_aux_hidden_state_layer_ids"))
    norm_before_fc = block.get("norm_before_fc")
    use_aux_norm = config.get("use_aux_norm")
    if block.get("use_aux_hidden_state") is False:
        facts = replace(facts, extra={**facts.extra, LAST_HIDDEN: True})
    return overlay(
        facts,
        norm_before_fc=norm_before_fc if isinstance(norm_before_fc, bool) else None,
        fc_norm=use_aux_norm if facts.fc_norm is None and isinstance(use_aux_norm, bool) else None,
        num_aux=integer(config, "num_aux_hidden_states") or (len(ids) if ids else None),
    )


def write(request: WriteRequest) -> dict[str, Any]:
    """The portable config: right on every release that can serve the head at all.

    Ids go nested for SGLang and, one higher, on top for vLLM; both rope spellings and both dtype fields are there.
    """
    if request.algorithm == "eagle":
        return _write_eagle(request)
    if request.algorithm in dflash.FAMILY:
        return _write_dflash(request)
    mla = request.variant.layer_type == "mla"
    config = flat_config(
        request,
        "Eagle3DeepseekV2ForCausalLM" if mla else "LlamaForCausalLMEagle3",
        "kimi_k2" if mla else "llama",
    )
    eagle_config: dict[str, Any] = {"use_aux_hidden_state": LAST_HIDDEN not in request.facts.extra}
    if request.nested_ids is not None:
        eagle_config["eagle_aux_hidden_state_layer_ids"] = list(request.nested_ids)
    if request.top_level_ids is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(request.top_level_ids)
    if request.facts.num_aux not in (None, 3):
        config["num_aux_hidden_states"] = request.facts.num_aux
    config["eagle_config"] = eagle_config
    # No SGLang release reads it; vLLM's default for a flat config is false, and saying so costs nothing.
    config["norm_before_residual"] = bool(request.facts.norm_before_residual)
    return config


def _write_eagle(request: WriteRequest) -> dict[str, Any]:
    """EAGLE-1: ``bias`` would give the layers biases that nothing fills, and fc's loads whatever it says (both run).

    Biases on q, k and v alone are Qwen2's; the Llama class takes them on all four projections
    (sglang 0.5.23 srt/models/qwen2_eagle.py, llama.py:339).
    """
    qkv, out = (f"layers.0.self_attn.{p}_proj.bias" in request.tensors for p in "qo")
    qwen2 = qkv and not out
    config = flat_config(
        request,
        "Qwen2ForCausalLMEagle" if qwen2 else "LlamaForCausalLMEagle",
        "qwen2" if qwen2 else "llama",
    )
    if request.facts.attention_bias:
        config["attention_bias"] = True
    return {k: config[k] for k in sorted(config) if k not in ("bias", "draft_vocab_size")}


def _write_dflash(request: WriteRequest) -> dict[str, Any]:
    """The DFlash family: z-lab's layout; DSpark says which slot it predicts from, because readers differ where it's silent."""
    config = dflash.write_flat(request, DFLASH_CLASSES[request.algorithm])
    if request.algorithm == "dspark":
        config["sample_from_anchor"] = bool(request.facts.extra.get("sample_from_anchor"))
        config["target_layer_ids"] = list(request.facts.capture_layers or ())
        config["markov_rank"] = request.facts.extra.get("markov_rank", 0)
    return {k: config[k] for k in sorted(config) if k != "draft_vocab_size"}


def _norm_before_residual(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if not facts.norm_before_residual:
        return None
    return (
        "norm_before_residual is true: the head was trained to keep the normalised hidden state as its residual, and "
        "no SGLang release implements that. The server starts, answers correctly and accepts next to nothing (accept "
        "length 1.03 of 4 on a real server, cosine of the logits 0.55)"
    )


def _qk_norms(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    names = qk_norms("eagle3", tensors)
    return (
        f"{len(names)} q_norm/k_norm tensors (qwen3 layers) have no parameter in SGLang's class"
        if names
        else None
    )


def _biases(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    names = [n for n in tensors if n.startswith("layers.") and n.endswith(".bias")]
    if not names:
        return "attention_bias is true and SGLang builds q/k/v without one" if facts.attention_bias else None
    return f"{len(names)} attention or MLP biases (such as {names[0]}) are dropped by SGLang without a word"


def _embedding(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    own = facts.target_hidden_size not in (None, facts.hidden_size)
    if facts.embed_requires_grad and "embed_tokens.weight" in tensors and not own:
        return (
            "embed_requires_grad is true: the embedding was trained, and SGLang replaces it by the target's"
        )
    return None


def _activation(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if facts.hidden_act in (None, "silu"):
        return None
    return f"hidden_act is {facts.hidden_act}; SGLang's class takes silu alone and raises"


def _mla_norm_before_fc(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    if facts.layer_type != "mla" or not (facts.norm_before_fc or "input_norm.weight" in tensors):
        return None
    return "norm_before_fc: SGLang's MLA class has no input_norm"


LIMITS = (
    Limit(
        "NRM001",
        "norm-before-residual-unsupported",
        _norm_before_residual,
        "vLLM serves such a head as it is (--to vllm); SGLang serves it with ckpt's model package (--to sglang-ext); "
        "training with norm_before_residual=False (speculators train --no-norm-before-residual) avoids it",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "NRM002",
        "qk-norms-unsupported",
        _qk_norms,
        "vLLM serves qwen3 layers (--to vllm); SGLang does with ckpt's model package (--to sglang-ext); training with "
        "a llama draft (--draft-arch llama) avoids it",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "KEY005",
        "bias-dropped-by-engine",
        _biases,
        "vLLM keeps attention biases (--to vllm); SGLang does with ckpt's model package (--to sglang-ext)",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "HED003",
        "trained-embedding-replaced",
        _embedding,
        "vLLM keeps a draft's own embedding (--to vllm); SGLang does with ckpt's model package (--to sglang-ext)",
        algorithms=limits.EAGLE3,
    ),
    Limit("CFG006", "activation-unsupported", _activation, "no SGLang release serves this head"),
    Limit(
        "NRM011",
        "eagle-norms-unsupported",
        eagle1.norms,
        "no engine serves EAGLE-1 with norms of its own (HASS); keep it as it is",
        algorithms=("eagle",),
    ),
    dflash.ANCHOR,
    dflash.CAPTURE,
    replace(dflash.MASK, algorithms=dflash.FAMILY),
    limits.REDUCED_MARKOV,
    Limit(
        "NRM005",
        "norm-flag-not-implemented",
        _mla_norm_before_fc,
        "no SGLang release serves an MLA head with norm_before_fc",
        algorithms=limits.EAGLE3,
    ),
)


def _anchor_first(facts: DraftFacts, algorithm: str) -> DraftFacts:
    if algorithm != "dspark" or "sample_from_anchor" in facts.extra:
        return facts
    return replace(facts, extra={**facts.extra, "sample_from_anchor": True})


ANCHOR_FIRST = Implied(
    _anchor_first,
    "sample_from_anchor isn't stated; SGLang and vLLM take true for a plain DSpark config "
    "(sglang 0.5.23 dspark_config.py:29-31, vllm 0.33.0 v1/worker/gpu/spec_decode/dspark/speculator.py:49)",
)

#: One more layer in a name than SGLang's own: Model-Optimizer's Megatron export, which SGLang drops without a word.
_NO_DEEP = no_tensor("midlayer.{j}.**", "no midlayer.N (Megatron export)")
_NO_EAGLE3 = (no_tensor("midlayer.**", "no midlayer (EAGLE-3)"),)

FORMAT = Format(
    name="sglang",
    title="SGLang / SpecForge",
    variants=(
        Variant(
            algorithm="eagle3",
            layer_type="llama",
            must=(SIGNATURE, NOT_MLA, NOT_SPECULATORS, architecture_not(*FOREIGN), *NO_OTHER_HEAD, _NO_DEEP),
            hints=(
                architecture_is("LlamaForCausalLMEagle3"),
                has_field(
                    "eagle_config/eagle_aux_hidden_state_layer_ids", "capture ids nested in eagle_config", 2
                ),
                has_tensor("midlayer.**", "layer 0 is named midlayer", 2),
                LATER_HIDDEN_NORM,
                has_tensor("t2d", "t2d is there"),
            ),
            names=SGLANG,
            drops=DROPS,
        ),
        Variant(
            algorithm="eagle3",
            layer_type="mla",
            must=(NOT_SPECULATORS, architecture_not(*FOREIGN), *NO_OTHER_HEAD, SIGNATURE, MLA),
            hints=(
                architecture_is("Eagle3DeepseekV2ForCausalLM"),
                field_is("model_type", "kimi_k2", "deepseek_v2", "deepseek_v3"),
                has_field("kv_lora_rank", "MLA dimensions in the config", 2),
                MLA,
            ),
            names=SGLANG,
            drops=DROPS,
        ),
        Variant(
            algorithm="eagle",
            must=(
                eagle1.SIGNATURE,
                NOT_SPECULATORS,
                *eagle1.NO_LATER_HEAD,
                architecture_is(*eagle1.SGLANG_CLASSES),
            ),
            hints=(has_tensor("fc.bias", "fc has a bias"),),
            names=eagle1.NAMES,
            drops=DROPS,
            omits=eagle1.TARGETS_HEAD,
            needs=("fc.bias",),
        ),
        # What is written is recognised as z-lab's, whose layout it is.
        *(
            Variant(
                algorithm=algorithm,
                layer_type="qwen3",
                must=(),
                names=dflash.names(algorithm),
                drops=DROPS,
                omits=dflash.TARGETS_OWN,
            )
            for algorithm in ("dflash", "dflash2")
        ),
        Variant(
            algorithm="domino",
            layer_type="qwen3",
            must=(
                dflash.SIGNATURE,
                NOT_SPECULATORS,
                *dflash.only("domino"),
                *_NO_EAGLE3,
                architecture_is("DFlashDraftModel"),
                any_of(
                    "projector_type is domino",
                    field_is("dflash_config/projector_type", "domino"),
                    field_is("projector_type", "domino"),
                    has_tensor("prefix_gru.**", ""),
                ),
            ),
            hints=(
                has_field("dflash_config", "a dflash_config block", 2),
                field_is("dflash_config/projector_type", "domino"),
            ),
            names=dflash.names("domino"),
            drops=DROPS,
            omits=dflash.TARGETS_OWN,
        ),
        Variant(
            algorithm="dspark",
            layer_type="qwen3",
            must=(
                dflash.SIGNATURE,
                NOT_SPECULATORS,
                *dflash.only("dspark"),
                dflash.NOT_FLAT,
                architecture_is(*DSPARK),
                no_tensor("d2t", "no d2t: the whole vocabulary"),
            ),
            hints=(
                has_field("markov_rank", "markov_rank on top", 2),
                has_field("dflash_config", "a dflash_config block"),
                has_tensor("markov_head.**", "the Markov head has a name of its own"),
            ),
            names=dflash.names("dspark"),
            drops=DROPS,
            omits=dflash.TARGETS_OWN,
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
        # Drafters for DeepSeek and Kimi targets are published with both readings in the nested list.
        certain=(False, True, True, True),
    ),
    references=(
        "sglang 0.5.23 srt/models/llama_eagle3.py:144-378",
        "sglang 0.5.23 srt/models/kimi_k25_eagle3.py:428-499",
        "sglang 0.5.23 srt/model_executor/model_runner_components/spec_aux_hidden_state.py:185-196",
        "SpecForge a6b6b023 specforge/modeling/draft/llama3_eagle.py",
        "sglang 0.5.23 srt/models/llama_eagle.py:54-150, srt/models/dflash.py:886-1000, srt/models/dspark.py:186-696",
        "sglang 0.5.23 srt/speculative/dspark_components/dspark_config.py:29-31 (sample_from_anchor is true when absent)",
    ),
    schema="sglang.eagle3.config.json",
    write=write,
    engine="sglang",
    limits=LIMITS,
    implied=ANCHOR_FIRST,
    usual=True,
)
