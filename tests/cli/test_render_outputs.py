"""Every output of the commands that report: schemas over the fixtures, exit statuses, files, no half-written page."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ckpt_tools.cli.root import main
from ckpt_tools.render import renderers
from ckpt_tools.schemas import violations
from tests.conftest import FIXTURES

DRAFTS = sorted(
    {p.parent for p in (FIXTURES / "formats").rglob("config.json")} | {FIXTURES / "models" / "llama_tiny"}
)
CONFIGS = sorted((FIXTURES / "configs").glob("*.json"))
TARGET = str(FIXTURES / "models" / "llama_tiny")
TINY = FIXTURES / "formats" / "tiny"
GOOD, BAD = TINY / "draft-midlayer", FIXTURES / "formats" / "speculators" / "eagle3_tiny"
NAMES = [str(p.relative_to(FIXTURES)) for p in DRAFTS]


@pytest.fixture
def ckpt(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process: (exit status, stdout)."""

    def call(*args: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main.main(list(args), prog_name="ckpt")
        return int(end.value.code or 0), capsys.readouterr().out

    return call


def valid(text: str) -> list[dict[str, Any]]:
    document = json.loads(text)
    assert list(violations("report.v1.json", document)) == []
    return document if isinstance(document, list) else [document]


@pytest.mark.parametrize("name", NAMES)
def test_inspect_fits_the_schema(name: str, ckpt: Any) -> None:
    status, out = ckpt(
        "inspect", str(FIXTURES / name), "--engine", "sglang", "--engine", "vllm", "--tensors", "--stats", "--format", "json"
    )  # fmt: skip
    (report,) = valid(out)
    assert (report["verdict"] == "fail") is (status == 1)
    facts = report["facts"]
    assert {
        "format",
        "evidence",
        "algorithm",
        "num_tensors",
        "num_parameters",
        "total_bytes",
        "dtypes",
    } <= set(facts)
    assert set(facts["load"]) >= {"parameters", "unused", "refused"}
    for fill in facts["load"]["parameters"].values():
        assert fill["filled_by"] in ("checkpoint", "target", "default", "partly", "nothing")


@pytest.mark.parametrize("name", NAMES)
def test_verify_fits_the_schema(name: str, ckpt: Any) -> None:
    status, out = ckpt(
        "verify", str(FIXTURES / name), "--target", TARGET, "--engine", "sglang", "--engine", "vllm==0.33.0", "--deep",
        "--tp", "2", "--format", "json",
    )  # fmt: skip
    (report,) = valid(out)
    assert (report["verdict"], status) in (("pass", 0), ("fail", 1))
    assert report["target"]["id"] == TARGET
    assert [e["name"] for e in report["engines"]] == ["sglang", "vllm"]
    assert report["subject"]["content"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
def test_fix_keys_fits_the_schemas(name: str, to: str, ckpt: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, text = ckpt(
        "fix-keys", str(FIXTURES / name), str(out), "--to", to, "--target", TARGET, "--format", "json"
    )
    (report,) = valid(text)
    if report["verdict"] == "error":  # no draft
        assert status == 3
        return
    assert list(violations("plan.v1.json", report["facts"]["plan"])) == []
    assert out.exists() is (status == 0)
    if status == 0:
        record = json.loads((out / "conversion.json").read_text("utf-8"))
        assert list(violations("conversion.v1.json", record)) == []


@pytest.mark.parametrize("file", CONFIGS, ids=lambda p: p.stem)
def test_published_configs_alone_fit_the_schema(file: Path, ckpt: Any, tmp_path: Path) -> None:
    config = json.loads(file.read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config.get("config", config)), "utf-8")
    for command in ("inspect", "verify"):
        valid(ckpt(command, str(tmp_path), "--offline", "--format", "json")[1])


def test_a_command_that_fails_still_reports(ckpt: Any, tmp_path: Path) -> None:
    for command in (["inspect"], ["verify"], ["fix-keys"]):
        args = [
            *command,
            str(tmp_path / "gone"),
            *([str(tmp_path / "out")] if command == ["fix-keys"] else []),
        ]
        status, out = ckpt(*args, "--format", "json")
        (report,) = valid(out)
        assert (status, report["verdict"], report["error"]["kind"]) == (3, "error", "input")
        assert report["error"]["message"]


@pytest.mark.parametrize("style", renderers())
@pytest.mark.parametrize(("draft", "expected"), [(GOOD, 0), (BAD, 1), ("gone/x/y", 3)])
def test_no_output_changes_the_exit_status(style: str, draft: Path | str, expected: int, ckpt: Any) -> None:
    status, out = ckpt("verify", str(draft), "--target", TARGET, "--format", style)
    assert status == expected
    assert out or style == "table"


@pytest.mark.parametrize("style", renderers())
def test_output_to_a_file_is_what_stdout_would_show(style: str, ckpt: Any, tmp_path: Path) -> None:
    file = tmp_path / "report"
    shown = ckpt("verify", str(GOOD), "--target", TARGET, "--format", style)[1]
    assert ckpt("verify", str(GOOD), "--target", TARGET, "--format", style, "--output", str(file))[1] == ""
    assert file.read_text("utf-8") == shown


def test_sarif_of_real_reports_is_valid(ckpt: Any) -> None:
    schema = json.loads((FIXTURES / "schemas" / "sarif-2.1.0-rtm.5.json").read_text("utf-8"))
    validator = jsonschema.Draft4Validator(schema)
    paths = [str(d) for d in DRAFTS]
    status, out = ckpt("verify", *paths, "--target", TARGET, "--format", "sarif")
    log = json.loads(out)
    validator.validate(log)
    assert status == 1
    assert len(log["runs"]) == len(paths)
    assert len({r["automationDetails"]["id"] for r in log["runs"]}) == len(paths)
    for run in log["runs"]:
        prints = [r["partialFingerprints"]["ckptFinding/v1"] for r in run["results"]]
        assert len(prints) == len(set(prints))
        uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]]
        assert all(u.startswith("fixtures/") for u in uris)


def test_junit_of_real_reports_agrees_with_their_verdicts(ckpt: Any) -> None:
    paths = [str(d) for d in DRAFTS]
    reports = valid(ckpt("verify", *paths, "--target", TARGET, "--format", "json")[1])
    suites = ET.fromstring(ckpt("verify", *paths, "--target", TARGET, "--format", "junit")[1])
    assert len(suites) == len(reports)
    for suite, report in zip(suites, reports, strict=True):
        assert (suite.get("failures") != "0") is (report["verdict"] == "fail")


def test_widths_come_from_columns(ckpt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def longest() -> int:
        lines: Iterator[str] = iter(ckpt("verify", str(BAD), "--target", "kimi-k2.5")[1].splitlines())
        return max(len(x) for x in lines if x.startswith(("error", "  hint")))

    monkeypatch.setenv("COLUMNS", "160")
    wide = longest()
    monkeypatch.setenv("COLUMNS", "72")
    assert longest() <= 72 < wide


def test_a_name_with_an_escape_sequence_moves_no_cursor(ckpt: Any, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    numpy = pytest.importorskip("numpy")
    config = json.loads((GOOD / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({"x\x1b[2J\n::error::y": numpy.zeros(2, "float32")}, tmp_path / "model.safetensors")
    for style in renderers():
        for command in ("inspect", "verify"):
            extra = ["--tensors"] if command == "inspect" else []
            out = ckpt(command, str(tmp_path), "--engine", "sglang", "--format", style, *extra)[1]
            assert "\x1b" not in out
            assert "\n::error::y" not in out
