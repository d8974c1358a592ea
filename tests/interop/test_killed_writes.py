"""Writers that are killed: OUT is old or complete, never missing for good, and the next run clears up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_writes.py")
KINDS = ("exchange", "backup", "fill", "fresh")
# Memory-backed where there is such a place: hundreds of syncs cost nothing there.
WHERE = next((p for p in ("/dev/shm",) if os.access(p, os.W_OK)), None)


def run(*arguments: str) -> dict[str, dict[str, int]]:
    where = ["--where", WHERE] if WHERE else []
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, *where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert isinstance(summary, dict)
    return {kind: summary[kind] for kind in KINDS if kind in summary}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed writer is a fork")
@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_every_step(kind: str) -> None:
    seen = run("steps", "--kind", kind)[kind]
    assert seen["finished"] == 1
    assert seen["old"] > 30
    assert seen["new"] >= 5, "kills while the stage is removed"
    if kind == "backup":
        assert seen["put back"] == 1
    if kind == "fill":
        assert seen["half filled"] > 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed writer is a fork")
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random(kind: str) -> None:
    seen = run("random", "5", "--kind", kind, "--megabytes", "50")[kind]
    assert sum(count for word, count in seen.items() if word != "finished") == 5
