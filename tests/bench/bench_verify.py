"""``ckpt verify`` on a draft of Kimi-K2.5's size: without and with values, beside plain numpy passes.

    python tests/bench/bench_verify.py --where /some/folder

Writes 2.4 GB of normal BF16 weights once, reads them once so that they are in the page cache, and prints the
best of ``--repeat``. A plain pass is the OR of a whole memory map, eight bytes at a time, in one thread, and in
as many as there are cores. ``--deep`` also hashes the files (``content`` in the report), which no thread can share
within one file: that rate is printed, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ckpt_tools.container import open_checkpoint, scan
from ckpt_tools.container.screen import screen

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN, INTERMEDIATE, HEADS, HEAD_DIM, VOCAB, DRAFT_VOCAB = 7168, 18432, 64, 128, 163840, 32000
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM,
    "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "num_hidden_layers": 1, "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "tie_word_embeddings": False, "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}  # fmt: skip
SHAPES = {
    "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    **{f"midlayer.self_attn.{p}_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN) for p in "qkv"},
    "midlayer.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    "midlayer.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
    "midlayer.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
    "midlayer.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    **{f"midlayer.{n}.weight": (HIDDEN,) for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
    "norm.weight": (HIDDEN,),
}  # fmt: skip


def write(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    for name, shape in SHAPES.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    header["d2t"] = {"dtype": "I64", "shape": [DRAFT_VOCAB], "data_offsets": [at, at + 8 * DRAFT_VOCAB]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    normal = ((rng.standard_normal(1 << 24) * 0.02).astype("<f4").view("<u4") >> 16).astype("<u2")
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in SHAPES.values():
            if len(shape) == 1:
                file.write((normal[: shape[0]] & 0x0F | 0x3F80).tobytes())  # gains near one
                continue
            left = int(np.prod(shape))
            while left:
                part = min(left, len(normal))
                file.write(normal[:part].tobytes())
                left -= part
        file.write(bytes(8 * DRAFT_VOCAB))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return 8 + len(text) + at + 8 * DRAFT_VOCAB


def best(repeat: int, function: Callable[[], object]) -> float:
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def plain(path: Path, threads: int) -> None:
    words = np.memmap(path, np.uint8, "r")
    words = words[: len(words) // 8 * 8].view("<u8")
    cuts = np.linspace(0, len(words), threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(lambda i: np.bitwise_or.reduce(words[cuts[i] : cuts[i + 1]], initial=0), range(threads))
        )


def digest(path: Path) -> None:
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            found.update(piece)


def command(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "ckpt_tools", *args], check=False, stdout=subprocess.DEVNULL)


def peak(*args: str) -> int:
    """Peak resident memory of a command in KiB; a process between keeps this one's own out of it."""
    between = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    line = [sys.executable, "-c", between, sys.executable, "-m", "ckpt_tools", *args]
    return int(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--where", type=Path, required=True, help="a folder with 3 GB free")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    folder = args.where / "bench-verify"
    size = write(folder)
    path, cores = folder / "model.safetensors", os.cpu_count() or 1
    checkpoint = open_checkpoint(folder)
    plain(path, cores)
    one, many = (best(args.repeat, lambda n=n: plain(path, n)) for n in (1, cores))
    rows = [
        ("plain numpy pass, 1 thread", one),
        (f"plain numpy pass, {cores} threads", many),
        ("screen, 1 thread", best(args.repeat, lambda: screen(checkpoint, threads=1))),
        (f"screen, {cores} threads", best(args.repeat, lambda: screen(checkpoint))),
        (f"all statistics (inspect --stats), {cores} threads", best(args.repeat, lambda: scan(checkpoint))),
        ("SHA-256, 1 thread", best(args.repeat, lambda: digest(path))),
        ("ckpt verify --deep", best(args.repeat, lambda: command("verify", str(folder), "--deep", "-q"))),
    ]
    for what, seconds in rows:
        rate = size / seconds / 1e9
        print(
            f"{what:48} {seconds:6.3f} s {rate:6.2f} GB/s  {one / seconds:5.2f} of one, {many / seconds:5.2f} of {cores}"
        )
    print(f"peak memory of ckpt verify --deep: {peak('verify', str(folder), '--deep', '-q') / 1024:.0f} MiB")
    structural = best(args.repeat, lambda: command("verify", str(folder), "--target", "kimi-k2.5", "-q"))
    print(f"ckpt verify --target kimi-k2.5: {structural:.3f} s")


main()
