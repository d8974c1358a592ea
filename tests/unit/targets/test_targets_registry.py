"""The registry: every value with a source, nulls kept, found by any of its names."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ckpt_tools import targets
from ckpt_tools.errors import InputError
from ckpt_tools.model import Rope
from ckpt_tools.targets.registry import target_of
from ckpt_tools.targets.user import registry_path

DATA: dict[str, Any] = json.loads((files("ckpt_tools.targets") / "data" / "targets.json").read_text("utf-8"))
SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "target.v1.json").read_text())
# Not values of the model's own: the id is ours, the rest says where values come from.
UNSOURCED = {"id", "aliases", "source", "confidence", "notes"}


def test_all_targets_are_there_and_fit_the_schema() -> None:
    assert len(targets.all_targets()) == len(DATA["targets"]) == 94
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for entry in DATA["targets"]:
        assert not list(validator.iter_errors(entry)), entry["id"]


def test_every_value_has_a_source() -> None:
    unsourced: list[tuple[str, str]] = []
    for entry in DATA["targets"]:
        for key, value in entry.items():
            if key not in UNSOURCED and value is not None and key not in entry["source"]:
                unsourced.append((entry["id"], key))
    assert unsourced == []


def test_sources_carry_a_commit_or_a_release() -> None:
    for tag, text in DATA["sources"].items():
        assert re.search(r"@[0-9a-f]{40}|wheel|https?://|huggingface|docs|Model-Optimizer", text), tag


def test_nulls_stay_null() -> None:
    found = targets.find("mistral-large-3")
    assert found is not None
    assert found.hidden_size == 7168
    assert (found.num_hidden_layers, found.architectures, found.tie_word_embeddings) == (None, (), None)


def test_kimi_k2_5() -> None:
    found = targets.find("kimi-k2.5")
    assert found is not None
    assert found.origin == "registry"
    assert found.architectures == ("KimiK25ForConditionalGeneration",)
    assert found.text_architectures == ("DeepseekV3ForCausalLM",)
    assert (found.model_type, found.text_model_type) == ("kimi_k25", "kimi_k2")
    assert (found.hidden_size, found.num_hidden_layers, found.vocab_size) == (7168, 61, 163840)
    assert found.max_position_embeddings == 262144
    assert found.embed_tensor == "language_model.model.embed_tokens.weight"
    assert found.quantization is not None
    assert found.quantization["quant_method"] == "compressed-tensors"
    assert found.rope is not None
    assert found.rope.theta == 50000.0
    assert found.rope.scaling is not None
    assert (found.rope.scaling["rope_type"], "type" in found.rope.scaling) == ("yarn", False)
    assert found.sources["hidden_size"].startswith("aic:")
    assert found.sources["rope"]


def test_a_target_without_a_wrapper_is_its_own_language_model() -> None:
    found = targets.find("qwen3-8b")
    assert found is not None
    assert found.text_architectures == found.architectures == ("Qwen3ForCausalLM",)
    assert found.text_model_type == found.model_type == "qwen3"
    assert found.rope == Rope(theta=1000000.0)


@pytest.mark.parametrize(
    "name",
    [
        "kimi-k2.5",
        "KIMI-K2.5",
        "kimi_k25",
        "moonshotai/Kimi-K2.5",
        "moonshotai/kimi-k2.5@main",
        "hf://moonshotai/Kimi-K2.5",
        " kimi-k25 ",
        "/data/models/Kimi-K2.5",
        "/data/models/moonshotai/Kimi-K2.5/",
        "~/models/Kimi-K2.5",
        "./Kimi-K2.5",
        "a/b/Kimi-K2.5",
        "C:\\models\\moonshotai\\Kimi-K2.5",
        "/home/me/.cache/huggingface/hub/models--moonshotai--Kimi-K2.5/snapshots/0123abc",
    ],
)
def test_find(name: str) -> None:
    found = targets.find(name)
    assert found is not None
    assert found.id == "kimi-k2.5"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "/",
        "kimi",
        "someone-else/Kimi-K2.5",
        "/models--nobody--nothing/snapshots/1",
        "models/Kimi-K2.5-x",
    ],
)
def test_find_does_not_guess(name: str) -> None:
    assert targets.find(name) is None


def test_the_bare_name_of_a_hub_repository_finds() -> None:
    found = targets.find("Llama-3.1-8B-Instruct")
    assert found is not None
    assert found.hf_repo == "meta-llama/Llama-3.1-8B-Instruct"


def test_every_name_finds_its_own_target() -> None:
    for target in targets.all_targets():
        for name in (target.id, target.hf_repo, *target.aliases):
            found = targets.find(name) if name else target
            assert found is not None
            assert found.id == target.id


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("kimi2.5", "kimi-k2.5"),
        ("qwen3-8", "qwen3-8b"),
        ("meta/llama-3.1-8b-instruc", "llama-3.1-8b-instruct"),
    ],
)
def test_suggest(text: str, first: str) -> None:
    near = targets.suggest(text)
    assert near[0] == first
    assert len(near) <= 3


def test_suggest_has_nothing_for_nonsense() -> None:
    assert targets.suggest("zzzzzzzzzz") == ()
    assert targets.suggest("") == ()


def test_target_json_explains_its_sources() -> None:
    found = targets.find("kimi-k2.5")
    assert found is not None
    data = targets.target_json(found)
    assert json.loads(json.dumps(data)) == data
    assert data["sources"]["hidden_size"].startswith("aic:")
    assert re.search("@[0-9a-f]{40}", data["source_table"]["aic"])
    assert data["wrapper"]["tensor_prefix"] == "language_model.model."
    assert data["rope"]["scaling"]["factor"] == 64.0
    assert data["mla"]["kv_lora_rank"] == 512
    assert data["confidence"]["config"] == "high"
    assert "config" not in data


def test_target_json_of_a_local_target() -> None:
    data = targets.target_json(targets.from_config({"hidden_size": 64}, "./x"))
    assert data["hidden_size"] == 64
    assert "source_table" not in data


def test_the_registry_file_is_found_by_variable_then_config_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CKPT_TARGETS", "~/mine.json")
    assert registry_path() == Path.home() / "mine.json"
    monkeypatch.delenv("CKPT_TARGETS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert registry_path() == tmp_path / "ckpt" / "targets.json"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert registry_path() == Path.home() / ".config" / "ckpt" / "targets.json"


def test_user_entries_extend(user_registry: Path) -> None:
    entry = {"id": "mine", "aliases": ["me/Mine"], "hidden_size": 64, "source": {"hidden_size": "here"}}
    _write(user_registry, {"targets": [entry]})
    found = targets.find("ME/mine")
    assert found == target_of(entry)
    assert len(targets.all_targets()) == 95
    # the file is read again when it changes
    _write(user_registry, {"targets": []})
    assert targets.find("mine") is None


def test_an_entry_equal_to_a_packaged_one_is_no_conflict(user_registry: Path) -> None:
    _write(user_registry, {"targets": [DATA["targets"][0]]})
    assert len(targets.all_targets()) == 94


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "expected"),
        ('{"targets": {}}', "expected"),
        ('{"targets": [{}]}', "without an id"),
        ('{"targets": [1]}', "without an id"),
        ('{"targets": [{"id": "x", "aliases": "y"}]}', "x: aliases must be a list"),
        ('{"targets": [{"id": "x", "wrapper": []}]}', "x: wrapper must be a dict"),
        ('{"targets": [{"id": "qwen3-8b", "hidden_size": 1}]}', "belongs to 'qwen3-8b'"),
        ('{"targets": [{"id": "x", "aliases": ["Kimi-K25"]}]}', "belongs to 'kimi-k2.5'"),
        ('{"targets": [{"id": "x"}, {"id": "x", "hidden_size": 1}]}', "belongs to 'x'"),
    ],
)
def test_a_damaged_or_clashing_user_registry_says_so(user_registry: Path, text: str, said: str) -> None:
    user_registry.parent.mkdir()
    user_registry.write_text(text)
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        targets.all_targets()
    assert str(user_registry) in caught.value.message


def test_a_user_registry_that_cannot_be_read(user_registry: Path) -> None:
    user_registry.mkdir(parents=True)
    with pytest.raises(InputError, match="can't read the target registry"):
        targets.find("kimi-k2.5")


def test_a_user_registry_in_another_encoding(user_registry: Path) -> None:
    user_registry.parent.mkdir()
    user_registry.write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="can't read the target registry"):
        targets.find("kimi-k2.5")


def _write(path: Path, data: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data))
