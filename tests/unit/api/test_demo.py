"""The demonstration: what it writes, what it runs, what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckpt_tools.api import demo
from ckpt_tools.errors import UsageError, WriteError
from tests.conftest import FIXTURES

PAIR = FIXTURES / "pair"


def size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def test_it_runs_the_whole_job_twice(tmp_path: Path) -> None:
    out = tmp_path / "a b"
    for _ in range(2):
        assert demo.write_pair(str(out)) == out
        steps = list(demo.steps(str(out)))
        assert [s.line.split()[1] for s in steps] == ["inspect", "fix-keys", "verify", "smoke"]
        for step in steps:
            assert step.run is not None
            assert f"'{out}/draft" in step.line, "lines can be pasted"
            assert step.run().verdict == "pass"
    assert sorted(p.name for p in out.iterdir()) == ["draft", "draft-sglang", "states.safetensors", "target"]
    assert size(out) <= 3_000_000
    assert (out / "draft" / "model.safetensors").read_bytes() == (
        PAIR / "draft" / "model.safetensors"
    ).read_bytes()


def test_without_torch_smoke_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("ckpt_tools.forward")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delattr("ckpt_tools.forward", raising=False)
    demo.write_pair(str(tmp_path))
    *rest, last = demo.steps(str(tmp_path))
    assert [s.run().verdict for s in rest if s.run is not None] == ["pass"] * 3
    assert last.run is None
    assert last.skipped is not None
    assert last.skipped.startswith("smoke skipped: running a draft head needs torch")
    assert last.skipped.endswith("add it with pip install 'ckpt-tools[torch]'")


def test_somebody_elses_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        demo.write_pair(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="is a file"):
        demo.write_pair(str(tmp_path / "thesis.txt"))


def test_a_place_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match="can't be written"):
        demo.write_pair(str(tmp_path / "file" / "below"))


def test_the_wheels_copy_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "package"
    (packed / "_demo").mkdir(parents=True)
    monkeypatch.setattr(demo.resources, "files", lambda _: packed)
    assert demo._package_data() == packed / "_demo"
