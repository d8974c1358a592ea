"""Time and memory of reading a big log.

    python tests/bench/bench_watch.py [GIGABYTES]

Writes a log of statistics, access lines and requests around real starts, reads it, and prints the rate and the
peak of resident memory.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from ckpt_tools.serving.logs import LogReader

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


def served(number: int) -> bytes:
    lines = []
    for i in range(number):
        clock = f"2026-11-20 {10 + i // 3600 % 12:02d}:{i // 60 % 60:02d}:{i % 60:02d}"
        rank = " TP0" if i % 2 else ""
        lines.append(
            f"[{clock}{rank}] Decode batch, #running-req: {i % 9}, #token: {i * 7 % 90000}, token usage: 0.{i % 100:02d}, "
            f"accept len: {1 + i % 300 / 100:.2f}, accept rate: 0.{i % 100:02d}, cuda graph: True, "
            f"gen throughput (token/s): {i % 500}.31, #queue-req: 0"
        )
        if i % 3 == 0:
            lines.append(
                f'[{clock}] INFO:     127.0.0.1:{40000 + i % 9999} - "POST /generate HTTP/1.1" 200 OK'
            )
        if i % 5 == 0:
            lines.append(
                f"[{clock}{rank}] Prefill batch, #new-seq: 1, #new-token: {i % 4096}, #cached-token: 0, token usage: 0.00, "
                "#running-req: 0, #queue-req: 0, cuda graph: False, input throughput (token/s): 12.06"
            )
        if i % 50 == 0:
            lines.append(
                f"[{clock}] Receive: obj=GenerateReqInput(rid='{i}', text='Explain: Traceback (most recent call last):\\nKeyError', "
                "sampling_params={'temperature': 0})"
            )
    return "\n".join(lines).encode() + b"\n"


def main() -> None:
    size = float(sys.argv[1]) * 1e9 if len(sys.argv) > 1 else 2e9
    start = (LOGS / "sglang-0.5.23-good.log").read_bytes()
    block = served(40000)
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        file.write(start)
        written = len(start)
        while written < size:
            written += file.write(block)
        file.flush()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reader = LogReader()
        began, worked = time.perf_counter(), time.process_time()
        with open(file.name, "rb", buffering=0) as log:
            while data := log.read(1 << 20):
                reader.feed(data)
        state = reader.snapshot()
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{written / 1e9:.2f} GB in {seconds:.2f} s: {written / seconds / 1e6:.0f} MB/s (CPU {cpu:.2f} s: {written / cpu / 1e6:.0f} MB/s)"
    )
    print(f"peak memory {peak / 1024:.0f} MiB ({before / 1024:.0f} MiB before reading)")
    print(f"{state.state}, {state.lines} lines, acceptance {state.acceptance}")


main()
