"""The block scan against reading every line."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.serving.logs import LogReader
from ckpt_tools.serving.logs.scan import scan

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


def test_no_lines() -> None:
    assert len(scan(b"").starts) == 0


def test_words_in_a_prompt_aren_t_statistics() -> None:
    text = b"[2026-11-20 10:00:00] Receive: obj=X(text='accept len: 9.99, accept rate: 0.99, ')\n"
    assert not len(scan(text).accept_at)


def test_an_open_request_owns_what_follows() -> None:
    seen = scan(b"[2026-11-20 10:00:00] Receive: obj=X(text='a\nValueError: x\n')\n")
    assert seen.dumps.tolist() == [0]
    assert seen.owner.tolist() == [0, 0, 0]
