"""The pre-commit hook and the GitHub action, run as far as one machine can run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import FIXTURES, ROOT

DRAFT = FIXTURES / "formats" / "tiny" / "draft-midlayer"
FOREIGN = FIXTURES / "formats" / "speculators" / "eagle3_tiny"  # SGLang refuses its config
PROGRAMS = Path(sys.executable).parent
PRE_COMMIT = shutil.which("pre-commit", path=f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}")
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))


def environment(**more: str) -> dict[str, str]:
    """The machine's, with ckpt's own interpreter first and nothing of a workflow that may be running the tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "GIT_", "PRE_COMMIT"))}
    return {**kept, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", **more}


# -- pre-commit --------------------------------------------------------------------------------------------


def repository(folder: Path, draft: Path) -> Path:
    """A git repository with a draft, a policy, and everything staged."""
    shutil.copytree(draft, folder / "draft")
    (folder / "ckpt.toml").write_text('engine = "sglang==0.5.23"\n', "utf-8")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run([*git, *command], cwd=folder, check=True, env=environment(), capture_output=True)
    return folder


def test_the_hook_s_manifest() -> None:
    (hook,) = HOOKS
    assert hook["id"] == "ckpt-verify"
    assert hook["pass_filenames"] is False
    assert hook["language"] == "python"
    pattern = re.compile(hook["files"])
    for name in (
        "config.json",
        "drafts/k25/model.safetensors",
        "d/model.safetensors.index.json",
        "ckpt.toml",
    ):
        assert pattern.search(name), name
    for name in ("src/main.py", "tsconfig.json", "my-config.json", "README.md"):
        assert not pattern.search(name), name


@pytest.mark.parametrize(("draft", "status"), [(DRAFT, 0), (FOREIGN, 1)])
def test_the_hook_s_entry(draft: Path, status: int, tmp_path: Path) -> None:
    """As pre-commit calls it: the entry and the arguments of the user's file, no file names."""
    entry = [*HOOKS[0]["entry"].split(), "draft", "--target", str(FIXTURES / "models" / "llama_tiny")]
    done = subprocess.run(
        entry,
        cwd=repository(tmp_path / "r", draft),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "engine sglang==0.5.23 (policy)" in done.stdout


@pytest.mark.skipif(PRE_COMMIT is None, reason="pre-commit isn't installed")
@pytest.mark.parametrize(("draft", "status"), [(DRAFT, 0), (FOREIGN, 1)])
def test_the_hook_under_pre_commit(draft: Path, status: int, tmp_path: Path) -> None:
    """The manifest's hook in a local repository; only its language is `system`, so that nothing is downloaded."""
    folder = repository(tmp_path / "r", draft)
    hook = {**HOOKS[0], "language": "system", "args": ["draft", "--format", "github"]}
    hook.pop("language_version")
    hook.pop("minimum_pre_commit_version")
    config = {"repos": [{"repo": "local", "hooks": [hook]}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    done = subprocess.run(
        [str(PRE_COMMIT), "run", "--all-files", "--verbose"],
        cwd=folder,
        env=environment(PRE_COMMIT_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("Passed" if status == 0 else "Failed") in done.stdout
    if status:
        assert "::error file=draft/config.json,title=CFG002" in done.stdout
    checked = subprocess.run(
        [str(PRE_COMMIT), "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")],
        env=environment(PRE_COMMIT_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


# -- the action --------------------------------------------------------------------------------------------


def steps() -> dict[str, dict[str, Any]]:
    """The action's own shell steps by name."""
    assert ACTION["runs"]["using"] == "composite"
    return {s["name"]: s for s in ACTION["runs"]["steps"] if "run" in s}


def run_step(
    name: str, folder: Path, **inputs: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run a step as a runner does: inputs filled into its env, bash with the runner's options, an output file."""
    step = steps()[name]
    given = {k: v.get("default", "") for k, v in ACTION["inputs"].items()} | inputs
    assert set(inputs) <= set(ACTION["inputs"])
    env = {
        k: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m.group(1)], v)
        for k, v in step["env"].items()
    }
    assert "${{" not in step["run"], "an expression in a script is code"
    output = folder / "output"
    output.touch()
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=environment(GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=str(folder / "summary"), **env),
        capture_output=True,
        text=True,
        check=False,
    )
    outputs = dict(x.split("=", 1) for x in output.read_text("utf-8").splitlines())
    return done, outputs


def test_the_action_s_inputs_and_outputs() -> None:
    assert set(ACTION["inputs"]) >= {"path", "target", "engine", "args", "sarif"}
    for entry in (*ACTION["inputs"].values(), *ACTION["outputs"].values()):
        assert entry["description"]
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text("utf-8")))
    assert used == set(ACTION["inputs"])
    assert all(s.get("shell") == "bash" for s in steps().values())


def test_the_action_installs(tmp_path: Path) -> None:
    done, _ = run_step("Install", tmp_path)  # installed already: pip asks no index
    assert done.returncode == 0, done.stderr


def test_the_action_passes_a_good_draft(tmp_path: Path) -> None:
    shutil.copytree(DRAFT, tmp_path / "draft")
    done, outputs = run_step("Verify", tmp_path, path="draft", engine="sglang==0.5.23")
    assert done.returncode == 0, done.stderr
    assert outputs == {"verdict": "pass"}
    assert "ckpt verify draft: pass" in done.stdout
    assert (tmp_path / "summary").read_text("utf-8").startswith("### ✅ ckpt verify `draft`: pass")


def test_the_action_fails_a_bad_one_and_writes_sarif(tmp_path: Path) -> None:
    shutil.copytree(FOREIGN, tmp_path / "a draft")
    (tmp_path / ".git").mkdir()
    done, outputs = run_step(
        "Verify",
        tmp_path,
        path="a draft\n",
        target=str(FIXTURES / "models" / "llama_tiny"),
        engine="sglang==0.5.23\nvllm\n",
        args="--tp\n2\n",
        sarif="ckpt.sarif",
        summary="false",
    )
    assert done.returncode == 1
    assert outputs == {"verdict": "fail"}
    assert not (tmp_path / "summary").exists()
    run = json.loads((tmp_path / "ckpt.sarif").read_text("utf-8"))["runs"][0]
    assert [e["name"] for e in run["properties"]["engines"]] == ["sglang", "vllm"]
    uris = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert "a%20draft/config.json" in uris


def test_the_action_says_when_nothing_can_be_read(tmp_path: Path) -> None:
    done, outputs = run_step("Verify", tmp_path, path="gone/")
    assert done.returncode == 3
    assert outputs == {"verdict": "error"}


@pytest.mark.parametrize(
    "evil", ["$(touch hacked)", "; touch hacked", "`touch hacked`", "--version", "a\nb; touch hacked"]
)
def test_an_input_is_never_code(evil: str, tmp_path: Path) -> None:
    done, outputs = run_step("Verify", tmp_path, path=evil, target=evil)
    assert done.returncode != 0
    assert outputs["verdict"] == "error"
    assert not (tmp_path / "hacked").exists()
