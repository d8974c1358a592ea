"""The page: complete, self-contained, and opened in a real browser without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ckpt_tools.render import Style, render
from ckpt_tools.render._charts import Scale, points, scale_of, value_range
from ckpt_tools.render._html import Html, el, join, name
from tests.unit.render.reports import (
    STATS,
    accept_report,
    all_reports,
    clean_report,
    error_report,
    hostile_report,
    inspect_report,
    plan_report,
    training_report,
    verify_report,
)

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_VOID = {"meta", "link", "wbr"}


class Reader(HTMLParser):
    """Elements and text; unbalanced tags are an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.said.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def said(page: str) -> str:
    return " ".join(" ".join(read(page).said).split())


def test_a_failed_verify() -> None:
    text = said(render("html", [verify_report()], Style()))
    for part in (
        "fail drafts/k25",
        "target kimi-k2.5 KimiK25ForConditionalGeneration (registry)",
        "the draft's context is 131072 and 262144 is served",
        "config.json:17 /max_position_embeddings",
        "serve with --context-length 131072",
        "About CTX001:",
        "Why it breaks serving",
        "What sglang==0.5.23 loads",
        "4 parameters are filled by: 1 target, 1 checkpoint, 1 partly, 1 nothing",
        "21504 narrowed to 12288",
        "Tensors that reach no parameter:",
        "base 50000, yarn, factor 64",
        "captured: outputs of layers -1, 29, 57 of 61",
        "2 checks were skipped",
    ):
        assert part in text, part


def test_rows_that_must_agree_say_when_they_differ() -> None:
    page = render("html", [verify_report()], Style())
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    width = next(r for r in rows if "as fc takes it" in r)
    vocabulary = next(r for r in rows if "<td>vocabulary<" in r)
    assert "differs" in width and "7168" in width
    assert "differs" not in vocabulary


def test_values_are_drawn() -> None:
    page = render("html", [inspect_report()], Style())
    assert page.count('class="range"') == 2  # two tensors have finite values and are no table
    for part in ("no finite values", "a table of ids", "not read", "3.0%"):
        assert part in page
    assert "ValueError: no such class" in said(page)


def test_acceptance_is_drawn() -> None:
    page = render("html", [accept_report()], Style())
    assert "Best depth: 2." in page
    assert page.count('class="bar best"') == 2
    assert "tokens per verification, by depth" in page
    assert "by depth" in page and "2.36" in page


def test_plan_training_and_failure() -> None:
    text = said(render("html", [plan_report()], Style()))
    assert "Plan: speculators to sglang, 2 tensors" in text and "--context-length 131072" in text
    assert "the target's own norm" in text and "F32 to BF16" in text and "edits of config.json: 1" in text
    assert "ckpt fix-keys out/1 OUT" in said(render("html", [training_report()], Style()))
    text = said(render("html", [error_report()], Style()))
    assert "drafts/gone: no such file or folder" in text and "check the path" in text


def test_several_reports_have_an_index_and_each_its_place() -> None:
    page = render("html", [verify_report(), clean_report()], Style(many=True))
    assert "2 reports" in page
    assert 'href="#r1"' in page and 'id="r1"' in page


def test_quiet_leaves_infos_out() -> None:
    assert "LCH001" in render("html", [verify_report()], Style())
    assert "a flag twice" not in render("html", [verify_report()], Style(verbosity=-1))


@pytest.mark.parametrize("report", all_reports(), ids=lambda r: r.command)
def test_self_contained(report: object) -> None:
    page = read(render("html", [report], Style()))  # type: ignore[list-item]
    assert page.tags.isdisjoint({"script", "iframe", "img", "object", "embed", "form", "base"})
    for key, value in page.attributes:
        assert not key.startswith("on")
        if key in ("href", "src", "xlink:href", "action"):
            assert value is not None and value.startswith(("#", "data:,"))


def test_nothing_hostile_becomes_markup() -> None:
    page = render("html", [hostile_report()], Style())
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert "<script>alert(1)</script>" in said(page)
    assert page.encode("utf-8")


def test_elements_escape_what_isn_t_markup() -> None:
    made = el("p", "<b>", Html("<i>x</i>"), None, cls='"', data_x=1.5, hidden=True, off=False, none=None)
    assert made == '<p class="&quot;" data-x="1.5" hidden>&lt;b&gt;<i>x</i></p>'
    assert join("a&b", None) == "a&amp;b"
    assert name("a.b<c") == "<code>a.<wbr>b&lt;c</code>"


def test_one_scale_for_all_rows() -> None:
    scale = scale_of([STATS["fc.weight"], STATS["norm.weight"], STATS["lost.weight"]])
    assert scale.largest == 1.0 and scale.knee == 0.1
    assert scale.x(0) == scale.width / 2
    assert scale.x(-1) == pytest.approx(4) and scale.x(1) == pytest.approx(scale.width - 4)
    assert scale.x(5) == scale.x(1)
    assert scale_of([]) == Scale(1.0, 1.0)
    drawn = value_range(STATS["fc.weight"], scale)
    assert "from -0.5 to 0.5, mean 0, deviation 0.1" in drawn


def test_points_take_lists_and_mappings() -> None:
    assert [(p.at, p.value) for p in points({"2": 0.5, "1": {"value": 0.75}})] == [(1, 0.75), (2, 0.5)]
    assert [(p.at, p.value) for p in points([0.5, None, {"conditional": 0.25}])] == [(1, 0.5), (3, 0.25)]
    assert points(None) == []


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(tmp_path: Path, scheme: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(render("html", all_reports(), Style()), "utf-8")
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--v=0",
            "--window-size=1000,2000",
            f"--screenshot={shot}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    complaints = [x for x in done.stderr.splitlines() if "CONSOLE" in x or "Refused to" in x]
    assert complaints == []
    assert "the draft's context is 131072 and 262144 is served" in done.stdout
    assert shot.stat().st_size > 20_000


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_the_browser_would_complain(tmp_path: Path) -> None:
    """The test above sees what it looks for: a script that the page's policy forbids is logged."""
    page = tmp_path / "report.html"
    text = render("html", [clean_report()], Style()).replace("</main>", "<script>let x = 1</script></main>")
    page.write_text(text, "utf-8")
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" in done.stderr
