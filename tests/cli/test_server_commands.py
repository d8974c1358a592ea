"""``launch``, ``watch``, ``preflight``, ``accept`` and ``verify --probe``: what they print and how they end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ckpt_tools.api.choosing import choose_engine
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.errors import InputError, Unavailable, UsageError
from ckpt_tools.serving import machine, preflight
from ckpt_tools.serving.installed import Installed, finds
from ckpt_tools.serving.machine import Gpu, Segment
from ckpt_tools.serving.run import start
from ckpt_tools.serving.static_hooks import Answer, Patch
from tests.cli.server import LOGS, RAW, TARGET, ckpt, interpreter, program, report, serving

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: None)
    monkeypatch.chdir(tmp_path)


def words(shell: str) -> list[str]:
    """What a shell makes of a printed command."""
    return shlex.split("\n".join(x for x in shell.replace("\\\n", " ").splitlines() if not x.startswith("#")))


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- launch


def test_launch_prints_one_command_with_a_reason_per_flag(served: Path) -> None:
    done = ckpt("launch", served, "--target", TARGET, "--steps", "16", "--tp", "2", "--port", "30001")
    assert done.exit_code == 0, done.stderr
    assert words(done.stdout) == [
        "sglang", "serve",
        "--model-path", str(TARGET),
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(served),
        "--speculative-num-steps", "16",
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", "17",
        "--tp-size", "2",
        "--port", "30001",
    ]  # fmt: skip
    reasons = [x for x in done.stdout.splitlines() if x.startswith("# --")]
    assert [x.split(":")[0][2:] for x in reasons] == [w for w in words(done.stdout) if w.startswith("--")]
    status, data = report(
        "launch", served, "--target", TARGET, "--steps", "16", "--tp", "2", "--port", "30001"
    )
    assert status == 0
    assert data["command"] == "launch"
    assert data["facts"]["argv"] == words(done.stdout)
    assert data["facts"]["env"] == {}
    assert set(data["facts"]["reasons"]) == {w for w in words(done.stdout) if w.startswith("--")}
    assert data["engines"][0]["why"] == "default"


def test_launch_for_vllm_and_words_after_two_dashes(served: Path) -> None:
    done = ckpt(
        "launch", served, "--target", TARGET, "--engine", "vllm", "--", "--port", "8123", "--seed", "7"
    )
    said = words(done.stdout)
    assert said[:3] == ["vllm", "serve", str(TARGET)]
    assert json.loads(said[said.index("--speculative-config") + 1]) == {
        "method": "eagle3", "model": str(served), "num_speculative_tokens": 3,
    }  # fmt: skip
    assert said[-4:] == ["--port", "8123", "--seed", "7"]
    assert "# --seed: as given after --" in done.stdout


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_launch_for_containers_listens_where_it_can_be_reached(served: Path, engine: str) -> None:
    extra = ("--", "--port", "31000")
    pod = yaml.safe_load(
        ckpt("launch", served, "--target", TARGET, "--engine", engine, "--as", "k8s", *extra).stdout
    )
    (container,) = pod["spec"]["containers"]
    assert container["ports"] == [{"containerPort": 31000}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 31000}
    compose = yaml.safe_load(
        ckpt("launch", served, "--target", TARGET, "--engine", engine, "--as", "compose", *extra).stdout
    )
    service = compose["services"][engine]
    assert service["ports"] == ["31000:31000"]
    for argv in (container["args"], service["command"]):
        hosts = [argv[i + 1] for i, w in enumerate(argv) if w == "--host"]
        assert hosts == (["0.0.0.0"] if engine == "sglang" else [])
    mine = ckpt("launch", served, "--target", TARGET, "--as", "k8s", "--", "--host", "10.0.0.5").stdout
    assert yaml.safe_load(mine)["spec"]["containers"][0]["args"].count("--host") == 1
    assert "0.0.0.0" not in mine
    assert "--host" not in ckpt("launch", served, "--target", TARGET).stdout


def test_launch_prints_nothing_that_verify_fails_unless_forced() -> None:
    done = ckpt("launch", RAW, "--target", TARGET)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "error[CFG002]" in done.stderr
    assert "hint: " in done.stderr
    assert "--force prints it anyway" in done.stderr
    forced = ckpt("launch", RAW, "--target", TARGET, "--force")
    assert forced.exit_code == 0
    assert words(forced.stdout)[:2] == ["sglang", "serve"]
    assert "error[CFG002]" in forced.stderr
    assert report("launch", RAW, "--target", TARGET)[0] == 1
    status, data = report("launch", RAW, "--target", TARGET, "--force")
    assert status == 0
    assert "error" in {f["severity"] for f in data["findings"]}


def test_the_printed_override_counts_in_its_own_check(served: Path) -> None:
    """The draft has 2048 positions: 4096 need the override, and with it only a warning remains."""
    command = ("launch", served, "--target", TARGET, "--context-length", "4096")
    done = ckpt(*command)
    assert done.exit_code == 0
    assert words(done.stdout)[0] == "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    assert "warning[CTX" in done.stderr
    facts = report(*command)[1]["facts"]
    assert facts["env"] == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert "2048" in facts["reasons"]["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"]


def test_launch_writes_to_a_file(served: Path) -> None:
    done = ckpt("launch", served, "--target", TARGET, "--output", "serve.sh")
    assert (done.exit_code, done.stdout) == (0, "")
    assert words(Path("serve.sh").read_text())[:2] == ["sglang", "serve"]
    bad = ckpt("launch", served, "--target", TARGET, "--output", "no/such/serve.sh")
    assert bad.exit_code == 3
    assert "no/such/serve.sh: can't be written" in bad.stderr


def test_launch_takes_what_the_policy_says_and_flags_win(served: Path) -> None:
    Path("ckpt.toml").write_text('engine = ["vllm", "sglang"]\ntp = 2\ncontext-length = 1024\n')
    data = report("launch", served, "--target", TARGET)[1]
    assert (data["engines"][0]["name"], data["engines"][0]["why"]) == ("vllm", "policy")
    argv = data["facts"]["argv"]
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert argv[argv.index("--max-model-len") + 1] == "1024"
    flagged = report("launch", served, "--target", TARGET, "--engine", "sglang", "--tp", "1")[1]
    assert (flagged["engines"][0]["name"], flagged["engines"][0]["why"]) == ("sglang", "--engine")
    argv = flagged["facts"]["argv"]
    assert argv[argv.index("--tp-size") + 1] == "1"


def test_launch_leaves_room_for_the_draft_where_the_release_does_not(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = open_checkpoint(served).total_bytes
    old = ("launch", served, "--target", TARGET, "--engine", "sglang==0.5.9")

    def fraction(*more: str) -> str | None:
        argv = report(*old, *more)[1]["facts"]["argv"]
        return argv[argv.index("--mem-fraction-static") + 1] if "--mem-fraction-static" in argv else None

    assert fraction() is None
    assert fraction("--gpu-memory", str(8 * size)) == "0.75"  # 0.88 - 1/8 - 0.005
    monkeypatch.setattr(machine, "gpus", lambda: (Gpu(0, "a", 99 * size, 0), Gpu(1, "b", 8 * size, 0)))
    assert fraction() == "0.75"  # this machine's smallest
    argv = report(*old[:-1], "sglang==0.5.23")[1]["facts"]["argv"]
    assert "--mem-fraction-static" not in argv  # it counts the draft itself


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (("--engine", "nonsense"), 2, "unknown engine"),
        (("--engine", "vllm", "--topk", "4"), 2, "vLLM drafts a chain"),
        (("--steps", "3", "--draft-tokens", "9"), 2, "verify 4 tokens, not 9"),
        (("--log-file", "x"), 2, "only --run starts one"),
        (("--gpu-memory", "much"), 2, "is no size"),
        (("--target", "kimi-k2.55"), 3, "did you mean"),
    ],
)
def test_launch_refuses(served: Path, args: tuple[str, ...], status: int, says: str) -> None:
    target = () if "--target" in args else ("--target", TARGET)
    done = ckpt("launch", served, *target, *args)
    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr


def test_launch_says_a_finding_that_has_no_hint(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckpt_tools.api import launching
    from ckpt_tools.checks.base import finding

    real = launching.verify
    warned = finding("LCH021", "look here")
    monkeypatch.setattr(launching, "verify", lambda request: replace(real(request), findings=(warned,)))
    assert ckpt("launch", served, "--target", TARGET).stderr == "warning[LCH021]: look here\n"


def test_launch_of_what_is_no_draft() -> None:
    status, data = report("launch", "nowhere", "--target", TARGET)
    assert (status, data["error"]["kind"]) == (3, "input")
    done = ckpt("launch", TARGET, "--target", TARGET)
    assert done.exit_code == 3
    assert "no draft format fits" in done.stderr


# ---- the installed engine


def test_installed_is_the_release_that_an_interpreter_has(served: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path / "python", sglang="0.5.9", vllm="0.32.0")
    assert str(choose_engine("sglang == installed", "x", str(python))) == "sglang==0.5.9"
    assert choose_engine("vllm==installed", "x", str(python)).version == "0.32.0"
    assert choose_engine("sglang-ext==installed", "x", str(python)).name == "sglang-ext"
    with pytest.raises(UsageError, match="unknown engine"):
        choose_engine("nonsense==installed", "x", str(python))
    data = report(
        "launch", served, "--target", TARGET, "--engine", "sglang==installed", "--engine-python", python
    )[1]
    assert (data["engines"][0]["version"], data["engines"][0]["why"]) == ("0.5.9", "--engine")
    assert data["facts"]["argv"][:3] == ["python3", "-m", "sglang.launch_server"]
    verified = report("verify", served, "--engine", "vllm==installed", "--engine-python", python)[1]
    assert verified["engines"][0]["version"] == "0.32.0"


def test_installed_without_an_engine_is_unavailable(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter(tmp_path / "python")
    command = ("launch", served, "--target", TARGET, "--engine", "sglang==installed", "--engine-python")
    status, data = report(*command, python)
    assert (status, data["error"]["kind"]) == (4, "unavailable")
    assert "--engine-python" in data["error"]["hint"]
    assert ckpt(*command, tmp_path / "no-python").exit_code == 4
    assert f"sglang is not installed in {python}" in data["error"]["message"]
    monkeypatch.setattr("ckpt_tools.serving.installed.find_engine", lambda *_: None)
    with pytest.raises(Unavailable, match="sglang is not installed in this interpreter"):
        choose_engine("sglang==installed", "x")


# ---- launch --run

FAKE = """
import http.server, json, os, shutil, signal, sys, threading
port = int(sys.argv[sys.argv.index("--port") + 1])
with open("argv.json", "w") as file:
    json.dump([os.path.basename(sys.argv[0]), *sys.argv[1:]], file)
mode = os.environ["FAKE"]
asked = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        asked.set()
    def log_message(self, *args):
        pass
def again(*_):
    with open("told", "w"):
        pass
    os.kill(os.getppid(), signal.SIGINT)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, again)
if mode in ("INT", "TERM", "HUP", "stubborn", "serves", "dies"):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
with open(os.environ["FAKE_LOG"], "rb") as file:
    shutil.copyfileobj(file, sys.stdout.buffer)
sys.stdout.flush()
if mode.isdigit():
    sys.exit(int(mode))
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
asked.wait(60)
if mode == "serves":
    sys.exit(0)
if mode == "dies":
    print("[2026-11-20 10:09:00] Scheduler hit an exception: Traceback (most recent call last):")
    print('  File "x.py", line 1, in f')
    print("RuntimeError: the card fell off the bus", flush=True)
    sys.exit(3)
with open("pid", "w") as file:
    file.write(str(os.getpid()))
os.kill(os.getppid(), signal.SIGINT if mode == "stubborn" else getattr(signal, "SIG" + mode))
while True:
    signal.pause()
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: Path) -> Iterator[Any]:
    """Run ``launch --run`` with a program that prints a start-up log and then does as told."""
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "sglang", FAKE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def run(mode: str, log: str, *args: str) -> Any:
        monkeypatch.setenv("FAKE", mode)
        monkeypatch.setenv("FAKE_LOG", str(LOGS / log))
        return ckpt("launch", served, "--target", TARGET, "--port", str(free_port()), "--run", *args)

    # a shell's background job inherits SIGINT as ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield run
    signal.signal(signal.SIGINT, before)


def test_run_gives_the_status_of_a_server_that_fails(fake: Any) -> None:
    done = fake("7", "sglang-0.5.9-oom-capture.log")
    assert done.exit_code == 7
    assert done.stdout == ""
    assert "started pid " in done.stderr
    assert "failed" in done.stderr
    assert "(out-of-memory)" in done.stderr
    log = LOGS / "sglang-0.5.9-oom-capture.log"
    assert Path("ckpt-launch.log").read_bytes() == log.read_bytes()
    argv = json.loads(Path("argv.json").read_text())
    assert argv[:2] == ["sglang", "serve"]
    assert argv[argv.index("--speculative-algorithm") + 1] == "EAGLE3"


def test_run_gives_a_signal_as_a_shell_does(fake: Any) -> None:
    done = fake("killed", "sglang-0.5.23-loading.log", "--log-file", "my.log")
    assert done.exit_code == 128 + signal.SIGKILL
    assert "(process-ended)" in done.stderr
    assert Path("my.log").exists()


def test_run_of_a_server_that_serves_and_ends(fake: Any) -> None:
    done = fake("serves", "sglang-0.5.23-good.log")
    assert done.exit_code == 0
    assert "ready: serving" in done.stderr
    assert "failed" not in done.stderr


def test_run_tells_of_what_a_ready_server_died(fake: Any) -> None:
    done = fake("dies", "sglang-0.5.23-good.log")
    assert done.exit_code == 3
    said = done.stderr.splitlines()
    ready = next(i for i, x in enumerate(said) if x.startswith("ready"))
    assert any(x.startswith("failed") and "the card fell off the bus" in x for x in said[ready + 1 :])


def test_run_ends_when_a_server_ends_before_it_was_healthy(fake: Any) -> None:
    """Its log says ready, nobody answers, and it is gone: nothing is waited for."""
    assert fake("0", "sglang-0.5.23-good.log").exit_code == 0


@pytest.mark.parametrize(("number", "status"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_a_signal_stops_the_server(fake: Any, number: str, status: int) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    done = fake(number, "sglang-0.5.23-good.log")
    assert done.exit_code == status
    assert done.stderr.endswith("stopping the server\nstopped\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)
    assert {n: signal.getsignal(n) for n in before} == before


def test_asked_twice_a_stubborn_server_is_killed(fake: Any) -> None:
    done = fake("stubborn", "sglang-0.5.23-good.log")
    assert done.exit_code == 130
    assert Path("told").exists(), "it was asked first"
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


def test_an_earlier_log_is_kept_and_no_news(fake: Any) -> None:
    old = (LOGS / "sglang-0.5.9-oom-capture.log").read_bytes()
    Path("ckpt-launch.log").write_bytes(old)
    Path("ckpt-launch.log.1").write_text("older")
    done = fake("serves", "sglang-0.5.23-good.log")
    assert done.exit_code == 0
    assert "failed" not in done.stderr
    assert Path("ckpt-launch.log.2").read_bytes() == old
    assert Path("ckpt-launch.log.1").read_text() == "older"
    assert Path("ckpt-launch.log").read_bytes() == (LOGS / "sglang-0.5.23-good.log").read_bytes()


def test_run_prints_the_report_first_with_json(fake: Any) -> None:
    done = fake("5", "sglang-0.5.9-oom-capture.log", "--format", "json")
    assert done.exit_code == 5
    assert json.loads(done.stdout)["facts"]["argv"][0] == "sglang"


def test_run_without_the_program_or_a_place_for_its_log(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    command = ("launch", served, "--target", TARGET, "--run")
    done = ckpt(*command)
    assert done.exit_code == 4
    assert "sglang can't be started" in done.stderr
    assert ckpt(*command, "--log-file", "no/such.log").exit_code == 3


def test_a_server_that_nobody_can_watch_is_stopped(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong here: no server is left behind."""
    from ckpt_tools.cli import running

    def broken(*_: object, **__: object) -> Any:
        raise InputError("the log is gone")

    monkeypatch.setattr(running, "watch", broken)
    started: list[Any] = []
    monkeypatch.setattr(running, "start", lambda *a: started.append(start(*a)) or started[0])
    done = fake("serves", "sglang-0.5.23-good.log")
    assert done.exit_code == 3
    assert "the log is gone" in done.stderr
    assert started[0].status is not None


def test_an_earlier_log_that_cannot_be_renamed(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    Path("ckpt-launch.log").write_text("old")
    monkeypatch.setattr(Path, "rename", refuse)
    done = fake("serves", "sglang-0.5.23-good.log")
    assert done.exit_code == 3
    assert "ckpt-launch.log: an earlier log that can't be renamed (Permission denied)" in done.stderr
    assert not Path("argv.json").exists(), "nothing was started"
    assert Path("ckpt-launch.log").read_text() == "old"


def test_run_in_a_thread_leaves_signals_alone(fake: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(fake, "6", "sglang-0.5.9-oom-capture.log").result().exit_code == 6


def test_what_verify_fails_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    import ckpt_tools.cli.running

    monkeypatch.setattr(ckpt_tools.cli.running, "run_server", lambda *_: pytest.fail("started"))
    assert ckpt("launch", RAW, "--target", TARGET, "--run").exit_code == 1
    monkeypatch.setattr(ckpt_tools.cli.running, "run_server", lambda *_: 42)
    assert ckpt("launch", RAW, "--target", TARGET, "--run", "--force").exit_code == 42


# ---- watch


@pytest.mark.parametrize(
    ("log", "status", "state", "cause"),
    [
        ("sglang-0.5.23-good", 0, "ready", None),
        ("vllm-0.32.0-good", 0, "ready", None),
        ("trtllm-1.0.0-good", 0, "ready", None),
        ("real-sglang-0.5.16-healthy", 1, "stopped", None),
        ("sglang-0.5.23-traceback-in-arguments-ready", 0, "ready", None),
        ("sglang-0.5.23-traceback-in-arguments", 1, "loading", None),
        ("sglang-0.5.23-capture-0-percent", 1, "capturing", None),
        ("sglang-0.5.23-loading", 1, "loading", None),
        ("sglang-0.5.23-stopped", 1, "stopped", None),
        ("sglang-0.5.9-oom-capture", 1, "failed", "out-of-memory"),
        ("vllm-0.12.0-port", 1, "failed", "port-in-use"),
    ],
)
def test_watch_reads_a_log(log: str, status: int, state: str, cause: str | None) -> None:
    code, data = report("watch", LOGS / f"{log}.log")
    facts = data["facts"]
    assert (code, facts["state"], facts["cause"]) == (status, state, cause)
    assert bool(facts["decisive_lines"]) == (state == "failed")
    codes = {f["code"]: f for f in data["findings"]}
    expected = {"failed": {"LOG001"}, "stopped": {"LOG004"}, "ready": set()}
    assert set(codes) == expected.get(state, {"LOG005"})
    if state == "failed":
        assert codes["LOG001"]["location"]["line"] == facts["decisive_lines"][0]
        assert codes["LOG001"]["hint"]


def test_watch_states_what_the_interface_promises() -> None:
    facts = report("watch", LOGS / "sglang-0.5.23-good.log")[1]["facts"]
    assert facts["acceptance"] == {
        "n": 3,
        "mean_accept_len": pytest.approx(2.7),
        "mean_accept_rate": pytest.approx(0.5667, abs=1e-4),
    }
    assert facts["starts"] == 1
    assert facts["draft_class"] == "LlamaForCausalLMEagle3"
    loading = report("watch", LOGS / "sglang-0.5.23-loading-25-percent.log")[1]["facts"]
    assert loading["progress"]["percent"] == 25
    assert loading["acceptance"] is None
    assert report("watch", LOGS / "sglang-0.5.12-restarted.log")[1]["facts"]["starts"] == 2


def test_watch_says_it_in_words() -> None:
    good = ckpt("watch", LOGS / "vllm-0.32.0-good.log").stdout
    for words_ in (
        "ready: serving",
        "vllm 0.32.0",
        "LlamaForCausalLM",
        "Eagle3LlamaForCausalLM",
        "2.35 over 2 lines",
    ):
        assert words_ in good
    assert (
        "capturing target verify graphs 0 %"
        in ckpt("watch", LOGS / "sglang-0.5.23-capture-0-percent.log").stdout
    )
    assert "2; the last one counts" in ckpt("watch", LOGS / "sglang-0.5.12-restarted.log").stdout
    assert (
        "a tensor of the draft reached no parameter"
        in ckpt("watch", LOGS / "sglang-0.5.9-soft-failure.log").stdout
    )
    Path("one.log").write_text(
        "[2026-01-01 00:00:00] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: 2.71, "
        "accept rate: 0.34, cuda graph: True, gen throughput (token/s): 1, #queue-req: 0\n"
    )
    assert "2.71 over 1 line " in ckpt("watch", "one.log").stdout


def test_watch_reads_a_pipe() -> None:
    def piped(log: str) -> subprocess.CompletedProcess[str]:
        with (LOGS / log).open("rb") as file:
            return subprocess.run(
                [sys.executable, "-m", "ckpt_tools", "watch", "-", "--format", "json"],
                stdin=file, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip

    good, bad = piped("sglang-0.5.23-good.log"), piped("sglang-0.5.9-oom-capture.log")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert json.loads(good.stdout)["subject"]["path"] == "-"
    assert json.loads(bad.stdout)["facts"]["cause"] == "out-of-memory"


def test_watch_gives_up_at_its_timeout() -> None:
    log = LOGS / "sglang-0.5.23-loading-25-percent.log"
    status, data = report("watch", log, "--follow", "--timeout", "0.01")
    assert (status, data["error"]["kind"]) == (4, "unavailable")
    assert data["facts"]["timed_out"] is True
    assert "loading" in data["error"]["message"]
    assert "--timeout" in data["error"]["hint"]
    table = ckpt("watch", log, "--follow", "--timeout", "0.01")
    assert table.exit_code == 4
    assert re.search(r"not ready after \d s: loading", table.stdout)


def test_watch_asks_the_health_endpoint_and_the_port() -> None:
    log = LOGS / "sglang-0.5.23-good.log"
    with serving({"/health": ""}) as url:
        port = url.rpartition(":")[2]
        assert report("watch", log, "--follow", "--url", url)[1]["facts"]["signals"]["healthy"] is True
        assert report("watch", log, "--follow", "--port", port)[1]["facts"]["signals"]["listening"] is True
    with serving({"/health": 503}) as url:
        status, data = report("watch", log, "--follow", "--url", url, "--timeout", "0.01")
        assert (status, data["facts"]["state"]) == (4, "starting")
        assert "health endpoint" in data["facts"]["phase"]
    assert report("watch", log, "--port", port)[1]["facts"]["state"] == "starting"


def test_watch_shows_a_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("ckpt_tools.cli.commands.watch.sys", fake)
    log = LOGS / "sglang-0.5.9-oom-capture.log"
    done = ckpt("watch", log, "--follow")
    assert done.exit_code == 1
    (line,) = [x for x in done.stderr.split("\n") if x]
    assert line.startswith("\rfailed: ")
    assert "(out-of-memory): " in line
    assert len(line) == len("\r") + 99, "cut to the terminal's width"
    assert ckpt("watch", log, "--follow", "-q").stderr == ""
    assert ckpt("watch", log).stderr == ""


def test_the_live_line_has_progress_and_what_is_left() -> None:
    from ckpt_tools.cli.running import status_line
    from ckpt_tools.serving.logs.state import LogState, Progress
    from ckpt_tools.serving.watch import Signals, Watched

    def line(progress: Progress | None) -> str:
        return status_line(
            Watched(LogState("loading", "target weights", progress=progress), Signals(), 0, 0, False)
        )

    assert line(None) == "loading: target weights"
    assert line(Progress(25.4, 1, 4)) == "loading: target weights 25 %"
    full = Progress(50, 2, 4, elapsed_s=3, remaining_s=30.2, bytes_per_s=1.5e9)
    assert line(full) == "loading: target weights 50 %, 1.5 GB/s, 30 s left"


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (("nowhere.log",), 3, "nowhere.log: No such file"),
        ((str(LOGS),), 3, "Is a directory"),
        ((str(LOGS / "sglang-0.5.23-good.log"), "--url", "localhost:30000"), 2, "is no http address"),
        ((str(LOGS / "sglang-0.5.23-loading.log"), "--url", "http://"), 2, "is no http address"),
        ((str(LOGS / "sglang-0.5.23-good.log"), "--engine", "nonsense"), 2, "unknown engine"),
        ((str(LOGS / "sglang-0.5.23-good.log"), "--timeout", "0"), 2, "--timeout"),
    ],
)
def test_watch_refuses(args: tuple[str, ...], status: int, says: str) -> None:
    done = ckpt("watch", *args)
    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr
    if status == 3:
        assert report("watch", *args)[1]["error"]["kind"] == "input"


def test_watch_reckons_the_rate_from_the_target_s_files() -> None:
    log = LOGS / "sglang-0.5.23-loading-25-percent.log"
    progress = report("watch", log, "--target", TARGET)[1]["facts"]["progress"]
    size = (TARGET / "model.safetensors").stat().st_size
    assert progress["bytes_per_s"] == pytest.approx(size / 4 / progress["elapsed_s"])
    assert progress["remaining_s"] == pytest.approx(3 * progress["elapsed_s"])
    assert report("watch", log)[1]["facts"]["progress"]["bytes_per_s"] is None
    assert report("watch", log, "--target", "kimi-k2.5")[1]["facts"]["progress"]["bytes_per_s"] is None
    assert report("watch", log, "--target", "no-such-target")[0] == 3


def test_watch_is_told_whose_log_it_is() -> None:
    Path("bare.log").write_text("INFO:     Application startup complete.\n")
    assert report("watch", "bare.log", "--engine", "vllm==0.33.0")[1]["facts"]["state"] == "ready"
    assert report("watch", "bare.log", "--engine", "sglang-ext")[1]["facts"]["state"] == "starting"


# ---- preflight


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which all is well."""
    for name, value in {
        "segments": (), "port_free": True, "available_ram": 64 * GIB, "free_disk": 99 * GIB, "stale_bytecode": (),
    }.items():  # fmt: skip
        monkeypatch.setattr(machine, name, lambda *_, value=value: value)


def items(data: dict[str, Any]) -> dict[str, str]:
    return {row["item"]: row["status"] for row in data["facts"]["tables"]["machine"]}


@pytest.mark.usefixtures("calm")
def test_preflight_of_a_ready_machine(served: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path / "python", sglang="0.5.23")
    status, data = report("preflight", served, "--target", TARGET, "--engine-python", python)
    assert status == 0
    assert items(data)["engine"] == "ok"
    assert data["facts"]["ready"] is True
    assert data["facts"]["removed"] == []
    assert data["findings"] == []
    assert data["engines"][0]["why"] == "default"
    assert data["target"]["id"] == str(TARGET)


@pytest.mark.usefixtures("calm")
def test_preflight_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "port_free", lambda port: port != 31000)
    monkeypatch.setattr(machine, "gpus", lambda: (Gpu(0, "H200", 140 * GIB, 0),))
    status, data = report(
        "preflight", "--port", "31000", "--tp", "2", "--engine-python", interpreter(tmp_path / "python")
    )
    assert status == 1
    assert {k for k, v in items(data).items() if v == "fail"} == {"port", "gpu-count", "engine"}
    assert {f["code"] for f in data["findings"]} == {"LCH020"}
    assert any("port 31000 is taken" in f["message"] for f in data["findings"])
    table = ckpt("preflight", "--port", "31000").stdout
    assert "port 31000 is taken" in table
    monkeypatch.setattr(machine, "free_disk", lambda *_: 1 * GIB)
    warned = report("preflight", "--engine-python", interpreter(tmp_path / "python", sglang="0.5.23"))
    assert warned[0] == 0
    assert {f["code"] for f in warned[1]["findings"]} == {"LCH021"}


@pytest.mark.usefixtures("calm")
def test_preflight_compares_the_release_that_was_asked_for(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "python", sglang="0.5.9")
    assert (
        items(report("preflight", "--engine", "sglang==0.5.23", "--engine-python", python)[1])["engine"]
        == "warning"
    )
    for engine in ("sglang==installed", "sglang == 0.5.9", "sglang"):
        assert items(report("preflight", "--engine", engine, "--engine-python", python)[1])["engine"] == "ok"
    assert ckpt("preflight", "--engine", "nonsense").exit_code == 2
    assert report("preflight", "--engine-python", tmp_path / "none")[0] == 4
    assert report("preflight", "nowhere")[0] == 3


@pytest.mark.usefixtures("calm")
def test_preflight_cleans_only_what_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"psm_{c}" for c in "ab"]
    for file in files:
        file.write_bytes(b"x")
    monkeypatch.setattr(machine, "segments", lambda: tuple(Segment(f, 1, ()) for f in files if f.exists()))
    python = interpreter(tmp_path / "python", sglang="0.5.23")
    looked = report("preflight", "--engine-python", python)[1]
    assert items(looked)["shared-memory"] == "warning"
    assert all(f.exists() for f in files), "looking deletes nothing"
    done = ckpt("preflight", "--clean", "--engine-python", python, "--format", "json", stdin="n\ny\n")
    assert done.exit_code == 0
    assert [f.exists() for f in files] == [True, False]
    assert done.stderr.count("delete ") == 2
    data = json.loads(done.stdout)
    assert data["facts"]["removed"] == [str(files[1])]
    (row,) = [r for r in data["facts"]["tables"]["machine"] if r["item"] == "shared-memory"]
    assert row["what"].startswith("1 shared-memory"), "it looks again after deleting"
    assert ckpt("preflight", "--clean", "--engine-python", python, stdin="\n").exit_code == 0
    assert files[0].exists(), "no is the default"
    assert ckpt("preflight", "--clean", "--engine-python", python).exit_code == 130
    assert files[0].exists()


@pytest.mark.usefixtures("calm")
def test_preflight_says_what_it_could_not_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "psm_dir").mkdir()
    monkeypatch.setattr(machine, "segments", lambda: (Segment(tmp_path / "psm_dir", 1, ()),))
    python = interpreter(tmp_path / "python", sglang="0.5.23")
    done = ckpt("preflight", "--clean", "--engine-python", python, stdin="y\n")
    assert done.exit_code == 3
    assert "psm_dir: can't be deleted" in done.stderr


@pytest.mark.usefixtures("calm")
def test_preflight_takes_the_policy_and_the_draft_s_own_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[preflight.Wanted] = []

    def gather(asked: preflight.Wanted, **_: object) -> preflight.Found:
        wanted.append(asked)
        return preflight.Found(installed=Installed("vllm", "0.33.0", None, "python", "3.12"))

    monkeypatch.setattr(preflight, "gather", gather)
    draft = tmp_path / "draft"
    draft.mkdir()
    for file in RAW.iterdir():
        (draft / file.name).write_bytes(file.read_bytes())
    config = json.loads((draft / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(TARGET)
    (draft / "config.json").write_text(json.dumps(config))
    Path("ckpt.toml").write_text('engine = "vllm"\ntp = 3\n')
    data = report("preflight", draft)[1]
    assert data["engines"][0]["why"] == "policy"
    assert data["target"]["id"] == str(TARGET)
    sizes = [p.stat().st_size for p in (draft / "model.safetensors", TARGET / "model.safetensors")]
    assert wanted[0] == preflight.Wanted(
        engine="vllm", architecture="LlamaForCausalLM", algorithm="eagle3",
        draft_architectures=tuple(config["architectures"]),
        weight_bytes=sum(sizes), largest_file=max(sizes), tp=3,
    )  # fmt: skip
    Path("ckpt.toml").write_text('target = "kimi-k2.5"\n')
    assert report("preflight")[1]["target"]["id"] == "kimi-k2.5"
    assert wanted[-1].architecture == "KimiK25ForConditionalGeneration"
    assert wanted[-1].weight_bytes is None


@pytest.mark.usefixtures("calm")
def test_preflight_prints_the_lines_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "    def set_eagle3_layers_to_capture(self, layer_ids=None):",
        "        self.language_model.set(layer_ids)",
    )
    found = preflight.Found(
        installed=Installed("sglang", "0.5.9", Path("/x"), sys.executable, "3.12"),
        hooks=Answer(False, ("set_eagle3_layers_to_capture",), Patch("kimi_k25.py", 640, lines), {}),
        registered=True,
    )
    monkeypatch.setattr(preflight, "gather", lambda *_, **__: found)
    status, data = report("preflight", "--target", "kimi-k2.5")
    assert status == 1
    assert data["facts"]["lines"] == {"hooks": list(lines)}
    assert any("line 640" in (f["hint"] or "") for f in data["findings"])
    table = ckpt("preflight", "--target", "kimi-k2.5").stdout
    assert all(line.strip() in table for line in lines)


@pytest.mark.usefixtures("calm")
def test_preflight_knows_what_the_model_package_brings(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kimi-K2.5 has no hooks before 0.5.10 and ckpt's draft class is in no SGLang."""
    found = preflight.Found(
        installed=Installed("sglang", "0.5.9", Path("/x"), sys.executable, "3.12"),
        hooks=Answer(False, ("set_eagle3_layers_to_capture",), None, {}),
        registered=True,
    )
    monkeypatch.setattr(preflight, "gather", lambda *_, **__: found)
    draft = tmp_path / "ext"
    draft.mkdir()
    for file in served.iterdir():
        (draft / file.name).write_bytes(file.read_bytes())
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(
        json.dumps({**config, "architectures": ["CkptLlamaForCausalLMEagle3"]})
    )
    plain = items(report("preflight", draft, "--target", "kimi-k2.5", "--engine", "sglang")[1])
    assert plain["hooks"] == plain["draft-class"] == "fail"
    status, data = report("preflight", draft, "--target", "kimi-k2.5", "--engine", "sglang-ext")
    assert status == 0, data["findings"]
    newer = replace(found, installed=Installed("sglang", "0.5.23", Path("/x"), sys.executable, "3.12"))
    monkeypatch.setattr(preflight, "gather", lambda *_, **__: newer)
    other = report("preflight", served, "--target", "kimi-k2.5", "--engine", "sglang-ext")[1]
    assert items(other)["hooks"] == items(other)["draft-class"] == "fail"


@pytest.mark.parametrize(
    ("version", "status", "says"),
    [
        ("0.5.23", "ok", "knows SGLang 0.5.23"),
        ("0.4.9", "fail", "0.5.6 to"),
        (None, "unknown", "isn't installed"),
    ],
)
@pytest.mark.usefixtures("calm")
def test_preflight_looks_for_the_model_package(
    version: str | None, status: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Installed("sglang", version, Path("/x"), sys.executable, "3.12") if version else None
    monkeypatch.setattr(preflight, "gather", lambda *_, **__: preflight.Found(installed=installed))
    data = report("preflight", "--engine", "sglang-ext")[1]
    row = next(r for r in data["facts"]["tables"]["machine"] if r["item"] == "model package")
    assert row["status"] == status
    assert says in row["what"]


@pytest.mark.usefixtures("calm")
def test_preflight_says_when_the_engine_finds_no_model_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    installed = Installed("sglang", "0.5.23", Path("/x"), str(bare), "3.12")
    monkeypatch.setattr(preflight, "gather", lambda *_, **__: preflight.Found(installed=installed))
    status, data = report("preflight", "--engine", "sglang-ext")
    assert status == 1
    found = next(f for f in data["findings"] if "model package" in f["message"])
    assert found["hint"] == f"{bare} -m pip install --no-deps ckpt-tools"
    with pytest.raises(Unavailable, match="can't be asked"):
        finds(str(tmp_path / "nowhere"), "ckpt_tools")


# ---- verify with a log and a launch command


def test_verify_refuses_two_engines_in_one_question(served: Path) -> None:
    log = LOGS / "sglang-0.5.23-good.log"
    for args, says in (
        (("--engine", "vllm", "--log", log), "--log is of sglang"),
        (("--launch", "vllm serve t", "--log", log), "--log is of sglang"),
        (("--launch", "-", "--log", "-"), "both read stdin"),
    ):
        done = ckpt("verify", served, *args)
        assert done.exit_code == 2
        assert says in done.stderr


# ---- accept, from a log and from a live server


def test_accept_reads_a_log() -> None:
    status, data = report("accept", "--log", LOGS / "sglang-0.5.23-good.log", "--cost-ratio", "0.1")
    facts = data["facts"]
    assert status == 0
    assert facts["mean_accept_len"] == pytest.approx(2.7)
    assert (facts["source"], facts["engine"], facts["lines"]) == ("log", "sglang", 3)
    assert facts["expected_length"] == {
        str(facts["depth"]): {"mean": facts["mean_accept_len"], "low": None, "high": None}
    }
    assert facts["pays"] is True
    assert facts["speedup"][str(facts["depth"])] == pytest.approx(2.7 / (1 + 0.1 * facts["depth"]))
    vllm = report("accept", "--log", "-", stdin=(LOGS / "vllm-0.32.0-good.log").read_text())[1]["facts"]
    assert vllm["mean_accept_len"] == pytest.approx(2.35)


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (("--log", str(LOGS / "sglang-0.5.23-loading.log")), 3, "no line of it tells an acceptance"),
        (("--log", "nowhere.log"), 3, "nowhere.log: no such file"),
        (("--url", "127.0.0.1:30000"), 2, "is no http address"),
        (("--url", "http://127.0.0.1:1"), 4, "no answer"),
        ((), 2, "found none"),
        (("--url", "http://x", "--log", "y"), 2, "--url, --log"),
    ],
)
def test_accept_refuses(args: tuple[str, ...], status: int, says: str) -> None:
    done = ckpt("accept", *args)
    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr


SGLANG_INFO = {
    "version": "0.5.23",
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
    "internal_states": [{"avg_spec_accept_length": 2.5}],
}


def test_accept_asks_a_live_sglang() -> None:
    asked: list[str] = []

    def generate(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["text"])
        meta = {"completion_tokens": 25, "spec_verify_ct": 10, "spec_num_correct_drafts": 14}
        return {"text": "", "meta_info": {**meta, "spec_correct_drafts_histogram": [2, 4, 2, 2]}}

    with serving({"/server_info": SGLANG_INFO, "/generate": generate}) as url:
        facts = report("accept", "--url", url, "--cost-ratio", "0.2")[1]["facts"]
        assert asked == []
        assert (facts["mean_accept_len"], facts["depth"], facts["version"]) == (2.5, 3, "0.5.23")
        assert facts["speedup"] == {"3": pytest.approx(2.5 / 1.6)}
        assert facts["per_position"] is None
        Path("prompts.txt").write_text("one\n\n two\n")
        facts = report("accept", "--url", url, "--prompts", "prompts.txt")[1]["facts"]
    assert asked == ["one", " two"]
    assert facts["source"] == "/generate"
    assert facts["rounds"] == 20
    assert facts["mean_accept_len"] == pytest.approx(1 + 28 / 20)
    assert facts["per_position"] == [pytest.approx(8 / 10), pytest.approx(4 / 8), pytest.approx(2 / 4)]


def test_accept_asks_a_live_vllm() -> None:
    metrics = (
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 3.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 2.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 1.0\n'
    )
    with serving({"/metrics": metrics, "/version": {"version": "0.33.0"}}) as url:
        status, data = report("accept", "--url", url)
    facts = data["facts"]
    assert (facts["engine"], facts["version"], facts["rounds"]) == ("vllm", "0.33.0", 100)
    assert facts["mean_accept_len"] == pytest.approx(1.03)
    assert facts["per_position"] == [0.02, 0.5]
    assert "ACC003" in {f["code"] for f in data["findings"]}, "next to nothing is accepted"
    assert status == 0 or data["verdict"] == "fail"


# ---- completion


@pytest.mark.parametrize(
    ("shell", "words_"), [("bash", "complete -o nosort"), ("zsh", "#compdef ckpt"), ("fish", "complete ")]
)
def test_completion_prints_a_script(shell: str, words_: str) -> None:
    done = ckpt("completion", shell)
    assert done.exit_code == 0
    assert words_ in done.stdout
    assert "_CKPT_COMPLETE" in done.stdout
    assert ckpt("completion", "tcsh").exit_code == 2


def test_what_the_script_asks_for_is_answered() -> None:
    """The script runs ``ckpt`` with the words typed so far in its environment."""

    def complete(*typed: str) -> set[str]:
        code = "import sys; sys.argv[0] = 'ckpt'; from ckpt_tools.cli import main; main(prog_name='ckpt')"
        env = {**os.environ, "_CKPT_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("ckpt", *typed)),
               "COMP_CWORD": str(len(typed))}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
        )
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert complete("ver") == {"verify"}
    assert {"--as", "--run", "--log-file"} <= complete("launch", "--")
    assert complete("launch", "--as", "k") == {"k8s"}
