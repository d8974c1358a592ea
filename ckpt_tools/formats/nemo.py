"""NeMo Automodel's EAGLE-3 drafts: every name under ``model.``, the vocabulary in ``eagle_meta.pt`` as absolute ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import sglang
from ckpt_tools.formats.base import Clue, Format, Seen, Variant, has_file, has_tensor
from ckpt_tools.formats.eagle3 import DROPS, NO_OTHER_HEAD, NOT_MLA, SGLANG, SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: The file with the target ids of the head's rows, and their key in it.
META = "eagle_meta.pt"


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:
    """Facts of a flat config."""
    return sglang.read(config, seen, variant)


FORMAT = Format(
    name="nemo",
    title="NeMo Automodel",
    variants=(
        Variant(
            algorithm="eagle3",
            layer_type="llama",
            must=(
                SIGNATURE,
                NOT_MLA,
                sglang.NOT_SPECULATORS,
                *NO_OTHER_HEAD,
                has_file(META, f"{META} beside the weights", 6),
            ),
            hints=(
                Clue(
                    "any",
                    "model.",
                    "every name begins with model.",
                    lambda seen: seen.wrapper == "model.",
                    weight=2,
                ),
                has_tensor("fc_norm.{j}.weight", "a norm per captured layer"),
            ),
            names=SGLANG,
            drops=DROPS,
            read_only=True,
        ),
    ),
    read=read,
    capture=sglang.FORMAT.capture,
    references=(
        "NeMo-Automodel PR #2322 (names under model.)",
        "NeMo-Automodel PR #2447 (eagle_meta.pt selected_token_ids)",
    ),
    schema="nemo.eagle3.config.json",
)
