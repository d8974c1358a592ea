"""A stand-in server on the loopback, watched from another process as a person would: start, ready, crash, hang."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckpt_tools.serving.watch import watch

SERVER = """
import http.server, sys, threading, time
mode, port = sys.argv[1], int(sys.argv[2])
def say(text):
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, flush=True)
say(f"server_args=ServerArgs(model_path='/t', host='127.0.0.1', port={port}, speculative_algorithm='EAGLE3', "
    "chat_template='Traceback (most recent call last): ValueError')")
say("Init torch distributed begin.")
say("Load weight begin. avail mem=10.00 GB")
for i in range(5):
    sys.stdout.write(f"Multi-thread loading shards: {25 * i:3d}% Completed | {i}/4 [00:0{i}<00:0{4 - i},  1.00s/it]\\r")
    sys.stdout.flush()
    time.sleep(0.1)
print(flush=True)
say("Load weight end. elapsed=0.50 s, type=LlamaForCausalLM, avail mem=9.00 GB, mem usage=1.00 GB.")
say("Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1], avail mem=9.00 GB")
sys.stdout.write("  0%|          | 0/4 [00:00<?, ?it/s]")
sys.stdout.flush()
if mode == "hang":
    time.sleep(600)
time.sleep(0.3)
print(flush=True)
if mode == "crash":
    say("Scheduler hit an exception: Traceback (most recent call last):")
    print('  File "scheduler.py", line 1, in run\\nRuntimeError: mat1 and mat2 must have the same dtype\\n', flush=True)
    say("Received sigquit from a child process. It usually means the child failed.")
    raise SystemExit(1)
if mode == "killed":
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.monotonic() > opened + 0.5 else 503)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
opened = time.monotonic()
threading.Thread(target=server.serve_forever, daemon=True).start()
say("The server is fired up and ready to roll!")
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path):
    children = []

    def begin(mode: str) -> tuple[Path, int, subprocess.Popen]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = tmp_path / f"{mode}.log"
        with log.open("wb") as out:
            child = subprocess.Popen([sys.executable, "-c", SERVER, mode, str(port)], stdout=out, stderr=out)
        children.append(child)
        return log, port, child

    yield begin
    for child in children:
        child.kill()
        child.wait()


def states(seen: list) -> list[str]:
    out: list[str] = []
    for look in seen:
        if not out or out[-1] != look.log.state:
            out.append(look.log.state)
    return out


def test_ready(start) -> None:
    log, port, _ = start("good")
    seen = list(watch(log, follow=True, timeout=60, url=f"http://127.0.0.1:{port}", interval=0.05))
    assert states(seen)[-1] == "ready"
    assert "capturing" in states(seen)
    assert "failed" not in states(seen)
    assert seen[-1].signals.healthy
    assert seen[-1].signals.alive
    bars = [look.log.progress.percent for look in seen if look.log.progress and look.log.state == "loading"]
    assert bars == sorted(bars)


def test_crash(start) -> None:
    log, _, _ = start("crash")
    last = list(watch(log, follow=True, timeout=60, interval=0.05))[-1]
    assert (last.log.state, last.log.cause) == ("failed", "dtype-clash")
    assert last.done


def test_hang(start) -> None:
    """A capture at 0 % is not a hang; a process that neither writes nor works is one."""
    log, _, child = start("hang")
    seen = list(watch(log, follow=True, timeout=8, stall_after=1.5, interval=0.2, pid=child.pid))
    assert "capturing" in states(seen)
    assert states(seen)[-1] == "stalled"
    assert seen[-1].timed_out


def test_killed(start) -> None:
    log, _, child = start("killed")
    while child.poll() is None:
        time.sleep(0.05)
    last = list(watch(log, follow=True, timeout=60, interval=0.05, pid=child.pid))[-1]
    assert (last.log.state, last.log.cause) == ("failed", "process-ended")
    assert child.returncode == -signal.SIGKILL


def test_through_a_pipe(start) -> None:
    log, _, _ = start("crash")
    tail = subprocess.Popen(["tail", "-f", "-n", "+1", str(log)], stdout=subprocess.PIPE)
    try:
        assert tail.stdout is not None
        last = list(watch(tail.stdout, timeout=60, interval=0.05))[-1]
        assert last.log.cause == "dtype-clash"
    finally:
        tail.kill()
        tail.communicate()


def test_the_cause_may_come_after_the_first_line(tmp_path: Path) -> None:
    """What fails says so first, and why a moment later."""
    code = (
        "import sys, time\n"
        "print('[2026-01-01 00:00:00] server_args=ServerArgs(model_path=1)', flush=True)\n"
        "print('[2026-01-01 00:00:01] Scheduler hit an exception: Traceback (most recent call last):', flush=True)\n"
        "time.sleep(0.5)\n"
        "print('  File \"x.py\", line 1, in f\\nRuntimeError: mat1 and mat2 must have the same dtype', flush=True)\n"
        "time.sleep(30)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            last = list(watch(child.stdout, timeout=20, interval=0.05))[-1]
            assert (last.log.state, last.log.cause) == ("failed", "dtype-clash")
        finally:
            child.kill()
