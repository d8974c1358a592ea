"""Small rules of reading and writing that no whole conversion shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckpt_tools.convert.lost import differing, flat_facts
from ckpt_tools.formats import bundled, detect, read_draft, speculators
from ckpt_tools.formats.dflash import windows
from ckpt_tools.model import Checkpoint, DraftFacts, Rope, TensorInfo


def _checkpoint(shapes: dict[str, tuple[int, ...]], config: dict[str, Any] | None) -> Checkpoint:
    tensors = {n: TensorInfo(n, "BF16", s, "model.safetensors", 0, 0) for n, s in shapes.items()}
    return Checkpoint("x", "x", config, "", tensors, ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"layer_types": ("full_attention", "full_attention")}, {}),
        ({"norm_output": False}, {}),
        ({"rope": Rope()}, {}),
        ({"draft_vocab_size": 256, "vocab_size": 256}, {"vocab_size": 256}),
        ({"target_hidden_size": 64, "hidden_size": 64}, {"hidden_size": 64}),
        (
            {"sliding_window": 8, "num_layers": 1},
            {"sliding_window": 8, "num_layers": 1, "layer_types": ("sliding_attention",)},
        ),
        (
            {"rope": Rope(1.0, {"rope_type": "linear", "factor": 2.0})},
            {"rope": Rope(1.0, {"factor": 2.0, "rope_type": "linear"})},
        ),
    ],
)
def test_what_says_the_same_does_not_differ(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert differing(DraftFacts(**before), DraftFacts(**after)) == {}
    assert differing(DraftFacts(**after), DraftFacts(**before)) == {}


def test_what_is_lost_or_changed_differs() -> None:
    one = DraftFacts(norm_output=True, head_dim=16, extra={"markov_rank": 8})
    two = replace(one, norm_output=None, head_dim=32, extra={})
    assert differing(one, two) == {
        "norm_output": (True, None),
        "head_dim": (16, 32),
        "markov_rank": (8, None),
    }
    assert flat_facts(one)["markov_rank"] == 8
    # A zero is a value: token 0 is a mask like any other.
    assert differing(DraftFacts(mask_token_id=0), DraftFacts()) == {"mask_token_id": (0, None)}


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"is_causal": True}, {"is_causal": True}),
        ({"is_causal": False, "layer_types": ["sliding_attention"]}, {"sliding_window_non_causal": True}),
        ({"is_causal": False, "layer_types": ["full_attention"]}, {}),
        ({"is_causal": False}, {}),
        ({"causal": True}, {"is_causal": True}),
        ({}, {}),
    ],
)
def test_causality_of_a_block(config: dict[str, Any], facts: dict[str, Any]) -> None:
    assert windows(config) == facts


def test_a_wrapper_s_language_model_is_what_next_token_layers_are_built_like() -> None:
    config = {
        "model_type": "qwen3_5",
        "text_config": {"model_type": "qwen3_5_text", "hidden_size": 64, "vocab_size": 256},
    }
    assert bundled.decoder(config)["hidden_size"] == 64
    draft = read_draft(_checkpoint({"mtp.fc.weight": (64, 128), "mtp.norm.weight": (64,)}, config))
    assert draft is not None
    assert (draft.facts.hidden_size, draft.facts.extra["model_type"]) == (64, "qwen3_5_text")
    assert speculators.mtp_decoder(config) == config["text_config"]


def test_a_speculators_config_without_a_decoder_type_is_told_by_its_tensors() -> None:
    config = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {"hidden_size": 64},
        "speculators_config": {},
    }
    plain = read_draft(_checkpoint({"layers.0.hidden_norm.weight": (64,)}, config))
    normed = read_draft(
        _checkpoint({"layers.0.hidden_norm.weight": (64,), "layers.0.self_attn.q_norm.weight": (16,)}, config)
    )
    assert plain is not None
    assert normed is not None
    assert (plain.facts.layer_type, normed.facts.layer_type) == ("llama", "qwen3")
    assert plain.facts.verifier is None


def test_patterns_are_looked_up_and_walked_once() -> None:
    names = {"a.b.c.weight": (1,), "layers.3.x": (1,), "d2t": (1,)}
    seen = detect(_checkpoint(names, None)).seen
    assert seen.holds("d2t")
    assert seen.holds("a.b.c.**")
    assert seen.holds("layers.{i}.x")
    assert not seen.holds("a.b.d.**")
    assert not seen.holds("layers.{i}.y")
    assert not seen.holds("t2d")
    assert seen.holds("**.weight")
    assert not seen.whole
