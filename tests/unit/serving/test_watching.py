"""Watching: what signals mean together, files that grow and turn, pipes, ports."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from ckpt_tools.errors import InputError, UsageError
from ckpt_tools.serving.logs import read_log
from ckpt_tools.serving.watch import FileSource, PipeSource, Signals, healthy, judge, listening, watch

if TYPE_CHECKING:
    from pathlib import Path

T = "[2026-11-20 10:00:00] "
START = (
    T + "server_args=ServerArgs(host='127.0.0.1', port={port})\n" + T + "Load weight begin. avail mem=1 GB\n"
).format
READY = T + "The server is fired up and ready to roll!\n"
DEAD = T + "Scheduler hit an exception: Traceback (most recent call last):\nValueError: x\n"


class Time:
    """A clock that runs when someone sleeps, and does something at given moments."""

    def __init__(self, **events) -> None:
        self.now, self.events = 0.0, dict(events)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment, event in list(self.events.items()):
            if self.now >= float(moment[1:]):
                del self.events[moment]
                event()


def looks(path, time: Time | None = None, **options):
    time = time or Time()
    return list(watch(path, clock=time.clock, sleep=time.sleep, **options))


def append(path: Path, text: str):
    def event() -> None:
        with path.open("a") as file:
            file.write(text)

    return event


# ---- judge


def state(text: str):
    return read_log(text.encode())


def test_ready_needs_its_second_signal() -> None:
    ready = state(READY)
    assert judge(ready, Signals(), 0, 60).state == "ready"
    assert judge(ready, Signals(listening=True), 0, 60).state == "ready"
    assert judge(ready, Signals(listening=False), 0, 60).state == "starting"
    assert judge(ready, Signals(listening=True, healthy=False), 0, 60).state == "starting"
    assert judge(ready, Signals(listening=False, healthy=True), 0, 60).state == "ready"


def test_a_ready_server_whose_process_is_gone_has_failed() -> None:
    ready = state(READY)
    for signals in (
        Signals(alive=False),
        Signals(alive=False, listening=False),
        Signals(alive=False, healthy=False),
    ):
        assert judge(ready, signals, 0, 60).cause == "process-ended"
    # another process answers there: the one that was watched only started it
    assert judge(ready, Signals(alive=False, healthy=True), 0, 60).state == "ready"


def test_stalled_needs_silence_and_idleness() -> None:
    loading = state(START(port=1))
    assert judge(loading, Signals(alive=True, working=True), 600, 60).state == "loading"
    assert judge(loading, Signals(alive=True, working=False), 30, 60).state == "loading"
    assert (
        judge(loading, Signals(), 600, 60).state == "loading"
    )  # the process isn't known: nothing is claimed
    stalled = judge(loading, Signals(alive=True, working=False), 90, 60)
    assert stalled.state == "stalled"
    assert "90 s" in stalled.phase


def test_a_process_that_is_gone_has_failed() -> None:
    gone = judge(state(START(port=1)), Signals(alive=False, working=False), 0, 60)
    assert (gone.state, gone.cause) == ("failed", "process-ended")
    assert judge(state(READY + T + "SIGTERM received. x"), Signals(alive=False), 0, 60).state == "stopped"
    assert judge(state(DEAD), Signals(alive=False), 0, 60).cause == "exception"


# ---- files


def test_a_finished_log_takes_one_look(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1) + READY)
    (only,) = looks(log)
    assert only.done
    assert only.log.state == "ready"
    assert not only.timed_out


def test_a_missing_log(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        looks(tmp_path / "nowhere")


def test_following_until_ready(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    time = Time(t1=append(log, START(port=1)), t2=append(log, READY), t3=append(log, "more\n"))
    seen = looks(log, time, follow=True, port=0)
    assert [w.log.state for w in seen][-1] == "ready"
    assert {"starting", "loading", "ready"} == {w.log.state for w in seen}
    assert seen[-1].done


def test_following_until_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1))
    assert looks(log, Time(t2=append(log, DEAD)), follow=True)[-1].log.state == "failed"


def test_timeout(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1))
    last = looks(log, follow=True, timeout=3.0)[-1]
    assert last.timed_out
    assert not last.done
    assert last.elapsed_s >= 3.0
    assert last.log.state == "loading"


def test_a_silent_traceback_counts_after_a_while(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1) + "Traceback (most recent call last):\nValueError: x\n")
    seen = looks(log, follow=True, timeout=60)
    assert seen[0].log.state == "loading"
    assert seen[-1].log.state == "failed"


def test_rotation_and_truncation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1))

    def rotate() -> None:
        log.rename(tmp_path / "log.1")
        log.write_text(T + "KV Cache is allocated. #tokens: 1\n")

    def truncate() -> None:
        log.write_text("x\n")

    seen = looks(log, Time(t1=rotate, t2=truncate, t3=append(log, DEAD)), follow=True)
    assert seen[-1].log.decisive_lines == (2, 3)
    assert seen[-1].log.starts == 1


def test_a_log_that_is_away_for_a_moment(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1))
    source = FileSource(log, follow=True)
    assert source.read()
    log.unlink()
    assert source.read() == b""
    log.write_text("new\n")
    assert source.read() == b"new\n"
    assert source.rotated()
    source.close()


def test_a_big_backlog_is_caught_up_before_looking(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text((T + "x\n") * 100_000 + READY)
    (only,) = looks(log, follow=True, port=0)
    assert only.log.state == "ready"


# ---- pipes


def test_a_pipe_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, (START(port=1) + READY).encode())
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        seen = looks(stream)
    assert seen[-1].log.state == "ready"
    assert seen[-1].done


def test_an_idle_pipe() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb"):
        source = PipeSource(stream, wait_s=0.01)
        assert source.read() == b""
        assert not source.rotated()
        assert looks(stream, timeout=1.0)[-1].timed_out


# ---- ports and health


class _Handler(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def server():
    handler = type("Handler", (_Handler,), {})
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made, handler
    made.shutdown()
    thread.join()
    made.server_close()


def test_health(server) -> None:
    made, handler = server
    url = f"http://127.0.0.1:{made.server_port}"
    assert healthy(url)
    assert healthy(url + "/health")
    assert not healthy(url + "/other")
    handler.status = 503
    assert not healthy(url)
    with pytest.raises(UsageError):
        healthy("127.0.0.1:1")


def test_listening(server) -> None:
    made, _ = server
    assert listening("127.0.0.1", made.server_port)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert not listening("127.0.0.1", port)


def test_the_line_alone_isn_t_enough(server, tmp_path: Path) -> None:
    made, handler = server
    handler.status = 503
    log = tmp_path / "log"
    log.write_text(START(port=made.server_port) + READY)
    time = Time(t2=lambda: setattr(handler, "status", 200))
    seen = looks(log, time, follow=True, url=f"http://127.0.0.1:{made.server_port}")
    assert seen[0].log.state == "starting"
    assert seen[-1].log.state == "ready"
    assert seen[-1].signals.healthy


def test_the_port_is_taken_from_the_arguments(server, tmp_path: Path) -> None:
    made, _ = server
    log = tmp_path / "log"
    log.write_text(START(port=made.server_port) + READY)
    last = looks(log, follow=True)[-1]
    assert last.log.state == "ready"
    assert last.signals.listening


def test_a_server_elsewhere_isn_t_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text((START(port=1) + READY).replace("127.0.0.1", "10.1.2.3"))
    last = looks(log, follow=True)[-1]
    assert last.log.state == "ready"
    assert last.signals.listening is None


def test_vllm_s_own_port(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "INFO 11-20 10:00:00 [x.py:1] non-default args: {'model': 'm'}\nINFO:     Application startup complete.\n"
    )
    assert looks(log, follow=True, timeout=1.0)[-1].signals.listening in (True, False)


# ---- processes


def test_the_writer_of_the_log_is_watched(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1))
    with log.open("a"):
        seen = looks(log, follow=True, timeout=2.0, pid=os.getpid())
    assert seen[-1].signals.alive


def test_a_dead_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(START(port=1))
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(pid, 0)
    last = looks(log, follow=True, pid=pid)[-1]
    assert (last.log.state, last.log.cause) == ("failed", "process-ended")
    (once,) = looks(log, pid=pid)
    assert once.log.cause == "process-ended"
