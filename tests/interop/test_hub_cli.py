"""The client's own command line, unmodified, beside ckpt: one writes what the other reads.

These tests, and those of ``tests/unit/hub``, run against whichever client is installed; they are meant to be run
with the oldest that is supported (0.34), the last below 2.0 (1.31) and the newest.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckpt_tools.hub.push import plan_push
from ckpt_tools.hub.source import open_hub
from ckpt_tools.hub.upload import apply_push
from tests.hubserver.drafts import make_draft, passing, render
from tests.hubserver.fixture import WRITER, environment, hub

if TYPE_CHECKING:
    from tests.hubserver import HubServer

__all__ = ["hub"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
HF = Path(sysconfig.get_path("scripts")) / "hf"


def hf(hub: HubServer, home: Path, *args: str, **env: str) -> str:
    """Run ``hf``; its output."""
    done = subprocess.run(
        [HF, *args], env={**environment(hub, home), **env}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert WRITER not in done.stdout + done.stderr
    return done.stdout


def test_hf_download_gets_what_was_pushed(hub: HubServer, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", shards=3)
    hub.part_size = 100_000
    plan = plan_push(folder, "me/draft", verify=passing(folder), render_report=render, license="mit")
    apply_push(plan)
    out = tmp_path / "out"
    hf(hub, tmp_path / "home", "download", "me/draft", "--local-dir", str(out))
    for path in folder.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
    assert (out / "README.md").read_text().startswith("---\n")
    assert json.loads((out / "ckpt_report.json").read_text())["verdict"] == "pass"
    again = plan_push(out, "me/draft", verify=passing(out), render_report=render, license="mit")
    assert again.nothing_to_do, "pushing what was downloaded changes nothing"


@pytest.mark.parametrize("part_size", [32 << 20, 100_000])
def test_what_hf_uploads_is_read(hub: HubServer, tmp_path: Path, part_size: int) -> None:
    folder = make_draft(tmp_path / "draft")
    hub.part_size = part_size
    # The server has no Xet; the client must be told, since newer ones never ask.
    hf(hub, tmp_path / "home", "upload", "me/draft", str(folder), HF_HUB_DISABLE_XET="1")
    source, commit = open_hub("me/draft")
    assert commit == hub.store.repo("me/draft").resolve("main").id
    assert {p.name for p in folder.iterdir()} <= set(source.list())
    for path in folder.iterdir():
        data = path.read_bytes()
        assert source.list()[path.name] == len(data)
        assert source.read(path.name, 0, len(data)) == data
    length = struct.unpack("<Q", source.read("model-00001-of-00002.safetensors", 0, 8))[0]
    assert b"layers.1.weight" in source.read("model-00001-of-00002.safetensors", 8, 8 + length)


def test_snapshots_that_hf_cached_are_taken_offline(hub: HubServer, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft")
    hub.store.seed("me/draft", {p.name: p.read_bytes() for p in folder.iterdir()})
    hf(hub, tmp_path / "hf_home", "download", "me/draft")
    hub.log.clear()
    source, _ = open_hub("me/draft", offline=True)
    for path in folder.iterdir():
        assert source.read(path.name, 0, 1 << 30) == path.read_bytes()
    assert hub.log.find() == []


def test_variables_are_honoured_by_a_fresh_process(hub: HubServer, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE and a proxy, as the client reads them itself."""
    hub.store.seed("team/draft", {"config.json": b'{"a": 1}'})
    settings = hub.store.repo("team/draft").settings
    settings.private = True
    hub.store.repo("team/draft").settings = settings
    code = (
        "import sys; from ckpt_tools.hub.source import open_hub\n"
        "from ckpt_tools.errors import CkptError\n"
        "try: print(open_hub('team/draft')[0].read('config.json', 0, 99))\n"
        "except CkptError as error: sys.exit(f'{type(error).__name__}: {error}')"
    )

    def run(**changes: str) -> subprocess.CompletedProcess[str]:
        env = {**environment(hub, tmp_path / "fresh"), **changes}
        return subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
        )

    assert "Unavailable" in run(HF_HUB_OFFLINE="1").stderr
    assert "InputError" in run(HF_TOKEN="").stderr
    good = run()
    assert good.stdout.strip() == repr(b'{"a": 1}'), good.stderr
    assert (tmp_path / "fresh" / "hub").is_dir()
    assert run(HF_HUB_OFFLINE="1").stdout == good.stdout
    # The loopback server takes the place of a proxy: that it is asked for another host is all that matters.
    hub.log.clear()
    run(
        HF_ENDPOINT="http://hub.invalid",
        HTTP_PROXY=hub.url,
        http_proxy=hub.url,
        NO_PROXY="",
        HF_HUB_OFFLINE="0",
    )
    assert {seen.host for seen in hub.log.find()} == {"hub.invalid"}


def test_the_server_runs_by_hand(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.hubserver", "--root", str(tmp_path / "root"), "--port", "0"]
    server = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split("HF_ENDPOINT=")[1].split()[0]
        fault = urllib.request.Request(f"{url}/__admin__/fault", b'{"match": "whoami", "status": 503}')
        with urllib.request.urlopen(fault) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/api/whoami-v2")
        with urllib.request.urlopen(f"{url}/__admin__/log") as answer:
            assert [seen["path"] for seen in json.load(answer)] == ["/api/whoami-v2"]
        with urllib.request.urlopen(urllib.request.Request(f"{url}/__admin__/reset", b"")) as answer:
            assert json.load(answer) == {}
        with urllib.request.urlopen(f"{url}/__admin__/log") as answer:
            assert json.load(answer) == []
    finally:
        server.terminate()
        server.communicate(timeout=30)
