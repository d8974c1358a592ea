from __future__ import annotations

import json
import sys

import pytest

from ckpt_tools.container import content_hashes, iter_tensor, open_checkpoint, read_ints, read_tensor
from ckpt_tools.container.fingerprint import fingerprint
from ckpt_tools.errors import InputError
from tests.unit.container.folders import draft, framed, sharded, weights
from tests.unit.container.test_read_open import Remote


def table(dtype, values, size):
    data = b"".join(value.to_bytes(size, "little", signed=value < 0) for value in values)
    header = {"t": {"dtype": dtype, "shape": [len(values)], "data_offsets": [0, len(data)]}}
    return framed(json.dumps(header).encode(), data)


def test_bytes_of_tensors_in_shards(tmp_path):
    checkpoint = open_checkpoint(sharded(tmp_path))
    assert read_tensor(checkpoint, "a") == bytes([0, 1, 2, 3])
    assert read_tensor(checkpoint, "b") == bytes([4, 5])
    assert read_tensor(checkpoint, "c", Remote(tmp_path)) == bytes([0, 1, 2])
    assert list(iter_tensor(checkpoint, "a", chunk=3)) == [bytes([0, 1, 2]), bytes([3])]


def test_an_empty_tensor_has_no_bytes(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"model.safetensors": weights({"a": 0})}))
    assert read_tensor(checkpoint, "a") == b""
    assert list(iter_tensor(checkpoint, "a")) == []


def test_unknown_names_get_the_nearest(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"model.safetensors": weights({"fc.weight": 1})}))
    with pytest.raises(InputError, match=r"no tensor 'fc\.weigth'") as caught:
        read_tensor(checkpoint, "fc.weigth")
    assert caught.value.hint == "did you mean 'fc.weight'?"
    with pytest.raises(InputError) as caught:
        read_tensor(checkpoint, "zzz")
    assert caught.value.hint is None


def test_a_tensor_behind_the_end_of_a_truncated_file(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"model.safetensors": weights({"a": 100})[:-10]}))
    with pytest.raises(InputError, match="ends inside tensor 'a'"):
        read_tensor(checkpoint, "a")


def test_a_remote_checkpoint_needs_its_source(tmp_path):
    checkpoint = open_checkpoint("owner/name", Remote(sharded(tmp_path)))
    with pytest.raises(InputError, match="not on this machine"):
        read_tensor(checkpoint, "a")


@pytest.mark.parametrize(
    ("dtype", "size", "values"),
    [
        ("I64", 8, [0, -1, 2**62]), ("I32", 4, [-5, 7]), ("I16", 2, [-5, 7]), ("I8", 1, [-5, 7]),
        ("U64", 8, [2**63]), ("U32", 4, [2**31]), ("U16", 2, [2**15]), ("U8", 1, [255]), ("BOOL", 1, [0, 1, 1]),
    ],
)  # fmt: skip
def test_tables_of_integers(dtype, size, values, tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"model.safetensors": table(dtype, values, size)}))
    assert list(read_ints(checkpoint, "t")) == values


def test_tables_are_little_endian_everywhere(tmp_path, monkeypatch):
    checkpoint = open_checkpoint(draft(tmp_path, {"model.safetensors": table("I16", [1], 2)}))
    monkeypatch.setattr(sys, "byteorder", "big")
    assert list(read_ints(checkpoint, "t")) == [256]  # swapped, which is right where it is needed


def test_floats_are_no_table(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"model.safetensors": table("F32", [0], 4)}))
    with pytest.raises(InputError, match="is F32, expected integers"):
        read_ints(checkpoint, "t")


# -- fingerprints


def prints(folder, files=None, config=None):
    return fingerprint(open_checkpoint(draft(folder, files, config=config)))


def test_a_fingerprint_is_of_the_structure(tmp_path):
    first = prints(tmp_path / "1", config='{"a": 1, "b": {"c": 2, "d": 3}}')
    assert first.startswith("sha256:")
    assert len(first) == 7 + 64
    assert prints(tmp_path / "2", config='{"b":{"d":3,"c":2},\n"a":1}') == first
    assert prints(tmp_path / "3", config='{"a": 1, "b": {"c": 2, "d": 4}}') != first
    other = weights({"a": 4, "b": 2})
    assert (
        prints(tmp_path / "4", {"model.safetensors": other[:-1] + b"\xff"}, '{"a": 1, "b": {"c": 2, "d": 3}}')
        == first
    )
    assert prints(tmp_path / "5", {"x.safetensors": other}, '{"a": 1, "b": {"c": 2, "d": 3}}') != first
    assert (
        prints(
            tmp_path / "6",
            {"model.safetensors": weights({"a": 4, "B": 2})},
            '{"a": 1, "b": {"c": 2, "d": 3}}',
        )
        != first
    )
    assert (
        prints(
            tmp_path / "7", {"README.md": "", "model.safetensors": other}, '{"a": 1, "b": {"c": 2, "d": 3}}'
        )
        == first
    )


def test_a_fingerprint_needs_no_config(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(weights({"a": 1}))
    missing = fingerprint(open_checkpoint(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert fingerprint(open_checkpoint(tmp_path)) != missing


def test_a_fingerprint_takes_any_text(tmp_path):
    assert prints(tmp_path, config='{"a": "\\ud800"}')


def test_content_hashes_are_those_of_the_files(tmp_path):
    import hashlib

    folder = sharded(tmp_path)
    hashes = content_hashes(open_checkpoint(folder))
    assert sorted(hashes) == ["config.json", *sorted(path.name for path in folder.glob("*.safetensors"))]
    for name, value in hashes.items():
        assert value == "sha256:" + hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "config.json").unlink()
    assert "config.json" not in content_hashes(open_checkpoint(folder))
