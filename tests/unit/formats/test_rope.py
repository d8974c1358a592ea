"""Two spellings of rotary settings, one meaning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.formats.rope import read_rope, spellings_disagree, write_rope
from ckpt_tools.model import Rope

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"rope_theta": 10000}, Rope(10000.0)),
        ({"rope_scaling": None, "rope_theta": 5e5}, Rope(5e5)),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, Rope(1e6)),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 7}, Rope(7.0)),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            Rope(1e4, {"rope_type": "yarn", "factor": 4.0}),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 9}},
            Rope(9.0, {"rope_type": "linear", "factor": 2}),
        ),
        ({"partial_rotary_factor": 0.5}, Rope(None, None, 0.5)),
        ({"rope_theta": True}, None),
        ({"rope_parameters": "yes"}, None),
    ],
)
def test_reading(config: dict[str, Any], expected: Rope | None) -> None:
    assert read_rope(config) == expected


def test_new_spelling_wins_as_in_transformers() -> None:
    config = {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "rope_theta": 1e4}
    assert read_rope(config) == Rope(1e6)
    both = spellings_disagree(config)
    assert both is not None
    assert (both[0].theta, both[1].theta) == (1e6, 1e4)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e4},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "rope_theta": 1e4},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "rope_scaling": None},
    ],
)
def test_no_alarm_where_nothing_disagrees(config: dict[str, Any]) -> None:
    assert spellings_disagree(config) is None


def test_scaling_in_one_spelling_only_disagrees() -> None:
    config = {
        "rope_parameters": {"rope_theta": 1e4, **YARN},
        "rope_theta": 1e4,
        "rope_scaling": {"type": "linear", "factor": 2},
    }
    assert spellings_disagree(config) is not None


@given(
    st.one_of(st.none(), st.floats(1, 1e8, allow_nan=False)),
    st.one_of(st.none(), st.just(YARN), st.just({"rope_type": "linear", "factor": 2.0})),
    st.one_of(st.none(), st.sampled_from([0.25, 0.5])),
)
def test_both_spellings_are_written_equal_and_read_back(
    theta: float | None, scaling: dict[str, Any] | None, partial: float | None
) -> None:
    rope = Rope(theta, scaling, partial)
    written = write_rope(rope)
    assert spellings_disagree(written) is None
    assert read_rope(written) == rope
    old = {k: v for k, v in written.items() if k != "rope_parameters"}
    if old:
        assert read_rope(old) == rope
