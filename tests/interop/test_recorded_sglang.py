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
from ckpt_tools.engines.sglang import load_map
from ckpt_tools.model import Checkpoint, FileInfo, LoadMap, TensorInfo

FIXTURES = Path(__file__).parents[2] / "fixtures" / "recorded"
VERSIONS = ("0.5.9", "0.5.12", "0.5.23")
EMPTY = ("default", "nothing")


@lru_cache(maxsize=1)
def cases() -> Any:
    spec = importlib.util.spec_from_file_location("recorded_cases", FIXTURES / "make_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Cases(FIXTURES)


@lru_cache(maxsize=len(VERSIONS))
def recording(version: str) -> dict[str, Any]:
    packed = gzip.decompress((FIXTURES / f"sglang-{version}.json.gz").read_bytes())
    answers: dict[str, Any] = json.loads(packed)["cases"]
    return answers


@lru_cache(maxsize=1)
def not_compared() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads((FIXTURES / "not_compared_sglang.json").read_text("utf-8"))
    return entries


def reason(case: str, answer: dict[str, Any]) -> str | None:
    """Why a case isn't compared, if so."""
    for entry in not_compared():
        if entry.get("case") == case or entry.get("class") == answer.get("class", ""):
            return entry["reason"]
        if "refused" in entry and entry["refused"] in answer.get("refused", ""):
            return entry["reason"]
    return None


def checkpoint(case: str) -> Checkpoint:
    config, table = cases().build(case)
    tensors = {
        n: TensorInfo(n, dtype, tuple(shape), "model.safetensors", 0, 0)
        for n, (dtype, shape) in table.items()
    }
    files = (FileInfo("model.safetensors", 0, "safetensors"), FileInfo("config.json", 0, "other"))
    return Checkpoint(case, f"/drafts/{case}", config, "", tensors, files)


def mapped(version: str, case: str) -> LoadMap:
    return load_map(
        resolve(f"sglang=={version}", "test"), checkpoint(case), algorithm=cases().cases[case]["sglang"]
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


@pytest.mark.parametrize("version", VERSIONS)
def test_the_load_map_agrees_with_the_loader_on_every_parameter_and_tensor(version: str) -> None:
    answers = recording(version)
    compared = {case: answer for case, answer in answers.items() if reason(case, answer) is None}
    wrong = {
        case: found
        for case, answer in compared.items()
        if (found := differences(answer, mapped(version, case)))
    }
    assert not wrong, f"{len(wrong)} of {len(compared)}: {dict(list(wrong.items())[:5])}"
    assert len(compared) >= 0.99 * len(answers)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recordings_hold_every_kind_of_answer(version: str) -> None:
    answers = recording(version).values()
    assert sum("refused" not in answer for answer in answers) > 1000
    assert {answer["stage"] for answer in answers if "refused" in answer} == {"config", "class", "load"}
    states = {unfilled for answer in answers for _, unfilled, _ in answer.get("params", {}).values()}
    assert {0.0, 1.0} < states  # full, empty, and in between


def test_every_exception_is_of_use() -> None:
    for entry in not_compared():
        assert any(
            entry.get("case") == case
            or entry.get("class") == answer.get("class", "")
            or ("refused" in entry and entry["refused"] in answer.get("refused", ""))
            for version in VERSIONS
            for case, answer in recording(version).items()
        ), entry


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shapes_are_the_engines(version: str) -> None:
    """What the engine builds, by its shape, for every draft that loads."""
    from ckpt_tools.engines.sglang import parameter_shapes

    engine = resolve(f"sglang=={version}", "test")
    for case, answer in recording(version).items():
        if "params" in answer and reason(case, answer) is None:
            expected = {name: tuple(shape) for name, (shape, _, _) in answer["params"].items()}
            assert parameter_shapes(engine, checkpoint(case)) == expected, case
