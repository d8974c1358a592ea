"""Conversions proven or refuted, with the cause named."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_tools.forward import semantics
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.equivalence import Proof, Side, prove, random_inputs
from ckpt_tools.forward.parts import Table, TargetParts
from ckpt_tools.forward.spec import resolve
from ckpt_tools.model import Rope

from .drafts import FIXTURES, Recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[dict[str, torch.Tensor]], None]


def side(
    name: str,
    engine: str = "speculators",
    *,
    change: Change | None = None,
    layers: tuple[int, ...] | None = (1, 3, 4),
    rename: tuple[str, str] | None = None,
    embed: torch.Tensor | None = None,
    **facts: Any,
) -> Side:
    recorded = Recorded(FIXTURES / "forward" / "speculators" / f"{name}.safetensors")
    tensors = dict(recorded.tensors)
    if change:
        change(tensors)
    draft = replace(recorded.draft, facts=replace(recorded.draft.facts, **facts))
    if rename:
        names = {k: v.replace(*rename) if k.startswith("layers.1") else v for k, v in draft.tensors.items()}
        draft = replace(draft, tensors=names)
    spec = resolve(draft, {k: tuple(v.shape) for k, v in tensors.items()}, semantics.find(engine))
    target = recorded.target
    if "embed_tokens.weight" in recorded.tensors:
        target = TargetParts(Table(recorded.tensors["embed_tokens.weight"] if embed is None else embed))
    if target.head is None and "lm_head.weight" in recorded.tensors:
        target = replace(target, head=recorded.tensors["lm_head.weight"])
    return Side(spec, tensors, target, layers)


def verdict(source: Side, result: Side) -> Proof:
    inputs = random_inputs([source, result], vocab_size=200, length=16)
    return prove(source, result, inputs, 3)


def test_a_draft_is_itself() -> None:
    proof = verdict(side("eagle3_fcnorm"), side("eagle3_fcnorm"))
    assert proof.proven
    assert proof.identical
    assert proof.cause is None
    assert [s.step for s in proof.per_step] == [0, 1, 2]
    assert all(s.top1_agreement == 1 and s.max_abs_diff == 0 for s in proof.per_step)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_engines_that_compute_the_same(engine: str) -> None:
    proof = verdict(side("eagle3_fcnorm"), side("eagle3_fcnorm", engine))
    assert proof.proven
    assert max(s.max_abs_diff / s.scale for s in proof.per_step) < 1e-5


def _reverse_blocks(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(3, 1)[::-1], 1)


def _absolute(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def _flip_up(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.0.mlp.up_proj.weight"] = tensors["layers.0.mlp.up_proj.weight"].flip(0)


def _no_d2t(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["d2t"]


CASES = {
    "norm_before_residual": (side("eagle3_nbr"), side("eagle3_nbr", "sglang")),
    "layer norm names": (side("eagle3_2layer"), side("eagle3_2layer", "sglang")),
    "qk_norm": (side("eagle3_qwen3"), side("eagle3_qwen3", "sglang")),
    "qkv_bias and mlp_bias": (side("eagle3_bias"), side("eagle3_bias", "sglang")),
    "rope base": (side("eagle3_nbr"), side("eagle3_nbr", rope=Rope(theta=1e6))),
    "rope": (
        side("eagle3_nbr"),
        side("eagle3_nbr", rope=Rope(theta=1e4, scaling={"rope_type": "linear", "factor": 4.0})),
    ),
    "norm_output": (side("eagle3_traindefaults"), side("eagle3_traindefaults", norm_output=False)),
    "norm_before_fc": (side("eagle3_traindefaults"), side("eagle3_traindefaults", norm_before_fc=False)),
    "fc_norm": (side("eagle3_fcnorm"), side("eagle3_fcnorm", fc_norm=False)),
    "capture layers": (side("eagle3_nbr"), side("eagle3_nbr", layers=(2, 4, 5))),
    "capture order [4, 3, 1]": (side("eagle3_nbr"), side("eagle3_nbr", change=_reverse_blocks)),
    "d2t (absolute ids where offsets belong)": (side("eagle3_nbr"), side("eagle3_nbr", change=_absolute)),
    "d2t": (side("eagle3_nbr"), side("eagle3_nbr", change=_no_d2t)),
    "tensor layers.0.mlp.up_proj.weight": (side("eagle3_nbr"), side("eagle3_nbr", change=_flip_up)),
    "embedding": (
        side("eagle3_fcnorm"),
        side(
            "eagle3_fcnorm", "sglang", embed=torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
        ),
    ),
}


@pytest.mark.parametrize("cause", CASES)
def test_the_cause_is_named(cause: str) -> None:
    proof = verdict(*CASES[cause])
    assert not proof.proven
    assert proof.cause is not None
    assert proof.cause.name == cause
    assert proof.cause.explains
    assert proof.cause.remaining < 1e-4


def test_the_right_name_of_an_upper_norm_is_proven() -> None:
    renamed = side("eagle3_2layer", "sglang", rename=("input_layernorm", "hidden_norm"))
    assert verdict(side("eagle3_2layer"), renamed).proven


def test_a_block_head_is_compared_over_its_block() -> None:
    source = side("dflash")
    proof = verdict(source, source)
    assert proof.identical
    assert len(proof.per_step) == 3
    other = side("dflash", mask_token_id=7)
    refuted = verdict(source, other)
    assert refuted.cause is not None
    assert refuted.cause.name == "mask_token_id"


def test_another_head_is_named() -> None:
    source = side("dflash")
    borrowed = replace(source.spec, head="target", d2t=False)
    shuffled = source.tensors["lm_head.weight"].flip(0)
    result = replace(source, spec=borrowed, target=replace(source.target, head=shuffled))
    proof = verdict(source, result)
    assert not proof.proven
    assert proof.per_step[0].top1_agreement < 0.5


def test_nan_is_never_equal() -> None:
    def broken(tensors: dict[str, torch.Tensor]) -> None:
        tensors["norm.weight"] = tensors["norm.weight"] * math.nan

    proof = verdict(side("eagle3_nbr"), side("eagle3_nbr", change=broken))
    assert not proof.proven
    assert math.isnan(proof.per_step[0].max_abs_diff)
    assert proof.cause is not None
    assert proof.cause.name == "tensor norm.weight"


def test_inputs_are_seeded_and_scaled() -> None:
    source = side("eagle3_nbr")
    one = random_inputs([source], vocab_size=50, rms=(1.0, 5.0, 25.0), length=200)
    two = random_inputs([source], vocab_size=50, rms=(1.0, 5.0, 25.0), length=200)
    assert torch.equal(one.tokens, two.tokens)
    assert int(one.tokens.max()) < 50
    found = [float(one.states[layer].square().mean().sqrt()) for layer in (1, 3, 4)]
    assert found == pytest.approx([1, 5, 25], rel=0.05)
    single = random_inputs([replace(source, capture_layers=None)], vocab_size=50)
    assert single.aux(replace(source, capture_layers=None)) is single.states[None]
