"""AngelSlim's drafts: ``Eagle3LlamaForCausalLM`` with EAGLE's names, ``QwenDFlashDraftModel``; no capture ids for EAGLE-3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import dflash, trained
from ckpt_tools.formats.base import (
    CaptureIds,
    Caution,
    Format,
    Seen,
    Variant,
    any_of,
    architecture_is,
    has_field,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.canonical import vocabulary
from ckpt_tools.formats.eagle3 import DROPS, MIDLAYER, NO_OTHER_HEAD, NOT_MLA, SIGNATURE
from ckpt_tools.formats.facts import decoder_facts
from ckpt_tools.formats.names import NameMap, Row
from ckpt_tools.formats.sglang import NOT_SPECULATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

_OWN = ("Eagle3LlamaForCausalLM", "CosyVoice3Eagle3LlamaForCausalLM")


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:  # noqa: ARG001
    """Facts of an AngelSlim config; ``target_hidden_size`` and every bias are ignored by its class."""
    if variant.algorithm == "eagle3":
        return replace(decoder_facts(config), target_hidden_size=None, attention_bias=None, mlp_bias=None)
    return dflash.read_flat(config)


def _tied(facts: DraftFacts, config: Mapping[str, Any]) -> str | None:
    if config.get("tie_word_embeddings") is not True:
        return None
    small, whole = facts.draft_vocab_size, facts.vocab_size
    return (
        f"tie_word_embeddings is true and the head is a matrix of its own ({small} of {whole} rows): engines that honour the flag "
        "take the embedding for it; false is written"
    )


FORMAT = Format(
    name="angelslim",
    title="AngelSlim",
    variants=(
        Variant(
            algorithm="eagle3",
            layer_type="llama",
            must=(
                SIGNATURE,
                NOT_MLA,
                NOT_SPECULATORS,
                *NO_OTHER_HEAD,
                architecture_is(*_OWN),
                no_field("eagle_config", "no eagle_config"),
                no_field("eagle_aux_hidden_state_layer_ids", "no capture ids"),
                no_field("norm_before_residual", "no norm_before_residual"),
                no_tensor("layers.0.**", "layer 0 isn't named layers.0"),
                no_tensor("midlayer.{j}.**", "one layer"),
            ),
            hints=(
                has_tensor("midlayer.**", "layer 0 is named midlayer", 2),
                has_tensor("t2d", "t2d is there"),
                has_tensor("embed_tokens.weight", "the embedding is there"),
                any_of(
                    "fields of AngelSlim's trainer",
                    has_field("target_model_type", ""),
                    has_field("modal_type", ""),
                    has_field("use_mrope", ""),
                    weight=3,
                ),
            ),
            names=MIDLAYER,
            drops=DROPS,
            read_only=True,
        ),
        Variant(
            algorithm="dflash",
            layer_type="qwen3",
            must=(
                dflash.SIGNATURE,
                NOT_SPECULATORS,
                *dflash.only("dflash"),
                architecture_is("QwenDFlashDraftModel"),
            ),
            hints=(has_field("dflash_config", "a dflash_config block", 2),),
            names=dflash.names("dflash"),
            drops=DROPS,
            read_only=True,
        ),
        Variant(
            algorithm="dflare",
            must=(
                any_of(
                    "layer_fusion_weights, or its class",
                    has_tensor("layer_fusion_weights", ""),
                    architecture_is("QwenDFlareDraftModel"),
                ),
                NOT_SPECULATORS,
            ),
            hints=(
                architecture_is("QwenDFlareDraftModel"),
                has_tensor("layer_fusion_weights", "layer_fusion_weights", 3),
                has_tensor("layers.{i}.self_attn.k_proj_target.weight", "keys of the target's own", 3),
            ),
            names=NameMap((Row("**", "**"),), vocabulary("dflare")),
            drops=DROPS,
            read_only=True,
        ),
    ),
    read=read,
    capture=CaptureIds(
        paths=("dflash_config/target_layer_ids", "target_layer_ids"),
        convention=("layer_output", "layer_output"),
        certain=(True, True),
    ),
    references=(
        "AngelSlim 67394ce5 speculative/train/models/draft/llama_eagle3.py (_init_rope)",
        "AngelSlim 67394ce5 target_model_wrapper.py:575-631 (captures outputs 1, N//2-1, N-4)",
    ),
    schema="angelslim.config.json",
    cautions=(
        trained.BASE_10000,
        Caution(
            "HED002",
            _tied,
            "nothing to do: the output says false",
            pointer="/tie_word_embeddings",
            severity="info",
            algorithms=("eagle3",),
        ),
    ),
    implied=trained.IMPLIED_10000,
    sorted_rows=True,
    fixed_capture=True,
)
