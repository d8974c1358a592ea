"""Pushing to the loopback Hub: what goes, what is refused, and what happens when things go wrong."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_tools.errors import CkptError, ExitCode, InputError, Unavailable, UsageError
from ckpt_tools.hub import remote
from ckpt_tools.hub.card import Acceptance
from ckpt_tools.hub.codes import CODES
from ckpt_tools.hub.files import hash_file
from ckpt_tools.hub.push import PushPlan, plan_push
from ckpt_tools.hub.upload import Pushed, apply_push
from ckpt_tools.model import Engine, Finding, Fix, Location, Severity, Subject, Target
from tests.hubserver.drafts import make_draft, passing, render, smoked, weights
from tests.hubserver.fixture import FINE, READER, STRANGER, WRITER, log_in

if TYPE_CHECKING:
    from tests.hubserver import HubServer

# The client uploads files in a way that its own HTTP library has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
TOKENS = (WRITER, READER, STRANGER, FINE)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return make_draft(tmp_path / "draft")


def plan(folder: Path, repo: str = "me/draft", **kwargs: Any) -> PushPlan:
    kwargs.setdefault("verify", passing(folder))
    kwargs.setdefault("license", "apache-2.0")
    return plan_push(folder, repo, render_report=render, **kwargs)


def push(folder: Path, repo: str = "me/draft", **kwargs: Any) -> Pushed:
    return apply_push(plan(folder, repo, **kwargs))


def codes(found: tuple[Finding, ...], severity: Severity = Severity.INFO) -> set[str]:
    return {f.code for f in found if f.severity.rank >= severity.rank}


def errors(found: PushPlan | Pushed) -> set[str]:
    return codes(found.findings, Severity.ERROR)


def on_hub(hub: HubServer, repo: str = "me/draft", revision: str = "main") -> dict[str, bytes]:
    found = hub.store.repo(repo)
    out = {}
    for path, entry in found.resolve(revision).files.items():
        where = hub.store.blob(entry.sha256) if entry.sha256 else found.object_path(entry)
        out[path] = where.read_bytes()
    return out


def commits(hub: HubServer, repo: str = "me/draft") -> int:
    return len(hub.store.repo(repo).history("main"))


def written(hub: HubServer) -> list[str]:
    """Requests that could have changed something."""
    pattern = r"^(PUT|DELETE) |^POST (?!/api/validate-yaml|.*/paths-info/)"
    return [f"{s.method} {s.path}" for s in hub.log.find(pattern)]


def failure(call: Any) -> CkptError:
    with pytest.raises(CkptError) as caught:
        call()
    link: BaseException | None = caught.value
    while link is not None:
        for token in TOKENS:
            assert token not in f"{link} {link.args}"
        link = link.__cause__
    return caught.value


# -- a push ------------------------------------------------------------------------------------------------


def test_what_is_pushed_is_what_was_there(hub: HubServer, draft: Path) -> None:
    progress: list[tuple[int, int]] = []
    hashed: list[tuple[int, int]] = []
    planned = plan(draft, license="mit", progress=lambda *a: hashed.append(a))
    assert hashed[-1][0] == hashed[-1][1] == sum(p.stat().st_size for p in draft.iterdir())
    assert not planned.exists
    assert {f.state for f in planned.files} == {"new"}
    pushed = apply_push(planned, progress=lambda *a: progress.append(a))
    there = on_hub(hub)
    for path in draft.iterdir():
        assert there[path.name] == path.read_bytes()
    assert set(there) - {p.name for p in draft.iterdir()} == {
        ".gitattributes",
        "README.md",
        "ckpt_report.json",
    }
    assert pushed.url == f"{hub.url}/me/draft/commit/{pushed.commit}"
    assert pushed.findings == ()
    assert set(pushed.sent) == {f.name for f in planned.files}
    assert commits(hub) == 2, "one commit beside the Hub's own"
    assert progress == sorted(progress), "progress never goes back"
    assert progress[-1][0] >= 600_000
    assert not any(s.authorized for s in hub.log.find("__upload__")), "the storage never sees the token"


def test_a_second_push_has_nothing_to_do(hub: HubServer, draft: Path) -> None:
    first = push(draft)
    hub.log.clear()
    again = plan(draft)
    assert again.nothing_to_do
    assert again.bytes_to_send == 0
    result = apply_push(again)
    assert result.commit == first.commit
    assert result.sent == ()
    assert written(hub) == []


def test_only_what_changed_is_sent(hub: HubServer, draft: Path) -> None:
    push(draft)
    (draft / "model-00002-of-00002.safetensors").write_bytes(weights(9, 1000))
    hub.log.clear()
    result = push(draft)
    assert result.sent == ("model-00002-of-00002.safetensors",)
    assert hub.log.received("^PUT") < 2000


def test_large_files_go_up_in_parts(hub: HubServer, draft: Path) -> None:
    hub.part_size = 100_000
    hub.fault("__part__/.*/2", status=500)
    push(draft)
    assert len(hub.log.find("__part__")) == 9, "four parts each, and one again"
    assert on_hub(hub)["model-00001-of-00002.safetensors"] == weights(1, 300_000)


def test_a_private_repository_is_made(hub: HubServer, draft: Path) -> None:
    push(draft, private=True)
    assert hub.store.repo("me/draft").settings.private


def test_private_on_a_public_repository_is_refused(hub: HubServer, draft: Path) -> None:
    hub.store.create("me/draft")
    assert errors(plan(draft, private=True)) == {"HUB016"}


def test_a_branch_is_made(hub: HubServer, draft: Path) -> None:
    hub.store.create("me/draft")
    result = push(draft, revision="v2")
    repo = hub.store.repo("me/draft")
    assert repo.refs["refs/heads/v2"] == result.commit
    assert "config.json" not in repo.resolve("main").files


def test_pull_request(hub: HubServer, draft: Path) -> None:
    hub.store.create("stranger/draft")
    result = push(draft, "stranger/draft", create_pr=True)
    assert result.pull_request == f"{hub.url}/stranger/draft/discussions/1"
    assert set(hub.store.repo("stranger/draft").resolve("main").files) == {".gitattributes"}
    there = on_hub(hub, "stranger/draft", "refs/pr/1")
    assert there["model-00001-of-00002.safetensors"] == weights(1, 300_000)
    again = plan(draft, "stranger/draft", create_pr=True)
    assert again.nothing_to_do
    assert apply_push(again).pull_request == result.pull_request
    (draft / "config.json").write_text("{}")
    assert (
        push(draft, "stranger/draft", create_pr=True).pull_request
        == f"{hub.url}/stranger/draft/discussions/2"
    )


@pytest.mark.usefixtures("hub")
def test_a_pull_request_goes_to_the_default_branch(draft: Path) -> None:
    with pytest.raises(UsageError, match="--create-pr"):
        plan(draft, create_pr=True, revision="v2")


def test_offline_says_so(hub: HubServer, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in failure(lambda: plan(draft)).message
    assert hub.log.find() == []


def test_pagination_is_followed(hub: HubServer, draft: Path) -> None:
    push(draft)
    hub.page = 2
    assert plan(draft).nothing_to_do


# -- what goes ---------------------------------------------------------------------------------------------


def test_only_the_drafts_own_files_go(hub: HubServer, draft: Path) -> None:
    strangers = {
        "optimizer.pt": "training state",
        "scheduler.pt": "training state",
        "rng_state_0.pth": "training state",
        "training_args.bin": "training state",
        "trainer_state.json": "training state",
        "training_state.pt": "training state",
        "train.log": "a log",
        "events.out.tfevents.1.host": "a log",
        ".env": "hidden",
        ".gitignore": "hidden",
        "token": "may hold a secret",
        "id_ed25519": "may hold a secret",
        "pytorch_model.bin": "a pickle beside safetensors",
        "model.py": "code",
        "notes.docx": "not known to belong to a draft",
        "model.safetensors.tmp": "a temporary or backup file",
        "ckpt_report.json": "written anew by each push",
    }
    for name in strangers:
        (draft / name).write_text("{}")
    (draft / "global_step10").mkdir()
    (draft / "global_step10" / "x.pt").write_text("x")
    (draft / "tokenizer.json").write_text("{}")
    planned = plan(draft)
    assert {item.name: item.reason for item in planned.left_out} == {
        **strangers,
        "global_step10/": "a folder",
    }
    assert "HUB012" in codes(planned.findings)
    assert not planned.blocked
    apply_push(planned)
    assert not set(on_hub(hub)) & (set(strangers) - {"ckpt_report.json"})
    assert "tokenizer.json" in on_hub(hub)


@pytest.mark.usefixtures("hub")
def test_include_adds_what_is_unknown_but_never_a_secret(draft: Path) -> None:
    (draft / "vocab_map.npy").write_bytes(b"1")
    (draft / ".env").write_text("x")
    assert "vocab_map.npy" in {f.name for f in plan(draft, include=["vocab_map.npy"]).files}
    for name, reason in ((".env", "hidden"), ("absent.json", "not in the folder")):
        with pytest.raises(UsageError, match=reason):
            plan(draft, include=[name])


@pytest.mark.usefixtures("hub")
def test_pickles_go_only_alone(tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert errors(plan(folder)) == {"HUB011"}
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    planned = plan(folder)
    assert not planned.blocked
    assert codes(planned.findings, Severity.WARNING) == {"HUB013"}


# Put together here, so that nobody's scanner takes this file for a leak.
SECRETS = {
    "a Hub token": "hf_" + "A1b2" * 8,
    "an AWS key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "an AWS secret key": 'aws_secret_access_key = "' + "a" * 40 + '"',
    "a private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "a GitHub token": "ghp_" + "a1" * 18,
    "a GitLab token": "glpat-" + "a1" * 10,
    "a Slack token": "xoxb-" + "1234567890-" * 3,
    "a Google API key": "AIza" + "a" * 35,
    "an API key": "sk-proj-" + "a1" * 24,
    "an address with a password": "https://user:" + "passw0rd@example.org",
}


@pytest.mark.parametrize("what", SECRETS)
def test_secrets_stop_a_push_and_are_never_shown(hub: HubServer, draft: Path, what: str) -> None:
    (draft / "README.md").write_text(f"# mine\n\nuse {SECRETS[what]} to read\n")
    planned = plan(draft)
    assert errors(planned) == {"HUB008"}
    found = next(f for f in planned.findings if f.code == "HUB008")
    assert what in found.message
    assert found.location == Location("README.md", line=3) or found.location.file == "README.md"
    assert SECRETS[what] not in repr(planned.findings)
    assert written(hub) == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "chat_template.jinja"])
def test_secrets_are_found_in_every_text(hub: HubServer, draft: Path, name: str) -> None:
    (draft / name).write_text(json.dumps({"x": SECRETS["a Hub token"]}))
    assert errors(plan(draft)) == {"HUB008"}
    assert written(hub) == []


@pytest.mark.usefixtures("hub")
def test_secrets_are_found_in_safetensors_metadata(draft: Path) -> None:
    data = weights(1, 10)
    data = data.replace(b"layers.1.weight", SECRETS["a Hub token"].encode())
    (draft / "model-00001-of-00002.safetensors").write_bytes(
        (len(data) - 18).to_bytes(8, "little") + data[8:]
    )
    assert errors(plan(draft)) == {"HUB008"}
    (draft / "model-00001-of-00002.safetensors").write_bytes(b"1")
    assert errors(plan(draft)) == set(), "a file without a header is verify's business"


def test_paths_of_this_machine_are_replaced_or_refused(hub: HubServer, draft: Path) -> None:
    config = {
        "_name_or_path": "/home/someone/run/epoch_3",
        "speculators_config": {"verifier": {"name_or_path": "/data/Llama-3.1-8B"}},
        "nested": [{"dataset": "/mnt/data/sharegpt.jsonl"}],
        "fine": ["/no_think", "a/b", "https://x.org/a/b", "</s>", 3],
    }
    text = json.dumps(config, indent=2)
    (draft / "config.json").write_text(text)
    report = passing(draft, target=None)
    planned = plan(draft, verify=report)
    found = {f.location.pointer: f for f in planned.findings if f.code == "HUB009"}
    assert set(found) == {"/speculators_config/verifier/name_or_path", "/nested/0/dataset"}
    verifier = found["/speculators_config/verifier/name_or_path"]
    assert verifier.location.line == 5
    assert "--base-model" in str(verifier.hint)
    assert written(hub) == []

    del config["nested"]
    (draft / "config.json").write_text(json.dumps(config))
    push(draft, verify=report, base_model="meta/Llama-3.1-8B")
    there = json.loads(on_hub(hub)["config.json"])
    assert there["_name_or_path"] is None
    assert there["speculators_config"]["verifier"]["name_or_path"] == "meta/Llama-3.1-8B"
    assert there["fine"] == config["fine"]
    assert json.loads((draft / "config.json").read_text()) == config, "the folder is left alone"
    assert plan(draft, verify=report, base_model="meta/Llama-3.1-8B").nothing_to_do


@pytest.mark.usefixtures("hub")
def test_a_config_that_is_no_json_is_an_input_error(draft: Path) -> None:
    (draft / "config.json").write_text("{")
    assert "config.json isn't JSON" in failure(lambda: plan(draft)).message


def test_nobodys_paths_are_in_the_report(hub: HubServer, draft: Path) -> None:
    finding = Finding(
        "ROP003", "rope", Severity.WARNING, f"{draft}/config.json differs", hint=f"ckpt fix-keys {draft} out",
        fix=Fix(f"ckpt fix-keys {draft} out"),
    )  # fmt: skip
    target = Target(id="/data/private/Llama", origin="local")
    facts = {"source": [{"path": f"{draft}/config.json"}], "draft": {}}
    report = passing(draft, findings=(finding,), target=target, facts=facts)
    push(draft, verify=report, base_model="base/target")
    there = on_hub(hub)
    for name in ("ckpt_report.json", "README.md"):
        assert str(draft).encode() not in there[name]
        assert b"/data/private" not in there[name]
    assert json.loads(there["ckpt_report.json"])["subject"]["path"] == "me/draft"


def test_weights_of_an_earlier_push_are_removed(hub: HubServer, draft: Path) -> None:
    push(draft)
    for path in draft.glob("model*"):
        path.unlink()
    (draft / "model.safetensors").write_bytes(weights(5, 1000))
    planned = plan(draft)
    assert "HUB015" in codes(planned.findings)
    result = apply_push(planned)
    assert set(result.deleted) == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    assert {n for n in on_hub(hub) if n.startswith("model")} == {"model.safetensors"}
    assert commits(hub) == 3


def test_other_peoples_weights_are_never_removed(hub: HubServer, draft: Path) -> None:
    hub.store.seed("me/draft", {"pytorch_model.bin": b"other", "config.json": b"{}"})
    planned = plan(draft)
    assert errors(planned) == {"HUB014"}
    assert planned.deletes == ()
    with pytest.raises(InputError, match="HUB014"):
        apply_push(planned)
    assert written(hub) == []


# -- the five public reports -------------------------------------------------------------------------------


def test_bad_front_matter_is_refused_before_the_upload(hub: HubServer, draft: Path) -> None:
    """huggingface_hub#1927."""
    (draft / "README.md").write_text("---\nlicense: apache-2.0\nmodel-index: not a list\n---\n# tiny\n")
    planned = plan(draft)
    assert errors(planned) == {"HUB001"}
    message = next(f.message for f in planned.findings if f.code == "HUB001")
    assert "model-index must be a list" in message
    assert "nothing was uploaded" in message
    assert written(hub) == []


def test_what_only_the_hub_refuses_is_refused_before_the_upload(hub: HubServer, draft: Path) -> None:
    planned = plan(draft, license="my-own")
    assert errors(planned) == {"HUB001"}
    assert "license" in next(f.message for f in planned.findings if f.code == "HUB001")
    hub.fault("validate-yaml", status=400, body={"errors": [{"message": "no such thing"}]})
    assert "no such thing" in repr(plan(draft).findings)
    hub.fault("validate-yaml", status=400, body={"x": 1})
    assert errors(plan(draft)) == {"HUB001"}
    assert written(hub) == []


def test_what_only_the_client_refuses_is_refused_before_the_upload(hub: HubServer, draft: Path) -> None:
    (draft / "README.md").write_text("---\nlicense: mit\nmodel-index: [3]\n---\n# tiny\n")
    planned = plan(draft, license=None)
    assert errors(planned) == {"HUB001"}
    assert hub.log.find("validate-yaml") == []


def test_read_only_token(hub: HubServer, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub#937."""
    log_in(monkeypatch, READER)
    planned = plan(draft)
    assert errors(planned) == {"HUB005"}
    message = planned.findings[0].message
    assert message == "the token is read-only; it needs write access to me"
    assert READER not in repr(planned)
    assert written(hub) == []
    assert "pull requests" in plan(draft, create_pr=True).findings[0].message


def test_storage_limit_is_final(hub: HubServer, draft: Path) -> None:
    """huggingface_hub#3315."""
    hub.fault(
        "/commit/", status=403, times=-1, headers={"X-Error-Message": "storage patterns: limit reached"}
    )
    planned = plan(draft)
    error = failure(lambda: apply_push(planned))
    assert error.exit_code == ExitCode.UNAVAILABLE
    assert "403" in error.message
    assert "not retried" in error.message
    assert "storage patterns: limit reached" in error.message
    assert "no commit was made" in error.message
    assert len(hub.log.find("/commit/")) == 1
    assert commits(hub) == 1


def test_gateway_time_out_at_the_commit(hub: HubServer, draft: Path) -> None:
    """huggingface_hub#2375."""
    hub.fault("/commit/", status=504)
    said: list[str] = []
    result = apply_push(plan(draft), notify=said.append)
    assert said == ["committing to me/draft: 504 from the Hub, retry 1/5"]
    assert [(f.code, f.severity) for f in result.findings] == [("HUB019", Severity.WARNING)]
    assert commits(hub) == 2
    assert plan(draft).nothing_to_do


def test_one_of_three_files_fails(hub: HubServer, tmp_path: Path) -> None:
    """huggingface_hub#3747."""
    folder = make_draft(tmp_path / "three", shards=3)
    second = hashlib.sha256((folder / "model-00002-of-00003.safetensors").read_bytes()).hexdigest()
    hub.fault(f"PUT .*{second}", status=500, times=-1)
    error = failure(lambda: push(folder))
    assert error.exit_code == ExitCode.UNAVAILABLE
    assert "1 of 3 large files failed (model-00002-of-00003.safetensors)" in error.message
    assert "no commit was made" in error.message
    assert "isn't sent again" in str(error.hint)
    assert commits(hub) == 1
    hub.faults.clear()
    hub.log.clear()
    push(folder)
    assert len(hub.log.find("^PUT")) == 1, "the two that had arrived are not sent again"
    assert commits(hub) == 2


def test_three_failures_of_a_file_are_outlived(hub: HubServer, draft: Path) -> None:
    second = hashlib.sha256((draft / "model-00002-of-00002.safetensors").read_bytes()).hexdigest()
    hub.fault(f"PUT .*{second}", status=500, times=3)
    push(draft)
    assert commits(hub) == 2


# -- more faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_lost_answer_makes_no_second_commit(hub: HubServer, draft: Path, status: int) -> None:
    hub.fault("/commit/", action="late", status=status)
    result = push(draft)
    assert commits(hub) == 2
    assert hub.store.repo("me/draft").resolve("main").id == result.commit


def test_a_lost_answer_makes_no_second_pull_request(hub: HubServer, draft: Path) -> None:
    hub.store.create("me/draft")
    hub.fault("/commit/", action="late", status=504)
    result = push(draft, create_pr=True)
    assert result.pull_request == f"{hub.url}/me/draft/discussions/1"
    assert [ref for ref in hub.store.repo("me/draft").refs if "pr" in ref] == ["refs/pr/1"]


def test_the_last_lost_answer_counts_too(hub: HubServer, draft: Path) -> None:
    hub.fault("/commit/", status=504, times=remote.TRIES - 1)
    hub.fault("/commit/", action="late", status=504)
    push(draft)
    assert commits(hub) == 2


def test_a_hub_that_stays_down_is_given_up(hub: HubServer, draft: Path) -> None:
    hub.fault("/commit/", status=503, times=-1)
    error = failure(lambda: push(draft))
    assert isinstance(error, Unavailable)
    assert "503" in error.message
    assert "no commit was made" in error.message
    assert len(hub.log.find("/commit/")) == remote.TRIES
    assert commits(hub) == 1


def test_a_cut_upload_is_tried_again(hub: HubServer, draft: Path) -> None:
    hub.fault("^PUT", action="cut", after=100_000)
    push(draft)
    assert on_hub(hub)["model-00001-of-00002.safetensors"] == weights(1, 300_000)


def test_uploads_that_are_always_cut_are_given_up(hub: HubServer, draft: Path) -> None:
    hub.fault("^PUT", action="cut", after=100_000, times=-1)
    error = failure(lambda: push(draft))
    assert isinstance(error, Unavailable)
    assert "2 of 2 large files failed" in error.message
    assert commits(hub) == 1


def test_a_slow_hub_is_waited_for(hub: HubServer, draft: Path) -> None:
    hub.fault("^PUT", action="slow", delay=0.01)
    push(draft)
    assert commits(hub) == 2


@pytest.mark.parametrize(
    "where", ["preupload", "objects/batch", "/commit/", "validate-yaml", "whoami", "/tree/"]
)
def test_being_asked_to_wait(hub: HubServer, draft: Path, where: str) -> None:
    hub.fault(where, status=429, headers={"Retry-After": "1"}, times=2)
    push(draft)
    assert commits(hub) == 2


def test_somebody_else_commits_in_between(hub: HubServer, draft: Path) -> None:
    hub.store.create("me/draft")
    planned = plan(draft)
    hub.store.seed("me/draft", {"notes.md": b"mine"})
    error = failure(lambda: apply_push(planned))
    assert error.exit_code == ExitCode.UNAVAILABLE
    assert "has moved on" in error.message
    assert set(on_hub(hub)) == {".gitattributes", "notes.md"}
    push(draft)
    assert on_hub(hub)["notes.md"] == b"mine"


@pytest.mark.parametrize("where", ["preupload", "objects/batch", "^PUT", "objects/verify", "repos/create"])
@pytest.mark.parametrize("status", [400, 401, 403])
def test_refusals_on_the_way_are_final(hub: HubServer, draft: Path, where: str, status: int) -> None:
    planned = plan(draft)
    hub.fault(where, status=status, times=-1, headers={"X-Error-Message": "storage limit"})
    error = failure(lambda: apply_push(planned))
    assert isinstance(error, Unavailable)
    assert str(status) in error.message
    assert len([s for s in hub.log.find(where) if s.status == status]) == 1
    if where != "repos/create":
        assert commits(hub) == 1


@pytest.mark.parametrize(
    ("where", "hint"), [("validate-yaml", "later"), ("whoami", "later"), ("/api/models/", "later")]
)
def test_a_hub_that_is_down_before_the_upload(hub: HubServer, draft: Path, where: str, hint: str) -> None:
    hub.fault(where, status=503, times=-1)
    error = failure(lambda: plan(draft))
    assert isinstance(error, Unavailable)
    assert hint in str(error.hint)
    assert written(hub) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "is missing"),
        ([{"type": "file", "path": "config.json", "size": 1, "oid": "0" * 40}], "has 1 bytes instead of"),
    ],
)
def test_what_arrives_differently_is_found(hub: HubServer, draft: Path, body: Any, says: str) -> None:
    planned = plan(draft)
    # Creating the repository lists nothing, so this strikes the comparison.
    hub.fault("/tree/", status=200, body=body, skip=1)
    result = apply_push(planned)
    assert errors(result) == {"HUB018"}
    assert says in " ".join(f.message for f in result.findings)


def test_another_hash_is_found(hub: HubServer, draft: Path) -> None:
    push(draft)
    size = (draft / "config.json").stat().st_size
    text = (draft / "config.json").read_text()
    (draft / "config.json").write_text(text.replace("96", "97"))
    planned = plan(draft)
    assert planned.changed[0].size == size
    rows = [{"type": "file", "path": "config.json", "size": size, "oid": "0" * 40}]
    hub.fault("/tree/", status=200, body=rows, skip=1)
    assert "config.json has another hash" in repr(apply_push(planned).findings)


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_changes_meanwhile(hub: HubServer, draft: Path, same_size: bool) -> None:
    planned = plan(draft)
    (draft / "model-00001-of-00002.safetensors").write_bytes(weights(3, 300_000 if same_size else 10))
    error = failure(lambda: apply_push(planned))
    assert isinstance(error, InputError)
    assert "has changed" in error.message
    assert commits(hub) == 1


def test_a_hub_with_xet_gets_paths(hub: HubServer, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where write tokens are given, the client chooses; without hf_xet it takes Git LFS with paths."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hub.fault("xet-write-token", status=200, times=-1)
    push(draft)
    assert commits(hub) == 2
    (draft / "model-00001-of-00002.safetensors").write_bytes(weights(3, 300_000))
    planned = plan(draft)
    (draft / "model-00001-of-00002.safetensors").write_bytes(weights(4, 300_000))
    assert "has changed" in failure(lambda: apply_push(planned)).message
    assert commits(hub) == 2


# -- who may push ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "repo", "says"),
    [
        (WRITER, "me/draft", None),
        (WRITER, "team/draft", None),
        (WRITER, "club/draft", "only a reader of club"),
        (WRITER, "stranger/draft", "not a member of stranger"),
        (FINE, "me/fine", None),
        (FINE, "me/draft", "may write me/fine"),
    ],
)
def test_rights(
    hub: HubServer, draft: Path, monkeypatch: Any, token: str, repo: str, says: str | None
) -> None:
    log_in(monkeypatch, token)
    planned = plan(draft, repo)
    assert errors(planned) == (set() if says is None else {"HUB005"})
    if says is not None:
        assert says in planned.findings[0].message
        assert len(hub.log.find()) == 1, "nothing more is asked"


def test_no_token_and_a_wrong_one(hub: HubServer, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(monkeypatch, None)
    assert "hf auth login" in str(failure(lambda: plan(draft)).hint)
    log_in(monkeypatch, "hf_wrongwrongwrong")
    assert "doesn't accept your token" in failure(lambda: plan(draft)).message
    assert written(hub) == []


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("repo", ["draft", "a/b/c", "me/dr--aft", "me/"])
def test_malformed_ids(draft: Path, repo: str) -> None:
    assert isinstance(failure(lambda: plan(draft, repo)), InputError)


def test_a_gated_repository_of_others(hub: HubServer, draft: Path) -> None:
    hub.store.create("team/draft")
    hub.fault("GET /api/models/", status=403, headers={"X-Error-Code": "GatedRepo"}, times=-1)
    assert "gated" in failure(lambda: plan(draft, "team/draft")).message


# -- the reports -------------------------------------------------------------------------------------------


def test_there_is_no_way_around_verify(hub: HubServer, draft: Path) -> None:
    bad = Finding("CAP003", "x", Severity.ERROR, "wrong")
    planned = plan(draft, verify=passing(draft, verdict="fail", findings=(bad, bad)))
    assert errors(planned) == {"HUB006"}
    assert "2 errors (CAP003)" in planned.findings[0].message
    assert hub.log.find() == []
    assert errors(plan(draft, verify=passing(draft, verdict="error"))) == {"HUB006"}


def test_smoke_is_trusted_for_these_files_only(hub: HubServer, draft: Path) -> None:
    assert errors(plan(draft, smoke=smoked(draft))) == set()
    assert errors(plan(draft, smoke=smoked(draft, verdict="fail"))) == {"HUB007"}
    assert errors(plan(draft, smoke=smoked(draft, subject=Subject("x")))) == {"HUB007"}
    before = smoked(draft)
    (draft / "model-00001-of-00002.safetensors").write_bytes(weights(7, 10))
    planned = plan(draft, smoke=before)
    assert errors(planned) == {"HUB007"}
    assert "another model-00001-of-00002.safetensors" in repr(planned.findings)
    assert written(hub) == []


def test_smoke_and_acceptance_are_on_the_card(hub: HubServer, draft: Path) -> None:
    acceptance = Acceptance(
        {
            "per_position": [0.8, 0.6],
            "expected_length": {"1": 1.8, "2": {"value": 2.2, "low": 2.1, "high": 2.3}},
        },
        {"data": "MT-Bench", "engine": "SGLang 0.5.23", "temperature": "0"},
    )
    engines = (Engine("sglang-ext", "0.5.23", "0.5.23"), Engine("vllm", "0.33.0", "0.33.0"))
    push(
        draft,
        smoke=smoked(draft, facts={"device": "cpu"}),
        verify=passing(draft, engines=engines),
        serve={"sglang": "python -m sglang.launch_server --x", "vllm": "vllm serve base/target"},
        acceptance=acceptance,
        tags=["chat"],
    )
    card = on_hub(hub)["README.md"].decode()
    for text in (
        "base_model: base/target", "- speculative-decoding", "- eagle3", "- sglang", "- vllm", "- chat",
        "license: apache-2.0", "library_name: sglang", "| captured target layers (outputs, 0-based) | 2, 4, 5 |",
        "python -m sglang.launch_server --x", "| 1 | 0.800 |", "| 2 | 2.200 (2.100 to 2.300) |",
        "Measured with data: MT-Bench; engine: SGLang 0.5.23; temperature: 0.", "**pass**", "on cpu",
    ):  # fmt: skip
        assert text in card
    assert "- sglang-ext" not in card


# -- the card on the Hub -----------------------------------------------------------------------------------


def test_what_was_written_on_the_site_is_kept(hub: HubServer, draft: Path) -> None:
    push(draft)
    card = on_hub(hub)["README.md"].decode()
    edited = card.replace("# draft", "# My draft\n\nHow I trained it.") + "\nCite me.\n"
    edited = edited.replace("license: apache-2.0", "license: apache-2.0\nlanguage: en")
    hub.store.seed("me/draft", {"README.md": edited.encode()})
    (draft / "config.json").write_text('{"hidden_size": 65}')
    report = passing(draft, facts={"draft": {"hidden_size": 65}})
    push(draft, verify=report, license=None)
    there = on_hub(hub)["README.md"].decode()
    for text in ("# My draft\n\nHow I trained it.", "Cite me.", "language: en", "| hidden size | 65 |"):
        assert text in there
    assert there.count("begin of the generated part") == 1


def test_the_folders_card_wins_and_says_so(hub: HubServer, draft: Path) -> None:
    hub.store.seed("me/draft", {"README.md": b"# from the site\n"})
    (draft / "README.md").write_text("# from the folder\n")
    planned = plan(draft)
    assert "HUB017" in codes(planned.findings, Severity.WARNING)
    apply_push(planned)
    assert b"# from the folder" in on_hub(hub)["README.md"]
    assert "HUB017" not in codes(plan(draft).findings)


# -- no token anywhere -------------------------------------------------------------------------------------


def test_the_token_is_in_no_output(
    hub: HubServer, draft: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    echo = {"X-Error-Message": f"Authorization: Bearer {WRITER} is no good"}
    texts = []
    for where, status in (
        ("whoami", 401),
        ("validate-yaml", 503),
        ("batch", 403),
        ("^PUT", 400),
        ("/commit/", 403),
    ):
        hub.fault(where, status=status, headers=echo, body={"error": f"bad {WRITER}"}, times=-1)
        error = failure(lambda: apply_push(plan(draft, notify=said.append), notify=said.append))
        texts.append(f"{error!r} {error.hint}")
        hub.faults.clear()
    result = push(draft)
    out = capsys.readouterr()
    # The client logs by itself; what it writes is not ours to show, so only our own records are looked at.
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("ckpt")]
    everything = "\n".join([*texts, *said, *ours, repr(result), out.out])
    assert WRITER not in everything
    for data in on_hub(hub).values():
        assert WRITER.encode() not in data


def test_every_code_has_a_page_and_is_used() -> None:
    sources = "".join(
        p.read_text() for p in Path(remote.__file__).parent.glob("*.py") if p.name != "codes.py"
    )
    for code, row in CODES.items():
        assert re.fullmatch(r"HUB0\d\d", code)
        assert code == row.code
        assert all((row.title, row.checks, row.why, row.example, row.fix))
        assert f'"{code}"' in sources, f"{code} is never found"


def test_files_that_are_gone(hub: HubServer, draft: Path) -> None:
    planned = plan(draft)
    (draft / "model-00001-of-00002.safetensors").unlink()
    assert "can't be read any more" in failure(lambda: apply_push(planned)).message
    assert "can't be read" in failure(lambda: hash_file("x", draft / "gone")).message
    assert commits(hub) == 1
