"""A draft that is broken in itself is refused, whatever it is converted to, and never passed on in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.api.inspecting import inspect
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.errors import InputError, UsageError
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Report
from tests.conftest import FIXTURES

SPECULATORS = FIXTURES / "formats" / "speculators"
TARGET = str(FIXTURES / "models" / "llama_tiny")
Config = dict[str, Any]
Tensors = dict[str, Any]


def draft(
    tmp_path: Path,
    config: Callable[[Config], object] | None = None,
    tensors: Callable[[Tensors], object] | None = None,
    sample: str = "eagle3_tiny",
) -> str:
    place = tmp_path / "in"
    shutil.copytree(SPECULATORS / sample, place)
    read = json.loads((place / "config.json").read_text())
    if config is not None:
        config(read)
        (place / "config.json").write_text(json.dumps(read))
    if tensors is not None:
        weights = load_file(place / "model.safetensors")
        tensors(weights)
        save_file(weights, place / "model.safetensors", {"format": "pt"})
    return str(place)


def refusals(report: Report) -> dict[str, str]:
    return {f.code: f.message for f in report.findings if f.severity.value == "error"}


def decoder(**fields: Any) -> Callable[[Config], object]:
    return lambda c: c["transformer_layer_config"].update(fields)


def top(**fields: Any) -> Callable[[Config], object]:
    return lambda c: c.update(fields)


@pytest.mark.parametrize("to", ["sglang", "vllm", "dual"])
@pytest.mark.parametrize(
    ("config", "code", "says"),
    [
        (top(eagle_aux_hidden_state_layer_ids=["2", "4", "5"]), "CAP006", "'2', which is no integer"),
        (top(eagle_aux_hidden_state_layer_ids=[2, 2, 5]), "CAP006", "holds 2 twice"),
        (top(eagle_aux_hidden_state_layer_ids=[-1, 4, 5]), "CAP006", "holds -1"),
        (top(eagle_aux_hidden_state_layer_ids=[]), "CFG013", "would be taken as not stated"),
        (top(eagle_aux_hidden_state_layer_ids=[2, 5]), "SHP001", "states 2 captured layers"),
        (top(norm_before_residual="true"), "CFG013", "/norm_before_residual: 'true'"),
        (decoder(hidden_size="64"), "CFG013", "/transformer_layer_config/hidden_size: '64'"),
        (decoder(rope_parameters="default"), "CFG013", "/transformer_layer_config/rope_parameters"),
        (decoder(rope_parameters={"rope_theta": "1e6"}), "CFG013", "rope_parameters"),
        (decoder(num_hidden_layers=2), "LAY002", "holds 1 decoder layer"),
        (top(norm_before_fc=True), "KEY009", "input_norm.weight isn't there"),
        (top(fc_norm=True), "KEY009", "fc_norm.0.weight, fc_norm.1.weight, fc_norm.2.weight aren't there"),
    ],
)
def test_what_the_config_gets_wrong(
    config: Callable[[Config], object], code: str, says: str, to: str, tmp_path: Path
) -> None:
    report = fix_keys(Request(draft(tmp_path, config), str(tmp_path / "out"), to=to))
    assert list(refusals(report)) == [code]
    assert says in refusals(report)[code]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize(
    ("name", "value", "code", "says"),
    [
        ("layers.0.mlp.up_proj.weight", None, "KEY009", "layers.0.mlp.up_proj.weight isn't there"),
        ("lm_head.weight", None, "KEY009", "lm_head.weight isn't there"),
        ("lm_head.weight", np.ones((100, 64), "f4"), "SHP003", "is [100, 64], expected [128, 64]"),
        ("fc.weight", np.ones((64, 100), "f4"), "SHP001", "isn't a multiple of 64"),
        ("d2t", np.zeros((128, 1), "i8"), "VOC004", "I64 [128, 1], expected integers in one dimension"),
        ("d2t", np.zeros(128, "f4"), "VOC004", "F32 [128], expected integers"),
        ("layers.0.mlp.up_proj.weight", np.ones((128, 64), "i1"), "QNT001", "quantised tensors"),
    ],
)
def test_what_the_tensors_get_wrong(
    name: str, value: Any, code: str, says: str, to: str, tmp_path: Path
) -> None:
    def change(tensors: Tensors) -> None:
        tensors.pop(name)
        if value is not None:
            tensors[name] = value

    report = fix_keys(Request(draft(tmp_path, tensors=change), str(tmp_path / "out"), to=to, target=TARGET))
    assert list(refusals(report)) == [code]
    assert says in refusals(report)[code]
    (found,) = [f for f in report.findings if f.code == code]
    assert found.location.file == (None if value is None else "model.safetensors")
    assert found.location.tensor == name


def test_layers_that_the_config_does_not_count(tmp_path: Path) -> None:
    source = draft(tmp_path, decoder(num_hidden_layers=1), sample="eagle3_2layer_tiny")
    assert list(refusals(fix_keys(Request(source, str(tmp_path / "out"))))) == ["LAY003"]


def test_a_norm_whose_flag_is_off(tmp_path: Path) -> None:
    source = draft(tmp_path, top(norm_before_fc=False), sample="eagle3_nbf_normout_tiny")
    assert list(refusals(fix_keys(Request(source, str(tmp_path / "out"))))) == ["NRM004"]


def test_a_broken_draft_is_let_through_by_name_alone(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors.pop("layers.0.mlp.up_proj.weight")

    source = draft(tmp_path, tensors=change)
    report = fix_keys(Request(source, str(tmp_path / "out"), allow=("KEY009",)))
    assert report.verdict == "pass"
    assert "allowed: layers.0.mlp.up_proj.weight" in next(
        f.message for f in report.findings if f.code == "KEY009"
    )


def test_nulls_and_absent_fields_are_no_defects(tmp_path: Path) -> None:
    unset = decoder(head_dim=None, num_key_value_heads=None, intermediate_size=None, rope_parameters=None)
    assert refusals(fix_keys(Request(draft(tmp_path, unset), str(tmp_path / "out")))) == {}
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (made["head_dim"], made["num_key_value_heads"], made["intermediate_size"]) == (16, 2, 128)


def test_another_target_s_width_is_said(tmp_path: Path) -> None:
    report = fix_keys(Request(draft(tmp_path), str(tmp_path / "out"), target="kimi-k2.5"))
    assert report.verdict == "pass"
    assert [f.severity.value for f in report.findings if f.code == "SHP001"] == ["warning"]


def test_a_quantised_draft_s_config_is_not_lost_in_silence(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["layers.0.self_attn.q_proj.weight_scale"] = np.ones(1, "f4")

    source = draft(tmp_path, top(quantization_config={"quant_method": "fp8"}), change)
    report = fix_keys(Request(source, str(tmp_path / "out")))
    assert list(refusals(report)) == ["QNT001"]
    (found,) = [f for f in report.findings if f.code == "QNT001"]
    assert found.location.pointer == "/quantization_config"
    plain = draft(tmp_path / "plain", top(quantization_config={"quant_method": "fp8"}))
    said = fix_keys(Request(plain, str(tmp_path / "out")))
    assert [f.code for f in said.findings if f.code.startswith("QNT")] == ["QNT002"]


class TestRope:
    def converted(self, tmp_path: Path, **fields: Any) -> tuple[Report, Config]:
        report = fix_keys(Request(draft(tmp_path, decoder(**fields)), str(tmp_path / "out")))
        made = tmp_path / "out" / "config.json"
        return report, json.loads(made.read_text()) if made.exists() else {}

    def test_two_spellings_that_differ_are_said(self, tmp_path: Path) -> None:
        report, made = self.converted(
            tmp_path, rope_theta=10000.0, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}
        )
        assert [f.severity.value for f in report.findings if f.code == "ROP001"] == ["warning"]
        assert made["rope_theta"] == made["rope_parameters"]["rope_theta"] == 5e5

    def test_one_rope_per_kind_of_layer(self, tmp_path: Path) -> None:
        kinds = {
            "full_attention": {"rope_theta": 5e5, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
        report, made = self.converted(tmp_path, rope_parameters=kinds, layer_types=["full_attention"])
        assert refusals(report) == {}
        assert made["rope_theta"] == 5e5
        assert made["rope_parameters"] == {"rope_theta": 5e5, "rope_type": "default"}

    def test_ropes_that_differ_are_refused(self, tmp_path: Path) -> None:
        kinds = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}
        report, _ = self.converted(tmp_path, rope_parameters=kinds, layer_types=None)
        assert list(refusals(report)) == ["ROP006"]


class TestCaptureRange:
    @pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
    def test_a_layer_that_the_target_lacks(self, to: str, tmp_path: Path) -> None:
        source = draft(tmp_path, top(eagle_aux_hidden_state_layer_ids=[2, 4, 99]))
        report = fix_keys(Request(source, str(tmp_path / "out"), to=to, target=TARGET))
        assert "the output of layer 98 (counted from 0)" in refusals(report)["CAP002"]

    def test_the_last_layer_is_vllm_s(self, tmp_path: Path) -> None:
        depth = json.loads((Path(TARGET) / "config.json").read_text())["num_hidden_layers"]
        source = draft(tmp_path, top(eagle_aux_hidden_state_layer_ids=[2, 4, depth]))
        assert list(refusals(fix_keys(Request(source, str(tmp_path / "a"), target=TARGET)))) == ["CAP002"]
        assert refusals(fix_keys(Request(source, str(tmp_path / "b"), to="vllm", target=TARGET))) == {}


class TestTables:
    def test_a_mask_of_some_ids_is_no_whole_vocabulary(self, tmp_path: Path) -> None:
        def change(tensors: Tensors) -> None:
            tensors.pop("d2t")
            tensors["lm_head.weight"] = np.ones((256, 64), "f4")

        source = draft(tmp_path, top(draft_vocab_size=256), change)
        said = refusals(fix_keys(Request(source, str(tmp_path / "out"))))
        assert list(said) == ["VOC005"]
        assert "t2d selects 128 of 256" in said["VOC005"]

    def test_repaired_ids_are_checked_as_offsets(self, tmp_path: Path) -> None:
        def change(tensors: Tensors) -> None:
            tensors["d2t"] = tensors["d2t"] + np.arange(128)
            tensors["t2d"] = np.arange(256) < 128

        source = draft(tmp_path, tensors=change)
        repaired = Request(source, str(tmp_path / "out"), to="speculators", repairs=("d2t-absolute",))
        assert list(refusals(fix_keys(repaired))) == ["VOC005"]


class TestTwoNames:
    def served(self, tmp_path: Path, sample: str, change: Callable[[Tensors], object]) -> str:
        """A folder in SGLang's format, with something changed."""
        assert fix_keys(Request(str(SPECULATORS / sample), str(tmp_path / "sg"))).verdict == "pass"
        file = tmp_path / "sg" / "model.safetensors"
        weights = load_file(file)
        change(weights)
        save_file(weights, file, {"format": "pt"})
        return str(tmp_path / "sg")

    def test_equal_twins_go(self, tmp_path: Path) -> None:
        source = self.served(tmp_path, "eagle3_2layer_tiny", lambda t: None)
        report = fix_keys(Request(source, str(tmp_path / "out"), to="speculators", target=TARGET))
        assert refusals(report) == {}
        assert "layers.1.hidden_norm.weight" not in load_file(tmp_path / "out" / "model.safetensors")

    @pytest.mark.parametrize(
        ("sample", "name", "twin"),
        [
            ("eagle3_2layer_tiny", "layers.1.input_layernorm.weight", "layers.1.hidden_norm.weight"),
            ("eagle3_tiny", "layers.0.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight"),
        ],
    )
    def test_twins_that_differ_are_refused(self, sample: str, name: str, twin: str, tmp_path: Path) -> None:
        def change(weights: Tensors) -> None:
            weights[name] = weights[twin] * 2

        report = fix_keys(Request(self.served(tmp_path, sample, change), str(tmp_path / "out"), to="vllm"))
        assert f"{name} and {twin} are two names of one tensor" in refusals(report)["KEY004"]

    def test_a_twin_in_vllm_s_folder_is_compared_too(self, tmp_path: Path) -> None:
        def change(weights: Tensors) -> None:
            weights["layers.1.hidden_norm.weight"] = weights["layers.1.input_layernorm.weight"] * 2

        source = draft(tmp_path, tensors=change, sample="eagle3_2layer_tiny")
        report = fix_keys(Request(source, str(tmp_path / "out")))
        assert "readers of this format take layers.1.input_layernorm.weight" in refusals(report)["KEY004"]


def test_unknown_tensors_are_one_finding(tmp_path: Path) -> None:
    def change(weights: Tensors) -> None:
        for n in [n for n in weights if n.startswith("layers.0.self_attn")]:
            weights[f"inner.{n}"] = weights.pop(n)

    report = fix_keys(Request(draft(tmp_path, tensors=change), str(tmp_path / "out")))
    assert list(refusals(report)) == [
        "KEY004"
    ]  # that they are missing under their own names is the same cause
    assert "and 1 more have no place" in refusals(report)["KEY004"]


def test_a_cast_that_overflows_is_a_refusal(tmp_path: Path) -> None:
    def change(weights: Tensors) -> None:
        weights["norm.weight"] = np.full(64, -1e6, "f4")

    report = fix_keys(Request(draft(tmp_path, tensors=change), str(tmp_path / "out"), dtype="fp16"))
    assert report.verdict == "fail"
    assert "a value of 1e+06 doesn't fit float16" in refusals(report)["VAL005"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_a_training_output_gives_the_line_to_type(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(SPECULATORS / "eagle3_tiny", run / "3")
    (run / "run.yaml").write_text("train: {}\n")
    with pytest.raises(InputError, match="output folder of a speculators training run") as caught:
        fix_keys(Request(str(run), "my out"))
    assert caught.value.hint == f"ckpt fix-keys {run}/3 'my out'  # the newest; the run marks no best one"
    with pytest.raises(InputError, match="no such file or folder"):
        fix_keys(Request(str(tmp_path / "nothing"), "out"))
    (run / "3" / "val_metrics.json").write_text("{")
    report = inspect(str(run))
    assert [(f.code, f.severity.value, f.location.file) for f in report.findings] == [
        ("FIL021", "warning", f"{run}/3/val_metrics.json")
    ]
    (run / "3" / "val_metrics.json").write_text('{"a_epoch": 1, "loss_epoch": 2}')
    (epoch,) = inspect(str(run)).facts["training_output"]["epochs"]
    assert list(epoch["metrics"]) == ["loss_epoch", "a_epoch"]


class TestParallelDrafting:
    SAMPLE = SPECULATORS / "peagle_tiny"

    @pytest.mark.parametrize("to", ["sglang", "dual", "safeailab"])
    def test_refused_with_the_reason_and_where_to_go(self, to: str, tmp_path: Path) -> None:
        report = fix_keys(Request(str(self.SAMPLE), str(tmp_path / "out"), to=to))
        assert list(refusals(report)) == ["PAR001"]
        (found,) = [f for f in report.findings if f.code == "PAR001"]
        assert "implements no parallel drafting" in found.message
        assert found.hint is not None and found.hint.startswith(
            "--to specforge or --to speculators or --to vllm"
        )
        assert not (tmp_path / "out").exists()

    def test_let_through_by_name_it_is_an_eagle3_head(self, tmp_path: Path) -> None:
        allowed = ("PAR001", "HED003", "NRM001")
        report = fix_keys(Request(str(self.SAMPLE), str(tmp_path / "out"), allow=allowed))
        assert report.verdict == "pass", refusals(report)
        assert "PAR001" in report.facts["plan"]["allowed"]
        assert "mask_hidden" in [d["tensor"] for d in report.facts["plan"]["drops"]]
        before, after = (load_file(p / "model.safetensors") for p in (self.SAMPLE, tmp_path / "out"))
        made = {n.replace("midlayer.", "layers.0.") for n in after} - {"layers.1.hidden_norm.weight"}
        assert set(before) - {"mask_hidden"} == made
        served = read_draft(open_checkpoint(tmp_path / "out"))
        assert served is not None and served.algorithm == "eagle3"

    def test_a_format_without_eagle3_refuses_it_for_good(self, tmp_path: Path) -> None:
        request = Request(str(self.SAMPLE), str(tmp_path / "out"), to="z-lab", allow=("PAR001",))
        assert list(refusals(fix_keys(request))) == ["PAR001"]
        assert not (tmp_path / "out").exists()

    def test_what_nobody_writes_says_so(self, tmp_path: Path) -> None:
        report = fix_keys(Request(str(SPECULATORS / "xpress_tiny"), str(tmp_path / "out")))
        (found,) = [f for f in report.findings if f.code == "PAR001"]
        assert found.hint == "--to speculators carries it"


@pytest.mark.parametrize(("source", "out", "says"), [("", "out", "IN is empty"), ("in", "", "OUT is empty")])
def test_an_empty_argument_is_no_folder(source: str, out: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        fix_keys(Request(source, out, force=True))


@pytest.mark.parametrize("to", ["sglang", "dual"])
def test_a_window_of_some_layers_is_refused(to: str, tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention"]
    some = decoder(sliding_window=2048, use_sliding_window=True, layer_types=kinds)
    source = draft(tmp_path, some, sample="eagle3_2layer_tiny")
    report = fix_keys(Request(source, str(tmp_path / "out"), to=to))
    assert list(refusals(report)) == ["LAY007"]
    assert "in layer 1 of 2 alone" in refusals(report)["LAY007"]
    assert report.facts["plan"]["launch_flags"] == []
    served = fix_keys(Request(source, str(tmp_path / "out"), to="vllm"))
    assert served.verdict == "pass"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_types"] == kinds
