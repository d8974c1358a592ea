"""Equivalence through the API: ``fix-keys --prove`` and ``verify --against``."""
# an edit is given tensors and config, and most change one of them

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.api.proving import Known, Verdict, combined, engines_of, lost, prove
from ckpt_tools.api.smoking import SmokeRequest, smoke
from ckpt_tools.api.subjects import find_target, open_draft
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.errors import InputError, Unavailable, UsageError
from ckpt_tools.formats import read_draft
from ckpt_tools.forward._torch import torch
from ckpt_tools.model import Report
from ckpt_tools.render.json import report_json

from .pairs import DRAFT, TARGET, Config, Tensors, codes, draft, messages, variant

Edit = Callable[[Tensors, Config], None]


def convert(out: Path, source: str = DRAFT, **more: object) -> Report:
    return fix_keys(Request(source, str(out), **{"target": TARGET, **more}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("served") / "sglang"
    assert convert(out).verdict == "pass"
    return out


def known(path: str | Path) -> Known:
    opened = open_draft(str(path))
    read = read_draft(opened.checkpoint, find_target(TARGET))
    assert read is not None
    return Known(opened, read)


def against(path: str | Path, source: str | Path = DRAFT, *engines: str, **more: object) -> Report:
    request = VerifyRequest(
        str(path),
        TARGET,
        engines=engines or ("sglang",),
        against=str(source),
        **{"select": ("EQV",), **more},  # type: ignore[arg-type]
    )
    return verify(request)


def flag(tensors: Tensors, config: Config) -> None:
    config["norm_before_residual"] = True


def tree(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


@pytest.mark.parametrize(
    "to", ["sglang", "sglang-ext", "vllm", "dual", "speculators", "specforge", "modelopt"]
)
def test_exact_conversions_are_proven(tmp_path: Path, to: str) -> None:
    report = convert(tmp_path / "out", to=to, prove=True)
    assert report.verdict == "pass"
    proof = report.facts["proof"]
    assert proof["proven"]
    assert proof["source_semantics"].startswith("speculators==")
    assert [u.split("==")[0] for u in proof["under"]] == [name or "sglang" for name in engines_of(to)]
    assert [s["step"] for s in proof["per_step"]] == list(range(5))
    for step in proof["per_step"]:
        assert step["top1_agreement"] == 1.0
        assert 0 <= step["kl"] < 1e-6
        assert step["max_abs_diff"] < 1e-4 * step["scale"]
    assert proof["identical"] == (to == "speculators")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_what_changes_the_function_isnt_written(tmp_path: Path) -> None:
    source = draft(tmp_path / "in" / "d", flag)
    place = tmp_path / "out"
    place.mkdir()
    refused = convert(place / "o", source)
    assert refused.verdict == "fail" and "NRM001" in codes(refused)
    report = convert(place / "o", source, allow=("NRM001",), prove=True)
    assert report.verdict == "fail"
    (said,) = messages(report, "EQV001")
    assert said.startswith("not the same function under sglang==")
    assert said.endswith("likeliest cause: norm_before_residual")
    assert next(f for f in report.findings if f.code == "EQV001").engine is not None
    proof = report.facts["proof"]
    assert not proof["proven"]
    assert proof["causes"][0]["name"] == "norm_before_residual" and proof["causes"][0]["explains"]
    assert max(s["kl"] for s in proof["per_step"]) > 0.1
    assert "written" not in report.facts
    assert list(place.iterdir()) == []
    # without the proof it is written, as was asked
    assert convert(place / "o", source, allow=("NRM001",)).verdict == "pass"


def test_an_unproven_conversion_keeps_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "out" / "o"
    assert convert(out, prove=True).verdict == "pass"
    before = tree(tmp_path / "out")
    source = draft(tmp_path / "d", flag)
    assert convert(out, source, allow=("NRM001",), prove=True, force=True).verdict == "fail"
    assert tree(tmp_path / "out") == before
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["o"]
    with pytest.raises(UsageError, match="exists and isn't empty"):
        convert(out, prove=True)
    assert tree(tmp_path / "out") == before


def test_a_dry_run_proves_and_writes_nothing(tmp_path: Path) -> None:
    report = convert(tmp_path / "deep" / "out", prove=True, dry_run=True)
    assert report.facts["proof"]["proven"]
    assert report.facts["written"] is None
    assert list(tmp_path.iterdir()) == []
    source = draft(tmp_path / "d", flag)
    failed = convert(tmp_path / "out", source, allow=("NRM001",), prove=True, dry_run=True)
    assert codes(failed) == sorted({*codes(failed), "EQV001"})
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_parent_that_isnt_there_yet(tmp_path: Path) -> None:
    assert convert(tmp_path / "a" / "b", prove=True).verdict == "pass"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


def test_nothing_is_left_when_the_proof_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckpt_tools.api import proving

    def broken(*_: object, **__: object) -> None:
        raise InputError("broken off")

    monkeypatch.setattr(proving, "prove", broken)
    with pytest.raises(InputError, match="broken off"):
        convert(tmp_path / "out", prove=True)
    assert list(tmp_path.iterdir()) == []


def test_without_torch(tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith(("ckpt_tools.forward", "ckpt_tools.api.sides"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delattr("ckpt_tools.api.sides", raising=False)
    monkeypatch.delattr("ckpt_tools.forward", raising=False)
    with pytest.raises(Unavailable, match="needs torch"):
        convert(tmp_path / "out", prove=True)
    assert list(tmp_path.iterdir()) == []
    report = against(served)
    assert report.verdict == "pass"
    assert report.facts["proof"] is None
    (reason,) = [s.reason for s in report.skipped if s.code == "EQV001"]
    assert reason.startswith("running a draft head needs torch")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_cast_is_proven_within_its_rounding(tmp_path: Path, dtype: str) -> None:
    wide = tmp_path / "wide"
    assert convert(wide, to="speculators", dtype="fp32").verdict == "pass"

    def fill(tensors: Tensors, config: Config) -> None:
        generator = torch.Generator().manual_seed(0)
        for name, t in tensors.items():
            if t.dtype == torch.float32 and name != "embed_tokens.weight":  # served is the target's
                tensors[name] = t + t.abs() * 1e-3 * torch.rand(t.shape, generator=generator)

    source = variant(wide, tmp_path / "filled", fill)
    report = convert(tmp_path / "out", source, dtype=dtype, prove=True)
    assert report.verdict == "pass", messages(report, "EQV001")
    worst = max(s["max_abs_diff"] for s in report.facts["proof"]["per_step"])
    assert worst > 1e-4 if dtype != "fp32" else worst < 1e-3


CAUSES: dict[str, tuple[Edit, str]] = {
    "rope base": (lambda t, c: c.update(rope_theta=5e5, rope_parameters={"rope_type": "default", "rope_theta": 5e5}), "rope base"),
    "norm_output": (lambda t, c: c.update(norm_output=True), "norm_output"),
    "norm_before_fc": (lambda t, c: c.update(norm_before_fc=True), "norm_before_fc"),
    "eps": (lambda t, c: c.update(rms_norm_eps=1.0), "eps"),
    "capture layers": (
        lambda t, c: c.update(
            eagle_aux_hidden_state_layer_ids=[3, 5, 6],
            eagle_config={**c["eagle_config"], "eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
        ),
        "capture layers",
    ),
    "d2t gone": (lambda t, c: t.pop("d2t"), "d2t"),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_the_likeliest_cause_is_named(tmp_path: Path, served: Path, name: str) -> None:
    edit, cause = CAUSES[name]
    report = against(variant(served, tmp_path / "o", edit))
    (said,) = messages(report, "EQV001")
    assert said.endswith(f"likeliest cause: {cause}")
    assert not report.facts["proof"]["proven"]


def two_layers(tensors: Tensors, config: Config) -> None:
    """A second layer, of the first one's matrices without the half that reads the embedding."""
    for name in [n for n in tensors if n.startswith("layers.0.") and "hidden_norm" not in n]:
        whole = tensors[name]
        tensors[name.replace("layers.0.", "layers.1.")] = (
            whole[:, 64:].clone() if "self_attn" in name and "o_proj" not in name else whole.clone()
        )
    generator = torch.Generator().manual_seed(0)
    tensors["layers.1.input_layernorm.weight"] = (torch.rand(64, generator=generator) + 0.2).bfloat16()
    config["transformer_layer_config"] |= {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}


def test_layer_norm_names(tmp_path: Path) -> None:
    """SGLang looks for another name of the upper layers' norm; a folder with the trained name runs on norms of one."""
    source = draft(tmp_path / "d", two_layers)
    made = convert(tmp_path / "o", source, prove=True)
    assert made.verdict == "pass", messages(made, "EQV001")

    def rename(tensors: Tensors, config: Config) -> None:
        tensors["layers.1.input_layernorm.weight"] = tensors.pop("layers.1.hidden_norm.weight")

    report = against(variant(tmp_path / "o", tmp_path / "m", rename), source)
    assert any("layer norm names" in m for m in messages(report, "EQV001"))


def test_a_training_framework_reads_what_it_wrote(tmp_path: Path) -> None:
    """Model-Optimizer names the upper norm as vLLM does: its own folder is complete, and SGLang's has the other name."""
    source = draft(tmp_path / "d", two_layers)
    assert convert(tmp_path / "m", source, to="modelopt", prove=True).verdict == "pass"
    report = convert(tmp_path / "o", str(tmp_path / "m"), prove=True)
    assert report.verdict == "pass", messages(report, "EQV001")
    assert max(s["kl"] for s in report.facts["proof"]["per_step"]) < 1e-6


def test_an_embedding_that_a_server_replaces(tmp_path: Path) -> None:
    """A trained embedding of its own is kept by its framework and by vLLM; SGLang serves with the target's."""

    def other(tensors: Tensors, config: Config) -> None:
        tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"].roll(1, 0)

    source = draft(tmp_path / "d", other)
    for to in ("speculators", "vllm", "specforge"):
        assert convert(tmp_path / to, source, to=to, prove=True).verdict == "pass"
    assert codes(convert(tmp_path / "o", source, prove=True)) == ["HED003"]
    (said,) = messages(convert(tmp_path / "o", source, prove=True, allow=("HED003",)), "EQV001")
    assert said.endswith("likeliest cause: embedding")


def test_one_folder_with_both_names(tmp_path: Path) -> None:
    source = draft(tmp_path / "d", two_layers)
    report = convert(tmp_path / "o", source, to="dual", prove=True)
    assert report.verdict == "pass", messages(report, "EQV001")
    assert [u.split("==")[0] for u in report.facts["proof"]["under"]] == ["sglang", "vllm"]

    def other(tensors: Tensors, config: Config) -> None:
        tensors["layers.1.input_layernorm.weight"] *= 2  # the copy that vLLM reads

    made = variant(tmp_path / "o", tmp_path / "m", other)
    found = [f.engine for f in against(made, source, "sglang", "vllm").findings if f.code == "EQV001"]
    assert [str(engine).split("==")[0] for engine in found] == ["vllm"]


def test_captured_layers_that_the_source_doesnt_state(tmp_path: Path) -> None:
    """A converter fills in documented defaults: what the source didn't say isn't changed by that."""

    def unstated(tensors: Tensors, config: Config) -> None:
        del config["eagle_aux_hidden_state_layer_ids"]

    silent, stated = known(draft(tmp_path / "d", unstated)), known(DRAFT)
    assert silent.draft.facts.capture_layers is None
    for a, b in ((silent, stated), (stated, silent)):
        verdict = prove(a, b, framework="speculators")
        assert verdict.facts is not None and verdict.facts["proven"]


def test_a_head_without_reference(tmp_path: Path) -> None:
    """That ckpt can't compute a head is no fault of the draft: unavailable, or skipped beside other checks."""

    def gated(tensors: Tensors, config: Config) -> None:
        whole = tensors["layers.0.self_attn.q_proj.weight"]
        tensors["layers.0.self_attn.q_proj.weight"] = torch.cat((whole, whole))

    path = draft(tmp_path / "d", gated)
    with pytest.raises(Unavailable, match="has no reference head"):
        smoke(SmokeRequest(path, TARGET, device="cpu"))
    with pytest.raises(Unavailable, match="has no reference head"):
        convert(tmp_path / "o", path, to="speculators", prove=True, allow=("SHP002",))
    assert [p.name for p in tmp_path.iterdir()] == ["d"]
    report = against(path, path, "vllm")
    assert codes(report) == []
    (reason,) = [s.reason for s in report.skipped if s.code == "EQV001"]
    assert "has no reference head" in reason


def test_every_engine_is_asked_and_the_worst_is_shown(tmp_path: Path) -> None:
    source = draft(tmp_path / "d", flag)
    assert convert(tmp_path / "o", source, to="vllm", prove=True).verdict == "pass"
    report = against(tmp_path / "o", source, "vllm", "sglang")
    found = [f for f in report.findings if f.code == "EQV001"]
    assert [f.engine.split("==")[0] for f in found if f.engine] == ["sglang"]
    proof = report.facts["proof"]
    assert not proof["proven"]
    assert [u.split("==")[0] for u in proof["under"]] == ["vllm", "sglang"]
    assert proof["result_semantics"].startswith("sglang")


def test_combined_proofs() -> None:
    good = {"proven": True, "result_semantics": "a==1", "per_step": []}
    bad = {"proven": False, "result_semantics": "b==2", "per_step": [1]}
    assert combined([]) is None
    assert combined([Verdict(None, ())]) is None
    made = combined([Verdict(good, ()), Verdict(bad, ())])
    assert made == {**bad, "under": ["a==1", "b==2"]}
    assert combined([Verdict(good, ())]) == {**good, "under": ["a==1"]}


def test_an_engine_without_reference_semantics_is_skipped(served: Path) -> None:
    report = against(served, DRAFT, "trtllm")
    assert [s.reason for s in report.skipped if s.code == "EQV001"] == [
        "no reference semantics for engine 'trtllm'"
    ]


def test_what_is_lost(tmp_path: Path, served: Path) -> None:
    def found(edit: Edit) -> list[str]:
        made = variant(served, tmp_path / "m", edit)
        return [
            f"{f.code} {f.location.tensor or f.location.pointer}" for f in lost(known(DRAFT), known(made))
        ]

    assert found(lambda t, c: None) == []
    assert found(lambda t, c: t.pop("embed_tokens.weight")) == []  # the engine has its own
    assert found(lambda t, c: t.pop("midlayer.mlp.up_proj.weight")) == ["EQV002 layers.0.mlp.up_proj.weight"]
    assert found(lambda t, c: t.update({"norm.weight": t["norm.weight"] * 2})) == ["EQV002 norm.weight"]
    assert found(lambda t, c: t.update({"lm_head.weight": t["lm_head.weight"][:-1]})) == [
        "EQV002 lm_head.weight"
    ]
    assert found(lambda t, c: c.update(norm_output=True)) == ["EQV003 /norm_output"]
    assert found(lambda t, c: c.update(norm_output=False)) == [], "not stated and false are the same"
    assert found(lambda t, c: c.update(rms_norm_eps=0.1, hidden_act="gelu")) == [
        "EQV003 /hidden_act",
        "EQV003 /rms_norm_eps",
    ]

    def reorder(t: Tensors, c: Config) -> None:
        order = torch.randperm(160, generator=torch.Generator().manual_seed(0))
        ids = t["d2t"] + torch.arange(160)
        t["d2t"] = ids[order] - torch.arange(160)
        t["lm_head.weight"] = t["lm_head.weight"][order]

    assert found(reorder) == [], "head and table in another order are the proof's question"
    assert against(tmp_path / "m").facts["proof"]["proven"]


def test_lost_tensors_leave_nothing_to_prove(tmp_path: Path, served: Path) -> None:
    made = variant(served, tmp_path / "m", lambda t, c: t.pop("midlayer.mlp.up_proj.weight"))
    report = against(made)
    assert codes(report) == ["EQV002"]
    assert [s.reason for s in report.skipped if s.code == "EQV001"] == [
        "tensors are lost or changed (EQV002)"
    ]
    assert "proof" not in report.facts


def test_against_something_else(tmp_path: Path, served: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        against(served, tmp_path / "nowhere")
    with pytest.raises(InputError, match="no draft format fits"):
        against(served, TARGET)
    assert "EQV001" not in codes(against(served, select=(), ignore=("EQV",)))


def test_heads_that_cant_be_compared(tmp_path: Path, served: Path) -> None:
    made = variant(served, tmp_path / "m", lambda t, c: t.pop("fc.weight"))
    verdict = prove(known(DRAFT), known(made), framework="sglang")
    assert verdict.facts is None
    assert verdict.findings[0].message.startswith("the heads can't be compared: the head can't be run")


def test_numbers_that_are_none_are_null_in_json(tmp_path: Path, served: Path) -> None:
    def cast(t: Tensors, c: Config) -> None:
        for name, tensor in t.items():
            if tensor.is_floating_point():
                t[name] = (tensor.float() * 1e6).half() if "down_proj" in name else tensor.half()

    report = against(variant(served, tmp_path / "m", cast))
    assert codes(report) == ["EQV001"]
    assert report.facts["proof"]["per_step"][0]["kl"] is None
    json.dumps(report_json(report), allow_nan=False, default=list)


@pytest.mark.parametrize("model", [None, "config", "kimi-k2.5"])
def test_a_target_that_isnt_at_hand_is_stood_in_for(tmp_path: Path, model: str | None) -> None:
    if model == "config":
        model = str(tmp_path / "t")
        Path(model).mkdir()
        shutil.copy(Path(TARGET) / "config.json", model)
    source = known(DRAFT)

    def bare(t: Tensors, c: Config) -> None:
        for name in ("lm_head.weight", "d2t", "t2d", "embed_tokens.weight"):
            del t[name]
        c["draft_vocab_size"] = 320

    half = known(draft(tmp_path / "half", bare))
    target = find_target(model) if model else None
    assert prove(source, source, framework="sglang", target=target).findings == ()
    verdict = prove(half, half, framework="sglang", target=target)
    assert verdict.facts is not None and verdict.facts["proven"]


def test_a_broken_target_is_stood_in_for(tmp_path: Path) -> None:
    shutil.copytree(TARGET, tmp_path / "t")
    target = find_target(str(tmp_path / "t"))
    (tmp_path / "t" / "model.safetensors").write_bytes(b"x")
    source = known(DRAFT)
    assert prove(source, source, framework="sglang", target=replace(target)).findings == ()
