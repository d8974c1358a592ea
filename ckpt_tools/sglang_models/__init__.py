"""Model classes that SGLang loads from outside: ``SGLANG_EXTERNAL_MODEL_PACKAGE=ckpt_tools.sglang_models``.

SGLang imports every module here and registers the classes that each names in ``EntryClass``. Modules whose name begins
with an underscore are parts without one. On a SGLang release that nobody has read, importing the package fails, and so
does the server, at once and with the reason.
"""

from __future__ import annotations

from ckpt_tools.sglang_models._releases import installed

#: The SGLang beside which this is imported; ``None`` when there is none, and then only the pure parts can be used.
RELEASE = installed()
