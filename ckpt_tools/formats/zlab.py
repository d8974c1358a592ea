"""z-lab's DFlash drafts, which SGLang and vLLM load as they are: ``DFlashDraftModel`` with a ``dflash_config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import dflash
from ckpt_tools.formats.base import (
    CaptureIds,
    Format,
    Seen,
    Variant,
    WriteRequest,
    architecture_is,
    architecture_not,
    has_field,
)
from ckpt_tools.formats.eagle3 import DROPS
from ckpt_tools.formats.flat import flat_config
from ckpt_tools.formats.sglang import NOT_SPECULATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

ARCHITECTURES: Mapping[str, str] = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
#: Facts that stand in ``dflash_config`` alone: top-level copies are ignored (sglang 0.5.23 dflash_utils.py:619-725).
NESTED = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:  # noqa: ARG001
    """Facts of a z-lab config."""
    return dflash.read_flat(config)


def write(request: WriteRequest) -> dict[str, Any]:
    """A z-lab config: decoder fields flat, captured layers and mask in ``dflash_config``."""
    facts = request.facts
    config = flat_config(request, ARCHITECTURES[request.algorithm], "qwen3")
    block: dict[str, Any] = {"target_layer_ids": list(facts.capture_layers or ())}
    if facts.mask_token_id is not None:
        block["mask_token_id"] = facts.mask_token_id
    block.update({k: facts.extra[k] for k in NESTED if k in facts.extra})
    config["dflash_config"] = block
    if facts.block_size is not None:
        config["block_size"] = facts.block_size
    depth = facts.extra.get("num_target_layers") or (
        request.target.num_hidden_layers if request.target else None
    )
    if depth is not None:
        config["num_target_layers"] = depth
    config["attention_bias"] = bool(facts.attention_bias)
    if facts.layer_types is not None:
        config["layer_types"] = list(facts.layer_types)
    if facts.sliding_window is not None:
        config["sliding_window"] = facts.sliding_window
        config["use_sliding_window"] = True
    if "is_causal" in facts.extra:
        config["is_causal"] = facts.extra["is_causal"]
    elif facts.extra.get("sliding_window_non_causal") and facts.sliding_window is not None:
        # speculators' sliding layers that see the whole block; SGLang has one override for all layers.
        config["is_causal"] = False
    return config


FORMAT = Format(
    name="z-lab",
    title="z-lab (DFlash)",
    variants=tuple(
        Variant(
            algorithm=algorithm,
            layer_type="qwen3",
            must=(
                dflash.SIGNATURE,
                NOT_SPECULATORS,
                *dflash.only(algorithm),
                architecture_not(
                    "Eagle3LlamaForCausalLM", "DominoDraftModel", "DSparkDraftModel", "Qwen3DSparkModel"
                ),
            ),
            hints=(
                architecture_is(name, "MuseGlimmerAssistantModel", "DFlashLagunaForCausalLM"),
                has_field("dflash_config", "a dflash_config block", 2),
                has_field("block_size", "a block_size"),
            ),
            names=dflash.names(algorithm),
            drops=DROPS,
        )
        for algorithm, name in ARCHITECTURES.items()
    ),
    read=read,
    capture=CaptureIds(
        paths=("dflash_config/target_layer_ids", "target_layer_ids"),
        convention=("layer_output", "layer_output"),
        certain=(True, True),
    ),
    references=(
        "DFlash 0.1.0 dflash/model.py:25-45",
        "sglang 0.5.23 srt/models/dflash.py:886-1000, srt/speculative/dflash_utils.py:588-813",
        "vllm 0.33.0 model_executor/models/qwen3_dflash.py:84-93",
    ),
    schema="z-lab.dflash.config.json",
    write=write,
    engine="sglang-dflash",
)
