"""The load map against the recorded answers of SGLang's own loaders: every parameter, every tensor, every refusal."""

from __future__ import annotations

import gzip
import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.engines import resolve
from ckpt_tools.engines.sglang.loadmap import load_map, parameter_shapes
from ckpt_tools.model import Checkpoint, FileInfo, LoadMap, TensorInfo

FIXTURES = Path(__file__).parents[2] / "fixtures" / "recorded"
# the folder below FIXTURES that holds the cases, and the release that was loaded
RECORDINGS = (
    *((".", version) for version in ("0.5.9", "0.5.12", "0.5.23")),
    *(("dflash", version) for version in ("0.5.12", "0.5.23")),
    *(("mixed", version) for version in ("0.5.9", "0.5.12", "0.5.23")),
)
EMPTY = ("default", "nothing")


@lru_cache(maxsize=3)
def cases(folder: str) -> Any:
    spec = importlib.util.spec_from_file_location("recorded_cases", FIXTURES / "make_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Cases(FIXTURES / folder)


@lru_cache(maxsize=len(RECORDINGS))
def recording(folder: str, version: str) -> dict[str, Any]:
    packed = gzip.decompress((FIXTURES / folder / f"sglang-{version}.json.gz").read_bytes())
    answers: dict[str, Any] = json.loads(packed)["cases"]
    return answers


@lru_cache(maxsize=1)
def not_compared() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads((FIXTURES / "not_compared_sglang.json").read_text("utf-8"))
    return entries


def applies(entry: dict[str, str], case: str, answer: dict[str, Any]) -> bool:
    """Whether an entry of the exceptions is about this case."""
    if "refused" in entry:
        return entry["refused"] in answer.get("refused", "")
    return entry.get("case") == case or entry.get("class") == answer.get("class", "")


def compared(folder: str, version: str) -> dict[str, Any]:
    answers = recording(folder, version)
    return {c: a for c, a in answers.items() if not any(applies(entry, c, a) for entry in not_compared())}


def checkpoint(folder: str, case: str) -> Checkpoint:
    config, table = cases(folder).build(case)
    tensors = {
        n: TensorInfo(n, dtype, tuple(shape), "model.safetensors", 0, 0)
        for n, (dtype, shape) in table.items()
    }
    files = (FileInfo("model.safetensors", 0, "safetensors"), FileInfo("config.json", 0, "other"))
    return Checkpoint(case, f"/drafts/{case}", config, "", tensors, files)


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
        by = {0.0: ("checkpoint",), 1.0: EMPTY}.get(unfilled, ("partly",))
        if list(fill.sources) != sources or fill.filled_by not in (*by, "target"):
            out.append(f"{name}: {fill}, recorded {unfilled} unfilled from {sources}")
    if set(found.unused) != set(answer["ignored"]):
        out.append(f"unused differ: {sorted(set(found.unused) ^ set(answer['ignored']))}")
    return out


def refusal_differences(refused: str, stage: str, found: LoadMap) -> list[str]:
    """Only the refusal and its cause are stable: what had been filled before depends on the order of the tensors."""
    if found.refused is None:
        return [f"not refused, recorded: {refused}"]
    out = (
        []
        if found.stage == stage
        else [f"refused at {found.stage}, not {stage}: {found.refused} / {refused}"]
    )
    if found.refused.partition(":")[0] != refused.partition(":")[0]:
        out.append(f"{found.refused}, recorded: {refused}")
    return out


@pytest.mark.parametrize(("folder", "version"), RECORDINGS)
def test_the_load_map_agrees_with_the_loader_on_every_parameter_and_tensor(folder: str, version: str) -> None:
    engine, wrong = resolve(f"sglang=={version}", "test"), {}
    answers = compared(folder, version)
    for case, answer in answers.items():
        draft = checkpoint(folder, case)
        found = differences(answer, load_map(engine, draft, algorithm=cases(folder).cases[case]["sglang"]))
        if not found and "params" in answer:
            shapes = {name: tuple(shape) for name, (shape, _, _) in answer["params"].items()}
            found = [] if parameter_shapes(engine, draft) == shapes else ["shapes differ"]
        if found:
            wrong[case] = found
    assert not wrong, f"{len(wrong)} of {len(answers)}: {dict(list(wrong.items())[:5])}"
    assert len(answers) >= 0.99 * len(recording(folder, version))


@pytest.mark.parametrize(("folder", "version"), RECORDINGS)
def test_the_recordings_hold_every_kind_of_answer(folder: str, version: str) -> None:
    answers = recording(folder, version).values()
    assert sum("refused" not in answer for answer in answers) > 300
    assert {answer["stage"] for answer in answers if "refused" in answer} == {"config", "class", "load"}
    states = {unfilled for answer in answers for _, unfilled, _ in answer.get("params", {}).values()}
    assert {0.0, 1.0} < states  # full, empty, and in between


def test_every_exception_is_of_use() -> None:
    for entry in not_compared():
        assert any(
            applies(entry, case, answer)
            for folder, version in RECORDINGS
            for case, answer in recording(folder, version).items()
        ), entry


def test_the_head_that_mistral_ties_keeps_its_own_parameter() -> None:
    draft = checkpoint(".", "e1-mistral~0008")  # tie_word_embeddings
    tensors = dict(draft.tensors) | {
        "lm_head.weight": TensorInfo("lm_head.weight", "BF16", (256, 64), "model.safetensors", 0, 0)
    }
    found = load_map(
        resolve("sglang==0.5.23", "test"),
        Checkpoint(draft.path, draft.root, draft.config, "", tensors, draft.files),
    )
    assert "lm_head.weight" in found.unused
