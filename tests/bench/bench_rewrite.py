"""Side by side on the same 2 GB draft: our rewrite, ``cp -r`` and a sync, and torch load-rename-save.

    python tests/bench/bench_rewrite.py --where /some/ext4/folder --loop btrfs --loop xfs
    python tests/bench/bench_rewrite.py --command "ckpt fix-keys {in} {out}"

Every run is a process of its own, start-up included, and ends when its bytes are on the disk: ours by its
own fsyncs, the other two by a ``sync``. The best of ``--repeat`` counts. ``--loop`` makes, mounts and removes
a file system in a sparse image and needs root, mkfs.btrfs or mkfs.xfs; add ``--cold`` to start each run
without the source in the page cache (root too).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, DRAFT_VOCAB = 4096, 14336, 32, 8, 128, 128256, 32000
CONFIG = {
    "architectures": ["Eagle3DraftModel"],
    "draft_vocab_size": DRAFT_VOCAB,
    "dtype": "bfloat16",
    "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "norm_output": False,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {
            "architectures": ["LlamaForCausalLM"],
            "name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
        },
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "attention_bias": False,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    },
}
# In the order that safetensors writes them: by element size, then by name.
TENSORS: dict[str, tuple[str, list[int]]] = {
    "d2t": ("I64", [DRAFT_VOCAB]),
    "embed_tokens.weight": ("BF16", [VOCAB, HIDDEN]),
    "fc.weight": ("BF16", [HIDDEN, 3 * HIDDEN]),
    "layers.0.hidden_norm.weight": ("BF16", [HIDDEN]),
    "layers.0.input_layernorm.weight": ("BF16", [HIDDEN]),
    "layers.0.mlp.down_proj.weight": ("BF16", [HIDDEN, INTERMEDIATE]),
    "layers.0.mlp.gate_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    "layers.0.mlp.up_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    "layers.0.post_attention_layernorm.weight": ("BF16", [HIDDEN]),
    "layers.0.self_attn.k_proj.weight": ("BF16", [KV_HEADS * HEAD_DIM, 2 * HIDDEN]),
    "layers.0.self_attn.o_proj.weight": ("BF16", [HIDDEN, HEADS * HEAD_DIM]),
    "layers.0.self_attn.q_proj.weight": ("BF16", [HEADS * HEAD_DIM, 2 * HIDDEN]),
    "layers.0.self_attn.v_proj.weight": ("BF16", [KV_HEADS * HEAD_DIM, 2 * HIDDEN]),
    "lm_head.weight": ("BF16", [DRAFT_VOCAB, HIDDEN]),
    "norm.weight": ("BF16", [HIDDEN]),
    "t2d": ("BOOL", [VOCAB]),
}
WIDTH = {"I64": 8, "BF16": 2, "BOOL": 1}

WORKERS = {
    "ckpt write_folder": """
import json, sys
from pathlib import Path
from ckpt_tools.container.layout import FileRange, OutFile, OutTensor, OutWeights
from ckpt_tools.container.write import write_folder
source, out = map(Path, sys.argv[1:])
tensors = []
path = source / "model.safetensors"
with open(path, "rb") as file:
    start = 8 + (length := int.from_bytes(file.read(8), "little"))
    header = json.loads(file.read(length))
metadata = header.pop("__metadata__", {})
for name, entry in header.items():
    begin, end = entry["data_offsets"]
    data = FileRange(path, start + begin, start + end)
    name = name.replace("layers.0.", "midlayer.")
    tensors.append(OutTensor(name, entry["dtype"], tuple(entry["shape"]), data))
config = OutFile("config.json", (source / "config.json").read_bytes())
write_folder(out, [OutWeights("model.safetensors", tuple(tensors), metadata), config], source=source)
""",
    "torch load, rename, save, sync": """
import os, shutil, sys
from safetensors.torch import load_file, save_file
source, out = sys.argv[1:]
os.mkdir(out)
tensors = load_file(f"{source}/model.safetensors")
renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
save_file(renamed, f"{out}/model.safetensors", metadata={"format": "pt"})
shutil.copy(f"{source}/config.json", out)
os.sync()
""",
}


def make_draft(folder: Path) -> int:
    """Write the draft; values are random bytes, the d2t table is zero. Returns the size of its data."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in TENSORS.items():
        size = WIDTH[dtype]
        for dim in shape:
            size *= dim
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(bytes(8 * DRAFT_VOCAB))
        left = offset - 8 * DRAFT_VOCAB - VOCAB
        while left:
            left -= file.write(os.urandom(min(left, 16 << 20)))
        file.write(b"\1" * DRAFT_VOCAB + bytes(VOCAB - DRAFT_VOCAB))
    os.sync()
    return offset


def measure(argv: list[str]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds (which a busy machine changes little) and peak resident MB of a command.

    The least peak that shows is this script's own.
    """
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        pid = os.posix_spawnp(
            argv[0],
            argv,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, log.fileno(), 1), (os.POSIX_SPAWN_DUP2, log.fileno(), 2)],
        )
        _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - start
        if status:
            log.seek(0)
            sys.exit(f"{shlex.join(argv)[:200]} failed: {log.read().decode(errors='replace')}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def compare(where: Path, repeat: int, cold: bool, commands: list[str], skip_torch: bool) -> None:
    """Measure everything in a folder and print a row for each."""
    home = Path(tempfile.mkdtemp(prefix="bench-rewrite-", dir=where))
    source, out = home / "in", home / "out"
    try:
        size = make_draft(source)
        runs = {
            "cp -r, sync": ["sh", "-c", 'cp -r "$1" "$2" && sync', "sh", str(source), str(out)],
            **{name: [sys.executable, "-c", code, str(source), str(out)] for name, code in WORKERS.items()},
        }
        if skip_torch:
            runs = {name: argv for name, argv in runs.items() if not name.startswith("torch")}
        for command in commands:
            parts = shlex.split(command)
            runs[command] = [p.replace("{in}", str(source)).replace("{out}", str(out)) for p in parts]
        best: dict[str, tuple[float, float, float]] = {}
        for _ in range(repeat):  # in turns, so that a noisy minute hits all alike
            for name, argv in runs.items():
                shutil.rmtree(out, ignore_errors=True)
                os.sync()
                if cold:
                    Path("/proc/sys/vm/drop_caches").write_text("3")
                best[name] = min(best.get(name, (float("inf"), 0.0, 0.0)), measure(argv))
        reference = best["cp -r, sync"][0]
        kind = subprocess.run(
            ["stat", "-f", "-c", "%T", str(home)], check=True, capture_output=True, text=True
        ).stdout.strip()
        print(f"\n{kind}, {size / 1e9:.2f} GB, best of {repeat}, {'cold' if cold else 'warm'} source")
        print(f"{'':34} {'wall s':>8} {'of cp':>7} {'CPU s':>7} {'peak MB':>8}")
        for name, (wall, cpu, peak) in best.items():
            print(f"{name[:34]:34} {wall:8.2f} {wall / reference:7.2f} {cpu:7.2f} {peak:8.0f}", flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def loop_mount(kind: str, where: Path) -> Iterator[Path]:
    """A fresh file system of this kind in a sparse image."""
    with tempfile.TemporaryDirectory(prefix="bench-loop-", dir=where) as home:
        image, mount = Path(home) / "image", Path(home) / "mount"
        mount.mkdir()
        with open(image, "wb") as file:
            file.truncate(16 << 30)
        subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
        try:
            yield mount
        finally:
            subprocess.run(["umount", str(mount)], check=True)


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--where", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the disk"
    )
    parser.add_argument("--loop", action="append", default=[], choices=["btrfs", "xfs"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--only-loop", action="store_true", help="leave out the folder itself")
    parser.add_argument(
        "--command", action="append", default=[], help="also time this; {in} and {out} are filled in"
    )
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs", flush=True)
    if not args.only_loop:
        compare(args.where, args.repeat, args.cold, args.command, args.no_torch)
    for kind in args.loop:
        with loop_mount(kind, args.where) as mount:
            compare(mount, args.repeat, args.cold, args.command, args.no_torch)


if __name__ == "__main__":
    main()
