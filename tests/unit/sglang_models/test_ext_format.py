"""The format ``sglang-ext``: what is written, read back, recognised and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.container import open_checkpoint
from ckpt_tools.engines.sglang_ext.head import ARCHITECTURE, read_head
from ckpt_tools.formats import detect, formats, read_draft
from ckpt_tools.formats.sglang_ext import FORMAT, LIMITS
from ckpt_tools.model import DraftFacts
from tests.conftest import ROOT
from tests.unit.sglang_models.drafts import NAMES, converted

SCHEMA = json.loads((ROOT / "schemas" / FORMAT.schema).read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_fits_the_class_and_reads_back(name: str, tmp_path: Path) -> None:
    folder, _ = converted(name, tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert not list(Draft202012Validator(SCHEMA).iter_errors(config))
    opened = open_checkpoint(folder)
    head = read_head(config)
    assert head.disagreement({n: t.shape for n, t in opened.tensors.items()}) is None
    assert detect(opened).best is not None and detect(opened).best.format.name == "sglang-ext"  # type: ignore[union-attr]
    source = read_draft(open_checkpoint(tmp_path / f"{name}-source"))
    draft = read_draft(opened)
    assert source is not None and draft is not None and draft.format == "sglang-ext"
    kept = (
        "num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
        "vocab_size", "draft_vocab_size", "capture_layers", "norm_before_residual", "sliding_window", "layer_type", "rope",
    )  # fmt: skip
    assert {k: getattr(draft.facts, k) for k in kept} == {k: getattr(source.facts, k) for k in kept}
    assert {k: bool(getattr(draft.facts, k)) for k in FLAGS} == {
        k: bool(getattr(source.facts, k)) for k in FLAGS
    }
    assert set(draft.tensors) == set(source.tensors)


FLAGS = ("norm_before_fc", "fc_norm", "norm_output", "attention_bias", "mlp_bias", "fc_bias")


def test_it_converts_back(tmp_path: Path) -> None:
    folder, _ = converted("bias", tmp_path)
    report = fix_keys(Request(str(folder), str(tmp_path / "back"), to="vllm", offline=True))
    assert report.verdict == "pass"
    config = json.loads((tmp_path / "back" / "config.json").read_text("utf-8"))
    assert config["attention_bias"] is True and config["architectures"] == ["Eagle3LlamaForCausalLM"]


def test_a_trained_embedding_is_said_and_an_fc_bias_has_its_own_name(tmp_path: Path) -> None:
    folder, _ = converted("nbr", tmp_path)
    config_file = tmp_path / "nbr-source" / "config.json"
    config = json.loads(config_file.read_text("utf-8")) | {"embed_requires_grad": True}
    config_file.write_text(json.dumps(config), "utf-8")
    report = fix_keys(
        Request(str(tmp_path / "nbr-source"), str(tmp_path / "own"), to="sglang-ext", offline=True)
    )
    assert report.verdict == "pass"
    written = json.loads((tmp_path / "own" / "config.json").read_text("utf-8"))
    assert written["embed_requires_grad"] is True and read_head(written).own_embedding
    assert "embed_requires_grad" not in json.loads((folder / "config.json").read_text("utf-8"))


def lost(code: str, facts: DraftFacts, *tensors: str) -> str | None:
    found = [
        m
        for limit in LIMITS
        if limit.code == code and (m := limit.lost(facts, dict.fromkeys(tensors, ""))) is not None
    ]
    return found[0] if found else None


PLAIN = DraftFacts(num_layers=1, hidden_size=64, num_aux=3, hidden_act="silu", layer_type="llama")
BIASES = tuple(f"layers.0.self_attn.{p}_proj.bias" for p in "qkvo")


@pytest.mark.parametrize(
    ("code", "changes", "tensors", "words"),
    [
        ("LAY004", {"layer_type": "mla"}, (), "MLA"),
        ("CFG006", {"hidden_act": "gelu"}, (), "gelu"),
        ("HED003", {"embed_requires_grad": True}, (), "no embed_tokens.weight to keep"),
        ("KEY005", {"attention_bias": True}, BIASES[:3], "layers.0.self_attn.o_proj.bias missing"),
        ("KEY005", {"attention_bias": True}, (), "attention_bias is True and the folder has 0"),
        (
            "KEY005",
            {"mlp_bias": None},
            tuple(f"layers.0.mlp.{p}_proj.bias" for p in ("gate", "up", "down")),
            "mlp_bias is False",
        ),
        ("CAP010", {"num_aux": 1}, (), "as wide as the draft"),
    ],
)
def test_limits(code: str, changes: dict[str, Any], tensors: tuple[str, ...], words: str) -> None:
    assert words in (lost(code, replace(PLAIN, **changes), *tensors) or "")


def test_what_sglang_cant_carry_isnt_a_limit_here() -> None:
    facts = replace(
        PLAIN, norm_before_residual=True, layer_type="qwen3", attention_bias=True, embed_requires_grad=True
    )
    names = (*BIASES, "embed_tokens.weight", "layers.0.self_attn.q_norm.weight")
    assert [m for limit in LIMITS if (m := limit.lost(facts, dict.fromkeys(names, ""))) is not None] == []
    assert len(LIMITS) < len(formats()["sglang"].limits) + 1
    assert ARCHITECTURE in str(FORMAT.variants[0].must[0].says)
