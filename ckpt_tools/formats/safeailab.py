"""The EAGLE repository's EAGLE-3 drafts: ``LlamaForCausalLM`` by name, ``midlayer.*`` tensors, no capture ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import eagle1
from ckpt_tools.formats.base import (
    CaptureIds,
    Format,
    Seen,
    Variant,
    architecture_is,
    has_field,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.eagle3 import DROPS, MIDLAYER, NO_OTHER_HEAD, NOT_MLA, SIGNATURE
from ckpt_tools.formats.facts import decoder_facts
from ckpt_tools.formats.sglang import NOT_SPECULATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:  # noqa: ARG001
    """Facts of a flat config. Training ignores ``head_dim`` and every rope field (EAGLE traineagle3/cnets.py:101-113)."""
    return decoder_facts(config)


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
            ),
            hints=(
                has_tensor("midlayer.**", "layer 0 is named midlayer", 2),
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
)
