"""SARIF: valid against the schema, places relative to the repository, fingerprints that last."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ckpt_tools.model import Location, Report, Severity, Subject
from ckpt_tools.render import Style, render
from ckpt_tools.render._places import Around
from ckpt_tools.render.sarif import sarif_log
from tests.conftest import FIXTURES
from tests.unit.render.reports import (
    HOSTILE,
    VLLM,
    all_reports,
    error_report,
    finding,
    hostile_report,
    inspect_report,
    verify_report,
)

AROUND = Around(Path("/repo"), Path("/repo/ci"), frozenset({"owner/draft@main", "hf://owner/draft"}))


def log(*reports: Report, around: Around = AROUND) -> dict[str, Any]:
    return json.loads(json.dumps(sarif_log(reports, around)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def validator() -> jsonschema.protocols.Validator:
    schema = json.loads((FIXTURES / "schemas" / "sarif-2.1.0-rtm.5.json").read_text("utf-8"))
    return jsonschema.Draft4Validator(schema)


@pytest.mark.parametrize("report", all_reports(), ids=lambda r: r.command)
def test_valid_against_the_schema(report: Report, validator: jsonschema.protocols.Validator) -> None:
    validator.validate(log(report))
    validator.validate(json.loads(render("sarif", [report, report], Style())))


def test_the_schema_would_notice(validator: jsonschema.protocols.Validator) -> None:
    broken = log(verify_report())
    broken["runs"][0]["results"][0]["level"] = "fatal"
    assert not validator.is_valid(broken)


def test_rules_levels_and_places() -> None:
    (run,) = log(verify_report())["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == ["CTX001", "KEY001", "LCH001", "VAL001", "VAL002"]
    assert rules[0]["helpUri"].endswith("/docs/checks/CTX001.md")
    assert rules[0]["defaultConfiguration"] == {"level": "error"}
    assert "How to fix" in rules[0]["help"]["markdown"]
    first, second, third = run["results"]
    assert [r["level"] for r in run["results"]] == ["error", "warning", "note"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    physical = first["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "ci/drafts/k25/config.json", "uriBaseId": "%SRCROOT%"}
    assert physical["region"] == {"startLine": 17}
    assert first["locations"][0]["logicalLocations"] == [
        {
            "name": "max_position_embeddings",
            "fullyQualifiedName": "/max_position_embeddings",
            "kind": "property",
        }
    ]
    assert first["message"]["text"].endswith("\nHelp: serve with --context-length 131072")
    assert first["properties"]["engine"] == "sglang==0.5.23"
    weights = second["locations"][0]
    assert weights["physicalLocation"] == {
        "artifactLocation": {"uri": "ci/drafts/k25/model.safetensors", "uriBaseId": "%SRCROOT%"}
    }
    assert weights["logicalLocations"] == [{"name": "t2d", "fullyQualifiedName": "t2d", "kind": "tensor"}]
    assert second["properties"]["fix"] == {"command": "ckpt fix-keys IN OUT", "safe": True}
    assert third["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "launch:3"
    assert "region" not in third["locations"][0]["physicalLocation"]


def test_the_run_says_what_it_was_about() -> None:
    run = log(verify_report(engines=(VLLM,)))["runs"][0]
    assert run["automationDetails"]["id"] == "ckpt/verify/ci/drafts/k25/"
    assert run["properties"]["verdict"] == "fail"
    assert run["properties"]["engines"] == [
        {"name": "vllm", "version": "0.33.1", "contract": "0.33.0", "why": "--engine"}
    ]
    assert run["properties"]["target"]["id"] == "kimi-k2.5"
    assert run["invocations"][0]["executionSuccessful"] is True
    notes = run["invocations"][0]["toolConfigurationNotifications"]
    assert notes[0]["associatedRule"] == {"id": "VAL001"}


def test_one_run_per_report_each_its_own_category() -> None:
    runs = log(verify_report(), verify_report(subject=Subject("drafts/other")))["runs"]
    assert len({r["automationDetails"]["id"] for r in runs}) == 2


def test_a_command_that_failed() -> None:
    run = log(error_report())["runs"][0]
    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is False
    note = run["invocations"][0]["toolExecutionNotifications"][0]
    assert note["message"]["text"] == "drafts/gone: no such file or folder check the path"


def test_fingerprints_outlast_messages_lines_and_versions() -> None:
    def prints(*findings: Any) -> list[str]:
        run = log(verify_report(findings=findings))["runs"][0]
        return [r["partialFingerprints"]["ckptFinding/v1"] for r in run["results"]]

    one = finding()
    moved = replace(
        one, message="other words", engine="sglang==0.6.0", location=replace(one.location, line=99)
    )
    assert prints(one) == prints(moved)
    assert prints(one) != prints(replace(one, engine="vllm==0.33.0"))
    assert prints(one) != prints(replace(one, location=Location("config.json", "/other")))
    twice = prints(one, one)
    assert len(set(twice)) == 2 and twice[0] == prints(one)[0]


@pytest.mark.parametrize(
    ("subject", "file", "uri", "based"),
    [
        ("k25", "config.json", "ci/k25/config.json", True),
        ("k25", None, "ci/k25/config.json", True),
        ("../drafts/k 25", "a#b.json", "drafts/k%2025/a%23b.json", True),
        (".", "config.json", "ci/config.json", True),
        ("/repo/k/model.safetensors", None, "k/model.safetensors", True),
        ("/repo/k/model.safetensors", "config.json", "k/config.json", True),
        ("/elsewhere/k", "config.json", "file:///elsewhere/k/config.json", False),
        (
            "owner/draft@main",
            "config.json",
            "https://huggingface.co/owner/draft/blob/main/config.json",
            False,
        ),
        ("hf://owner/draft", None, "https://huggingface.co/owner/draft/blob/main/config.json", False),
    ],
)
def test_places(subject: str, file: str | None, uri: str, based: bool) -> None:
    report = verify_report(subject=Subject(subject), findings=(finding(location=Location(file)),))
    artifact = log(report)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact["uri"] == uri
    assert ("uriBaseId" in artifact) is based


def test_relative_to_the_repository_that_is_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    inner = tmp_path / "repo" / "a" / "b"
    (inner / "drafts" / "k25").mkdir(parents=True)
    monkeypatch.chdir(inner)
    run = json.loads(render("sarif", [verify_report()], Style()))["runs"][0]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == (
        "a/b/drafts/k25/config.json"
    )


def test_outside_a_repository_paths_start_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafts" / "k25").mkdir(parents=True)
    run = json.loads(render("sarif", [verify_report()], Style()))["runs"][0]
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "drafts/k25/config.json"
    assert str(tmp_path) not in json.dumps(run)


def test_a_hub_id_is_an_address_and_a_folder_of_that_name_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = verify_report(subject=Subject("owner/draft"))

    def uri() -> str:
        run = json.loads(render("sarif", [report], Style()))["runs"][0]
        return str(run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])

    assert uri() == "https://huggingface.co/owner/draft/blob/main/config.json"
    (tmp_path / "owner" / "draft").mkdir(parents=True)
    assert uri() == "owner/draft/config.json"


def test_hostile_names_stay_data() -> None:
    text = render("sarif", [hostile_report()], Style())
    assert text.isascii()
    assert "\x1b" not in text
    result = json.loads(text)["runs"][0]["results"][0]
    assert "\n::error" not in result["message"]["text"]
    assert HOSTILE not in result["message"]["text"]


def test_a_name_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"k\xff")
    run = json.loads(render("sarif", [verify_report(subject=Subject(name))], Style()))["runs"][0]
    assert run["automationDetails"]["id"] == "ckpt/verify/k%FF/"


def test_a_code_without_a_page_still_has_a_rule() -> None:
    report = verify_report(findings=(finding("ZZZ999", Severity.INFO, name="from-elsewhere"),), skipped=())
    (rule,) = log(report)["runs"][0]["tool"]["driver"]["rules"]
    assert rule == {"id": "ZZZ999", "name": "from-elsewhere", "shortDescription": {"text": "from-elsewhere"}}


def test_two_engines_are_one_run() -> None:
    assert len(log(inspect_report())["runs"]) == 1


def test_pages_are_those_of_the_checks_the_container_and_the_push() -> None:
    from ckpt_tools.render._pages import known_codes, page_of

    assert {"CTX001", "FIL001", "HUB001"} <= set(known_codes())
    for code in ("CTX001", "FIL001", "HUB001"):
        page = page_of(code)
        assert page is not None and page.title and page.sections[0][0] == "What it checks"
    assert page_of("ZZZ999") is None
