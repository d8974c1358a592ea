"""GitHub's workflow commands: places, escaping, and nothing that a checkpoint could forge."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.model import Location, Subject
from ckpt_tools.render import Style, render
from ckpt_tools.render._places import Around
from ckpt_tools.render.github import command, report_lines
from tests.unit.render.reports import clean_report, error_report, finding, hostile_report, verify_report

AROUND = Around(Path("/repo"), Path("/repo"))


def test_annotations() -> None:
    lines = list(report_lines(verify_report(), AROUND))
    assert lines == [
        "::error file=drafts/k25/config.json,line=17,title=CTX001 draft-context-shorter::"
        "the draft's context is 131072 and 262144 is served%0Aengine sglang==0.5.23%0A"
        "help: serve with --context-length 131072",
        "::warning file=drafts/k25/model.safetensors,title=KEY001 tensor-ignored-by-engine::"
        "t2d is ignored%0Atensor t2d%0Aengine sglang==0.5.23",
        "::notice file=drafts/k25/config.json,title=LCH001 launch-problem::"
        "a flag twice%0Alaunch, line 3%0Ahelp: serve with --context-length 131072",
        "ckpt verify drafts/k25: fail (1 error, 1 warning, 1 info)",
    ]


def test_quiet_leaves_infos_out() -> None:
    assert not [x for x in report_lines(verify_report(), AROUND, -1) if x.startswith("::notice")]


def test_a_clean_report_and_a_failure() -> None:
    assert list(report_lines(clean_report(), AROUND)) == ["ckpt verify drafts/k25: pass"]
    first, last = report_lines(error_report(), AROUND)
    assert (
        first == "::error title=ckpt verify drafts/gone::drafts/gone: no such file or folder%0Acheck the path"
    )
    assert last == "ckpt verify drafts/gone: error"


def test_the_workspace_is_what_paths_start_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    (tmp_path / "sub" / "drafts" / "k25").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "sub")
    assert render("github", [verify_report()], Style()).startswith("::error file=sub/drafts/k25/config.json,")


def test_a_file_elsewhere_is_named_in_the_message() -> None:
    text = next(iter(report_lines(verify_report(subject=Subject("/else/k")), AROUND)))
    assert text.startswith("::error title=CTX001")
    assert "%0Ain file:///else/k/config.json" in text


def test_properties_are_escaped() -> None:
    report = verify_report(subject=Subject("a,b:c%d"), findings=(finding(location=Location("config.json")),))
    assert next(iter(report_lines(report, AROUND))).startswith(
        "::error file=a%2Cb%3Ac%25d/config.json,title="
    )


def test_nothing_is_forged() -> None:
    lines = render("github", [hostile_report()], Style()).split("\n")
    assert [x.startswith("::") for x in lines] == [True, False]
    assert "\x1b" not in "".join(lines)


@given(st.text(), st.text())
def test_commands_come_back_as_they_were(message: str, title: str) -> None:
    """Undone as GitHub's runner does it (ActionCommand.cs: data and properties)."""
    text = command("error", {"title": title}, message)
    assert "\n" not in text and "\r" not in text
    head, _, data = text[2:].partition("::")
    _, _, value = head.partition("title=")

    def undo(escaped: str, *more: tuple[str, str]) -> str:
        for code, char in (("%0D", "\r"), ("%0A", "\n"), *more, ("%25", "%")):
            escaped = escaped.replace(code, char)
        return escaped

    assert undo(data) == message
    assert undo(value, ("%3A", ":"), ("%2C", ",")) == title
