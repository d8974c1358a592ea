"""DFlash, DFlash-2 and DSpark drafts in vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm.loadmap import load_map
from tests.unit.engines.vllm_drafts import (
    INTER,
    VD,
    H,
    V,
    checkpoint,
    config,
    eagle3,
    mapped,
    speculators,
    target,
)


def dflash(**changes: Any) -> dict[str, Any]:
    """A plain DFlash config with two captured layers."""
    return (
        config(
            architectures=["DFlashDraftModel"], model_type="qwen3", dflash_config={"target_layer_ids": [1, 2]}
        )
        | changes
    )


def table(layers: int = 1) -> dict[str, tuple[int, ...]]:
    """The tensors of a DFlash draft."""
    out: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, 2 * H), "hidden_norm.weight": (H,), "norm.weight": (H,), "lm_head.weight": (VD, H), "d2t": (VD,), "t2d": (V,),
    }  # fmt: skip
    for i in range(layers):
        out |= {
            f"layers.{i}.self_attn.q_proj.weight": (128, H), f"layers.{i}.self_attn.k_proj.weight": (64, H),
            f"layers.{i}.self_attn.v_proj.weight": (64, H), f"layers.{i}.self_attn.o_proj.weight": (H, 128),
            f"layers.{i}.self_attn.q_norm.weight": (32,), f"layers.{i}.self_attn.k_norm.weight": (32,),
            f"layers.{i}.mlp.gate_proj.weight": (INTER, H), f"layers.{i}.mlp.up_proj.weight": (INTER, H),
            f"layers.{i}.mlp.down_proj.weight": (H, INTER), f"layers.{i}.input_layernorm.weight": (H,),
            f"layers.{i}.post_attention_layernorm.weight": (H,),
        }  # fmt: skip
    return out


def test_a_whole_draft_leaves_only_the_mask_embedding() -> None:
    found = mapped(dflash(), table())
    assert found.refused is None
    assert found.architecture == "DFlashQwen3ForCausalLM"
    assert {n for n, f in found.parameters.items() if f.filled_by not in ("checkpoint", "target")} == {
        "model.mask_embedding"
    }
    assert found.parameters["model.mask_embedding"].filled_by == "default"
    assert found.unused == ("t2d",)


def test_the_side_file_fills_the_mask_embedding() -> None:
    settings = dflash(dflash_config={"target_layer_ids": [1, 2], "mask_token_id": 5})
    draft = checkpoint(settings, table(), "mask_embedding.pt")
    found = load_map(resolve("vllm", "--engine"), draft, target())
    assert found.parameters["model.mask_embedding"].sources == ("mask_embedding.pt",)


def test_names_of_other_frameworks_are_renamed() -> None:
    moved = {n.replace("layers.0.", "midlayer."): s for n, s in table().items()}
    moved["encoder.fc.weight"] = moved.pop("fc.weight")
    moved["encoder.output_norm_enc.weight"] = moved.pop("hidden_norm.weight")
    assert mapped(dflash(), moved).refused is None


@pytest.mark.parametrize(
    ("settings", "extra", "message"),
    [
        (dflash(), {"mask_hidden": (1,)}, "AssertionError: DFlash embeds masked slots via mask_token_id"),
        (dflash(dflash_config=None), {}, "TypeError: 'NoneType' object is not iterable"),
        (dflash(eagle_config=None), {}, "AttributeError: 'NoneType' object has no attribute 'update'"),
        (
            dflash(dflash_config={}),
            {},
            "Tried to load weights of size torch.Size([64, 128])to a parameter of size torch.Size([64, 64])",
        ),
        (dflash(dflash_config={"use_swa": True}), {}, "DFlash sliding attention requires a window size"),
        (dflash(model="x"), {}, "AttributeError: 'str' object has no attribute 'model_type'"),
    ],
)
def test_a_draft_is_refused(
    settings: dict[str, Any], extra: dict[str, tuple[int, ...]], message: str
) -> None:
    assert message in str(mapped(settings, table() | extra).refused)


def test_switches() -> None:
    sink = {"target_layer_ids": [1, 2], "attention_sink_bias": True}
    found = mapped(dflash(dflash_config=sink), table())
    assert found.parameters["model.layers.0.self_attn.attention_sink_bias"].filled_by == "nothing"
    off = mapped(dflash(use_aux_hidden_state=False), table())
    assert "model.fc.weight" not in off.parameters
    assert "fc.weight" in off.unused
    biased = mapped(dflash(attention_bias=True), table())
    assert biased.parameters["model.layers.0.self_attn.o_proj.bias"].filled_by == "nothing"


def test_mixed_windows_need_v2() -> None:
    mixed = dflash(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=8,
        use_sliding_window=True,
    )
    assert mapped(mixed, table(2)).refused is None
    assert "Model Runner V1 does not support: mixed sliding/full dflash drafts" in str(
        mapped(mixed, table(2), runner="V1").refused
    )
    as_eagle = speculators("dflash", {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "sliding_window": 8},
                           mask_token_id=1, aux_hidden_state_layer_ids=[1, 2])  # fmt: skip
    assert "NotImplementedError" in str(mapped(as_eagle, table(2), method="eagle3", runner="V1").refused)
    short = speculators("dflash", {"layer_types": []}, mask_token_id=1, aux_hidden_state_layer_ids=[1, 2])
    assert mapped(short, table()).stage == "config"


def two(**changes: Any) -> dict[str, Any]:
    """A speculators DFlash-2 config."""
    return speculators(
        "dflash2", mask_token_id=1, aux_hidden_state_layer_ids=[1, 2], draft_vocab_size=V,
        **({"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4} | changes),
    )  # fmt: skip


def test_dflash2_adds_convolutions_and_a_selector() -> None:
    rest = {n: s for n, s in table().items() if n not in ("d2t", "t2d", "lm_head.weight")}
    extra = {
        "candidate_selector.predecessor_codebook": (V, 8), "candidate_selector.successor_codebook": (V, 8),
        "candidate_selector.hidden_projection.weight": (8, H),
        "layers.0.mlp_conv.base_kernel": (2, 2, H), "layers.0.mlp_conv.kernel_projection.weight": (16, H),
    }  # fmt: skip
    found = mapped(two(), rest | extra)
    assert found.refused is None
    assert found.architecture == "DFlash2Qwen3ForCausalLM"
    assert found.parameters["model.layers.0.attention_conv.base_kernel"].filled_by == "nothing"
    assert found.parameters["model.layers.0.mlp_conv.base_kernel"].filled_by == "checkpoint"
    assert "conv_group_size=7 must divide hidden_size=64" in str(mapped(two(conv_group_size=7), rest).refused)
    assert mapped(two(conv_kernel_size=...), rest).refused == "KeyError: 'conv_kernel_size'"
    assert "DFlash candidate-head drafts" in str(mapped(two(), rest, runner="V1").refused)


def dspark(**changes: Any) -> dict[str, Any]:
    """A speculators DSpark config."""
    return speculators(
        "dspark", mask_token_id=1, aux_hidden_state_layer_ids=[1, 2], **({"markov_rank": 8} | changes)
    )


HEADS: dict[str, tuple[int, ...]] = {
    "markov_head.markov_w1.weight": (V, 8),
    "markov_head.markov_w2.weight": (VD, 8),
}


def test_dspark_is_checked_for_completeness() -> None:
    found = mapped(dspark(), table() | HEADS)
    assert found.refused is None
    assert found.architecture == "Qwen3DSparkForCausalLM"
    for name, message in (
        ("lm_head.weight", "must include lm_head weights"),
        ("d2t", "must include a d2t mapping"),
    ):
        assert message in str(
            mapped(dspark(), {n: s for n, s in (table() | HEADS).items() if n != name}).refused
        )
    assert "must include embed_tokens weights" in str(
        mapped(dspark(), table() | HEADS, target=target(vocab_size=200)).refused
    )
    assert (
        mapped(dspark(markov_rank=...), table()).refused
        == "AttributeError: 'SpeculatorsConfig' object has no attribute 'markov_rank'"
    )
    assert "dspark speculative decoding" in str(mapped(dspark(), table() | HEADS, runner="V1").refused)


def test_dsparks_confidence_head_exists_only_with_its_tensors() -> None:
    head = {"confidence_head.proj.weight": (1, H + 8), "confidence_head.proj.bias": (1,)}
    with_markov = dspark(enable_confidence_head=True, confidence_head_with_markov=True)
    found = mapped(with_markov, table() | HEADS | head)
    assert found.parameters["model.confidence_head.proj.bias"].filled_by == "checkpoint"
    assert not any("confidence" in n for n in mapped(with_markov, table() | HEADS).parameters)
    assert "confidence_head.proj.weight" in mapped(dspark(), table() | HEADS | head).unused


def test_eagle3_tensors_in_a_dflash_draft_raise() -> None:
    assert mapped(dflash(), eagle3()).stage == "load"
