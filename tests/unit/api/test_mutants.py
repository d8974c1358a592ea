"""No fault of the trained pair escapes all of verify, smoke, ``verify --against`` and accept; the healthy pair trips none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.api.smoking import SmokeRequest, smoke
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.forward import bench
from ckpt_tools.model import Report, Severity
from tests.conftest import ROOT
from tests.mutants import (
    COMMANDS,
    ENGINES,
    MUTANTS,
    OWN_EMBEDDING,
    PAIR,
    STATES,
    TARGET,
    Bases,
    all_mutants,
    edit_of,
)

CONVERSIONS = {"sglang": ("sglang",), "vllm": ("vllm",), "dual": ("sglang", "vllm"), "speculators": ("vllm",)}


@pytest.fixture(scope="module", autouse=True)
def _untimed() -> Iterator[None]:
    """How fast memory is isn't the question here, and asking costs more than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "measured_bandwidth", lambda *_: 1e9)
        yield


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("conversions")
    for to in CONVERSIONS:
        assert fix_keys(Request(str(PAIR / "draft"), str(root / to), to=to, target=TARGET)).verdict == "pass"
    return {to: root / to for to in CONVERSIONS}


def bad(report: Report) -> list[str]:
    return [f.message for f in report.findings if f.severity is not Severity.INFO]


def test_there_are_more_than_forty() -> None:
    assert len(MUTANTS) > 40
    assert len(set(all_mutants())) == 2 * len(MUTANTS) + len(OWN_EMBEDDING)


@pytest.mark.parametrize(("base", "name"), list(all_mutants()))
def test_no_mutant_escapes(bases: Bases, base: str, name: str) -> None:
    said = bases.judge(base, bases.write(base, edit_of(name)))
    assert any(said.values()), f"{name} of the {base} draft goes unseen"


@pytest.mark.parametrize("base", ENGINES)
def test_the_healthy_pair_trips_none(bases: Bases, base: str) -> None:
    assert bases.judge(base, bases.folders[base]) == dict.fromkeys(COMMANDS, ())


@pytest.mark.parametrize(("to", "engine"), [(to, e) for to, es in CONVERSIONS.items() for e in es])
def test_healthy_conversions_trip_none(conversions: dict[str, Path], to: str, engine: str) -> None:
    path = str(conversions[to])
    checked = verify(VerifyRequest(path, TARGET, engines=(engine,), deep=True, against=str(PAIR / "draft")))
    assert bad(checked) == []
    assert checked.facts["proof"]["proven"]
    for states in (None, STATES):
        assert bad(smoke(SmokeRequest(path, TARGET, engine=engine, device="cpu", states=states))) == []


@pytest.mark.parametrize("states", [None, STATES], ids=["drawn", "recorded"])
@pytest.mark.parametrize(("tokens", "batch", "steps"), [(2, 1, 1), (8, 1, 16), (70, 3, 7), (200, 5, 3)])
def test_no_false_alarm_at_other_sizes(
    conversions: dict[str, Path], tokens: int, batch: int, steps: int, states: str | None
) -> None:
    request = SmokeRequest(
        str(conversions["sglang"]),
        TARGET,
        device="cpu",
        tokens=tokens,
        batch=batch,
        steps=steps,
        states=states,
    )
    assert bad(smoke(request)) == []


def test_the_table_of_the_docs_names_every_fault() -> None:
    text = (ROOT / "docs" / "mutants.md").read_text("utf-8")
    assert [n for n in (*MUTANTS, *OWN_EMBEDDING) if f"| {n} |" not in text] == []
