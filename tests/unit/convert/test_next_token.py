"""Next-token layers: found in a target, taken out, put back; experts fused and split; shards kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.convert.experts import stated_experts
from ckpt_tools.formats import read_draft
from tests.conftest import FIXTURES

BUNDLED = FIXTURES / "formats" / "bundled"
SPECULATORS = FIXTURES / "formats" / "speculators"
OWN = "verifier_lm_head.weight"


@pytest.mark.parametrize("name", ["mtp_qwen3_next_tiny", "mtp_qwen3_5_tiny"])
def test_what_speculators_own_converter_makes_of_a_target(name: str, tmp_path: Path) -> None:
    report = fix_keys(
        Request(str(BUNDLED / name), str(tmp_path / "out"), to="speculators", target=str(BUNDLED / name))
    )
    assert report.verdict == "pass"
    ours = load_file(tmp_path / "out" / "model.safetensors")
    theirs = {n: t for n, t in load_file(SPECULATORS / name / "model.safetensors").items() if n != OWN}
    assert set(ours) == set(theirs)
    assert [n for n in ours if not np.array_equal(ours[n], theirs[n])] == []
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = json.loads((SPECULATORS / name / "config.json").read_text())
    assert config["transformer_layer_config"]["num_hidden_layers"] == 4
    assert config["num_nextn_predict_layers"] == expected["num_nextn_predict_layers"] == 1
    assert config["architectures"] == expected["architectures"]
    # The target's own head, which speculators' converter writes full of NaN, is never written.
    assert OWN not in ours


def test_a_target_without_next_token_layers_is_no_draft(tmp_path: Path) -> None:
    tensors = {
        n: t
        for n, t in load_file(BUNDLED / "mtp_qwen3_5_tiny" / "model.safetensors").items()
        if not n.startswith("mtp.")
    }
    (tmp_path / "t").mkdir()
    save_file(tensors, tmp_path / "t" / "model.safetensors", {"format": "pt"})
    shutil.copy(BUNDLED / "mtp_qwen3_5_tiny" / "config.json", tmp_path / "t")
    assert read_draft(open_checkpoint(tmp_path / "t")) is None


def _sharded_target(place: Path, *, next_token: bool) -> dict[str, np.ndarray]:
    """The Qwen3-Next target in three shards, with or without its next-token layer; the tensors that are in it."""
    tensors = load_file(BUNDLED / "mtp_qwen3_next_tiny" / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if next_token or not n.startswith("mtp.")}
    kept["model.extra.weight"] = np.ones((3, 5), dtype=np.float32)
    place.mkdir()
    names, where = sorted(kept), {}
    for index in range(3):
        file = f"model-{index + 1:05d}-of-00003.safetensors"
        part = names[index::3]
        save_file({n: kept[n] for n in part}, place / file, {"format": "pt"})
        where |= dict.fromkeys(part, file)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    shutil.copy(BUNDLED / "mtp_qwen3_next_tiny" / "config.json", place)
    (place / "tokenizer.json").write_text("{}")
    return kept


def _all(folder: Path) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        out |= load_file(shard)
    return out


@pytest.mark.parametrize("next_token", [True, False])
def test_layers_go_back_into_a_sharded_target(next_token: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    kept = _sharded_target(target, next_token=next_token)
    source = SPECULATORS / "mtp_qwen3_next_tiny"
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="bundled", target=str(target)))
    assert report.verdict == "pass", [f.message for f in report.findings]
    assert sorted(p.name for p in (tmp_path / "out").glob("*.safetensors")) == sorted(
        p.name for p in target.glob("*.safetensors")
    )
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    made, native = _all(tmp_path / "out"), load_file(BUNDLED / "mtp_qwen3_next_tiny" / "model.safetensors")
    assert set(index["weight_map"]) == set(made) == {*kept, *native}
    wrong = [n for n in made if not np.array_equal(made[n], kept[n] if n in kept else native[n])]
    assert wrong == []
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads(
        (target / "config.json").read_text()
    )
    draft = read_draft(open_checkpoint(tmp_path / "out"))
    assert draft is not None
    assert (draft.format, draft.algorithm) == ("bundled", "mtp")
    assert OWN not in made


def test_without_a_target_the_layers_stand_alone_under_their_target_s_names(tmp_path: Path) -> None:
    source = SPECULATORS / "mtp_qwen3_next_tiny"
    assert fix_keys(Request(str(source), str(tmp_path / "out"), to="bundled")).verdict == "pass"
    made = load_file(tmp_path / "out" / "model.safetensors")
    native = load_file(BUNDLED / "mtp_qwen3_next_tiny" / "model.safetensors")
    assert set(made) == {n for n in native if n.startswith("mtp.")}
    assert all(np.array_equal(made[n], native[n]) for n in made)


def test_another_model_s_target_is_refused(tmp_path: Path) -> None:
    source = SPECULATORS / "mtp_qwen3_next_tiny"
    target = BUNDLED / "mtp_qwen3_5_tiny"
    report = fix_keys(Request(str(source), str(tmp_path / "out"), to="bundled", target=str(target)))
    assert [f.code for f in report.findings if f.severity.value == "error"] == ["MTP002"]
    assert "model_type" in report.findings[0].message or any(
        "model_type" in f.message for f in report.findings
    )


def test_numbered_layers_are_found_and_taken_out_with_their_number(tmp_path: Path) -> None:
    draft = read_draft(open_checkpoint(BUNDLED / "nextn_tiny"))
    assert draft is not None
    assert draft.tensors["mtp_layers.2.input_proj.weight"] == "model.layers.2.eh_proj.weight"
    assert draft.tensors["mtp_layers.2.token_layernorm.weight"] == "model.layers.2.enorm.weight"
    assert not any(".layers.1." in native or "embed" in native for native in draft.tensors.values())
    report = fix_keys(Request(str(BUNDLED / "nextn_tiny"), str(tmp_path / "out"), to="bundled"))
    assert report.verdict == "pass"
    made = open_checkpoint(tmp_path / "out").tensors
    assert {n.split(".")[2] for n in made} == {"2"}
    assert "model.layers.2.shared_head.norm.weight" in made
    refused = fix_keys(
        Request(
            str(BUNDLED / "nextn_tiny"),
            str(tmp_path / "sp"),
            to="speculators",
            target=str(BUNDLED / "nextn_tiny"),
        )
    )
    assert [f.code for f in refused.findings if f.severity.value == "error"] == ["LAY004"]


def test_a_pickled_fused_tensor_is_split_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is absent: the sample is pickled here")
    from safetensors.torch import load_file as load_torch

    source = tmp_path / "in"
    source.mkdir()
    torch.save(
        load_torch(SPECULATORS / "mtp_qwen3_next_tiny" / "model.safetensors"), source / "pytorch_model.bin"
    )
    shutil.copy(SPECULATORS / "mtp_qwen3_next_tiny" / "config.json", source)
    assert fix_keys(Request(str(source), str(tmp_path / "out"), to="bundled")).verdict == "pass"
    made = load_file(tmp_path / "out" / "model.safetensors")
    native = load_file(BUNDLED / "mtp_qwen3_next_tiny" / "model.safetensors")
    assert all(np.array_equal(made[n], native[n]) for n in made)


class TestUnevenExperts:
    """Experts are put into one tensor by their place in it: one that is missing would give the next one its number."""

    NAME = "mtp.layers.0.mlp.experts.{}.{}_proj.weight"

    def refused(self, tmp_path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> tuple[str, str]:
        source = tmp_path / "in"
        shutil.copytree(BUNDLED / "mtp_qwen3_next_tiny", source)
        tensors = load_file(source / "model.safetensors")
        change(tensors)
        save_file(tensors, source / "model.safetensors", {"format": "pt"})
        request = Request(
            str(source), str(tmp_path / "out"), to="speculators", target=str(source), allow=("KEY", "SHP")
        )
        report = fix_keys(request)
        assert report.verdict == "fail"
        assert not (tmp_path / "out").exists()
        (found,) = [f for f in report.findings if f.severity.value == "error"]
        return found.code, found.message

    def test_a_part_of_one_is_missing(self, tmp_path: Path) -> None:
        code, message = self.refused(tmp_path, lambda t: t.pop(self.NAME.format(3, "up")))
        assert code == "KEY009"
        assert "experts.3.up_proj.weight isn't there: the layer has 4 experts" in message

    @pytest.mark.parametrize("expert", [1, 3])
    def test_one_is_missing(self, expert: int, tmp_path: Path) -> None:
        def change(tensors: dict[str, np.ndarray]) -> None:
            for kind in ("gate", "up", "down"):
                tensors.pop(self.NAME.format(expert, kind))

        code, message = self.refused(tmp_path, change)
        assert code == "KEY009"
        assert f"experts.{expert}.gate_proj.weight" in message

    @pytest.mark.parametrize("kind", ["up", "down"])
    def test_one_is_of_another_dtype_or_shape(self, kind: str, tmp_path: Path) -> None:
        name = self.NAME.format(2, kind)

        def narrower(tensors: dict[str, np.ndarray]) -> None:
            tensors[name] = tensors[name].astype("f2")

        code, message = self.refused(tmp_path, narrower)
        assert (code, message.split(" is ")[0]) == ("SHP003", name)
        shutil.rmtree(tmp_path / "in")
        code, message = self.refused(tmp_path, lambda t: t.update({name: t[name][:4].copy()}))
        assert (code, message.split(" is ")[0]) == ("SHP003", name)

    @pytest.mark.parametrize(("part", "shape"), [("gate_up", (4, 63, 64)), ("down", (4, 64))])
    def test_one_tensor_that_cannot_be_cut(self, part: str, shape: tuple[int, ...], tmp_path: Path) -> None:
        source = tmp_path / "in"
        shutil.copytree(SPECULATORS / "mtp_qwen3_next_tiny", source)
        tensors = load_file(source / "model.safetensors")
        tensors[f"mtp_layers.0.mlp.experts.{part}_proj"] = np.ones(shape, "f4")
        save_file(tensors, source / "model.safetensors", {"format": "pt"})
        report = fix_keys(Request(str(source), str(tmp_path / "out"), to="bundled"))
        assert "SHP003" in [f.code for f in report.findings if f.severity.value == "error"]


def test_the_number_of_experts_is_the_tensors_when_the_config_is_silent() -> None:
    assert stated_experts({}) is None
    assert stated_experts({"text_config": {"num_local_experts": 8}}) == 8
    assert stated_experts({"n_routed_experts": 256, "text_config": {"num_experts": 8}}) == 256
