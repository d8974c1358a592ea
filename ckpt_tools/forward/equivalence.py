"""Whether two drafts compute the same function: a conversion's source and its result, each under the framework that
runs it, on the same inputs over the recursive steps; and, where they don't, the likeliest reason.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.forward._torch import functional, torch
from ckpt_tools.forward.heads import build
from ckpt_tools.forward.parts import NOTHING, Table, TargetParts
from ckpt_tools.forward.spec import BLOCK_ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckpt_tools.forward.spec import HeadSpec

# Largest difference of a logit, over the largest logit, that float32 rounding explains.
FLOAT_ERROR = 1e-4


@dataclass(frozen=True)
class Side:
    """A draft under one framework's semantics.

    Attributes:
        spec: As :func:`~ckpt_tools.forward.spec.resolve` decided it.
        tensors: Canonical tensors, float32.
        target: What it borrows.
        capture_layers: 0-based target layers whose outputs it is fed, ascending; `None` for a head that takes one
            state.
    """

    spec: HeadSpec
    tensors: Mapping[str, torch.Tensor]
    target: TargetParts = NOTHING
    capture_layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Inputs:
    """Tokens and target states that both sides see.

    Attributes:
        tokens: [B, N], row i is the token after position i.
        states: Target layer -> [B, N, target hidden]; key `None` holds the one state of EAGLE-1 and MTP heads.
    """

    tokens: torch.Tensor
    states: Mapping[int | None, torch.Tensor]

    def aux(self, side: Side) -> torch.Tensor:
        """The states that `side` is fed, concatenated."""
        if side.capture_layers is None:
            return self.states[None]
        return torch.cat([self.states[layer] for layer in side.capture_layers], dim=-1)


@dataclass(frozen=True)
class StepDifference:
    """How far apart the two are at one step (0 is the first drafted token).

    Attributes:
        top1_agreement: Share of rows whose likeliest target id is the same.
        kl: Mean KL divergence of the result's distribution from the source's, nats.
        max_abs_diff: Largest difference of a logit of the same target id.
        scale: Largest logit of the source.
    """

    step: int
    top1_agreement: float
    kl: float
    max_abs_diff: float
    scale: float


@dataclass(frozen=True)
class Cause:
    """A single change of the result's side, and what it leaves of the difference.

    Attributes:
        name: What was changed: a semantic, the capture order, d2t, a tensor.
        explains: Whether the sides agree with it.
        remaining: Largest relative difference left.
        kl: Mean KL over all steps left.
    """

    name: str
    explains: bool
    remaining: float
    kl: float


@dataclass(frozen=True)
class Proof:
    """The verdict.

    Attributes:
        proven: The two are bit-equal or within float error at every step.
        identical: They are bit-equal.
        per_step: Differences by step.
        causes: Empty when proven, else single changes by what they leave, best first.
    """

    proven: bool
    identical: bool
    per_step: tuple[StepDifference, ...]
    causes: tuple[Cause, ...] = ()

    @property
    def cause(self) -> Cause | None:
        """The likeliest cause: the change that explains most, if it explains anything."""
        return self.causes[0] if self.causes else None


def random_inputs(
    sides: Sequence[Side],
    *,
    batch: int = 2,
    length: int = 24,
    vocab_size: int,
    rms: Sequence[float] | float = 1.0,
    seed: int = 0,
) -> Inputs:
    """Seeded tokens and states for all the layers that `sides` capture.

    Args:
        sides: Both of a comparison.
        batch, length: Size.
        vocab_size: Tokens are drawn from it.
        rms: Root mean square of the states, one for all or one per captured layer of the first side.
        seed: Of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab_size, (batch, length), generator=generator)
    states: dict[int | None, torch.Tensor] = {}
    scales = dict(enumerate([rms] if isinstance(rms, float) else rms))
    for side in sides:
        width = side.spec.target_hidden_size
        layers: Sequence[int | None] = side.capture_layers if side.capture_layers is not None else (None,)
        for i, layer in enumerate(layers):
            if layer not in states:
                drawn = torch.randn(batch, length, width, generator=generator)
                states[layer] = drawn * scales.get(i, scales[0])
    return Inputs(tokens, states)


@dataclass(frozen=True)
class _Run:
    """Logits of one side, with the target ids of its columns."""

    logits: torch.Tensor
    ids: torch.Tensor = field(repr=False)


def _steps(side: Side, steps: int) -> int:
    if side.spec.algorithm in BLOCK_ALGORITHMS and side.spec.block_size is not None:
        return min(steps, side.spec.block_size - (0 if side.spec.sample_from_anchor else 1))
    return steps


@torch.no_grad()
def _run(side: Side, inputs: Inputs, steps: int) -> _Run:
    head = build(side.spec, side.tensors, side.target)
    logits = head.rows(inputs.tokens, inputs.aux(side), steps)
    return _Run(logits, head.to_target(torch.arange(logits.shape[-1])))


def _aligned(source: _Run, result: _Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Both logits over the target ids that either knows; -inf where a side can't say an id."""
    if source.ids.equal(result.ids):
        return source.logits, result.logits
    size = int(max(source.ids.max(), result.ids.max())) + 1

    def scatter(run: _Run) -> torch.Tensor:
        wide = run.logits.new_full((*run.logits.shape[:-1], size), -torch.inf)
        inside = run.ids >= 0
        return wide.index_copy(-1, run.ids[inside], run.logits[..., inside])

    return scatter(source), scatter(result)


def compare(source: _Run, result: _Run) -> tuple[StepDifference, ...]:
    """Differences by step; rows whose true tokens run out at a step are left out of it."""
    out = []
    left, right = _aligned(source, result)
    count = left.shape[1]
    for step in range(left.shape[2]):
        rows = slice(0, max(1, count - step))
        a, b = left[:, rows, step], right[:, rows, step]
        both = a.isfinite() & b.isfinite()
        difference = torch.where(both, a - b, 0.0).abs()
        log_a, log_b = functional.log_softmax(a, -1), functional.log_softmax(b, -1)
        # an id that the result can't say counts as one that it says with the smallest float's probability
        floor = math.log(torch.finfo(log_b.dtype).tiny)
        terms = log_a.exp() * (log_a - log_b.clamp(min=floor))
        kl = torch.where(a.isfinite(), terms, 0.0).sum(-1).mean()
        broken = bool((a.isnan() | b.isnan()).any()) or not bool(both.any())
        out.append(
            StepDifference(
                step=step,
                top1_agreement=float((a.argmax(-1) == b.argmax(-1)).float().mean()),
                kl=float("nan") if broken else max(0.0, float(kl)),
                max_abs_diff=float("nan") if broken else float(difference.max()),
                scale=float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else float("nan"),
            )
        )
    return tuple(out)


def _remaining(steps: Sequence[StepDifference]) -> float:
    worst = 0.0
    for s in steps:
        relative = s.max_abs_diff / s.scale if s.scale else s.max_abs_diff
        # NaN compares with nothing: it is as far as it gets
        worst = max(worst, relative if relative == relative else float("inf"))
    return worst


def _agrees(steps: Sequence[StepDifference], tolerance: float) -> bool:
    return _remaining(steps) <= tolerance and all(s.kl <= tolerance for s in steps)


FLAGS = (
    "norm_before_residual",
    "norm_output",
    "input_norm",
    "fc_norm",
    "qkv_bias",
    "o_bias",
    "mlp_bias",
    "fc_bias",
    "skip_fc",
    "qk_norm",
    "lost_upper_norms",
    "rope",
    "default_theta",
    "eps",
    "windows",
    "causal",
    "window_from",
    "mask_token_id",
    "sample_from_anchor",
    "num_layers",
    "num_heads",
)
NAMES = {"input_norm": "norm_before_fc", "lost_upper_norms": "layer norm names", "default_theta": "rope base"}


def _flags(source: Side, result: Side) -> Iterator[tuple[str, Side]]:
    """Semantics in which the sides differ, each set to the source's, then all; then flags that flip on their own."""
    tensors = {**source.tensors, **result.tensors}
    changes: dict[str, Any] = {}
    names = []
    for flag in FLAGS:
        wanted = getattr(source.spec, flag)
        idle = flag == "window_from" and not any((*source.spec.windows, *result.spec.windows))
        if wanted == getattr(result.spec, flag) or idle:
            continue
        name = "rope base" if flag == "rope" and _only_base(source, result) else NAMES.get(flag, flag)
        changes[flag] = wanted
        names.append(name)
        change: dict[str, Any] = {flag: wanted}
        yield name, replace(result, spec=replace(result.spec, **change), tensors=tensors)
    if len(changes) > 1:
        yield " and ".join(names), replace(result, spec=replace(result.spec, **changes), tensors=tensors)
    for flag in ("norm_before_residual", "norm_output"):
        if flag not in changes:
            change = {flag: not getattr(result.spec, flag)}
            yield f"{flag} (flipped)", replace(result, spec=replace(result.spec, **change))


def _only_base(source: Side, result: Side) -> bool:
    return replace(source.spec.rope, theta=None) == replace(result.spec.rope, theta=None)


def _captures(source: Side, result: Side) -> Iterator[tuple[str, Side]]:
    if source.capture_layers is None or result.capture_layers is None:
        return
    if source.capture_layers != result.capture_layers:
        yield "capture layers", replace(result, capture_layers=source.capture_layers)
    layers = result.capture_layers
    if len(layers) <= 4:
        for order in itertools.permutations(layers):
            if order not in (layers, source.capture_layers):
                yield f"capture order {list(order)}", replace(result, capture_layers=order)


def _vocabulary(source: Side, result: Side) -> Iterator[tuple[str, Side]]:
    mine, theirs = result.tensors.get("d2t"), source.tensors.get("d2t")
    if theirs is not None and result.spec.draft_vocab_size == source.spec.draft_vocab_size:
        differs = mine is None or not result.spec.d2t or not torch.equal(mine.long(), theirs.long())
        if differs:
            tensors = {**result.tensors, "d2t": theirs}
            absolute = mine is not None and torch.equal(
                mine.long(), theirs.long() + torch.arange(len(theirs))
            )
            name = "d2t (absolute ids where offsets belong)" if absolute else "d2t"
            yield name, replace(result, spec=replace(result.spec, d2t=True), tensors=tensors)
    if source.spec.embedding != result.spec.embedding:
        lookup = (
            Table(source.tensors["embed_tokens.weight"])
            if source.spec.embedding == "own"
            else source.target.embed
        )
        spec = replace(result.spec, embedding="target")
        yield "embedding", replace(result, spec=spec, target=replace(result.target, embed=lookup))
    if source.spec.head != result.spec.head:
        head = source.tensors.get("lm_head.weight") if source.spec.head == "own" else source.target.head
        spec = replace(result.spec, head="target", draft_vocab_size=source.spec.draft_vocab_size)
        yield "lm_head", replace(result, spec=spec, target=replace(result.target, head=head))


def _weights(source: Side, result: Side) -> Iterator[tuple[str, Side]]:
    """Tensors that differ, each set to the source's."""
    for name, wanted in source.tensors.items():
        mine = result.tensors.get(name)
        if name == "d2t" or (mine is not None and mine.shape == wanted.shape and torch.equal(mine, wanted)):
            continue
        if mine is None or mine.shape == wanted.shape:
            yield f"tensor {name}", replace(result, tensors={**result.tensors, name: wanted})


def _causes(
    source: Side, result: Side, inputs: Inputs, steps: int, tolerance: float, before: Sequence[StepDifference]
) -> tuple[Cause, ...]:
    wanted = _run(source, inputs, steps)
    found = []
    worst, base = _remaining(before), sum(s.kl for s in before)
    toggles = itertools.chain(
        _flags(source, result),
        _captures(source, result),
        _vocabulary(source, result),
        _weights(source, result),
    )
    for name, changed in toggles:
        after = compare(wanted, _run(changed, inputs, steps))
        left, kl = _remaining(after), sum(s.kl for s in after) / len(after)
        helps = kl * len(after) < 0.9 * base or left < 0.9 * worst or base != base
        if helps and left == left:
            found.append(Cause(name, _agrees(after, tolerance), left, kl))
    # of several changes that explain everything, the one found first is a semantic rather than a tensor
    found.sort(key=lambda c: (not c.explains, 0.0 if c.explains else c.kl))
    return tuple(found)


def prove(source: Side, result: Side, inputs: Inputs, steps: int, *, tolerance: float = FLOAT_ERROR) -> Proof:
    """Runs both sides on the same inputs and compares every step.

    Args:
        source: The draft as it was trained.
        result: What is served.
        inputs: What both see; its states must hold all layers that either captures.
        steps: Recursive steps.
        tolerance: Largest relative difference that still counts as equal; more than the default only where
            the conversion changed the dtype.
    """
    steps = min(_steps(source, steps), _steps(result, steps))
    left, right = _run(source, inputs, steps), _run(result, inputs, steps)
    per_step = compare(left, right)
    identical = left.ids.equal(right.ids) and torch.equal(left.logits, right.logits)
    if identical or _agrees(per_step, tolerance):
        return Proof(True, identical, per_step)
    return Proof(False, False, per_step, _causes(source, result, inputs, steps, tolerance, per_step))
