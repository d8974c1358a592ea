"""Public drafters: recognised wherever the published facts of their files are enough."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ckpt_tools.formats import read_draft
from ckpt_tools.model import Checkpoint, Draft, TensorInfo
from tests.conftest import FIXTURES

DATA: dict[str, Any] = json.loads((FIXTURES / "drafters.json").read_text())
DRAFTERS: list[dict[str, Any]] = DATA["drafters"]


def read(entry: dict[str, Any]) -> Draft | None:
    tensors = {
        name: TensorInfo(
            name, {"d2t": "I64", "t2d": "BOOL"}.get(name, "BF16"), tuple(shape), "model.safetensors", 0, 0
        )
        for name, shape in entry.get("shapes", {}).items()
    }
    return read_draft(Checkpoint("x", "x", entry["config"], "", tensors, ()))


@pytest.mark.parametrize("entry", DRAFTERS, ids=[d["repo"] for d in DRAFTERS])
def test_a_published_drafter_is_read_as_what_it_is(entry: dict[str, Any]) -> None:
    draft = read(entry)
    assert ([draft.format, draft.algorithm] if draft else None) == entry["read_as"]
    if "why_not" not in entry:
        assert draft is not None
        assert draft.algorithm == entry["algorithm"]
        assert draft.facts.hidden_size == (entry["config"] or {}).get(
            "hidden_size",
            (entry["config"] or {})
            .get("transformer_layer_config", {})
            .get("hidden_size", draft.facts.hidden_size),
        )


def test_every_whole_config_is_recognised_and_the_others_say_why_not() -> None:
    whole = [d for d in DRAFTERS if d["facts"] in ("verbatim", "verbatim-truncated", "template")]
    assert len(whole) >= 56
    assert all("why_not" not in d for d in whole)
    assert len(DRAFTERS) + len(DATA["without_facts"]) == 150
