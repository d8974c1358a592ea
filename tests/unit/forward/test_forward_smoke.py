"""Smoke: the healthy pair trips nothing, every mutant what it should."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ckpt_tools.forward import semantics
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.bench import EagleStep, measured_bandwidth, step_bytes, time_step
from ckpt_tools.forward.equivalence import Side
from ckpt_tools.forward.heads import build
from ckpt_tools.forward.parts import Rows, TargetParts
from ckpt_tools.forward.smoke import Smoke, left_over, smoke
from ckpt_tools.forward.spec import resolve
from ckpt_tools.forward.trained import signs

from .drafts import FIXTURES, Recorded
from .pair import STATES, TENSORS, VOCAB, pair_side

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Tensors = dict[str, torch.Tensor]

L = "layers.0."


def run(tensors: Tensors | None = None, *, states: bool = False, **more: object) -> Smoke:
    side = pair_side(tensors)
    return smoke(side, target_vocab=VOCAB, states=STATES if states else None, repeats=0, **more)  # type: ignore[arg-type]


def failed(result: Smoke) -> set[str]:
    return {c.name for c in result.checks if not c.ok}


@pytest.mark.parametrize("states", [False, True])
def test_the_pair_is_healthy(states: bool) -> None:
    result = run(states=states)
    assert failed(result) == set()
    assert result.ok
    assert (result.steps, result.tokens, result.batch) == (5, 32, 2)
    assert ("recorded" in result.states) == states
    assert result.damage is None
    assert ("learned-on-states" in {c.name for c in result.checks}) == states


def test_the_pair_under_sglang() -> None:
    own = pair_side().tensors["embed_tokens.weight"]
    side = pair_side(semantics=semantics.sglang)
    fetched: list[int] = []

    def fetch(ids: object) -> torch.Tensor:
        fetched.extend(ids)  # type: ignore[call-overload]
        return own[torch.tensor(ids)]

    rows = Rows(fetch, VOCAB, dtype=torch.float32)
    result = smoke(replace(side, target=TargetParts(rows)), target_vocab=VOCAB, repeats=0)
    assert failed(result) == set()
    assert 0 < rows.fetched < VOCAB
    assert len(fetched) == len(set(fetched)) == rows.fetched


def scramble(name: str) -> Callable[[Tensors], None]:
    def change(t: Tensors) -> None:
        order = torch.randperm(t[name].numel(), generator=torch.Generator().manual_seed(3))
        t[name] = t[name].flatten()[order].view(t[name].shape)

    return change


def rows_of(name: str) -> Callable[[Tensors], None]:
    def change(t: Tensors) -> None:
        t[name] = t[name][torch.randperm(len(t[name]), generator=torch.Generator().manual_seed(3))]

    return change


def times(name: str, factor: float) -> Callable[[Tensors], None]:
    def change(t: Tensors) -> None:
        t[name] = t[name].float() * factor

    return change


def ones(t: Tensors) -> None:
    for name, tensor in t.items():
        if tensor.dim() == 1 and tensor.is_floating_point():
            t[name] = torch.ones_like(tensor)


def zero_block(t: Tensors) -> None:
    t["fc.weight"] = t["fc.weight"].clone()
    t["fc.weight"][:, 64:128] = 0


def transposed_blocks(t: Tensors) -> None:
    t["fc.weight"] = torch.cat([block.T for block in t["fc.weight"].chunk(3, 1)], 1)


def add_d2t(by: torch.Tensor | int) -> Callable[[Tensors], None]:
    def change(t: Tensors) -> None:
        t["d2t"] = t["d2t"] + by

    return change


def other_head(t: Tensors) -> None:
    t["lm_head.weight"] = torch.randn(160, 64, generator=torch.Generator().manual_seed(4)) * 0.05


def same_rows(t: Tensors) -> None:
    t["lm_head.weight"] = t["lm_head.weight"][:1].expand(160, -1).contiguous()


WITHOUT_STATES: dict[str, tuple[Callable[[Tensors], None], str]] = {
    "zeroed fc block": (zero_block, "alive-captured-1"),
    "q zeroed": (times(L + "self_attn.q_proj.weight", 0), "alive-position"),
    "v zeroed": (times(L + "self_attn.v_proj.weight", 0), "alive-embedding"),
    "down scrambled": (scramble(L + "mlp.down_proj.weight"), "trained-matrices"),
    "gate scrambled": (scramble(L + "mlp.gate_proj.weight"), "trained-matrices"),
    "up rows permuted": (rows_of(L + "mlp.up_proj.weight"), "trained-coupling"),
    "v rows permuted": (rows_of(L + "self_attn.v_proj.weight"), "trained-coupling"),
    "fc scrambled": (scramble("fc.weight"), "trained-matrices"),
    "norms of ones": (ones, "trained-norms"),
    "overflow": (times(L + "mlp.down_proj.weight", 1e38), "finite-float32"),
    "NaN": (times("norm.weight", math.nan), "finite-float32"),
    "absolute d2t": (add_d2t(torch.arange(160)), "ids-map-to-target"),
    "constant head": (times("lm_head.weight", 0), "logits-not-constant"),
    "a head of one row": (same_rows, "logits-not-constant"),
}
WITH_STATES: dict[str, Callable[[Tensors], None]] = {
    "shifted d2t": add_d2t(1),
    "another target's head": other_head,
    "transposed fc blocks": transposed_blocks,
    "fc rows permuted": rows_of("fc.weight"),
    "o rows permuted": rows_of(L + "self_attn.o_proj.weight"),
    "embedding rolled": lambda t: t.update({"embed_tokens.weight": t["embed_tokens.weight"].roll(1, 0)}),
}


@pytest.mark.parametrize("mutant", WITHOUT_STATES)
def test_a_mutant_is_found(mutant: str) -> None:
    change, check = WITHOUT_STATES[mutant]
    tensors = dict(TENSORS)
    change(tensors)
    assert check in failed(run(tensors))


@pytest.mark.parametrize("mutant", WITH_STATES)
def test_a_mutant_is_found_with_states(mutant: str) -> None:
    tensors = dict(TENSORS)
    WITH_STATES[mutant](tensors)
    assert "learned-on-states" in failed(run(tensors, states=True))


def test_a_dead_layer_is_named() -> None:
    tensors = dict(TENSORS)
    zero_block(tensors)
    detail = next(c.detail for c in run(tensors).checks if c.name == "alive-captured-1")
    assert detail.startswith("dead input")
    assert "captured layer 3" in detail


def test_the_first_bad_stage_is_named() -> None:
    tensors = dict(TENSORS)
    times(L + "mlp.down_proj.weight", 1e38)(tensors)
    assert "layers.0" in next(c.detail for c in run(tensors).checks if c.name == "finite-float32")


def test_float16_overflow() -> None:
    """A head that float32 runs and float16 can't."""
    tensors = dict(TENSORS)
    times(L + "mlp.down_proj.weight", 3e4)(tensors)
    result = run(
        {k: v.half() if v.is_floating_point() else v for k, v in tensors.items()}, dtype=torch.float16
    )
    assert "finite-float16" in failed(result)


def test_random_heads_are_untrained() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        k: torch.randn(v.shape, generator=generator) * 0.05 if v.dim() == 2 else v for k, v in TENSORS.items()
    }
    ones(tensors)
    assert {"trained-norms", "trained-matrices", "trained-coupling"} <= failed(run(tensors))


def test_what_is_left_unfilled_hurts() -> None:
    result = run(unfilled=("fc.weight", "layers.0.mlp.down_proj.weight", "no.such.tensor"))
    assert result.damage is not None
    assert result.damage.parameters == ("fc.weight", "layers.0.mlp.down_proj.weight")
    assert result.damage.top1_agreement[0] < 0.9
    assert result.damage.kl > 0.1
    assert failed(result) == set()


def test_stand_ins_are_seeded() -> None:
    a, b = left_over(TENSORS, ("fc.weight",)), left_over(TENSORS, ("fc.weight",))
    assert torch.equal(a["fc.weight"], b["fc.weight"])
    assert a["fc.weight"].dtype == torch.bfloat16


def test_a_head_that_states_are_too_short_for() -> None:
    result = smoke(pair_side(), target_vocab=None, states=STATES, tokens=500, repeats=0)
    assert "drawn" in result.states
    assert failed(result) == set()


# the recorded heads have random weights, so nothing is asked of how sure they are
HEALTH = {"alive", "finite", "batch", "steps", "ids"}


@pytest.mark.parametrize(
    "path", sorted((FIXTURES / "forward" / "speculators").iterdir()), ids=lambda p: p.stem
)
def test_every_algorithm_runs(path: Path) -> None:
    recorded = Recorded(path)
    spec = resolve(recorded.draft, recorded.shapes, semantics.speculators)
    side = Side(spec, recorded.tensors, recorded.target)
    result = smoke(side, target_vocab=256, steps=4, tokens=12, batch=1)
    assert {n for n in failed(result) if n.split("-")[0] in HEALTH} == set()
    assert result.time is not None
    assert result.time.step_ms > 0
    assert result.time.over_floor > 0
    assert not result.time.graph


def test_what_a_step_reads() -> None:
    side = pair_side()
    head = build(side.spec, side.tensors)
    names = [n for n in side.tensors if n not in ("fc.weight", "embed_tokens.weight")]
    own = sum(side.tensors[n].numel() * side.tensors[n].element_size() for n in names)
    assert step_bytes(head) == own
    timed = time_step(head, repeats=2, bandwidth=1e9)
    assert timed.floor_ms == pytest.approx(step_bytes(head) / 1e6)
    assert measured_bandwidth(torch.device("cpu"), 1 << 20) > 0


@torch.no_grad()
def test_a_timed_step_is_a_step() -> None:
    side = pair_side()
    head = build(side.spec, side.tensors)
    step = EagleStep(head, 1, 8)  # type: ignore[arg-type]
    step()
    assert step.logits.shape == (1, 160)
    assert 0 <= int(step.next) < VOCAB
    first = step.logits.clone()
    step()
    assert torch.equal(first, step.logits)


def test_signs_of_an_mla_head_leave_v_out() -> None:
    side = pair_side()
    found = signs(side.spec, side.tensors)
    assert set(found.coupling) == {
        L + "mlp.up_proj/down_proj",
        L + "mlp.gate_proj/up_proj",
        L + "self_attn.v_proj/o_proj",
    }
    without = {k: v for k, v in side.tensors.items() if "v_proj" not in k and "up_proj" not in k}
    assert signs(side.spec, without).coupling == {}
    assert signs(side.spec, {}).gain_spread == 0
