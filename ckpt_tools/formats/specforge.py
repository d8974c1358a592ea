"""SpecForge's drafts, as its trainer and exporter leave them: SGLang's names with the trainer's own config fields."""

from __future__ import annotations

from dataclasses import replace
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
    field_is,
    has_field,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.eagle3 import DROPS, MIDLAYER, NO_OTHER_HEAD, NOT_MLA, PEAGLE, SIGNATURE
from ckpt_tools.formats.facts import integer, overlay
from ckpt_tools.formats.flat import flat_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: Classes by algorithm (SpecForge a6b6b023 configs/*.json).
ARCHITECTURES: Mapping[str, str] = {
    "eagle3": "LlamaForCausalLMEagle3",
    "peagle": "PEagleDraftModel",
    "dflash": "DFlashDraftModel",
    "domino": "DominoDraftModel",
    "dspark": "DSparkDraftModel",
}
#: Where training_state.pt keeps the state dict.
STATE_KEY = "draft_state_dict"
_STATE = Clue(
    "any",
    "training_state.pt",
    f"a training state with {STATE_KEY}",
    lambda seen: seen.extra.get("state_dict_key") == STATE_KEY,
    weight=6,
)
_NO_CONFIG = Clue(
    "any", "config.json", "no config to say otherwise", lambda seen: seen.config is None, weight=0
)


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:
    """Facts of a SpecForge config, completed by what ``training_state.pt`` says of the run.

    P-EAGLE's mask token and residual stand in the run's YAML and, recovered here, in the training state alone
    (SpecForge a6b6b023 specforge/algorithms/peagle).
    """
    state = seen.extra.get("training_state") or {}
    prefix = variant.algorithm
    if prefix in dflash.FAMILY:
        facts = dflash.read_flat(config)
        return overlay(
            facts,
            block_size=integer(state, f"{prefix}_block_size") if facts.block_size is None else None,
            mask_token_id=integer(state, f"{prefix}_mask_token_id") if facts.mask_token_id is None else None,
        )
    facts = sglang.read(config, seen, variant)
    if prefix == "peagle":
        residual = state.get("peagle_norm_before_residual")
        facts = overlay(
            facts,
            mask_token_id=integer(state, "peagle_mask_token_id"),
            norm_before_residual=residual if isinstance(residual, bool) else None,
            embed_requires_grad=True if "embed_tokens.weight" in seen.tensors else None,
        )
    return facts


def write(request: WriteRequest) -> dict[str, Any]:
    """A draft config as SpecForge's ``configs/*.json`` spell it."""
    algorithm = request.algorithm
    if algorithm in dflash.FAMILY:
        config = dflash.write_flat(request, ARCHITECTURES[algorithm], flat_heads=False)
        if algorithm == "dspark":
            config["dflash_config"].setdefault("attention_mode", "gqa")
        return {k: config[k] for k in sorted(config) if k != "draft_vocab_size"}
    facts = request.facts
    config = flat_config(request, ARCHITECTURES[algorithm], "llama")
    block: dict[str, Any] = {"use_aux_hidden_state": True}
    if request.nested_ids is not None:
        block["eagle_aux_hidden_state_layer_ids"] = list(request.nested_ids)
    config["eagle_config"] = block
    kind = (request.target.text_model_type or request.target.model_type) if request.target else None
    if kind is not None:
        config["target_model_type"] = kind
    if algorithm == "peagle":
        config["mask_token_id"] = facts.mask_token_id
        config["norm_before_residual"] = bool(facts.norm_before_residual)
    return {k: config[k] for k in sorted(config)}


def _feedback(facts: DraftFacts, config: Mapping[str, Any]) -> str | None:  # noqa: ARG001
    if not facts.norm_output:
        return None
    return (
        "norm_output is true: engines feed the normalised state to the next step, and SpecForge's training did so only from PR #879 "
        "(2026-09-15) on; an older run fed the state before the norm, and the files don't say which it was"
    )


def _bare_logits(facts: DraftFacts, config: Mapping[str, Any]) -> str | None:  # noqa: ARG001
    if facts.norm_output is not False:
        return None
    return (
        "norm_output is false: SpecForge then computes the logits without the final norm, and no engine does"
    )


CAUTIONS = (
    Caution(
        "NRM008",
        _feedback,
        "trained before that: --repair norm-output-off",
        pointer="/norm_output",
        repair="norm-output-off",
        algorithms=limits.EAGLE3,
    ),
    Caution(
        "NRM009",
        _bare_logits,
        "retrain with norm_output true, or add the norm to the logits in training",
        pointer="/norm_output",
        severity="error",
        algorithms=limits.EAGLE3,
    ),
)


def _residual(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if not facts.norm_before_residual:
        return None
    return "norm_before_residual is true; SpecForge's EAGLE-3 keeps the raw state"


def _late_feedback(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if not facts.norm_output:
        return None
    return "norm_output is true: SpecForge feeds the normalised state back only from PR #879 (2026-09-15) on"


def _anchor_second(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if facts.extra.get("sample_from_anchor"):
        return None
    return (
        "sample_from_anchor is false: SpecForge's DSpark predicts from the anchor on and has no field for it"
    )


LIMITS = (
    limits.flag("norm_before_fc"),
    Limit(
        "NRM001",
        "norm-before-residual-unsupported",
        _residual,
        "keep the draft in vLLM's or speculators' format",
        algorithms=("eagle3",),
    ),
    limits.QK_NORMS,
    limits.BIASES,
    limits.FC_BIAS,
    limits.WINDOW,
    replace(limits.ONE_LAYER, algorithms=("eagle3",)),
    limits.THREE,
    limits.NO_MLA,
    limits.SILU,
    Limit(
        "NRM008",
        "norm-output-meaning",
        _late_feedback,
        "train on with a release that has it",
        severity="warning",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "PAR013",
        "anchor-first-only",
        _anchor_second,
        "keep the draft in SGLang's, vLLM's or speculators' format",
        algorithms=("dspark",),
    ),
    limits.REDUCED_MARKOV,
    dflash.ANCHOR,
    dflash.MASK,
    dflash.CAPTURE,
)

_EAGLE3_COMMON = (
    SIGNATURE,
    NOT_MLA,
    sglang.NOT_SPECULATORS,
    no_field("eagle_aux_hidden_state_layer_ids", "no capture ids on top"),
    no_tensor("midlayer.{j}.**", "one layer"),
)

FORMAT = Format(
    name="specforge",
    title="SpecForge",
    variants=(
        Variant(
            algorithm="eagle3",
            layer_type="llama",
            must=(
                *_EAGLE3_COMMON,
                *NO_OTHER_HEAD,
                architecture_not(*sglang.FOREIGN),
                no_field("norm_before_residual", "no norm_before_residual"),
                no_tensor("layers.0.**", "layer 0 isn't named layers.0"),
                any_of(
                    "SpecForge's own fields or its training state",
                    has_field("target_model_type", ""),
                    has_field("norm_output", ""),
                    _STATE,
                    _NO_CONFIG,
                    weight=0,
                ),
            ),
            hints=(
                has_field("target_model_type", "target_model_type is stated", 3),
                has_field("norm_output", "norm_output is stated", 3),
                architecture_is(ARCHITECTURES["eagle3"]),
                has_field(
                    "eagle_config/eagle_aux_hidden_state_layer_ids", "capture ids nested in eagle_config", 2
                ),
                has_tensor("midlayer.**", "layer 0 is named midlayer", 2),
                has_tensor("t2d", "t2d is there"),
                _STATE,
            ),
            names=MIDLAYER,
            drops=DROPS,
            needs=("d2t", "t2d"),
        ),
        Variant(
            algorithm="peagle",
            layer_type="llama",
            must=(
                has_tensor("mask_hidden", "P-EAGLE's mask_hidden", 2),
                sglang.NOT_SPECULATORS,
                architecture_is(ARCHITECTURES["peagle"]),
            ),
            hints=(architecture_is(ARCHITECTURES["peagle"]), has_tensor("t2d", "t2d is there"), _STATE),
            names=PEAGLE,
            drops=DROPS,
            needs=("d2t", "t2d", "embed_tokens.weight"),
        ),
        # What is written is recognised as z-lab's, whose layout it is.
        Variant(
            algorithm="dflash",
            layer_type="qwen3",
            must=(
                dflash.SIGNATURE,
                sglang.NOT_SPECULATORS,
                *dflash.only("dflash"),
                architecture_is(ARCHITECTURES["dflash"]),
                _STATE,
            ),
            hints=(has_field("dflash_config", "a dflash_config block", 2),),
            names=dflash.names("dflash"),
            drops=DROPS,
            omits=dflash.TARGETS_OWN,
        ),
        *(
            Variant(
                algorithm=algorithm,
                layer_type="qwen3",
                must=(
                    dflash.SIGNATURE,
                    sglang.NOT_SPECULATORS,
                    *dflash.only(algorithm),
                    dflash.NOT_FLAT,
                    architecture_is(ARCHITECTURES[algorithm]),
                    any_of("Qwen3 layers", field_is("model_type", "qwen3"), weight=1),
                ),
                hints=(
                    has_field("dflash_config", "a dflash_config block", 2),
                    field_is("dflash_config/projector_type", algorithm),
                    has_tensor("logit_head.**", "heads under logit_head", 2),
                    _STATE,
                ),
                names=dflash.names(algorithm),
                drops=DROPS,
                omits=dflash.TARGETS_OWN,
            )
            for algorithm in ("domino", "dspark")
        ),
    ),
    read=read,
    capture=CaptureIds(
        paths=(
            "eagle_config/eagle_aux_hidden_state_layer_ids",
            "dflash_config/target_layer_ids",
            "target_layer_ids",
        ),
        convention=("layer_output", "layer_output", "layer_output"),
        certain=(True, True, True),
    ),
    references=(
        "SpecForge a6b6b023 specforge/modeling/draft/llama3_eagle.py:1690, :1772-1776",
        "SpecForge a6b6b023 specforge/algorithms/model_providers.py:188-211 (captures outputs)",
        "SpecForge a6b6b023 specforge/export/to_sglang.py:43,85, training/checkpoint.py:1-60",
    ),
    schema="specforge.config.json",
    write=write,
    limits=LIMITS,
    cautions=CAUTIONS,
    implied=sglang.ANCHOR_FIRST,
    sorted_rows=True,
)
