"""The EAGLE repository's drafts: ``LlamaForCausalLM`` by name, ``midlayer.*`` tensors (EAGLE-3), no capture ids."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import eagle1, limits, trained
from ckpt_tools.formats.base import (
    CaptureIds,
    Format,
    Limit,
    Seen,
    Variant,
    WriteRequest,
    architecture_is,
    has_field,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.eagle3 import DROPS, MIDLAYER, NO_OTHER_HEAD, NOT_MLA, SIGNATURE
from ckpt_tools.formats.facts import decoder_facts
from ckpt_tools.formats.flat import flat_config
from ckpt_tools.formats.sglang import NOT_SPECULATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:  # noqa: ARG001
    """Facts of a flat config. Training ignores ``head_dim`` and every rope field (EAGLE traineagle3/cnets.py:101-113)."""
    facts = decoder_facts(config)
    return replace(facts, draft_vocab_size=None, fc_bias=None) if variant.algorithm == "eagle" else facts


def write(request: WriteRequest) -> dict[str, Any]:
    """A config as EAGLE's trainer writes it: LlamaForCausalLM, told from a plain Llama by ``draft_vocab_size`` alone."""
    config = flat_config(request, "LlamaForCausalLM", "llama")
    # Its loader takes transformers 4's spelling, and rope_scaling only in the two-key form (EAGLE model/cnets.py:217-260).
    config.pop("rope_parameters", None)
    if request.facts.rope is not None and request.facts.rope.scaling is not None:
        scaling = request.facts.rope.scaling
        config["rope_scaling"] = {"type": scaling["rope_type"], "factor": scaling.get("factor")}
    return config


def _rope(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    scaling = facts.rope.scaling if facts.rope else None
    partial = facts.rope.partial_rotary_factor if facts.rope else None
    if partial not in (None, 1.0):
        return f"partial_rotary_factor {partial}, which EAGLE's code has no field for"
    if scaling is None or (
        scaling["rope_type"] in ("linear", "dynamic") and set(scaling) == {"rope_type", "factor"}
    ):
        return None
    return f"rope_scaling {scaling['rope_type']}: EAGLE's code takes linear and dynamic with a factor alone"


def _head_dim(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    hidden, heads = facts.hidden_size, facts.num_attention_heads
    if facts.head_dim is None or not hidden or not heads or hidden // heads == facts.head_dim:
        return None
    return f"head_dim {facts.head_dim}: EAGLE's code always takes hidden_size / num_attention_heads, {hidden // heads}"


LIMITS = (
    *(limits.flag(n) for n in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")),
    limits.QK_NORMS,
    limits.BIASES,
    limits.FC_BIAS,
    limits.WINDOW,
    limits.ONE_LAYER,
    limits.THREE,
    limits.NO_MLA,
    limits.SILU,
    Limit("ROP006", "rope-inexpressible", _rope, "keep the draft in a format that carries it"),
    Limit("SHP005", "head-dim-inexpressible", _head_dim, "keep the draft in a format that carries it"),
)

FORMAT = Format(
    name="safeailab",
    title="EAGLE repository",
    variants=(
        Variant(
            algorithm="eagle3",
            must=(
                SIGNATURE,
                NOT_MLA,
                NOT_SPECULATORS,
                *NO_OTHER_HEAD,
                architecture_is("LlamaForCausalLM"),
                has_field("draft_vocab_size", "draft_vocab_size beside LlamaForCausalLM"),
                has_tensor("midlayer.**", "layer 0 is named midlayer", 2),
            ),
            hints=(
                no_field("eagle_config", "no eagle_config"),
                has_tensor("t2d", "t2d is there"),
            ),
            names=MIDLAYER,
            drops=DROPS,
        ),
        Variant(
            algorithm="eagle",
            layer_type="llama",
            must=(
                eagle1.SIGNATURE,
                NOT_SPECULATORS,
                *eagle1.NO_LATER_HEAD,
                architecture_is(
                    "LlamaForCausalLM", "Qwen2ForCausalLM", "MixtralForCausalLM", "MistralForCausalLM"
                ),
            ),
            hints=(
                has_tensor("fc.bias", "fc has a bias"),
                no_tensor("layers.0.input_layernorm.weight", "layer 0 has no input norm"),
            ),
            names=eagle1.NAMES,
            drops=DROPS,
            read_only=True,
        ),
    ),
    read=read,
    capture=CaptureIds(paths=(), convention=(), certain=()),
    references=(
        "EAGLE cb7e0841 eagle/model/cnets.py:538-754",
        "EAGLE cb7e0841 eagle/model/modeling_llama_kv.py:1138 (captures before layers 2, N//2, N-3)",
        "EAGLE cb7e0841 eagle/traineagle3/cnets.py:101-113, :673-687",
    ),
    schema="safeailab.eagle3.config.json",
    write=write,
    limits=LIMITS,
    cautions=(trained.BASE_10000,),
    implied=trained.IMPLIED_10000,
    sorted_rows=True,
    fixed_capture=True,
)
