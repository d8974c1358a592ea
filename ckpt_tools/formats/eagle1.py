"""What the EAGLE-1/2 formats share: a head without norms and without a head of its own, fc over [embedding, hidden]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.formats.base import Clue, Seen, any_of, architecture_is, has_tensor, no_field, no_tensor
from ckpt_tools.formats.canonical import vocabulary
from ckpt_tools.formats.names import NameMap, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts


def _fc_over_two(seen: Seen) -> bool:
    fc = seen.tensors.get("fc.weight")
    return fc is not None and len(fc.shape) == 2 and fc.shape[1] == 2 * fc.shape[0]


def _one_layer_llama(seen: Seen) -> bool:
    config = seen.config or {}
    return (
        not seen.tensors
        and config.get("num_hidden_layers") == 1
        and config.get("architectures") == ["LlamaForCausalLM"]
    )


#: The classes that engines build for EAGLE-1.
SGLANG_CLASSES = (
    "LlamaForCausalLMEagle",
    "Qwen2ForCausalLMEagle",
    "MistralForCausalLMEagle",
    "MistralLarge3ForCausalLMEagle",
)
VLLM_CLASSES = (
    "EagleLlamaForCausalLM",
    "EagleLlama4ForCausalLM",
    "EagleMiniCPMForCausalLM",
    "EagleMistralForCausalLM",
    "EagleMistralLarge3ForCausalLM",
    "EagleCohereForCausalLM",
    "EagleDeepSeekMTPModel",
    "EagleQwen2ForCausalLM",
)

SIGNATURE: Clue = any_of(
    "the head of EAGLE-1: fc over [embedding, hidden], no norms",
    Clue("tensor", "fc.weight", "fc takes [embedding, hidden]", _fc_over_two),
    Clue("config", "num_hidden_layers", "a Llama of one layer and no weights to look at", _one_layer_llama),
    architecture_is(*SGLANG_CLASSES, *VLLM_CLASSES),
)

#: speculators up to 0.6 name fc otherwise.
FUSION: Clue = any_of(
    "fusion_fc over [embedding, hidden]", has_tensor("fusion_fc.weight", ""), has_tensor("transformer.**", "")
)

NO_LATER_HEAD = (
    no_field("draft_vocab_size", "no draft_vocab_size (EAGLE-3)"),
    no_field("eagle_config", "no eagle_config (EAGLE-3)"),
    no_tensor("midlayer.**", "no midlayer (EAGLE-3)"),
    no_tensor("d2t", "no d2t (EAGLE-3)"),
    no_tensor("norm.weight", "no final norm"),
    no_tensor("hidden_norm.weight", "no norm after fc (DFlash)"),
    no_tensor("**.hidden_norm.weight", "no hidden_norm (EAGLE-3)"),
    no_tensor("mtp.**", "no mtp.* (MTP)"),
)

NAMES = NameMap((Row("**", "**"),), vocabulary("eagle"))

TARGETS_HEAD = (("lm_head.weight", "the target's own head, which every engine takes from the target"),)
_NORMS = ("layers.0.input_layernorm.weight", "embedding_layernorm.weight", "pre_lm_head_layernorm.weight")


def norms(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """Norms that HASS drafts have and EAGLE-1 doesn't."""
    found = [n for n in _NORMS if n in tensors]
    return f"{', '.join(found)}: engines build EAGLE-1 without these norms" if found else None
