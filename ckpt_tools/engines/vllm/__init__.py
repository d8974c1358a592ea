"""vLLM as an engine: what its loader does with a draft, per release."""

from __future__ import annotations

from ckpt_tools.engines.vllm.config import detect_method
from ckpt_tools.engines.vllm.loadmap import ENGINE, load_map

__all__ = ["ENGINE", "detect_method", "load_map"]
