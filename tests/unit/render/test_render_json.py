"""JSON: the schema holds for every report, and no text in it can move a terminal or break an encoding."""

from __future__ import annotations

import json

import pytest

from ckpt_tools.model import Report
from ckpt_tools.render import Style, render
from ckpt_tools.schemas import violations
from tests.unit.render.reports import all_reports, clean_report, hostile_report


@pytest.mark.parametrize("report", all_reports(), ids=lambda r: r.command)
def test_schema(report: Report) -> None:
    assert list(violations("report.v1.json", json.loads(render("json", [report], Style())))) == []


def test_one_is_an_object_and_many_are_a_list() -> None:
    assert isinstance(json.loads(render("json", [clean_report()], Style())), dict)
    assert len(json.loads(render("json", [clean_report()], Style(many=True)))) == 1
    assert len(json.loads(render("json", [clean_report(), clean_report()], Style()))) == 2


def test_hostile_names_come_back_as_they_were() -> None:
    report = hostile_report()
    text = render("json", [report], Style())
    text.encode("utf-8")
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert json.loads(text)["findings"][0]["location"]["tensor"] == report.findings[0].location.tensor


def test_containers_of_any_kind_are_written() -> None:
    from types import MappingProxyType

    report = Report(
        "inspect", clean_report().subject, "pass", facts={"a": MappingProxyType({"b": frozenset({1})})}
    )
    assert json.loads(render("json", [report], Style()))["facts"] == {"a": {"b": [1]}}
    with pytest.raises(TypeError, match="object in a report"):
        render("json", [Report("inspect", clean_report().subject, "pass", facts={"a": object()})], Style())
