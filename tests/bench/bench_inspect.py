"""``ckpt inspect`` of a target of 64 shards and 547 GB, beside ``python -c "import click"``.

    python tests/bench/bench_inspect.py --where /some/folder

The shards are sparse files: headers and sizes are real, and no block of data is on the disk. Every run is a
process of its own; best and median of ``--repeat`` are printed, and what ``ckpt`` takes beyond the import.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

SHARDS, EACH, BYTES, HIDDEN = 64, 100, 547 * 10**9, 7168
CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {"model_type": "kimi_k2", "hidden_size": HIDDEN, "num_hidden_layers": 61, "vocab_size": 163840},
}  # fmt: skip


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = BYTES // SHARDS // EACH // 2 // HIDDEN
    size, places = rows * HIDDEN * 2, {}
    for shard in range(SHARDS):
        file, header = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors", {}
        for i in range(EACH):
            layer, expert = divmod(shard * EACH + i, 105)
            part = ("gate_proj", "up_proj", "down_proj")[expert % 3]
            name = f"language_model.model.layers.{layer}.mlp.experts.{expert // 3}.{part}.weight"
            header[name] = {
                "dtype": "BF16",
                "shape": [rows, HIDDEN],
                "data_offsets": [i * size, (i + 1) * size],
            }
            places[name] = file
        text = json.dumps(header).encode()
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + EACH * size)
    index = {"metadata": {"total_size": SHARDS * EACH * size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))


def times(repeat: int, *command: str) -> tuple[float, float]:
    """Best and median seconds of a command."""
    took = []
    for _ in range(repeat + 1):  # the first one warms the caches
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - began)
    return min(took[1:]), statistics.median(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--where", type=Path, required=True, help="a folder on a file system with sparse files"
    )
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    folder = args.where / "bench-inspect"
    write(folder)
    base = times(args.repeat, "-c", "import click")
    ours = times(args.repeat, "-m", "ckpt_tools", "inspect", str(folder))
    print(f"import click                   best {base[0]:.3f} s, median {base[1]:.3f} s")
    print(f"ckpt inspect, {SHARDS} shards        best {ours[0]:.3f} s, median {ours[1]:.3f} s")
    print(f"beyond the import              best {ours[0] - base[0]:.3f} s, median {ours[1] - base[1]:.3f} s")


main()
