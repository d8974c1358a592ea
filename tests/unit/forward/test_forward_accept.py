"""Acceptance from recorded states, against the loops that really ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.accept import evaluate, matches, serve
from ckpt_tools.forward.heads import build
from ckpt_tools.forward.payoff import expected_length, payoff
from ckpt_tools.forward.states import States, Text, read_states

from .pair import ACCEPTANCE, STATES, VLLM, pair_side

SIDE = pair_side()
HEAD = build(SIDE.spec, SIDE.tensors)
MEASURED = evaluate(HEAD, STATES, 7, resamples=200)


@pytest.mark.parametrize("depth", sorted(map(int, ACCEPTANCE["depths"])))
def test_the_expected_length_is_the_real_loops(depth: int) -> None:
    real = ACCEPTANCE["depths"][str(depth)]["accept_length"]
    found = MEASURED.expected_length[depth - 1]
    assert found.depth == depth
    assert found.mean == pytest.approx(real, rel=0.03)
    assert found.low < found.mean < found.high


@pytest.mark.parametrize("run", VLLM["runs"], ids=lambda r: f"{r['dtype']}-{r['depth']}")
def test_the_expected_length_is_vllms(run: dict[str, float]) -> None:
    assert MEASURED.expected_length[run["depth"] - 1].mean == pytest.approx(run["accept_length"], rel=0.05)


def test_per_position() -> None:
    assert [p.position for p in MEASURED.per_position] == list(range(1, 8))
    first = MEASURED.per_position[0]
    assert first.conditional is not None
    assert 0.5 < first.conditional < 0.95
    assert first.reached == MEASURED.expected_length[-1].rounds
    assert MEASURED.per_position[0].top1 > MEASURED.per_position[6].top1
    assert MEASURED.texts == 24


def test_a_tree_accepts_more() -> None:
    tree = evaluate(HEAD, STATES, 3, topk=4, resamples=20)
    assert tree.expected_length[2].mean > MEASURED.expected_length[2].mean
    assert all(p.topk > p.top1 for p in tree.per_position)


def test_recursion_is_what_rows_computes() -> None:
    """From one row, feeding the head its own right proposals gives the same logits as feeding the true tokens."""
    text = STATES.texts[0]
    tokens, aux = text.tokens.unsqueeze(0), text.aux.float().unsqueeze(0)
    with torch.no_grad():
        rows = HEAD.rows(tokens[:, 1:], aux[:, :-1], 4)
        for at in (5, 30, 60):
            forced = tokens[:, at + 2 : at + 5]
            drafted = HEAD.draft(tokens[:, 1 : at + 2], aux[:, : at + 1], 4, forced=forced)
            torch.testing.assert_close(drafted.logits[0], rows[0, at], rtol=1e-4, atol=1e-4)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=6, max_size=40), st.integers(1, 4))
def test_serving_counts_every_round_once(hits: list[list[bool]], depth: int) -> None:
    accepted, reached = serve(torch.tensor(hits), 0, depth)
    assert reached[0] == len(accepted)
    assert reached == sorted(reached, reverse=True)
    assert all(0 <= n <= depth for n in accepted)
    assert sum(n + 1 for n in accepted) <= len(hits) + 1
    total = sum(sum(n > k for n in accepted) for k in range(depth))
    assert total == sum(accepted)


def test_nothing_long_enough() -> None:
    short = States("speculators", (Text(torch.arange(4), torch.zeros(4, 192), None, False, 1),), None)
    with pytest.raises(InputError, match="long enough"):
        evaluate(HEAD, short, 5)


def test_a_head_that_takes_the_last_state() -> None:
    text = STATES.texts[0]
    eagle = type("Spec", (), {"algorithm": "eagle"})()
    mtp = type("Spec", (), {"algorithm": "mtp"})()
    assert text.features(mtp) is text.last
    with pytest.raises(InputError, match="after the final norm"):
        text.features(eagle)


def test_speculators_layout(tmp_path: Path) -> None:
    text = STATES.texts[0]
    hidden = torch.cat((text.aux.view(-1, 3, 64), text.last.unsqueeze(1)), dim=1)
    save_file({"hidden_states": hidden, "token_ids": text.tokens}, tmp_path / "hs_0.safetensors")
    mask = torch.zeros(len(text.tokens), dtype=torch.long)
    mask[24:] = 1
    save_file(
        {"hidden_states": hidden, "token_ids": text.tokens, "loss_mask": mask}, tmp_path / "hs_1.safetensors"
    )
    states = read_states(tmp_path)
    assert states.layout == "speculators"
    assert [t.start for t in states.texts] == [1, 24]
    assert torch.equal(states.texts[0].aux, text.aux)
    assert torch.equal(states.texts[1].last, text.last)
    assert len(read_states(tmp_path, limit=1).texts) == 1
    first, second = matches(HEAD, states.texts[1], 3), matches(HEAD, text, 3)
    assert torch.equal(first.hits, second.hits)
    assert first.start == second.start == 23


def test_specforge_layout(tmp_path: Path) -> None:
    text = STATES.texts[0]
    mask = torch.zeros(len(text.tokens), dtype=torch.long)
    mask[24:] = 1
    data = {
        "input_ids": text.tokens,
        "loss_mask": mask,
        "aux_hidden_state": text.aux.unsqueeze(0),
        "hidden_state": text.last.unsqueeze(0),
    }
    folder = tmp_path / "rows_0-2000"
    folder.mkdir()
    torch.save(data, folder / "data_0.ckpt")
    states = read_states(tmp_path)
    assert states.layout == "specforge"
    assert states.texts[0].last_normed
    assert torch.equal(states.texts[0].aux, text.aux)
    assert states.texts[0].start == 24
    assert states.rms(3) == pytest.approx(
        [float(c.float().square().mean().sqrt()) for c in text.aux.chunk(3, -1)]
    )


def test_states_that_cant_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recorded states"):
        read_states(tmp_path)
    bad = tmp_path / "x.safetensors"
    bad.write_bytes(b"nothing of the sort")
    with pytest.raises(InputError, match="no safetensors"):
        read_states(bad)
    save_file({"other": torch.zeros(1)}, bad)
    with pytest.raises(InputError, match="found other"):
        read_states(bad)
    save_file({"hidden_states": torch.zeros(3, 2), "token_ids": torch.zeros(3, dtype=torch.long)}, bad)
    with pytest.raises(InputError, match="doesn't fit"):
        read_states(bad)
    save_file(
        {"hidden_states": torch.zeros(2, 3, 2, 4), "token_ids": torch.zeros(2, 3, dtype=torch.long)}, bad
    )
    with pytest.raises(InputError, match="one text"):
        read_states(bad)
    odd = tmp_path / "data_0.ckpt"
    odd.write_bytes(b"nothing of the sort")
    with pytest.raises(InputError, match="weights only"):
        read_states(odd)
    torch.save({"input_ids": torch.zeros(3)}, odd)
    with pytest.raises(InputError, match="aux_hidden_state"):
        read_states(odd)
    torch.save([1], odd)
    with pytest.raises(InputError, match="list"):
        read_states(odd)


def test_states_without_extras(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_file(
        {"hidden_states": torch.zeros(2, 5, 2, 4), "token_ids": torch.zeros(2, 5, dtype=torch.long)},
        path,
        metadata={"layout": "ckpt-tools/states.v1"},
    )
    states = read_states(path)
    assert states.capture_layers is None
    assert [t.start for t in states.texts] == [1, 1]
    silent = tmp_path / "d.ckpt"
    torch.save(
        {"input_ids": torch.zeros(3), "aux_hidden_state": torch.zeros(1, 3, 6), "loss_mask": torch.zeros(3)},
        silent,
    )
    assert read_states(silent).texts[0].start == 3
    assert read_states(silent).texts[0].last is None
    mtp = type("Spec", (), {"algorithm": "mtp"})()
    with pytest.raises(InputError, match="holds none"):
        read_states(silent).texts[0].features(mtp)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=16))
def test_expected_length_of_a_profile(profile: list[float]) -> None:
    length = expected_length(profile)
    assert 1 <= length <= 1 + len(profile)
    assert expected_length(profile, 1) == 1 + profile[0]
    assert expected_length([1.0] * len(profile)) == 1 + len(profile)
    assert expected_length([0.0, *profile]) == 1


def test_the_profile_predicts_the_loop() -> None:
    conditional = [p.conditional for p in MEASURED.per_position]
    assert expected_length([c for c in conditional if c is not None]) == pytest.approx(
        MEASURED.expected_length[-1].mean, rel=1e-9
    )


def test_whether_it_pays() -> None:
    lengths = [(e.depth, e.mean) for e in MEASURED.expected_length]
    cheap = payoff(lengths, 0.05)
    assert cheap.pays
    assert cheap.best_depth >= 5
    dear = payoff(lengths, 1.0)
    assert not dear.pays
    assert dear.best_depth == 1
    assert dear.by_depth[0].speedup == pytest.approx(lengths[0][1] / 2)
    block = payoff(lengths, 1.0, parallel=True)
    assert block.best_depth == 7
    assert block.pays
    heavy = payoff(lengths, 0.05, verify_ratio=0.5)
    assert heavy.best_depth < cheap.best_depth


@settings(max_examples=25)
@given(st.floats(0.01, 2.0), st.floats(0.3, 0.95))
def test_the_best_depth_is_best(ratio: float, rate: float) -> None:
    found = payoff([(d, expected_length([rate] * d)) for d in range(1, 9)], ratio)
    best = max(row.speedup for row in found.by_depth)
    assert next(r.speedup for r in found.by_depth if r.depth == found.best_depth) == best
    assert found.pays == (best > 1)


def test_the_fixture_says_what_it_holds() -> None:
    assert STATES.layout == "ckpt-tools"
    assert STATES.capture_layers == (1, 3, 4)
    assert json.dumps(ACCEPTANCE["prompts"]) == "24"
