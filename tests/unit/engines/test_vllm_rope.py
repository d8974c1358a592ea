"""Rotary settings on their way through vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engines.vllm_drafts import config, eagle3, mapped, speculators

FACTORS = [1.0] * 16
LONG = {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS}


def refused(**changes: Any) -> str | None:
    """What the engine says to a draft of 32-wide heads with these rope settings."""
    return mapped(config(head_dim=32, num_attention_heads=2, num_key_value_heads=2, **changes), {}).refused


@pytest.mark.parametrize(
    "rope",
    [
        {"type": "mrope", "mrope_section": [4, 6, 6]},
        {"rope_type": "default", "type": "mrope", "mrope_section": [4, 6, 6]},
        {"type": "su", "short_factor": FACTORS, "long_factor": FACTORS},
        {"rope_type": "longrope", "type": "su", "short_factor": [1.0], "long_factor": FACTORS},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5, "original_max_position_embeddings": 64},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "default", "rope_dim": 16},
    ],
)
def test_settings_that_load(rope: dict[str, Any]) -> None:
    assert refused(rope_scaling=rope) is None


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"type": "mrope"}, "ValueError: Legacy rope_type 'mrope' requires 'mrope_section'"),
        ({"type": "linear", "rope_type": "yarn", "factor": 4.0}, "Found conflicts between 'rope_type=yarn'"),
        ({"rope_type": "default", "mrope_section": [4, 4, 4]}, "AssertionError"),
        ({"rope_type": "linear", "factor": 2}, "TypeError: 'int' object is not iterable"),
        ({"rope_type": "linear", "factor": [1.0, 2.0]}, "TypeError: can't multiply sequence by non-int"),
        ({"rope_type": "linear", "factor": "2"}, "TypeError: can't multiply sequence by non-int"),
        ({"full_attention": {"rope_type": "default"}}, "TypeError: unhashable type: 'dict'"),
        ({**LONG, "short_factor": [1.0] * 4}, "RuntimeError: The size of tensor a (4) must match"),
        ({"rope_type": "ntk"}, "KeyError: 'factor'"),
        ({"rope_type": "nonsense"}, "ValueError: Unknown RoPE scaling type nonsense"),
        ({"rope_type": "openpangu", "mrope_section": [8, 8]}, "Pangu mrope lacks necessary parameters."),
        ({"rope_type": "default", "partial_rotary_factor": 0}, "must be between 0.0 and 1.0"),
        ({"rope_type": "default", "rope_theta": "10000"}, "unsupported operand type(s) for **"),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}, "ZeroDivisionError"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 0}, "ZeroDivisionError"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_slow": -1}, "ValueError: "),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": "4"}, "TypeError"),
        ({"rope_type": "dynamic", "alpha": 3.0}, "Missing required keys"),
    ],
)
def test_settings_that_are_refused(rope: dict[str, Any], says: str) -> None:
    assert says in str(refused(rope_scaling=rope))


def test_the_later_of_two_spellings_counts_in_a_speculators_config() -> None:
    """Both write the same attribute, in the file's order."""
    first = speculators(layer={"rope_parameters": "linear", "rope_scaling": None})
    assert "setdefault" not in str(mapped(first, eagle3()).refused)
    last = speculators(layer={"rope_scaling": None, "rope_parameters": "linear"})
    assert "'str' object has no attribute 'setdefault'" in str(mapped(last, eagle3()).refused)
