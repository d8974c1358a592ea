"""Whether speculation pays: acceptance profiles and the cost of drafting. Arithmetic only, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Speedup:
    """Tokens per unit of target time, with a draft of that depth over without one."""

    depth: int
    expected_length: float
    speedup: float


@dataclass(frozen=True)
class Payoff:
    """Speedups by depth.

    Attributes:
        by_depth: Ascending depths.
        best_depth: Where it is largest.
        pays: Whether that is more than 1.
    """

    by_depth: tuple[Speedup, ...]
    best_depth: int
    pays: bool


def expected_length(conditional: Sequence[float], depth: int | None = None) -> float:
    """Tokens per verification, the target's own included, from per-position conditional acceptance.

    1 + a₁ + a₁a₂ + … up to `depth` (all positions without one). 1.0 means that nothing is accepted.
    """
    total, reached = 1.0, 1.0
    for rate in conditional[:depth]:
        reached *= rate
        total += reached
    return total


def payoff(
    lengths: Sequence[tuple[int, float]],
    cost_ratio: float,
    *,
    parallel: bool = False,
    verify_ratio: float = 0.0,
) -> Payoff:
    """Speedups for expected lengths by depth.

    A round costs one target step plus the drafting: `depth` draft steps, or one where the head drafts all at
    once. The target's step is taken to cost the same for one token as for a few, since reading its weights
    dominates; `verify_ratio` adds a part of a step per drafted token where it doesn't.

    Args:
        lengths: (depth, expected length) pairs.
        cost_ratio: Time of one draft step over that of one target step.
        parallel: The head drafts all tokens in one pass.
        verify_ratio: Extra target time per drafted token, in target steps.
    """
    rows = []
    for depth, length in sorted(lengths):
        passes = 1 if parallel else depth
        rows.append(Speedup(depth, length, length / (1 + passes * cost_ratio + depth * verify_ratio)))
    best = max(rows, key=lambda row: row.speedup)
    return Payoff(tuple(rows), best.depth, best.speedup > 1)
