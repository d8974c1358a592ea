"""vLLM as an engine: what its loader does with a draft, per release."""

from __future__ import annotations

from ckpt_tools.engines.vllm.config import derive_method, detect_method
from ckpt_tools.engines.vllm.engine import Vllm
from ckpt_tools.engines.vllm.loadmap import load_map, ownership
from ckpt_tools.engines.vllm.runners import runner_for
from ckpt_tools.engines.vllm.semantics import semantics

ENGINE = Vllm()

__all__ = ["ENGINE", "derive_method", "detect_method", "load_map", "ownership", "runner_for", "semantics"]
