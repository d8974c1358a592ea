"""``--launch X`` and ``--log X``: stdin, a file, or the text itself."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from ckpt_tools.api import inputs
from ckpt_tools.api.inputs import launch_problems_of, rate_note, read_bytes, read_launch, read_log_text
from ckpt_tools.errors import InputError, UsageError
from ckpt_tools.model import Engine
from ckpt_tools.serving.logs.state import Acceptance, LogState
from tests.conftest import FIXTURES

LINE = (
    "[2026-01-01 00:00:00] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: 2.71, "
    "accept rate: 0.34, cuda graph: True, gen throughput (token/s): 1, #queue-req: 0\n"
)
SGLANG = Engine("sglang", "0.5.23", "0.5.23")


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(inputs.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_stdin_a_file_or_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"from a pipe")
    assert read_bytes("-") == b"from a pipe"
    (tmp_path / "x").write_bytes(b"\xff in a file")
    assert read_bytes(str(tmp_path / "x")) == b"\xff in a file"
    assert read_bytes("vllm serve m") == b"vllm serve m"
    assert read_bytes(str(tmp_path)) == str(tmp_path).encode()
    assert read_bytes("with a \0 in it") == b"with a \0 in it"


@pytest.mark.parametrize("length", [200, 256, 5000])
def test_a_command_may_be_longer_than_a_file_name(length: int) -> None:
    command = "python -m sglang.launch_server --model-path " + "m" * length
    launch = read_launch(command)
    assert launch.engine == "sglang"
    assert launch.model == "m" * length


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"x")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"x: can't be read \(Permission denied\)"):
        read_bytes(str(tmp_path / "x"))
    monkeypatch.setattr(inputs, "open", refuse, raising=False)
    with pytest.raises(InputError, match=r"x: can't be read \(Permission denied\)"):
        read_log_text(str(tmp_path / "x"))


def test_what_starts_no_engine() -> None:
    with pytest.raises(UsageError):
        read_launch("ls -l")


def test_a_log_is_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_BLOCK", 7)
    (tmp_path / "log").write_text(LINE * 5)
    stdin(monkeypatch, (LINE * 3).encode())
    for log, count in ((str(tmp_path / "log"), 5), ("-", 3), (LINE, 1)):
        found = read_log_text(log).acceptance
        assert found is not None
        assert (found.n, found.mean_accept_len) == (count, pytest.approx(2.71))
    whole = FIXTURES / "logs" / "sglang-0.5.9-oom-capture.log"
    assert read_log_text(str(whole)).cause == "out-of-memory"


def test_a_log_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"no-such\.log: no such file"):
        read_log_text("no-such.log")
    with pytest.raises(InputError, match=": no such file"):
        read_log_text("")


def test_no_launch_has_no_problems_and_a_bad_one_has() -> None:
    assert launch_problems_of(None, SGLANG, None, None, None) is None
    bad = read_launch("python -m sglang.launch_server --model-path m --num-speculative-tokens 3")
    problems = launch_problems_of(bad, SGLANG, None, None, None)
    assert problems is not None
    assert any("--num-speculative-tokens" in p.message for p in problems)


def log(**fields: object) -> LogState:
    return LogState("ready", "serving", engine="sglang", **fields)  # type: ignore[arg-type]


def test_what_an_accept_rate_means() -> None:
    nine = Engine("sglang", "0.5.9", "0.5.9")
    accepted = Acceptance(3, 2.7, 0.54, 1, 3)
    assert rate_note(nine, None) is None
    assert rate_note(nine, log()) is None
    by_args = rate_note(nine, log(acceptance=accepted, args={"speculative_num_draft_tokens": 8}))
    assert by_args is not None
    assert "a useless draft would show 0.12" in by_args  # 1 / 8
    by_figures = rate_note(nine, log(acceptance=accepted))
    assert by_figures is not None
    assert "a useless draft would show 0.20" in by_figures  # 2.7 / 0.54 = 5 tokens
    unknown = rate_note(nine, log(acceptance=Acceptance(3, 2.7, None, 1, 3)))
    assert unknown is not None
    assert "would show" not in unknown, "no figure without the number of draft tokens"
    newest = rate_note(SGLANG, log(acceptance=accepted, version="0.5.23"))
    assert newest is not None
    assert newest != by_figures
    stated = rate_note(SGLANG, log(acceptance=accepted, args={"speculative_num_steps": 4}))
    assert stated is not None
    none = rate_note(Engine("trtllm", "1.0.0", "1.0.0"), LogState("ready", "x", acceptance=accepted))
    assert none is None
