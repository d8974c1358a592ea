"""Acceptance of a live server: SGLang's and vLLM's own routes, over the loopback."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.errors import Unavailable, UsageError
from ckpt_tools.serving.live import PROMPTS, conditional_of, read_live, sglang_meta, vllm_metrics
from tests.cli.server import serving

SGLANG: dict[str, Any] = {
    "version": "0.5.23",
    "model_path": "m",
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
}
META = {"completion_tokens": 31, "spec_verify_ct": 12, "spec_num_correct_drafts": 18}


def counters(engine: str, drafts: float, accepted: float, *positions: float) -> str:
    label = f'engine="{engine}",model_name="m {{x}}"'.replace("{", "(").replace("}", ")")
    rows = [
        f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {accepted}",
    ]
    rows += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{i}"}} {n}'
        for i, n in enumerate(positions)
    ]
    return "\n".join(rows) + "\n"


# ---- SGLang


@pytest.mark.parametrize(
    ("more", "mean"),
    [
        ({"internal_states": [{"avg_spec_accept_length": 2.0}]}, 2.0),
        ({"internal_states": [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}, {}]}, 2.5),
        ({"avg_spec_accept_length": 1.25}, 1.25),  # where 0.4.6 has it
        ({"internal_states": None, "avg_spec_accept_length": 3}, 3.0),
    ],
)
def test_sglang_states_its_mean(more: dict[str, Any], mean: float) -> None:
    with serving({"/server_info": SGLANG | more}) as url:
        live = read_live(url + "/")
    assert (live.engine, live.version, live.source) == ("sglang", "0.5.23", "/server_info")
    assert (live.depth, live.draft_tokens, live.rounds) == (3, 4, None)
    assert live.mean_accept_len == mean
    assert live.conditional == ()
    assert "internal_state.py" in live.reference


def test_older_releases_have_the_older_route() -> None:
    info = {**SGLANG, "version": None, "internal_states": [{"avg_spec_accept_length": 2.0}]}
    with serving({"/get_server_info": info}) as url:
        live = read_live(url)
    assert (live.version, live.mean_accept_len) == (None, 2.0)


def test_a_server_that_has_no_mean_yet_is_asked_to_generate() -> None:
    asked: list[dict[str, Any]] = []

    def generate(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return {"meta_info": META | {"spec_correct_drafts_histogram": [2, 4, 4, 2]}}

    states = [{"avg_spec_accept_length": True}, "?", {}]
    with serving({"/server_info": SGLANG | {"internal_states": states}, "/generate": generate}) as url:
        live = read_live(url, max_new_tokens=9)
    assert [a["text"] for a in asked] == list(PROMPTS)
    assert {str(a["sampling_params"]) for a in asked} == {str({"temperature": 0, "max_new_tokens": 9})}
    assert live.source == "/generate"
    assert live.rounds == 12 * len(PROMPTS)
    assert live.mean_accept_len == pytest.approx(1 + 18 / 12)
    assert live.conditional == (pytest.approx(10 / 12), pytest.approx(6 / 10), pytest.approx(2 / 6))


def test_prompts_are_asked_even_when_there_is_a_mean() -> None:
    info = SGLANG | {"internal_states": [{"avg_spec_accept_length": 9.0}]}
    with serving({"/server_info": info, "/generate": {"meta_info": META}}) as url:
        assert read_live(url, prompts=["a", "b"]).rounds == 24


@pytest.mark.parametrize(
    "answer",
    [
        {"meta_info": {"completion_tokens": 9}},
        {"meta_info": META | {"spec_verify_ct": 0}},
        [],
        "no json",
        500,
    ],
)
def test_an_answer_without_verifications(answer: Any) -> None:
    with (
        serving({"/server_info": SGLANG, "/generate": answer}) as url,
        pytest.raises(Unavailable, match="spec_verify_ct"),
    ):
        read_live(url)


def test_a_server_without_a_draft() -> None:
    with (
        serving({"/server_info": SGLANG | {"speculative_algorithm": None}}) as url,
        pytest.raises(Unavailable, match="runs without a draft") as failure,
    ):
        read_live(url)
    assert "--speculative-algorithm" in str(failure.value.hint)


def test_the_names_that_releases_give_their_counts() -> None:
    new = sglang_meta([META], "0.5.23", 3, 4)
    old = sglang_meta(
        [{"completion_tokens": 31, "spec_verify_ct": 12, "spec_accept_token_num": 18}], None, 3, 4
    )
    assert new.mean_accept_len == old.mean_accept_len == 2.5
    oldest = sglang_meta([{"completion_tokens": 31, "spec_verify_ct": 12}], None, 3, 4)
    assert oldest.mean_accept_len == 2.5, "30 tokens beyond the prefill's in 12 verifications"
    mixed = sglang_meta([META, {"completion_tokens": 31, "spec_verify_ct": 12}], None, 3, 4)
    assert mixed.mean_accept_len == 2.5
    assert oldest.conditional == ()
    assert sglang_meta([{"spec_verify_ct": 4}], None, None, None).mean_accept_len == 0


def test_histograms_of_different_lengths_are_added() -> None:
    metas = [META | {"spec_correct_drafts_histogram": h} for h in ([1, 1], [0, 0, 2], "?", [None, 1.0])]
    assert sglang_meta(metas, None, 3, 4).conditional == (pytest.approx(4 / 5), pytest.approx(2 / 4))


@given(st.lists(st.integers(0, 50), max_size=8))
def test_conditional_rates_multiply_to_the_share_that_gets_there(histogram: list[int]) -> None:
    rates = conditional_of(histogram)
    assert len(rates) == max(0, len(histogram) - 1)
    reached = float(sum(histogram))
    for i, rate in enumerate(rates):
        if rate is None:
            assert reached == pytest.approx(0)
            break
        assert 0 <= rate <= 1
        reached *= rate
        assert reached == pytest.approx(sum(histogram[i + 1 :]))


# ---- vLLM


def test_vllm_counts() -> None:
    text = "# HELP vllm:spec_decode_num_drafts_total x\n" + counters("0", 100, 130, 70, 40, 20)
    with serving({"/metrics": text, "/version": {"version": "0.33.0"}}) as url:
        live = read_live(url)
    assert (live.engine, live.version, live.source) == ("vllm", "0.33.0", "/metrics")
    assert live.mean_accept_len == pytest.approx(2.3)
    assert live.conditional == (0.7, pytest.approx(4 / 7), 0.5)
    assert (live.depth, live.draft_tokens, live.rounds) == (3, 4, 100)


def test_vllm_engines_are_added_and_what_isn_t_a_number_is_passed_over() -> None:
    text = (
        counters("0", 100, 130, 70, 60)
        + counters("1", 300, 30, 30, 0)
        + "vllm:spec_decode_num_drafts_total x\n"
    )
    live = vllm_metrics(text)
    assert live is not None
    assert live.mean_accept_len == pytest.approx(1 + 160 / 400)
    assert live.conditional == (0.25, 0.6)
    nothing = vllm_metrics(counters("0", 10, 0, 0, 0))
    assert nothing is not None
    assert (nothing.mean_accept_len, nothing.conditional) == (1.0, (0.0, None))
    plain = vllm_metrics("vllm:spec_decode_num_drafts 4\nvllm:spec_decode_num_accepted_tokens 2\nother 1\n")
    assert plain is not None
    assert (plain.mean_accept_len, plain.depth, plain.draft_tokens) == (1.5, None, None)


@pytest.mark.parametrize("version", [404, "[1]", {"version": 3}])
def test_vllm_without_a_version(version: Any) -> None:
    with serving({"/metrics": counters("0", 1, 1, 1), "/version": version}) as url:
        assert read_live(url).version is None


def test_vllm_s_route_for_developers_is_not_sglang_s() -> None:
    with serving({"/server_info": {"vllm_config": "…"}, "/metrics": counters("0", 1, 1, 1)}) as url:
        assert read_live(url).engine == "vllm"


def test_vllm_that_has_drafted_nothing() -> None:
    with (
        serving({"/metrics": "vllm:num_requests_running 0\n"}) as url,
        pytest.raises(Unavailable, match="counts no drafts yet") as failure,
    ):
        read_live(url)
    assert "--speculative-config" in str(failure.value.hint)


# ---- neither


def test_another_server_or_none() -> None:
    with serving({"/server_info": "no json"}) as url, pytest.raises(Unavailable, match="no SGLang or vLLM"):
        read_live(url)
    with pytest.raises(Unavailable, match="no answer"):
        read_live("http://127.0.0.1:1", timeout=5)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://x", "http://", "localhost"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is no http address"):
        read_live(url)


def test_a_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are on this machine or beside it; a proxy for the internet doesn't know them."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving({"/metrics": counters("0", 1, 1, 1)}) as url:
        assert read_live(url).engine == "vllm"
