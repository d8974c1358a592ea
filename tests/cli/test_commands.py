"""The command line from outside: exit statuses, stdout and stderr, messages with what to type next."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES

SPECULATORS = FIXTURES / "formats" / "speculators"
SAMPLE = SPECULATORS / "eagle3_tiny"
TINY = FIXTURES / "formats" / "tiny"
TARGET = FIXTURES / "models" / "llama_tiny"


def ckpt(
    *args: str, cwd: Path | None = None, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "ckpt_tools", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        input=stdin,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        timeout=120,
        check=False,
    )


def test_version_and_help() -> None:
    from ckpt_tools import __version__

    assert ckpt("--version").stdout.strip() == f"ckpt, version {__version__}"
    shown = ckpt("--help")
    assert shown.returncode == 0
    for command in ("inspect", "fix-keys", "verify", "explain", "targets"):
        assert command in shown.stdout
    assert "Exit status: 0 clean" in shown.stdout


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["inspect", "nowhere"], 3, "no such file or folder"),
        (["inspect"], 2, "Missing argument"),
        (["inpsect", "x"], 2, "Did you mean 'inspect'?"),
        (["inspect", str(SAMPLE), "--engine", "nonsense"], 2, "unknown engine 'nonsense'"),
        (["inspect", str(SAMPLE), "--engine", "sglang=="], 2, "names no version"),
        (["fix-keys", str(SAMPLE), "out", "--to", "gguf"], 2, "is not one of"),
        (["fix-keys", str(SAMPLE), "out", "--max-shard-size", "much"], 2, "is no size"),
        (["fix-keys", str(SAMPLE), "out", "--target", "no-such-target"], 3, "no target of that name"),
        (["verify", "nowhere"], 3, "no such file or folder"),
        (["verify", str(SPECULATORS / "train_output")], 3, "train_output/1  # the best of 2"),
        (["fix-keys", str(SPECULATORS / "train_output"), "out"], 3, "train_output/1 out  # the best of 2"),
        (["explain", "ZZZ999"], 2, "no such code"),
        (["targets", "show", "kimi-k2.55"], 3, "did you mean"),
        (
            ["verify", str(SAMPLE), "--engine", "sglang", "--launch", "vllm serve x"],
            2,
            "--launch starts vllm",
        ),
    ],
)
def test_failures_say_what_to_do(args: list[str], status: int, says: str, tmp_path: Path) -> None:
    done = ckpt(*args, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_weights_is_described_and_fails_verify(tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "config.json", tmp_path)
    assert ckpt("inspect", str(tmp_path)).returncode == 1
    done = ckpt("verify", str(tmp_path), "--format", "json")
    assert done.returncode == 1
    assert [f["code"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"] == ["FIL001"]


def test_here_without_a_config_is_no_checkpoint(tmp_path: Path) -> None:
    assert ckpt("verify", cwd=tmp_path).returncode == 3
    done = ckpt("verify", "--format", "json", cwd=tmp_path)
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert report["verdict"] == "error"
    assert report["error"]["kind"] == "input"


def test_the_kimi_story(tmp_path: Path) -> None:
    """layers.0 names, no model_type: refused as it is, clean after fix-keys."""
    before = ckpt("verify", str(SAMPLE), "--target", str(TARGET))
    assert before.returncode == 1
    assert "CFG002" in before.stdout
    made = ckpt("fix-keys", str(SAMPLE), "served", "--target", str(TARGET), cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    after = ckpt(
        "verify", "served", "--target", str(TARGET), "--engine", "sglang", "--engine", "vllm", cwd=tmp_path
    )
    assert after.returncode == 0, after.stdout


def test_fix_keys_refuses_an_out_that_is_there_and_replaces_it_with_force(tmp_path: Path) -> None:
    assert ckpt("fix-keys", str(SAMPLE), "out", cwd=tmp_path).returncode == 0
    again = ckpt("fix-keys", str(SAMPLE), "out", cwd=tmp_path)
    assert again.returncode != 0
    assert "--force" in again.stderr
    assert ckpt("fix-keys", str(SAMPLE), "out", "--force", cwd=tmp_path).returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("out", [".", "inside", ""])
def test_in_and_out_may_not_overlap(out: str, tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(SAMPLE, folder)
    before = sorted(p.name for p in folder.iterdir())
    done = ckpt("fix-keys", ".", out or str(folder), "--force", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_training_output_is_described_with_its_best_epoch() -> None:
    done = ckpt("inspect", str(SPECULATORS / "train_output"), "--format", "json")
    assert done.returncode == 0
    out = json.loads(done.stdout)["facts"]["training_output"]
    assert out["framework"] == "speculators"
    assert len(out["epochs"]) == 2
    assert out["best"] in ("0", "1")
    assert out["next"].startswith("ckpt verify ")


def test_json_on_stdout_alone_and_schema_valid(tmp_path: Path) -> None:
    from ckpt_tools.schemas import violations

    for args in (
        ["inspect", str(SAMPLE), "--tensors", "--stats", "--engine", "sglang", "--engine", "vllm"],
        ["verify", str(SAMPLE), "--target", "kimi-k2.5"],
        ["verify", str(TINY / "draft-midlayer"), "--engine", "vllm", "--deep"],
        ["fix-keys", str(SAMPLE), str(tmp_path / "x"), "--dry-run"],
    ):
        done = ckpt(*args, "--format", "json")
        report = json.loads(done.stdout)
        assert list(violations("report.v1.json", report)) == []
        assert done.stderr == ""
        assert done.returncode == {"pass": 0, "fail": 1, "error": 3}[report["verdict"]]


def test_several_paths_give_a_list_and_the_worst_status(tmp_path: Path) -> None:
    done = ckpt("verify", str(TINY / "draft-midlayer"), str(SAMPLE), "--format", "json", "--engine", "sglang")
    reports = json.loads(done.stdout)
    assert [r["verdict"] for r in reports] == ["pass", "fail"]
    assert done.returncode == 1
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    for name in ("draft-midlayer", "draft-layers0"):
        shutil.copytree(TINY / name, drafts / name)
    both = ckpt("verify", str(drafts), "--format", "json")
    assert len(json.loads(both.stdout)) == 2
    assert both.returncode == 0


def test_select_ignore_and_fail_on(tmp_path: Path) -> None:
    assert ckpt("verify", str(SAMPLE), "--ignore", "CFG").returncode == 1  # the refusal itself remains
    assert ckpt("verify", str(SAMPLE), "--select", "ROP").returncode == 0
    assert ckpt("verify", str(SAMPLE), "--fail-on", "never").returncode == 0
    info = ckpt("verify", str(TINY / "draft-midlayer"), "--format", "json")
    assert json.loads(info.stdout)["verdict"] == "pass"


def test_a_policy_gives_what_flags_do_not(tmp_path: Path) -> None:
    (tmp_path / "ckpt.toml").write_text(
        'engine = "vllm"\ntarget = "llama-3.1-8b-instruct"\n\n[ignore]\nCTX = "served short"\n'
    )
    done = ckpt("verify", str(TINY / "draft-midlayer"), "--format", "json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["engines"][0]["name"] == "vllm"
    assert report["engines"][0]["why"] == "policy"
    assert report["target"]["id"] == "llama-3.1-8b-instruct"
    assert {"code": "CTX", "reason": "ignored: served short"} in report["skipped"]
    flagged = ckpt(
        "verify", str(TINY / "draft-midlayer"), "--engine", "sglang", "--format", "json", cwd=tmp_path
    )
    assert json.loads(flagged.stdout)["engines"][0] == {
        "name": "sglang", "version": "0.5.23", "contract": "0.5.23", "why": "--engine",
    }  # fmt: skip
    (tmp_path / "ckpt.toml").write_text('[ignore]\nCTX = ""\n')
    assert ckpt("verify", str(TINY / "draft-midlayer"), cwd=tmp_path).returncode == 2


def test_a_launch_command_chooses_the_engine_and_is_checked() -> None:
    command = (
        "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE --speculative-draft-model-path d "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --tp 3"
    )
    done = ckpt("verify", str(TINY / "draft-midlayer"), "--launch", "-", "--format", "json", stdin=command)
    report = json.loads(done.stdout)
    assert report["engines"][0]["why"] == "launch"
    codes = {f["code"] for f in report["findings"] if f["severity"] == "error"}
    assert {"LCH002", "TPX001"} <= codes


def test_a_log_is_read(tmp_path: Path) -> None:
    line = (
        "[2026-01-01 00:00:00] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: 2.71, "
        "accept rate: 0.34, cuda graph: True, gen throughput (token/s): 1, #queue-req: 0\n"
    )
    (tmp_path / "log.txt").write_text(line * 3)
    done = ckpt(
        "verify",
        str(TINY / "draft-midlayer"),
        "--log",
        "log.txt",
        "--engine",
        "sglang==0.5.9",
        "--format",
        "json",
        cwd=tmp_path,
    )
    (found,) = [f for f in json.loads(done.stdout)["findings"] if f["code"] == "LOG003"]
    assert "2.71" in found["message"]
    assert "0.12" in found["message"]


def test_explain_and_targets() -> None:
    page = ckpt("explain", "nrm001")
    assert page.returncode == 0
    for heading in ("What it checks", "Why it breaks serving", "How to fix", "References"):
        assert heading in page.stdout
    listed = ckpt("explain")
    assert len(listed.stdout.splitlines()) > 100
    assert "kimi-k2.5" in ckpt("targets").stdout
    shown = json.loads(ckpt("targets", "show", "Kimi-K2.5", "--format", "json").stdout)
    assert shown["hidden_size"] == 7168
    assert "hidden_size" in shown["sources"]


def test_targets_add_extends_the_user_s_registry(tmp_path: Path) -> None:
    env = {"CKPT_TARGETS": str(tmp_path / "targets.json")}
    added = ckpt("targets", "add", str(TARGET), "--id", "my-tiny", env=env)
    assert added.returncode == 0, added.stderr
    assert "my-tiny" in ckpt("targets", "list", "my-tiny", env=env).stdout
    assert ckpt(
        "verify", str(TINY / "draft-midlayer"), "--target", "my-tiny", "--format", "json", env=env
    ).returncode in (0, 1)


def test_completion_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_CKPT_COMPLETE" in ckpt("completion", shell).stdout


def test_output_goes_to_a_file(tmp_path: Path) -> None:
    done = ckpt("inspect", str(SAMPLE), "--format", "json", "--output", "r.json", cwd=tmp_path)
    assert done.stdout == ""
    assert json.loads((tmp_path / "r.json").read_text())["command"] == "inspect"
    assert ckpt("inspect", str(SAMPLE), "--output", "no/such/r.json", cwd=tmp_path).returncode == 3


def test_a_reader_that_goes_away_is_no_failure() -> None:
    command = f"{sys.executable} -m ckpt_tools explain | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


def test_a_bug_gives_a_block_to_paste(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv=['ckpt','explain','CFG001']\n"
        "import ckpt_tools.api.explaining as m\n"
        "def boom(*a): raise RuntimeError('kaputt')\n"
        "m.explain=boom\n"
        "from ckpt_tools.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 70
    assert "this is a bug in ckpt" in done.stderr
    assert "RuntimeError: kaputt" in done.stderr
    assert "Traceback" not in done.stderr
