"""The context length that SGLang derives from a config."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools import targets
from ckpt_tools.targets.context import CONTEXT_KEYS, context_length, derived_context_length


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({}, 2048),
        ({"max_sequence_length": 1, "max_position_embeddings": 2}, 1),
        ({"seq_length": 1, "model_max_length": 2}, 1),
        ({"max_position_embeddings": None, "model_max_length": 7}, 7),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 4096),
        (
            {
                "max_position_embeddings": 9,
                "rope_scaling": {"type": "linear", "factor": 4, "original_max_position_embeddings": 3},
            },
            9,
        ),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 100, "rope_scaling": {"mrope_section": [1]}}, 100),
        ({"max_position_embeddings": 100, "rope_scaling": {"factor": None}}, 100),
        ({"text_config": {"max_position_embeddings": 11}, "max_position_embeddings": 12}, 11),
        ({"max_position_embeddings": "many"}, 2048),
        ({"max_position_embeddings": True}, 2048),
        ({"max_position_embeddings": 3, "rope_scaling": {"type": "linear", "factor": 1.5}}, 4),
    ],
)
def test_derived_context_length(config: dict[str, Any], expected: int) -> None:
    assert derived_context_length(config) == expected


def test_on_transformers_4_yarn_multiplies_and_rope_parameters_are_not_read() -> None:
    yarn = {"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    assert derived_context_length(yarn, transformers=4) == 16384
    new = {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2}}
    assert derived_context_length(new, transformers=4) == 4096
    llama3 = {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", "factor": 8}}
    assert derived_context_length(llama3, transformers=4) == 4096


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(CONTEXT_KEYS), st.integers(1, 10**6), min_size=1))
def test_the_first_key_in_order_wins(config: dict[str, int]) -> None:
    first = next(key for key in CONTEXT_KEYS if key in config)
    assert derived_context_length(config) == config[first]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("kimi-k2.5", 262144),
        ("llama-3.1-8b-instruct", 131072),
        ("qwen3-8b", 40960),
        ("mistral-large-3", None),
    ],
)
def test_context_length_of_registry_targets(target: str, expected: int | None) -> None:
    found = targets.find(target)
    assert found is not None
    assert context_length(found) == expected


def test_context_length_of_a_local_target() -> None:
    local = targets.from_config(
        {"max_position_embeddings": 8, "rope_scaling": {"type": "linear", "factor": 2}}, "x"
    )
    assert context_length(local) == 16
    # transformers fills in the class's own default, which the file doesn't say: nothing is guessed
    assert context_length(targets.from_config({"model_type": "qwen3"}, "x")) is None
