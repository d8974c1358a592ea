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
    any_of,
    architecture_is,
    architecture_not,
    has_field,
    has_tensor,
    no_field,
    no_tensor,
)
from ckpt_tools.formats.eagle3 import DROPS
from ckpt_tools.formats.sglang import NOT_SPECULATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

ARCHITECTURES: Mapping[str, str] = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
#: Classes of other formats and algorithms of the family.
FOREIGN = (
    "Eagle3LlamaForCausalLM", "DominoDraftModel", "DSparkDraftModel", "Qwen3DSparkModel", "QwenDFlashDraftModel",
    "QwenDFlareDraftModel", "XPressDraftModel", "Qwen3XPressModel",
)  # fmt: skip


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:  # noqa: ARG001
    """Facts of a z-lab config."""
    return dflash.read_flat(config)


def write(request: WriteRequest) -> dict[str, Any]:
    """A z-lab config: decoder fields flat, captured layers and mask in ``dflash_config``."""
    config = dflash.write_flat(request, ARCHITECTURES[request.algorithm])
    return {k: v for k, v in config.items() if k != "draft_vocab_size"}


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
                any_of(
                    "tensors, or a config that says DFlash",
                    has_tensor("fc.weight", ""),
                    has_tensor("encoder.fc.weight", ""),
                    has_tensor("candidate_selector.**", ""),
                    has_tensor("layers.0.**", ""),
                    has_field("dflash_config", ""),
                    architecture_is(name, "MuseGlimmerAssistantModel", "DFlashLagunaForCausalLM"),
                    weight=0,
                ),
                architecture_not(*FOREIGN, *(n for a, n in ARCHITECTURES.items() if a != algorithm)),
                no_field("markov_rank", "no markov_rank (DSpark)"),
                no_tensor("d2t", "no d2t: the whole vocabulary"),
            ),
            hints=(
                architecture_is(name, "MuseGlimmerAssistantModel", "DFlashLagunaForCausalLM"),
                has_field("dflash_config", "a dflash_config block", 2),
                has_field("block_size", "a block_size"),
            ),
            names=dflash.names(algorithm),
            drops=DROPS,
            omits=dflash.TARGETS_OWN,
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
    limits=(dflash.ANCHOR, dflash.MASK, dflash.CAPTURE),
    usual=True,
)
