"""Recognition: every sample and every published config, ambiguity, wrappers, near misses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.formats import detect, formats, read_draft
from ckpt_tools.model import Checkpoint, DraftFacts, TensorInfo
from tests.conftest import FIXTURES

SAMPLES = sorted(
    p.name for p in (FIXTURES / "formats" / "speculators").iterdir() if (p / "config.json").exists()
)


@pytest.mark.parametrize("name", SAMPLES)
def test_speculators_samples(name: str) -> None:
    folder = FIXTURES / "formats" / "speculators" / name
    config = json.loads((folder / "config.json").read_text())
    inner = config["transformer_layer_config"]
    draft = read_draft(open_checkpoint(folder))
    assert draft is not None
    assert (draft.format, draft.algorithm) == ("speculators", config["speculators_model_type"])
    assert draft.unknown == ()
    facts = draft.facts
    for key in (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
    ):
        assert getattr(facts, key) == inner[key], key
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        assert getattr(facts, flag) == config.get(flag), flag
    ids = config.get("eagle_aux_hidden_state_layer_ids") or config.get("aux_hidden_state_layer_ids")
    assert facts.capture_layers == (tuple(i - 1 for i in ids) if ids else None)
    assert facts.capture_convention == ("layer_input" if ids else None)
    assert facts.verifier is not None
    assert facts.verifier.name == config["speculators_config"]["verifier"]["name_or_path"]
    windowed = inner.get("use_sliding_window")
    assert facts.sliding_window == (inner["sliding_window"] if windowed else None)
    assert facts.rope is not None
    assert facts.rope.theta == inner.get("rope_parameters", inner)["rope_theta"]


@pytest.mark.parametrize(
    ("path", "form", "algorithm", "layers"),
    [
        ("safeailab/eagle3_tiny", "safeailab", "eagle3", "llama"),
        ("z-lab/dflash_tiny", "z-lab", "dflash", "qwen3"),
        ("tiny/draft-midlayer", "sglang", "eagle3", "llama"),
        ("tiny/draft-layers0", "sglang", "eagle3", "llama"),
        ("tiny/eagle3-mla-kimi", "sglang", "eagle3", "mla"),
        ("tiny/eagle3-5aux", "sglang", "eagle3", "llama"),
        ("tiny/eagle3-legacy-auxnorm", "sglang", "eagle3", "llama"),
        ("tiny/eagle1-sglang", "sglang", "eagle", "llama"),
        ("tiny/eagle1-vllm", "vllm", "eagle", "llama"),
        ("tiny/eagle1-original", "safeailab", "eagle", "llama"),
    ],
)
def test_other_formats(path: str, form: str, algorithm: str, layers: str) -> None:
    draft = read_draft(open_checkpoint(FIXTURES / "formats" / path))
    assert draft is not None
    assert (draft.format, draft.algorithm, draft.facts.layer_type) == (form, algorithm, layers)
    assert draft.unknown == ()


PUBLISHED = {
    "AQ-MedAI--Kimi-K2-Instruct-eagle3": ("sglang", "eagle3", (1, 29, 57), 7168, 32000),
    "AQ-MedAI--Kimi-K25-eagle3": ("sglang", "eagle3", (1, 29, 57), 7168, 32000),
    "AvitoTech--avibe-eagle": ("sglang", "eagle3", None, 4096, 32000),
    "appleeji--eagle-training-code": ("safeailab", "eagle3", None, 4096, 32000),
    "inference-optimization--Mistral3_speculator_dummy": ("speculators", "eagle3", None, 7168, 32000),
    "k-l-lambda--Kimi-K2.5-Eagle3": ("sglang", "eagle3", (1, 29, 57), 7168, 163840),
    "linglingdan--eagle3_for_MiniCPM4": ("sglang", "eagle3", None, 4096, 15000),
    "mahmoudhas9--tiny-eagle3": ("sglang", "eagle3", None, 40, 32000),
    "nm-testing--EAGLE3-LLaMA3.1-Instruct-8B-converted": ("speculators", "eagle3", None, 4096, 32000),
    "nm-testing--for_testing_gptoss20b_spec_eagle3": ("speculators", "eagle3", None, 2880, 32000),
    "yuhuili--EAGLE-Vicuna-13B-v1.3": ("safeailab", "eagle", None, 5120, None),
    "yuhuili--EAGLE-Vicuna-7B-v1.3": ("safeailab", "eagle", None, 4096, None),
    "yuhuili--EAGLE-llama2-chat-13B": ("safeailab", "eagle", None, 5120, None),
    "yuhuili--EAGLE-llama2-chat-7B": ("safeailab", "eagle", None, 4096, None),
    "zjxia--step-3.5-flash-eagle3-SpecForge-draft": ("sglang", "eagle3", None, 4096, 32000),
}


def test_every_published_config_has_an_expectation() -> None:
    assert {p.stem for p in (FIXTURES / "configs").glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_configs(name: str, tmp_path: Path) -> None:
    config = json.loads((FIXTURES / "configs" / f"{name}.json").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    draft = read_draft(open_checkpoint(tmp_path))
    assert draft is not None
    form, algorithm, layers, hidden, vocab = PUBLISHED[name]
    facts = draft.facts
    assert (draft.format, draft.algorithm) == (form, algorithm)
    assert (facts.capture_layers, facts.hidden_size, facts.draft_vocab_size) == (layers, hidden, vocab)
    flat = config.get("transformer_layer_config", config)
    assert facts.rope is None or facts.rope.theta == flat.get("rope_theta")
    assert facts.max_position_embeddings == flat["max_position_embeddings"]
    assert facts.sliding_window is None


def test_an_undecided_list_is_reported_as_written() -> None:
    config = json.loads(
        (FIXTURES / "configs" / "zjxia--step-3.5-flash-eagle3-SpecForge-draft.json").read_text()
    )["config"]
    draft = read_draft(_weightless(config))
    assert draft is not None
    assert draft.ambiguous_capture == (4, 20, 40)


def _weightless(config: dict[str, Any]) -> Checkpoint:
    return Checkpoint("x", "x", config, "", {}, ())


def _weights(names: dict[str, tuple[int, ...]]) -> Checkpoint:
    tensors = {n: TensorInfo(n, "BF16", s, "model.safetensors", 0, 0) for n, s in names.items()}
    return Checkpoint("x", "x", None, "", tensors, ())


BODY: dict[str, tuple[int, ...]] = {
    "midlayer.self_attn.q_proj.weight": (64, 128),
    "midlayer.hidden_norm.weight": (64,),
    "norm.weight": (64,),
    "fc.weight": (64, 192),
    "d2t": (96,),
}


def test_weights_alone_are_ambiguous_and_both_sides_are_shown() -> None:
    detection = detect(
        _weights(
            {
                "layers.0.self_attn.q_proj.weight": (64, 128),
                "norm.weight": (64,),
                "fc.weight": (64, 192),
                "d2t": (96,),
            }
        )
    )
    assert detection.best is not None
    draft = read_draft(
        _weights(
            {
                "layers.0.self_attn.q_proj.weight": (64, 128),
                "norm.weight": (64,),
                "fc.weight": (64, 192),
                "d2t": (96,),
            }
        )
    )
    assert draft is not None
    assert draft.algorithm == "eagle3"
    if detection.rivals:
        (found,) = draft.findings
        assert found.code == "CFG001"
        for match in (detection.best, *detection.rivals):
            assert match.format.name in found.message


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "draft_model.", "model.", "module._orig_mod."])
def test_wrapper_prefixes_come_off_and_are_reported(wrapper: str) -> None:
    draft = read_draft(_weights({wrapper + n: s for n, s in BODY.items()}))
    assert draft is not None
    assert draft.wrapper or wrapper == "_orig_mod."
    assert draft.tensors["layers.0.self_attn.q_proj.weight"] == f"{wrapper}midlayer.self_attn.q_proj.weight"


def test_shapes_state_what_a_missing_config_does_not() -> None:
    draft = read_draft(
        _weights(
            {**BODY, "lm_head.weight": (96, 64), "t2d": (256,), "midlayer.mlp.gate_proj.weight": (128, 64)}
        )
    )
    assert draft is not None
    facts = draft.facts
    assert (facts.hidden_size, facts.intermediate_size, facts.vocab_size, facts.draft_vocab_size) == (
        64,
        128,
        256,
        96,
    )
    assert (facts.num_layers, facts.num_aux) == (1, 3)
    assert facts.num_attention_heads is None


def test_nothing_fits_a_plain_model() -> None:
    assert read_draft(open_checkpoint(FIXTURES / "models" / "llama_tiny")) is None


@pytest.mark.parametrize(
    ("extra", "algorithm"),
    [
        ("mask_hidden", "peagle"),
        ("markov_head.markov_w1.weight", None),
        ("candidate_selector.successor_codebook", None),
    ],
)
def test_tensors_of_another_algorithm_are_never_eagle3(extra: str, algorithm: str | None) -> None:
    names = {n.replace("midlayer.", "layers.0."): s for n, s in BODY.items()}
    draft = read_draft(_weights({**names, extra: (1, 1, 192)}))
    assert draft is None or draft.algorithm != "eagle3"
    if algorithm is not None:
        assert draft is not None
        assert draft.algorithm == algorithm


def test_formats_are_found_and_their_data_is_whole() -> None:
    found = formats()
    assert {"speculators", "sglang", "vllm", "safeailab", "z-lab", "dual"} <= set(found)
    for name, form in found.items():
        assert form.name == name
        assert form.references, name
        assert len(form.capture.paths) == len(form.capture.convention) == len(form.capture.certain)
        assert isinstance(form.read({}, detect(_weightless({})).seen, form.variants[0]), DraftFacts)
