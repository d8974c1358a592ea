"""The reference heads against what the real libraries computed (fixtures/forward)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import safe_open

from ckpt_tools.errors import InputError
from ckpt_tools.forward import semantics
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.heads import BlockHead, EagleHead, MtpHead, PEagleHead, build
from ckpt_tools.forward.layers import Alone, GrowingCache, MlaAttention, causal_mask
from ckpt_tools.forward.refine import confidence, refiner
from ckpt_tools.forward.rope import kind, rotary
from ckpt_tools.forward.spec import Mla, resolve
from ckpt_tools.model import Rope

from .drafts import FIXTURES, Recorded, algorithm_of, relative_error

BOUND = 1e-5
SPECULATORS = sorted((FIXTURES / "forward" / "speculators").iterdir())
ENGINES = [
    (engine, path)
    for engine in ("sglang", "vllm")
    for path in sorted((FIXTURES / "forward" / engine).iterdir())
]


def _named(path: Path) -> str:
    return path.stem


def _load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {k: file.get_tensor(k) for k in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.mark.parametrize("path", SPECULATORS, ids=_named)
@torch.no_grad()
def test_speculators_own_outputs(path: Path) -> None:
    recorded = Recorded(path)
    spec = resolve(recorded.draft, recorded.shapes, semantics.speculators)
    head = build(spec, recorded.tensors, recorded.target)
    tokens, aux = recorded.inputs["input_ids"], recorded.inputs["hidden_states"]
    out = recorded.outputs
    assert spec.unused == ()
    if isinstance(head, PEagleHead):
        logits, _ = head.elements(tokens, aux, out["anchor_pos"], out["depth"])
        assert relative_error(logits, out["logits"]) < BOUND
    elif isinstance(head, EagleHead):
        rows = head.rows(tokens, aux, 3)
        for step in range(3):
            assert relative_error(rows[:, :, step], out[f"logits.{step}"]) < BOUND
    elif isinstance(head, MtpHead):
        state = aux
        for step in range(3):
            state = head.step(tokens[:, step + 1 : step + 21], state[:, :20])
            assert relative_error(head.score(state), out[f"logits.{step}"]) < BOUND
    else:
        assert isinstance(head, BlockHead)
        logits, hidden = head.blocks(tokens[:, out["anchors"]], out["anchors"], aux)
        assert relative_error(logits.flatten(1, 2), out["base_logits"]) < BOUND
        assert relative_error(hidden.flatten(1, 2), out["hidden"]) < BOUND


@pytest.mark.parametrize(("engine", "path"), ENGINES, ids=lambda v: v if isinstance(v, str) else v.stem)
@torch.no_grad()
def test_an_engines_own_forward(engine: str, path: Path) -> None:
    recorded = Recorded(path)
    spec = resolve(recorded.draft, recorded.shapes, semantics.find(engine))
    # the recording ran the class alone, before the server puts the target's embedding in
    head = build(replace(spec, embedding="own"), recorded.tensors)
    assert isinstance(head, EagleHead)
    tokens = recorded.inputs["input_ids"].unsqueeze(0)
    aux = recorded.inputs["aux_hidden"].float().unsqueeze(0)
    index = torch.arange(tokens.shape[1])
    normed, back = head.run(
        tokens,
        head.fuse(aux),
        recorded.inputs["positions"].unsqueeze(0),
        GrowingCache(),
        head.masks(index, index),
    )
    logits, wanted = head.score(normed)[0], recorded.outputs["draft_logits"]
    assert relative_error(normed[0], recorded.outputs["last_hidden"]) < BOUND
    assert relative_error(back[0], recorded.outputs["aux_out"]) < BOUND
    assert relative_error(logits, wanted) < BOUND


def test_sglang_names_what_it_drops() -> None:
    recorded = Recorded(FIXTURES / "forward" / "sglang" / "bias.safetensors")
    spec = resolve(recorded.draft, recorded.shapes, semantics.sglang)
    assert "layers.0.self_attn.q_proj.bias" in spec.unused
    assert "layers.0.self_attn.o_proj.bias" not in spec.unused
    assert "layers.0.mlp.gate_proj.bias" in spec.unused
    assert "embed_tokens.weight" in spec.unused


@torch.no_grad()
def test_vllm_keeps_the_biases_of_the_mlp() -> None:
    """Its own draft pass is far from the one without them."""
    recorded = Recorded(FIXTURES / "forward" / "vllm" / "mlp_bias.safetensors")
    spec = resolve(recorded.draft, recorded.shapes, semantics.vllm)
    assert spec.unused == ()
    biases = [name for name in recorded.tensors if "mlp" in name and name.endswith(".bias")]
    assert len(biases) == 3
    zeroed = {k: v * 0 if k in biases else v for k, v in recorded.tensors.items()}
    head = build(replace(spec, embedding="own"), zeroed)
    assert isinstance(head, EagleHead)
    tokens, index = recorded.inputs["input_ids"].unsqueeze(0), torch.arange(10)
    states = head.fuse(recorded.inputs["aux_hidden"].unsqueeze(0))
    normed, _ = head.run(tokens, states, index.unsqueeze(0), GrowingCache(), head.masks(index, index))
    assert relative_error(normed[0], recorded.outputs["last_hidden"]) > 0.1


@pytest.mark.parametrize("name", sorted(p.stem for p in (FIXTURES / "forward" / "refiners").iterdir()))
def test_small_heads_of_speculators(name: str) -> None:
    data, meta = _load(FIXTURES / "forward" / "refiners" / f"{name}.safetensors")
    config = json.loads(meta["config"])
    tensors = {k[2:]: v for k, v in data.items() if k.startswith("w.")}
    spec = SimpleNamespace(
        algorithm=algorithm_of(config),
        markov=config.get("markov_head_type"),
        selector_top_k=config.get("selector_top_k"),
        jacobi_passes=config.get("num_jacobi_passes"),
        hidden_size=64,
    )
    logits, hidden, previous = data["in.logits"], data["in.hidden"], data["in.previous"]
    found = refiner(spec, tensors).forced(logits, hidden, previous, previous[:, 0], 0)
    if name == "dflash2":
        assert relative_error(found.gather(-1, data["out.ids"]), data["out.scores"]) < BOUND
        assert int(found.isfinite().sum(-1).max()) == config["selector_top_k"]
    else:
        assert relative_error(found - logits, data["out.bias"]) < BOUND
    if "out.confidence" in data:
        assert relative_error(confidence(spec, tensors, hidden, previous), data["out.confidence"]) < BOUND


ROPES, ROPE_META = _load(FIXTURES / "forward" / "transformers" / "rope.safetensors")


@pytest.mark.parametrize("name", sorted(json.loads(ROPE_META["ropes"])))
def test_ropes_of_transformers(name: str) -> None:
    scaling = json.loads(ROPE_META["ropes"])[name]
    rope = Rope(theta=10000.0, scaling=scaling, partial_rotary_factor=scaling.get("partial_rotary_factor"))
    longest = 64 if name == "dynamic" else 256
    found = rotary(rope, 32, default_theta=1.0, max_position=longest, sequence_length=256)
    cos, sin = found.tables(ROPES["positions"])
    half = cos.shape[-1]
    torch.testing.assert_close(cos, ROPES[f"{name}.cos"][:, :half], rtol=0, atol=1e-6)
    torch.testing.assert_close(sin, ROPES[f"{name}.sin"][:, :half], rtol=0, atol=1e-6)


def test_a_rope_that_states_no_base_takes_the_engines() -> None:
    found = rotary(Rope(), 8, default_theta=100.0)
    assert found.inverse.tolist() == pytest.approx([1.0, 100**-0.25, 100**-0.5, 100**-0.75])


def test_yarn_without_a_factor_takes_the_ratio_of_contexts() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    stated = rotary(Rope(scaling={**scaling, "factor": 4.0}), 32, default_theta=1e4)
    derived = rotary(Rope(scaling=scaling), 32, default_theta=1e4, max_position=256)
    assert torch.equal(stated.inverse, derived.inverse)
    assert stated.scale == derived.scale


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        ({"rope_type": "longrope"}, "longrope"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings"),
        ({"type": "llama3", "factor": 8.0}, "original_max_position_embeddings"),
    ],
)
def test_ropes_that_cant_be_computed(scaling: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        rotary(Rope(scaling=scaling), 32, default_theta=1e4)


def test_mrope_over_text_is_the_default() -> None:
    assert kind({"type": "mrope", "mrope_section": [4, 6, 6]}) == "default"


def test_mla_attention_of_transformers() -> None:
    data, meta = _load(FIXTURES / "forward" / "transformers" / "mla.safetensors")
    facts = json.loads(meta["facts"])
    sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    spec = SimpleNamespace(
        mla=Mla(*(facts[s] for s in sizes)),
        num_heads=facts["heads"],
        eps=1e-6,
        rope=Rope(theta=facts["theta"], scaling=facts["rope"]),
        default_theta=1e4,
        max_position=2560,
    )
    tensors = {"self_attn." + k[2:]: v for k, v in data.items() if k.startswith("w.")}
    index = torch.arange(9)
    attention = MlaAttention(spec, tensors, "", 0, Alone())
    found = attention(data["in.x"], index.expand(2, -1), GrowingCache(), causal_mask(index, index))
    assert relative_error(found, data["out.y"]) < BOUND


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("name", sorted(p.stem for p in (FIXTURES / "forward" / "refiners").iterdir()))
def test_drafting_with_the_true_tokens_is_what_training_computes(name: str, skipped: int) -> None:
    data, meta = _load(FIXTURES / "forward" / "refiners" / f"{name}.safetensors")
    config = json.loads(meta["config"])
    tensors = {k[2:]: v for k, v in data.items() if k.startswith("w.")}
    spec = SimpleNamespace(
        algorithm=algorithm_of(config),
        markov=config.get("markov_head_type"),
        selector_top_k=config.get("selector_top_k"),
        jacobi_passes=config.get("num_jacobi_passes"),
        hidden_size=64,
    )
    logits, hidden, true = data["in.logits"], data["in.hidden"], data["in.previous"]
    head, before = refiner(spec, tensors), true[:, -1]
    forced = head.forced(logits, hidden, true, before, skipped)
    free = head.free(logits, hidden, true[:, 0], before, lambda ids: ids, skipped, true[:, 1:])
    torch.testing.assert_close(free, forced, rtol=1e-5, atol=1e-5)
    alone = head.free(logits, hidden, true[:, 0], before, lambda ids: ids, skipped, None)
    assert alone.shape == logits.shape
    assert bool(alone.argmax(-1).ge(0).all())
