"""DFlash and DSpark drafts on SGLang: what the recorded cases don't reach."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_tools.engines import load_map, resolve
from ckpt_tools.engines.sglang.loadmap import parameter_shapes
from ckpt_tools.model import Checkpoint, FileInfo, LoadMap, TensorInfo

H, V = 64, 256
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": H, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": V, "hidden_act": "silu", "num_target_layers": 8,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 3, 5]},
}  # fmt: skip


def draft(
    shapes: dict[str, tuple[int, ...]], nested: dict[str, Any] | None = None, **extra: Any
) -> Checkpoint:
    tensors = {n: TensorInfo(n, "BF16", s, "model.safetensors", 0, 0) for n, s in shapes.items()}
    config = CONFIG | {"dflash_config": CONFIG["dflash_config"] | (nested or {})} | extra
    return Checkpoint(
        "d", "/drafts/d", config, "", tensors, (FileInfo("model.safetensors", 0, "safetensors"),)
    )


def mapped(checkpoint: Checkpoint, version: str = "0.5.23") -> LoadMap:
    return load_map(resolve(f"sglang=={version}", "test"), checkpoint)


def test_own_embedding_and_head_load_as_nothing() -> None:
    own = {"embed_tokens.weight": (V, H), "lm_head.weight": (V, H), "d2t": (128,)}
    found = mapped(draft({"fc.weight": (H, 3 * H)} | own))
    assert set(found.unused) == set(own)
    assert found.parameters["fc.weight"].filled_by == "checkpoint"
    assert "embed_tokens.weight" not in found.parameters


@pytest.mark.parametrize(
    ("nested", "extra", "says"),
    [
        ({"output_multiplier": 0}, {}, "output_multiplier must be positive"),
        ({"attention_value_scale": "x"}, {}, "attention_value_scale"),
        ({"projector_type": "domino", "emb_dim": 8}, {"emb_dim": 9}, "emb_dim differs"),
        (
            {
                "projector_type": "domino",
                "shift_label": True,
                "pure_draft_prefix_len": 1,
                "gru_hidden_dim": 8,
                "emb_dim": 8,
            },
            {"block_size": 1},
            "block_size > 1",
        ),
        ({"num_target_layers": "many"}, {}, "Invalid DFLASH num_target_layers='many'"),
        ({"num_target_layers": 0}, {}, "must be >= 1"),
        ({}, {"layer_types": ["chunked_attention"]}, "Unsupported DFLASH draft layer type"),
        ({}, {"architectures": ["DFlashLagunaForCausalLM"], "gating": "other"}, "gating must be one of"),
        ({"conv_kernel_size": 3, "conv_group_size": 7}, {}, "must divide"),
    ],
)
def test_what_the_class_refuses(nested: dict[str, Any], extra: dict[str, Any], says: str) -> None:
    found = mapped(draft({}, nested, **extra))
    assert found.stage == "class"
    assert found.refused is not None and found.refused.startswith("ValueError: ") and says in found.refused


def test_lagunas_gate_may_be_off() -> None:
    shapes = parameter_shapes(
        resolve("sglang", "test"), draft({}, architectures=["DFlashLagunaForCausalLM"], gating=False)
    )
    assert "layers.0.self_attn.g_proj.weight" not in shapes
    assert shapes["aux_hidden_norms.2.weight"] == (H,)


def test_more_layers_than_layer_types_on_a_class_that_does_not_count_them() -> None:
    found = mapped(draft({}, model_type="kimi_k2", num_hidden_layers=2, layer_types=["full_attention"]))
    assert found.refused is not None and "one entry per draft layer" in found.refused


@pytest.mark.parametrize(("version", "used"), [("0.5.16", False), ("0.5.18", True)])
def test_the_encoders_names_since_0_5_18(version: str, used: bool) -> None:
    found = mapped(draft({"encoder.fc.weight": (H, 3 * H)}), version)
    assert (found.unused == ()) == used


def test_dflash_is_unknown_before_0_5_11() -> None:
    found = mapped(draft({}), "0.5.10")
    assert found.refused is not None and "Cannot find model module" in found.refused


def test_the_markov_head_is_read_last_and_strictly() -> None:
    markov = {"markov_head.markov_w1.weight": (V, 16), "markov_head.markov_w2.weight": (V, 16)}
    given = {"architectures": ["Qwen3DSparkModel"], "markov_rank": 16, "markov_head_type": "vanilla"}
    assert mapped(draft(markov, **given)).unused == ()
    found = mapped(draft(markov | {"markov_head.x": (1,)}, **given))
    assert (found.stage, found.refused) == (
        "load",
        "ValueError: DSpark unexpected markov weight 'markov_head.x' not found in model parameters.",
    )
