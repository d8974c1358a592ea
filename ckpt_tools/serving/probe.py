"""Ask the installed engine itself: a subprocess loads the draft with the engine's own class and loader.

Nothing of the engine is imported here. The subprocess runs on the CPU, with a limit on time and memory, and
is killed with its children when it goes over one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.errors import Unavailable
from ckpt_tools.model import Fill, LoadMap
from ckpt_tools.serving import process
from ckpt_tools.serving.args.algorithms import SGLANG, VLLM
from ckpt_tools.serving.installed import Installed, find_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHILD = Path(__file__).with_name("probe_child.py")


@dataclass(frozen=True)
class Probe:
    """What the installed engine did.

    Attributes:
        installed: Which engine that was.
        load: The load map, as a contract gives it.
        seconds: It took.
        log: The engine's own words, the last of them.
    """

    installed: Installed
    load: LoadMap
    seconds: float
    log: str


def probe(
    engine: str,
    draft: Path,
    *,
    algorithm: str,
    target: Path | None = None,
    engine_python: str | None = None,
    dtype: str = "auto",
    speculative: Mapping[str, Any] | None = None,
    time_limit: float = 300.0,
    memory_limit: int = 32 << 30,
) -> Probe:
    """Load *draft* with the engine that *engine_python* has installed.

    Args:
        engine: ``sglang`` or ``vllm``.
        algorithm: The draft's algorithm.
        target: The target's folder (its config is enough); vLLM needs one and gets an invented Llama without.
        speculative: More fields for vLLM's speculative config.
        time_limit: Seconds.
        memory_limit: Bytes of resident memory.

    Raises:
        Unavailable: The engine isn't installed there, or the probe died or went over a limit.
    """
    installed = find_engine(engine, engine_python)
    if installed is None:
        raise Unavailable(
            f"{engine} is not installed in {engine_python or sys.executable}",
            "--engine-python names another interpreter",
        )
    names = SGLANG if engine == "sglang" else VLLM
    with tempfile.TemporaryDirectory(prefix="ckpt-probe-") as folder:
        place = Path(folder)
        request = {
            "engine": engine,
            "draft": str(draft.resolve()),
            "target": str((target or _invented_target(draft, place)).resolve()),
            "algorithm": names.get(algorithm, algorithm),
            "dtype": dtype,
            "scratch": folder,
            "speculative": dict(speculative or {}),
        }
        (place / "request.json").write_text(json.dumps(request), encoding="utf-8")
        began = time.monotonic()
        _run(installed.python, place, time_limit, memory_limit)
        seconds = time.monotonic() - began
        log = (place / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
        try:
            answer = json.loads((place / "answer.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            last = log.strip().splitlines()[-1:] or ["it said nothing"]
            raise Unavailable(
                f"the probe of {engine} {installed.version} died: {last[0]}", "run it with --debug"
            ) from error
    if answer["stage"] == "import":  # it never came as far as the draft
        lines = [line.strip() for line in str(answer["error"]).splitlines() if line.strip()]
        raise Unavailable(
            f"{engine} {installed.version} can't be imported: {' '.join(lines)[:300]}",
            f"install what it lacks beside {installed.python}, or name another interpreter with --engine-python",
        )
    return Probe(installed, load_map(answer), seconds, log)


def load_map(answer: Mapping[str, Any]) -> LoadMap:
    """The child's answer in the form that contracts give."""
    refused, stage = answer["error"], answer["stage"]
    parameters = {name: _fill(row) for name, row in answer["parameters"].items()}
    used = set(answer["used"])
    return LoadMap(
        parameters=parameters,
        unused=tuple(name for name in answer["tensors"] if name not in used),
        refused=refused,
        architecture=answer.get("architecture"),
        stage=stage if refused and stage in ("config", "class", "load") else None,
    )


def _fill(row: Mapping[str, Any]) -> Fill:
    sources = tuple(row["from"])
    if row["target"]:
        return Fill((), "target")
    filled: Literal["checkpoint", "default", "partly", "nothing"]
    if row["poisoned"] == 0 and sources:
        filled = "checkpoint"
    elif sources:
        filled = "partly"
    else:
        filled = "default" if row["default"] else "nothing"
    return Fill(sources, filled)


def _environment(place: Path) -> dict[str, str]:
    """Offline, on the CPU, with caches of its own."""
    cache = str(place / "cache")
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "VLLM_"))}
    return keep | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CACHE_DIR": cache,
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": cache,
        "VLLM_CONFIG_ROOT": cache,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": cache,
        "XDG_CACHE_HOME": cache,
        "TRITON_CACHE_DIR": cache,
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "TORCHDYNAMO_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _run(python: str, place: Path, time_limit: float, memory_limit: int) -> None:
    command = [python, str(_CHILD), str(place / "request.json"), str(place / "answer.json")]
    with (place / "log").open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(place),
            start_new_session=True,
        )
    deadline = time.monotonic() + time_limit
    while True:
        try:
            child.wait(timeout=0.2)
            return
        except subprocess.TimeoutExpired:
            pass
        held = process.resident(child.pid)
        over_time = time.monotonic() > deadline
        if over_time or held > memory_limit:
            _kill(child)
            what = (
                f"{time_limit:.0f} seconds"
                if over_time
                else f"{memory_limit / 1024**3:.1f} GiB ({held / 1024**3:.1f} GiB)"
            )
            raise Unavailable(f"the probe went over its limit of {what} and was killed", "raise the limit")


def _kill(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _invented_target(draft: Path, place: Path) -> Path:
    """A Llama config of the draft's width and vocabulary, for engines that want a target to build a draft."""
    try:
        config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    layer = config.get("transformer_layer_config") or config
    width = config.get("target_hidden_size") or layer.get("hidden_size") or 64
    head = 128 if width % 128 == 0 else 32
    target = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 64,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": max(1, width // head),
        "num_key_value_heads": 1,
        "head_dim": head,
        "vocab_size": layer.get("vocab_size") or 32000,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "hidden_act": "silu",
        "max_position_embeddings": layer.get("max_position_embeddings") or 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    folder = place / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(target), encoding="utf-8")
    return folder
