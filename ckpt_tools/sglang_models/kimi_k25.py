"""Kimi-K2.5 as a target on SGLang 0.5.9, where its wrapper has no hooks (models/kimi_k25.py:648; 0.5.10:841 has)."""

from __future__ import annotations

from ckpt_tools.sglang_models import RELEASE
from ckpt_tools.sglang_models._targets import Delegating, wrappers

EntryClass = wrappers(RELEASE, Delegating, "KimiK25ForConditionalGeneration")
