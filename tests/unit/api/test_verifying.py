"""What verify knows of a draft beyond its config: the record of its conversion, and what its framework gets wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.model import Report

PAIR = Path(__file__).parents[3] / "fixtures" / "pair"
TARGET = str(PAIR / "target")


def changed(folder: Path, block: str | None = None, **fields: Any) -> Path:
    file = folder / "config.json"
    config = json.loads(file.read_text("utf-8"))
    (config if block is None else config[block]).update(fields)
    file.write_text(json.dumps(config), "utf-8")
    return folder


def converted(source: Path, to: str) -> Path:
    out = source.parent / to
    fix_keys(Request(str(source), str(out), to=to, target=TARGET))
    return out


def said(report: Report, *codes: str) -> list[tuple[str, str]]:
    return [(f.code, f.severity.value) for f in report.findings if f.code in codes]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAIR / "draft", tmp_path / "source"))


def test_a_window_that_only_the_record_of_the_conversion_has(source: Path) -> None:
    changed(source, "transformer_layer_config", sliding_window=64, layer_types=["sliding_attention"])
    served = converted(source, "sglang")
    assert "sliding_window" not in json.loads((served / "config.json").read_text("utf-8"))
    report = verify(VerifyRequest(str(served), TARGET))
    assert said(report, "LAY006", "CFG016") == [("LAY006", "warning"), ("CFG016", "info")]
    command = (
        f"sglang serve --model-path {TARGET} --speculative-algorithm EAGLE3 --speculative-draft-model-path {served} "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    assert said(verify(VerifyRequest(str(served), TARGET, launch=command)), "LAY006")
    told = verify(VerifyRequest(str(served), TARGET, launch=f"{command} --speculative-draft-window-size 64"))
    assert not said(told, "LAY006")
    (served / "conversion.json").unlink()
    assert not said(verify(VerifyRequest(str(served), TARGET)), "LAY006", "CFG016")


@pytest.mark.parametrize(
    ("norm_output", "expected"),
    [(None, []), (True, [("NRM008", "info")]), (False, [("NRM009", "error")])],
)
def test_what_the_training_framework_leaves_open(
    source: Path, norm_output: bool | None, expected: list[tuple[str, str]]
) -> None:
    trained = converted(source, "specforge")
    (trained / "conversion.json").unlink()
    if norm_output is not None:
        changed(trained, norm_output=norm_output)
    report = verify(VerifyRequest(str(trained), TARGET, engines=("sglang",)))
    assert said(report, "NRM008", "NRM009") == expected
    ignored = verify(VerifyRequest(str(trained), TARGET, engines=("sglang",), ignore=("NRM008", "NRM009")))
    assert not said(ignored, "NRM008", "NRM009")
