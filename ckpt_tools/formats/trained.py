"""What two trainers do whatever a config says: the rope base that EAGLE's and AngelSlim's drafts are trained with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats.base import Caution, Implied
from ckpt_tools.model import Rope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

BASE = 10000.0
ALGORITHMS = ("eagle3",)


def mrope(facts: DraftFacts) -> bool:
    """Whether the rope is a multimodal one, the only kind whose base is read from the config."""
    scaling = (facts.rope.scaling if facts.rope else None) or {}
    return scaling.get("rope_type") == "mrope" or "mrope_section" in scaling


def _other_base(facts: DraftFacts, config: Mapping[str, Any]) -> str | None:  # noqa: ARG001
    theta = facts.rope.theta if facts.rope else None
    if theta in (None, BASE) or mrope(facts):
        return None
    return (
        f"rope_theta is {theta:g}, and this framework's training builds its rotary embedding with base 10000 whatever the config "
        "says: engines that honour the field rotate otherwise than training did"
    )


def _base(facts: DraftFacts, algorithm: str) -> DraftFacts:
    rope = facts.rope or Rope()
    if algorithm not in ALGORITHMS or rope.theta is not None:
        return facts
    return replace(facts, rope=replace(rope, theta=BASE))


#: The config states another base than training used. Measured on a Qwen3-4B draft of AngelSlim's: accept length 2.387 at 1e6,
#: 2.497 at 1e4 (sfllm PR #32).
BASE_10000 = Caution(
    "ROP005",
    _other_base,
    "--repair rope-10000 writes the base of training",
    pointer="/rope_theta",
    repair="rope-10000",
    algorithms=ALGORITHMS,
)
IMPLIED_10000 = Implied(
    _base,
    "rope_theta isn't stated; training uses 10000 (EAGLE cb7e0841 eagle/traineagle3/cnets.py:101-113, AngelSlim 67394ce5 llama_eagle3.py _init_rope)",
)
