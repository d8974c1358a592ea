"""How a server names what it serves, and what a launch knows of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ckpt_tools import targets
from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.api.launching import LaunchRequest, draft_place, launch, mounts_of, target_place
from ckpt_tools.model import Engine, Target
from ckpt_tools.serving.args.command import Argument, LaunchPlan, Place
from ckpt_tools.serving.args.forms import exposed
from tests.cli.server import TARGET

PAIR = Path(__file__).parents[3] / "fixtures" / "pair"


def test_a_target_is_named_as_a_server_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kimi = targets.find("kimi-k2.5")
    assert kimi is not None
    (tmp_path / "kimi-k2.5").mkdir()
    assert target_place("kimi-k2.5", kimi) == Place(str(kimi.hf_repo)), "the registry's id wins over a folder"
    assert target_place("my-own", Target("my-own", "registry")) == Place("my-own")
    local = targets.read_target(TARGET)
    assert target_place(str(TARGET), local) == Place(str(TARGET))
    assert target_place(str(TARGET / "config.json"), local) == Place(str(TARGET))
    hub = Target("acme/x@v2", "hub")
    assert target_place("acme/x@v2", hub) == draft_place("acme/x@v2") == Place("acme/x", "v2")
    assert target_place("hf://acme/x", hub) == Place("acme/x")
    (tmp_path / "a@b").mkdir()
    assert draft_place("a@b") == Place("a@b")


def test_a_container_gets_the_folders_at_the_same_place(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(served.parent)
    made = launch(LaunchRequest(served.name, str(TARGET), contained=True)).plan
    assert set(made.mounts) == {str(served), str(TARGET)}
    argv = made.argv
    assert argv[argv.index("--speculative-draft-model-path") + 1] == str(served)
    assert launch(LaunchRequest(served.name, str(TARGET))).plan.mounts == ()


def test_a_folder_of_links_needs_what_they_lead_to(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1").write_text("x")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    (snapshot / "gone").symlink_to("../../blobs/2")
    assert mounts_of(str(snapshot)) == (str(blobs), str(snapshot))
    (tmp_path / "above.json").symlink_to(blobs / "1")
    assert mounts_of(str(tmp_path)) == (str(tmp_path),)


def test_the_command_may_call_them_otherwise_and_is_checked_all_the_same(served: Path) -> None:
    made = launch(
        LaunchRequest(str(served), str(TARGET), draft_as=Place("me/draft"), target_as=Place("acme/target"))
    )
    argv = made.plan.argv
    assert argv[argv.index("--model-path") + 1] == "acme/target"
    assert argv[argv.index("--speculative-draft-model-path") + 1] == "me/draft"
    assert made.report.verdict == "pass"
    assert made.report.subject.path == str(served)
    assert made.weight_bytes == (TARGET / "model.safetensors").stat().st_size


def test_a_window_that_the_conversion_left_to_the_command(tmp_path: Path) -> None:
    source = Path(shutil.copytree(PAIR / "draft", tmp_path / "in"))
    config = json.loads((source / "config.json").read_text("utf-8"))
    config["transformer_layer_config"] |= {"sliding_window": 64, "layer_types": ["sliding_attention"]}
    (source / "config.json").write_text(json.dumps(config), "utf-8")
    fix_keys(Request(str(source), str(tmp_path / "out"), target=str(PAIR / "target")))
    made = launch(LaunchRequest(str(tmp_path / "out"), str(PAIR / "target")))
    argv = made.plan.argv
    assert argv[argv.index("--speculative-draft-window-size") + 1] == "64"
    assert made.report.verdict == "pass"


def test_what_isn_t_known_isn_t_counted(served: Path) -> None:
    made = launch(LaunchRequest(str(served), "kimi-k2.5", force=True))
    assert made.weight_bytes is None
    assert made.report.verdict == "pass"
    assert any(f.severity.value == "error" for f in made.report.findings)
    assert launch(LaunchRequest(str(served), "kimi-k2.5")).report.verdict == "fail"


@pytest.mark.parametrize(
    ("engine", "flags"), [("sglang", ["--a", "--host"]), ("sglang-ext", ["--a", "--host"]), ("vllm", ["--a"])]
)
def test_only_sglang_must_be_told_to_listen(engine: str, flags: list[str]) -> None:
    plan = LaunchPlan(Engine(engine, "1", "1"), ("x",), (Argument("--a", (), ""),))
    assert [a.flag for a in exposed(plan).arguments] == flags
    assert exposed(exposed(plan)) == exposed(plan)


def test_settings_after_two_dashes_are_the_environment(served: Path) -> None:
    extra = ("NCCL_DEBUG=INFO", "SGLANG_X=a b=c", "--json-model-override-args", "A=1")
    made = launch(LaunchRequest(str(served), str(TARGET), extra=extra))
    assert made.plan.env == {"NCCL_DEBUG": "INFO", "SGLANG_X": "a b=c"}
    assert made.plan.argv[-2:] == extra[2:]
    assert made.report.facts["reasons"]["NCCL_DEBUG"] == "as given after --"
    longer = LaunchRequest(str(served), str(TARGET), context_length=4096, extra=("NCCL_DEBUG=INFO",))
    assert dict(launch(longer).plan.env) == {
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", "NCCL_DEBUG": "INFO",
    }  # fmt: skip
