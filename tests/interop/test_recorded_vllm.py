"""The load map against recorded answers of vLLM's own loader: every parameter, every tensor, every refusal."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections import Counter
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.checks.base import Context
from ckpt_tools.checks.capture import engine_capture
from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm.config import derive_method, detect_method
from ckpt_tools.engines.vllm.contract import CONTRACTS
from ckpt_tools.engines.vllm.loadmap import load_map
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Checkpoint, FileInfo, LoadMap, Target, TensorInfo

FIXTURES = Path(__file__).parents[2] / "fixtures"
OWN = FIXTURES / "recorded_vllm"
VERSION = "0.32.0"  # the CPU build
EMPTY = ("default", "nothing")


@dataclass(frozen=True)
class Recording:
    """One set of cases and what the loader said of each."""

    cases: Any
    answers: dict[str, Any]

    @property
    def bases(self) -> list[str]:
        return sorted({self.cases.cases[case]["base"] for case in self.answers})


@lru_cache(maxsize=1)
def recordings() -> dict[str, Recording]:
    spec = importlib.util.spec_from_file_location("recorded_cases", FIXTURES / "recorded" / "make_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = {}
    for name in ("recorded", "recorded_vllm"):
        packed = gzip.decompress((FIXTURES / name / f"vllm-{VERSION}.json.gz").read_bytes())
        out[name] = Recording(module.Cases(FIXTURES / name), json.loads(packed)["cases"])
    return out


@lru_cache(maxsize=1)
def left_out() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads((OWN / "not_compared.json").read_text(encoding="utf-8"))
    return entries


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


def method_of(entry: dict[str, Any], config: dict[str, Any]) -> str | None:
    """The method that the recorder asked for; where it left the choice to vLLM, vLLM went by the folder's name."""
    if entry["vllm"] != "auto":
        return str(entry["vllm"])
    if config.get("speculators_config") is None and derive_method(config) in (None, "dspark"):
        return detect_method(
            f"/out/{entry['id']}", tuple(config.get("architectures") or ()), config.get("model_type")
        )
    return None


def compare(recording: Recording, case: str) -> list[str]:
    entry = recording.cases.cases[case]
    target = target_of(entry["target"], recording.cases.targets[entry["target"]])
    config, table = recording.cases.build(case)
    engine = resolve(f"vllm=={VERSION}", "--engine")
    method = method_of(entry, config)
    found = load_map(engine, checkpoint(case, config, table), target, method=method, runner="V1")
    return differences(recording.answers[case], found)


@pytest.mark.parametrize(
    ("name", "base"), [(name, base) for name, found in recordings().items() for base in found.bases]
)
def test_every_recorded_case_of_a_base_agrees(name: str, base: str) -> None:
    recording = recordings()[name]
    wrong = {
        case: found
        for case, answer in recording.answers.items()
        if recording.cases.cases[case]["base"] == base
        and reason_to_skip(answer) is None
        and (found := compare(recording, case))
    }
    assert not wrong


def test_the_release_after_it_loads_drafts_alike() -> None:
    """The EAGLE files of 0.33.0 are the same; its registry is another."""
    recorded, after = CONTRACTS[VERSION], CONTRACTS["0.33.0"]
    other = {f.name for f in fields(recorded) if getattr(recorded, f.name) != getattr(after, f.name)}
    assert other == {"version", "references", "missing_architectures", "extra_architectures"}


@pytest.mark.parametrize(
    ("name", "at_least", "at_most"), [("recorded", 3600, 40), ("recorded_vllm", 2980, 40)]
)
def test_what_is_left_out_is_named_and_little(name: str, at_least: int, at_most: int) -> None:
    counts = Counter(reason_to_skip(answer) for answer in recordings()[name].answers.values())
    assert counts.pop(None) >= at_least
    assert sum(counts.values()) <= at_most
    assert set(counts) <= {entry["reason"] for entry in left_out()}


@lru_cache(maxsize=1)
def runners() -> dict[str, Any]:
    """What the functions of the two model runners returned for the shared cases."""
    packed = gzip.decompress((FIXTURES / "recorded" / f"vllm_v2-{VERSION}.json.gz").read_bytes())
    answers: dict[str, Any] = json.loads(packed)["cases"]
    return answers


def test_whose_embedding_and_head_is_what_the_runners_decide() -> None:
    """With a target of other weights: what is replaced then is the target's own."""
    recording, engine = recordings()["recorded"], resolve("vllm==0.33.0", "--engine")
    compared, wrong = 0, []
    for case, answer in runners().items():
        for runner in ("V1", "V2"):
            shared = answer.get(f"shared_{runner.lower()}_other")
            if shared is None:
                continue
            entry = recording.cases.cases[case]
            target = target_of(entry["target"], recording.cases.targets[entry["target"]])
            draft = checkpoint(case, *recording.cases.build(case))
            found = load_map(engine, draft, target, method=answer["method"], runner=runner).parameters
            owners = [
                found[name].filled_by == "target" for name in ("model.embed_tokens.weight", "lm_head.weight")
            ]
            compared += 1
            if owners != shared:
                wrong.append((case, runner, owners, shared))
    assert not wrong
    assert compared >= 1700


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_the_layers_that_the_runners_capture(runner: str) -> None:
    """Where the runner takes ids from the config, they are those; where it has none, the defaults."""
    recording, engine = recordings()["recorded"], resolve("vllm==0.33.0", "--engine")
    compared, wrong = 0, []
    for case, answer in runners().items():
        key = f"capture_{runner.lower()}"
        entry, draft = recording.cases.cases[case], checkpoint(case, *recording.cases.build(case))
        target = target_of(entry["target"], recording.cases.targets[entry["target"]])
        read = read_draft(draft, target)
        if key not in answer or read is None:
            continue
        expected = tuple(k - 1 for k in answer[key]) if answer[key] else None
        found = engine_capture(Context(draft, read, target, engine), runner)
        # The DFlash family's ids mean the same to every engine.
        layers = read.facts.capture_layers if found is None else found.layers
        if found is not None and found.source in ("default", "off"):
            layers = None
        compared += 1
        if layers != expected:
            wrong.append((case, layers, expected))
    assert not wrong
    assert compared >= 1690
