"""TensorRT-LLM as one of the engines."""

from __future__ import annotations

from ckpt_tools.engines.contract import EngineContract
from ckpt_tools.engines.trtllm.contract import CONTRACTS

ENGINE = EngineContract("trtllm", CONTRACTS)
