"""The pieces of a conversion: casts, shards, config edits, tables on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ckpt_tools.api.converting import Request, fix_keys, writable_formats
from ckpt_tools.api.recorded import conversion_record
from ckpt_tools.api.subjects import open_draft
from ckpt_tools.convert.casts import cast_chunks
from ckpt_tools.convert.edits import config_edits
from ckpt_tools.convert.plan import Tensor
from ckpt_tools.convert.shards import assign_shards, nbytes
from ckpt_tools.errors import InputError, UsageError
from tests.conftest import FIXTURES

torch = pytest.importorskip("torch", reason="torch is absent: casts are compared with torch's")
SAMPLE = FIXTURES / "formats" / "speculators" / "eagle3_tiny"
TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
floats = st.lists(st.floats(-60000, 60000, width=32), min_size=1, max_size=40)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.view(torch.uint8).numpy().tobytes())


@given(floats, st.sampled_from(sorted(TORCH)), st.sampled_from(["BF16", "F16", "F32"]), st.integers(1, 7))
def test_casts_are_torch_s_bit_for_bit(values: list[float], source: str, result: str, cut: int) -> None:
    start = torch.tensor(values, dtype=TORCH[source])
    raw = _bytes(start)
    chunks = [raw[i : i + cut] for i in range(0, len(raw), cut)]
    if source == "F64" and result != "F32":
        expected = start.to(torch.float32).to(TORCH[result]) if result == "BF16" else start.to(TORCH[result])
    else:
        expected = start.to(TORCH[result])
    if source == "BF16" and result == "F16" and bool(torch.isinf(expected).any()):
        return
    assert b"".join(cast_chunks(chunks, source, result, "x")) == _bytes(expected)


def test_special_values_survive() -> None:
    start = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
    made = b"".join(cast_chunks([_bytes(start)], "F32", "BF16", "x"))
    back = torch.frombuffer(bytearray(made), dtype=torch.bfloat16)
    assert bool(torch.isnan(back[0]))
    assert back[1:].tolist() == [float("inf"), -float("inf"), 0.0, -0.0]


def test_a_value_that_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(InputError, match=r"x: a value of 1e\+06 doesn't fit float16"):
        list(cast_chunks([_bytes(torch.tensor([1e6]))], "F32", "F16", "x"))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_dtype_casts_floats_alone_and_says_so_in_the_config(dtype: str, tmp_path: Path) -> None:
    report = fix_keys(Request(str(SAMPLE), str(tmp_path / "out"), dtype=dtype))
    name = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == (name, name)
    made = open_draft(str(tmp_path / "out")).checkpoint.tensors
    code = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}[dtype]
    assert {t.dtype for n, t in made.items() if n not in ("d2t", "t2d")} == {code}
    assert (made["d2t"].dtype, made["t2d"].dtype) == ("I64", "BOOL")
    assert len(report.facts["plan"]["casts"]) == (0 if dtype == "fp32" else 14)


def _tensor(name: str, elements: int, shard: str = "a") -> Tensor:
    return Tensor(name, "F32", (elements,), shard, name, "F32")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(4, 300))
def test_shards_keep_the_order_and_the_limit(sizes: list[int], limit: int) -> None:
    tensors = tuple(_tensor(f"t{i}", n) for i, n in enumerate(sizes))
    out = assign_shards(tensors, limit)
    assert [t.name for t in out] == [t.name for t in tensors]
    by: dict[str, int] = {}
    for t in out:
        by[t.shard] = by.get(t.shard, 0) + nbytes(t)
    for shard, size in by.items():
        assert size <= limit or sum(t.shard == shard for t in out) == 1
    assert list(by) == sorted(by)


def test_sharding_is_kept_and_one_shard_has_the_plain_name() -> None:
    two = assign_shards((_tensor("x", 1, "one"), _tensor("y", 1, "two")), None)
    assert [t.shard for t in two] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert assign_shards((_tensor("x", 1, "odd.safetensors"),), None)[0].shard == "model.safetensors"


def test_resharding_writes_an_index_that_loaders_read(tmp_path: Path) -> None:
    report = fix_keys(Request(str(SAMPLE), str(tmp_path / "out"), max_shard_size=100_000))
    assert report.verdict == "pass"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    loaded: dict[str, np.ndarray] = {}
    for shard in sorted(set(index["weight_map"].values())):
        part = load_file(tmp_path / "out" / shard)
        assert {index["weight_map"][n] for n in part} == {shard}
        loaded.update(part)
    assert set(loaded) == set(index["weight_map"])
    again = fix_keys(
        Request(str(tmp_path / "out"), str(tmp_path / "whole"), to="sglang", max_shard_size=10**9)
    )
    assert again.verdict == "pass"
    assert (tmp_path / "whole" / "model.safetensors").exists()


def test_edits_name_every_leaf() -> None:
    edits = config_edits(
        {"a": {"b": 1, "keep": 2}, "gone": 3, "nothing": None, "same": 4, "changed": 5},
        {"b": 1, "same": 4, "changed": 6, "new": 7, "keep": 2},
    )
    shown = {e.pointer: (e.action, e.value) for e in edits}
    assert shown["/a/b"] == ("moved", "/b")
    assert shown["/gone"] == ("dropped", 3)
    assert shown["/nothing"] == ("dropped", None)
    assert shown["/changed"] == ("set", 6)
    assert shown["/new"] == ("set", 7)
    assert "/same" not in shown
    assert all(e.reason for e in edits if e.action == "dropped")


def _without(tmp_path: Path, *names: str, **more: np.ndarray) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    tensors = {n: t for n, t in load_file(SAMPLE / "model.safetensors").items() if n not in names}
    save_file({**tensors, **more}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((SAMPLE / "config.json").read_bytes())
    return folder


def test_a_missing_d2t_is_derived_from_the_mask(tmp_path: Path) -> None:
    report = fix_keys(Request(str(_without(tmp_path, "d2t")), str(tmp_path / "out")))
    assert report.verdict == "pass"
    assert [s["tensor"] for s in report.facts["plan"]["synthesised"]] == ["d2t"]
    made = load_file(tmp_path / "out" / "model.safetensors")
    assert np.array_equal(made["d2t"], load_file(SAMPLE / "model.safetensors")["d2t"])


def test_a_missing_mask_is_derived_for_speculators_and_dropped_on_the_way_back(tmp_path: Path) -> None:
    source = _without(tmp_path, "t2d")
    target = str(FIXTURES / "models" / "llama_tiny")
    assert fix_keys(Request(str(source), str(tmp_path / "sg"))).verdict == "pass"
    there = fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "sp"), to="speculators", target=target))
    assert [s["tensor"] for s in there.facts["plan"]["synthesised"]] == ["t2d"]
    made = load_file(tmp_path / "sp" / "model.safetensors")
    assert np.array_equal(made["t2d"], load_file(SAMPLE / "model.safetensors")["t2d"])
    recorded = conversion_record(open_draft(str(tmp_path / "sp")))
    assert recorded is not None
    assert recorded.derived == {"t2d"}
    assert fix_keys(Request(str(tmp_path / "sp"), str(tmp_path / "back"))).verdict == "pass"
    assert set(load_file(tmp_path / "back" / "model.safetensors")) == set(
        load_file(tmp_path / "sg" / "model.safetensors")
    )


def test_neither_table_with_a_reduced_vocabulary_is_refused(tmp_path: Path) -> None:
    report = fix_keys(Request(str(_without(tmp_path, "d2t", "t2d")), str(tmp_path / "out")))
    assert "VOC006" in [f.code for f in report.findings if f.severity.value == "error"]


def test_absolute_ids_are_refused_and_repaired_when_asked(tmp_path: Path) -> None:
    tensors = load_file(SAMPLE / "model.safetensors")
    absolute = tensors["d2t"] + np.arange(len(tensors["d2t"]))
    source = _without(tmp_path, "d2t", d2t=absolute)
    refused = fix_keys(Request(str(source), str(tmp_path / "out")))
    (found,) = [f for f in refused.findings if f.code == "VOC001"]
    assert "--repair d2t-absolute" in (found.hint or "")
    mended = fix_keys(Request(str(source), str(tmp_path / "out"), repairs=("d2t-absolute",)))
    assert mended.verdict == "pass"
    assert np.array_equal(load_file(tmp_path / "out" / "model.safetensors")["d2t"], tensors["d2t"])


def test_an_unknown_tensor_is_never_dropped_silently(tmp_path: Path) -> None:
    source = _without(tmp_path, extra=np.zeros(4, dtype=np.float32))
    report = fix_keys(Request(str(source), str(tmp_path / "out")))
    (found,) = [f for f in report.findings if f.code == "KEY004"]
    assert found.location.tensor == "extra"
    allowed = fix_keys(Request(str(source), str(tmp_path / "out"), allow=("KEY004",)))
    assert allowed.verdict == "pass"
    assert {d["tensor"] for d in allowed.facts["plan"]["drops"]} == {"extra"}


def test_verifier_tensors_go_with_a_reason(tmp_path: Path) -> None:
    source = _without(tmp_path, **{"verifier_norm.weight": np.ones(64, dtype=np.float32)})
    report = fix_keys(Request(str(source), str(tmp_path / "out")))
    (drop,) = report.facts["plan"]["drops"]
    assert drop["tensor"] == "verifier_norm.weight"
    assert "target's own norm" in drop["reason"]


def test_a_size_that_is_stated_nowhere_is_not_guessed(tmp_path: Path) -> None:
    folder = _without(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["transformer_layer_config"]["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(config))
    report = fix_keys(Request(str(folder), str(tmp_path / "out")))
    (found,) = [f for f in report.findings if f.code == "CFG010"]
    assert "num_attention_heads" in found.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"to": "nonsense"}, "no such format"),
        ({"allow": ("XYZ999",)}, "no such code"),
        ({"repairs": ("everything",)}, "no such repair"),
    ],
)
def test_unknown_words_are_usage_errors(change: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        fix_keys(Request(str(SAMPLE), str(tmp_path / "out"), **change))  # type: ignore[arg-type]


def test_a_plain_model_is_no_draft(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no draft format fits"):
        fix_keys(Request(str(FIXTURES / "models" / "llama_tiny"), str(tmp_path / "out")))


def test_a_broken_container_is_not_rewritten(tmp_path: Path) -> None:
    folder = _without(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    report = fix_keys(Request(str(folder), str(tmp_path / "out")))
    assert report.verdict == "fail"
    assert not (tmp_path / "out").exists()


def test_formats_that_can_be_written_are_listed() -> None:
    assert {"sglang", "vllm", "speculators", "dual"} <= set(writable_formats())
