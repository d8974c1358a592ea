"""Policy files: where they are found, what they may say, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_tools.api.policy import Policy, find_policy, parse_policy
from ckpt_tools.errors import InputError, UsageError


def write(folder: Path, text: str, name: str = "ckpt.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_everything_that_a_policy_says(tmp_path: Path) -> None:
    write(tmp_path, "x", "serve.sh")
    file = write(
        tmp_path,
        'target = "kimi-k2.5"\nengine = ["sglang==0.5.23", "vllm"]\ntp = 8\ncontext-length = 131072\n'
        'fail-on = "warning"\nlaunch = "serve.sh"\n\n[ignore]\nrop004 = "on purpose"\n',
    )
    assert find_policy(tmp_path) == Policy(
        file=file.resolve(),
        target="kimi-k2.5",
        engines=("sglang==0.5.23", "vllm"),
        tp=8,
        context_length=131072,
        fail_on="warning",
        launch=str(tmp_path.resolve() / "serve.sh"),
        ignore={"ROP004": "on purpose"},
    )


def test_the_nearest_policy_up_to_the_repository_s_root_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "tp = 1\n")
    inner = tmp_path / "repo" / "a" / "b"
    inner.mkdir(parents=True)
    assert find_policy(inner).tp == 1
    write(tmp_path / "repo", "[tool.ckpt]\ntp = 2\n", "pyproject.toml")
    assert find_policy(inner).tp == 2
    write(tmp_path / "repo" / "a", "[tool.other]\nx = 1\n", "pyproject.toml")
    assert find_policy(inner).tp == 2, "a pyproject.toml without a table for ckpt is passed over"
    write(tmp_path / "repo" / "a", "tp = 3\n")
    monkeypatch.chdir(inner)
    assert find_policy().tp == 3
    (inner / ".git").mkdir()
    assert find_policy() == Policy(), "what is above a repository's root isn't its policy"


@pytest.mark.parametrize("text", ["tool = 3\n", "[tool]\nckpt = 3\n", "not toml", "[tool.black]\nx = 1\n"])
def test_somebody_else_s_pyproject(tmp_path: Path, text: str) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, text, "pyproject.toml")
    assert find_policy(tmp_path) == Policy()


def test_ckpt_toml_wins_over_pyproject_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "[tool.ckpt]\ntp = 2\n", "pyproject.toml")
    write(tmp_path, "tp = 4\n")
    assert find_policy(tmp_path).tp == 4


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "tp = \n")
    with pytest.raises(InputError, match=r"ckpt\.toml: not TOML"):
        find_policy(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not TOML"):
        find_policy(tmp_path)

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(InputError, match=r"can't be read \(Permission denied\)"):
        find_policy(tmp_path)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"engines": "sglang"}, "unknown key 'engines'"),
        ({"tp": "8"}, "tp is '8', expected a number above zero"),
        ({"tp": True}, "tp is True"),
        ({"tp": 0}, "tp is 0, expected a number above zero"),
        ({"context-length": -1}, "context-length is -1"),
        ({"engine": []}, r"engine is \[\]"),
        ({"engine": 3}, "engine is 3"),
        ({"engine": ["sglang", 3]}, "expected text or a list of texts"),
        ({"fail-on": "info"}, "fail-on is 'info', expected error, warning or never"),
        ({"target": ["a"]}, "target is"),
        ({"ignore": ["ROP004"]}, "expected a table of codes with a reason each"),
        ({"ignore": {"ROP004": " "}}, r"ignore\.ROP004 has no reason"),
        ({"ignore": {"ROP004": 1}}, r"ignore\.ROP004 has no reason"),
        ({"ignore": {"RPO004": "on purpose"}}, r"ignore\.RPO004: no code begins so; did you mean ROP004"),
    ],
)
def test_what_a_policy_may_not_say(tmp_path: Path, table: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_policy(table, tmp_path / "ckpt.toml")


def test_paths_are_relative_to_the_policy(tmp_path: Path) -> None:
    (tmp_path / "models" / "target").mkdir(parents=True)
    file = tmp_path / "ckpt.toml"

    def target(text: str) -> str | None:
        return parse_policy({"target": text}, file).target

    there = str(tmp_path / "models" / "target")
    assert target("models/target") == there
    assert Path(target("./models/target") or "").samefile(there)
    assert target(there) == there
    assert target("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"
    (tmp_path / "kimi-k2.5").mkdir()
    assert target("kimi-k2.5") == "kimi-k2.5", "an id without a slash is one of the registry"


def test_a_launch_command_may_be_longer_than_a_file_name(tmp_path: Path) -> None:
    command = "python -m sglang.launch_server --model-path m " + "--x " * 2000
    assert parse_policy({"launch": command}, tmp_path / "ckpt.toml").launch == command


def test_the_engine_of_a_command() -> None:
    assert Policy().engine(None) == ("sglang", "default")
    assert Policy(engines=("vllm", "sglang")).engine(None) == ("vllm", "policy")
    assert Policy(engines=("vllm",)).engine("sglang==0.5.9") == ("sglang==0.5.9", "--engine")
