"""Rows, tables and experts: what a conversion moves, it moves whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.formats import tables
from tests.conftest import FIXTURES

VOCAB, SMALL = 256, 128
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _draft(place: Path, ids: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """A Model-Optimizer draft whose head's rows are for these target ids, in this order."""
    source = FIXTURES / "formats" / "speculators" / "eagle3_tiny"
    tensors = {
        n: t
        for n, t in load_file(source / "model.safetensors").items()
        if n not in ("t2d", "embed_tokens.weight")
    }
    tensors["d2t"] = np.array([t - i for i, t in enumerate(ids)], dtype=np.int64)
    place.mkdir(exist_ok=True)
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    config = json.loads((FIXTURES / "formats" / "modelopt" / "eagle3_tiny" / "config.json").read_text())
    config |= {
        "intermediate_size": tensors["layers.0.mlp.gate_proj.weight"].shape[0],
        "torch_dtype": "float32",
    }
    (place / "config.json").write_text(json.dumps(config))
    return tensors


@QUICK
@given(st.permutations(range(VOCAB)))
def test_every_id_keeps_its_row_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int]
) -> None:
    place = tmp_path_factory.mktemp("rows")
    ids = order[:SMALL]
    before = _draft(place / "in", ids)
    target = str(FIXTURES / "models" / "llama_tiny")
    report = fix_keys(Request(str(place / "in"), str(place / "out"), to="speculators", target=target))
    assert report.verdict == "pass", [f.message for f in report.findings]
    after = load_file(place / "out" / "model.safetensors")
    made = tables.target_ids(tuple(after["d2t"].tolist()))
    assert list(made) == sorted(ids)
    assert after["t2d"].nonzero()[0].tolist() == sorted(ids)
    head = {t: before["lm_head.weight"][row] for row, t in enumerate(ids)}
    assert all(np.array_equal(after["lm_head.weight"][row], head[t]) for row, t in enumerate(made))


@QUICK
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["<f4", "<f2"]),
    st.integers(0, 2**32 - 1),
)
def test_experts_fused_and_split_are_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, experts: int, rows: int, columns: int, dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    place = tmp_path_factory.mktemp("experts")
    single: dict[str, np.ndarray[Any, Any]] = {
        "mtp.fc.weight": random.standard_normal((columns, 2 * columns)).astype(dtype)
    }
    for e in range(experts):
        for part in ("gate", "up", "down"):
            shape = (columns, rows) if part == "down" else (rows, columns)
            single[f"mtp.layers.0.mlp.experts.{e}.{part}_proj.weight"] = random.standard_normal(shape).astype(
                dtype
            )
    (place / "in").mkdir()
    save_file(single, place / "in" / "model.safetensors", {"format": "pt"})
    config = {"model_type": "qwen3_next", "hidden_size": columns, "num_hidden_layers": 1}
    (place / "in" / "config.json").write_text(json.dumps(config))
    there = fix_keys(
        Request(
            str(place / "in"),
            str(place / "sp"),
            to="speculators",
            target=str(place / "in"),
            allow=("KEY009",),  # the norms of a whole layer aren't there
        )
    )
    assert there.verdict == "pass", [f.message for f in there.findings]
    fused = load_file(place / "sp" / "model.safetensors")
    gate_up = fused["mtp_layers.0.mlp.experts.gate_up_proj"]
    assert gate_up.shape == (experts, 2 * rows, columns)
    for e in range(experts):
        both = [single[f"mtp.layers.0.mlp.experts.{e}.{p}_proj.weight"] for p in ("gate", "up")]
        assert np.array_equal(gate_up[e], np.concatenate(both))
        down = fused["mtp_layers.0.mlp.experts.down_proj"][e]
        assert np.array_equal(down, single[f"mtp.layers.0.mlp.experts.{e}.down_proj.weight"])
    assert (
        fix_keys(Request(str(place / "sp"), str(place / "back"), to="bundled", allow=("KEY009",))).verdict
        == "pass"
    )
    back = load_file(place / "back" / "model.safetensors")
    assert set(back) == set(single)
    assert all(np.array_equal(back[n], single[n]) for n in single)
