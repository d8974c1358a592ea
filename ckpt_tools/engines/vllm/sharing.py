"""Whose embedding and head a served draft uses: its own or the target's.

After loading, vLLM replaces what the draft doesn't bring (``v1/worker/gpu/spec_decode/eagle/utils.py:18-119`` on V2,
``v1/spec_decode/llm_base_proposer.py:1415-1558`` on V1). What the draft does bring survives unless it equals the
target's, in which case the two are one anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.contract import Contract

Owner = Literal["draft", "target", "nobody"]


@dataclass(frozen=True)
class Shared:
    """Who owns a matrix at run time.

    Attributes:
        owner: ``nobody`` is uninitialised memory.
        problem: What is wrong with that choice for this target, or ``None``.
        reference: Where the rule was read.
    """

    owner: Owner
    problem: str | None
    reference: str


def embedding(
    contract: Contract, runner: str, own: bool, draft: tuple[int, int], target: tuple[int | None, int | None]
) -> Shared:
    """The input embedding.

    Args:
        contract: The release.
        runner: ``V1`` or ``V2``.
        own: A tensor whose name holds ``embed_tokens`` is in the file.
        draft: (vocabulary, hidden size) of the draft.
        target: The same of the target, ``None`` where unknown.
    """
    fits = target[1] is None or target[1] == draft[1]
    if not contract.own_embed_kept:
        replaced = (target[0] is None or target[0] == draft[0]) and fits
        return Shared(
            "target" if replaced else "draft" if own else "nobody", None, "v1/spec_decode/eagle.py:616"
        )
    if own:
        return Shared("draft", None, "v1/worker/gpu/spec_decode/eagle/utils.py:18-34")
    if fits:
        return Shared("target", None, "v1/worker/gpu/spec_decode/eagle/utils.py:45-77")
    width = f"the target's embedding is {target[1]} wide, the draft {draft[1]}"
    if runner == "V1":
        return Shared(
            "nobody",
            f"{width}; V1 keeps uninitialised memory",
            "v1/spec_decode/llm_base_proposer.py:1476-1498",
        )
    return Shared(
        "target", f"{width}; the first forward fails", "v1/worker/gpu/spec_decode/eagle/utils.py:45-77"
    )


def head(contract: Contract, own: bool, draft_vocab: int, target_vocab: int | None) -> Shared:
    """The output head; see :func:`embedding`. No size is checked."""
    if own:
        return Shared("draft", None, "v1/worker/gpu/spec_decode/eagle/utils.py:107-119")
    if not contract.lm_head_shared:
        return Shared("nobody", "this release never shares the head", "v1/spec_decode/eagle.py:636")
    problem = None
    if target_vocab is not None and target_vocab != draft_vocab:
        problem = f"of the target's {target_vocab} rows the first {draft_vocab} score the draft's own ids"
    return Shared("target", problem, "v1/worker/gpu/spec_decode/eagle/utils.py:107-119")


def kept(own: bool) -> Shared:
    """A matrix that is never the target's: DSpark with another vocabulary."""
    return Shared("draft" if own else "nobody", None, "v1/worker/gpu/spec_decode/dspark/utils.py:131-149")
