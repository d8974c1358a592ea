"""A short run of the fuzzer, and the fuzzer's own ability to fail."""

from __future__ import annotations

import pytest

from ckpt_tools.container.header import Damage, Header
from tests.fuzz import headers


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_files_give_findings_or_documented_errors(seed):
    result = headers.run(1500, seed)
    assert result.failures == []
    assert result.inputs == 1500
    assert result.kept > 50


def test_the_fuzzer_notices_what_it_looks_for(monkeypatch):
    def broken(_path, _source):
        raise KeyError("weight_map")

    monkeypatch.setattr(headers, "open_checkpoint", broken)
    result = headers.run(30, 1)
    assert len(result.failures) == 10
    assert "KeyError" in result.failures[0]


def test_the_fuzzer_notices_another_verdict_than_the_library_s(monkeypatch):
    good = headers.safetensors_bytes({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, 1)
    headers.compare_with_library(good)
    with monkeypatch.context() as patch:
        patch.setattr(headers.safetensors, "deserialize", lambda _: [])
        with pytest.raises(AssertionError):
            headers.compare_with_library(good)
    with monkeypatch.context() as patch:
        patch.setattr(headers, "read_header", lambda *_: Header(damage=Damage("FIL005", "no")))
        with pytest.raises(AssertionError):
            headers.compare_with_library(good)
