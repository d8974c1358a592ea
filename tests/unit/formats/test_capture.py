"""Captured layers of every spelling come to outputs of 0-based layers."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_tools.formats import formats
from ckpt_tools.formats.capture import read_capture

NESTED = "eagle_config/eagle_aux_hidden_state_layer_ids"


def _config(nested: list[int] | None = None, top: list[int] | None = None) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if nested is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": nested}
    if top is not None:
        config["eagle_aux_hidden_state_layer_ids"] = top
    return config


@pytest.mark.parametrize(
    ("form", "config", "depth", "layers", "convention"),
    [
        ("speculators", _config(top=[2, 4, 5]), None, (1, 3, 4), "layer_input"),
        ("speculators", _config(top=[0, 8]), 8, (-1, 7), "layer_input"),
        ("sglang", _config(nested=[1, 3, 4]), None, (1, 3, 4), "layer_output"),
        ("sglang", _config(nested=[2, 30, 58]), 61, (1, 29, 57), "layer_input"),
        ("sglang", _config(nested=[2, 30, 58]), None, (1, 29, 57), "layer_input"),
        ("sglang", _config(nested=[24, 30, 36]), 36, (23, 29, 35), "layer_input"),
        ("sglang", _config(nested=[4, 20, 40], top=[5, 21, 41]), None, (4, 20, 40), "layer_output"),
        ("sglang", _config(nested=[4, 20, 40], top=[4, 20, 40]), None, (3, 19, 39), "layer_input"),
        ("sglang", _config(top=[2, 12, 22]), None, (1, 11, 21), "layer_input"),
        ("vllm", _config(top=[2, 12, 22]), None, (1, 11, 21), "layer_input"),
        ("vllm", _config(nested=[1, 11, 21], top=[2, 12, 22]), None, (1, 11, 21), "layer_input"),
        ("safeailab", _config(nested=[1, 2, 3]), None, None, None),
        ("sglang", _config(nested=[]), None, None, None),
        ("sglang", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a"]}}, None, None, None),
    ],
)
def test_reading(
    form: str,
    config: dict[str, Any],
    depth: int | None,
    layers: tuple[int, ...] | None,
    convention: str | None,
) -> None:
    found = read_capture(config, formats()[form].capture, depth)
    assert (found.layers, found.convention, found.undecided) == (layers, convention, False)


def test_an_undecided_list_is_kept_and_named_undecided() -> None:
    found = read_capture(_config(nested=[4, 20, 40]), formats()["sglang"].capture, None)
    assert found.undecided
    assert found.layers is None
    assert found.ids == (4, 20, 40)
    assert found.path == NESTED


@pytest.mark.parametrize(("said", "layers"), [("layer_output", (4, 20, 40)), ("layer_input", (3, 19, 39))])
def test_the_user_decides_what_files_cannot(said: Any, layers: tuple[int, ...]) -> None:
    found = read_capture(_config(nested=[4, 20, 40]), formats()["sglang"].capture, None, said)
    assert (found.layers, found.convention) == (layers, said)


def test_the_user_does_not_overrule_a_fixed_convention() -> None:
    found = read_capture(_config(top=[2, 4, 5]), formats()["speculators"].capture, None, "layer_output")
    assert found.convention == "layer_input"
