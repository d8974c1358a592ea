"""Every fixture is recognised as itself and as no other format, with a half of it missing or a class name that collides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckpt_tools.api.converting import Request, fix_keys, writable_formats
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.formats import detect, formats, read_draft
from ckpt_tools.model import Checkpoint, TensorInfo
from tests.conftest import FIXTURES

pytest.importorskip("torch", reason="torch is absent: some samples are pickles")

SAMPLES = sorted(
    p.parent for p in (FIXTURES / "formats").glob("*/*/config.json") if p.parent.parent.name != "tiny"
)
ALL = sorted(p.parent for p in (FIXTURES / "formats").glob("*/*/config.json"))


def name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


@pytest.mark.parametrize("folder", SAMPLES, ids=name)
def test_a_sample_is_its_own_format_s_and_no_other_s(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    detection = detect(checkpoint)
    assert detection.best is not None
    assert detection.best.format.name == folder.parent.name
    assert detection.rivals == ()
    draft = read_draft(checkpoint)
    assert draft is not None
    assert draft.unknown == ()
    assert draft.findings == ()


def test_every_format_that_recognises_has_a_sample_for_each_algorithm_it_recognises() -> None:
    seen = {(d.format, d.algorithm) for p in ALL if (d := read_draft(open_checkpoint(p))) is not None}
    recognised = {(f.name, v.algorithm) for f in formats().values() for v in f.variants if v.must}
    # Layouts that another format's sample stands for: the tensors and fields are the same.
    shared = {
        ("specforge", "dflash"),
        ("vllm", "dflash2"),
        ("angelslim", "dflare"),
        ("modelopt", "unexported"),
    }
    assert recognised - seen == shared


def _without(checkpoint: Checkpoint, half: str) -> Checkpoint:
    return (
        replace(checkpoint, config=None)
        if half == "config"
        else replace(checkpoint, tensors={}, extra={}, files=())
    )


@pytest.mark.parametrize("half", ["config", "tensors"])
@pytest.mark.parametrize("folder", ALL, ids=name)
def test_half_a_sample_is_never_certainly_another_s(folder: Path, half: str) -> None:
    whole = open_checkpoint(folder)
    draft = read_draft(whole)
    assert draft is not None
    part = _without(whole, half)
    detection = detect(part)
    if detection.best is None:
        assert half == "tensors"  # a target's config says nothing of next-token layers
        assert draft.algorithm == "mtp"
        return
    if detection.best.format.name != draft.format:
        assert detection.rivals
        read = read_draft(part)
        assert read is not None
        (said,) = [f for f in read.findings if f.code == "CFG001"]
        assert "the half that would decide is missing" in said.message
        assert detection.best.format.name in said.message
    if half == "config":
        assert detection.best.variant.algorithm == draft.algorithm


@pytest.mark.parametrize(
    ("sample", "architecture"),
    [
        ("specforge/dspark_tiny", "DSparkDraftModel"),
        ("speculators/dspark_tiny", "DSparkDraftModel"),
        ("angelslim/eagle3_tiny", "Eagle3LlamaForCausalLM"),
        ("vllm/eagle3_tiny", "Eagle3LlamaForCausalLM"),
        ("vllm/peagle_tiny", "Eagle3LlamaForCausalLM"),
        ("specforge/eagle3_tiny", "LlamaForCausalLMEagle3"),
        ("modelopt/eagle3_tiny", "LlamaForCausalLMEagle3"),
        ("nemo/eagle3_tiny", "LlamaForCausalLMEagle3"),
        ("safeailab/eagle3_tiny", "LlamaForCausalLM"),
        ("modelopt/medusa_tiny", "LlamaForCausalLM"),
        ("z-lab/dflash_tiny", "DFlashDraftModel"),
        ("modelopt/dflash_tiny", "DFlashDraftModel"),
        ("modelopt/dspark_tiny", "DFlashDraftModel"),
        ("sglang/domino_tiny", "DFlashDraftModel"),
        ("vllm/dflash_tiny", "DFlashDraftModel"),
    ],
)
def test_equal_class_names_are_told_apart_by_tensors_and_fields(sample: str, architecture: str) -> None:
    checkpoint = open_checkpoint(FIXTURES / "formats" / sample)
    assert checkpoint.config is not None
    assert checkpoint.config["architectures"][0] == architecture
    draft = read_draft(checkpoint)
    assert draft is not None
    assert draft.format == sample.split("/")[0]


def _renamed(checkpoint: Checkpoint, **config: Any) -> Checkpoint:
    return replace(checkpoint, config={**(checkpoint.config or {}), **config})


def test_a_wrong_class_name_doesn_t_outweigh_the_tensors() -> None:
    peagle = open_checkpoint(FIXTURES / "formats" / "vllm" / "peagle_tiny")
    draft = read_draft(_renamed(peagle, architectures=["LlamaForCausalLMEagle3"]))
    assert draft is not None
    assert draft.algorithm == "peagle"
    dspark = open_checkpoint(FIXTURES / "formats" / "modelopt" / "dspark_tiny")
    for wrong in ("Qwen3DSparkModel", "DSparkDraftModel"):
        draft = read_draft(_renamed(dspark, architectures=[wrong]))
        assert draft is not None
        assert (draft.format, draft.algorithm) == ("modelopt", "dspark")
    dflash2 = open_checkpoint(FIXTURES / "formats" / "z-lab" / "dflash2_tiny")
    draft = read_draft(_renamed(dflash2, architectures=["SomethingElse"]))
    assert draft is not None
    assert draft.algorithm == "dflash2"


def test_a_target_is_no_draft_of_its_engines() -> None:
    assert read_draft(open_checkpoint(FIXTURES / "models" / "llama_tiny")) is None


def _checkpoint(shapes: dict[str, tuple[int, ...]], **config: Any) -> Checkpoint:
    tensors = {n: TensorInfo(n, "BF16", s, "model.safetensors", 0, 0) for n, s in shapes.items()}
    return Checkpoint("x", "x", config or None, "", tensors, ())


def test_dflare_is_recognised_and_no_format_writes_it(tmp_path: Path) -> None:
    shapes = {
        "layer_fusion_weights": (2, 8),
        "layers.0.self_attn.k_proj_target.weight": (32, 64),
        "norm.weight": (64,),
    }
    draft = read_draft(_checkpoint(shapes, architectures=["QwenDFlareDraftModel"], model_type="qwen3"))
    assert draft is not None
    assert (draft.format, draft.algorithm) == ("angelslim", "dflare")
    medusa = str(FIXTURES / "formats" / "modelopt" / "medusa_tiny")
    for to in writable_formats():
        report = fix_keys(Request(medusa, str(tmp_path / to), to=to))
        assert [f.code for f in report.findings if f.severity.value == "error"] == ["PAR001"]


def test_vllm_s_own_form_is_unwrapped() -> None:
    inner = {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "draft_vocab_size": 96,
    }
    draft = read_draft(_checkpoint({}, model_type="eagle", method="eagle3", model=inner))
    assert draft is None or draft.facts.hidden_size == 64
    eagle = read_draft(
        _checkpoint(
            {"fc.weight": (64, 128), "layers.0.mlp.up_proj.weight": (96, 64)},
            model_type="eagle",
            model={"hidden_size": 64},
        )
    )
    assert eagle is not None
    assert (eagle.format, eagle.algorithm, eagle.facts.hidden_size) == ("vllm", "eagle", 64)


def test_a_training_checkpoint_of_model_optimizer_has_to_be_exported(tmp_path: Path) -> None:
    names = ("model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight", "eagle_module.fc.weight")
    save_file(
        {n: np.ones((2, 2), dtype=np.float32) for n in names},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    )
    draft = read_draft(open_checkpoint(tmp_path))
    assert draft is not None
    assert (draft.format, draft.algorithm) == ("modelopt", "unexported")
    assert list(draft.tensors) == ["eagle_module.fc.weight"]
    report = fix_keys(Request(str(tmp_path), str(tmp_path / "out"), to="vllm"))
    assert [f.code for f in report.findings if f.severity.value == "error"] == ["PAR015"]
