"""``--probe``: the installed engine's answer beside the contract's. The engine's process is a recorded answer here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_tools.api.inspecting import load_map_of
from ckpt_tools.api.probing import Probed, probe
from ckpt_tools.api.subjects import Opened, find_target, open_draft
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.source import LocalSource
from ckpt_tools.engines import resolve
from ckpt_tools.errors import Unavailable, UsageError
from ckpt_tools.formats import read_draft
from ckpt_tools.serving import probe as probing
from tests.cli.server import TARGET, interpreter, report

if TYPE_CHECKING:
    from ckpt_tools.model import LoadMap, Target

ENGINE = resolve("sglang==0.5.23", "--engine")
STATES = {
    "checkpoint": {"poisoned": 0, "target": False, "default": False},
    "target": {"poisoned": 0, "target": True, "default": False},
    "default": {"poisoned": 0, "target": False, "default": True},
    "partly": {"poisoned": 9, "target": False, "default": False},
    "nothing": {"poisoned": 9, "target": False, "default": False},
}


def answer(load: LoadMap, tensors: tuple[str, ...]) -> dict[str, Any]:
    """What the engine's process says when it loads as the map has it."""
    return {
        "error": load.refused,
        "stage": load.stage,
        "architecture": load.architecture,
        "parameters": {
            name: {"from": list(f.sources) if f.filled_by != "nothing" else [], **STATES[f.filled_by]}
            for name, f in load.parameters.items()
        },
        "used": [t for t in tensors if t not in load.unused],
        "tensors": list(tensors),
    }


class Bench:
    """A draft, what the contract says of it, and an engine that says what it is told to."""

    def __init__(self, folder: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = open_draft(str(folder))
        self.target: Target | None = find_target(str(TARGET))
        self.draft = read_draft(self.opened.checkpoint, self.target)
        assert self.draft is not None
        self.load = load_map_of(ENGINE, self.opened.checkpoint, self.target, self.draft)
        self.says = answer(self.load, tuple(self.opened.checkpoint.tensors))
        self.python = python
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(probing, "_run", self.run)

    def run(self, _python: str, place: Path, _time: float, _memory: int) -> None:
        self.asked.append(json.loads((place / "request.json").read_text()))
        (place / "log").write_text("loading\n")
        (place / "answer.json").write_text(json.dumps(self.says))

    def probe(self, engine: str = "sglang==0.5.23", load: LoadMap | None = None) -> Probed:
        chosen = resolve(engine, "--engine")
        known = load or self.load
        return probe(self.opened, self.draft, self.target, chosen, known, engine_python=str(self.python))


@pytest.fixture
def bench(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(served, interpreter(tmp_path / "python", sglang="0.5.23", vllm="0.33.0"), monkeypatch)


def codes(made: Probed) -> list[str]:
    return [f.code for f in made.findings]


def test_an_engine_that_does_what_the_contract_says(bench: Bench, served: Path) -> None:
    made = bench.probe()
    assert made.installed == "sglang==0.5.23"
    assert made.findings == ()
    assert made.facts["load"]["refused"] is None
    assert set(made.facts["load"]["parameters"]) == set(bench.load.parameters)
    assert made.facts["seconds"] >= 0
    (asked,) = bench.asked
    assert asked["engine"] == "sglang"
    assert asked["algorithm"] == "EAGLE3"
    assert (asked["draft"], asked["target"]) == (str(served), str(TARGET))


def test_a_parameter_that_gets_nothing(bench: Bench) -> None:
    name = next(n for n, f in bench.load.parameters.items() if f.filled_by == "checkpoint")
    lost = bench.load.parameters[name].sources
    bench.says["parameters"][name] = {"from": [], **STATES["nothing"]}
    bench.says["used"] = [t for t in bench.says["used"] if t not in lost]
    made = bench.probe()
    assert codes(made) == ["ENG020", "ENG021"]
    empty, otherwise = made.findings
    assert f"leaves 1 parameters unfilled: {name}" in empty.message
    assert lost[0] in empty.message
    assert "fix-keys" in (empty.hint or "")
    assert "report the difference" in (otherwise.hint or "")
    assert lost[0] in otherwise.message
    assert {f.engine for f in made.findings} == {"sglang==0.5.23"}


def test_partly_filled_counts_as_unfilled(bench: Bench) -> None:
    name = next(n for n, f in bench.load.parameters.items() if len(f.sources) > 1)
    bench.says["parameters"][name] |= {"poisoned": 5}
    made = bench.probe()
    assert codes(made) == ["ENG020", "ENG021"]
    assert name in made.findings[0].message
    assert "ignores" not in made.findings[0].message
    assert name in made.findings[1].message


def test_an_engine_that_refuses_what_the_contract_lets_through(bench: Bench) -> None:
    bench.says |= {"error": "KeyError: 'midlayer'\nmore", "stage": "load", "parameters": {}, "used": []}
    made = bench.probe()
    assert codes(made) == ["ENG020", "ENG021"]
    assert made.findings[0].message == "sglang 0.5.23 refuses this draft: KeyError: 'midlayer'"
    assert "refuses it, which isn't what the contract 0.5.23 says" in made.findings[1].message
    bench.says["error"] = " \n"
    assert "without a word" in bench.probe().findings[0].message


def test_both_refuse_it(bench: Bench) -> None:
    from dataclasses import replace

    refused = replace(bench.load, parameters={}, unused=(), refused="ValueError: no", stage="load")
    bench.says |= {"error": "ValueError: no", "stage": "load", "parameters": {}}
    assert codes(bench.probe(load=refused)) == ["ENG020"]


def test_an_engine_that_loads_what_the_contract_refuses(bench: Bench) -> None:
    from dataclasses import replace

    refused = replace(bench.load, parameters={}, unused=(), refused="ValueError: no", stage="load")
    made = bench.probe(load=refused)
    assert codes(made) == ["ENG021"]
    assert "loads it, which isn't what the contract" in made.findings[0].message


def test_a_contract_of_another_release_is_no_reason_for_a_report(bench: Bench) -> None:
    bench.says |= {"error": "no", "stage": "load", "parameters": {}}
    made = bench.probe("sglang==0.5.9")
    assert made.installed == "sglang==0.5.23"
    assert (
        made.findings[1].hint == "the contract is of another release: verify with --engine sglang==installed"
    )


def test_what_cannot_be_probed(bench: Bench, served: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't ask sglang-ext"):
        bench.probe("sglang-ext")
    file = served / "model.safetensors"
    opened = Opened(open_checkpoint(file), LocalSource(file))
    with pytest.raises(UsageError, match="takes a local folder"):
        probe(opened, bench.draft, bench.target, ENGINE, bench.load)
    bench.python = interpreter(tmp_path / "bare")
    with pytest.raises(Unavailable, match=r"sglang is not installed in .*bare"):
        bench.probe()
    assert bench.asked == []


def test_the_target_is_given_when_it_is_here(bench: Bench) -> None:
    bench.target = None
    bench.probe()
    bench.target = find_target("kimi-k2.5")
    bench.probe()
    assert all(a["target"] != str(TARGET) for a in bench.asked)
    bench.target = find_target(str(TARGET / "config.json"))
    bench.probe()
    assert len(bench.asked) == 3


def test_verify_shows_the_probe(bench: Bench, served: Path) -> None:
    command = ("verify", served, "--target", TARGET, "--probe", "--engine-python", bench.python)
    status, data = report(*command)
    assert status == 0
    (name,) = data["facts"]["probe"]
    assert name == "sglang==0.5.23"
    assert data["facts"]["probe"][name]["load"]["unused"] == data["facts"]["load"]["unused"]
    bench.says |= {"error": "KeyError: 'midlayer'", "stage": "load", "parameters": {}}
    status, data = report(*command)
    assert status == 1
    assert {"ENG020", "ENG021"} <= {f["code"] for f in data["findings"]}
    assert report(*command, "--ignore", "ENG020,ENG021")[0] == 0
    assert report(*command, "--engine", "vllm==installed", "--engine", "sglang==installed")[0] == 1
    assert {a["engine"] for a in bench.asked[-2:]} == {"vllm", "sglang"}
