"""The releases' facts: counted, exact where they claim it, and undecided where nothing was read."""

from __future__ import annotations

import pytest

from ckpt_tools.engines import history
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Engine


def sglang(version: str) -> Engine:
    return Engine("sglang", version, version)


def vllm(version: str) -> Engine:
    return Engine("vllm", version, version)


def test_all_facts_are_there() -> None:
    assert len(history.facts()) == 218
    assert len(history.facts("sglang")) == 178
    assert len(history.facts("vllm")) == 40
    assert history.facts("sglang-ext") == history.facts("sglang")
    assert history.facts("trtllm") == ()


def test_every_fact_stands_in_releases_that_were_read() -> None:
    for fact in history.facts():
        read = history.releases_read(fact.engine)
        assert fact.first is None or fact.first in read, fact.id
        assert fact.last is None or fact.last in read, fact.id
        assert fact.not_in is None or fact.not_in in read, fact.id
        if fact.exact and fact.first is not None and fact.not_in is not None:
            assert read.index(fact.first) == read.index(fact.not_in) + 1, fact.id


@pytest.mark.parametrize(
    ("fact_id", "version", "expected"),
    [
        ("eagle3.names.layers0", "0.5.11", False),
        ("eagle3.names.layers0", "0.5.12", True),
        ("eagle3.names.layers0", "0.5.99", True),
        ("eagle3.names.layers0", "0.3.0", False),
        ("eagle3.names.layers0.silent_drop", "0.5.11", True),
        ("eagle3.names.layers0.silent_drop", "0.5.12", False),
        ("eagle3.names.midlayer", "0.4.6", True),
        ("eagle3.names.midlayer", "0.4.0", None),
        ("capture.cudagraph_forces_default", "0.5.10.post1", True),
        ("capture.cudagraph_forces_default", "0.5.11", False),
        ("absent.norm_before_residual", "0.5.23", False),
        ("target.KimiK25.eagle3", "0.5.9", False),
        ("target.KimiK25.eagle3", "0.5.10", True),
    ],
)
def test_sglang_facts(fact_id: str, version: str, expected: bool | None) -> None:
    assert history.holds(fact_id, sglang(version)) is expected
    assert history.holds(fact_id, Engine("sglang-ext", version, version)) is expected


@pytest.mark.parametrize(
    ("fact_id", "version", "expected"),
    [
        ("aux_ids.top_level", "0.10.1", False),
        ("aux_ids.top_level", "0.11.0", None),  # not read: between lacking and having it
        ("aux_ids.top_level", "0.12.0", True),
        ("target_allowlist", "0.17.0", True),
        ("target_allowlist", "0.20.0", None),
        ("target_allowlist", "0.25.0", False),
        ("method.eagle3", "0.9.0", None),
        ("vocab.d2t_forbidden_full_vocab", "0.33.1", True),
    ],
)
def test_vllm_facts_are_undecided_between_the_releases_read(
    fact_id: str, version: str, expected: bool | None
) -> None:
    assert history.holds(fact_id, vllm(version)) is expected


def test_a_fact_of_another_engine_decides_nothing() -> None:
    assert history.holds("aux_ids.top_level", sglang("0.5.23")) is None


def test_first_release() -> None:
    assert history.first_release("draft.Eagle3DeepseekV2ForCausalLM") == "0.5.12"
    assert history.first_release("absent.speculators_format") is None


def test_a_reference_names_the_release_nearest_before() -> None:
    where = history.reference("eagle3.names.layers0", sglang("0.5.20"))
    assert where == "sglang 0.5.12 models/llama_eagle3.py:307"
    where = history.reference("eagle3.names.layers0", sglang("0.5.23"))
    assert where == "sglang 0.5.23 models/llama_eagle3.py:339"
    assert history.reference("eagle3.names.layers0", sglang("0.4.6")).startswith("sglang 0.5.12 ")
    assert history.reference("absent.speculators_format", sglang("0.5.23")).startswith("sglang: never")


def test_releases_and_their_dates() -> None:
    read = history.releases_read("sglang")
    assert len(read) == 58
    assert list(read) == sorted(read, key=parse)
    assert history.release_date(sglang("0.5.9")) == "2026-02-23"
    assert history.release_date(sglang("0.5.9.dev1")) is None
    assert history.release_date(vllm("0.33.0")) is None
    assert history.releases_read("trtllm") == ()


def test_transformers_pins() -> None:
    assert history.transformers_pin(sglang("0.5.9")) == "4.57.1"
    assert history.transformers_pin(sglang("0.5.10.post1")) == "5.3.0"
    assert history.transformers_pin(sglang("0.5.23")) == "5.19.0"
    assert history.transformers_pin(vllm("0.33.0")) is None
