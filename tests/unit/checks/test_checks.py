"""Each check draws on what it is about and on nothing else: a sound draft is clean on every engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_tools.checks import base
from ckpt_tools.checks.base import Context, Hit, check, checks
from ckpt_tools.checks.runner import run_checks
from ckpt_tools.model import Finding, Rope, Severity, Target
from tests.drafts import (
    DFLASH,
    DFLASH_CONFIG,
    EAGLE1,
    EAGLE3,
    FLAT,
    LLAMA,
    A,
    D,
    F,
    H,
    K,
    V,
    W,
    checked,
    codes,
    context,
    draft,
    layer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINES = ("sglang", "sglang==0.5.12", "vllm")
E1S = {
    k: v
    for k, v in FLAT.items()
    if "eagle" not in k and k not in ("draft_vocab_size", "norm_before_residual")
} | {"architectures": ["LlamaForCausalLMEagle"]}
E1V = {**E1S, "architectures": ["EagleLlamaForCausalLM"]}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0", "dtype": "bfloat16",
    "draft_vocab_size": W, "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5], "tie_word_embeddings": False, "target_hidden_size": None,
    "speculators_config": {
        "algorithm": "eagle3", "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "default_proposal_method": "greedy", "verifier": {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": {
        k: v for k, v in FLAT.items()
        if "eagle" not in k and k not in ("draft_vocab_size", "architectures", "norm_before_residual")
    },
}  # fmt: skip
SP = {n.replace("midlayer.", "layers.0."): s for n, s in EAGLE3.items()} | {"embed_tokens.weight": (V, H)}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sound_draft_is_clean(engine: str) -> None:
    findings, _ = checked(draft(), engine, tp=2)
    assert codes(findings) == []


@pytest.mark.parametrize(
    ("engine", "config", "tensors"),
    [
        ("sglang", E1S, EAGLE1),
        ("vllm", E1V, {k: v for k, v in EAGLE1.items() if k != "fc.bias"}),
        ("sglang", DFLASH_CONFIG, DFLASH),
        ("vllm", DFLASH_CONFIG, DFLASH),
        ("vllm", SPECULATORS, SP),
    ],
)
def test_sound_drafts_of_other_kinds_are_clean(
    engine: str, config: dict[str, Any], tensors: dict[str, Any]
) -> None:
    findings, _ = checked(draft(config=config, tensors=tensors), engine)
    assert codes(findings) == []


def set_(**fields: Any) -> Any:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        for key, value in fields.items():
            c[key] = value

    return edit


def drop(*fields: str) -> Any:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        for key in fields:
            c.pop(key)

    return edit


def tensors(
    add: dict[str, tuple[int, ...]] | None = None, remove: tuple[str, ...] = (), **fields: Any
) -> Any:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        for name in remove:
            t.pop(name)
        t.update(add or {})
        c.update(fields)

    return edit


def rename(old: str, new: str) -> Any:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        for name in [n for n in t if n.startswith(old)]:
            t[new + name[len(old) :]] = t.pop(name)

    return edit


def nested(ids: Any, top: Any = None) -> Any:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        c["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids} if ids is not None else {}
        c.pop("eagle_aux_hidden_state_layer_ids")
        if top is not None:
            c["eagle_aux_hidden_state_layer_ids"] = top

    return edit


ONE_CAUSE: list[tuple[str, Any, list[str], list[str]]] = [
    # engine, edit, errors, warnings: exactly these
    ("sglang", set_(norm_before_residual=True), ["NRM001"], []),
    ("vllm", set_(norm_before_residual=True), [], []),
    ("sglang", tensors({"midlayer.self_attn.q_norm.weight": (D,), "midlayer.self_attn.k_norm.weight": (D,)}), ["NRM002"], []),
    ("sglang", set_(norm_before_fc=True), ["NRM003"], []),
    ("sglang", tensors({"input_norm.weight": (3 * H,)}), ["NRM004"], []),
    ("sglang", tensors({f"fc_norm.{j}.weight": (H,) for j in range(3)}), ["NRM004"], []),
    ("sglang", tensors({"input_norm.weight": (3 * H,)}, norm_before_fc=True), [], []),
    ("sglang==0.5.9", tensors({"input_norm.weight": (3 * H,)}, norm_before_fc=True), ["NRM005"], []),
    ("vllm==0.17.0", set_(norm_output=True), ["NRM005"], []),
    ("sglang", tensors(remove=("midlayer.hidden_norm.weight",)), ["NRM006"], []),
    ("sglang", rename("midlayer.", "decoder."), ["KEY001"], []),
    ("vllm", rename("midlayer.", "decoder."), ["KEY008"], []),
    ("sglang==0.5.9", rename("midlayer.", "layers.0."), ["KEY001"], []),
    ("sglang", rename("midlayer.", "layers.0."), [], []),
    ("sglang", tensors({"rotary_emb.inv_freq": (8,)}), [], []),
    ("sglang", tensors({"strange.weight": (8,)}), [], ["KEY001"]),
    ("sglang", tensors(remove=("fc.weight",)), ["KEY002"], []),
    ("sglang", tensors(remove=("midlayer.self_attn.k_proj.weight",)), ["KEY002"], []),
    ("vllm", tensors(remove=("midlayer.mlp.down_proj.weight",)), ["KEY002"], []),
    ("sglang", rename("", "_orig_mod."), ["KEY003"], []),
    ("sglang", rename("", "model."), ["KEY003"], []),  # its lm_head is looked for without the prefix
    ("sglang", rename("midlayer.", "model.midlayer."), [], []),
    ("vllm", rename("", "model."), ["KEY003"], []),
    ("sglang", tensors({"midlayer.self_attn.q_proj.bias": (A * D,)}), ["KEY005"], []),
    ("sglang", set_(tie_word_embeddings=True), ["HED002"], []),
    ("vllm", set_(tie_word_embeddings=True), [], []),
    ("sglang", tensors(remove=("lm_head.weight",)), ["HED001"], []),
    ("vllm", tensors(remove=("lm_head.weight",)), ["HED001"], []),
    ("sglang", drop("draft_vocab_size"), ["HED008"], []),
    ("vllm", drop("draft_vocab_size"), ["HED008"], []),
    ("sglang", tensors(remove=("d2t", "t2d")), ["VOC006"], []),
    ("vllm", tensors(remove=("d2t",)), ["VOC006"], []),
    ("sglang", set_(vocab_size=2048), ["VOC010"], ["VOC005"]),
    ("sglang", nested([1, 3, 3], [2, 4, 4]), ["CAP006"], []),
    ("sglang", nested([1, 3, 8], [2, 4, 9]), ["CAP005"], []),
    ("sglang", nested(None, [2, 3, 4]), ["CAP007"], []),
    ("sglang", nested(None, [2, 4, 5]), [], []),
    ("vllm", nested([1, 2, 3]), ["CAP007"], []),
    ("sglang", nested([2, 4, 5]), [], ["CAP008"]),
    ("vllm", nested(None), [], ["CAP009"]),
    ("sglang", nested(None), [], []),
    ("sglang", nested([4, 3, 1], [5, 4, 2]), [], ["CAP011"]),
    ("sglang==0.5.9", nested([1, 2, 3], [2, 3, 4]), ["CAP014"], []),
    ("sglang", set_(target_hidden_size=None), ["CFG005"], []),
    ("sglang", set_(hidden_act="gelu"), ["CFG006"], []),
    ("sglang", drop("model_type"), ["CFG002"], []),
    ("sglang", set_(model_type="unheard_of"), ["CFG002"], []),
    ("sglang", set_(architectures=["Unheard"]), ["CFG003"], []),
    ("vllm", set_(architectures=["EagleUnheard"]), ["CFG003"], []),
    ("sglang", set_(max_position_embeddings=128), ["CTX001"], []),
    ("vllm", set_(max_position_embeddings=128), [], ["CTX002"]),
    ("vllm", set_(max_position_embeddings=128, rope_scaling={"rope_type": "linear", "factor": 4.0}), [], []),
    ("vllm", set_(max_position_embeddings=128, rope_scaling={"rope_type": "linear", "factor": 2.0}), [], ["CTX002"]),
    ("sglang", set_(max_position_embeddings=128, rope_scaling={"rope_type": "linear", "factor": 4.0}), [], []),
    ("sglang", drop("dtype", "torch_dtype"), [], ["DTY001"]),
    ("sglang", set_(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}), ["ROP001"], []),
    ("sglang", set_(num_hidden_layers=4), ["LAY002"], []),
    ("sglang", tensors(layer("layers.1.", H) | {"layers.1.hidden_norm.weight": (H,)}), ["LAY003"], []),
    ("sglang", tensors({"fc.weight": (H, 4 * H)}), ["SHP001"], []),
    ("sglang", tensors({"midlayer.mlp.gate_proj.weight": (F - 32, H)}), ["SHP003"], []),
    ("sglang", drop("head_dim"), [], []),
    ("sglang", set_(quantization_config={"quant_method": "fp8"}), ["QNT002"], []),
    ("sglang", tensors({f"fc_norm.{j}.weight": (H,) for j in range(2)}, fc_norm=True), ["NRM003"], []),
    ("vllm", tensors({f"fc_norm.{j}.weight": (H,) for j in range(2)}, fc_norm=True), ["NRM003"], []),
    ("vllm", tensors({f"fc_norm.{j}.weight": (H,) for j in range(3)}, use_aux_norm=True), ["NRM005"], []),
    ("sglang", tensors({f"fc_norm.{j}.weight": (H,) for j in range(3)}, use_aux_norm=True), [], []),
    ("sglang", tensors({f"fc_norm.{j}.weight": (H,) for j in range(4)}, fc_norm=True), [], ["KEY001"]),
    ("vllm", tensors({f"aux_norm_{n}.weight": (H,) for n in ("low", "mid", "high")}, use_aux_norm=True), ["NRM005"], []),
    ("vllm==0.17.0", tensors({"input_norm.weight": (3 * H,)}, norm_before_fc=True), ["NRM005"], []),
    ("sglang", nested([1, 3, 4], [1, 3, 4]), [], ["CAP008"]),
    ("vllm", nested([1, 3, 4], [1, 3, 4]), [], ["CAP008"]),
    ("vllm", set_(eagle_config={"use_aux_hidden_state": False}), ["CAP013"], []),
    ("sglang", set_(eagle_config={"use_aux_hidden_state": False}), ["CAP013"], []),
    ("sglang==0.5.7", nested([1, 3, 4], [2, 4, 5]), [], []),
    ("sglang==0.4.6", nested([1, 2, 3], [2, 3, 4]), ["CAP007", "KEY002"], []),  # fc.bias is always there, too
    ("vllm==0.10.1", tensors(architectures=["Eagle3LlamaForCausalLM"], eagle_aux_hidden_state_layer_ids=[2, 3, 4]), ["CAP007"], []),
    ("sglang", rename("midlayer.", "layers.1."), ["LAY010"], []),
    ("vllm", rename("midlayer.", "layers.1."), ["LAY010"], []),
    ("sglang", tensors({"midlayer.mlp.gate_proj.weight": (F - 32, H), "midlayer.mlp.up_proj.weight": (F - 32, H)}), ["SHP003"], []),
    ("sglang", tensors({"norm.weight": (H // 2,), "midlayer.mlp.up_proj.weight": (F - 32, H)}), ["SHP003"], []),
    ("sglang", tensors(remove=("lm_head.weight",), draft_vocab_size=None), ["VOC013"], []),
    ("sglang", tensors(remove=("lm_head.weight", "d2t", "t2d"), draft_vocab_size=None), [], []),
    ("sglang==0.5.1", tensors(remove=("lm_head.weight", "d2t", "t2d"), draft_vocab_size=None), ["HED008"], []),
    ("sglang", set_(rope_scaling={"rope_type": "unheard_of", "factor": 2.0}), ["CFG002"], []),
    ("vllm", set_(rope_scaling={"rope_type": "unheard_of", "factor": 2.0}), ["CFG002"], []),
    ("vllm", set_(num_key_value_heads=3), ["SHP006"], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "edit", "errors", "warnings"), ONE_CAUSE, ids=lambda v: v if isinstance(v, str) else None
)
def test_one_cause_gives_one_code(engine: str, edit: Any, errors: list[str], warnings: list[str]) -> None:
    findings, _ = checked(draft(edit), engine)
    assert codes(findings, "error") == errors
    assert codes(findings, "warning") == warnings


def test_wrong_numbers_are_told_apart() -> None:
    edit = tensors(
        {
            "norm.weight": (H // 2,),
            "midlayer.hidden_norm.weight": (H // 2,),
            "midlayer.mlp.up_proj.weight": (F - 32, H),
        }
    )
    said = [f.message for f in checked(draft(edit))[0] if f.code == "SHP003"]
    assert len(said) == 2
    assert sum("and 1 more like it" in m for m in said) == 1


#: Faults that have nothing to do with each other: none may hide another.
INDEPENDENT = (
    ("NRM001", set_(norm_before_residual=True)),
    ("NRM003", set_(norm_before_fc=True)),
    ("NRM006", tensors(remove=("norm.weight",))),
    ("KEY002", tensors(remove=("fc.weight",))),
    ("KEY005", tensors({"midlayer.self_attn.q_proj.bias": (A * D,)})),
    ("HED001", tensors(remove=("lm_head.weight",))),
    ("VOC006", tensors(remove=("d2t", "t2d"))),
    ("CTX001", set_(max_position_embeddings=128)),
    ("SHP003", tensors({"midlayer.mlp.gate_proj.weight": (F - 32, H)})),
    ("LAY002", set_(num_hidden_layers=2)),
    ("CAP006", nested([1, 3, 3], [2, 4, 4])),
    ("ROP001", set_(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})),
)


@pytest.mark.parametrize(("one", "other"), list(combinations(INDEPENDENT, 2)), ids=lambda v: v[0])
def test_two_causes_give_two_codes(one: Any, other: Any) -> None:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        one[1](c, t)
        other[1](c, t)

    findings, _ = checked(draft(edit))
    assert codes(findings, "error") == sorted((one[0], other[0]))


def test_what_an_engine_says_while_building_is_about_the_config_and_not_the_name() -> None:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        del c["transformer_layer_config"]["rms_norm_eps"]

    findings, _ = checked(draft(edit, SPECULATORS, SP), "vllm")
    (found,) = [f for f in findings if f.severity.value == "error"]
    assert found.code == "CFG002"
    assert "cannot build the draft" in found.message
    assert "rms_norm_eps" in found.message


@pytest.mark.parametrize(
    ("target", "trained"),
    [
        (
            "DeepseekV3ForCausalLM",
            [2, 4, 5],
        ),  # takes ids as written unless the first is 1: both fields may hold the same
        (None, [2, 4, 5]),
    ],
)
def test_classes_that_take_ids_as_written_let_both_fields_agree(
    target: str | None, trained: list[int]
) -> None:
    who = None if target is None else replace(LLAMA, architectures=(target,))
    findings, _ = checked(draft(nested(trained, trained)), "vllm", who)
    assert "CAP008" not in codes(findings)


def test_a_class_that_shifts_its_default_layers_is_told_apart() -> None:
    minimax = replace(LLAMA, architectures=("MiniMaxM3SparseForConditionalGeneration",))
    findings, _ = checked(draft(nested(None)), "sglang", minimax)
    (found,) = [f for f in findings if f.code == "CAP009"]
    assert found.severity.value == "warning"
    assert "[2, 4, 5]" in found.message


MLA_CONFIG = {k: v for k, v in FLAT.items() if k != "head_dim"} | {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "q_lora_rank": 32, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "num_key_value_heads": A,
}  # fmt: skip
MLA = {n: s for n, s in EAGLE3.items() if "self_attn" not in n} | {
    "midlayer.self_attn.q_a_proj.weight": (32, 2 * H),
    "midlayer.self_attn.q_a_layernorm.weight": (32,),
    "midlayer.self_attn.q_b_proj.weight": (A * 64, 32),
    "midlayer.self_attn.kv_a_proj_with_mqa.weight": (96, 2 * H),
    "midlayer.self_attn.kv_a_layernorm.weight": (64,),
    "midlayer.self_attn.kv_b_proj.weight": (A * 64, 64),
    "midlayer.self_attn.o_proj.weight": (H, A * 32),
}


def test_an_mla_tensor_that_is_cut_is_found_through_the_load_map() -> None:
    sound, _ = checked(draft(config=MLA_CONFIG, tensors=MLA))
    assert codes(sound, "error") == []
    findings, _ = checked(
        draft(config=MLA_CONFIG, tensors=MLA | {"midlayer.self_attn.q_b_proj.weight": (2 * A * 64, 32)})
    )
    assert codes(findings, "error") == ["SHP008"]
    two, _ = checked(draft(set_(num_hidden_layers=2), config=MLA_CONFIG, tensors=MLA))
    assert codes(two, "error") == ["LAY002"]


def test_tables_that_are_no_tables() -> None:
    floats, _ = checked(draft(dtypes={"d2t": "F32"}), tables={"d2t": None})  # type: ignore[dict-item]
    assert codes(floats, "error") == ["VOC011"]
    cast, _ = checked(draft(dtypes={"d2t": "F32"}), "vllm", tables={"d2t": None})  # type: ignore[dict-item]
    assert codes(cast) == ["VOC011"]
    assert codes(cast, "error") == []
    short, _ = checked(draft(dtypes={"d2t": "I32"}))
    assert codes(short) == []


def test_a_zero_map_is_right_only_for_the_first_ids() -> None:
    zeros = (0,) * W
    first = tuple(int(i < W) for i in range(V))
    assert codes(checked(draft(), tables={"d2t": zeros})[0]) == ["VOC012"]
    assert codes(checked(draft(), tables={"d2t": zeros, "t2d": first})[0]) == []
    (found,) = [
        f for f in checked(draft(tensors(remove=("t2d",))), tables={"d2t": zeros})[0] if f.code == "VOC012"
    ]
    assert found.severity.value == "warning"


def test_float8_weights_without_a_config() -> None:
    findings, _ = checked(draft(dtypes={"midlayer.mlp.up_proj.weight": "F8_E4M3"}), "vllm")
    assert codes(findings, "error") == ["QNT001"]


def test_a_quantisation_config_that_ignores_every_layer_does_nothing() -> None:
    block = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["re:.*"],
        "config_groups": {"g": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}},
    }  # fmt: skip
    findings, _ = checked(draft(set_(quantization_config=block)))
    assert codes(findings) == []


def test_what_vllm_does_not_take_from_a_speculators_folder() -> None:
    def rope(c: dict[str, Any], t: dict[str, Any]) -> None:
        del c["transformer_layer_config"]["rope_theta"]

    assert codes(checked(draft(rope, SPECULATORS, SP), "vllm")[0]) == ["ROP007"]
    assert codes(checked(draft(config=SPECULATORS, tensors=SP), "vllm")[0]) == []
    peagle = SPECULATORS | {
        "speculators_model_type": "peagle",
        "mask_token_id": 7,
        "architectures": ["PEagleDraftModel"],
    }
    with_mask = SP | {"mask_hidden": (1, 1, 3 * H)}
    sound, _ = checked(draft(config=peagle, tensors=with_mask), "vllm")
    assert codes(sound) == []
    assert "PAR016" in codes(sound, "info")
    lost, _ = checked(draft(config=peagle | {"norm_output": True}, tensors=with_mask), "vllm")
    assert codes(lost) == ["NRM005"]


@pytest.mark.parametrize(
    ("verifier", "launch", "severity"),
    [
        ("org/model", None, None),
        ("/data/model", None, "info"),
        (None, None, "info"),
        ("/data/model", "draft", "error"),
        ("/data/model", "elsewhere", None),
        ("gpt2", "draft", None),
    ],
)
def test_a_speculators_folder_that_is_served_itself(
    verifier: str | None, launch: str | None, severity: str | None
) -> None:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        c["speculators_config"]["verifier"] = {
            "name_or_path": verifier,
            "architectures": ["LlamaForCausalLM"],
        }

    command = None
    if launch is not None:
        command = SimpleNamespace(
            model=launch, env={}, tp=None, context_length=None, given=lambda _n: False, value=lambda _n: None
        )
    findings, _ = checked(draft(edit, SPECULATORS, SP), "vllm", launch=command)
    found = [f.severity.value for f in findings if f.code == "CFG017"]
    assert found == ([severity] if severity is not None else [])


@pytest.mark.parametrize(
    ("stated", "launch", "standing", "says"),
    [
        (300, 200, 100, (300, "--context-length")),
        (None, 200, 100, (200, "the launch command")),
        (None, None, 100, (100, "the policy")),
        (None, None, None, (512, "the target tiny")),
    ],
)
def test_flags_go_before_the_launch_command_and_that_before_the_policy(
    stated: int | None, launch: int | None, standing: int | None, says: tuple[int, str]
) -> None:
    command = SimpleNamespace(context_length=launch)
    ctx = Context(draft(), target=LLAMA, launch=command, context_length=stated, standing_length=standing)  # type: ignore[arg-type]
    assert ctx.served == says
    assert Context(draft()).served is None


def test_head_dim_that_got_lost_is_said_with_its_value() -> None:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        c.pop("head_dim")
        for n, heads in (("q", A), ("k", K), ("v", K)):
            t[f"midlayer.self_attn.{n}_proj.weight"] = (heads * 24, 2 * H)
        t["midlayer.self_attn.o_proj.weight"] = (H, A * 24)

    findings, _ = checked(draft(edit))
    (found,) = [f for f in findings if f.code == "SHP002"]
    assert "96 rows = 4 x 24" in found.message
    assert found.hint == 'write "head_dim": 24'


@pytest.mark.parametrize(
    ("tables", "code"),
    [
        (
            {
                "d2t": tuple(range(3, 3 + 2 * W, 2)),
                "t2d": tuple(int(i in set(range(3, 3 + 2 * W, 2))) for i in range(V)),
            },
            "VOC001",
        ),
        ({"d2t": (300, *([0] * (W - 1)))}, "VOC002"),
        ({"d2t": (1, *([0] * (W - 1)))}, "VOC003"),
        ({"d2t": tuple([0] * 60)}, "VOC004"),
        ({"t2d": tuple([1] * 40 + [0] * (V - 40))}, "VOC005"),
    ],
)
def test_tables(tables: dict[str, tuple[int, ...]], code: str) -> None:
    findings, _ = checked(draft(), tables=tables)
    assert code in codes(findings)


def test_full_vocabulary_d2t_is_sglang_s_business_and_vllm_s_error() -> None:
    def full(c: dict[str, Any], t: dict[str, Any]) -> None:
        c["draft_vocab_size"] = V
        t["lm_head.weight"] = (V, H)
        t["d2t"] = (V,)

    rows = {"d2t": tuple([0] * V), "t2d": tuple([1] * V)}
    assert codes(checked(draft(full), "sglang", tables=rows)[0]) == []
    assert codes(checked(draft(full), "vllm", tables=rows)[0]) == ["VOC008"]


@pytest.mark.parametrize(
    ("served", "env", "expected"),
    [
        (None, {}, ["CTX001"]),
        (128, {}, []),
        (None, {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}, ["CTX001"]),
    ],
)
def test_context_length_by_flag_and_variable(
    served: int | None, env: dict[str, str], expected: list[str]
) -> None:
    launch = SimpleNamespace(
        engine="sglang", env=env, tp=None, context_length=served, given=lambda n: False, value=lambda n: None
    )
    findings, _ = checked(draft(set_(max_position_embeddings=128)), launch=launch)
    assert codes(findings) == expected
    if env:
        assert codes(findings, "warning") == ["CTX001"]
    if served:
        (info,) = [f for f in findings if f.code == "CTX001"]
        assert info.severity.value == "info"


def test_older_sglang_only_warned_of_a_short_context() -> None:
    findings, _ = checked(draft(set_(max_position_embeddings=128)), "sglang==0.4.10", replace(LLAMA))
    assert codes([f for f in findings if f.code == "CTX001"], "warning") == ["CTX001"]  # type: ignore[arg-type]


@pytest.mark.parametrize(("tp", "ok"), [(1, True), (2, True), (4, True), (3, False), (8, False)])
def test_tensor_parallel(tp: int, ok: bool) -> None:
    findings, _ = checked(draft(), tp=tp)
    assert codes(findings) == ([] if ok else ["TPX001"])


def test_the_target_decides_hooks_and_the_release_that_has_them() -> None:
    kimi = replace(LLAMA, architectures=("KimiK25ForConditionalGeneration",), id="kimi")
    old, _ = checked(draft(), "sglang==0.5.9", kimi)
    (found,) = [f for f in old if f.code == "ENG001"]
    assert "0.5.10" in (found.hint or "")
    new, _ = checked(draft(), "sglang", kimi)
    assert "ENG001" not in codes(new)
    assert any(f.code == "ENG005" and "0.5.10" in f.message for f in new)
    nothing, _ = checked(draft(), "sglang", replace(LLAMA, architectures=("MixtralForCausalLM",)))
    assert "ENG001" in codes(nothing, "error")


def test_rope_oddities_are_infos() -> None:
    target = replace(LLAMA, rope=Rope(5e6, {"rope_type": "llama3", "factor": 8.0}))
    findings, _ = checked(draft(), target=target)
    assert codes(findings) == []
    assert {"ROP003", "ROP004"} <= set(codes(findings, "info"))


def test_rope_parameters_alone_are_lost_on_older_releases() -> None:
    def only_new(c: dict[str, Any], t: dict[str, Any]) -> None:
        c.pop("rope_theta")
        c["rope_parameters"] = {"rope_theta": 5e6, "rope_type": "default"}

    assert "ROP002" in codes(checked(draft(only_new), "sglang==0.5.9")[0], "error")
    assert codes(checked(draft(only_new), "sglang")[0]) == []


def test_width_differences() -> None:
    wide = replace(LLAMA, hidden_size=128)
    other, _ = checked(draft(), target=wide)
    assert codes(other, "error") == ["SHP001"]

    def stated(c: dict[str, Any], t: dict[str, Any]) -> None:
        c["target_hidden_size"] = 128
        t["fc.weight"] = (H, 3 * 128)

    missing, _ = checked(draft(stated), target=wide)
    assert codes(missing, "error") == ["HED006"]
    own = draft(lambda c, t: (stated(c, t), t.update({"embed_tokens.weight": (V, H)}))[0])  # type: ignore[func-returns-value]
    assert codes(checked(own, target=wide)[0]) == []


def test_an_embedding_that_differs_is_compared_where_the_target_is_at_hand() -> None:
    with_embedding = draft(tensors({"embed_tokens.weight": (V, H)}))
    files = {"model.embed_tokens.weight": draft().tensors["norm.weight"]}
    differs, _ = checked(with_embedding, same=lambda a, b: False, target_tensors=None)
    assert codes(differs) == ["HED005"]
    equal, _ = checked(with_embedding, same=lambda a, b: True, target_tensors=files)
    assert codes(equal) == []


def test_a_draft_s_own_embedding_is_right_on_vllm_only_if_it_was_trained() -> None:
    with_embedding = draft(tensors({"embed_tokens.weight": (V, H)}))
    kept, _ = checked(with_embedding, "vllm", same=lambda a, b: False)
    assert codes(kept) == ["HED005"]
    peagle = SPECULATORS | {
        "speculators_model_type": "peagle",
        "mask_token_id": 7,
        "architectures": ["PEagleDraftModel"],
    }
    trained, _ = checked(
        draft(config=peagle, tensors=SP | {"mask_hidden": (1, 1, 3 * H)}), "vllm", same=lambda a, b: False
    )
    assert codes(trained) == []
    assert "HED005" in codes(trained, "info")


def test_heads_are_compared_by_shape_where_the_target_is_at_hand() -> None:
    whole = draft(tensors({"lm_head.weight": (V, H)}, remove=("d2t", "t2d"), draft_vocab_size=V))
    head = {"lm_head.weight": whole.tensors["lm_head.weight"]}
    assert codes(checked(whole, same=lambda a, b: True, target_tensors=head)[0]) == []
    padded = {"lm_head.weight": replace(head["lm_head.weight"], shape=(V + 64, H))}
    assert codes(checked(whole, same=lambda a, b: True, target_tensors=padded)[0]) == ["HED005"]
    assert codes(checked(draft(), same=lambda a, b: True, target_tensors=padded)[0]) == []


@pytest.mark.parametrize(
    ("edit", "engine", "errors", "warnings"),
    [
        (set_(dflash_config={"mask_token_id": 260, "target_layer_ids": [1, 3, 5]}), "sglang", ["PAR003"], []),
        (set_(dflash_config={"target_layer_ids": [1, 3, 5]}), "vllm", ["PAR004"], []),
        (set_(dflash_config={"target_layer_ids": [1, 3, 5]}), "sglang", [], ["PAR004"]),
        (set_(dflash_config={"mask_token_id": 250}), "sglang", ["PAR006"], []),
        (set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [1, 3, 3]}), "sglang", ["CAP006"], []),
        (set_(eos_token_id=250), "sglang", [], ["PAR005"]),
        (set_(sample_from_anchor=True), "sglang", ["PAR008"], []),
        (set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [1, 3, 8]}), "sglang", ["CAP005"], []),
        (set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [1, 3, 8]}), "vllm", ["CAP005"], []),
        (set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [1, 3, 7]}), "sglang", ["CAP005"], []),
        (set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [1, 3, 7]}), "vllm", [], []),
        (
            set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [-1, 3, 5]}),
            "sglang",
            ["CAP005"],
            [],
        ),
        (set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [-1, 3, 5]}), "vllm", [], []),
        (set_(dflash_config={"mask_token_id": 250, "target_layer_ids": [5, 3, 1]}), "vllm", [], ["CAP011"]),
        (set_(num_target_layers=36), "sglang", [], ["CAP016"]),
        (drop("block_size"), "sglang", [], ["PAR017"]),
        (drop("block_size"), "vllm", [], []),
        (set_(hidden_act="gelu"), "sglang", ["CFG006"], []),
        (set_(hidden_act="gelu"), "vllm", ["CFG006"], []),
        (set_(hidden_act="swigluoai"), "sglang", [], []),
        (set_(layer_types=["sliding_attention"], sliding_window=32), "sglang", ["CFG002"], []),
        (
            set_(layer_types=["sliding_attention"], sliding_window=32, use_sliding_window=True),
            "sglang",
            [],
            [],
        ),
        (set_(dflash_config=None), "vllm", ["CFG005"], []),
        (set_(vocab_size=248), "vllm", [], ["PAR007"]),
        (
            tensors(remove=("layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight")),
            "sglang",
            ["NRM006"],
            [],
        ),
        (set_(), "sglang==0.5.9", ["ENG003"], []),
        (
            set_(layer_types=["sliding_attention"], sliding_window=32, use_sliding_window=True),
            "sglang==0.5.12",
            [],
            ["LAY006"],
        ),
        (set_(is_causal=True), "sglang==0.5.16", [], ["LAY006"]),
        (set_(is_causal=True), "sglang", [], []),
    ],
)
def test_dflash(edit: Any, engine: str, errors: list[str], warnings: list[str]) -> None:
    findings, _ = checked(draft(edit, DFLASH_CONFIG, DFLASH), engine)
    assert codes(findings, "error") == errors
    assert codes(findings, "warning") == warnings


def test_speculators_on_sglang_is_refused_with_the_way_out() -> None:
    findings, _ = checked(draft(config=SPECULATORS, tensors=SP))
    (found,) = [f for f in findings if f.severity.value == "error"]
    assert found.code == "CFG002"
    assert found.fix is not None
    assert "fix-keys" in (found.hint or "")


def test_speculators_traps_on_vllm() -> None:
    unstated, _ = checked(draft(drop("norm_before_residual"), SPECULATORS, SP), "vllm")
    assert codes(unstated, "warning") == ["NRM007"]
    typed, _ = checked(draft(set_(model_type="llama"), SPECULATORS, SP), "vllm")
    assert codes(typed, "error") == ["CFG007"]
    legacy, _ = checked(
        draft(
            lambda c, t: c.update(speculators_version="0.4.0", eagle_aux_hidden_state_layer_ids=None),
            SPECULATORS,
            SP,
        ),
        "vllm",
    )
    assert "CAP012" in codes(legacy, "warning")
    named = replace(LLAMA, origin="registry", id="other-model", hf_repo="org/other")
    assert "CFG012" in codes(checked(draft(config=SPECULATORS, tensors=SP), "vllm", named)[0], "warning")


def test_eagle1_class_and_ties() -> None:
    plain, _ = checked(draft(set_(architectures=["Qwen2ForCausalLM"], model_type="qwen2"), E1S, EAGLE1))
    assert codes(plain, "error") == ["CFG004"]
    assert "Qwen2ForCausalLMEagle" in next(f.message for f in plain if f.code == "CFG004")
    tied, _ = checked(draft(set_(tie_word_embeddings=True), E1S, EAGLE1))
    assert codes(tied, "error") == ["HED002"]


def test_quantised_targets_and_drafts() -> None:
    fp8 = replace(LLAMA, quantization={"quant_method": "fp8"})
    plain, _ = checked(draft(), target=fp8)
    assert codes(plain) == []
    assert "QNT005" in codes(plain, "info")
    half, _ = checked(draft(set_(dtype="float16", torch_dtype="float16")), target=fp8)
    assert "QNT004" in codes(half, "warning")
    packed = draft(tensors({"midlayer.mlp.gate_proj.weight_scale": (1,)}))
    assert "QNT001" in codes(checked(packed)[0], "error")
    launch = SimpleNamespace(
        engine="sglang", env={}, tp=None, context_length=None,
        given=lambda n: n == "--quantization", value=lambda n: "fp8" if n == "--quantization" else None,
    )  # fmt: skip
    copied, _ = checked(draft(), launch=launch)
    assert "QNT003" in codes(copied, "warning")


def test_next_token_layers_of_a_target() -> None:
    config = {**{k: v for k, v in FLAT.items() if "eagle" not in k and "draft" not in k}, "architectures": ["Glm4MoeForCausalLM"],
              "model_type": "glm4_moe", "num_hidden_layers": 8, "num_nextn_predict_layers": 1}  # fmt: skip
    names = {f"model.layers.{i}.input_layernorm.weight": (H,) for i in range(8)} | {
        "model.embed_tokens.weight": (V, H)
    }
    missing, _ = checked(draft(config=config, tensors=names))
    assert codes(missing, "error") == ["MTP001"]
    there, _ = checked(draft(config=config, tensors={**names, "model.layers.8.eh_proj.weight": (H, 2 * H)}))
    assert "MTP001" not in codes(there)
    packed = {**config, "quantization_config": {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}}
    forgotten, _ = checked(
        draft(config=packed, tensors={**names, "mtp.layers.0.mlp.down_proj.weight": (H, F)})
    )
    assert "QNT006" in codes(forgotten, "error")
    under_mtp = {
        **config,
        "quantization_config": {"quant_method": "compressed-tensors", "ignore": ["re:mtp.*"]},
    }
    never_match, _ = checked(
        draft(config=under_mtp, tensors={**names, "mtp.layers.0.mlp.down_proj.weight": (H, F)})
    )
    assert "QNT006" in codes(never_match, "error")


def test_what_is_missing_is_skipped_with_a_reason() -> None:
    blind = Target(id="x", origin="registry")
    _, skipped = checked(draft(), target=blind)
    reasons = {s.code: s.reason for s in skipped}
    assert reasons["VOC010"] == "target x states no vocab_size"
    assert reasons["VAL001"] == "values are read with --deep"
    assert reasons["TPX001"] == "no --tp was given"
    _, without = checked(draft(), target=None)
    assert any(s.code == "SHP007" and "give --target" in s.reason for s in without)


def test_followers_say_what_explains_them() -> None:
    _, skipped = checked(draft(drop("model_type")))
    assert any(s.code == "KEY007" and s.reason.startswith("CFG") for s in skipped)


def test_an_undecided_list_is_an_info_with_what_the_engine_reads() -> None:
    findings, _ = checked(draft(nested([2, 5, 6])))
    (found,) = [f for f in findings if f.code == "CAP003"]
    assert found.severity.value == "info"
    assert "outputs of layers [2, 5, 6]" in found.message


def test_layers_and_windows() -> None:
    two = tensors(layer("layers.1.", H) | {"layers.1.hidden_norm.weight": (H,)}, num_hidden_layers=2)
    assert codes(checked(draft(two))[0]) == []
    assert codes(checked(draft(two), "sglang==0.5.9")[0], "error") == ["LAY005"]
    only_input = tensors(layer("layers.1.", H), num_hidden_layers=2)
    assert codes(checked(draft(only_input))[0], "error") == ["NRM006"]
    only_hidden = tensors(
        {n: s for n, s in layer("layers.1.", H).items() if "input_layernorm" not in n}
        | {"layers.1.hidden_norm.weight": (H,)},
        num_hidden_layers=2,
    )
    assert codes(checked(draft(only_hidden), "vllm")[0], "error") == ["NRM006"]
    window = set_(sliding_window=2048, use_sliding_window=True)
    assert codes(checked(draft(window))[0], "warning") == ["LAY006"]


def test_dtypes_of_tensors_are_an_info() -> None:
    single = draft(dtypes={n: "F32" for n in EAGLE3 if n not in ("d2t", "t2d")})
    findings, _ = checked(single)
    assert codes(findings) == []
    assert "DTY002" in codes(findings, "info")
    stated, _ = checked(
        draft(set_(dtype="float32", torch_dtype="float32")), target=replace(LLAMA, dtype="float16")
    )
    assert "DTY003" in codes(stated, "info")


def test_config_kinds_are_checked_against_the_schema() -> None:
    findings, _ = checked(draft(set_(rms_norm_eps="small")), "vllm")
    assert "CFG013" in codes(findings) or "CFG002" in codes(findings)


def test_a_defect_explains_followers_under_its_own_engine_alone() -> None:
    known = Finding("FIL015", "consolidated-copy", Severity.ERROR, "a copy", engine="vllm==0.33.0")
    edit = tensors(remove=("fc.weight",))
    contexts = [context(draft(edit), engine) for engine in ("sglang", "vllm")]
    found = run_checks(contexts, known=[known]).findings
    assert {(f.code, f.engine) for f in found if f.severity is Severity.ERROR} == {
        ("KEY002", "sglang==0.5.23")
    }


def test_what_one_engine_draws_twice_is_not_both_engines() -> None:
    @check("ZZZ999", "twice", Severity.ERROR, engines=("sglang",))
    def twice(ctx: Context) -> Iterator[Hit]:
        yield Hit("the same")
        yield Hit("the same")

    checks.cache_clear()
    try:
        contexts = [context(draft(), engine) for engine in ("sglang", "vllm")]
        found = run_checks(contexts, select=("ZZZ",)).findings
        assert {f.engine for f in found} == {"sglang==0.5.23"}
    finally:
        del base._REGISTRY["ZZZ999"]
        checks.cache_clear()


def test_dflash_ids_that_one_of_vllm_s_runners_does_not_find() -> None:
    def flat(c: dict[str, Any], t: dict[str, Any]) -> None:
        c["target_layer_ids"] = c["dflash_config"].pop("target_layer_ids")

    for edit in (flat, set_(eagle_config={"x": 1})):
        found, _ = checked(draft(edit, DFLASH_CONFIG, DFLASH), "vllm")
        assert codes(found) == []
        (said,) = [f for f in found if f.code == "CAP007"]
        assert "V1 runner" in said.message
    sound, _ = checked(draft(config=DFLASH_CONFIG, tensors=DFLASH), "vllm")
    assert "CAP007" not in codes(sound, "info")


@pytest.mark.parametrize(
    ("architectures", "text", "warned"),
    [
        (("LlamaForCausalLM",), ("LlamaForCausalLM",), False),
        (("LlavaForConditionalGeneration",), ("LlamaForCausalLM",), False),
        (("Qwen3ForCausalLM",), ("Qwen3ForCausalLM",), True),
        ((), (), False),
    ],
)
def test_a_local_target_of_another_class_than_the_draft_records(
    architectures: tuple[str, ...], text: tuple[str, ...], warned: bool
) -> None:
    target = replace(LLAMA, architectures=architectures, text_architectures=text)
    findings, _ = checked(draft(config=SPECULATORS, tensors=SP), "vllm", target)
    assert ("CFG012" in codes(findings, "warning")) is warned


def test_vllm_takes_the_length_of_the_config_s_class_where_none_is_stated() -> None:
    long = replace(LLAMA, max_position_embeddings=4096)
    (found,) = [
        f for f in checked(draft(drop("max_position_embeddings")), "vllm", long)[0] if f.code == "CTX002"
    ]
    assert "is absent, so 2048 by the config's class" in found.message
    assert codes(checked(draft(drop("max_position_embeddings")), "vllm")[0]) == []


@pytest.mark.parametrize(("ids", "errors"), [([1, 3, 4], ["CAP007"]), ([2, 4, 5], [])])
def test_peagle_s_nested_ids_are_read_by_the_v1_runner(ids: list[int], errors: list[str]) -> None:
    peagle = FLAT | {"architectures": ["Eagle3LlamaForCausalLM"], "ptd_token_id": 250}
    tensors_ = {n.replace("midlayer.", "layers.0."): s for n, s in EAGLE3.items()} | {
        "mask_hidden": (1, 1, 3 * H), "embed_tokens.weight": (V, H),
    }  # fmt: skip
    findings, _ = checked(draft(nested(ids), peagle, tensors_), "vllm")
    assert codes(findings) == errors


def test_a_refusal_by_an_older_release_names_the_one_that_serves_it() -> None:
    for engine, edit, config, names, needs in (
        ("sglang==0.5.9", None, MLA_CONFIG, MLA, "serve with sglang >= 0.5.12 (the MLA draft class)"),
        ("sglang==0.5.9", set_(num_hidden_layers=2), FLAT, EAGLE3, None),
    ):
        findings, _ = checked(draft(edit, config, names), engine)
        hints = [f.hint for f in findings if f.code in ("CFG002", "CFG003")]
        assert hints == ([needs] if needs else [])


@pytest.mark.parametrize("engine", ["vllm", "vllm==0.17.0"])
def test_an_mla_head_with_a_norm_that_its_class_has_not(engine: str) -> None:
    edit = tensors({"input_norm.weight": (3 * H,)}, norm_before_fc=True)
    findings, _ = checked(draft(edit, MLA_CONFIG, MLA), engine)
    assert [c for c in codes(findings, "error") if c.startswith(("NRM", "KEY"))] == ["NRM005"]


def test_two_mla_layers_in_the_file() -> None:
    second = {
        n.replace("midlayer.", "layers.1."): (s[0], H) if len(s) == 2 and s[1] == 2 * H else s
        for n, s in MLA.items()
        if n.startswith("midlayer.")
    }
    findings, _ = checked(draft(set_(num_hidden_layers=2), MLA_CONFIG, MLA | second))
    assert "LAY005" in codes(findings, "error")


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (nested([1, "x", 4], [2, 4, 5]), "CAP006"),
        (nested([1, -2, 4], [2, 4, 5]), "CAP006"),
        (set_(head_dim=None, num_attention_heads=5, num_key_value_heads=5), "SHP006"),
        (set_(target_hidden_size=128), "SHP001"),
    ],
)
def test_what_is_wrong_on_its_own(edit: Any, code: str) -> None:
    assert code in codes(checked(draft(edit))[0], "error")


def test_tensorrt_llm_is_told_its_layers_once() -> None:
    edit = nested(None, [2, 3, 4])
    findings, _ = checked(draft(edit), "trtllm")
    assert [f.code for f in findings if f.code == "CAP007"] == ["CAP007"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_stated_number_of_layers_without_their_ids(engine: str) -> None:
    def edit(c: dict[str, Any], t: dict[str, Any]) -> None:
        nested(None)(c, t)
        c["num_aux_hidden_states"] = 4
        t["fc.weight"] = (H, 4 * H)

    findings, _ = checked(draft(edit), engine)
    assert codes(findings, "error") == ["CAP010"]


REDUCED = DFLASH | {"lm_head.weight": (W, H), "d2t": (W,), "t2d": (V,)}


@pytest.mark.parametrize(
    ("engine", "remove", "errors"),
    [
        ("vllm", (), []),
        ("vllm", ("d2t", "t2d"), ["VOC006"]),
        ("vllm", ("lm_head.weight",), ["HED001"]),
        ("vllm", ("lm_head.weight", "d2t", "t2d"), ["VOC006"]),
        ("sglang", ("lm_head.weight", "d2t", "t2d"), []),  # it drafts with the target's whole head
    ],
)
def test_a_dflash_head_of_a_reduced_vocabulary_needs_its_tables_on_vllm(
    engine: str, remove: tuple[str, ...], errors: list[str]
) -> None:
    edit = tensors(remove=remove, draft_vocab_size=W)
    assert codes(checked(draft(edit, DFLASH_CONFIG, REDUCED), engine)[0], "error") == errors


def test_a_release_that_never_shares_the_head() -> None:
    whole = tensors(
        remove=("lm_head.weight", "d2t", "t2d"), draft_vocab_size=V, architectures=["Eagle3LlamaForCausalLM"]
    )
    assert codes(checked(draft(whole), "vllm==0.10.1")[0], "error") == ["HED001"]
    assert codes(checked(draft(whole), "vllm")[0], "error") == []


@pytest.mark.parametrize(
    ("edit", "errors"),
    [
        (nested([1, 3, 3], [2, 4, 4]), ["CAP006", "CFG002"]),
        (set_(num_attention_heads=5, num_key_value_heads=2), ["CFG002", "SHP006"]),
        (set_(hidden_act="gelu"), ["CFG002", "CFG006"]),
    ],
)
def test_a_refusal_about_something_else_is_told_beside(edit: Any, errors: list[str]) -> None:
    def both(c: dict[str, Any], t: dict[str, Any]) -> None:
        edit(c, t)
        c["model_type"] = "unheard_of"

    assert codes(checked(draft(both))[0], "error") == errors


def test_heads_that_only_the_config_s_class_refuses_are_told_by_the_refusal() -> None:
    findings, _ = checked(draft(set_(num_attention_heads=5, num_key_value_heads=5)))
    assert "CFG002" in codes(findings, "error")
