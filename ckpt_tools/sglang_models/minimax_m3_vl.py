"""MiniMax-M3 with vision as a target on SGLang 0.5.16 and 0.5.17: the hooks of 0.5.18 (models/minimax_m3_vl.py:203-245).

Its decoder asks each layer whether to capture (models/minimax_m3.py 0.5.16:1398).
"""

from __future__ import annotations

from ckpt_tools.sglang_models import RELEASE
from ckpt_tools.sglang_models._targets import CapturingByLayer, wrappers

EntryClass = wrappers(RELEASE, CapturingByLayer, "MiniMaxM3SparseForConditionalGeneration")
