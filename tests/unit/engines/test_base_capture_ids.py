"""Ids for given layers: what is written is captured again, and what can't be written is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.engines.capture import LAST_LAYER_SINCE, captured, default_layers, ids_for
from ckpt_tools.engines.history import releases_read
from ckpt_tools.engines.hooks import id_policy, serves, sglang_classes
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Engine

KIMI = "KimiK25ForConditionalGeneration"
LLAMA = "LlamaForCausalLM"
GPT_OSS = "GptOssForCausalLM"
CLASSES = sorted(name for name, row in sglang_classes().items() if "eagle3" in row.get("since", {}))
LAYER_SETS = st.integers(6, 90).flatmap(
    lambda n: st.tuples(
        st.just(n), st.sets(st.integers(-1, n - 1), min_size=1, max_size=6).map(lambda s: tuple(sorted(s)))
    )
)


def sglang(version: str = "0.5.23") -> Engine:
    return Engine("sglang", version, version)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(CLASSES), st.sampled_from(releases_read("sglang")), LAYER_SETS)
def test_what_is_written_for_sglang_is_captured(
    architecture: str, release: str, case: tuple[int, tuple[int, ...]]
) -> None:
    n, layers = case
    engine = sglang(release)
    if not serves(engine, architecture, "EAGLE3").ok:
        return
    ids = ids_for(engine, architecture, n, layers)
    if ids.problem is not None:
        assert ids.nested is None
        assert ids.top_level is None
        return
    found = captured(engine, architecture, n, nested_ids=ids.nested, top_level_ids=ids.top_level)
    assert found.layers == layers
    if parse(release) >= parse("0.5.11"):
        assert found.problem is None
    # The same folder on vLLM, which reads the top-level copy.
    vllm = Engine("vllm", "0.33.0", "0.33.0")
    assert captured(vllm, None, n, nested_ids=ids.nested, top_level_ids=ids.top_level).layers == layers


@pytest.mark.parametrize("architecture", CLASSES)
def test_each_class_writes_all_that_it_can_capture(architecture: str) -> None:
    """On the newest release only what no id can say is refused."""
    n = 40
    engine = sglang()
    if not serves(engine, architecture, "EAGLE3").ok:
        assert architecture in ("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration")
        return
    policy = id_policy(engine, architecture)[0]
    for layers in (
        (1, 19, 36),
        (2, 19, 36),
        (0, 19, 36),
        (5, 6, 7, 8),
        (20,),
        (1, 39),
        (10, 20, 39),
        (-1, 5),
    ):
        ids = ids_for(engine, architecture, n, layers)
        refused = (
            layers[0] == -1
            or (layers[-1] == 39 and architecture not in LAST_LAYER_SINCE)
            or (layers[0] == 0 and policy == "plus1_if_first_is_1")
            or (layers[0] != 1 and policy == "delegates")
        )
        assert (ids.problem is not None) == refused, (layers, ids)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["0.10.1", "0.12.0", "0.17.0", "0.25.0", "0.33.0"]), LAYER_SETS)
def test_what_is_written_for_vllm_is_captured(release: str, case: tuple[int, tuple[int, ...]]) -> None:
    n, layers = case
    engine = Engine("vllm", release, release)
    ids = ids_for(engine, None, n, layers)
    if ids.problem is not None:
        assert release == "0.10.1"
        assert layers != default_layers(n)
        return
    assert ids.nested is None
    found = captured(engine, None, n, nested_ids=None, top_level_ids=ids.top_level)
    assert (found.layers, found.problem) == (layers, None)


@pytest.mark.parametrize("architecture", [None, LLAMA, KIMI, GPT_OSS, "NoSuchModel", "MindSporeForCausalLM"])
def test_layers_that_start_with_1_need_no_target(architecture: str | None) -> None:
    ids = ids_for(sglang(), architecture, None, (1, 29, 57))
    assert (ids.nested, ids.top_level, ids.problem, ids.needs) == ((1, 29, 57), (2, 30, 58), None, None)


def test_without_a_target_other_layers_are_refused() -> None:
    ids = ids_for(sglang(), None, None, (2, 29, 57))
    assert (ids.nested, ids.top_level) == (None, None)
    assert "the target's class decides" in (ids.problem or "")
    assert "how NoSuchModel counts ids" in (ids_for(sglang(), "NoSuchModel", 61, (2, 29, 57)).problem or "")
    # every release before 0.5.13 adds 1 on every class
    assert ids_for(sglang("0.5.12"), None, None, (2, 29, 57)).nested == (2, 29, 57)


def test_deepseek_like_classes_get_boundaries_from_0_5_13() -> None:
    ids = ids_for(sglang(), KIMI, 61, (2, 29, 57))
    assert (ids.nested, ids.needs) == ((3, 30, 58), "0.5.13")
    old = ids_for(sglang("0.5.12"), KIMI, 61, (2, 29, 57))
    assert (old.nested, old.needs) == ((2, 29, 57), None)
    assert "no id" in (ids_for(sglang(), KIMI, 61, (0, 29, 57)).problem or "")


def test_the_last_layer_where_the_class_captures_it() -> None:
    ids = ids_for(sglang(), GPT_OSS, 36, (23, 29, 35))
    assert (ids.nested, ids.needs) == ((23, 29, 35), "0.5.17")
    problem = ids_for(sglang("0.5.16"), GPT_OSS, 36, (23, 29, 35)).problem
    assert "GptOssForCausalLM does from 0.5.17 on" in (problem or "")
    assert "LlamaForCausalLM can't" in (ids_for(sglang(), LLAMA, 36, (1, 35)).problem or "")
    assert "isn't known" in (ids_for(sglang(), None, 36, (1, 35)).problem or "")


def test_other_layers_than_the_default_warn_of_old_graphs() -> None:
    assert ids_for(sglang(), LLAMA, 32, (1, 15, 28)).warning is None
    assert "before 0.5.11" in (ids_for(sglang(), LLAMA, 32, (1, 14, 28)).warning or "")
    assert "--disable-cuda-graph" in (ids_for(sglang("0.5.9"), LLAMA, 32, (1, 14, 28)).warning or "")


def test_before_0_4_9_only_the_default_can_be_had() -> None:
    assert ids_for(sglang("0.4.6"), LLAMA, 32, (1, 15, 28)).nested == (1, 15, 28)
    assert "read from 0.4.9 on" in (ids_for(sglang("0.4.6"), LLAMA, 32, (1, 14, 28)).problem or "")
    assert ids_for(sglang("0.4.6"), LLAMA, None, (1, 15, 28)).problem is not None


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((), "ascend"),
        ((3, 1), "ascend"),
        ((1, 1), "ascend"),
        ((1, 32), "no layer 32"),
        ((-2, 1), "no layer -2"),
    ],
)
def test_impossible_layers(layers: tuple[int, ...], said: str) -> None:
    assert said in (ids_for(sglang(), LLAMA, 32, layers).problem or "")


def test_tensorrt_llm_has_no_ids_to_write() -> None:
    assert "reads no ids" in (ids_for(Engine("trtllm", "1", "1"), LLAMA, 32, (1, 15, 28)).problem or "")
