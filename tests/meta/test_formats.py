"""Formats: each has a schema that takes real configs, a fixture that is read as it, and references."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.formats import formats, read_draft
from ckpt_tools.schemas import load_schema, violations
from tests.conftest import FIXTURES, ROOT

FOLDERS = sorted({p.parent for p in FIXTURES.rglob("config.json") if list(p.parent.glob("*.safetensors"))})
#: A format without clues is only written; what it writes is recognised as another's.
RECOGNISED = [name for name, form in formats().items() if any(v.must for v in form.variants)]
CONFIGS = sorted((FIXTURES / "configs").glob("*.json"))


@lru_cache(maxsize=1)
def by_format() -> Mapping[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for folder in FOLDERS:
        draft = read_draft(open_checkpoint(folder))
        if draft is not None:
            found.setdefault(draft.format, []).append(folder)
    return found


@pytest.mark.parametrize("name", formats())
def test_schema_and_references(name: str) -> None:
    form = formats()[name]
    schema = load_schema(form.schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert form.references
    assert form.title


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_fixture_is_read_as_it(name: str) -> None:
    assert by_format().get(name), f"no folder under fixtures/ is read as {name}"


@pytest.mark.parametrize("name", RECOGNISED)
def test_its_schema_takes_its_fixtures(name: str) -> None:
    for folder in by_format().get(name, []):
        config = json.loads((folder / "config.json").read_text("utf-8"))
        assert list(violations(formats()[name].schema, config)) == [], folder


@pytest.mark.parametrize("file", CONFIGS, ids=lambda p: p.stem)
def test_published_configs_fit_their_format_s_schema(file: Path, tmp_path: Path) -> None:
    config: dict[str, Any] = json.loads(file.read_text("utf-8"))
    config = config.get("config", config)
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    draft = read_draft(open_checkpoint(tmp_path))
    assert draft is not None, "no format fits"
    assert list(violations(formats()[draft.format].schema, config)) == []


def test_schemas_are_well_formed() -> None:
    import jsonschema

    for file in sorted((ROOT / "schemas").glob("*.json")):
        jsonschema.Draft202012Validator.check_schema(json.loads(file.read_text("utf-8")))
