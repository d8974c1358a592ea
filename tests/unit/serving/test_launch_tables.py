"""The tables and the reading of flags against what the engines' own parsers answered."""

from __future__ import annotations

import json
import shlex

import pytest

from ckpt_tools.model import Severity
from ckpt_tools.serving.args import launch_problems, parse_launch, table
from ckpt_tools.serving.args.tables import certain, has_table, known_in, versions

from .pairs import FOLDER, PAIRS, engine, plan

RECORDED = json.loads((FOLDER / "accepted.json").read_text(encoding="utf-8"))
PARSER = {
    "unknown-flag", "ambiguous-flag", "bad-choice", "bad-flag-value", "no-model", "speculative-json", "stray-word",
}  # fmt: skip
PROGRAM = {"sglang": "python3 -m sglang.launch_server", "vllm": "vllm serve"}


@pytest.mark.parametrize(
    "answer", RECORDED["answers"], ids=lambda a: f"{a['engine']} {' '.join(a['argv'])[:60]}"
)
def test_refused_exactly_when_the_parser_refuses(answer: dict) -> None:
    asked = engine(answer["engine"])
    launch = parse_launch(f"{PROGRAM[asked.name]} {shlex.join(answer['argv'])}", asked.version)
    errors = [p for p in launch_problems(launch, asked) if p.id in PARSER and p.severity is Severity.ERROR]
    assert bool(errors) is not answer["accepted"], (answer.get("said"), errors)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["name"])
def test_the_command_is_the_one_that_the_parser_took(pair: dict) -> None:
    recorded = RECORDED["parsed"][pair["name"]]
    made = plan(pair)
    assert recorded["accepted"]
    assert list(made.argv[len(made.program) :]) == recorded["argv"]


def test_releases_of_the_tables() -> None:
    assert {"0.5.9", "0.5.12", "0.5.16", "0.5.23"} <= set(versions("sglang"))
    assert versions("vllm") == ("0.12.0", "0.32.0")
    assert has_table("sglang-ext")
    assert not has_table("trtllm")
    with pytest.raises(KeyError):
        table("trtllm")


def test_the_nearest_older_release_answers() -> None:
    assert table("sglang", "0.5.10").version == "0.5.9"
    assert table("sglang", "0.5.23").version == "0.5.23"
    assert table("sglang", "0.1").version == "0.4.6.post5"
    assert table("vllm", "0.33.0").version == "0.32.0"


def test_what_the_tables_know_of_a_flag() -> None:
    assert known_in("sglang", "--speculative-dspark-block-size") == ("0.5.16", "0.5.20", "0.5.23")
    assert certain("sglang", "0.5.9", "--speculative-dspark-block-size")
    assert certain("sglang", "0.5.10", "--num-speculative-tokens")  # neither 0.5.9 nor 0.5.12 has it
    assert not certain("sglang", "0.5.10", "--speculative-draft-window-size")  # 0.5.12 has it
    assert not certain("vllm", "0.33.0", "--anything")  # newer than every table


def test_lookup_as_argparse() -> None:
    sglang = table("sglang", "0.5.23")
    assert sglang.lookup("--tp").option is sglang.lookup("--tensor-parallel-size").option
    assert sglang.lookup("--tp").abbreviated
    assert sglang.lookup("--speculative-num").candidates == (
        "--speculative-num-draft-tokens",
        "--speculative-num-steps",
    )
    assert sglang.lookup("--speculative_num_steps").option is None
    assert sglang.lookup("-q").option is None
    assert sglang.closest("--speculative-num-step") == "--speculative-num-steps"
    assert sglang.closest("--zzz") is None
    assert table("vllm").lookup("--max_model_len").option is not None
