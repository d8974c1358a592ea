"""The pair matrix: every ordered pair of formats that share an algorithm converts and comes back, or is refused with a code."""

from __future__ import annotations

import pytest

from ckpt_tools.checks.base import names_of_codes
from ckpt_tools.formats import formats
from tests.interop.pairs import Outcome, counts, walk, writes

pytest.importorskip("torch", reason="torch is absent: some samples are pickles")


def _shown(outcomes: list[Outcome]) -> list[str]:
    return [f"{o.sample} -> {o.to}: {o}" for o in outcomes]


def test_no_pair_loses_a_fact_or_a_tensor_without_a_word() -> None:
    assert _shown([o for o in walk() if o.unnamed]) == []


def test_a_refusal_has_a_known_code() -> None:
    known = names_of_codes()
    for outcome in walk():
        assert set(outcome.refused) <= set(known)
        assert set(outcome.back_refused) <= set(known)


def test_what_converts_comes_back() -> None:
    assert _shown([o for o in walk() if o.back_refused]) == []


def test_a_format_gives_its_own_drafts_back_unchanged() -> None:
    own = [o for o in walk() if o.source == o.to]
    assert {o.source for o in own} >= {
        "speculators",
        "sglang",
        "vllm",
        "specforge",
        "modelopt",
        "safeailab",
        "z-lab",
        "bundled",
    }
    changed = [o for o in own if not o.same]
    # A Megatron export lacks its table; what lies beside it is written in.
    assert [(o.sample, o.tensors) for o in changed] == [("modelopt/eagle3_megatron_tiny", ("d2t",))]


def test_every_algorithm_has_every_pair_of_its_writers() -> None:
    seen = {(o.algorithm, o.source, o.to) for o in walk()}
    algorithms = {o.algorithm for o in walk()}
    assert algorithms >= {
        "eagle",
        "eagle3",
        "peagle",
        "dflash",
        "dflash2",
        "domino",
        "dspark",
        "xpress",
        "mtp",
    }
    for algorithm in algorithms:
        sources = {o.source for o in walk() if o.algorithm == algorithm}
        for source in sources:
            for to in formats():
                assert ((algorithm, source, to) in seen) is writes(to, algorithm)


def test_the_matrix_is_large_and_mostly_exact() -> None:
    found = counts(walk())
    assert found["pairs"] >= 320
    assert found["there and back, bit for bit"] >= 200
    assert found["refused on the way back"] == 0
