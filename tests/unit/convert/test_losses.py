"""What formats leave open, imply, reorder and repair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.convert.repairs import REPAIRS
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Report
from tests.conftest import FIXTURES

torch = pytest.importorskip("torch", reason="torch is absent: values are compared with torch's")
from safetensors.torch import load_file, save_file  # noqa: E402

FORMATS = FIXTURES / "formats"
TARGET = str(FIXTURES / "models" / "llama_tiny")


def codes(report: Report, severity: str = "error") -> list[str]:
    return [f.code for f in report.findings if f.severity.value == severity]


def edited(
    tmp_path: Path, sample: str, /, *, drop: tuple[str, ...] = (), tensors: Any = None, **changes: Any
) -> Path:
    place = tmp_path / "in"
    shutil.copytree(FORMATS / sample, place)
    config = json.loads((place / "config.json").read_text())
    config.update(changes)
    for name in drop:
        config.pop(name)
    (place / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        save_file(
            tensors(load_file(place / "model.safetensors")), place / "model.safetensors", {"format": "pt"}
        )
    return place


def config_of(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def test_rows_in_frequency_order_are_put_in_the_mask_s_order(tmp_path: Path) -> None:
    source = FORMATS / "modelopt" / "eagle3_tiny"
    before = load_file(source / "model.safetensors")
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="speculators", target=TARGET))
    assert report.verdict == "pass"
    assert "VOC007" in codes(report, "info")
    after = load_file(tmp_path / "out" / "model.safetensors")
    rows = torch.arange(128)
    was, now = before["d2t"] + rows, after["d2t"] + rows
    assert not bool((was[1:] > was[:-1]).all())
    assert bool((now[1:] > now[:-1]).all())
    assert torch.equal(after["t2d"].nonzero().squeeze(), now)
    # Every target id keeps the row of the head that it had.
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"][was.argsort()])
    kept = fix_keys(Request(str(source), str(tmp_path / "sg"), target=TARGET))
    assert "VOC007" not in codes(kept, "info")
    assert torch.equal(load_file(tmp_path / "sg" / "model.safetensors")["d2t"], before["d2t"])


def test_a_cast_and_a_reorder_go_together(tmp_path: Path) -> None:
    source = FORMATS / "modelopt" / "eagle3_tiny"
    before = load_file(source / "model.safetensors")
    fix_keys(Request(str(source), str(tmp_path / "out"), to="speculators", target=TARGET, dtype="fp32"))
    after = load_file(tmp_path / "out" / "model.safetensors")
    order = (before["d2t"] + torch.arange(128)).argsort()
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"][order].to(torch.float32))


def test_absolute_ids_beside_nemo_s_weights_become_offsets(tmp_path: Path) -> None:
    source = FORMATS / "nemo" / "eagle3_tiny"
    ids = torch.load(source / "eagle_meta.pt", weights_only=True)["selected_token_ids"]
    assert fix_keys(Request(str(source), str(tmp_path / "out"), target=TARGET)).verdict == "pass"
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["d2t"], ids - torch.arange(128))
    assert not (tmp_path / "out" / "eagle_meta.pt").exists()


@pytest.mark.parametrize("name", ["vocab_mapping.pt", "cache.pt", "vocab_mapping_cache.pt"])
def test_a_vocabulary_mapping_beside_the_weights_is_read(name: str, tmp_path: Path) -> None:
    def without(tensors: Any) -> Any:
        return {n: t for n, t in tensors.items() if n not in ("d2t", "t2d")}

    source = edited(tmp_path, "specforge/eagle3_tiny", tensors=without)
    refused = fix_keys(Request(str(source), str(tmp_path / "none")))
    assert "VOC006" in codes(refused)
    tables = load_file(FORMATS / "specforge" / "eagle3_tiny" / "model.safetensors")
    torch.save({n: tables[n] for n in ("d2t", "t2d")}, source / name)
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="specforge"))
    assert report.verdict == "pass"
    made = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(made["d2t"], tables["d2t"])
    assert torch.equal(made["t2d"], tables["t2d"])


def test_a_damaged_side_file_is_no_table(tmp_path: Path) -> None:
    source = edited(tmp_path, "modelopt/eagle3_megatron_tiny")
    (source / "d2t.pt").write_bytes(b"nothing")
    assert "VOC006" in codes(fix_keys(Request(str(source), str(tmp_path / "out"))))


def test_the_base_of_training_is_stated_where_the_config_is_silent(tmp_path: Path) -> None:
    source = edited(tmp_path, "angelslim/eagle3_tiny", drop=("rope_theta",))
    report = fix_keys(Request(str(source), str(tmp_path / "out")))
    assert "CFG016" in codes(report, "info")
    assert config_of(tmp_path / "out")["rope_theta"] == 10000.0
    assert config_of(tmp_path / "out")["rope_parameters"]["rope_theta"] == 10000.0


def test_another_base_than_training_s_is_said_and_repaired_when_asked(tmp_path: Path) -> None:
    source = FORMATS / "angelslim" / "eagle3_tiny"
    said = fix_keys(Request(str(source), str(tmp_path / "as-it-is")))
    assert "ROP005" in codes(said, "warning")
    assert config_of(tmp_path / "as-it-is")["rope_theta"] == 1e6
    mended = fix_keys(Request(str(source), str(tmp_path / "mended"), repairs=("rope-10000",)))
    assert "ROP005" not in codes(mended, "warning")
    assert config_of(tmp_path / "mended")["rope_theta"] == 10000.0


def test_multimodal_rope_is_left_alone(tmp_path: Path) -> None:
    scaling = {"rope_type": "mrope", "mrope_section": [2, 3, 3]}
    source = edited(tmp_path, "angelslim/eagle3_tiny", rope_scaling=scaling)
    report = fix_keys(Request(str(source), str(tmp_path / "out"), repairs=("rope-10000",)))
    assert config_of(tmp_path / "out")["rope_theta"] == 1e6
    assert "ROP005" not in codes(report, "warning")


def test_tied_flags_of_angelslim_are_written_false_and_said(tmp_path: Path) -> None:
    report = fix_keys(Request(str(FORMATS / "angelslim" / "eagle3_tiny"), str(tmp_path / "out")))
    assert "HED002" in codes(report, "info")
    assert config_of(tmp_path / "out")["tie_word_embeddings"] is False


def test_specforge_s_norm_output(tmp_path: Path) -> None:
    source = edited(tmp_path, "specforge/eagle3_tiny", norm_output=True)
    said = fix_keys(Request(str(source), str(tmp_path / "on")))
    assert "NRM008" in codes(said, "warning")
    assert config_of(tmp_path / "on")["norm_output"] is True
    off = fix_keys(Request(str(source), str(tmp_path / "off"), repairs=("norm-output-off",)))
    assert "NRM008" not in codes(off, "warning")
    assert "norm_output" not in config_of(tmp_path / "off")
    bare = edited(tmp_path / "bare", "specforge/eagle3_tiny", norm_output=False)
    assert codes(fix_keys(Request(str(bare), str(tmp_path / "none")))) == ["NRM009"]


def test_model_optimizer_s_doubled_norm_is_folded_with_its_stated_error(tmp_path: Path) -> None:
    source = FORMATS / "modelopt" / "eagle3_tiny"
    assert "NRM010" in codes(fix_keys(Request(str(source), str(tmp_path / "plain"))), "warning")
    report = fix_keys(Request(str(source), str(tmp_path / "out"), repairs=("modelopt-double-norm",)))
    assert report.verdict == "pass"
    assert "NRM010" not in codes(report, "warning")
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    inner = before["layers.0.input_layernorm.weight"].double()
    outer = before["layers.0.hidden_norm.weight"].double()
    folded = after["midlayer.hidden_norm.weight"].double()
    state = torch.randn(400, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(7))

    def norm(x: Any, gain: Any) -> Any:
        return x / x.pow(2).mean(-1, keepdim=True).sqrt() * gain

    trained, served = norm(norm(state, inner), outer), norm(state, folded)
    cosine = torch.nn.functional.cosine_similarity(trained, served, dim=-1)
    plain = torch.nn.functional.cosine_similarity(trained, norm(state, outer), dim=-1)
    assert float(cosine.min()) > 0.99999  # bfloat16 gains
    assert float(plain.mean()) < float(cosine.mean())
    assert float((served.norm(dim=-1) / trained.norm(dim=-1) - 1).abs().max()) < 0.07
    assert torch.equal(after["midlayer.input_layernorm.weight"], before["layers.0.input_layernorm.weight"])
    assert "direction exact" in REPAIRS["modelopt-double-norm"].error


def test_model_optimizer_s_vllm_script_and_its_flag(tmp_path: Path) -> None:
    source = edited(tmp_path, "modelopt/eagle3_tiny", norm_before_residual=True)
    said = fix_keys(Request(str(source), str(tmp_path / "on"), to="vllm", target=TARGET))
    assert "NRM012" in codes(said, "warning")
    assert config_of(tmp_path / "on")["norm_before_residual"] is True
    mended = fix_keys(
        Request(str(source), str(tmp_path / "off"), to="vllm", target=TARGET, repairs=("raw-residual",))
    )
    assert mended.verdict == "pass"
    assert config_of(tmp_path / "off")["norm_before_residual"] is False


def test_a_target_s_quantisation_over_plain_tensors_stays_behind(tmp_path: Path) -> None:
    source = edited(tmp_path, "specforge/eagle3_tiny", quantization_config={"quant_method": "fp8"})
    report = fix_keys(Request(str(source), str(tmp_path / "out")))
    assert "QNT002" in codes(report, "info")
    assert "quantization_config" not in config_of(tmp_path / "out")
    (edit,) = [
        e for e in report.facts["plan"]["config"]["edits"] if e["pointer"].startswith("/quantization_config")
    ]
    assert "plain" in edit["reason"]


def test_a_draft_that_samples_from_its_anchor_is_refused_by_dflash_formats(tmp_path: Path) -> None:
    source = edited(tmp_path, "speculators/dflash_tiny", sample_from_anchor=True)
    for to in ("sglang", "vllm", "z-lab"):
        assert "PAR008" in codes(fix_keys(Request(str(source), str(tmp_path / to), to=to)))
    assert fix_keys(Request(str(source), str(tmp_path / "sp"), to="speculators")).verdict == "pass"


@pytest.mark.parametrize(
    ("ids", "to", "expected"),
    [
        ([0, 4, 5], "sglang", "CAP002"),
        ([0, 4, 5], "z-lab", "CAP002"),
        ([0, 4, 5], "vllm", "CAP002"),
        ([2, 4, 8], "sglang", "CAP002"),
        ([2, 4, 8], "vllm", None),
        ([2, 4, 9], "vllm", "CAP002"),
        ([2, 4, 7], "sglang", None),
    ],
)
def test_ids_of_dflash_count_outputs_and_stop_where_the_engine_does(
    ids: list[int], to: str, expected: str | None, tmp_path: Path
) -> None:
    source = edited(tmp_path, "speculators/dflash_fullvocab_tiny", aux_hidden_state_layer_ids=ids)
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to=to, target=TARGET))
    if expected is not None:
        assert codes(report) == [expected]
        return
    assert report.verdict == "pass"
    assert config_of(tmp_path / "out")["dflash_config"]["target_layer_ids"] == [i - 1 for i in ids]


def test_the_last_layer_is_a_warning_where_no_engine_is_meant(tmp_path: Path) -> None:
    source = edited(tmp_path, "speculators/dflash_fullvocab_tiny", aux_hidden_state_layer_ids=[2, 4, 8])
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="z-lab", target=TARGET))
    assert report.verdict == "pass"
    assert "CAP002" in codes(report, "warning")


def test_eagle_s_own_format_takes_its_default_layers_alone(tmp_path: Path) -> None:
    source = FORMATS / "vllm" / "eagle3_tiny"
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="safeailab", target=TARGET))
    assert report.verdict == "pass"
    assert "CAP009" in codes(report, "info")
    back = fix_keys(Request(str(tmp_path / "out"), str(tmp_path / "back"), to="vllm", target=TARGET))
    assert config_of(tmp_path / "back")["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert "CFG016" in codes(back, "info")
    other = edited(tmp_path, "vllm/eagle3_tiny", eagle_aux_hidden_state_layer_ids=[2, 4, 6])
    assert codes(fix_keys(Request(str(other), str(tmp_path / "none"), to="safeailab", target=TARGET))) == [
        "CAP002"
    ]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "ROP006"),
        ({"partial_rotary_factor": 0.5}, "ROP006"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, None),
        ({"norm_output": True}, "NRM005"),
        ({"norm_before_residual": True}, "NRM001"),
        ({"hidden_act": "gelu"}, "CFG006"),
    ],
)
def test_what_eagle_s_own_code_can_t_be_told(
    changes: dict[str, Any], code: str | None, tmp_path: Path
) -> None:
    source = edited(tmp_path, "vllm/eagle3_tiny", **changes)
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="safeailab", target=TARGET))
    if code is None:
        assert report.verdict == "pass"
        assert config_of(tmp_path / "out")["rope_scaling"] == {"type": "linear", "factor": 2.0}
        draft = read_draft(open_checkpoint(tmp_path / "out"))
        assert draft is not None
        assert draft.facts.rope is not None
        assert draft.facts.rope.scaling == {"rope_type": "linear", "factor": 2.0}
    else:
        assert codes(report) == [code]


def test_eagle_s_zero_bias_comes_and_goes(tmp_path: Path) -> None:
    source = FORMATS / "tiny" / "eagle1-vllm"
    there = fix_keys(Request(str(source), str(tmp_path / "sg"), to="sglang"))
    (made,) = there.facts["plan"]["synthesised"]
    assert made["tensor"] == "fc.bias"
    assert "zeros" in made["how"]
    bias = load_file(tmp_path / "sg" / "model.safetensors")["fc.bias"]
    assert not bool(bias.any())
    back = fix_keys(Request(str(tmp_path / "sg"), str(tmp_path / "back"), to="vllm"))
    assert back.verdict == "pass"
    assert "fc.bias" not in load_file(tmp_path / "back" / "model.safetensors")
    assert "bias" not in config_of(tmp_path / "sg")


def test_a_head_of_its_own_is_dropped_only_when_it_is_the_target_s(tmp_path: Path) -> None:
    refused = fix_keys(Request(str(FORMATS / "vllm" / "dflash_tiny"), str(tmp_path / "a"), to="z-lab"))
    assert codes(refused) == ["HED009"]
    frozen = fix_keys(Request(str(FORMATS / "speculators" / "dflash_tiny"), str(tmp_path / "b"), to="z-lab"))
    assert frozen.verdict == "pass"
    assert "HED009" in codes(frozen, "info")
    assert not {"lm_head.weight", "d2t", "t2d"} & set(load_file(tmp_path / "b" / "model.safetensors"))


def test_a_trained_head_of_the_whole_vocabulary_shows_against_the_target(tmp_path: Path) -> None:
    theirs = load_file(Path(TARGET) / "model.safetensors")["lm_head.weight"]
    source = edited(
        tmp_path,
        "speculators/dflash_fullvocab_tiny",
        tensors=lambda t: {**t, "lm_head.weight": theirs.clone()},
    )
    assert fix_keys(Request(str(source), str(tmp_path / "same"), to="z-lab", target=TARGET)).verdict == "pass"
    other = edited(
        tmp_path / "o",
        "speculators/dflash_fullvocab_tiny",
        tensors=lambda t: {**t, "lm_head.weight": theirs + 1},
    )
    report = fix_keys(Request(str(other), str(tmp_path / "no"), to="z-lab", target=TARGET))
    assert codes(report) == ["HED009"]
    assert "differs" in next(f.message for f in report.findings if f.code == "HED009")


def test_windows_of_dflash_in_three_spellings(tmp_path: Path) -> None:
    source = FORMATS / "modelopt" / "dflash_tiny"
    assert fix_keys(Request(str(source), str(tmp_path / "z"), to="z-lab")).verdict == "pass"
    flat = config_of(tmp_path / "z")
    assert (flat["sliding_window"], flat["use_sliding_window"], flat["is_causal"]) == (8, True, False)
    assert (
        fix_keys(Request(str(tmp_path / "z"), str(tmp_path / "s"), to="speculators", target=TARGET)).verdict
        == "pass"
    )
    assert config_of(tmp_path / "s")["sliding_window_non_causal"] is True
    causal = edited(tmp_path, "z-lab/dflash_tiny", is_causal=True)
    assert codes(fix_keys(Request(str(causal), str(tmp_path / "no"), to="speculators", target=TARGET))) == [
        "LAY007"
    ]
    assert fix_keys(Request(str(causal), str(tmp_path / "yes"), to="vllm", target=TARGET)).verdict == "pass"
    assert config_of(tmp_path / "yes")["is_causal"] is True


def test_a_window_counted_from_the_anchor_is_said_where_engines_count_from_the_slot(tmp_path: Path) -> None:
    source = FORMATS / "speculators" / "dflash_tiny"
    report = fix_keys(Request(str(source), str(tmp_path / "z"), to="z-lab"))
    (found,) = [f for f in report.findings if f.code == "LAY009"]
    assert "at most 3 of 8" in found.message
    assert "LAY009" not in codes(
        fix_keys(Request(str(source), str(tmp_path / "s"), to="speculators")), "warning"
    )
    full = FORMATS / "z-lab" / "dflash_tiny"
    assert "LAY009" not in codes(fix_keys(Request(str(full), str(tmp_path / "f"), to="sglang")), "warning")


def test_full_attention_is_written_so_that_vllm_keeps_it_bidirectional(tmp_path: Path) -> None:
    source = FORMATS / "z-lab" / "dflash_tiny"
    fix_keys(Request(str(source), str(tmp_path / "out"), to="speculators", target=TARGET))
    assert config_of(tmp_path / "out")["sliding_window_non_causal"] is True


def test_a_fact_without_a_field_refuses_and_is_named(tmp_path: Path) -> None:
    source = edited(tmp_path, "specforge/eagle3_tiny")
    config = config_of(source)
    config["eagle_config"]["use_aux_hidden_state"] = False
    (source / "config.json").write_text(json.dumps(config))
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="modelopt"))
    (found,) = [f for f in report.findings if f.code == "CFG014" and f.severity.value == "error"]
    assert found.message.startswith("last_hidden_alone")
    kept = fix_keys(Request(str(source), str(tmp_path / "sg"), to="sglang"))
    assert kept.verdict == "pass"
    assert config_of(tmp_path / "sg")["eagle_config"]["use_aux_hidden_state"] is False


def test_peagle_s_facts_come_from_the_training_state(tmp_path: Path) -> None:
    draft = read_draft(open_checkpoint(FORMATS / "specforge" / "peagle_state_tiny"))
    assert draft is not None
    assert draft.facts.mask_token_id == 255
    assert draft.facts.norm_before_residual is False
    assert draft.facts.embed_requires_grad is True
    source = FORMATS / "specforge" / "peagle_state_tiny"
    fix_keys(Request(str(source), str(tmp_path / "v"), to="vllm", target=TARGET))
    config = config_of(tmp_path / "v")
    assert (config["parallel_drafting"], config["ptd_token_id"]) == (True, 255)
    assert config["architectures"] == ["Eagle3LlamaForCausalLM"]


def test_a_parallel_draft_without_its_mask_token_is_refused(tmp_path: Path) -> None:
    source = edited(tmp_path, "vllm/peagle_tiny", drop=("ptd_token_id",))
    assert codes(fix_keys(Request(str(source), str(tmp_path / "out"), to="vllm"))) == ["PAR004"]


def test_a_gated_markov_head_goes_to_sglang_and_not_to_vllm(tmp_path: Path) -> None:
    source = FORMATS / "modelopt" / "dspark_tiny"
    assert codes(fix_keys(Request(str(source), str(tmp_path / "v"), to="vllm"))) == ["PAR014"]
    assert fix_keys(Request(str(source), str(tmp_path / "s"), to="sglang")).verdict == "pass"
    config = config_of(tmp_path / "s")
    assert (config["markov_head_type"], config["markov_rank"], config["sample_from_anchor"]) == (
        "gated",
        8,
        True,
    )
    assert "markov_head.gate_proj.weight" in load_file(tmp_path / "s" / "model.safetensors")


def test_every_repair_says_what_it_does_and_costs() -> None:
    for name, repair in REPAIRS.items():
        assert repair.name == name
        assert len(repair.help) > 20
        assert repair.error


def test_hass_norms_have_no_engine(tmp_path: Path) -> None:
    def normed(tensors: Any) -> Any:
        return {**tensors, "embedding_layernorm.weight": torch.ones(64, dtype=torch.bfloat16)}

    source = edited(tmp_path, "speculators/eagle_tiny", tensors=normed)
    for to in ("sglang", "vllm"):
        assert codes(fix_keys(Request(str(source), str(tmp_path / to), to=to))) == ["NRM011"]
    gone = fix_keys(Request(str(source), str(tmp_path / "sp"), to="speculators"))
    assert codes(gone) == ["PAR001"]
    assert "removed EAGLE-1 in 0.7" in gone.findings[-1].message or any(
        "0.7" in f.message for f in gone.findings
    )


def test_eagle_with_attention_biases_is_qwen2_s_class_on_sglang(tmp_path: Path) -> None:
    def biased(tensors: Any) -> Any:
        rows = {"q": 128, "k": 64, "v": 64}
        extra = {
            f"layers.0.self_attn.{p}_proj.bias": torch.ones(n, dtype=torch.bfloat16) for p, n in rows.items()
        }
        return {**tensors, **extra}

    source = edited(tmp_path, "tiny/eagle1-vllm", tensors=biased, attention_bias=True)
    assert fix_keys(Request(str(source), str(tmp_path / "s"), to="sglang")).verdict == "pass"
    assert config_of(tmp_path / "s")["architectures"] == ["Qwen2ForCausalLMEagle"]
    assert config_of(tmp_path / "s")["attention_bias"] is True
    assert fix_keys(Request(str(source), str(tmp_path / "v"), to="vllm")).verdict == "pass"
    assert config_of(tmp_path / "v")["attention_bias"] is True


def test_a_silent_dspark_export_is_stated_as_its_readers_take_it(tmp_path: Path) -> None:
    old = edited(tmp_path, "speculators/dspark_tiny", drop=("sample_from_anchor",))
    report = fix_keys(Request(str(old), str(tmp_path / "old"), to="vllm"))
    assert "CFG016" in codes(report, "info")
    assert config_of(tmp_path / "old")["sample_from_anchor"] is False
    plain = edited(tmp_path / "p", "sglang/dspark_tiny", drop=("sample_from_anchor",))
    fix_keys(Request(str(plain), str(tmp_path / "new"), to="vllm"))
    assert config_of(tmp_path / "new")["sample_from_anchor"] is True
    refused = edited(tmp_path / "r", "sglang/dspark_tiny", sample_from_anchor=False)
    assert codes(fix_keys(Request(str(refused), str(tmp_path / "sf"), to="specforge"))) == ["PAR013"]


def test_a_softcap_has_no_field_in_speculators(tmp_path: Path) -> None:
    source = edited(tmp_path, "z-lab/dflash2_tiny")
    config = config_of(source)
    config["dflash_config"]["final_logit_softcapping"] = 30.0
    (source / "config.json").write_text(json.dumps(config))
    assert codes(fix_keys(Request(str(source), str(tmp_path / "s"), to="speculators", target=TARGET))) == [
        "PAR012"
    ]
    assert fix_keys(Request(str(source), str(tmp_path / "v"), to="vllm")).verdict == "pass"
    assert config_of(tmp_path / "v")["dflash_config"]["final_logit_softcapping"] == 30.0


def test_heads_that_the_config_leaves_out_come_from_the_tensors(tmp_path: Path) -> None:
    source = edited(tmp_path, "specforge/eagle3_tiny", drop=("head_dim", "num_key_value_heads"))
    assert fix_keys(Request(str(source), str(tmp_path / "out"))).verdict == "pass"
    config = config_of(tmp_path / "out")
    assert (config["head_dim"], config["num_key_value_heads"]) == (16, 2)


def test_captured_layers_must_be_stated_for_dflash(tmp_path: Path) -> None:
    source = edited(tmp_path, "z-lab/dflash_tiny", dflash_config={"mask_token_id": 255})
    assert codes(fix_keys(Request(str(source), str(tmp_path / "out"), to="vllm"))) == ["PAR006"]


def test_an_embedding_that_a_format_has_no_room_for_has_to_be_the_target_s(tmp_path: Path) -> None:
    theirs = load_file(Path(TARGET) / "model.safetensors")["model.embed_tokens.weight"]
    for name, tensor, expected in (("same", theirs.clone(), []), ("other", theirs + 1, ["HED003"])):
        source = edited(
            tmp_path / name,
            "speculators/eagle3_tiny",
            tensors=lambda t, e=tensor: {**t, "embed_tokens.weight": e},
        )
        report = fix_keys(Request(str(source), str(tmp_path / name / "out"), to="modelopt", target=TARGET))
        assert codes(report) == expected
    trained = edited(tmp_path / "t", "speculators/eagle3_tiny", embed_requires_grad=True)
    assert codes(fix_keys(Request(str(trained), str(tmp_path / "t" / "out"), to="modelopt"))) == ["HED003"]


def test_a_count_of_no_next_token_layers_becomes_theirs() -> None:
    from ckpt_tools.convert.stitch import stitched_config

    assert stitched_config({"num_nextn_predict_layers": 0, "a": 1}, 1) == {
        "num_nextn_predict_layers": 1,
        "a": 1,
    }
    assert stitched_config({"a": 1}, 1) == {"a": 1}


class TestTablesBeside:
    SAMPLE = FORMATS / "speculators" / "eagle3_tiny"

    def draft(self, tmp_path: Path, *, tables: bool) -> Path:
        place = tmp_path / "in"
        shutil.copytree(self.SAMPLE, place)
        if not tables:
            weights = load_file(place / "model.safetensors")
            kept = {n: t for n, t in weights.items() if n not in ("d2t", "t2d")}
            save_file(kept, place / "model.safetensors", {"format": "pt"})
        return place

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        place = self.draft(tmp_path, tables=False)
        (place / "vocab_mapping.pt").write_bytes(b"junk")
        report = fix_keys(Request(str(place), str(tmp_path / "out")))
        (found,) = [f for f in report.findings if f.severity.value == "error"]
        assert found.code == "VOC006"
        assert "vocab_mapping.pt can't be read" in found.message

    def test_another_file_makes_up_for_a_damaged_one(self, tmp_path: Path) -> None:
        place = self.draft(tmp_path, tables=False)
        (place / "vocab_mapping.pt").write_bytes(b"junk")
        torch.save(load_file(self.SAMPLE / "model.safetensors")["d2t"], place / "d2t.pt")
        assert fix_keys(Request(str(place), str(tmp_path / "out"))).verdict == "pass"

    @pytest.mark.parametrize("to", ["sglang", "speculators"])
    def test_a_file_that_contradicts_the_weights_is_said(self, to: str, tmp_path: Path) -> None:
        place = self.draft(tmp_path, tables=True)
        mine = load_file(place / "model.safetensors")["d2t"]
        torch.save({"d2t": mine * 0}, place / "vocab_mapping.pt")
        report = fix_keys(Request(str(place), str(tmp_path / "out"), to=to))
        assert report.verdict == "pass"
        (found,) = [f for f in report.findings if f.code == "VOC005"]
        assert "vocab_mapping.pt holds another d2t" in found.message
        assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["d2t"], mine)
        torch.save({"d2t": mine}, place / "vocab_mapping.pt")
        again = fix_keys(Request(str(place), str(tmp_path / "out"), to=to, force=True))
        assert "VOC005" not in [f.code for f in again.findings]
