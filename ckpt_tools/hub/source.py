"""Checkpoints on the Hub, read without downloading them.

The file listing is one request. Weight files are read by ranges, small text files go through the client's
cache, and what the cache holds already is read from there. Nothing is written anywhere else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ckpt_tools.errors import InputError, Unavailable, UsageError
from ckpt_tools.hub import remote

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[int, int], None]

PREFIX = "hf://"
CACHED_SUFFIXES = (".json", ".md", ".txt", ".yaml", ".yml", ".jinja")
CACHED_SIZE = 32 * 1024 * 1024
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
INDEXES = (".safetensors.index.json", ".bin.index.json")
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_PLAIN = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>[^\s@]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubId:
    """A model on the Hub; ``revision`` is ``None`` for the default branch."""

    repo_id: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo_id}@{self.revision}" if self.revision else self.repo_id


def is_hub_id(text: str) -> bool:
    """Whether an argument that is no existing path names something on the Hub.

    True for exactly ``owner/name[@revision]`` (one slash before the revision, no leading ``.``, ``/`` or
    ``~``) and for whatever starts with ``hf://``.
    """
    return text.startswith(PREFIX) or _PLAIN.fullmatch(text) is not None


def parse_hub_id(text: str) -> HubId:
    """The repository and revision that an argument names.

    Raises:
        UsageError: It names a dataset, a space or a file inside a repository, or isn't a Hub id.
    """
    plain = text.removeprefix(PREFIX)
    kind, _, rest = plain.partition("/")
    if text.startswith(PREFIX) and kind in ("datasets", "spaces", "buckets", "kernels"):
        raise UsageError(
            f"{text} is one of the Hub's {kind}", "drafts and targets are models: hf://owner/name"
        )
    if text.startswith(PREFIX) and kind == "models":
        plain = rest
    match = _PLAIN.fullmatch(plain.rstrip("/"))
    if match is None:
        raise UsageError(f"{text} is no Hub id", "write owner/name[@revision] or hf://owner/name[@revision]")
    return HubId(match["repo"], match["revision"])


def open_hub(
    text: str, *, offline: bool = False, notify: remote.Notify | None = None, progress: Progress | None = None
) -> tuple[HubSource, str]:
    """Open what an argument names on the Hub.

    Returns:
        The source, and the commit id that the revision stands for.

    Raises:
        UsageError: The text is no Hub id.
        InputError: The repository or revision isn't there.
        Unavailable: It is gated, the Hub is down, or it isn't in the cache and ``offline`` holds.
    """
    hub_id = parse_hub_id(text)
    source = HubSource(hub_id.repo_id, hub_id.revision, offline=offline, notify=notify, progress=progress)
    return source, source.commit


class HubSource:
    """A :class:`~ckpt_tools.container.source.ByteSource` over one commit of a model repository.

    As with a local folder, only the files at its top level are seen.

    Args:
        repo_id: ``owner/name``.
        revision: Branch, tag, ``refs/pr/N`` or commit id; ``None`` is the default branch.
        offline: Take the cached snapshot and ask nobody; ``HF_HUB_OFFLINE`` sets it too.
        notify: Told in one line about every new try.
        progress: Called with (bytes done, bytes in all) during one long read.
    """

    def __init__(
        self,
        repo_id: str,
        revision: str | None = None,
        *,
        offline: bool = False,
        notify: remote.Notify | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.repo_id = repo_id
        self.revision = revision
        self._notify = notify
        self._progress = progress
        self._located: dict[str, str] = {}
        self.offline = offline or remote.is_offline()
        if self.offline:
            self.commit, self._sizes = self._cached_listing()
        else:
            self.commit, self._sizes = self._remote_listing()
        self.root = f"{PREFIX}{repo_id}@{self.commit}"

    def list(self) -> dict[str, int]:
        """Name -> size of every file at the top level, by name.

        Raises:
            Unavailable: Offline, and the cache holds only some of the files: a missing one would look like a
                defect of the checkpoint.
        """
        if self.offline and (missing := self._not_cached()):
            raise Unavailable(
                f"{self.repo_id}: only a part is in the Hub's cache, {missing} is not, and we're offline",
                f"run without --offline and HF_HUB_OFFLINE, or once `hf download {self.repo_id}`",
            )
        return dict(self._sizes)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes ``start`` to ``stop`` of a file; fewer when it ends before.

        Raises:
            InputError: There is no such file.
            Unavailable: It can't be had.
        """
        size = self._size(name)
        stop = min(stop, size)
        if start >= stop:
            return b""
        path = self.local(name)
        if path is None and name.endswith(CACHED_SUFFIXES) and size <= CACHED_SIZE:
            path = self.download(name)
        if path is not None:
            return self._read_local(path, start, stop)
        return self._fetch(name, start, stop)

    def local(self, name: str) -> Path | None:
        """The file's path in the client's cache, when it is there."""
        from huggingface_hub import try_to_load_from_cache

        self._size(name)
        found = try_to_load_from_cache(self.repo_id, name, revision=self.commit)
        return Path(found) if isinstance(found, str) else None

    def download(self, name: str) -> Path:
        """The file's path in the client's cache, where it is put first if need be.

        Raises:
            InputError: There is no such file.
            Unavailable: It can't be had.
        """
        from huggingface_hub import hf_hub_download

        self._size(name)

        def download(revision: str) -> Path:
            get = partial(
                hf_hub_download,
                self.repo_id,
                name,
                revision=revision,
                endpoint=remote.endpoint(),
                library_name="ckpt-tools",
                local_files_only=self.offline,
            )
            return Path(self._try(get, f"downloading {name}", name))

        # Asked for by its branch, the client notes which commit the branch is at, for later without network.
        path = download(self.revision or "main")
        return path if self.commit in path.parts else download(self.commit)

    # ------------------------------------------------------------------------------------------------------

    def _size(self, name: str) -> int:
        try:
            return self._sizes[name]
        except KeyError:
            raise InputError(
                f"{self.root} has no file {name}",
                f"{remote.endpoint()}/{self.repo_id}/tree/{self.commit} lists its files",
            ) from None

    def _remote_listing(self) -> tuple[str, dict[str, int]]:
        from huggingface_hub import HfApi

        api = HfApi(endpoint=remote.endpoint(), library_name="ckpt-tools")

        def ask() -> Any:
            return api.model_info(self.repo_id, revision=self.revision, files_metadata=True, timeout=30)

        info = self._try(ask, f"listing {self.repo_id}")
        sizes = {s.rfilename: int(s.size or 0) for s in info.siblings or () if "/" not in s.rfilename}
        return str(info.sha), dict(sorted(sizes.items()))

    def _cached_listing(self) -> tuple[str, dict[str, int]]:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=self.repo_id, repo_type="model")
        revision = self.revision or "main"
        ref = folder / "refs" / revision
        commit = ref.read_text().strip() if ref.is_file() else revision
        snapshot = folder / "snapshots" / commit
        if not _COMMIT.fullmatch(commit) or not snapshot.is_dir():
            raise Unavailable(
                f"{self.repo_id}@{revision} isn't in the cache ({constants.HF_HUB_CACHE}), and we're offline",
                f"run without --offline and HF_HUB_OFFLINE, or once `hf download {self.repo_id}`",
            )
        return commit, {p.name: p.stat().st_size for p in sorted(snapshot.iterdir()) if p.is_file()}

    def _not_cached(self) -> str | None:
        """A file that the cached snapshot should hold and doesn't."""
        if not any(name.endswith(WEIGHTS) for name in self._sizes):
            return "any weight file"
        for index in (name for name in self._sizes if name.endswith(INDEXES)):
            try:
                shards = json.loads(self.read(index, 0, self._sizes[index]))["weight_map"].values()
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a damaged index is the reader's to report
            for name in shards:
                if name not in self._sizes:
                    return str(name)
        return None

    def _read_local(self, path: Path, start: int, stop: int) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(stop - start)
        except OSError as error:
            raise InputError(
                f"{path}: the cached file can't be read ({error.strerror})",
                f"`hf cache` shows the cache; remove the entry of {self.repo_id} and try again",
            ) from error

    def _fetch(self, name: str, start: int, stop: int) -> bytes:
        """A range over the wire. A lost connection goes on where it stopped."""
        got = bytearray()
        self._try(lambda: self._fetch_into(got, name, start, stop), f"reading {name}", name)
        return bytes(got)

    def _fetch_into(self, got: bytearray, name: str, start: int, stop: int) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        url = hf_hub_url(self.repo_id, name, revision=self.commit, endpoint=remote.endpoint())
        headers = {**remote.request_headers(), "Accept-Encoding": "identity"}
        known = self._located.get(name)
        if known is not None:
            # The storage's own address is signed: the token has no business there.
            url, headers = known, {k: v for k, v in headers.items() if k.lower() != "authorization"}
        first = start + len(got)
        headers["Range"] = f"bytes={first}-{stop - 1}"
        with remote.stream(url, headers) as (response, chunks):
            if known is not None and response.status_code in (401, 403):
                self._located.pop(name, None)  # the signature has run out
                raise ConnectionResetError(f"the address of {name} has expired")
            hf_raise_for_status(response)
            self._check_range(response, name, first, stop)
            if urlsplit(str(response.url)).netloc != urlsplit(remote.endpoint()).netloc:
                self._located[name] = str(response.url)
            for chunk in chunks:
                got += chunk
                if self._progress is not None:
                    self._progress(len(got), stop - start)
        if len(got) != stop - start:
            raise ConnectionResetError(f"{len(got)} of {stop - start} bytes of {name} arrived")

    def _check_range(self, response: Any, name: str, first: int, stop: int) -> None:
        """A server that ignores ranges would send the whole file: refuse before its body is read."""
        said = response.headers.get("Content-Range", "")
        if response.status_code != 206 or not said.startswith(f"bytes {first}-{stop - 1}/"):
            host = urlsplit(str(response.url)).netloc
            raise Unavailable(
                f"{host} answers {response.status_code} without the asked range of {name}",
                f"a proxy may strip ranges; `hf download {self.repo_id}` and give the folder instead",
            )

    def _try(self, call: Callable[[], Any], what: str, file: str | None = None) -> Any:
        try:
            return remote.retrying(call, what, self._notify)
        except remote.client_errors() as error:
            raise remote.explain(error, self.repo_id, self.revision, file) from remote.clean_cause(error)
