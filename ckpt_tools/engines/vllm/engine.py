"""vLLM as one of the engines."""

from __future__ import annotations

from ckpt_tools.engines.contract import EngineContract
from ckpt_tools.engines.vllm.contract import CONTRACTS

ENGINE = EngineContract("vllm", tuple(CONTRACTS))
