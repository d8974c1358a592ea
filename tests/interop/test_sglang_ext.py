"""Real SGLang with ckpt's model package, on a CPU: set CKPT_SGLANG_PYTHON to the Python of an installed SGLang.

More than one may be given, separated by ``:``; 0.5.9, 0.5.12 and 0.5.23 are those that the recordings are of.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES, ROOT
from tests.unit.sglang_models.drafts import HEADS, NAMES, converted

PACKAGE = "ckpt_tools.sglang_models"
PYTHONS = [p for p in os.environ.get("CKPT_SGLANG_PYTHON", "").split(":") if p]
TARGETS = [FIXTURES / "sglang_ext" / name for name in ("kimi_k25_tiny", "qwen3_vl_tiny")]


@pytest.fixture(params=PYTHONS or [None], ids=str)
def sglang(request: pytest.FixtureRequest) -> str:
    """An interpreter that has SGLang."""
    if request.param is None:
        pytest.skip("CKPT_SGLANG_PYTHON names no Python with SGLang installed")
    if not Path(request.param).is_file():
        pytest.skip(f"CKPT_SGLANG_PYTHON: {request.param} isn't there")
    return str(request.param)


def ask(python: str, *args: str | Path, package: str = PACKAGE) -> list[dict[str, Any]]:
    """One answer per folder, from SGLang itself."""
    script = FIXTURES / "sglang_ext" / "oracle.py"
    done = subprocess.run(
        [python, str(script), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SGLANG_EXTERNAL_MODEL_PACKAGE": package},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-2000:]
    return [json.loads(line) for line in lines]


def test_every_head_computes_what_speculators_does(sglang: str, tmp_path: Path) -> None:
    pairs = [
        p for name in NAMES for p in (converted(name, tmp_path)[0], HEADS / f"eagle3_{name}.safetensors")
    ]
    answers = ask(sglang, "forward", "--no-cuda-graphs", *pairs)
    assert [a["folder"] for a in answers] == list(NAMES)
    for answer in answers:
        assert len(answer["max_abs"]) == 3 and max(answer["max_abs"]) < 1e-5, answer


def test_the_loader_fills_all_and_only_with_the_package(sglang: str, tmp_path: Path) -> None:
    folder, _ = converted("nbr", tmp_path)
    (answer,) = ask(sglang, "load", folder)
    assert answer["refused"] is None and answer["class"] == "CkptLlamaForCausalLMEagle3"
    assert all(unfilled == 0 for _, unfilled, _ in answer["parameters"].values())
    (alone,) = ask(sglang, "load", folder, package="")
    said = json.loads((FIXTURES / "sglang_ext" / "said.json").read_text("utf-8"))["without"]
    assert alone["refused"] == said[alone["engine"]]


def test_targets_have_their_hooks(sglang: str) -> None:
    for answer in ask(sglang, "target", *TARGETS):
        assert (
            answer["captured"] == [2, 4, 5] and answer["shared"] == [[256, 64], [256, 64]] and answer["same"]
        )
