"""conversion.json: what a format can't say is there, and the way back takes it up again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.convert.record import RECORD, read_record, with_recorded
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Draft, Report, Rope, Verifier
from tests.conftest import FIXTURES

SAMPLE = FIXTURES / "formats" / "speculators" / "eagle3_tiny"


def windowed(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    shutil.copytree(SAMPLE, place)
    config = json.loads((place / "config.json").read_text())
    config["embed_requires_grad"] = False
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 7
    config["transformer_layer_config"].update(
        sliding_window=2048, use_sliding_window=True, layer_types=["sliding_attention"]
    )
    (place / "config.json").write_text(json.dumps(config))
    return place


def config_of(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def said(report: Report) -> list[str]:
    return [f.message for f in report.findings if f.code == "CFG016"]


def sample() -> Draft:
    read = read_draft(open_checkpoint(SAMPLE))
    assert read is not None
    return read


def test_a_window_comes_back(tmp_path: Path) -> None:
    there = fix_keys(Request(str(windowed(tmp_path)), str(tmp_path / "sg")))
    assert there.verdict == "pass"
    assert "sliding_window" not in config_of(tmp_path / "sg")
    assert json.loads((tmp_path / "sg" / RECORD).read_text())["unsaid"] == {
        "sliding_window": 2048,
        "layer_types": ["sliding_attention"],
    }
    back = fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "back"), to="speculators"))
    assert back.verdict == "pass"
    before, after = config_of(tmp_path / "in"), config_of(tmp_path / "back")
    for field in ("sliding_window", "use_sliding_window", "layer_types"):
        assert after["transformer_layer_config"][field] == before["transformer_layer_config"][field]
    assert after["speculators_config"] == before["speculators_config"]
    assert any("sliding_window 2048" in message for message in said(back))


def test_a_second_conversion_hands_it_on(tmp_path: Path) -> None:
    fix_keys(Request(str(windowed(tmp_path)), str(tmp_path / "sg")))
    again = fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "dual"), to="dual"))
    assert again.verdict == "pass"
    assert config_of(tmp_path / "dual")["sliding_window"] == 2048
    once_more = fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "sg2"), to="specforge"))
    assert once_more.verdict == "fail" or "sliding_window" in (tmp_path / "sg2" / RECORD).read_text()


def test_the_capture_layers_of_a_format_without_ids_come_back(tmp_path: Path) -> None:
    there = fix_keys(Request(str(SAMPLE), str(tmp_path / "eagle"), to="safeailab"))
    assert there.verdict == "pass", [f.message for f in there.findings]
    back = fix_keys(Request(str(tmp_path / "eagle"), str(tmp_path / "back"), to="vllm"))
    assert back.verdict == "pass", [f.message for f in back.findings]
    assert config_of(tmp_path / "back")["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]


def test_what_a_config_states_wins(tmp_path: Path) -> None:
    fix_keys(Request(str(windowed(tmp_path)), str(tmp_path / "sg")))
    config = config_of(tmp_path / "sg")
    config.update(sliding_window=512, layer_types=["sliding_attention"])
    (tmp_path / "sg" / "config.json").write_text(json.dumps(config))
    fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "back"), to="speculators"))
    assert config_of(tmp_path / "back")["transformer_layer_config"]["sliding_window"] == 512


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"plan": 3}', "[" * 100_000])
def test_a_damaged_record_is_said(text: str, tmp_path: Path) -> None:
    fix_keys(Request(str(SAMPLE), str(tmp_path / "sg")))
    (tmp_path / "sg" / RECORD).write_text(text)
    report = fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "vllm"), to="vllm"))
    assert report.verdict == "pass"
    (found,) = [f for f in report.findings if f.code == "CFG016"]
    assert found.severity.value == "warning"
    assert found.location.file == RECORD
    assert "can't be used" in found.message


def test_odd_entries_are_left_alone() -> None:
    document = {
        "verifier": {"name_or_path": "a/b", "architectures": "x"},
        "unsaid": {
            "hidden_size": 1,
            "x": None,
            "sliding_window": "512",
            "layer_types": [1],
            "fc_bias": 1,
            "target_hidden_size": True,
        },
        "plan": {
            "synthesised": [3, {"tensor": 4}, {"tensor": "t2d"}],
            "config": {
                "edits": [
                    3,
                    {"pointer": "/speculators_config/a/b", "action": "dropped"},
                    {"pointer": "/speculators_config/algorithm", "action": "set", "value": 1},
                ]
            },
        },
    }
    recorded = read_record(json.dumps(document).encode())
    assert recorded.verifier == Verifier("a/b", ())
    assert recorded.derived == {"t2d"}
    assert recorded.blocks == {}
    draft = sample()
    assert (
        with_recorded(draft, recorded) is draft
    )  # what the config states stays, and the rest can't be taken


def test_every_kind_of_fact_is_taken_up() -> None:
    recorded = read_record(
        json.dumps(
            {
                "verifier": 3,
                "unsaid": {
                    "sliding_window": 9,
                    "markov_rank": 4,
                    "rope": {"theta": 3.0, "scaling": None, "partial_rotary_factor": 0.5},
                },
                "plan": {},
            }
        ).encode()
    )
    draft = sample()
    bare = replace(draft, facts=replace(draft.facts, rope=None))
    facts = with_recorded(bare, recorded).facts
    assert (facts.sliding_window, facts.extra["markov_rank"]) == (9, 4)
    assert facts.rope == Rope(3.0, None, 0.5)


def test_the_given_target_is_the_one_that_is_recorded(tmp_path: Path) -> None:
    fix_keys(Request(str(SAMPLE), str(tmp_path / "sg"), target="llama-3.1-8b-instruct"))
    recorded = json.loads((tmp_path / "sg" / RECORD).read_text())["verifier"]
    assert recorded["name_or_path"] == "meta-llama/Llama-3.1-8B-Instruct"
    fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "back"), to="speculators"))
    assert config_of(tmp_path / "back")["speculators_config"]["verifier"] == recorded


@pytest.mark.parametrize(
    "unsaid",
    [
        {"rope": {"theta": 1.0, "other": 2}},
        {"rope": 3},
        {"rope": [3]},
        {"capture_layers": ["1"]},
        {"capture_layers": 2},
        {"rms_norm_eps": "1"},
        {"hidden_act": 1},
    ],
)
def test_a_fact_of_another_kind_is_not_taken(unsaid: dict[str, Any]) -> None:
    draft = sample()
    (name,) = unsaid
    bare = replace(draft, facts=replace(draft.facts, **{name: None}))
    assert with_recorded(bare, read_record(json.dumps({"plan": {}, "unsaid": unsaid}).encode())) is bare


def test_another_verifier_and_edits_that_are_no_list() -> None:
    recorded = read_record(b'{"plan": {"config": {"edits": 3}, "synthesised": 3}, "unsaid": 3}')
    assert (recorded.derived, recorded.unsaid, recorded.blocks, recorded.damage) == (
        frozenset(),
        {},
        {},
        None,
    )


def test_a_folder_for_both_engines_keeps_the_window_and_names_sglang_s_flag(tmp_path: Path) -> None:
    report = fix_keys(Request(str(windowed(tmp_path)), str(tmp_path / "dual"), to="dual"))
    (found,) = [f for f in report.findings if f.code == "LAY001"]
    assert "vLLM does: an SGLang server must get the flag" in found.message
    assert report.facts["plan"]["launch_flags"] == ["--speculative-draft-window-size", "2048"]
    assert config_of(tmp_path / "dual")["sliding_window"] == 2048


def test_another_target_than_the_recorded_one_points_at_the_record(tmp_path: Path) -> None:
    fix_keys(Request(str(SAMPLE), str(tmp_path / "sg"), target="llama-3.1-8b-instruct"))
    report = fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "vllm"), to="vllm", target="qwen3-8b"))
    (found,) = [f for f in report.findings if f.code == "CFG008"]
    assert (found.location.file, found.location.pointer) == (RECORD, "/verifier/name_or_path")
    assert found.hint == "give the target that the draft was trained for"
