"""A push that is killed at any moment leaves the old state or the new one, and the next push goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from ckpt_tools.hub.push import plan_push
from ckpt_tools.hub.upload import apply_push
from tests.hubserver.drafts import make_draft, passing, render
from tests.hubserver.fixture import environment, hub

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hubserver import HubServer

__all__ = ["hub"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
SIZE = 1_000_000
PUSH = """
import sys
from pathlib import Path
from ckpt_tools.hub.push import plan_push
from ckpt_tools.hub.upload import apply_push
from tests.hubserver.drafts import passing, render
folder = Path(sys.argv[1])
plan = plan_push(folder, "me/draft", verify=passing(folder), render_report=render, license="mit")
print("done", apply_push(plan).commit)
"""
MOMENTS = {
    "before the repository is made": ("/api/repos/create", 0, 1),
    "after it is made": ("xet-write-token", 0, 1),
    "before the first file is announced": ("preupload", 0, 1),
    "as the first file is announced": ("objects/batch", 0, 1),
    "as the first file begins": ("PUT", 0, 1),
    "in the middle of the first file": ("PUT", SIZE // 2, 1),
    "after the first file": ("objects/verify", 0, 1),
    "in the middle of the second file": ("PUT", SIZE // 2, 2),
    "as the commit begins": ("/commit/", 0, 1),
    "after the commit": ("/tree/", 0, 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed(hub: HubServer, tmp_path: Path, moment: str) -> None:
    where, received, which = MOMENTS[moment]
    folder = make_draft(tmp_path / "draft", size=SIZE)
    env = environment(hub, tmp_path / "child")
    requests: list[str] = []
    struck = threading.Event()

    def strike(line: str, got: int) -> None:
        if got == 0 and where in line:
            requests.append(line)
        if where in line and len(requests) == which and got >= received and not struck.is_set():
            struck.set()
            child.send_signal(signal.SIGKILL)
            child.wait()

    hub.watch = strike
    child = subprocess.Popen(
        [sys.executable, "-c", PUSH, str(folder)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = child.communicate(timeout=120)
    hub.watch = lambda _line, _got: None
    assert struck.is_set(), f"never came to {moment}: {out}{err}"
    assert child.returncode == -signal.SIGKILL
    assert "done" not in out

    hub.log.find()  # the server has noticed
    arrived = {p.name: p.stat().st_size for p in hub.store.root.glob("blobs/*")}
    assert all(len(name) == 64 for name in arrived), "no half of a file counts as arrived"
    committed = _commits(hub)
    assert committed in ([], [set()], [_everything(folder), set()]), "all or nothing"

    hub.log.clear()
    plan = plan_push(folder, "me/draft", verify=passing(folder), render_report=render, license="mit")
    assert plan.nothing_to_do == (len(committed) == 2)
    apply_push(plan)
    assert _commits(hub) == [_everything(folder), set()], "one commit in all"
    large = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    assert hub.log.received("^PUT") == large - sum(arrived.values()), "what had arrived is not sent again"
    files = hub.store.repo("me/draft").resolve("main").files
    for path in folder.glob("*.safetensors"):
        assert hub.store.blob(str(files[path.name].sha256)).read_bytes() == path.read_bytes()


def _everything(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} | {"README.md", "ckpt_report.json"}


def _commits(hub: HubServer) -> list[set[str]]:
    """What each commit holds beside the Hub's own file, newest first."""
    if not (hub.store.root / "repos" / "me" / "draft").exists():
        return []
    history = hub.store.repo("me/draft").history("main")
    return [set(commit.files) - {".gitattributes"} for commit in history]
