"""The draft class over stand-ins for SGLang's layers: it computes what speculators does, and loads all or nothing."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: TID251
import torch.nn.functional as functional  # noqa: TID251
from safetensors.torch import load_file

from tests.unit.sglang_models.drafts import NAMES, converted

RELEASES = ("0.5.9", "0.5.12", "0.5.16", "0.5.23")


class Config(types.SimpleNamespace):
    """A config as SGLang hands it over."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Mode:
    """A forward mode."""

    def __init__(self, extend: bool = True, verified: bool = False) -> None:
        self.extend, self.verified = extend, verified

    def is_extend(self) -> bool:
        return self.extend

    def is_draft_extend(self, include_v2: bool = False) -> bool:
        assert include_v2
        return self.verified

    def is_draft_extend_v2(self) -> bool:
        return self.verified


def batch(states: torch.Tensor, step: int = 0, **more: Any) -> types.SimpleNamespace:
    """What a forward reads of SGLang's batch."""
    given = {"mm_input_embeds": None, "forward_mode": Mode(), "contains_mm_inputs": lambda: False, **more}
    return types.SimpleNamespace(spec_info=types.SimpleNamespace(hidden_states=states), step=step, **given)


def config_of(folder: Path, **changes: Any) -> Config:
    return Config(**{**json.loads((folder / "config.json").read_text("utf-8")), **changes})


def drafted(model: Any, data: dict[str, torch.Tensor], steps: int = 3) -> list[float]:
    """Largest difference of the logits per step, the head's own states fed back."""
    tokens, states = data["in.input_ids"][0], data["in.hidden_states"][0]
    out = []
    for step in range(steps):
        ids = functional.pad(tokens[step:], (0, step))
        positions = torch.arange(len(tokens)) + step
        normed, fed_back = model.model(ids, positions, batch(states, step))
        wanted = data[f"out.logits.{step}"][0]
        logits = functional.linear(normed, model.lm_head.weight)[:, : wanted.shape[-1]]
        out.append((logits - wanted)[: len(tokens) - step].abs().max().item())
        states = fed_back[0]
    return out


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_it_computes_what_speculators_does(
    version: str, name: str, beside: Any, server: Any, tmp_path: Path
) -> None:
    folder, data = converted(name, tmp_path)
    server.disable_cuda_graph = name == "4aux"
    model = beside(version, "llama_eagle3").CkptLlamaForCausalLMEagle3(config_of(folder))
    model.load_weights(load_file(folder / "model.safetensors").items())
    assert not any(p.isnan().any() for p in model.parameters())
    assert max(drafted(model, data)) < 1e-5
    assert model.pp_group == "pp" and model.capture_aux_hidden_states and not model.load_lm_head_from_target
    assert model.logits_processor.vocab_size == 128
    assert model.hot_token_id.tolist()[:3] == (torch.arange(3) + data_ids(folder)[:3]).tolist()


def data_ids(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["d2t"]


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("nbr", {"norm_before_residual": False}),
        ("traindefaults", {"norm_before_residual": False}),
        ("traindefaults", {"norm_output": False}),
    ],
)
@torch.no_grad()
def test_a_lost_flag_shows(name: str, lost: dict[str, bool], beside: Any, tmp_path: Path) -> None:
    folder, data = converted(name, tmp_path)
    model = beside("0.5.23", "llama_eagle3").CkptLlamaForCausalLMEagle3(config_of(folder, **lost))
    model.load_weights(load_file(folder / "model.safetensors").items())
    assert max(drafted(model, data)) > 0.01


def test_missing_and_stray_tensors_raise_with_their_names(beside: Any, tmp_path: Path) -> None:
    folder, _ = converted("nbr", tmp_path)
    module = beside("0.5.23", "llama_eagle3")
    tensors = load_file(folder / "model.safetensors")
    for change, words in (
        (lambda t: t.pop("fc.weight"), "no tensor for fc.weight"),
        (lambda t: t.update({"layers.0.mlp.extra": torch.ones(3)}), "no parameter for layers.0.mlp.extra"),
        (
            lambda t: t.update({"layers.0.self_attn.q_proj.weight": torch.ones(80, 128)}),
            "q_proj.weight is [80, 128], config.json makes it [64, 128]",
        ),
    ):
        changed = dict(tensors)
        change(changed)
        model = module.CkptLlamaForCausalLMEagle3(config_of(folder))
        with pytest.raises(ValueError) as raised:
            model.load_weights(changed.items())
        assert words in str(raised.value)


def test_absolute_ids_are_refused(beside: Any, tmp_path: Path) -> None:
    folder, _ = converted("nbr", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"] = tensors["d2t"] + 200
    model = beside("0.5.23", "llama_eagle3").CkptLlamaForCausalLMEagle3(config_of(folder))
    with pytest.raises(ValueError, match=r"d2t maps draft ids to \d+\.\.\d+ of a vocabulary of 256"):
        model.load_weights(tensors.items())


def test_a_parameter_that_nothing_fills_is_named(beside: Any, tmp_path: Path) -> None:
    folder, _ = converted("nbr", tmp_path)
    model = beside("0.5.23", "llama_eagle3").CkptLlamaForCausalLMEagle3(config_of(folder))
    model.model.fc.weight_scale = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"nothing fills model\.fc\.weight_scale"):
        model.load_weights(load_file(folder / "model.safetensors").items())


def test_only_a_trained_embedding_is_kept(beside: Any, tmp_path: Path) -> None:
    folder, _ = converted("nbr", tmp_path)
    module = beside("0.5.23", "llama_eagle3")
    theirs = torch.nn.Parameter(torch.zeros(256, 64))
    for trained in (True, False):
        model = module.CkptLlamaForCausalLMEagle3(config_of(folder, embed_requires_grad=trained))
        own = model.model.embed_tokens.weight
        model.set_embed(theirs)
        assert model.model.embed_tokens.weight is (own if trained else theirs)


def test_the_trained_window_is_set_where_it_cuts_the_context(
    beside: Any, server: Any, tmp_path: Path
) -> None:
    folder, _ = converted("traindefaults", tmp_path)
    module = beside("0.5.23", "llama_eagle3")

    def windows(**changes: Any) -> tuple[Any, Any]:
        model = module.CkptLlamaForCausalLMEagle3(config_of(folder, **changes))
        return model.get_attention_sliding_window_size(), model.model.layers[
            0
        ].self_attn.attn.sliding_window_size

    assert windows() == (None, -1)
    assert windows(sliding_window=16) == (15, 15)
    server.context_length = 16
    assert windows(sliding_window=16) == (None, -1)
    server.speculative_draft_window_size = 7
    assert windows() == (7, 7)


@torch.no_grad()
def test_a_window_is_applied_as_in_training(beside: Any, tmp_path: Path) -> None:
    """With a window of 4, a row's state doesn't depend on the fifth row before it, and does on the third."""
    folder, data = converted("traindefaults", tmp_path)
    module = beside("0.5.23", "llama_eagle3")
    model = module.CkptLlamaForCausalLMEagle3(config_of(folder, sliding_window=4))
    model.load_weights(load_file(folder / "model.safetensors").items())
    tokens, states = data["in.input_ids"][0], data["in.hidden_states"][0]

    def last(changed: int) -> torch.Tensor:
        ids = tokens.clone()
        ids[changed] = (ids[changed] + 1) % 256
        out: torch.Tensor = model.model(ids, torch.arange(len(ids)), batch(states))[0][20]
        return out

    assert torch.equal(last(16), last(15)) and not torch.equal(last(17), last(16))


def test_idle_batches_and_position_kinds(beside: Any, tmp_path: Path) -> None:
    folder, _ = converted("nbr", tmp_path)
    rope = {"rope_type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    config = config_of(folder, rope_parameters=rope)
    model = beside("0.5.23", "llama_eagle3").CkptLlamaForCausalLMEagle3(config)
    assert model.model.is_mrope_enabled and rope["rope_type"] == "default"
    nothing = torch.zeros(0, 192)
    normed, fed_back = model.model(
        torch.zeros(0, dtype=torch.long), torch.zeros(0), batch(nothing, mrope_positions=torch.zeros(3, 0))
    )
    assert normed.shape == fed_back[0].shape == (0, 64)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.14"])
def test_captured_layers_that_a_releases_graphs_cant_take(version: str, beside: Any, tmp_path: Path) -> None:
    folder, _ = converted("4aux", tmp_path)
    from ckpt_tools.engines.sglang_ext.head import read_head
    from ckpt_tools.engines.sglang_ext.releases import release

    head = read_head(json.loads((folder / "config.json").read_text("utf-8")))
    assert "captured layers" in (head.limit(release(version)) or "")
    with pytest.raises(ValueError, match="--disable-cuda-graph"):
        beside("0.5.9", "llama_eagle3").CkptLlamaForCausalLMEagle3(config_of(folder))


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.16"])
def test_embeddings_of_prompts_with_images(version: str, beside: Any) -> None:
    """The target's come along; the draft looks up the last token of the batch, from 0.5.14 of each request."""
    releases = beside(version, "_releases")
    known = releases.installed()
    table = torch.nn.Embedding(10, 4)
    ids = torch.tensor([1, 2, 3, 4])
    theirs = torch.zeros(4, 4)

    def looked_up(**more: Any) -> list[bool]:
        asked = batch(
            torch.zeros(4, 12),
            **{
                "mm_input_embeds": theirs.clone(),
                "contains_mm_inputs": lambda: True,
                "extend_start_loc": torch.tensor([0, 2]),
                "extend_seq_lens": torch.tensor([2, 2]),
                **more,
            },
        )
        out = releases.embeddings(known, table, ids, asked)
        return [bool(torch.equal(row, table.weight[i])) for row, i in zip(out, ids, strict=True)]

    with torch.no_grad():
        expected = {
            "0.5.9": [True] * 4,
            "0.5.12": [False, False, False, True],
            "0.5.16": [False, True, False, True],
        }[version]
        assert looked_up() == expected
        assert looked_up(mm_input_embeds=None) == [True] * 4
        if version != "0.5.9":
            assert looked_up(forward_mode=Mode(verified=True)) == [False] * 4
