"""The load map against recorded answers of vLLM's own loader: every parameter, every tensor, every refusal."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm import load_map
from ckpt_tools.model import Checkpoint, FileInfo, LoadMap, Target, TensorInfo

FIXTURES = Path(__file__).parents[2] / "fixtures"
OWN = FIXTURES / "recorded_vllm"
VERSION = "0.32.0"  # the CPU build; the EAGLE files of 0.33.0 are the same
EMPTY = ("default", "nothing")


@lru_cache(maxsize=1)
def cases() -> Any:
    spec = importlib.util.spec_from_file_location("recorded_cases", FIXTURES / "recorded" / "make_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Cases()


def read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


@lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    return {**read(FIXTURES / "recorded" / f"vllm-{VERSION}.json.gz")["cases"]}


@lru_cache(maxsize=1)
def left_out() -> list[dict[str, str]]:
    return json.loads((OWN / "not_compared.json").read_text(encoding="utf-8"))


def reason_to_skip(answer: dict[str, Any]) -> str | None:
    """Why a recorded answer says nothing about the engine on a GPU, if so."""
    refused = answer.get("refused") or ""
    return next((entry["reason"] for entry in left_out() if entry["refused"] in refused), None)


def checkpoint(name: str, config: dict[str, Any], table: dict[str, Any]) -> Checkpoint:
    tensors = {
        n: TensorInfo(n, dtype, tuple(shape), "model.safetensors", 0, 0)
        for n, (dtype, shape) in table.items()
    }
    files = (FileInfo("model.safetensors", 0, "safetensors"), FileInfo("config.json", 0, "other"))
    return Checkpoint(name, name, config, json.dumps(config), tensors, files)


def target_of(name: str, config: dict[str, Any]) -> Target:
    return Target(
        name,
        "local",
        architectures=tuple(config["architectures"]),
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_hidden_layers=config["num_hidden_layers"],
        config=config,
    )


def differences(answer: dict[str, Any], found: LoadMap) -> list[str]:
    """What the load map says otherwise than the recorded loader."""
    refused = answer.get("refused")
    if refused is not None:
        return refusal_differences(refused, answer["stage"], found)
    if found.refused is not None:
        return [f"refused: {found.refused}"]
    out = (
        []
        if found.architecture == answer["class"]
        else [f"class {found.architecture}, not {answer['class']}"]
    )
    if set(found.parameters) != set(answer["params"]):
        return [*out, f"parameters differ: {sorted(set(found.parameters) ^ set(answer['params']))}"]
    for name, (_, unfilled, sources) in answer["params"].items():
        fill = found.parameters[name]
        if (
            fill.filled_by == "target"
        ):  # decided after loading: the loader left it empty, or the file's own is replaced
            fits = not sources and unfilled == 1.0
        elif unfilled == 0.0:
            fits = fill.filled_by == "checkpoint"
        elif unfilled == 1.0:
            fits = fill.filled_by in EMPTY
        else:
            fits = fill.filled_by == "partly"
        if not fits or (fill.filled_by != "target" and list(fill.sources) != sources):
            out.append(f"{name}: {fill}, recorded {unfilled} unfilled from {sources}")
    if set(found.unused) != set(answer["ignored"]):
        out.append(f"unused differ: {sorted(set(found.unused) ^ set(answer['ignored']))}")
    return out


def refusal_differences(refused: str, stage: str, found: LoadMap) -> list[str]:
    """Only the refusal and its cause are stable: which tensors came before depends on the file."""
    if found.refused is None:
        return [f"not refused, but: {refused[:160]}"]
    if (stage == "load") != (found.stage == "load"):
        return [f"refused at {found.stage}: {found.refused}; recorded at {stage}: {refused[:160]}"]
    error, _, message = found.refused.partition(": ")
    flat = " ".join(message.split())[:110]
    if flat not in " ".join(refused.split()):
        return [f"{found.refused!r}, recorded {refused[:160]!r}"]
    if not refused.startswith((error, "ValidationError")):
        return [f"{error}, recorded {refused[:60]!r}"]
    return []


def compare(case: str) -> list[str]:
    entry = cases().cases[case]
    method = None if entry["vllm"] == "auto" else entry["vllm"]
    target = target_of(entry["target"], cases().targets[entry["target"]])
    engine = resolve("vllm==0.33.0", "--engine")
    found = load_map(engine, checkpoint(case, *cases().build(case)), target, method=method, runner="V1")
    return differences(recorded()[case], found)


def bases() -> list[str]:
    return sorted({cases().cases[case]["base"] for case in recorded()})


@pytest.mark.parametrize("base", bases())
def test_every_recorded_case_of_a_base_agrees(base: str) -> None:
    wrong = {
        case: found
        for case, answer in recorded().items()
        if cases().cases[case]["base"] == base and reason_to_skip(answer) is None and (found := compare(case))
    }
    assert not wrong


def test_what_is_left_out_is_named_and_little() -> None:
    counts = Counter(reason_to_skip(answer) for answer in recorded().values())
    compared = counts.pop(None)
    assert compared >= 3600
    assert sum(counts.values()) <= 60
    assert set(counts) <= {entry["reason"] for entry in left_out()}
