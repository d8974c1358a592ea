"""Starting and stopping a server."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.serving import process
from ckpt_tools.serving.args.command import Argument, LaunchPlan
from ckpt_tools.serving.run import start

from .pairs import engine

if TYPE_CHECKING:
    from pathlib import Path

CHILD = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session="away" in sys.argv)
print(os.environ["GIVEN"], inner.pid, flush=True)
time.sleep(600)
"""


def plan(*words: str) -> LaunchPlan:
    arguments = tuple(Argument("", (word,), "") for word in words)
    return LaunchPlan(engine("sglang==0.5.23"), (sys.executable, "-c"), arguments, env={"GIVEN": "yes"})


def begun(log: Path) -> int:
    """The inner process's id, once it runs."""
    for _ in range(400):
        said = log.read_text().split()
        if len(said) == 2:
            assert said[0] == "yes"
            return int(said[1])
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize(
    ("word", "patience", "by"),
    [("", 30, signal.SIGTERM), ("stubborn", 0.2, signal.SIGKILL), ("away", 30, signal.SIGTERM)],
)
def test_start_and_stop(tmp_path: Path, word: str, patience: float, by: int) -> None:
    log = tmp_path / "log"
    server = start(plan(CHILD, word), log)
    inner = begun(log)
    assert server.status is None
    assert server.stop(patience) == -by
    assert server.status == -by
    for _ in range(100):
        if not process.alive(inner):
            break
        time.sleep(0.05)
    assert not process.alive(inner)
    assert server.stop(0.1) == -by  # again, when it is gone


def test_what_can_t_be_started(tmp_path: Path) -> None:
    missing = LaunchPlan(engine("sglang==0.5.23"), (str(tmp_path / "sglang"),), ())
    with pytest.raises(Unavailable, match="can't be started"):
        start(missing, tmp_path / "log")
    with pytest.raises(InputError):
        start(plan(CHILD), tmp_path / "no" / "log")


def test_in_a_hurry_a_stubborn_server_is_killed_at_once(tmp_path: Path) -> None:
    server = start(plan(CHILD, "stubborn"), tmp_path / "log")
    begun(tmp_path / "log")
    asked: list[bool] = []

    def hurry() -> bool:
        asked.append(True)
        return len(asked) > 2

    assert server.stop(patience=600, hurry=hurry) == -signal.SIGKILL
    assert len(asked) == 3
