"""A Kimi-K2.5-sized EAGLE-3 head, made in place: load rate, smoke, step time beside its floor, two ranks, the command.

    python tests/bench/bench_smoke.py [--device cuda] [--dir DIR] [--divide N] [--tp 2]

Prints one JSON object. Every figure comes from a fresh process that finds the files in the page cache. `--divide` makes
all widths N times smaller, to try the script on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HEAD, TARGET = Path("draft/model.safetensors"), Path("target/model.safetensors")
START = time.perf_counter()
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

LAYER = "midlayer."
VOCAB, DRAFT_VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER = 163840, 32000, 7168, 64, 64, 128, 18432


def sizes(divide: int) -> dict[str, int]:
    """Geometry, every width `divide` times smaller."""
    return {
        "vocab_size": VOCAB // divide,
        "draft_vocab_size": DRAFT_VOCAB // divide,
        "hidden_size": HIDDEN // divide,
        "num_attention_heads": max(2, HEADS // divide),
        "num_key_value_heads": max(2, KV_HEADS // divide),
        "head_dim": HEAD_DIM,
        "intermediate_size": INTER // divide,
    }


def shapes(s: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Name in the file -> shape."""
    h, i, d = s["hidden_size"], s["intermediate_size"], s["head_dim"]
    q, k = s["num_attention_heads"] * d, s["num_key_value_heads"] * d
    p = LAYER
    return {
        "fc.weight": (h, 3 * h),
        p + "self_attn.q_proj.weight": (q, 2 * h),
        p + "self_attn.k_proj.weight": (k, 2 * h),
        p + "self_attn.v_proj.weight": (k, 2 * h),
        p + "self_attn.o_proj.weight": (h, q),
        p + "mlp.gate_proj.weight": (i, h),
        p + "mlp.up_proj.weight": (i, h),
        p + "mlp.down_proj.weight": (h, i),
        p + "input_layernorm.weight": (h,),
        p + "hidden_norm.weight": (h,),
        p + "post_attention_layernorm.weight": (h,),
        "norm.weight": (h,),
        "lm_head.weight": (s["draft_vocab_size"], h),
    }


def generate(folder: Path, divide: int, device: str) -> int:
    """Writes draft/ and target/ (embedding and lm_head alone), with their configs; returns the bytes of their weights."""
    from safetensors.torch import save_file

    from ckpt_tools.forward._torch import torch

    s = sizes(divide)
    generator = torch.Generator(device=device).manual_seed(0)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return 1 + 0.1 * torch.randn(shape, generator=generator, device=device)
        # a few strong directions on top of noise, as training leaves them
        noise = torch.randn(shape, generator=generator, device=device) * shape[1] ** -0.5
        left = torch.randn(shape[0], 2, generator=generator, device=device)
        right = torch.randn(2, shape[1], generator=generator, device=device)
        strong = (shape[0] ** 0.5 + shape[1] ** 0.5) / shape[1] / shape[0] ** 0.5
        return noise + left @ right * (2 * strong)

    head = {n: drawn(x).bfloat16().cpu() for n, x in shapes(s).items()}
    head["d2t"] = torch.arange(s["draft_vocab_size"]) * (s["vocab_size"] // s["draft_vocab_size"] - 1)
    for name in ("draft", "target"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config(s, name)))
    save_file(head, folder / HEAD, {"format": "pt"})
    big = (s["vocab_size"], s["hidden_size"])
    target = {n: drawn(big).bfloat16().cpu() for n in ("model.embed_tokens.weight", "lm_head.weight")}
    save_file(target, folder / TARGET, {"format": "pt"})
    (folder / "sizes.json").write_text(json.dumps(s))
    return sum(f.stat().st_size for f in folder.glob("*/*.safetensors"))


def config(s: dict[str, int], name: str) -> dict[str, Any]:
    """config.json of the draft or the target."""
    common = {
        **{k: v for k, v in s.items() if k != "draft_vocab_size"},
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if name == "target":
        return {**common, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 61}
    own = {"draft_vocab_size": s["draft_vocab_size"], "num_hidden_layers": 1}
    return {**common, **own, "architectures": ["LlamaForCausalLMEagle3"]}


def open_file(path: Path):
    """(infos by name, reader of file ranges) of one safetensors file, from its header."""
    from dataclasses import dataclass

    from ckpt_tools.model import TensorInfo

    @dataclass(frozen=True)
    class Range:
        path: Path
        start: int
        stop: int

    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    infos = {
        name: TensorInfo(
            name, e["dtype"], tuple(e["shape"]), path.name, *(8 + length + o for o in e["data_offsets"])
        )
        for name, e in header.items()
    }
    return infos, lambda name: Range(path, infos[name].start, infos[name].stop)


def load_head(folder: Path, device: str, timing: dict | None = None):
    """(spec, tensors, target parts) of the generated head; the embedding row by row."""
    from ckpt_tools.forward._torch import torch
    from ckpt_tools.forward.loading import load
    from ckpt_tools.forward.parts import Rows, TargetParts
    from ckpt_tools.forward.semantics import sglang
    from ckpt_tools.forward.spec import resolve
    from ckpt_tools.model import Draft, DraftFacts, Rope

    s = json.loads((folder / "sizes.json").read_text())
    found, reader = open_file(folder / HEAD)
    infos = {name.replace(LAYER, "layers.0."): info for name, info in found.items()}
    nbytes = sum(i.nbytes for i in infos.values())
    if device.startswith("cuda"):
        torch.zeros(1, device=device)
    rates = []
    for _ in range(2 if timing is not None else 1):
        start = time.perf_counter()
        tensors = load(infos, lambda name: reader(name.replace("layers.0.", LAYER)), device=device)
        rates.append(nbytes / (time.perf_counter() - start) / 1e9)
    if timing is not None:
        timing |= {"head_bytes": nbytes, "load_gb_per_s_first": rates[0], "load_gb_per_s": max(rates)}
    wide, _ = open_file(folder / TARGET)
    embed = wide["model.embed_tokens.weight"]
    row = embed.nbytes // embed.shape[0]
    fetched = {"bytes": 0}

    def fetch(ids):
        with open(folder / TARGET, "rb", buffering=0) as file:
            parts = []
            for i in ids:
                file.seek(embed.start + i * row)
                parts.append(bytearray(file.read(row)))
        fetched["bytes"] += row * len(ids)
        return torch.stack([torch.frombuffer(p, dtype=torch.bfloat16) for p in parts])

    facts = DraftFacts(
        **{k: v for k, v in s.items() if k != "draft_vocab_size"},
        draft_vocab_size=s["draft_vocab_size"],
        rope=Rope(theta=50000.0),
        rms_norm_eps=1e-5,
        layer_type="llama",
        capture_layers=(1, 29, 57),
    )
    draft = Draft("bench", "eagle3", (), facts, {n: n for n in infos})
    spec = resolve(draft, {n: i.shape for n, i in infos.items()}, sglang)
    parts = TargetParts(Rows(fetch, s["vocab_size"], dtype=torch.bfloat16, device=device))
    return spec, tensors, parts, fetched, s


def one(folder: Path, device: str) -> dict:
    """A whole smoke in this process, timed from its start."""
    out: dict = {}
    before = time.perf_counter()
    from ckpt_tools.forward._torch import torch

    out["import_torch_s"] = time.perf_counter() - before
    from ckpt_tools.forward.bench import time_step
    from ckpt_tools.forward.equivalence import Side
    from ckpt_tools.forward.heads import build
    from ckpt_tools.forward.smoke import smoke

    torch.set_grad_enabled(False)
    past = time.perf_counter()
    spec, tensors, parts, fetched, s = load_head(folder, device)
    side = Side(spec, tensors, parts, (1, 29, 57))
    result = smoke(side, target_vocab=s["vocab_size"], device=device, dtype=torch.bfloat16)
    out["smoke_past_import_s"] = time.perf_counter() - past
    out["cold_s"] = time.perf_counter() - START
    out["checks"] = {c.name: [c.ok, c.value] for c in result.checks}
    out["target_bytes_read"] = fetched["bytes"]
    out["peak_bytes"] = result.peak_bytes
    timing: dict = {}
    load_head(folder, device, timing)
    out |= timing
    step = time_step(build(spec, tensors, parts), repeats=50)
    out |= {
        "step_ms": step.step_ms,
        "floor_ms": step.floor_ms,
        "over_floor": step.over_floor,
        "step_bytes": step.bytes_read,
        "bandwidth_gb_per_s": step.bandwidth / 1e9,
        "cuda_graph": step.graph,
    }
    return out


def ranks(folder: Path, device: str, tp: int) -> dict | None:
    """Whether `tp` ranks give one rank's logits; the result on rank 0."""
    from ckpt_tools.forward._torch import torch
    from ckpt_tools.forward.heads import build
    from ckpt_tools.forward.parallel import torchrun

    torch.set_grad_enabled(False)
    with torchrun(tp, device) as group:
        spec, tensors, parts, _, s = load_head(folder, str(group.device))
        generator = torch.Generator().manual_seed(1)
        stride = s["vocab_size"] // s["draft_vocab_size"]
        tokens = (torch.randint(0, s["draft_vocab_size"], (1, 16), generator=generator) * stride).to(
            group.device
        )
        aux = torch.randn(1, 16, 3 * s["hidden_size"], generator=generator).bfloat16().to(group.device)
        cut = build(spec, tensors, parts, group).draft(tokens, aux, 4)
        whole = build(spec, tensors, parts).draft(tokens, aux, 4, forced=cut.ids[:, :-1])
        difference = float((cut.logits - whole.logits).abs().max() / whole.logits.std())
        same = float((cut.ids == whole.ids).float().mean())
        return {"tp": tp, "largest_difference": difference, "same_ids": same} if group.rank == 0 else None


def command(folder: Path, device: str, repeat: int = 3) -> dict:
    """`ckpt smoke` as a whole, hashes of the files included, beside `import torch`; seconds, the first run first."""
    smoke = (
        "-m",
        "ckpt_tools",
        "smoke",
        str(folder / "draft"),
        "--target",
        str(folder / "target"),
        "--device",
        device,
    )
    imports = [timed("-c", "import torch") for _ in range(repeat)]
    runs = [timed(*smoke, "--format", "json") for _ in range(repeat)]
    return {
        "import_torch_s": [seconds for seconds, _ in imports],
        "command_s": [seconds for seconds, _ in runs],
        "past_import_s": min(s for s, _ in runs) - min(s for s, _ in imports),
        "verdicts": [
            json.loads(text)["verdict"] if text.startswith("{") else text[-500:] for _, text in runs
        ],
    }


def timed(*argv: str) -> tuple[float, str]:
    """Seconds and output of a Python command."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False, env=env)
    return time.perf_counter() - began, done.stdout or done.stderr


def run(*argv: str, launcher: tuple[str, ...] = ()) -> dict:
    """JSON of this script in a fresh process."""
    done = subprocess.run(
        [sys.executable, *launcher, __file__, *argv], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": done.returncode, "says": done.stderr[-2000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--tp", type=int, default=0, help="also compare so many ranks with one")
    parser.add_argument("--part", choices=("one", "ranks"))
    args = parser.parse_args()
    if args.part == "one":
        print(json.dumps(one(args.dir, args.device)))
        return
    if args.part == "ranks":
        found = ranks(args.dir, args.device, args.tp)
        if found:
            print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.dir or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        out = {"bytes": generate(folder, args.divide, args.device)}
        common = ("--dir", os.fspath(folder), "--device", args.device)
        out["one"] = run("--part", "one", *common)
        out["command"] = command(folder, args.device)
        if args.tp:
            launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(args.tp))
            out["ranks"] = run("--part", "ranks", "--tp", str(args.tp), *common, launcher=launcher)
        print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
