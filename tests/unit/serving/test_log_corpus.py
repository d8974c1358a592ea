"""Every log of the corpus means what its description says: no false failure, no missed failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_tools.serving.logs import LogReader, read_log

FOLDER = Path(__file__).parents[3] / "fixtures" / "logs"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def data(name: str) -> bytes:
    return (FOLDER / f"{name}.log").read_bytes()


def test_every_log_is_described() -> None:
    assert {path.stem for path in FOLDER.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_meaning(name: str) -> None:
    want, state = EXPECTED[name], read_log(data(name))
    assert state.state == want["state"], (state.cause, state.message)
    assert state.cause == want.get("cause")
    for key in ("starts", "engine", "version", "target_class", "draft_class"):
        if key in want:
            assert getattr(state, key) == want[key], key
    if "lines" in want:
        assert list(state.decisive_lines) == sorted(want["lines"])
    if "percent" in want:
        assert state.progress is not None
        assert state.progress.percent == want["percent"]
    if "notes" in want:
        assert [note.id for note in state.notes if note.severity == "warning"] == want["notes"]
    if "remedy" in want:
        assert want["remedy"] in (state.remedy or "")
    if state.state == "failed":
        assert state.remedy
        assert state.decisive_lines
    if "acceptance" in want:
        if want["acceptance"] is None:
            assert state.acceptance is None
        else:
            assert state.acceptance is not None
            assert state.acceptance.n == want["acceptance"]["n"]
            assert state.acceptance.mean_accept_len == pytest.approx(want["acceptance"]["len"])
            rate = want["acceptance"]["rate"]
            assert state.acceptance.mean_accept_rate == (
                None if rate is None else pytest.approx(rate, abs=0.005)
            )


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("name", EXPECTED)
def test_cut_anywhere(name: str, size: int) -> None:
    """Chunks may end in the middle of a line, a bar or a character."""
    whole = data(name)
    reader = LogReader()
    for at in range(0, len(whole), size):
        reader.feed(whole[at : at + size])
    assert reader.snapshot() == read_log(whole)


WORKING = [name for name, want in EXPECTED.items() if want["state"] != "failed" and want.get("starts") != 2]


@pytest.mark.parametrize("name", WORKING)
def test_never_failed_on_the_way(name: str) -> None:
    """While a log grows, a start that works is at no moment taken for a failed one."""
    reader = LogReader()
    for line in data(name).splitlines(keepends=True):
        reader.feed(line)
        assert reader.snapshot(ended=False).state != "failed", line
