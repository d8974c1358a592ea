"""SGLang: the contract of its draft loaders, by release."""

from __future__ import annotations

from ckpt_tools.engines.sglang.loadmap import ENGINE, MODELLED, load_map, parameter_shapes

__all__ = ["ENGINE", "MODELLED", "load_map", "parameter_shapes"]
