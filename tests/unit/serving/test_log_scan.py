"""The block scan against reading every line."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.serving.logs import LogReader
from ckpt_tools.serving.logs.scan import scan, without_colours

DECODE = "[2026-11-20 10:00:00{rank}] Decode batch, #running-req: 1, #token: {n}, token usage: 0.00, accept len: {length:.2f}{rate}, cuda graph: True"
ACCESS = '[2026-11-20 10:00:00] INFO:     127.0.0.1:4{n} - "POST /generate HTTP/1.1" 200 OK'
OTHER = "[2026-11-20 10:00:00 TP0] Load weight begin. avail mem={n} GB"
VLLM = "(APIServer pid=7) INFO 11-20 10:00:00 [loggers.py:1] Engine {n}"
VLLM_ACCESS = '(APIServer pid=7) INFO:     127.0.0.1:4{n} - "GET /health HTTP/1.1" 200 OK'
PLAIN = "some text {n}"


@st.composite
def logs(draw) -> list[str]:
    lines = []
    for _ in range(draw(st.integers(0, 40))):
        form = draw(
            st.sampled_from([DECODE, DECODE, ACCESS, OTHER, VLLM, VLLM_ACCESS, PLAIN, "", "  File x"])
        )
        n = draw(st.integers(0, 99999))
        length = draw(st.integers(100, 1699)) / 100
        rate = draw(st.sampled_from(["", f", accept rate: {draw(st.integers(0, 100)) / 100:.2f}"]))
        rank = draw(st.sampled_from(["", " TP0", " DP1 TP11"]))
        lines.append(form.format(n=n, length=length, rate=rate, rank=rank))
    return lines


@settings(max_examples=80, deadline=None)
@given(logs())
def test_acceptance_equals_a_regex_over_every_line(lines: list[str]) -> None:
    reader = LogReader("sglang")
    reader.feed(("\n".join(lines) + "\n").encode())
    found = reader.snapshot().acceptance
    hits = [re.search(r"accept len: (\d+\.\d\d)(?:, accept rate: (\d+\.\d\d))?", line) for line in lines]
    hits = [hit for hit in hits if hit]
    if not hits:
        assert found is None
        return
    assert found is not None
    assert found.n == len(hits)
    assert abs(found.mean_accept_len - sum(float(h[1]) for h in hits) / len(hits)) < 1e-9
    rates = [float(h[2]) for h in hits if h[2]]
    assert (found.mean_accept_rate is None) == (not rates)
    if rates:
        assert abs(found.mean_accept_rate - sum(rates) / len(rates)) < 1e-9
    numbers = [i + 1 for i, line in enumerate(lines) if "accept len" in line]
    assert (found.first_line, found.last_line) == (numbers[0], numbers[-1])


@settings(max_examples=80, deadline=None)
@given(logs())
def test_kinds_of_lines(lines: list[str]) -> None:
    seen = scan("".join(line + "\n" for line in lines).encode())
    assert len(seen.starts) == len(lines)
    kept, served = set(seen.keep.tolist()), set(seen.served.tolist())
    for i, line in enumerate(lines):
        is_served = "Decode batch" in line or " HTTP/1.1" in line
        assert (i in served) is is_served, line
        assert (i in kept) is (bool(line) and not is_served and not line.startswith(" ")), line
    for i, owner in enumerate(seen.owner.tolist()):
        records = [j for j in range(i + 1) if lines[j].startswith(("[2026", "(API"))]
        assert owner == (records[-1] if records else -1)


SPEC = (
    "(APIServer pid=7) INFO 11-20 10:00:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {length:.2f}, "
    "Accepted throughput: 1.00 tokens/s, Avg Draft acceptance rate: {rate:.1f}%"
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(100, 999), st.integers(0, 1000)), min_size=1, max_size=20))
def test_vllm_s_statistics(values: list[tuple[int, int]]) -> None:
    reader = LogReader()
    lines = [SPEC.format(length=length / 100, rate=rate / 10) for length, rate in values]
    reader.feed(("\n".join(lines) + "\n").encode())
    found = reader.snapshot().acceptance
    assert found is not None
    assert found.n == len(values)
    assert abs(found.mean_accept_len - sum(v[0] for v in values) / len(values) / 100) < 1e-9
    assert found.mean_accept_rate is not None
    assert abs(found.mean_accept_rate - sum(v[1] for v in values) / len(values) / 1000) < 1e-9


def test_vllm_s_older_statistics() -> None:
    line = b"INFO 08-18 10:00:00 [metrics.py:1] SpecDecoding metrics: Draft acceptance rate: 50.0%, Mean acceptance length: 2.50\n"
    reader = LogReader()
    reader.feed(line)
    found = reader.snapshot().acceptance
    assert found is not None
    assert (found.mean_accept_len, found.mean_accept_rate) == (2.5, 0.5)


def test_colours_go_whatever_they_are() -> None:
    assert without_colours(b"\x1b[1;36m(A pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m x\n") == b"(A pid=1) INFO x\n"
    assert without_colours(b"\x1b[Kx\n") == b"\x1b[Kx\n"


def test_what_still_means_something_once_it_serves() -> None:
    lines = [
        b"[2026-11-20 10:00:00] Something about caches",
        b"[2026-11-20 10:00:00] Scheduler hit an exception: Traceback (most recent call last):",
        b"  File x",
        b"odd.name: raised",
        b"text that was generated",
        b"INFO 11-20 10:00:00 [loggers.py:1] Engine 000: Avg",
        b"ERROR 11-20 10:00:00 [core.py:1] Anything",
        b"ValueError: x",
        b"INFO:     Shutting down",
        b"[11/20/2026-10:00:00] [TRT-LLM] [I] iter = 3",
    ]
    block = b"\n".join(lines) + b"\n"
    assert [lines[i][:14] for i in scan(block).telling.tolist()] == [
        b"[2026-11-20 10"[:14], b"odd.name: rais", b"text that was ", b"ERROR 11-20 10", b"ValueError: x", b"INFO:     Shut",
    ]  # fmt: skip
    plain = b"text\nmore\n"
    assert scan(plain).telling.tolist() == []
    assert scan(plain, in_traceback=True).telling.tolist() == [0, 1]


def test_a_restart_is_read_in_full_again() -> None:
    text = (
        b"[2026-11-20 10:00:00] The server is fired up and ready to roll!\n"
        + ACCESS.format(n=1).encode()
        + b"\n"
    ) * 10
    reader = LogReader()
    reader.feed(text)
    reader.feed(
        text
        + b"[2026-11-20 10:00:00] server_args=ServerArgs(port=1)\n[2026-11-20 10:00:00] Load weight begin. avail mem=1\n"
        b"Loading shards:  50% Completed | 2/4 [00:02<00:02,  1.0s/it]\n[2026-11-20 10:00:00] x not found in params_dict\n"
    )
    state = reader.snapshot()
    assert (state.state, state.starts, [n.id for n in state.notes]) == ("loading", 1, ["tensor-dropped"])
    assert state.progress is not None
    assert state.progress.percent == 50.0


def test_a_start_that_says_too_much() -> None:
    reader = LogReader()
    filler = b"[2026-11-20 10:00:00] nothing in particular " + b"x" * 4000 + b"\n"
    reader.feed(filler * (34 * 256))
    reader.feed(b"[2026-11-20 10:00:00] The server is fired up and ready to roll!\n")
    assert reader.snapshot().state == "ready"


def test_no_lines() -> None:
    assert len(scan(b"").starts) == 0


def test_words_in_a_prompt_aren_t_statistics() -> None:
    text = b"[2026-11-20 10:00:00] Receive: obj=X(text='accept len: 9.99, accept rate: 0.99, ')\n"
    assert not len(scan(text).accept_at)


def test_an_open_request_owns_what_follows() -> None:
    seen = scan(b"[2026-11-20 10:00:00] Receive: obj=X(text='a\nValueError: x\n')\n")
    assert seen.dumps.tolist() == [0]
    assert seen.owner.tolist() == [0, 0, 0]
