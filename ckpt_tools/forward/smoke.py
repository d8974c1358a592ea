"""Runs a draft head on small inputs and checks what comes out; numbers, each with its bound.

The bounds are wide: they are for heads that compute nonsense, not for weak ones. They were set on a trained tiny head and
its mutants, and on heads of random weights (`tests/unit/forward/test_forward_smoke.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckpt_tools.forward._torch import functional, torch
from ckpt_tools.forward.accept import matches
from ckpt_tools.forward.bench import StepTime, time_step
from ckpt_tools.forward.equivalence import random_inputs
from ckpt_tools.forward.heads import BlockHead, build
from ckpt_tools.forward.parts import Rows, Table, TargetParts
from ckpt_tools.forward.trained import Signs, signs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ckpt_tools.forward.equivalence import Side
    from ckpt_tools.forward.heads import Drafted, Head
    from ckpt_tools.forward.layers import Attention, MlaAttention
    from ckpt_tools.forward.parts import Lookup
    from ckpt_tools.forward.states import States

# A change of an input that moves the logits by less than this part of their spread is none.
ALIVE = 1e-3
# Spread of the logits over the vocabulary, as a standard deviation, below which all tokens are alike.
SPREAD = 1e-2
# Times by which a step's state, or the spread of its logits, may differ from the first step's.
DRIFT = 20.0
# Difference of a lower precision from float32, as a part of the logits' spread.
PRECISION = 0.25
# Difference between a batch and single runs in float32, as a part of the logits' spread.
BATCH = 1e-4
# What an untrained or scrambled head doesn't reach; see trained.py.
GAINS = 1e-3
OUTLIER = 1.1
COUPLING = 2.5
# Share of true next tokens that a trained head finds on recorded states, over what its best constant guess would.
LEARNED = 2.0


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: What was checked; fixed.
        ok: Whether it held.
        value: What was measured.
        bound: What it was held against.
        detail: In words: what was found, and where.
    """

    name: str
    ok: bool
    value: float | None
    bound: float | None
    detail: str


@dataclass(frozen=True)
class Damage:
    """What parameters that an engine leaves unfilled do to the head.

    Attributes:
        parameters: Canonical names that nothing fills.
        top1_agreement: Share of proposals that stay as they were, per step.
        kl: Mean KL divergence from the complete head, nats.
    """

    parameters: tuple[str, ...]
    top1_agreement: tuple[float, ...]
    kl: float


@dataclass(frozen=True)
class Smoke:
    """Result of :func:`smoke`.

    Attributes:
        device, dtype: Where and in what the head ran beside float32.
        steps, tokens, batch: Size of the run.
        states: Where the hidden states came from, in words.
        checks: In a fixed order.
        time: Step latency and its floor; `None` unless asked for.
        peak_bytes: Most memory that tensors took on the device (on a CPU: of the weights).
        signs: Statistics over the weights.
        damage: With unfilled parameters only.
    """

    device: str
    dtype: str
    steps: int
    tokens: int
    batch: int
    states: str
    checks: tuple[Check, ...]
    time: StepTime | None
    peak_bytes: int
    signs: Signs
    damage: Damage | None

    @property
    def ok(self) -> bool:
        """Whether all checks held."""
        return all(check.ok for check in self.checks)


def cast(side: Side, dtype: torch.dtype, device: torch.device) -> Side:
    """The side with every floating-point tensor in `dtype`, on `device`."""

    def move(t: torch.Tensor) -> torch.Tensor:
        return t.to(device=device, dtype=dtype) if t.is_floating_point() else t.to(device)

    def lookup(embed: Lookup | None) -> Lookup | None:
        if embed is None:
            return None
        if isinstance(embed, Table):
            return Table(move(embed.weight))
        return lambda ids: move(embed(ids))

    head = side.target.head
    target = TargetParts(lookup(side.target.embed), None if head is None else move(head))
    return replace(side, tensors={k: move(v) for k, v in side.tensors.items()}, target=target)


def _attentions(head: Head) -> Iterator[Attention | MlaAttention]:
    layers = getattr(head, "layers", None) or [head.layer]  # type: ignore[attr-defined]  # MTP has one
    for layer in layers:
        yield layer.attention


def _unplaced(head: Head, run: Callable[[], Drafted]) -> Drafted:
    """`run` with all positions alike."""
    kept = [(a, a.rope) for a in _attentions(head)]
    for attention, rope in kept:
        attention.rope = replace(rope, inverse=torch.zeros_like(rope.inverse))
    try:
        return run()
    finally:
        for attention, rope in kept:
            attention.rope = rope


def _plain(logits: torch.Tensor) -> torch.Tensor:
    """Logits with the ids that a selector excludes (-inf) at the least of the others."""
    excluded = logits == -math.inf
    least = logits.masked_fill(excluded, math.inf).amin(-1, keepdim=True)
    return torch.where(excluded, least, logits)


def _relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Root mean square difference over the spread of `wanted` over the vocabulary."""
    found, wanted = _plain(found), _plain(wanted)
    spread = float(wanted.std(-1).mean())
    difference = float((found - wanted).square().mean().sqrt())
    return difference / spread if spread > 0 else (0.0 if difference == 0 else math.inf)


def _kl(found: torch.Tensor, wanted: torch.Tensor) -> float:
    p, q = functional.log_softmax(wanted, -1), functional.log_softmax(found, -1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def _finite(head: Head, run: Callable[[], Drafted], what: str) -> tuple[Drafted, Check]:
    """Runs with an observer that remembers the first stage that isn't finite."""
    bad: list[str] = []

    def observe(name: str, x: torch.Tensor) -> None:
        if not bad and not bool(x.isfinite().all()):
            bad.append(name)

    head.observer = observe
    try:
        drafted = run()
    finally:
        head.observer = None
    # a selector puts -inf where it excludes; NaN and +inf are never meant
    broken = drafted.logits.isnan() | (drafted.logits == math.inf)
    if not bad and bool(broken.any()):
        bad.append("logits")
    detail = f"not finite from stage {bad[0]} on" if bad else "all stages are finite"
    return drafted, Check(f"finite-{what}", not bad, None, None, detail)


def _spread(drafted: Drafted) -> list[Check]:
    logits = _plain(drafted.logits)
    spread = float(logits.std(-1).min())
    vocabulary = logits.shape[-1]
    entropy = float(-(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean() / math.log(vocabulary))
    return [
        Check(
            "logits-not-constant",
            spread > SPREAD,
            spread,
            SPREAD,
            f"standard deviation of the logits over {vocabulary} draft ids is at least {spread:.3g}",
        ),
        Check(
            "logits-not-uniform",
            entropy < 0.999,
            entropy,
            0.999,
            f"entropy is {entropy:.3f} of the most possible",
        ),
    ]


def _ids(head: Head, target_vocab: int | None, columns: int) -> Check:
    size = target_vocab
    ids = head.to_target(torch.arange(columns, device=head.head.device))  # type: ignore[attr-defined]
    outside = int((ids < 0).sum()) + (int((ids >= size).sum()) if size is not None else 0)
    double = len(ids) - len(set(ids.tolist()))
    detail = f"{len(ids)} draft ids, {outside} outside the target's {size} ids, {double} double"
    return Check("ids-map-to-target", outside + double == 0, float(outside + double), 0.0, detail)


def _alive(name: str, changed: torch.Tensor, base: torch.Tensor, what: str) -> Check:
    value = _relative(changed, base)
    alive = value > ALIVE or not math.isfinite(value)
    detail = f"changing {what} moves the logits by {value:.3g} of their spread"
    return Check(name, alive, value, ALIVE, detail if alive else f"dead input: {detail}")


def _inputs_alive(
    head: Head, tokens: torch.Tensor, aux: torch.Tensor, base: Drafted, side: Side, steps: int
) -> list[Check]:
    """Each captured layer, the embedding and the position, changed one at a time."""
    checks = []
    forced = base.ids[:, :-1]
    parts = aux.chunk(side.spec.num_aux, dim=-1)
    names: tuple[object, ...] = side.capture_layers or tuple(range(len(parts)))
    for j, part in enumerate(parts):
        other = part.roll(1, dims=1).flip(0) if part.shape[0] > 1 else part.roll(1, dims=1)
        changed = torch.cat([*parts[:j], other, *parts[j + 1 :]], dim=-1)
        logits = head.draft(tokens, changed, steps, forced=forced).logits
        what = f"the states of captured layer {names[j]}"
        checks.append(_alive(f"alive-captured-{j}", logits, base.logits, what))
    other_tokens = tokens.flip(1)
    logits = head.draft(other_tokens, aux, steps, forced=forced).logits
    checks.append(_alive("alive-embedding", logits, base.logits, "the tokens"))
    placed = _unplaced(head, lambda: head.draft(tokens, aux, steps, forced=forced))
    checks.append(_alive("alive-position", placed.logits, base.logits, "the positions"))
    return checks


def _drift(drafted: Drafted) -> Check:
    state = drafted.hidden.float().square().mean((0, 2)).sqrt()
    spread = _plain(drafted.logits).std(-1).mean(0)
    worst = 1.0
    for values in (state, spread):
        ratio = values / values[0].clamp(min=1e-20)
        worst = max(worst, float(ratio.max()), 1 / max(float(ratio.min()), 1e-20))
    return Check(
        "steps-stable",
        worst <= DRIFT,
        worst,
        DRIFT,
        f"state or logits of a later step differ from the first's by a factor of {worst:.3g}",
    )


def _learned(head: Head, states: States) -> Check:
    hits, tokens = [], []
    for text in states.texts[:16]:
        if len(text.tokens) > 3:
            hits.append(matches(head, text, 1).hits[:, 0])
            tokens.append(text.tokens)
    found = float(torch.cat(hits).float().mean())
    constant = float(torch.cat(tokens).bincount().max() / sum(len(t) for t in tokens))
    return Check(
        "learned-on-states",
        found > LEARNED * constant,
        found,
        LEARNED * constant,
        f"finds {found:.1%} of the next tokens of the recorded texts; the best constant guess finds {constant:.1%}",
    )


def _trained(found: Signs) -> list[Check]:
    lowest = min(found.outliers, key=lambda n: found.outliers[n], default=None)
    value = found.outliers[lowest] if lowest is not None else math.inf
    pairs = [n for n in found.coupling if not n.endswith("gate_proj/up_proj")]
    weakest = min(pairs, key=lambda n: found.coupling[n], default=None)
    return [
        Check(
            "trained-norms",
            found.gain_spread > GAINS,
            found.gain_spread,
            GAINS,
            f"gains of the norms spread by {found.gain_spread:.3g}; an untrained head's are all one",
        ),
        Check(
            "trained-matrices",
            value > OUTLIER,
            value if lowest is not None else None,
            OUTLIER,
            f"{lowest} has a largest singular value {value:.2f} times a random matrix's",
        ),
        Check(
            "trained-coupling",
            weakest is None or found.coupling[weakest] > COUPLING,
            found.coupling[weakest] if weakest is not None else None,
            COUPLING,
            f"norms of {weakest} go together with z-score {found.coupling[weakest]:.1f}; chance gives under 3"
            if weakest is not None
            else "no pair of neighbours to compare",
        ),
    ]


def damage(
    side: Side, unfilled: Mapping[str, torch.Tensor], tokens: torch.Tensor, aux: torch.Tensor, steps: int
) -> Damage:
    """Compares the complete head with one whose `unfilled` tensors hold what is given for them."""
    whole = build(side.spec, side.tensors, side.target)
    broken = build(side.spec, {**side.tensors, **unfilled}, side.target)
    base = whole.draft(tokens, aux, steps)
    hurt = broken.draft(tokens, aux, steps, forced=base.ids[:, :-1])
    agree = (hurt.ids == base.ids).float().mean(0)
    return Damage(tuple(sorted(unfilled)), tuple(agree.tolist()), _kl(hurt.logits, base.logits))


def left_over(
    shapes: Mapping[str, torch.Tensor], names: tuple[str, ...], seed: int = 0
) -> dict[str, torch.Tensor]:
    """Stand-ins for memory that nothing filled: seeded noise of the size of a fresh matrix, as what the memory of
    a freed tensor looks like."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(shapes[name].shape, generator=generator) * 0.02).to(shapes[name])
        for name in names
        if name in shapes
    }


@torch.no_grad()
def smoke(
    side: Side,
    *,
    target_vocab: int | None,
    steps: int = 5,
    tokens: int = 32,
    batch: int = 2,
    states: States | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    unfilled: tuple[str, ...] = (),
    repeats: int = 20,
    seed: int = 0,
) -> Smoke:
    """Runs prefill on `tokens` rows and `steps` recursive steps, and checks the result.

    Args:
        side: The head: spec, tensors in the dtype of the files, what it borrows, and which layers it captures.
        target_vocab: Ids of the target; `None` when no file says.
        steps, tokens, batch: Size of the run.
        states: Recorded states; without them states are drawn with a root mean square of 1 per captured layer.
        device: Where to run.
        dtype: The lower precision to compare with float32; `None` takes the weights' own, bfloat16 for float32.
        unfilled: Canonical tensors that the engine leaves unfilled.
        repeats: Of the timed step; 0 times none.
        seed: Of everything drawn.
    """
    device = torch.device(device)
    if device.type == "cuda":  # pragma: no cover - needs a GPU
        torch.cuda.reset_peak_memory_stats(device)
    own = next(t.dtype for t in side.tensors.values() if t.is_floating_point())
    low = dtype or (own if own not in (torch.float32, torch.float64) else torch.bfloat16)
    found = signs(side.spec, {k: v for k, v in side.tensors.items() if k != "embed_tokens.weight"})
    wide = cast(side, torch.float32, device)
    head = build(wide.spec, wide.tensors, wide.target)
    if isinstance(head, BlockHead):
        steps = min(steps, head.max_steps)
    rows, aux, origin = _inputs(side, head, states, batch, tokens, seed, device)

    def run() -> Drafted:
        return head.draft(rows, aux, steps)

    columns = head.head.shape[0]  # type: ignore[attr-defined]  # every head has one
    ids = _ids(head, target_vocab, columns)
    if not ids.ok and isinstance(head.embed, (Rows, Table)):  # type: ignore[attr-defined]
        # an id outside the table can't be fed back: nothing after the first step can be run
        steps = 1
    base, finite = _finite(head, run, "float32")
    checks = [finite, ids]
    if finite.ok:
        checks += _spread(base)
        checks += _inputs_alive(head, rows, aux, base, side, steps)
        checks.append(_drift(base))
        single = torch.cat(
            [head.draft(rows[i : i + 1], aux[i : i + 1], steps).logits for i in range(len(rows))]
        )
        value = _relative(single, base.logits)
        detail = f"a batch of {len(rows)} differs from single runs by {value:.3g} of the logits' spread"
        checks.append(Check("batch-equals-single", value <= BATCH, value, BATCH, detail))
    narrow = cast(side, low, device)
    low_head = build(narrow.spec, narrow.tensors, narrow.target)
    low_run, low_finite = _finite(
        low_head,
        lambda: low_head.draft(rows, aux.to(low), steps, forced=base.ids[:, :-1]),
        str(low).split(".")[-1],
    )
    checks.append(low_finite)
    if finite.ok and low_finite.ok:
        value = _relative(low_run.logits, base.logits)
        detail = f"{low} differs from float32 by {value:.3g} of the logits' spread"
        checks.append(Check("precision", value <= PRECISION, value, PRECISION, detail))
    checks += _trained(found)
    if states is not None and finite.ok:
        checks.append(_learned(head, states))
    hurt = None
    missing = left_over(wide.tensors, unfilled, seed)
    if missing:
        hurt = damage(wide, missing, rows, aux, steps)
    peak = sum(t.numel() * t.element_size() for t in wide.tensors.values())
    if device.type == "cuda":  # pragma: no cover - needs a GPU
        peak = torch.cuda.max_memory_allocated(device)
    return Smoke(
        device=str(device),
        dtype=str(low).split(".")[-1],
        steps=steps,
        tokens=rows.shape[1],
        batch=rows.shape[0],
        states=origin,
        checks=tuple(checks),
        time=time_step(low_head, repeats=repeats) if repeats and low_finite.ok else None,
        peak_bytes=peak,
        signs=found,
        damage=hurt,
    )


def _inputs(
    side: Side, head: Head, states: States | None, batch: int, tokens: int, seed: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, str]:
    """(tokens [B, N], aux [B, N, width], where they come from)."""
    if states is not None:
        texts = [text for text in states.texts if len(text.tokens) > tokens][:batch]
        if texts:
            rows = torch.stack([text.tokens[1 : tokens + 1] for text in texts])
            aux = torch.stack([text.features(side.spec)[:tokens].float() for text in texts])
            return rows.to(device), aux.to(device), f"{len(texts)} recorded texts"
    columns = head.head.shape[0]  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, columns, (batch, tokens), generator=generator)
    rms: tuple[float, ...] | float = states.rms(side.spec.num_aux) if states is not None else 1.0
    layers = side.capture_layers or (tuple(range(side.spec.num_aux)) if side.spec.num_aux > 1 else None)
    drawn = random_inputs(
        [replace(side, capture_layers=layers)],
        batch=batch,
        length=tokens,
        vocab_size=columns,
        rms=rms,
        seed=seed + 1,
    )
    aux = drawn.aux(replace(side, capture_layers=layers)).to(device)
    limit = side.spec.vocab_size
    rows = head.to_target(chosen.to(device))
    rows = rows if limit is None else rows.clamp(0, limit - 1)
    shown = ", ".join(f"{r:.3g}" for r in rms) if isinstance(rms, tuple) else f"{rms:.3g}"
    return rows, aux, f"drawn, root mean square {shown} per captured layer"
