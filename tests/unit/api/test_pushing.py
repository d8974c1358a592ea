"""What of a report is published."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ckpt_tools.api import pushing
from ckpt_tools.api.launching import LaunchRequest
from ckpt_tools.api.pushing import PushRequest, acceptance_of, public_name, read_report
from ckpt_tools.checks.base import finding
from ckpt_tools.errors import UsageError
from ckpt_tools.hub.published import without_path
from ckpt_tools.model import Engine, Report, Severity, Skipped, Subject, Target
from ckpt_tools.serving.args.command import LaunchPlan


def test_a_path_is_replaced_wherever_it_stands_and_nothing_else() -> None:
    report = Report(
        "verify",
        Subject("me/draft"),
        "pass",
        facts={"a": ["/m/target", {"/m/target": "at /m/target/config.json"}], "n": 3, "x": "/a/m/target"},
        findings=(finding("ENG020", "the target /m/target", hint="/m/target-2 and /m/target.bak stay"),),
        skipped=(Skipped("QNT001", "target /m/target states none"),),
    )
    out = without_path(report, "/m/target", "tiny\\1")
    assert out.facts["a"] == ["tiny\\1", {"/m/target": "at tiny\\1/config.json"}]
    assert (out.facts["n"], out.facts["x"]) == (3, "/a/m/target")
    assert out.findings[0].message == "the target tiny\\1"
    assert out.findings[0].hint == "/m/target-2 and /m/target.bak stay"
    assert out.findings[0].severity is Severity.ERROR
    assert out.skipped[0].reason == "target tiny\\1 states none"
    assert out.subject == report.subject


def test_the_name_that_others_know() -> None:
    plain = PushRequest("d", "me/d", "t")
    given = PushRequest("d", "me/d", "t", base_model="acme/t")
    assert public_name(plain, Target("/m/tiny", "local")) == "tiny"
    assert public_name(plain, Target("/m/tiny", "local", hf_repo="acme/tiny")) == "acme/tiny"
    assert public_name(given, Target("/m/tiny", "local")) == "acme/t"
    assert public_name(plain, Target("kimi-k2.5", "registry", hf_repo="moonshotai/Kimi-K2.5")) is None
    assert public_name(given, Target("kimi-k2.5", "registry")) == "acme/t"


def test_figures_with_what_they_were_measured_on() -> None:
    facts = {
        "source": "states", "texts": 64, "engine": None, "per_position": [0.7],
        "expected_length": {"1": {"mean": 1.7, "low": 1.6, "high": 1.8, "rounds": 9}},
    }  # fmt: skip
    made = acceptance_of(Report("accept", Subject("d"), "pass", facts=facts))
    assert made.conditions == {"from": "states", "texts": "64"}
    assert made.facts["expected_length"] == {"1": {"value": 1.7, "low": 1.6, "high": 1.8}}
    assert made.facts["per_position"] == [0.7]
    assert acceptance_of(Report("accept", Subject("d"), "pass")).facts["expected_length"] == {}


@pytest.mark.parametrize(
    ("verdict", "read"), [("pass", "pass"), ("fail", "fail"), ("error", "fail"), (None, "fail")]
)
def test_only_a_pass_is_a_pass(tmp_path: Path, verdict: str | None, read: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps({"command": "smoke", "verdict": verdict, "facts": {"device": "cpu"}}))
    made = read_report(str(file))
    assert (made.verdict, made.subject.content, made.facts) == (read, None, {"device": "cpu"})


def test_an_engine_without_a_command_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(request: LaunchRequest) -> Any:
        if request.engine == "sglang":
            raise UsageError("no algorithm for it")
        verdict = "pass" if request.engine.startswith("vllm") else "fail"
        engine = Engine(request.engine, "1", "1")
        return SimpleNamespace(
            plan=LaunchPlan(engine, ("serve", request.draft_as.path if request.draft_as else ""), ()),
            report=SimpleNamespace(verdict=verdict),
        )

    monkeypatch.setattr(pushing, "launch", fake)
    target = Target("/m/tiny", "local")
    assert pushing.serving_commands(PushRequest("d", "me/d", "t"), target) == {"vllm": "serve me/d"}
    some = PushRequest("d", "me/d", "t", engines=("sglang-ext", "sglang", "vllm"))
    assert pushing.serving_commands(some, target) == {"vllm": "serve me/d"}


def test_a_target_of_the_registry_has_no_place_here() -> None:
    report = Report("verify", Subject("d"), "pass", target=Target("kimi-k2.5", "registry"))
    assert (
        pushing._publishable(report, PushRequest("d", "me/d", "kimi-k2.5"), Target("kimi-k2.5", "registry"))
        is report
    )
