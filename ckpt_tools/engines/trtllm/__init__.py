"""TensorRT-LLM (PyTorch backend): what its one-model EAGLE-3 loader does with a draft."""

from __future__ import annotations

from ckpt_tools.engines.trtllm.engine import TensorRTLLM
from ckpt_tools.engines.trtllm.loadmap import load_map, parameter_shapes

ENGINE = TensorRTLLM()

__all__ = ["ENGINE", "load_map", "parameter_shapes"]
