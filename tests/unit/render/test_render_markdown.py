"""Markdown: tables that stay tables, text that stays text."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from ckpt_tools.render import Style, render
from ckpt_tools.render.markdown import cell, code, escape
from tests.unit.render.reports import (
    HOSTILE,
    clean_report,
    error_report,
    hostile_report,
    inspect_report,
    plan_report,
    verify_report,
)

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def test_a_failed_verify() -> None:
    text = render("markdown", [verify_report()], Style())
    lines = text.split("\n")
    assert lines[0] == "### ❌ ckpt verify `drafts/k25`: fail"
    assert "- target kimi-k2.5 KimiK25ForConditionalGeneration (registry)" in lines
    row = next(x for x in lines if x.startswith("| error"))
    assert "[CTX001](https://github.com/ckpt-tools/ckpt-tools/blob/main/docs/checks/CTX001.md)" in row
    assert "| `config.json:17 /max_position_embeddings` |" in row
    assert row.endswith("is served<br>*serve with --context-length 131072* |")
    assert "1 error, 1 warning, 1 info." in lines
    assert "<details><summary>What sglang==0.5.23 loads</summary>" in lines
    assert "| `model.norm.weight` | nothing |  |" in lines
    assert "| `model.fc.weight` | partly | `fc.weight`<br>21504 narrowed to 12288 |" in lines
    assert "<details><summary>2 checks skipped</summary>" in lines


def test_clean_failed_quiet() -> None:
    assert "Nothing found." in render("markdown", [clean_report()], Style())
    text = render("markdown", [error_report()], Style())
    assert text.startswith("### ⚠️ ckpt verify `drafts/gone`: error")
    assert "**drafts/gone: no such file or folder**\n\ncheck the path" in text
    quiet = render("markdown", [verify_report()], Style(verbosity=-1))
    assert "LCH001" not in quiet and "<details>" not in quiet


def test_engines_are_named_where_there_are_several() -> None:
    text = render("markdown", [verify_report(engines=inspect_report().engines)], Style())
    assert "<sub>sglang==0.5.23</sub>" in text
    text = render("markdown", [inspect_report()], Style())
    assert "What vllm==0.33.1 loads" in text and "Refused: ValueError: no such class" in text


def test_plan() -> None:
    text = render("markdown", [plan_report()], Style())
    assert "<details><summary>Plan: speculators to sglang, 2 tensors</summary>" in text
    assert "| `layers.0.mlp.up` | `midlayer.mlp.up` |" in text
    assert "| `verifier_norm.weight` | dropped: the target's own norm |" in text
    plan = {**plan_report().facts["plan"], "renames": [], "copies": [], "drops": [], "synthesised": []}
    cast = verify_report(facts={"plan": plan})
    assert "| `fc.weight` | cast from F32 to BF16 |" in render("markdown", [cast], Style())
    plan = {**plan, "casts": []}
    unchanged = verify_report(facts={"plan": plan})
    assert "All names stay." in render("markdown", [unchanged], Style())


def test_it_parses_as_meant() -> None:
    html = PARSER.render(render("markdown", [verify_report()], Style()))
    assert html.count("<table>") == 3
    assert html.count("<tr>") == 4 + 5 + 3


def test_nothing_hostile_becomes_markup() -> None:
    text = render("markdown", [hostile_report()], Style())
    html = PARSER.render(text)
    allowed = r"</?(h3|ul|li|p|table|thead|tbody|tr|th|td|code|em|strong|details|summary|sub)>|<br ?/?>|<a href=\"https://github[^\"]*\">|</a>"
    assert re.findall(r"<[^>]*>", re.sub(allowed, "", html)) == []
    assert "javascript:" not in re.sub(r"<code>.*?</code>", "", html).replace("(javascript:b)", "")
    tables = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    assert {r.count("<td>") for r in tables} <= {0, 2, 3, 4}


@pytest.mark.parametrize("text", ["a`b", "``", "`", " ", "a|b", "", HOSTILE])
def test_code_shows_what_it_was_given(text: str) -> None:
    from ckpt_tools.render._text import visible

    (inline,) = PARSER.parse(f"x {code(text)}")[1:2]
    spans = [c.content for c in inline.children or [] if c.type == "code_inline"]
    assert spans == ([visible(text)] if text.strip() else spans)
    assert "|" not in cell(text).replace("\\|", "")


@pytest.mark.parametrize("text", ["*a* _b_ [c](d) <e> & ~~f~~ `g` ![h](i) @j #1 $k$ a|b \\"])
def test_escaped_text_comes_back(text: str) -> None:
    from html import unescape

    html = PARSER.renderInline(escape(text))
    assert unescape(html) == text
    assert "<" not in html
