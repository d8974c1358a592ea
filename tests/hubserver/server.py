"""The Hub's HTTP API over a :class:`~tests.hubserver.store.Store`, on a loopback port.

What is spoken is what the client sends when it creates, lists, reads and uploads model repositories. Xet is
announced as absent: the token endpoints answer 404 and ``xetEnabled`` is false, so the client is left with
Git LFS, basic or in parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import parse_qs, quote, unquote, urlsplit

import yaml

from tests.hubserver.faults import Fault, Faults, Log, Seen
from tests.hubserver.store import (
    LFS_SUFFIXES,
    LFS_THRESHOLD,
    Commit,
    Conflict,
    Entry,
    Missing,
    Repo,
    Store,
    lfs_entry,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK = 64 * 1024
PAGE = 1000
LICENSES = frozenset(
    [
        "apache-2.0",
        "mit",
        "openrail",
        "bigscience-openrail-m",
        "afl-3.0",
        "artistic-2.0",
        "bsl-1.0",
        "bsd",
        "bsd-2-clause",
        "bsd-3-clause",
        "cc",
        "cc0-1.0",
        "cc-by-2.0",
        "cc-by-3.0",
        "cc-by-4.0",
        "cc-by-sa-3.0",
        "cc-by-sa-4.0",
        "cc-by-nc-4.0",
        "cc-by-nc-sa-4.0",
        "cc-by-nc-nd-4.0",
        "cc-by-nd-4.0",
        "ecl-2.0",
        "epl-2.0",
        "agpl-3.0",
        "gfdl",
        "gpl",
        "gpl-2.0",
        "gpl-3.0",
        "lgpl",
        "lgpl-3.0",
        "isc",
        "llama2",
        "llama3",
        "llama3.1",
        "llama3.2",
        "llama3.3",
        "llama4",
        "gemma",
        "deepfloyd-if-license",
        "mpl-2.0",
        "ms-pl",
        "ncsa",
        "unlicense",
        "wtfpl",
        "zlib",
        "unknown",
        "other",
    ]
)


@dataclass(frozen=True)
class User:
    """Who a token belongs to.

    Attributes:
        role: Of the token: ``read``, ``write`` or ``fineGrained``.
        orgs: Organisation -> role in it (``read``, ``write``, ``admin``).
        writes: For a fine-grained token, the namespaces and repositories that it may write.
    """

    name: str
    role: str = "write"
    orgs: dict[str, str] = field(default_factory=dict)
    writes: tuple[str, ...] = ()

    def may_write(self, repo_id: str) -> bool:
        """Whether this token may push to the repository."""
        namespace = repo_id.split("/")[0]
        if self.role == "fineGrained":
            return namespace in self.writes or repo_id in self.writes
        if self.role != "write":
            return False
        return namespace == self.name or self.orgs.get(namespace) in ("write", "admin")

    def is_member(self, repo_id: str) -> bool:
        """Whether this user sees the namespace's private repositories."""
        namespace = repo_id.split("/")[0]
        return namespace == self.name or namespace in self.orgs


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, code: str | None = None, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.extra = extra


class HubServer:
    """A Hub on 127.0.0.1.

    Args:
        root: Folder of the storage; what is there is served.
        port: 0 takes any free one.
        users: Token -> user.
        part_size: Large files over this many bytes are uploaded in parts of it.
        cdn_host: Name under which large files are served; another name than the API's, as on the real Hub,
            so that a client that leaks its token to the storage is caught.
    """

    def __init__(
        self,
        root: Path,
        port: int = 0,
        users: dict[str, User] | None = None,
        part_size: int = 32 * 1024 * 1024,
        cdn_host: str = "localhost",
    ) -> None:
        self.store = Store(root)
        self.users = dict(users or {})
        self.part_size = part_size
        self.cdn_host = cdn_host
        self.page = PAGE
        # Called with "METHOD /path" and the bytes received so far: as each request begins, and as its body comes.
        self.watch: Callable[[str, int], None] = lambda _line, _received: None
        self.faults = Faults()
        self.log = Log()
        self.signature = secrets.token_hex(8)
        self.parts: dict[str, dict[int, str]] = {}
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._httpd = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._httpd.daemon_threads = True
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._httpd.server_address[1])

    @property
    def url(self) -> str:
        """What ``HF_ENDPOINT`` should be."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def cdn(self) -> str:
        """Where large files come from."""
        return f"http://{self.cdn_host}:{self.port}"

    def start(self) -> HubServer:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def serve_forever(self) -> None:
        """Serve in this thread."""
        self._httpd.serve_forever()

    def stop(self) -> None:
        """Stop serving; the storage stays."""
        self._httpd.shutdown()
        self._httpd.server_close()
        if self._thread is not None:
            self._thread.join()

    def fault(self, match: str, **kwargs: Any) -> None:
        """Let something go wrong; see :class:`Fault`."""
        self.faults.add(Fault(match, **kwargs))


class _CountingWriter:
    """A socket file that counts and can be made slow or cut."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.sent = 0

    def write(self, data: bytes) -> int:
        self.raw.write(data)
        self.sent += len(data)
        return len(data)

    def flush(self) -> None:
        self.raw.flush()

    def close(self) -> None:
        self.raw.close()

    @property
    def closed(self) -> bool:
        return self.raw.closed


class _Cut(Exception):
    """The connection is to be closed here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body go out in two writes; else each answer waits 40 ms
    server_version = "HubServer"
    server_hub: HubServer

    # -- plumbing -----------------------------------------------------------------------------------------

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the log is kept by the server object."""

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        self.hub = self.server_hub
        parts = urlsplit(self.path)
        self.route = unquote(parts.path)
        self.raw_route = parts.path
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.seen = Seen(
            method=self.command,
            path=self.path,
            host=self.headers.get("Host", "").split(":")[0],
            authorized="authorization" in self.headers,
            range=self.headers.get("Range"),
        )
        if self.raw_route.startswith("/__admin__/"):
            self._admin()
            return
        self.number = self.hub.log.begin()
        self.fault = self.hub.faults.take(f"{self.command} {self.path}")
        self.seen.fault = self.fault.action if self.fault else None
        self.hub.watch(f"{self.command} {self.path}", 0)
        writer = _CountingWriter(self.wfile)  # type: ignore[arg-type]
        original, self.wfile = self.wfile, writer  # type: ignore[assignment]
        self._unread = True
        try:
            if self.fault is not None and self.fault.action == "status":
                self._drain()
                self._reply(self.fault.status, self.fault.payload(), self.fault.headers)
            else:
                self._dispatch()
        except Refused as refusal:
            self._refuse(refusal)
        except Missing as missing:
            self._refuse(_refusal_of(missing))
        except _Cut:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.wfile = original
            self.seen.sent = writer.sent
            self.hub.log.end(self.seen)

    def _dispatch(self) -> None:
        for method, pattern, name in ROUTES:
            if method != self.command and not (method == "GET" and self.command == "HEAD"):
                continue
            match = re.fullmatch(pattern, self.raw_route)
            if match:
                self.user = self._who()
                groups = {key: unquote(value) if value else value for key, value in match.groupdict().items()}
                getattr(self, name)(**groups)
                return
        raise Refused(404, f"no such route: {self.command} {self.raw_route}")

    def _refuse(self, refusal: Refused) -> None:
        self._drain()
        headers = {"X-Error-Message": refusal.message.replace("\n", " ")}
        if refusal.code:
            headers["X-Error-Code"] = refusal.code
        self._reply(refusal.status, json.dumps({"error": refusal.message, **refusal.extra}).encode(), headers)

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        if self.fault is not None and self.fault.action == "late":
            status, body, headers = self.fault.status, self.fault.payload(), self.fault.headers
        self.seen.status = status
        self.send_response(status)
        sent = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
        for key, value in sent.items():
            self.send_header(key, value)
        self.send_header("X-Request-Id", f"req-{self.number}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._reply(status, json.dumps(value).encode(), headers)

    def _body_chunks(self) -> Any:
        """The request's body, with the fault that strikes it."""
        self._unread = False
        cut = self.fault if self.fault is not None and self.fault.action == "cut" else None
        slow = self.fault.delay if self.fault is not None and self.fault.action == "slow" else 0.0
        for chunk in self._raw_chunks():
            if slow:
                time.sleep(slow)
            self.seen.received += len(chunk)
            self.hub.watch(f"{self.command} {self.path}", self.seen.received)
            if cut is not None and self.seen.received >= cut.after:
                raise _Cut
            yield chunk

    def _raw_chunks(self) -> Any:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                while size:
                    data = self.rfile.read(min(size, CHUNK))
                    if not data:
                        raise _Cut
                    size -= len(data)
                    yield data
                self.rfile.readline()
            while self.rfile.readline() not in (b"\r\n", b"\n", b""):
                pass
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            data = self.rfile.read(min(left, CHUNK))
            if not data:
                raise _Cut
            left -= len(data)
            yield data

    def _drain(self) -> None:
        """Read what the client still sends, so that it gets to read the answer."""
        if self._unread:
            self._unread = False
            for chunk in self._raw_chunks():
                self.seen.received += len(chunk)

    def _body(self) -> bytes:
        return b"".join(self._body_chunks())

    # -- who may what -------------------------------------------------------------------------------------

    def _who(self) -> User | None:
        value = self.headers.get("Authorization")
        if value is None:
            return None
        user = self.hub.users.get(value.removeprefix("Bearer "))
        if user is None:
            raise Refused(401, "Invalid credentials in Authorization header")
        return user

    def _readable(self, repo_id: str, *, content: bool = False) -> Repo:
        """The repository, if this user may see it (or, with ``content``, its files)."""
        repo = self.hub.store.repo(repo_id)
        settings = repo.settings
        if settings.private and not (self.user and self.user.is_member(repo_id)):
            raise Missing("repo", repo_id)
        if content and settings.gated:
            if self.user is None:
                message = f"Access to model {repo_id} is restricted. You must have access to it and be"
                raise Refused(401, f"{message} authenticated to access it. Please log in.", "GatedRepo")
            if self.user.name not in settings.allowed and not self.user.is_member(repo_id):
                message = f"Access to model {repo_id} is restricted and you are not in the authorized list."
                raise Refused(
                    403, f"{message} Visit {self.hub.url}/{repo_id} to ask for access.", "GatedRepo"
                )
        return repo

    def _writable(self, repo_id: str, *, pull_request: bool = False) -> Repo:
        repo = self._readable(repo_id)
        if self.user is None:
            raise Refused(401, "Invalid username or password.")
        if not self.user.may_write(repo_id) and not (pull_request and self.user.role != "read"):
            raise Refused(
                403, f"You don't have the rights to write to {repo_id}: your token has no such role"
            )
        return repo

    # -- account ------------------------------------------------------------------------------------------

    def whoami(self) -> None:
        if self.user is None:
            raise Refused(401, "Invalid username or password.")
        user = self.user
        token: dict[str, Any] = {"displayName": "tests", "role": user.role, "createdAt": _NOW}
        if user.role == "fineGrained":
            token["fineGrained"] = {
                "canReadGatedRepos": False,
                "global": [],
                "scoped": [
                    {
                        "entity": {"_id": name, "type": "model" if "/" in name else "user", "name": name},
                        "permissions": ["repo.content.read", "repo.write"],
                    }
                    for name in user.writes
                ],
            }
        self._json(
            {
                "type": "user",
                "id": user.name,
                "name": user.name,
                "fullname": user.name.title(),
                "isPro": False,
                "orgs": [
                    {"type": "org", "id": name, "name": name, "roleInOrg": role}
                    for name, role in user.orgs.items()
                ],
                "auth": {"type": "access_token", "accessToken": token},
            }
        )

    def validate_yaml(self) -> None:
        content = json.loads(self._body())["content"]
        errors, warnings = _card_problems(content)
        self._json(
            {"errors": [{"message": e} for e in errors], "warnings": [{"message": w} for w in warnings]},
            status=400 if errors else 200,
        )

    # -- repositories -------------------------------------------------------------------------------------

    def create_repo(self) -> None:
        asked = json.loads(self._body())
        if self.user is None:
            raise Refused(401, "Invalid username or password.")
        repo_id = f"{asked.get('organization') or self.user.name}/{asked['name']}"
        if not self.user.may_write(repo_id):
            raise Refused(
                403,
                f"You don't have the rights to create a model under the namespace {repo_id.split('/')[0]}",
            )
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        url = f"{self.hub.url}/{repo_id}"
        with self.hub.store.lock:
            try:
                self.hub.store.create(repo_id, private=private)
            except Conflict:
                raise Refused(409, "You already created this model repo", url=url) from None
        self._json({"url": url, "name": repo_id, "id": repo_id})

    def delete_repo(self) -> None:
        asked = json.loads(self._body())
        assert self.user is not None
        repo_id = f"{asked.get('organization') or self.user.name}/{asked['name']}"
        self._writable(repo_id)
        self.hub.store.delete(repo_id)
        self._reply(200, b"OK")

    def repo_info(self, repo: str, revision: str | None = None) -> None:
        found = self._readable(repo)
        commit = found.resolve(revision or "main")
        settings = found.settings
        blobs = self.query.get("blobs", "").lower() in ("1", "true")
        siblings = []
        for path, entry in commit.files.items():
            sibling: dict[str, Any] = {"rfilename": path}
            if blobs:
                sibling.update(_blob_info(entry))
                sibling["blobId"] = entry.oid
            siblings.append(sibling)
        info = {
            "_id": repo,
            "id": repo,
            "modelId": repo,
            "author": repo.split("/")[0],
            "sha": commit.id,
            "private": settings.private,
            "gated": "manual" if settings.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "createdAt": _NOW,
            "lastModified": commit.date,
            "xetEnabled": False,
            "siblings": siblings,
        }
        if "expand" in self.query:
            asked = parse_qs(urlsplit(self.path).query)["expand"]
            info = {key: value for key, value in info.items() if key in (*asked, "_id", "id", "modelId")}
        self._json(info)

    def refs(self, repo: str) -> None:
        out: dict[str, list[dict[str, str]]] = {
            "branches": [],
            "converts": [],
            "tags": [],
            "pullRequests": [],
        }
        kinds = {"refs/heads/": "branches", "refs/tags/": "tags", "refs/pr/": "pullRequests"}
        for ref, commit_id in self._readable(repo).refs.items():
            for prefix, kind in kinds.items():
                if ref.startswith(prefix):
                    name = ref.removeprefix(prefix)
                    out[kind].append({"name": name, "ref": ref, "targetCommit": commit_id})
        if "include_prs" not in self.query:
            del out["pullRequests"]
        self._json(out)

    def commits(self, repo: str, revision: str) -> None:
        self._json(
            [
                {"id": c.id, "title": c.title, "message": c.description, "date": c.date, "authors": []}
                for c in self._readable(repo).history(revision)
            ]
        )

    def create_branch(self, repo: str, branch: str) -> None:
        found = self._writable(repo)
        asked = json.loads(self._body() or b"{}")
        with self.hub.store.lock:
            ref = f"refs/heads/{branch}"
            if ref in found.refs:
                raise Refused(409, f"Reference already exists: {ref}")
            found.set_ref(ref, found.resolve(asked.get("startingPoint") or "main").id)
        self._json({}, status=201)

    def auth_check(self, repo: str) -> None:
        self._readable(repo, content=True)
        self._reply(200, b"OK")

    def auth_check_write(self, repo: str) -> None:
        self._writable(repo)
        self._reply(200, b"OK")

    def no_xet(self, repo: str, **_: str) -> None:
        self._readable(repo)
        raise Refused(404, "Xet is not available on this Hub")

    # -- listing ------------------------------------------------------------------------------------------

    def tree(self, repo: str, revision: str, folder: str | None = None) -> None:
        commit = self._readable(repo).resolve(revision)
        prefix = f"{folder.strip('/')}/" if folder else ""
        recursive = self.query.get("recursive", "").lower() in ("1", "true")
        rows: dict[str, dict[str, Any]] = {}
        for path, entry in commit.files.items():
            if not path.startswith(prefix):
                continue
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)):
                name = prefix + "/".join(parts[:depth])
                if recursive or depth == 1:
                    tree_id = hashlib.sha1(name.encode()).hexdigest()
                    rows[name] = {"type": "directory", "oid": tree_id, "size": 0, "path": name}
            if recursive or len(parts) == 1:
                rows[path] = _tree_row(path, entry)
        if folder and not rows:
            raise Missing("entry", folder)
        names = sorted(rows)
        start = int(self.query.get("cursor", 0))
        headers = {}
        if start + self.hub.page < len(names):
            query = f"recursive={recursive}&cursor={start + self.hub.page}"
            headers["Link"] = f'<{self.hub.url}{self.raw_route}?{query}>; rel="next"'
        self._json([rows[n] for n in names[start : start + self.hub.page]], headers=headers)

    def paths_info(self, repo: str, revision: str) -> None:
        body = self._body()
        if self.headers.get("Content-Type", "").startswith("application/json"):
            paths = json.loads(body)["paths"]
        else:
            paths = parse_qs(body.decode()).get("paths", [])
        files = self._readable(repo).resolve(revision).files
        self._json([_tree_row(path, files[path]) for path in paths if path in files])

    # -- reading ------------------------------------------------------------------------------------------

    def resolve(self, repo: str, revision: str, path: str) -> None:
        found = self._readable(repo, content=True)
        commit = found.resolve(revision)
        entry = commit.files.get(path)
        if entry is None:
            self._drain()
            headers = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            self._reply(404, b"Entry not found", {**headers, "X-Repo-Commit": commit.id})
            return
        headers = {"X-Repo-Commit": commit.id, "Accept-Ranges": "bytes", "ETag": f'"{entry.etag}"'}
        if entry.sha256 is None:
            self._send_file(found.object_path(entry), {**headers, "Content-Type": "text/plain"})
            return
        name = quote(path.rsplit("/", 1)[-1])
        location = f"{self.hub.cdn}/__cdn__/{entry.sha256}/{name}?Signature={self.hub.signature}"
        headers["X-Linked-Size"] = str(entry.size)
        headers["X-Linked-Etag"] = f'"{entry.sha256}"'
        self._reply(302, b"", {**headers, "Location": location})

    def cdn(self, sha256: str) -> None:
        if self.query.get("Signature") != self.hub.signature:
            raise Refused(403, "Request has expired")
        headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        self._send_file(self.hub.store.blob(sha256), {**headers, "ETag": f'"{sha256}"'})

    def _send_file(self, path: Path, headers: dict[str, str]) -> None:
        if not path.exists():
            raise Missing("blob", path.name)
        size = path.stat().st_size
        start, stop, status = 0, size, 200
        if match := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or ""):
            first, last = match.groups()
            if first:
                start, stop = int(first), min(size, int(last) + 1 if last else size)
            else:
                start = max(0, size - int(last))
            if start >= size:
                self._reply(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            status = 206
            headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        if self.fault is not None and self.fault.action == "late":
            self._reply(status, b"")
            return
        self.seen.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        done = 0
        with path.open("rb") as file:
            file.seek(start)
            while done < stop - start:
                if self.fault is not None and self.fault.action == "cut":
                    left = self.fault.after - done
                    if left <= 0:
                        raise _Cut
                    chunk = file.read(min(CHUNK, stop - start - done, left))
                else:
                    chunk = file.read(min(CHUNK, stop - start - done))
                if self.fault is not None and self.fault.action == "slow":
                    time.sleep(self.fault.delay)
                self.wfile.write(chunk)
                done += len(chunk)

    # -- uploading ----------------------------------------------------------------------------------------

    def preupload(self, repo: str, revision: str) -> None:
        asked = json.loads(self._body())
        found = self._writable(repo, pull_request="create_pr" in self.query)
        files = found.resolve(revision).files
        out = []
        for file in asked["files"]:
            large = file["path"].endswith(LFS_SUFFIXES) or file["size"] > LFS_THRESHOLD
            old = files.get(file["path"])
            # For a large file the client compares its sha256, for a small one the git blob id.
            oid = (old.sha256 or old.oid) if old is not None else None
            row = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            out.append({**row, "oid": oid} if oid else row)
        self._json({"files": out})

    def lfs_batch(self, repo: str) -> None:
        asked = json.loads(self._body())
        self._writable(repo, pull_request=True)
        objects = []
        for item in asked["objects"]:
            oid, size = item["oid"], item["size"]
            row: dict[str, Any] = {"oid": oid, "size": size, "authenticated": True}
            if not self.hub.store.blob(oid).exists():
                row["actions"] = self._upload_actions(repo, oid, size)
            objects.append(row)
        body = {"transfer": "basic", "objects": objects}
        self._reply(200, json.dumps(body).encode(), {"Content-Type": "application/vnd.git-lfs+json"})

    def _upload_actions(self, repo: str, oid: str, size: int) -> dict[str, Any]:
        sign = f"Signature={self.hub.signature}"
        verify = {"href": f"{self.hub.url}/{repo}.git/info/lfs/objects/verify", "header": {}}
        if size <= self.hub.part_size:
            return {"upload": {"href": f"{self.hub.cdn}/__upload__/{oid}?{sign}"}, "verify": verify}
        count = -(-size // self.hub.part_size)
        header = {str(n): f"{self.hub.cdn}/__part__/{oid}/{n}?{sign}" for n in range(1, count + 1)}
        header["chunk_size"] = str(self.hub.part_size)
        href = f"{self.hub.url}/__complete__/{oid}?size={size}&{sign}"
        return {"upload": {"href": href, "header": header}, "verify": verify}

    def upload(self, oid: str) -> None:
        self._signed()
        self._receive(self.hub.store.blob(oid), oid)
        self._reply(200, b"", {"ETag": f'"{oid}"'})

    def part(self, oid: str, number: str) -> None:
        self._signed()
        path = self.hub.store.blob(oid).with_name(f"{oid}.part{number}")
        digest = self._receive(path, None)
        self._reply(200, b"", {"ETag": f'"{digest}"'})

    def complete(self, oid: str) -> None:
        self._signed()
        asked = json.loads(self._body())
        target = self.hub.store.blob(oid)
        stage = target.with_name(f"{oid}.joined")
        digest = hashlib.sha256()
        with stage.open("wb") as out:
            for part in sorted(asked["parts"], key=lambda p: p["partNumber"]):
                path = target.with_name(f"{oid}.part{part['partNumber']}")
                if not path.exists():
                    raise Refused(400, f"part {part['partNumber']} was never uploaded")
                with path.open("rb") as file:
                    while chunk := file.read(1 << 20):
                        digest.update(chunk)
                        out.write(chunk)
                path.unlink()
        if digest.hexdigest() != oid:
            stage.unlink()
            raise Refused(400, "the parts don't add up to the announced sha256")
        os.replace(stage, target)
        self._json({})

    def _receive(self, path: Path, oid: str | None) -> str:
        digest = hashlib.sha256()
        stage = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            with stage.open("wb") as file:
                for chunk in self._body_chunks():
                    digest.update(chunk)
                    file.write(chunk)
            if oid is not None and digest.hexdigest() != oid:
                raise Refused(400, "BadDigest: the body is not what was announced")
            os.replace(stage, path)
        finally:
            stage.unlink(missing_ok=True)
        return digest.hexdigest()

    def _signed(self) -> None:
        if self.query.get("Signature") != self.hub.signature:
            raise Refused(403, "SignatureDoesNotMatch")

    def lfs_verify(self, repo: str) -> None:
        asked = json.loads(self._body())
        self._readable(repo)
        path = self.hub.store.blob(asked["oid"])
        if not path.exists() or path.stat().st_size != asked["size"]:
            raise Refused(404, "LFS object not found")
        self._json({})

    def commit(self, repo: str, revision: str) -> None:
        lines = [json.loads(line) for line in self._body().splitlines() if line.strip()]
        pull_request = "create_pr" in self.query
        found = self._writable(repo, pull_request=pull_request)
        header = next(line["value"] for line in lines if line["key"] == "header")
        with self.hub.store.lock:
            head = found.resolve(revision)
            parent = header.get("parentCommit")
            if parent and not pull_request and not head.id.startswith(parent):
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            if parent and pull_request:
                head = found.resolve(parent)
            files = dict(head.files)
            for line in lines:
                self._apply(found, files, line["key"], line["value"])
            if "README.md" in files and files["README.md"].sha256 is None:
                text = found.object_path(files["README.md"]).read_text(errors="replace")
                errors, _ = _card_problems(text)
                if errors:
                    raise Refused(400, "Invalid metadata in README.md: " + "; ".join(errors))
            made = found.add_commit(head.id, header["summary"], header.get("description", ""), files)
            number = 1 + sum(ref.startswith("refs/pr/") for ref in found.refs)
            found.set_ref(f"refs/pr/{number}" if pull_request else self._branch(found, revision), made.id)
        answer: dict[str, Any] = {
            "success": True,
            "commitOid": made.id,
            "commitUrl": f"{self.hub.url}/{repo}/commit/{made.id}",
            "hookOutput": "",
        }
        if pull_request:
            answer["pullRequestUrl"] = f"{self.hub.url}/{repo}/discussions/{number}"
        self._json(answer)

    @staticmethod
    def _branch(repo: Repo, revision: str) -> str:
        ref = revision if revision in repo.refs else f"refs/heads/{revision}"
        if ref not in repo.refs:
            raise Refused(400, "commits are made on branches and pull requests")
        return ref

    def _apply(self, repo: Repo, files: dict[str, Entry], key: str, value: dict[str, Any]) -> None:
        import base64

        if key == "file":
            files[value["path"]] = repo.add_object(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            blob = self.hub.store.blob(value["oid"])
            if not blob.exists():
                raise Refused(400, f"LFS pointer of {value['path']} points to a file that is not uploaded")
            files[value["path"]] = lfs_entry(value["oid"], blob.stat().st_size)
        elif key == "deletedFile":
            if files.pop(value["path"], None) is None:
                raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
        elif key == "deletedFolder":
            for path in [p for p in files if p.startswith(value["path"].rstrip("/") + "/")]:
                del files[path]
        elif key != "header":
            raise Refused(400, f"unknown operation {key}")

    # -- by hand ------------------------------------------------------------------------------------------

    def _admin(self) -> None:
        """``GET log``, ``POST fault`` (a JSON object, see :class:`Fault`), ``POST reset``."""
        self._unread, self.fault, self.number = True, None, 0
        action = self.raw_route.removeprefix("/__admin__/")
        if action == "log" and self.command == "GET":
            self._json(self.hub.log.dump())
        elif action == "fault" and self.command == "POST":
            self.hub.faults.add(Fault(**json.loads(self._body())))
            self._json({})
        elif action == "reset" and self.command == "POST":
            self.hub.faults.clear()
            self.hub.log.clear()
            self._drain()
            self._json({})
        else:
            self._drain()
            self._json({"error": "log, fault or reset"}, status=404)


_REPO = r"(?P<repo>[^/]+/[^/]+)"
_API = rf"/api/models/{_REPO}"
ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/validate-yaml", "validate_yaml"),
    ("POST", r"/api/repos/create", "create_repo"),
    ("DELETE", r"/api/repos/delete", "delete_repo"),
    ("GET", _API, "repo_info"),
    ("GET", rf"{_API}/revision/(?P<revision>[^/]+)", "repo_info"),
    ("GET", rf"{_API}/refs", "refs"),
    ("GET", rf"{_API}/commits/(?P<revision>[^/]+)", "commits"),
    ("POST", rf"{_API}/branch/(?P<branch>[^/]+)", "create_branch"),
    ("GET", rf"{_API}/auth-check", "auth_check"),
    ("GET", rf"{_API}/auth-check/write", "auth_check_write"),
    ("GET", rf"{_API}/xet-(?:read|write)-token/(?P<revision>[^/]+)", "no_xet"),
    ("GET", rf"{_API}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", "tree"),
    ("POST", rf"{_API}/paths-info/(?P<revision>[^/]+)", "paths_info"),
    ("POST", rf"{_API}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"{_API}/commit/(?P<revision>[^/]+)", "commit"),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/verify", "lfs_verify"),
    ("PUT", r"/__upload__/(?P<oid>[0-9a-f]{64})", "upload"),
    ("PUT", r"/__part__/(?P<oid>[0-9a-f]{64})/(?P<number>\d+)", "part"),
    ("POST", r"/__complete__/(?P<oid>[0-9a-f]{64})", "complete"),
    ("GET", r"/__cdn__/(?P<sha256>[0-9a-f]{64})/[^/]+", "cdn"),
    ("GET", rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
)
_NOW = "2025-01-01T00:00:00.000Z"


def _refusal_of(missing: Missing) -> Refused:
    if missing.what == "repo":
        # The Hub answers 401 to those who aren't logged in, so as not to tell private from absent.
        return Refused(404, "Repository not found", "RepoNotFound")
    if missing.what == "revision":
        return Refused(404, f"Invalid rev id: {missing.name}", "RevisionNotFound")
    return Refused(404, f"{missing.name} does not exist", "EntryNotFound")


def _blob_info(entry: Entry) -> dict[str, Any]:
    info: dict[str, Any] = {"size": entry.size}
    if entry.sha256 is not None:
        info["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return info


def _tree_row(path: str, entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "oid": entry.oid, "size": entry.size, "path": path}
    if entry.sha256 is not None:
        row["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return row


def _card_problems(content: str) -> tuple[list[str], list[str]]:
    """What the Hub has against a card's metadata: errors and warnings."""
    match = re.match(r"^\s*---\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", content, re.DOTALL)
    if not match:
        return [], ["empty or missing yaml metadata in repo card"]
    try:
        data = yaml.safe_load(match.group(1))
    except yaml.YAMLError as error:
        return [f"YAML metadata: {str(error).splitlines()[0]}"], []
    if not isinstance(data, dict):
        return ['"metadata" must be of type object'], []
    checks: list[tuple[str, Callable[[Any], bool], str]] = [
        ("model-index", lambda v: isinstance(v, list), "must be an array"),
        ("tags", lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v), "must be an array"),
        (
            "license",
            lambda v: all(item in LICENSES for item in (v if isinstance(v, list) else [v])),
            "must be one of the Hub's license ids, or other",
        ),
        (
            "base_model",
            lambda v: all(
                isinstance(item, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", item)
                for item in (v if isinstance(v, list) else [v])
            ),
            "with value must be a repository id",
        ),
    ]
    return [f'"{key}" {says}' for key, ok, says in checks if key in data and not ok(data[key])], []


def commit_files(commit: Commit) -> dict[str, int]:
    """Path -> size; for assertions."""
    return {path: entry.size for path, entry in commit.files.items()}
