"""How much of a draft a target accepts, from recorded states alone.

Under greedy decoding a proposal is accepted while it equals the target's own token. So feeding the head the true
tokens shows what its own recursion would propose wherever that matters: at the positions that are reached.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_tools.forward.heads import Head
    from ckpt_tools.forward.states import States, Text


@dataclass(frozen=True)
class Position:
    """One drafted position.

    Attributes:
        position: 1 is the first drafted token.
        conditional: Share accepted of those reached while serving greedily; `None` when none was reached.
        reached: How many were reached.
        top1, topk: Share of all rows whose true token is the head's first, or among its first k, choices.
    """

    position: int
    conditional: float | None
    reached: int
    top1: float
    topk: float


@dataclass(frozen=True)
class Length:
    """Expected tokens per verification at one depth, the target's own included, with a 95 % interval."""

    depth: int
    mean: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Acceptance:
    """What :func:`evaluate` measured."""

    texts: int
    tokens: int
    topk: int
    per_position: tuple[Position, ...]
    expected_length: tuple[Length, ...]


@dataclass(frozen=True)
class Matches:
    """Per text: whether row i's proposal for position s is the true token.

    Attributes:
        hits: bool [rows, depth]; row i proposes tokens i + 2, i + 3, ….
        likely: bool, the same for the head's first k choices.
        start: First row that serving drafts from.
    """

    hits: torch.Tensor
    likely: torch.Tensor
    start: int

    @property
    def rows(self) -> int:
        """Rows with a true token for their first proposal."""
        return self.hits.shape[0]


@torch.no_grad()
def matches(head: Head, text: Text, depth: int, topk: int = 1) -> Matches:
    """Runs the head over one text with the true tokens fed in."""
    tokens = text.tokens.unsqueeze(0)
    features = text.features(head.spec)
    weight = getattr(head, "head", features)
    aux = features[:-1].to(device=weight.device, dtype=weight.dtype).unsqueeze(0)
    rows = tokens[:, 1:].to(weight.device)
    logits = head.rows(rows, aux, depth)[0]
    best = logits.topk(min(topk, logits.shape[-1]), dim=-1).indices
    proposed = head.to_target(best)
    count = rows.shape[1] - 1
    true = torch.full((count, depth), -1, dtype=torch.long, device=rows.device)
    for step in range(min(depth, count)):
        true[: count - step, step] = rows[0, 1 + step :]
    same = proposed[:count] == true.unsqueeze(-1)
    return Matches(same[..., 0].cpu(), same.any(-1).cpu(), text.start - 1)


def serve(hits: torch.Tensor, start: int, depth: int) -> tuple[list[int], list[int]]:
    """(accepted, reached per position) of a greedy server that walks one text with drafts of `depth`.

    It drafts from row `start`; after n accepted tokens it goes on n + 1 rows further. The last rounds, whose
    proposals would pass the end of the text, aren't counted.
    """
    runs = hits[:, :depth].long().cumprod(1).sum(1).tolist()
    accepted, reached = [], [0] * depth
    row = start
    while row + depth <= len(runs):
        got = runs[row]
        accepted.append(got)
        for position in range(min(got + 1, depth)):
            reached[position] += 1
        row += got + 1
    return accepted, reached


def _interval(per_text: Sequence[tuple[int, int]], resamples: int, seed: int) -> tuple[float, float]:
    """95 % interval of 1 + accepted / rounds, resampling whole texts."""
    rng = random.Random(seed)
    means = []
    for _ in range(resamples):
        drawn = [per_text[rng.randrange(len(per_text))] for _ in per_text]
        rounds = sum(r for _, r in drawn)
        means.append(1 + sum(a for a, _ in drawn) / rounds)
    means.sort()
    return means[int(0.025 * (resamples - 1))], means[int(0.975 * (resamples - 1))]


def evaluate(
    head: Head, states: States, depth: int, *, topk: int = 1, resamples: int = 1000, seed: int = 0
) -> Acceptance:
    """Acceptance of `head` on recorded states, for every depth up to `depth`.

    Args:
        head: A head of the dtype and device to measure on.
        states: The recording; its texts are taken as the target's own greedy output.
        depth: Most tokens drafted per verification.
        topk: Branches per position. Above 1 the lengths are those of a tree that keeps all branches, which
            a server with fewer draft tokens cuts.
        resamples: Bootstrap draws for the intervals.
        seed: Of the bootstrap.

    Raises:
        InputError: No text is long enough to draft `depth` tokens.
    """
    found = [matches(head, text, depth, topk) for text in states.texts if len(text.tokens) > 2]
    found = [m for m in found if m.start + depth <= m.rows]
    if not found:
        raise InputError(
            f"no text is long enough to draft {depth} tokens after its prompt",
            hint="record longer texts or ask for a smaller depth",
        )
    lengths, conditional, reached_at = [], [0] * depth, [0] * depth
    for d in range(1, depth + 1):
        walks = [serve(m.likely if topk > 1 else m.hits, m.start, d) for m in found]
        per_text = [(sum(accepted), len(accepted)) for accepted, _ in walks]
        rounds = sum(r for _, r in per_text)
        low, high = _interval(per_text, resamples, seed)
        lengths.append(Length(d, 1 + sum(a for a, _ in per_text) / rounds, low, high, rounds))
        if d == depth:
            for accepted, reached in walks:
                for position in range(depth):
                    reached_at[position] += reached[position]
                    conditional[position] += sum(n > position for n in accepted)
    positions = []
    for s in range(depth):
        valid = [m.hits[: m.rows - s, s] for m in found]
        likely = [m.likely[: m.rows - s, s] for m in found]
        positions.append(
            Position(
                position=s + 1,
                conditional=conditional[s] / reached_at[s] if reached_at[s] else None,
                reached=reached_at[s],
                top1=float(torch.cat(valid).float().mean()),
                topk=float(torch.cat(likely).float().mean()),
            )
        )
    return Acceptance(
        texts=len(found),
        tokens=sum(m.rows for m in found),
        topk=topk,
        per_position=tuple(positions),
        expected_length=tuple(lengths),
    )
