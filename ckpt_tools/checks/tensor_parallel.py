"""TPX: tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("TPX001", "heads-not-divisible", Severity.ERROR, needs=("draft", "tp"))
def heads(ctx: Context) -> Iterator[Hit]:
    """The draft can't be split over this many GPUs.

    Checks: tp divides the attention heads and intermediate_size; and divides, or is a multiple of, the key/value heads.
    Why: SGLang stops with a bare assertion, vLLM with a message; the draft runs on the target's tensor-parallel group.
    Example: num_attention_heads 4 can't be split over --tp 3; possible: 1, 2, 4
    Fix: Serve with one of the sizes named.
    References: sglang 0.5.23 srt/models/llama.py:183-193; vllm 0.33.0 config/model.py:1559.
    """
    assert ctx.draft is not None and ctx.tp is not None
    facts, tp = ctx.draft.facts, ctx.tp
    fits = [n for n in range(1, 65) if not _problem(ctx, n)]
    problem = _problem(ctx, tp)
    if problem is None or facts.num_attention_heads is None:
        return
    yield Hit(
        f"{problem} can't be split over --tp {tp}; possible: {', '.join(map(str, fits[:8])) or 'none'}",
        pointer="/num_attention_heads" if "heads" in problem else "/intermediate_size",
        hint=f"serve with --tp {max((n for n in fits if n <= tp), default=1)}",
    )


def _problem(ctx: Context, tp: int) -> str | None:
    assert ctx.draft is not None
    facts = ctx.draft.facts
    a, k, i, h = (
        facts.num_attention_heads,
        facts.num_key_value_heads,
        facts.intermediate_size,
        facts.hidden_size,
    )
    if a is not None and a % tp:
        return f"num_attention_heads {a}"
    if facts.layer_type == "mla":
        return f"hidden_size {h}" if h is not None and h % tp else None
    if k is not None and k % tp and tp % k:
        return f"num_key_value_heads {k}"
    if i is not None and i % tp:
        return f"intermediate_size {i}"
    return None
