"""JUnit: valid against Jenkins' schema, failing exactly when the report does."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ckpt_tools.model import Report, Severity
from ckpt_tools.render import Style, render
from tests.conftest import FIXTURES
from tests.unit.render.reports import (
    all_reports,
    clean_report,
    error_report,
    finding,
    hostile_report,
    verify_report,
)


def suite(report: Report) -> ET.Element:
    (only,) = ET.fromstring(render("junit", [report], Style()))
    return only


def cases(report: Report) -> dict[str, list[str]]:
    return {str(c.get("name")): [child.tag for child in c] for c in suite(report).iter("testcase")}


@pytest.mark.parametrize("report", all_reports(), ids=lambda r: r.command)
def test_valid_against_the_schema(report: Report) -> None:
    xmlschema = pytest.importorskip("xmlschema", reason="xmlschema isn't installed")
    schema = xmlschema.XMLSchema(FIXTURES / "schemas" / "junit-10.xsd")
    document = render("junit", [report, clean_report()], Style())
    schema.validate(document)
    assert not schema.is_valid(
        document.replace("<testcase ", "<testkase ").replace("</testcase>", "</testkase>")
    )


def test_a_case_per_code_that_was_found_skipped_or_ran() -> None:
    assert cases(verify_report()) == {
        "verify verdict": ["system-out"],
        "CTX001 draft-context-shorter": ["failure"],
        "KEY001 tensor-ignored-by-engine": ["system-out"],
        "LCH001 launch-problem": ["system-out"],
        "VAL001 " + name("VAL001"): ["skipped"],
        "VAL002 " + name("VAL002"): ["skipped"],
        "DTY001 " + name("DTY001"): [],
    }


def name(code: str) -> str:
    from ckpt_tools.render._pages import page_of

    page = page_of(code)
    assert page is not None
    return page.name


def test_counts_and_texts() -> None:
    root = ET.fromstring(render("junit", [verify_report(), error_report()], Style()))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("8", "1", "1")
    first = root[0]
    assert (first.get("tests"), first.get("failures"), first.get("skipped")) == ("7", "1", "2")
    failure = first.find(".//failure")
    assert failure is not None
    assert failure.get("message") == "the draft's context is 131072 and 262144 is served"
    assert "at config.json:17 /max_position_embeddings" in (failure.text or "")
    assert "help: serve with" in (failure.text or "")
    properties = {p.get("name"): p.get("value") for p in first.iter("property")}
    assert properties["engine"] == "sglang==0.5.23 (--engine)"
    error = root[1].find(".//error")
    assert error is not None and error.get("message") == "drafts/gone: no such file or folder"


@pytest.mark.parametrize(
    ("verdict", "severities", "failures"),
    [
        ("fail", (Severity.ERROR, Severity.WARNING), 1),
        ("fail", (Severity.WARNING, Severity.INFO), 1),  # --fail-on warning
        ("pass", (Severity.ERROR,), 0),  # --fail-on never
        ("pass", (Severity.WARNING,), 0),
        ("fail", (), 1),  # a command that fails by its own measure
        ("fail", (Severity.INFO,), 1),
    ],
)
def test_a_suite_fails_exactly_when_the_report_does(
    verdict: str, severities: tuple[Severity, ...], failures: int
) -> None:
    codes = ("CTX001", "KEY001", "ROP004")
    found = tuple(finding(code, severity) for code, severity in zip(codes, severities, strict=False))
    assert suite(verify_report(verdict=verdict, findings=found)).get("failures") == str(failures)


def test_one_code_of_two_severities_is_one_case() -> None:
    found = (finding(), finding(severity=Severity.INFO, message="a smaller thing"))
    report = verify_report(findings=found, skipped=(), facts={})
    assert cases(report)["CTX001 draft-context-shorter"] == ["failure", "system-out"]


def test_hostile_names_stay_text() -> None:
    document = render("junit", [hostile_report()], Style())
    root = ET.fromstring(document)
    assert {e.tag for e in root.iter()} <= {
        "testsuites", "testsuite", "properties", "property", "testcase", "failure", "skipped", "system-out", "error",
    }  # fmt: skip
    assert document.encode("utf-8")
    assert not [c for c in document if ord(c) < 32 and c != "\n"]
