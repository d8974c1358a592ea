"""Repositories in a folder: refs, commits, small files by git blob id and large ones by sha256.

Nothing here knows HTTP. A commit is a JSON document that maps paths to entries; its id is the SHA-1 of that
document, so that ids look like git's and a repository's history can be read with any editor.

```
<root>/blobs/<sha256>                         large files, shared by all repositories; may be sparse
<root>/repos/<owner>/<name>/repo.json         private, gated, allowed
<root>/repos/<owner>/<name>/refs.json         ref -> commit id
<root>/repos/<owner>/<name>/commits/<id>.json parent, title, files
<root>/repos/<owner>/<name>/objects/<id>      small files
```
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".gguf", ".msgpack", ".npz", ".h5")
LFS_THRESHOLD = 10 * 1024 * 1024
GITATTRIBUTES = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES)


@dataclass(frozen=True)
class Entry:
    """One file of a commit: ``oid`` is its git blob id, ``sha256`` is set for a large file."""

    oid: str
    size: int
    sha256: str | None = None
    pointer_size: int | None = None

    @property
    def etag(self) -> str:
        """What the Hub answers as the file's entity tag."""
        return self.sha256 or self.oid


@dataclass(frozen=True)
class Commit:
    """One commit."""

    id: str
    parent: str | None
    title: str
    description: str
    date: str
    files: dict[str, Entry]


@dataclass
class Settings:
    """What the owner of a repository decides."""

    private: bool = False
    gated: bool = False
    allowed: list[str] = field(default_factory=list)  # users that may read a gated repository


class Conflict(Exception):
    """The branch has moved on from the stated parent."""


class Missing(LookupError):
    """``what`` is repo, revision, entry or blob."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} {name}")
        self.what = what
        self.name = name


def git_blob_id(data: bytes) -> str:
    """The id that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The pointer file that git keeps in place of a large file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def lfs_entry(sha256: str, size: int) -> Entry:
    """The entry of a large file."""
    pointer = lfs_pointer(sha256, size)
    return Entry(oid=git_blob_id(pointer), size=size, sha256=sha256, pointer_size=len(pointer))


class Repo:
    """One model repository."""

    def __init__(self, folder: Path, repo_id: str) -> None:
        self.folder = folder
        self.id = repo_id

    @property
    def settings(self) -> Settings:
        return Settings(**json.loads((self.folder / "repo.json").read_text()))

    @settings.setter
    def settings(self, value: Settings) -> None:
        _write(self.folder / "repo.json", json.dumps(asdict(value)))

    @property
    def refs(self) -> dict[str, str]:
        return dict(json.loads((self.folder / "refs.json").read_text()))

    def set_ref(self, ref: str, commit_id: str) -> None:
        """Point a ref at a commit, in one step."""
        _write(self.folder / "refs.json", json.dumps({**self.refs, ref: commit_id}, indent=1))

    def resolve(self, revision: str) -> Commit:
        """The commit that a branch, tag, pull request or (shortened) commit id names."""
        refs = self.refs
        for ref in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if ref in refs:
                return self.commit(refs[ref])
        if len(revision) >= 7 and all(c in "0123456789abcdef" for c in revision):
            for path in sorted((self.folder / "commits").glob(f"{revision}*.json")):
                return self.commit(path.stem)
        raise Missing("revision", revision)

    def commit(self, commit_id: str) -> Commit:
        """A commit by its full id."""
        raw = json.loads((self.folder / "commits" / f"{commit_id}.json").read_text())
        files = {path: Entry(**entry) for path, entry in raw.pop("files").items()}
        return Commit(id=commit_id, files=files, **raw)

    def history(self, revision: str) -> list[Commit]:
        """The commit and its ancestors, newest first."""
        out = [self.resolve(revision)]
        while out[-1].parent is not None:
            out.append(self.commit(out[-1].parent))
        return out

    def add_commit(
        self, parent: str | None, title: str, description: str, files: Mapping[str, Entry]
    ) -> Commit:
        """Write a commit; no ref moves."""
        raw: dict[str, Any] = {
            "parent": parent,
            "title": title,
            "description": description,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            "files": {path: asdict(entry) for path, entry in sorted(files.items())},
        }
        commit_id = hashlib.sha1((json.dumps(raw) + uuid.uuid4().hex).encode()).hexdigest()
        _write(self.folder / "commits" / f"{commit_id}.json", json.dumps(raw, indent=1))
        return self.commit(commit_id)

    def add_object(self, data: bytes) -> Entry:
        """Store a small file."""
        oid = git_blob_id(data)
        path = self.folder / "objects" / oid
        if not path.exists():
            _write(path, data)
        return Entry(oid=oid, size=len(data))

    def object_path(self, entry: Entry) -> Path:
        """Where a small file's bytes are."""
        return self.folder / "objects" / entry.oid


class Store:
    """All repositories under a folder; every change of state holds :attr:`lock`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = threading.RLock()
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        (root / "repos").mkdir(parents=True, exist_ok=True)

    def create(self, repo_id: str, *, private: bool = False, gated: bool = False) -> Repo:
        """Make a repository with the Hub's first commit (``.gitattributes``)."""
        folder = self._folder(repo_id)
        if folder.exists():
            raise Conflict(repo_id)
        stage = self.root / f"stage-{uuid.uuid4().hex}"
        for sub in ("commits", "objects"):
            (stage / sub).mkdir(parents=True)
        repo = Repo(stage, repo_id)
        repo.settings = Settings(private=private, gated=gated)
        first = repo.add_commit(
            None, "initial commit", "", {".gitattributes": repo.add_object(GITATTRIBUTES.encode())}
        )
        _write(stage / "refs.json", json.dumps({"refs/heads/main": first.id}))
        folder.parent.mkdir(parents=True, exist_ok=True)
        stage.rename(folder)
        return Repo(folder, repo_id)

    def repo(self, repo_id: str) -> Repo:
        """A repository that exists."""
        folder = self._folder(repo_id)
        if not folder.is_dir():
            raise Missing("repo", repo_id)
        return Repo(folder, repo_id)

    def delete(self, repo_id: str) -> None:
        """Remove a repository; its large files stay."""
        shutil.rmtree(self.repo(repo_id).folder)

    def blob(self, sha256: str) -> Path:
        """Where a large file's bytes are or will be."""
        if len(sha256) != 64 or any(c not in "0123456789abcdef" for c in sha256):
            raise Missing("blob", sha256)
        return self.root / "blobs" / sha256

    def seed(self, repo_id: str, files: Mapping[str, bytes | Sparse], *, title: str = "seed") -> Commit:
        """Add files to ``main`` without HTTP, making the repository when there is none."""
        try:
            repo = self.repo(repo_id)
        except Missing:
            repo = self.create(repo_id)
        head = repo.resolve("main")
        entries = dict(head.files)
        for path, content in files.items():
            if isinstance(content, Sparse):
                entries[path] = self._seed_sparse(content)
            elif path.endswith(LFS_SUFFIXES) or len(content) > LFS_THRESHOLD:
                sha256 = hashlib.sha256(content).hexdigest()
                _write(self.blob(sha256), content)
                entries[path] = lfs_entry(sha256, len(content))
            else:
                entries[path] = repo.add_object(content)
        commit = repo.add_commit(head.id, title, "", entries)
        repo.set_ref("refs/heads/main", commit.id)
        return commit

    def _seed_sparse(self, sparse: Sparse) -> Entry:
        # The digest of half a terabyte of holes can't be had in a test: the name stands in for it.
        sha256 = hashlib.sha256(repr((sparse.size, uuid.uuid4().hex)).encode()).hexdigest()
        with self.blob(sha256).open("wb") as file:
            file.truncate(sparse.size)
            for offset, data in sparse.parts.items():
                file.seek(offset)
                file.write(data)
        return lfs_entry(sha256, sparse.size)

    def _folder(self, repo_id: str) -> Path:
        parts = repo_id.split("/")
        if len(parts) != 2 or any(p in ("", ".", "..") for p in parts):
            raise Missing("repo", repo_id)
        return self.root / "repos" / parts[0] / parts[1]


@dataclass(frozen=True)
class Sparse:
    """A large file of holes with a few real parts: offset -> bytes."""

    size: int
    parts: Mapping[int, bytes]


def _write(path: Path, data: str | bytes) -> None:
    stage = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    stage.write_bytes(data.encode() if isinstance(data, str) else data)
    os.replace(stage, path)
