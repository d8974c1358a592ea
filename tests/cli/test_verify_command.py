"""``ckpt verify`` from outside: which setting counts, and where findings are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ckpt_tools.forward._torch import torch
from tests.cli.test_commands import TARGET, TINY, ckpt
from tests.conftest import FIXTURES


def test_flags_go_before_the_launch_command_and_that_before_the_policy(tmp_path: Path) -> None:
    (tmp_path / "ckpt.toml").write_text("tp = 3\ncontext-length = 100000\n")
    draft = str(TINY / "draft-midlayer")
    command = (
        "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE3 --speculative-draft-model-path d "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )

    def errors(*args: str) -> set[str]:
        done = ckpt("verify", draft, "--format", "json", *args, cwd=tmp_path)
        return {f["code"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"}

    assert errors() == {"TPX001", "CTX001"}
    assert errors("--launch", command) == {"TPX001", "CTX001"}  # what it leaves open, the policy says
    assert errors("--launch", f"{command} --tp-size 2 --context-length 128") == set()
    assert errors("--launch", f"{command} --tp-size 2 --context-length 128", "--tp", "3") == {"TPX001"}


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_code_that_is_no_code_is_refused(option: str) -> None:
    done = ckpt("verify", str(TINY / "draft-midlayer"), option, "SHP,CPA005")
    assert done.returncode == 2
    assert "CPA005: no code begins so; did you mean" in done.stderr


def test_what_is_wrong_with_the_target_s_files_is_placed_in_the_target(tmp_path: Path) -> None:
    shutil.copytree(TINY / "draft-midlayer", tmp_path / "draft")
    shutil.copytree(TARGET, tmp_path / "models" / "target")
    (tmp_path / ".git").mkdir()
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "models" / "target" / "model.safetensors.index.json").write_text(json.dumps(index))
    args = ("verify", "draft", "--target", "models/target")
    report = json.loads(ckpt(*args, "--format", "json", cwd=tmp_path).stdout)
    found = [f for f in report["findings"] if f["code"].startswith("FIL")]
    assert found
    for f in found:
        assert f["code"] != "FIL001"
        assert f["location"]["file"].startswith("../models/target/")
        assert f["message"].startswith("in the target models/target: ")
    sarif = json.loads(ckpt(*args, "--format", "sarif", cwd=tmp_path).stdout)
    places = {
        r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for r in sarif["runs"][0]["results"]
        if r["ruleId"].startswith("FIL")
    }
    assert places == {"models/target/model.safetensors.index.json", "models/target/model.safetensors"}
    assert (
        "file=models/target/model.safetensors.index.json"
        in ckpt(*args, "--format", "github", cwd=tmp_path).stdout
    )


def test_a_draft_that_isn_t_one_because_of_its_files_is_told_once(tmp_path: Path) -> None:
    shutil.copytree(TINY / "draft-midlayer", tmp_path / "draft")
    shutil.copy(
        FIXTURES / "formats" / "z-lab" / "dflash_tiny" / "model.safetensors",
        tmp_path / "draft" / "other.safetensors",
    )
    report = json.loads(ckpt("verify", "draft", "--format", "json", cwd=tmp_path).stdout)
    assert {f["code"] for f in report["findings"] if f["severity"] == "error"} == {"FIL017"}
    assert {"code": "CFG011", "reason": "FIL017 explains it"} in report["skipped"]


@pytest.mark.parametrize(
    ("source", "lost", "says"),
    [
        (
            "z-lab/dflash_tiny",
            "hidden_norm.",
            "nearest is dflash as z-lab writes it, but for hidden_norm.weight",
        ),
        (
            "z-lab/dflash2_tiny",
            "candidate_selector.",
            "nearest is dflash2 as z-lab writes it, but for candidate_selector.**",
        ),
    ],
)
def test_a_draft_that_lacks_what_makes_it_one_is_told_what(
    tmp_path: Path, source: str, lost: str, says: str
) -> None:
    folder = FIXTURES / "formats" / source
    shutil.copytree(folder, tmp_path / "draft")
    tensors = load_file(folder / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if not n.startswith(lost)}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "draft" / "model.safetensors")
    report = json.loads(ckpt("verify", "draft", "--format", "json", cwd=tmp_path).stdout)
    (found,) = [f for f in report["findings"] if f["severity"] == "error"]
    assert found["code"] == "CFG011"
    assert says in found["message"]


def test_a_target_given_as_a_draft_is_near_to_nothing() -> None:
    report = json.loads(ckpt("verify", str(TARGET), "--format", "json").stdout)
    (found,) = [f for f in report["findings"] if f["code"] == "CFG011"]
    assert "nearest" not in found["message"]


def test_several_engines_have_a_load_map_each() -> None:
    draft = str(TINY / "draft-midlayer")
    report = json.loads(
        ckpt("verify", draft, "--engine", "vllm", "--engine", "sglang", "--format", "json").stdout
    )
    assert set(report["facts"]["loads"]) == {"vllm==0.33.0", "sglang==0.5.23"}
    assert report["facts"]["load"] == report["facts"]["loads"]["vllm==0.33.0"]
    assert report["facts"]["serves"] is not None


def test_a_truncated_target_is_told_of(tmp_path: Path) -> None:
    shutil.copytree(TARGET, tmp_path / "target")
    for file in (tmp_path / "target").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:64])
    report = json.loads(
        ckpt(
            "verify", str(TINY / "draft-midlayer"), "--target", str(tmp_path / "target"), "--format", "json"
        ).stdout
    )
    assert any(f["message"].startswith(f"in the target {tmp_path / 'target'}: ") for f in report["findings"])
    assert report["verdict"] == "fail"


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors"])
def test_a_target_at_hand_is_compared_however_it_is_named(tmp_path: Path, name: str) -> None:
    shutil.copytree(TARGET, tmp_path / "target")
    draft = load_file(TINY / "draft-midlayer" / "model.safetensors")
    theirs = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    shutil.copytree(TINY / "draft-midlayer", tmp_path / "draft")
    save_file(
        draft | {"embed_tokens.weight": theirs.flip(0).contiguous()}, tmp_path / "draft" / "model.safetensors"
    )
    target = str(tmp_path / "target" / name)
    report = json.loads(ckpt("verify", "draft", "--target", target, "--format", "json", cwd=tmp_path).stdout)
    assert "HED005" in {f["code"] for f in report["findings"]}


def test_a_pickled_target_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    shutil.copy(TARGET / "config.json", tmp_path / "target")
    torch.save(load_file(TARGET / "model.safetensors"), tmp_path / "target" / "pytorch_model.bin")
    blocked = "import sys; sys.modules['torch'] = None; import runpy; sys.argv[0] = 'ckpt'; runpy.run_module('ckpt_tools', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", blocked, "verify", str(TINY / "draft-midlayer"), "--target", str(tmp_path / "target")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
