"""vLLM's two model runners, which differ for drafts.

V2 (``v1/worker/gpu``) is the default where Triton is present; V1 (``v1/worker/gpu_model_runner.py``) takes what V2
can't: every P-EAGLE, among others (``config/vllm.py:3053-3087`` of 0.33.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines.vllm.refusal import refuse_config

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.config import Resolved
    from ckpt_tools.engines.vllm.contract import Contract

# v1/worker/gpu/spec_decode/__init__.py: the drafts whose candidate head only V2 calls
CANDIDATE_HEADS = frozenset({"DFlash2DraftModel", "DFlash2BeamDraftModel", "LiLiCorrDraftModel"})


def default_runner(resolved: Resolved, contract: Contract) -> str:
    """The runner of a default start: V2, but V1 for parallel drafting outside the DFlash family."""
    if "V2" not in contract.runners:
        return "V1"
    return "V1" if resolved.parallel_drafting and resolved.method not in ("dflash", "dspark") else "V2"


def check_runner(resolved: Resolved, runner: str) -> None:
    """What V1 refuses at start.

    Raises:
        Refused: The draft needs V2.
    """
    if runner != "V1":
        return
    what = []  # config/vllm.py:3089-3151 of 0.33.0
    if resolved.method == "dspark":
        what.append("dspark speculative decoding")
    if resolved.method == "dflash":
        slides = [kind == "sliding_attention" for kind in resolved.fields.get("layer_types") or ()]
        if 0 < sum(slides) < len(slides):
            what.append("mixed sliding/full dflash drafts")
        if resolved.architecture in CANDIDATE_HEADS:
            what.append("DFlash candidate-head drafts")
    if what:
        raise refuse_config("ValueError", f"Model Runner V1 does not support: {', '.join(what)}")
