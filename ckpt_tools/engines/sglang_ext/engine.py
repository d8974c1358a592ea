"""SGLang with ckpt's model package as one of the engines."""

from __future__ import annotations

from ckpt_tools.engines.contract import EngineContract
from ckpt_tools.engines.sglang_ext.releases import RELEASES

ENGINE = EngineContract("sglang-ext", RELEASES)
