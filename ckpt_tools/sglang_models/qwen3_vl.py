"""Qwen3-VL and what is built on it as targets on SGLang 0.5.6 to 0.5.10.post1.

The decoder captures layers there already (models/qwen3_vl.py 0.5.9:709, qwen3_vl_moe.py); the wrapper has no hooks and
hands (states, captured states) on as they are (0.5.9:1034). 0.5.11:1395 has both.
"""

from __future__ import annotations

from ckpt_tools.sglang_models import RELEASE
from ckpt_tools.sglang_models._targets import Capturing, wrappers

_BUILT_ON_IT = ("Qwen3VLMoeForConditionalGeneration", "InternS1ProForConditionalGeneration")
EntryClass = wrappers(RELEASE, Capturing, "Qwen3VLForConditionalGeneration", *_BUILT_ON_IT)
