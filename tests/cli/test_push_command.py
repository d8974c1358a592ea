"""``ckpt push`` against a Hub on the loopback: what goes, what is refused, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.server import LOGS, RAW, TARGET, ckpt, report
from tests.hubserver.faults import Fault
from tests.hubserver.fixture import READER, WRITER, hub, log_in

if TYPE_CHECKING:
    from click.testing import Result

    from tests.hubserver import HubServer

__all__ = ["hub"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    pytest.mark.usefixtures("hub", "folder"),
]
REPO = "me/draft"
GIVEN = ("--target", TARGET, "--license", "apache-2.0", "--base-model", "acme/tiny-target")


@pytest.fixture
def folder(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A draft that passes, in a folder whose name is also part of flags."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(served, tmp_path / "draft"))


def push(*args: str | Path) -> Result:
    done = ckpt("push", *args)
    assert WRITER not in done.output
    return done


def text(hub: HubServer, name: str, revision: str = "main") -> str:
    """A small file as the Hub holds it."""
    repo = hub.store.repo(REPO)
    return repo.object_path(repo.resolve(revision).files[name]).read_text()


def untouched(hub: HubServer) -> bool:
    """Whether nothing was asked to be made or sent."""
    return not hub.log.find(r"POST /api/repos/create|/preupload/|/commit/|PUT ")


def test_push_sends_the_draft_its_card_and_its_report(hub: HubServer, folder: Path) -> None:
    (folder / "optimizer.pt").write_bytes(b"x")
    done = push("draft", REPO, *GIVEN, "--engine", "sglang", "--engine", "vllm")
    assert done.exit_code == 0, done.output
    repo = hub.store.repo(REPO)
    files = repo.resolve("main").files
    own = {"config.json", "model.safetensors", "README.md", "ckpt_report.json"}
    assert own <= {*files}
    assert "optimizer.pt" not in files
    assert {*files} - own <= {".gitattributes", "conversion.json"}
    assert (
        hub.store.blob(files["model.safetensors"].sha256 or "").read_bytes()
        == (folder / "model.safetensors").read_bytes()
    )
    assert text(hub, "config.json") == (folder / "config.json").read_text()
    assert len(repo.history("main")) == 2, "one commit on the empty one"
    card = text(hub, "README.md")
    for said in ("license: apache-2.0", "base_model: acme/tiny-target", "speculative-decoding", "eagle3"):
        assert said in card.partition("\n---\n")[0]
    assert json.loads(text(hub, "ckpt_report.json"))["verdict"] == "pass"
    assert f"/{REPO}/commit/{repo.resolve('main').id}"[:60] in done.stdout.replace("\n", "").replace(" ", "")


def test_the_card_serves_the_repository_with_whole_flags(hub: HubServer, folder: Path) -> None:
    """The folder is called ``draft``, as are parts of flags and paths: none of it may be replaced in them."""
    assert push("draft", REPO, *GIVEN, "--engine", "sglang", "--engine", "vllm").exit_code == 0
    lines = text(hub, "README.md").splitlines()
    (sglang,) = [x for x in lines if x.startswith("sglang serve")]
    assert f"--speculative-draft-model-path {REPO} " in sglang
    assert "--model-path acme/tiny-target" in sglang
    (vllm,) = [x for x in lines if x.startswith("vllm serve")]
    assert vllm.startswith("vllm serve acme/tiny-target --speculative-config ")
    assert f'"model": "{REPO}"' in vllm
    for name in ("README.md", "ckpt_report.json"):
        assert str(folder) not in text(hub, name)
        assert str(TARGET) not in text(hub, name)


def test_here_is_pushed_with_the_same_card(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert push(".", REPO, "--target", TARGET, "--license", "mit").exit_code == 0
    (sglang,) = [x for x in text(hub, "README.md").splitlines() if x.startswith("sglang serve")]
    assert f"--speculative-draft-model-path {REPO} " in sglang
    assert f"--model-path {TARGET.name} " in sglang, "a local target is called by its name, not its path"


def test_an_engine_that_cannot_serve_it_has_no_command_on_the_card(hub: HubServer) -> None:
    """Without --engine the card shows both engines' commands, where the draft passes with them."""
    data = report("push", "draft", REPO, *GIVEN)[1]
    assert [e["name"] for e in data["engines"]] == ["sglang"]
    card = text(hub, "README.md")
    assert "sglang serve" in card
    assert "vllm serve" in card
    refused = report("push", "draft", REPO, *GIVEN, "--engine", "sglang==0.4.6")
    assert refused[0] == 1, "that release has no such draft"


def test_a_dry_run_changes_nothing(hub: HubServer, folder: Path) -> None:
    status, data = report("push", folder, REPO, *GIVEN, "--dry-run")
    assert status == 0
    plan = data["facts"]["push"]
    assert {f["state"] for f in plan["files"]} == {"new"}
    assert plan["bytes_to_send"] == sum(f["size"] for f in plan["files"])
    assert "commit" not in plan
    assert untouched(hub)
    table = push(folder, REPO, *GIVEN, "--dry-run").stdout
    assert "nothing: --dry-run" in table
    assert "model.safetensors" in table


def test_a_second_push_does_nothing(hub: HubServer) -> None:
    first = report("push", "draft", REPO, *GIVEN)[1]["facts"]["push"]
    assert first["nothing_to_do"] is False
    hub.log.clear()
    status, data = report("push", "draft", REPO, *GIVEN)
    assert status == 0
    assert data["facts"]["push"]["nothing_to_do"] is True
    assert data["facts"]["push"]["commit"] == first["commit"]
    assert untouched(hub)
    assert "holds exactly this" in " ".join(push("draft", REPO, *GIVEN).stdout.split())


@pytest.mark.parametrize("extra", [(), ("--smoke",)])
def test_a_check_that_refuses_uploads_nothing(
    hub: HubServer, extra: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckpt_tools.api import smoking

    monkeypatch.setattr(smoking, "smoke", lambda _: pytest.fail("verify comes first"))
    shutil.copytree(RAW, tmp_path / "raw")
    status, data = report("push", tmp_path / "raw", REPO, *GIVEN, *extra)
    assert status == 1
    codes = [f["code"] for f in data["findings"]]
    assert {"CFG002", "HUB006"} <= set(codes)
    ranks = [{"error": 0, "warning": 1, "info": 2}[f["severity"]] for f in data["findings"]]
    assert ranks == sorted(ranks), "worst first"
    assert hub.log.find() == [], "the Hub wasn't even asked"
    assert "nothing: a check refuses it" in push(tmp_path / "raw", REPO, *GIVEN).stdout


def test_neither_fail_on_nor_a_policy_gets_around_verify(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RAW, tmp_path / "raw")
    monkeypatch.chdir(tmp_path)
    Path("ckpt.toml").write_text('fail-on = "never"\n\n[ignore]\nCFG = "why not"\n')
    assert push("raw", REPO, *GIVEN).exit_code == 1
    assert push("raw", REPO, *GIVEN, "--fail-on", "never").exit_code == 2
    assert hub.log.find() == []


def test_the_policy_names_the_engines() -> None:
    Path("ckpt.toml").write_text('engine = ["vllm"]\n')
    engines = report("push", "draft", REPO, *GIVEN, "--dry-run")[1]["engines"]
    assert [(e["name"], e["why"]) for e in engines] == [("vllm", "policy")]
    engines = report("push", "draft", REPO, *GIVEN, "--dry-run", "--engine", "sglang")[1]["engines"]
    assert [(e["name"], e["why"]) for e in engines] == [("sglang", "--engine")]


def test_no_license_and_no_right_to_write(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    status, data = report("push", "draft", REPO, "--target", TARGET)
    assert (status, untouched(hub)) == (1, True)
    assert "HUB002" in {f["code"] for f in data["findings"]}
    log_in(monkeypatch, READER)
    status, data = report("push", "draft", REPO, *GIVEN)
    assert (status, untouched(hub)) == (1, True)
    assert "HUB005" in {f["code"] for f in data["findings"]}
    log_in(monkeypatch, None)
    assert report("push", "draft", REPO, *GIVEN)[0] == 4


def test_a_hub_that_is_down(hub: HubServer) -> None:
    hub.faults.add(Fault(match="", status=503, times=-1))
    status, data = report("push", "draft", REPO, *GIVEN)
    assert (status, data["error"]["kind"]) == (4, "unavailable")
    done = push("draft", REPO, *GIVEN)
    assert done.exit_code == 4
    assert "503" in done.stderr
    assert "Traceback" not in done.stderr
    hub.faults.clear()
    hub.faults.add(Fault(match="POST .*/commit/", status=403, body={"error": "storage limit"}, times=-1))
    assert push("draft", REPO, *GIVEN).exit_code == 4
    assert set(hub.store.repo(REPO).resolve("main").files) <= {".gitattributes"}, "no half of it is there"


def test_new_tries_are_told(hub: HubServer) -> None:
    hub.faults.add(Fault(match="POST .*/commit/", status=504, times=1))
    done = push("draft", REPO, *GIVEN)
    assert done.exit_code == 0, done.output
    assert "504" in done.stderr
    assert "warning[HUB019]" in done.stdout


def test_smoke_puts_its_result_on_the_card(hub: HubServer) -> None:
    pytest.importorskip("torch")
    assert push("draft", REPO, *GIVEN, "--smoke").exit_code == 0
    assert "`ckpt smoke` ran these very files on cpu: **pass**." in text(hub, "README.md")


def test_a_smoke_that_fails_says_why_and_uploads_nothing(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckpt_tools.api import smoking
    from ckpt_tools.checks.base import finding
    from ckpt_tools.model import Report, Subject

    bad = Report("smoke", Subject("draft"), "fail", findings=(finding("VAL021", "logits: NaN"),))
    monkeypatch.setattr(smoking, "smoke", lambda _: bad)
    status, data = report("push", "draft", REPO, *GIVEN, "--smoke")
    assert (status, untouched(hub)) == (1, True)
    assert {"VAL021", "HUB007"} <= {f["code"] for f in data["findings"]}


def test_reports_of_earlier_runs_go_on_the_card(hub: HubServer) -> None:
    pytest.importorskip("torch")
    for name, args in {
        "smoke.json": ("smoke", "draft", "--target", TARGET),
        "accept.json": ("accept", "--log", LOGS / "sglang-0.5.23-good.log"),
    }.items():
        assert ckpt(*args, "--format", "json", "--output", name).exit_code == 0
    given = (*GIVEN, "--report", "smoke.json", "--report", "accept.json")
    assert push("draft", REPO, *given).exit_code == 0
    card = text(hub, "README.md")
    assert "`ckpt smoke` ran these very files" in card
    assert re.search(r"\| 3 \| 2\.7", card)
    assert "Measured with from: log; engine: sglang" in card
    other = json.loads(Path("smoke.json").read_text())
    other["subject"]["content"]["model.safetensors"] = "sha256:" + "0" * 64
    Path("smoke.json").write_text(json.dumps(other))
    status, data = report("push", "draft", "me/other", *given)
    assert status == 1
    assert "HUB007" in {f["code"] for f in data["findings"]}, "it is of other files"
    failed = {**other, "verdict": "fail"}
    Path("smoke.json").write_text(json.dumps(failed))
    assert report("push", "draft", "me/other", *given)[0] == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't be read"),
        ("{", "not JSON"),
        ("[]", "no report of smoke or accept"),
        ('{"command": "verify"}', "no report of"),
    ],
)
def test_what_is_no_report(hub: HubServer, content: str | None, says: str) -> None:
    if content is not None:
        Path("r.json").write_text(content)
    status, data = report("push", "draft", REPO, *GIVEN, "--report", "r.json")
    assert status == 3
    assert says in data["error"]["message"]
    assert "--format json" in data["error"]["hint"]
    assert hub.log.find() == []


def test_tags_and_further_files(hub: HubServer, folder: Path) -> None:
    (folder / "figure.png").write_bytes(b"png")
    assert (
        push(
            "draft", REPO, *GIVEN, "--tags", "code, tiny,", "--tags", "x", "--include", "figure.png"
        ).exit_code
        == 0
    )
    assert "figure.png" in hub.store.repo(REPO).resolve("main").files
    head = text(hub, "README.md").partition("\n---\n")[0].splitlines()
    assert "- code" in head
    assert "- tiny" in head
    assert "- x" in head
    done = push("draft", REPO, *GIVEN, "--include", "none.txt")
    assert done.exit_code == 2
    assert "--include none.txt: not in the folder" in done.stderr


def test_private_branch_and_pull_request(hub: HubServer) -> None:
    assert push("draft", REPO, *GIVEN, "--private", "--revision", "v2").exit_code == 0
    repo = hub.store.repo(REPO)
    assert repo.settings.private is True
    assert "model.safetensors" in repo.resolve("v2").files
    assert "model.safetensors" not in repo.resolve("main").files
    pushed = report("push", "draft", REPO, *GIVEN, "--create-pr")[1]["facts"]["push"]
    assert "/discussions/" in pushed["pull_request"]
    assert "model.safetensors" not in repo.resolve("main").files
    clash = push("draft", REPO, *GIVEN, "--create-pr", "--revision", "v2")
    assert clash.exit_code == 2
    assert "drop one of the two" in clash.stderr


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (("nowhere", REPO), 3, "nowhere: no such file or folder"),
        (("draft/model.safetensors", REPO), 2, "give its folder"),
        (("draft", REPO, "--offline"), 2, "a push needs the Hub"),
        (("draft", "no-owner"), 3, "no-owner"),
    ],
)
def test_push_refuses(hub: HubServer, args: tuple[str, ...], status: int, says: str) -> None:
    done = push(*args, *GIVEN)
    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr
    assert untouched(hub)


def test_what_is_on_the_hub_already_is_not_pushed(hub: HubServer, folder: Path) -> None:
    hub.store.seed("team/draft", {p.name: p.read_bytes() for p in folder.iterdir()})
    done = push("team/draft", REPO, *GIVEN)
    assert done.exit_code == 2
    assert "is on the Hub already" in done.stderr
    assert untouched(hub)


def test_progress_shows_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert " MB" not in push("draft", "me/a", *GIVEN).stderr
    fake: Any = SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("ckpt_tools.cli.commands.push.sys", fake)
    shown = push("draft", "me/b", *GIVEN).stderr
    assert re.search(r"  \d+ of \d+ MB\n", shown)
    assert " MB" not in push("draft", "me/c", *GIVEN, "-q").stderr
