"""Which class SGLang builds for ``architectures``: its own registry, else a transformers fallback, else a refusal."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.history import facts
from ckpt_tools.engines.sglang.hf import pin
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.versions import nearest, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig

FALLBACK = "TransformersForCausalLM"

# configs/model_config.py:1010-1211 ``_config_draft_model``: a target's class given as a draft is its next-token head.
NEXT_TOKEN_HEADS: Mapping[str, str] = {
    "DeepseekV3ForCausalLM": "DeepseekV3ForCausalLMNextN",
    "DeepseekV32ForCausalLM": "DeepseekV3ForCausalLMNextN",
    "GlmMoeDsaForCausalLM": "DeepseekV3ForCausalLMNextN",
    "Glm4MoeForCausalLM": "Glm4MoeForCausalLMNextN",
    "LongcatFlashForCausalLM": "LongcatFlashForCausalLMNextN",
    "MiMoForCausalLM": "MiMoMTP",
    "MiMoV2FlashForCausalLM": "MiMoV2MTP",
    "Step3p5ForCausalLM": "Step3p5MTP",
    "BailingMoeV2ForCausalLM": "BailingMoeForCausalLMNextN",
    "BailingMoeForCausalLM": "BailingMoeForCausalLMNextN",
    "Ernie4_5_MoeForCausalLM": "Ernie4_5_MoeForCausalLMMTP",
    "Qwen3NextForCausalLM": "Qwen3NextForCausalLMMTP",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLMMTP",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5ForCausalLMMTP",
    "ExaoneMoEForCausalLM": "ExaoneMoEForCausalLMMTP",
    "NemotronHForCausalLM": "NemotronHForCausalLMMTP",
}


@lru_cache(maxsize=32)
def registered(version: str) -> frozenset[str]:
    """The architectures that a release registers: of one that wasn't read, the nearest older one's and the draft classes added since."""
    text = (Path(__file__).parent / "data" / "architectures.json").read_text("utf-8")
    known: Mapping[str, list[str]] = json.loads(text)
    names = set(known[nearest(tuple(known), version)])
    for fact in facts("sglang"):  # "draft_class.<name>"
        kind, _, name = fact.id.partition(".")
        if kind == "draft_class" and fact.first is not None:
            (names.add if parse(version) >= parse(fact.first) else names.discard)(name)
    return frozenset(names)


def check(given: Any) -> None:
    """``ModelConfig`` takes the first element before anything else (configs/model_config.py:699).

    Raises:
        Refused: There is none.
    """
    try:
        given[0].startswith("Llava")  # utils/hf_transformers/common.py:552
    except (TypeError, LookupError, AttributeError) as error:
        raise Refused(type(error).__name__, str(error), "config") from error


def choose(config: HfConfig, known: frozenset[str], features: Features) -> str:
    """The class that ``get_model_architecture`` (model_loader/utils.py:198-239) resolves to.

    Args:
        known: What the release registers.

    Raises:
        Refused: None of the architectures can be built.
    """
    names = [str(name) for name in config.get("architectures")]
    names[0] = NEXT_TOKEN_HEADS.get(names[0], names[0])
    for name in names:
        if name in known:
            return name
    classes = pin(features.transformers)["classes"]
    auto_map = config.get("auto_map") or {}
    if auto_map and features.remote_code_raises:
        raise Refused(
            "OSError",
            f"the draft does not appear to have a file for {next(iter(auto_map.values()))}",
            "class",
        )
    for name in names:
        if name in classes["true"]:
            continue
        if name in classes["false"]:
            raise Refused(
                "ValueError",
                f"{name} has no SGlang implementation and the Transformers implementation is not compatible with SGLang.",
                "class",
            )
        raise Refused(
            "ValueError",
            f"Cannot find model module. '{name}' is not a registered model in the Transformers library (only relevant if the model "
            "is meant to be in Transformers) and 'AutoModel' is not present in the model config's 'auto_map' (relevant if the model is custom).",
            "class",
        )
    return FALLBACK
