"""Engines are found as packages; a text names one, and a version without a contract says which answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from ckpt_tools import engines
from ckpt_tools.errors import UsageError
from ckpt_tools.model import Checkpoint, Engine, LoadMap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENGINE = """
from ckpt_tools.engines.contract import EngineContract

ENGINE = EngineContract("fake-engine", ("0.4.6", "0.5.9", "0.5.23"))
"""
LOAD_MAP = """
from ckpt_tools.model import LoadMap

def load_map(engine, checkpoint, target=None, *, algorithm=None, runner=None):
    return LoadMap({}, (f"{engine} {algorithm} {runner}",))
"""


@pytest.fixture(autouse=True)
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "fake_engine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "engine.py").write_text(ENGINE)
    (package / "loadmap.py").write_text(LOAD_MAP)
    (tmp_path / "a_module.py").write_text("raise RuntimeError('a module is no engine')")
    monkeypatch.setattr(engines, "__path__", [str(tmp_path)])
    engines._discover.cache_clear()
    yield
    engines._discover.cache_clear()
    for name in [n for n in sys.modules if n.startswith(f"{engines.__name__}.fake_engine")]:
        del sys.modules[name]


def test_engines_are_discovered() -> None:
    assert list(engines.engines()) == ["fake-engine"]


@pytest.mark.parametrize(
    ("text", "version", "contract"),
    [
        ("fake-engine", "0.5.23", "0.5.23"),
        ("FAKE-ENGINE==0.5.9", "0.5.9", "0.5.9"),
        ("fake-engine == 0.5.10.post1", "0.5.10.post1", "0.5.9"),
        ("fake-engine==0.4.1", "0.4.1", "0.4.6"),
        ("fake-engine==9.9", "9.9", "0.5.23"),
    ],
)
def test_resolve(text: str, version: str, contract: str) -> None:
    assert engines.resolve(text, "--engine") == Engine("fake-engine", version, contract, "--engine")


def test_unknown_engine_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        engines.resolve("sgalng", "--engine")
    assert caught.value.hint == "known engines: fake-engine"


def test_an_empty_version_says_what_to_write() -> None:
    with pytest.raises(UsageError) as caught:
        engines.resolve("fake-engine==", "--engine")
    assert caught.value.hint == "write fake-engine==0.5.23"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fake-engine", None),
        ("fake-engine==0.5.12", "nearest older one, 0.5.9"),
        ("fake-engine==0.1", "oldest known one, 0.4.6"),
    ],
)
def test_contract_note(text: str, said: str | None) -> None:
    note = engines.contract_note(engines.resolve(text, "default"))
    assert note is None if said is None else said in (note or "")


def test_load_map_goes_to_the_engine() -> None:
    checkpoint = Checkpoint("x", "x", None, "", {}, ())
    found = engines.load_map(
        engines.resolve("fake-engine", "default"), checkpoint, algorithm="eagle3", runner="V2"
    )
    assert found == LoadMap({}, ("fake-engine==0.5.23 eagle3 V2",))
