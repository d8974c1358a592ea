"""The commands that run a head, from outside: statuses, one report on stdout, torchrun, no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.api import demo
from ckpt_tools.cli.root import main
from ckpt_tools.forward._torch import torch
from ckpt_tools.schemas import violations
from tests.conftest import FIXTURES, ROOT

PAIR = FIXTURES / "pair"
DRAFT, TARGET, STATES = str(PAIR / "draft"), str(PAIR / "target"), str(PAIR / "states.safetensors")
# An interpreter in which torch can't be imported, running the command line.
NO_TORCH = "import sys; sys.modules['torch'] = None; from ckpt_tools.cli import main; main()"


def run(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **env},
        timeout=240,
        check=False,
    )


def ckpt(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "ckpt_tools", *args, cwd=cwd, **env)


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one report on stdout; it fits the schema."""
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    assert list(violations("report.v1.json", document)) == []
    return document


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command in this process."""

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        with pytest.raises(SystemExit) as end:
            main.main(list(args), prog_name="ckpt")
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(args, int(end.value.code or 0), shown.out, shown.err)

    return call


Inside = Callable[..., subprocess.CompletedProcess[str]]
SMOKE = ("smoke", DRAFT, "--target", TARGET)


def test_smoke_on_the_cpu() -> None:
    done = ckpt(*SMOKE, "--device", "cpu", "--states", STATES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finite-float32" in done.stdout
    assert "pass" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        (("--tp", "2"), 2, "--tp 2 runs under torchrun with 2 processes, found no torchrun"),
        (("--device", "tpu"), 2, "--device tpu: no such device"),
        (("--engine", "trtllm"), 2, "no reference semantics for engine 'trtllm'"),
        (("--states", "nowhere.safetensors"), 3, "nowhere.safetensors"),
    ],
)
def test_smoke_failures(inside: Inside, more: tuple[str, ...], status: int, says: str) -> None:
    done = inside(*SMOKE, "--device", "cpu", *more, "--format", "json")
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if status == 2:
        assert done.stdout == ""
    else:
        assert says in report(done)["error"]["message"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_isnt_there() -> None:
    done = ckpt(*SMOKE, "--device", "cuda")
    assert done.returncode == 4
    assert "no GPU is here" in done.stderr
    assert "--device cpu" in done.stderr
    assert done.stdout == ""


def test_two_ranks_give_the_whole_heads_logits() -> None:
    done = run(
        "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
        "-m", "ckpt_tools", *SMOKE, "--tp", "2", "--device", "cpu", "--format", "json", OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = report(done)
    assert document["verdict"] == "pass"
    (check,) = [c for c in document["facts"]["checks"] if c["name"] == "ranks-equal-one"]
    assert check["ok"]
    assert check["value"] <= check["bound"]
    assert "2 ranks differ from one by" in check["detail"]


def test_accept(inside: Inside) -> None:
    done = inside(
        "accept", "--states", STATES, "--draft", DRAFT, "--target", TARGET, "--depth", "3", "--cost-ratio", "0.1",
        "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = report(done)
    measured = json.loads((PAIR / "acceptance.json").read_text("utf-8"))["depths"]["3"]["accept_length"]
    assert document["facts"]["expected_length"]["3"]["mean"] == pytest.approx(measured, rel=0.03)
    assert document["facts"]["pays"] is True
    assert document["facts"]["speedup"].keys() == {"1", "2", "3"}


def test_accept_draws_a_chart(inside: Inside, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\ntwo\n", "utf-8")
    log = FIXTURES / "logs" / "sglang-0.5.12-good.log"
    done = inside("accept", "--log", str(log), "--cost-ratio", "0.9", "--prompts", str(prompts))
    assert done.returncode == 0, done.stderr
    assert "█" in done.stdout
    assert "ACC001" in done.stdout, "it doesn't pay, and that is no failure"
    assert inside("accept").returncode == 2
    assert inside("accept", "--states", STATES).returncode == 2


def test_prove(tmp_path: Path) -> None:
    done = ckpt("fix-keys", DRAFT, "out", "--target", TARGET, "--prove", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert report(done)["facts"]["proof"]["proven"] is True
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    again = ckpt("verify", "out", "--target", TARGET, "--against", DRAFT, "--format", "json", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert report(again)["facts"]["proof"]["proven"] is True


def test_without_torch(tmp_path: Path) -> None:
    """What needs torch is unavailable, what can do without it says what it skipped."""
    states = ("accept", "--states", STATES, "--draft", DRAFT, "--target", TARGET)
    for args in (SMOKE, states, ("fix-keys", DRAFT, "out", "--target", TARGET, "--prove")):
        done = run("-c", NO_TORCH, *args, cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert "needs torch" in done.stderr
        assert "pip install 'ckpt-tools[torch]'" in done.stderr
        assert list(tmp_path.iterdir()) == []
    assert run("-c", NO_TORCH, "fix-keys", DRAFT, "out", "--target", TARGET, cwd=tmp_path).returncode == 0
    done = run(
        "-c",
        NO_TORCH,
        "verify",
        "out",
        "--target",
        TARGET,
        "--against",
        DRAFT,
        "--format",
        "json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert "EQV001" in {s["code"] for s in report(done)["skipped"]}


def test_ranks_past_the_first_print_nothing(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    done = inside(*SMOKE, "--device", "cpu", "--format", "json")
    assert (done.returncode, done.stdout) == (0, "")


def test_demo_as_one_document(inside: Inside, tmp_path: Path) -> None:
    done = inside("demo", str(tmp_path / "d"), "--format", "json")
    assert done.returncode == 0
    documents = json.loads(done.stdout)
    assert list(violations("report.v1.json", documents)) == []
    assert [(d["command"], d["verdict"]) for d in documents] == [
        ("inspect", "pass"),
        ("fix-keys", "pass"),
        ("verify", "pass"),
        ("smoke", "pass"),
    ]


def test_a_step_that_is_skipped(inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "steps", lambda _: [demo.Step("ckpt smoke x", None, "smoke skipped: no torch")])
    assert "$ ckpt smoke x\nsmoke skipped: no torch" in inside("demo", str(tmp_path / "a")).stdout
    done = inside("demo", str(tmp_path / "b"), "--format", "json")
    assert json.loads(done.stdout) == []
    assert "smoke skipped: no torch" in done.stderr


def test_demo(monkeypatch: pytest.MonkeyPatch, inside: Inside, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = inside("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines() if line.startswith("$ ")] == [
        "inspect",
        "fix-keys",
        "verify",
        "smoke",
    ]
    assert "wrote a speculators draft" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-demo"]
    (tmp_path / "ckpt-demo" / "mine.txt").write_text("x")
    refused = inside("demo")
    assert refused.returncode == 2
    assert "holds other files" in refused.stderr


def test_demo_without_torch(tmp_path: Path) -> None:
    done = run("-c", NO_TORCH, "demo", "d", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "smoke skipped" in done.stdout
    assert "pip install 'ckpt-tools[torch]'" in done.stdout
    done = run("-c", NO_TORCH, "demo", "d", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0
    assert [r["command"] for r in json.loads(done.stdout)] == ["inspect", "fix-keys", "verify"]
    assert "smoke skipped" in done.stderr
