"""The terminal's report: snapshots at fixed widths, names that stay whole, nothing that moves a cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.errors import UsageError
from ckpt_tools.model import Location, Report, Subject
from ckpt_tools.render import Style, render, renderers
from ckpt_tools.render._layout import columns, together, wrapped
from ckpt_tools.render._text import fact, line, rope, short, size, visible
from tests.unit.render.reports import (
    SGLANG,
    VLLM,
    accept_report,
    all_reports,
    clean_report,
    error_report,
    finding,
    hostile_report,
    inspect_report,
    plan_report,
    training_report,
    verify_report,
)

USUAL = """\
drafts/k25  sglang eagle3
  engine sglang==0.5.23 (--engine)
  target kimi-k2.5 KimiK25ForConditionalGeneration (registry)
error[CTX001]: the draft's context is 131072 and 262144 is
  served
  hint: serve with --context-length 131072
warning[KEY001]: t2d is ignored
info[LCH001]: a flag twice
  hint: serve with --context-length 131072
fail: 1 error, 1 warning, 1 info"""

VERBOSE = """\
error[CTX001]: the draft's context is 131072 and 262144 is served
  --> config.json:17 /max_position_embeddings
   = engine: sglang==0.5.23
   = help: serve with --context-length 131072
   = see: ckpt explain CTX001
warning[KEY001]: t2d is ignored
  --> model.safetensors t2d
   = engine: sglang==0.5.23
   = fix: ckpt fix-keys IN OUT
   = see: ckpt explain KEY001
info[LCH001]: a flag twice
  --> launch:3
   = help: serve with --context-length 131072
   = see: ckpt explain LCH001
skipped (values are read with --deep): VAL001, VAL002
fail: 1 error, 1 warning, 1 info"""

LOADED = """\
  parameter                                 filled by   from
  model.embed_tokens.weight                 target
  model.midlayer.self_attn.qkv_proj.weight  checkpoint  midlayer.self_attn.{q,k,v}_proj.weight
  model.fc.weight                           partly      fc.weight (21504 narrowed to 12288)
  model.norm.weight                         nothing
  unused: layers.0.input_layernorm.weight, t2d"""


def test_usual() -> None:
    assert render("table", [verify_report()], Style(width=60)) == USUAL


def test_engines_are_named_where_there_are_several() -> None:
    text = render("table", [verify_report(engines=(SGLANG, VLLM))], Style())
    assert "  engine sglang==0.5.23\n" in text.partition("error[CTX001]")[2]
    alone = render("table", [verify_report()], Style())
    assert "  engine sglang==0.5.23\n" not in alone.partition("error[CTX001]")[2]


def test_verbose() -> None:
    text = render("table", [verify_report()], Style(verbosity=1, width=100))
    assert text.endswith(VERBOSE)
    assert LOADED in text


def test_quiet() -> None:
    assert render("table", [verify_report()], Style(verbosity=-1, width=100)) == (
        "error[CTX001]: the draft's context is 131072 and 262144 is served\n"
        "  hint: serve with --context-length 131072\n"
        "warning[KEY001]: t2d is ignored\n"
        "fail: 1 error, 1 warning, 1 info"
    )
    assert render("table", [clean_report()], Style(verbosity=-1)) == "pass"


def test_an_unsafe_fix_says_so() -> None:
    from ckpt_tools.model import Fix

    report = verify_report(findings=(finding(fix=Fix("rm x"), location=Location()),))
    text = render("table", [report], Style(verbosity=1))
    assert "   = fix: rm x (look at its result)" in text
    assert "-->" not in text


def test_inspect() -> None:
    text = render("table", [inspect_report()], Style(width=100))
    for part in (
        "  15 tensors (14 BF16, 1 I64), 1,234,567 parameters, 2.47 MB",
        "  wrapper prefix module.",
        "  capture_layers           [-1, 29, 57] (layer_output ids)",
        "  rope                     base 10000",
        "  tensor midlayer.**: layer 0 is named midlayer",
        "  midlayer.hidden_norm.weight  BF16  [7168]  = layers.0.hidden_norm.weight",
        "  odd.weight                   BF16  [2, 3]",
        "  sglang==0.5.23:",
        "  vllm==0.33.1:",
        "  refused: ValueError: no such class",
        "  engine vllm==0.33.1 (--engine, answered by the contract of 0.33.0)",
    ):
        assert part in text.split("\n"), part
    rows = [x.split() for x in text.split("\n")]
    assert ["norm.weight", "1", "1", "1", "1", "0", "1", "2"] in rows
    assert ["packed.weight", *"–––––––"] in rows
    assert "pass" not in text  # nothing was asked


def test_names_stay_whole_where_they_don_t_fit() -> None:
    text = render("table", [inspect_report()], Style(width=50))
    lines = text.split("\n")
    assert "  model.midlayer.self_attn.qkv_proj.weight  checkpoint" in lines
    assert "      midlayer.self_attn.{q,k,v}_proj.weight" in lines
    assert "…" not in text


def test_plan_training_tables_failure() -> None:
    text = render("table", [plan_report()], Style())
    for part in (
        "  speculators → sglang: 2 tensors, 1 renamed, 1 under a second name, 1 dropped, 1 derived, 1 cast",
        "  layers.0.mlp.up  → midlayer.mlp.up",
        "  a                → also b",
        "  drop verifier_norm.weight: the target's own norm",
        "  derive t2d: from d2t",
        "  serve with --context-length 131072",
        "  0 B shared, 346 kB copied",
        "  written to out",
    ):
        assert part in text.split("\n"), part
    text = render("table", [training_report()], Style())
    assert "  out/1 (best)  loss 1.25" in text and "  next: ckpt fix-keys out/1 OUT" in text
    text = render("table", [accept_report()], Style())
    assert "  depth  length\n  1      1.8\n  2      2.36" in text
    text = render("table", [error_report()], Style())
    assert text.endswith("error: drafts/gone: no such file or folder\nhint: check the path")


def test_several_reports_are_apart() -> None:
    assert "pass\n\ndrafts/k25" in render("table", [clean_report(), clean_report()], Style())


def test_colour_only_when_asked() -> None:
    plain = render("table", all_reports(), Style())
    assert "\x1b" not in plain
    coloured = render("table", [verify_report()], Style(color=True))
    assert "\x1b[31m\x1b[1merror[CTX001]\x1b[0m: the draft's" in coloured


def test_markup_and_emoji_of_a_message_are_text() -> None:
    report = verify_report(findings=(finding(message="[bold]x[/] :smile: [red]y"),))
    assert "error[CTX001]: [bold]x[/] :smile: [red]y" in render("table", [report], Style())


def test_hostile_names_move_nothing() -> None:
    text = render("table", [hostile_report()], Style(verbosity=1))
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert not [x for x in text.split("\n") if x.startswith("::")]
    assert "\\x1b[31m" in text and "\\u202e" in text and "\\udcff" in text


def test_renderers_are_found() -> None:
    assert renderers() == ("table", "github", "html", "json", "junit", "markdown", "sarif")
    with pytest.raises(UsageError, match="--format xml"):
        render("xml", [], Style())


@pytest.mark.parametrize(
    ("names", "one"),
    [
        ([], ""),
        (["a.b"], "a.b"),
        (["l.q_proj.weight", "l.k_proj.weight"], "l.{q,k}_proj.weight"),
        (["mlp.w1.weight", "mlp.w3.weight"], "mlp.{w1,w3}.weight"),
        (["mlp.gate_proj.weight", "mlp.up_proj.weight"], "mlp.{gate,up}_proj.weight"),
        (["a", "b"], "a, b"),
        (["x.a", "x.a.b"], "x.a, x.a.b"),
        (["fc.weight", "fc.0.weight"], "fc.weight, fc.0.weight"),
        (["ab", "ac"], "ab, ac"),
    ],
)
def test_together(names: list[str], one: str) -> None:
    assert together(names) == one


@given(st.lists(st.text("abq_.", min_size=1, max_size=12), min_size=2, max_size=4, unique=True))
def test_together_loses_no_name(names: list[str]) -> None:
    text = together(names)
    if "{" in text:
        start, _, rest = text.partition("{")
        middle, _, end = rest.partition("}")
        assert [start + m + end for m in middle.split(",")] == names
    else:
        assert text == ", ".join(names)


@given(st.text(), st.integers(20, 120))
def test_wrapping_breaks_no_word(text: str, width: int) -> None:
    words = line(text).split()
    assert " ".join(wrapped(line(text), width, "  ", "    ")).split() == words


def test_an_inspect_of_little_shows_little() -> None:
    report = Report(
        "inspect",
        Subject("x"),
        "pass",
        facts={"num_tensors": 0, "num_parameters": 0, "total_bytes": 0, "dtypes": {}},
    )
    assert render("table", [report], Style()) == "x  unrecognised\n  0 tensors (), 0 parameters, 0 B"


def test_a_plan_that_only_renames_nothing() -> None:
    plan = {
        **plan_report().facts["plan"],
        "renames": [],
        "copies": [],
        "drops": [],
        "synthesised": [],
        "casts": [],
    }
    plan |= {"launch_flags": [], "bytes_copied": None}
    text = render(
        "table", [verify_report(facts={"plan": plan}, findings=(), skipped=(), verdict="pass")], Style()
    )
    assert text.split("\n")[-2:] == ["  speculators → sglang: 0 tensors", "pass"]


def test_the_verifier_in_words() -> None:
    assert fact("verifier", {"name": "a/b", "architectures": ["C"]}) == "a/b (C)"
    assert fact("verifier", {"name": None, "architectures": []}) == "not named"
    assert fact("verifier", None) == "–"


def test_columns_of_nothing() -> None:
    assert columns([], 80) == []
    assert columns([["a"]], 1) == ["  a"]


@given(st.text())
def test_visible_text_is_printable(text: str) -> None:
    shown = line(text)
    assert all(c.isprintable() or c.isspace() for c in shown)
    assert "\n" not in visible(text) and "\x1b" not in visible(text)
    shown.encode("utf-8")


def test_short_values() -> None:
    assert [short(v) for v in (None, True, 0.1234567, {"a": 1, "b": None}, [1, 2])] == [
        "–", "true", "0.123457", '{"a": 1}', "[1, 2]",
    ]  # fmt: skip
    assert [size(n) for n in (0, 999, 1500, 2_500_000, 3_000_000_000, 4.5e12, 5e15)] == [
        "0 B", "999 B", "1.5 kB", "2.5 MB", "3 GB", "4.5 TB", "5e+03 TB",
    ]  # fmt: skip
    assert rope(
        {"theta": None, "scaling": {"type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.5}
    ) == ("base not stated, linear, factor 2, partial 0.5")
