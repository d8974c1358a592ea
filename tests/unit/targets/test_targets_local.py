"""Targets on this machine: folders, config files, single weight files, and adding them to the registry."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools import targets
from ckpt_tools.errors import InputError, Unavailable, UsageError, WriteError
from ckpt_tools.targets import local

CONFIG = {
    "architectures": ["WrapForConditionalGeneration"],
    "model_type": "wrap",
    "text_config": {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "vocab_size": 16,
        "max_position_embeddings": 32,
        "rope_parameters": {
            "rope_theta": 5e5,
            "rope_type": "linear",
            "factor": 2.0,
            "partial_rotary_factor": 0.5,
        },
    },
}
EMBED = "language_model.model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "My-Target"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "model.safetensors").write_bytes(
        weights({EMBED: (20, 8), "language_model.lm_head.weight": (20, 8)})
    )
    return path


def weights(shapes: dict[str, tuple[int, ...]]) -> bytes:
    header: dict[str, Any] = {}
    at = 0
    for name, (rows, columns) in shapes.items():
        header[name] = {
            "dtype": "BF16",
            "shape": [rows, columns],
            "data_offsets": [at, at + 2 * rows * columns],
        }
        at += 2 * rows * columns
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def test_a_folder(folder: Path) -> None:
    found = targets.read_target(folder)
    assert found.id == str(folder)
    assert (found.hidden_size, found.num_hidden_layers) == (8, 3)
    assert found.embed_tensor == EMBED
    assert found.lm_head_tensor == "language_model.lm_head.weight"
    assert found.notes == (f"{EMBED} has 20 rows for a vocabulary of 16: padded.",)


def test_its_config_file_stands_for_the_folder(folder: Path) -> None:
    found = targets.read_target(str(folder / "config.json"))
    assert (found.id, found.embed_tensor) == (str(folder / "config.json"), EMBED)


def test_a_config_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = targets.read_target(tmp_path)
    assert (found.hidden_size, found.embed_tensor) == (8, None)


def test_a_config_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps(CONFIG))
    assert targets.read_target(tmp_path / "other.json").hidden_size == 8


def test_a_single_weight_file(folder: Path) -> None:
    found = targets.read_target(folder / "model.safetensors")
    assert (found.hidden_size, found.embed_tensor) == (8, EMBED)


def test_modelopt_quantisation_beside_the_config(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    found = targets.read_target(folder)
    assert found.quantization == {"quant_method": "modelopt", "quant_algo": "FP8"}


def test_pickled_weights_without_torch_leave_the_config(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_torch(_path: Path) -> None:
        raise Unavailable("the weights are a pickle")

    monkeypatch.setattr(local, "open_checkpoint", no_torch)
    found = targets.read_target(folder)
    assert (found.hidden_size, found.embed_tensor) == (8, None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", b"{", "not JSON"),
        ("config.json", b"\xff\xfe", "not JSON"),
        ("config.json", b"[" * 100_000, "not JSON"),
        ("config.json", b"[]", "expected a JSON object, found list"),
        ("x.json", b"3", "expected a JSON object, found int"),
    ],
)
def test_unreadable_configs(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        targets.read_target(tmp_path / name)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        targets.read_target(tmp_path)
    with pytest.raises(InputError, match="can't be read: No such file"):
        targets.read_target(tmp_path / "absent.json")
    lone = tmp_path / "model.safetensors"
    lone.write_bytes(weights({EMBED: (20, 8)}))
    with pytest.raises(InputError, match=r"no config\.json beside it"):
        targets.read_target(lone)


def test_add_a_folder(folder: Path, user_registry: Path) -> None:
    added = targets.add_target(folder)
    assert added.id == "my-target"
    found = targets.find("My-Target")
    assert found == added
    read = targets.read_target(folder)
    for field in ("hidden_size", "num_hidden_layers", "vocab_size", "architectures", "rope", "embed_tensor",
                  "text_model_type", "model_type", "notes", "tie_word_embeddings", "max_position_embeddings"):  # fmt: skip
        assert getattr(found, field) == getattr(read, field), field
    assert found.sources["hidden_size"] == f"{folder}: config.json /text_config/hidden_size"
    written = json.loads(user_registry.read_text())["targets"][0]
    assert written["wrapper"]["tensor_prefix"] == "language_model.model."
    assert written["rope_scaling"]["partial_rotary_factor"] == 0.5
    assert sorted(path.name for path in user_registry.parent.iterdir()) == ["targets.json"]


def test_adding_again_changes_nothing_and_other_facts_are_refused(folder: Path, user_registry: Path) -> None:
    targets.add_target(folder)
    before = user_registry.read_bytes()
    assert targets.add_target(folder).id == "my-target"
    assert user_registry.read_bytes() == before
    (folder / "config.json").write_text(json.dumps({"hidden_size": 9}))
    with pytest.raises(UsageError, match="already has 'my-target'"):
        targets.add_target(folder)
    assert targets.add_target(folder, "second").id == "second"
    assert [target.id for target in targets.all_targets()][-2:] == ["my-target", "second"]


def test_a_packaged_target_is_never_replaced(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        targets.add_target(folder, "qwen3-8b")
    assert "ckpt targets show qwen3-8b" in (caught.value.hint or "")


def test_a_plain_config_has_no_wrapper(tmp_path: Path, user_registry: Path) -> None:
    place = tmp_path / "plain"
    place.mkdir()
    (place / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    assert targets.add_target(place / "config.json").hidden_size == 8
    entry = json.loads(user_registry.read_text())["targets"][0]
    assert (entry["wrapper"], entry["architectures"], entry["rope_theta"]) == (None, None, None)


def test_add_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    entry = {
        "id": "written",
        "aliases": ["me/Written"],
        "hidden_size": 8,
        "source": {"hidden_size": "measured"},
    }
    path.write_text(json.dumps(entry))
    assert targets.add_target(path).sources == {"hidden_size": "measured"}
    found = targets.find("me/written")
    assert found is not None
    assert found.id == "written"
    other = targets.add_target(_changed(path, aliases=[]), "renamed")
    assert other.id == "renamed"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": "8"}, "hidden_size: '8' is not of type 'integer', 'null'"),
        ({"colour": "red"}, "colour"),
        ({"id": "Has Spaces"}, "does not match"),
        ({"source": {"hidden_size": 3}}, "source/hidden_size"),
    ],
)
def test_an_entry_must_fit_the_schema(
    tmp_path: Path, user_registry: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "entry.json"
    path.write_text(json.dumps({"id": "x", "source": {}}))
    with pytest.raises(InputError, match=said):
        targets.add_target(_changed(path, **change))
    assert not user_registry.exists()


def test_adding_what_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        targets.add_target(broken)


def test_a_registry_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("CKPT_TARGETS", str(blocker / "targets.json"))
    with pytest.raises((WriteError, InputError)) as caught:
        targets.add_target(folder)
    assert str(blocker) in caught.value.message


def test_a_failed_write_leaves_the_registry(
    folder: Path, user_registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets.add_target(folder)
    before = user_registry.read_bytes()

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(WriteError, match="No space left") as caught:
        targets.add_target(folder, "another")
    assert "CKPT_TARGETS" in (caught.value.hint or "")
    assert user_registry.read_bytes() == before
    assert [path.name for path in user_registry.parent.iterdir()] == ["targets.json"]


def _changed(path: Path, **change: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    return path
