"""SGLang with ckpt's model package loaded (``SGLANG_EXTERNAL_MODEL_PACKAGE=ckpt_tools.sglang_models``)."""

from __future__ import annotations

from ckpt_tools.engines.sglang_ext.engine import SGLangExt

ENGINE = SGLangExt()

__all__ = ["ENGINE"]
