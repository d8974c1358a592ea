"""CONTRIBUTING's example, followed: a format from a temporary folder is found, read, documented by its data, and converts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ckpt_tools.formats as package
from ckpt_tools import schemas
from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.formats import formats, read_draft
from tests.conftest import FIXTURES, ROOT


def example() -> str:
    """The code block of ``toy.py`` in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (found,) = [b for b in blocks if 'name="toy"' in b]
    lines = str(found).split("\n")
    return "\n".join(line.removeprefix("   ") for line in lines)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The three things that a format is: a module, a schema, a folder of fixtures."""
    modules, shapes = tmp_path / "formats", tmp_path / "schemas"
    modules.mkdir()
    shapes.mkdir()
    (modules / "toy.py").write_text(example(), "utf-8")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "ckpt-tools/toy.config",
        "type": "object",
        "properties": {"taps": {"type": "array", "items": {"type": "integer"}}},
        "required": ["taps"],
    }
    (shapes / "toy.config.json").write_text(json.dumps(schema), "utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(modules)])
    monkeypatch.setattr(schemas, "_FOLDERS", (*schemas._FOLDERS, shapes))
    formats.cache_clear()
    schemas.load_schema.cache_clear()
    yield _draft(tmp_path / "fixtures" / "toy" / "eagle3_tiny")
    monkeypatch.undo()
    formats.cache_clear()
    schemas.load_schema.cache_clear()
    _forget()


def _forget() -> None:
    import sys

    sys.modules.pop("ckpt_tools.formats.toy", None)
    if isinstance(getattr(package, "toy", None), ModuleType):
        delattr(package, "toy")


def _draft(folder: Path) -> Path:
    """The tiny SGLang draft under Toy's names."""
    from safetensors.numpy import load_file, save_file

    source = FIXTURES / "formats" / "speculators" / "eagle3_tiny"
    folder.mkdir(parents=True)
    tensors = {
        n.replace("layers.0.", "block."): t for n, t in load_file(source / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    inner = json.loads((source / "config.json").read_text("utf-8"))["transformer_layer_config"]
    inner |= {"model_type": "toy", "taps": [1, 3, 4], "draft_vocab_size": 128, "architectures": ["ToyHead"]}
    (folder / "config.json").write_text(json.dumps(inner), "utf-8")
    return folder


def test_it_is_found_and_read(toy: Path) -> None:
    assert "toy" in formats()
    draft = read_draft(open_checkpoint(toy))
    assert draft is not None
    assert (draft.format, draft.algorithm) == ("toy", "eagle3")
    assert draft.unknown == ()
    assert draft.facts.capture_layers == (1, 3, 4)
    assert draft.tensors["layers.0.self_attn.q_proj.weight"] == "block.self_attn.q_proj.weight"


def test_what_the_meta_tests_demand_of_a_format(toy: Path) -> None:
    form = formats()["toy"]
    assert form.references
    assert form.title
    assert schemas.load_schema(form.schema)["$schema"].endswith("2020-12/schema")
    config = json.loads((toy / "config.json").read_text("utf-8"))
    assert list(schemas.violations(form.schema, config)) == []
    assert list(schemas.violations(form.schema, {})) != []


def test_without_its_schema_it_is_not_whole(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy.exists()
    monkeypatch.setattr(schemas, "_FOLDERS", schemas._FOLDERS[:-1])
    schemas.load_schema.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"toy\.config\.json"):
        schemas.load_schema(formats()["toy"].schema)


def test_it_converts_to_every_format_that_carries_eagle3(toy: Path, tmp_path: Path) -> None:
    for to in ("sglang", "vllm", "speculators", "modelopt", "specforge"):
        target = str(FIXTURES / "models" / "llama_tiny")
        assert fix_keys(Request(str(toy), str(tmp_path / to), to=to, target=target)).verdict == "pass", to


def test_it_is_gone_afterwards() -> None:
    assert "toy" not in formats()
