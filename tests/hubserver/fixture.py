"""pytest fixtures: a Hub on a loopback port, and the client of this process pointed at it."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.hubserver.server import HubServer, User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITER = "hf_WriterTokenForTests0123456789"
READER = "hf_ReaderTokenForTests0123456789"
STRANGER = "hf_StrangerTokenForTests01234567"
FINE = "hf_FineGrainedTokenForTests01234"
USERS = {
    WRITER: User("me", orgs={"team": "write", "club": "read"}),
    READER: User("me", role="read"),
    STRANGER: User("stranger"),
    FINE: User("me", role="fineGrained", writes=("me/fine",)),
}


def environment(hub: HubServer, home: Path, token: str | None = WRITER) -> dict[str, str]:
    """The variables that point a child process at the server and at a cache of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "HTTP", "http"))}
    env.update(
        HF_ENDPOINT=hub.url,
        HF_HOME=str(home),
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        NO_PROXY="127.0.0.1,localhost",
    )
    if token is not None:
        env["HF_TOKEN"] = token
    return env


def log_in(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    """Give the client of this process another token, or none."""
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
    else:
        monkeypatch.setenv("HF_TOKEN", token)


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: HubServer, home: Path) -> None:
    """Point the client of this process at the server.

    The client reads its variables once, when it is imported, so what it made of them is replaced. Its waits
    between tries are skipped: how often it tries stays its own business.
    """
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    from ckpt_tools.hub import remote

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    for module in (constants, file_download):  # clients below 1.0 keep a copy
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None, time=time.time))
    monkeypatch.setattr(remote, "_sleep", lambda _: None)
    log_in(monkeypatch, WRITER)


def close_client_sessions() -> None:
    """Let go of the connections that the client of this process keeps."""
    from huggingface_hub.utils import _http

    (getattr(_http, "close_session", None) or _http.reset_sessions)()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """An empty Hub; this process is logged in as ``me`` with a token that may write."""
    server = HubServer(tmp_path / "hub", users=USERS).start()
    use_hub(monkeypatch, server, tmp_path / "hf_home")
    close_client_sessions()
    try:
        yield server
    finally:
        close_client_sessions()
        server.stop()
