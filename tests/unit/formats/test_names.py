"""Naming rows: translation both ways, precedence, twins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.formats.canonical import ALGORITHMS, expected_shape, slot_of, symbols, vocabulary
from ckpt_tools.formats.eagle3 import LAYERS, MIDLAYER, SGLANG, VLLM
from ckpt_tools.formats.names import NameMap, Row, fits
from ckpt_tools.model import DraftFacts


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("layers.{i}.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", True),
        ("layers.{n}.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", False),
        ("layers.{n}.mlp.up_proj.weight", "layers.12.mlp.up_proj.weight", True),
        ("midlayer.**", "midlayer.", False),
        ("midlayer.**", "midlayer.x.y", True),
        ("fc.weight", "xfc.weight", False),
        ("fc.weight", "fc.weight.bias", False),
        ("fc.weight", "fcxweight", False),
    ],
)
def test_patterns_fit_whole_names(pattern: str, name: str, expected: bool) -> None:
    assert fits(pattern, name) is expected


def test_sglang_reads_both_spellings_of_layer_zero() -> None:
    assert SGLANG.canonical("midlayer.self_attn.q_proj.weight") == "layers.0.self_attn.q_proj.weight"
    assert SGLANG.canonical("layers.0.self_attn.q_proj.weight") == "layers.0.self_attn.q_proj.weight"
    assert SGLANG.canonical("aux_norm_mid.weight") == "fc_norm.1.weight"
    assert SGLANG.canonical("decoder.self_attn.q_proj.weight") is None


def test_sglang_writes_later_norms_under_both_names() -> None:
    assert SGLANG.natives("layers.1.input_layernorm.weight") == (
        "layers.1.hidden_norm.weight",
        "layers.1.input_layernorm.weight",
    )
    assert SGLANG.natives("layers.0.input_layernorm.weight") == ("midlayer.input_layernorm.weight",)
    assert VLLM.natives("layers.2.input_layernorm.weight") == (
        "layers.2.input_layernorm.weight",
        "layers.2.hidden_norm.weight",
    )


def test_of_two_names_the_one_that_the_engine_reads_wins() -> None:
    read = SGLANG.read(["layers.1.input_layernorm.weight", "layers.1.hidden_norm.weight", "strange"])
    assert read.tensors == {"layers.1.input_layernorm.weight": "layers.1.hidden_norm.weight"}
    assert read.twins == {"layers.1.input_layernorm.weight": "layers.1.input_layernorm.weight"}
    assert read.unknown == ("strange",)


def test_a_later_lower_name_is_the_twin_whatever_the_order() -> None:
    forward = SGLANG.read(["layers.1.hidden_norm.weight", "layers.1.input_layernorm.weight"])
    backward = SGLANG.read(["layers.1.input_layernorm.weight", "layers.1.hidden_norm.weight"])
    assert forward.tensors == backward.tensors
    assert forward.twins == backward.twins


def test_a_name_without_a_writable_row_has_no_native() -> None:
    assert NameMap((Row("a", "b", read_only=True),), ("b",)).natives("b") == ()


_EXAMPLES = sorted(
    pattern.replace("{i}", "0").replace("{n}", "2").replace("{j}", "1").replace("**", "x")
    for pattern in vocabulary("eagle3")
)


@given(st.sampled_from(_EXAMPLES), st.sampled_from([LAYERS, MIDLAYER, SGLANG, VLLM]))
def test_every_canonical_name_survives_the_way_out_and_back(name: str, names: NameMap) -> None:
    natives = names.natives(name)
    assert natives
    assert names.read(natives).tensors == {name: natives[0]}


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_vocabularies_have_no_name_twice(algorithm: str) -> None:
    names = vocabulary(algorithm)
    assert len(names) == len(set(names))


def test_shapes_come_from_facts_and_unknown_symbols_stay_open() -> None:
    facts = DraftFacts(hidden_size=64, num_attention_heads=4, head_dim=16, num_aux=3)
    values = symbols(facts)
    q = slot_of("eagle3", "layers.0.self_attn.q_proj.weight")
    k = slot_of("eagle3", "layers.0.self_attn.k_proj.weight")
    fc = slot_of("eagle3", "fc.weight")
    assert q is not None
    assert k is not None
    assert fc is not None
    assert expected_shape(q, values) == (64, 128)
    assert expected_shape(k, values) == (None, 128)
    assert expected_shape(fc, values) == (64, 192)
    assert slot_of("eagle3", "nothing") is None
    mask = slot_of("peagle", "mask_hidden")
    assert mask is not None
    assert expected_shape(mask, values) is None
