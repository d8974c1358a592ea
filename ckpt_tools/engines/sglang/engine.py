"""SGLang as one of the engines."""

from __future__ import annotations

from ckpt_tools.engines.contract import EngineContract

ENGINE = EngineContract("sglang", contracts=("0.5.9", "0.5.12", "0.5.23"))
