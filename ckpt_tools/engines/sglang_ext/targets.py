"""Target classes that ckpt's model package gives the EAGLE-3 hooks which their release lacks.

Only classes whose language model can do it already: a later release's own wrapper does no more than pass the calls on
(``engines/data/sglang_targets.json`` has the releases).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines.hooks import sglang_classes
from ckpt_tools.engines.versions import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Class -> its module in ``sglang.srt.models``.
WRAPPED: Mapping[str, str] = {
    "InternS1ProForConditionalGeneration": "interns1pro",
    "KimiK25ForConditionalGeneration": "kimi_k25",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
}


def wrapped(architecture: str, version: str) -> bool:
    """Whether the package serves this target on a SGLang version that has the class and not yet its hooks."""
    if architecture not in WRAPPED:
        return False
    since = sglang_classes()[architecture]["since"]
    asked = parse(version)
    return bool(parse(since["registered"][0]) <= asked < parse(since["eagle3"][0]))
