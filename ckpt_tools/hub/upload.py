"""Doing what a plan says: large files first, each by its hash, then one commit, then a comparison.

The commit is atomic on the Hub's side. A run that was interrupted before it has changed nothing that a
reader sees, and the next run sends only what has not arrived.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.hub import remote
from ckpt_tools.hub.codes import finding
from ckpt_tools.hub.files import WEIGHTS
from ckpt_tools.hub.listing import Repository, differences
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckpt_tools.hub.files import PushFile
    from ckpt_tools.hub.push import PushPlan
    from ckpt_tools.model import Finding

    Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    Attributes:
        commit: The commit that holds the draft.
        url: Where to look at it.
        pull_request: Address of the pull request, if one was made.
        sent: Names of the files in the commit; empty when there was nothing to do.
        deleted: Names of the files that went.
        findings: Retries, and differences between what was sent and what arrived.
    """

    commit: str
    url: str
    pull_request: str | None = None
    sent: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def apply_push(
    plan: PushPlan,
    *,
    message: str = "Upload a draft that ckpt verified",
    notify: remote.Notify | None = None,
    progress: Progress | None = None,
) -> Pushed:
    """Do what the plan says, then compare what arrived.

    Args:
        plan: Not blocked.
        message: Title of the commit.
        notify: Told in one line about every new try.
        progress: Called with (bytes done, bytes in all) while sending; a file that the Hub has already is
            not sent and jumps.

    Raises:
        InputError: A file has changed since the plan.
        Unavailable: The Hub refused or is down; no commit was made. Running the push again sends only what is
            missing.
    """
    if plan.blocked:
        codes = ", ".join(sorted({f.code for f in plan.findings if f.severity is Severity.ERROR}))
        raise InputError(f"the push is refused by {codes}", "repair what the findings name")
    if plan.proposed is not None:
        commit, url = plan.proposed
        return Pushed(commit, url, pull_request=url)
    if plan.nothing_to_do:
        return Pushed(str(plan.parent), f"{remote.endpoint()}/{plan.repo_id}/commit/{plan.parent}")
    said: list[str] = []

    def note(line: str) -> None:
        said.append(line)
        if notify is not None:
            notify(line)

    pushed = _Push(plan, note, progress).run(message)
    retried = tuple(finding("HUB019", line) for line in said)
    return replace(pushed, findings=(*retried, *pushed.findings))


class _Counting(io.BufferedReader):
    """A file that tells how far it was read."""

    def __init__(self, path: Path, tell: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path))
        self._tell = tell

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._tell(self.tell())
        return data


class _Push:
    """One push under way."""

    def __init__(self, plan: PushPlan, notify: remote.Notify, progress: Progress | None) -> None:
        from huggingface_hub import HfApi

        self.plan = plan
        self.notify = notify
        self.progress = progress
        self.api = HfApi(endpoint=remote.endpoint(), library_name="ckpt-tools")
        self._lock = threading.Lock()
        self._sending = False  # making the operations reads the files, too, for their hashes
        self._sent: dict[str, int] = {}

    def run(self, message: str) -> Pushed:
        plan = self.plan
        parent = self._prepare()
        xet = self._offers_xet()
        opened: list[_Counting] = []
        try:
            operations = [self._addition(file, xet, opened) for file in plan.changed]
            self._sending = True
            self._upload(operations)
            commit, pull_request = self._commit(operations, message, parent)
        finally:
            for file in opened:
                file.close()
        listing = self._there().listing(commit)
        findings = tuple(
            finding("HUB018", f"{what} in {plan.repo_id}@{commit[:8]} after the push")
            for what in differences(plan.files, plan.deletes, listing)
        )
        url = pull_request or f"{remote.endpoint()}/{plan.repo_id}/commit/{commit}"
        sent = tuple(file.name for file in plan.changed)
        return Pushed(commit, url, pull_request, sent, plan.deletes, findings)

    def _there(self) -> Repository:
        return Repository(self.plan.repo_id, self.plan.revision, self.notify)

    def _call(self, call: Callable[[], Any], what: str) -> Any:
        try:
            return remote.retrying(call, what, self.notify)
        except remote.client_errors() as error:
            raise remote.explain(error, self.plan.repo_id, self.plan.revision) from remote.clean_cause(error)

    def _prepare(self) -> str:
        """Make the repository and the branch where there are none; the commit to build on."""
        plan = self.plan
        if not plan.exists:
            private = True if plan.private else None
            make = partial(self.api.create_repo, plan.repo_id, private=private, exist_ok=True)
            self._call(make, f"making {plan.repo_id}")
        if plan.parent is None and plan.revision != "main":
            self._call(
                lambda: self.api.create_branch(plan.repo_id, branch=plan.revision, exist_ok=True),
                f"making the branch {plan.revision}",
            )
        if plan.parent is not None:
            return plan.parent
        info = self._call(
            lambda: self.api.model_info(plan.repo_id, revision=plan.revision), f"listing {plan.repo_id}"
        )
        return str(info.sha)

    def _offers_xet(self) -> bool:
        """Whether the Hub gives write tokens for Xet storage.

        Newer clients take Xet whenever it is installed and fail where a Hub has none; a file object, as the
        client documents, goes by Git LFS instead.
        """
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        url = f"{remote.endpoint()}/api/models/{self.plan.repo_id}/xet-write-token/main"
        session: Any = get_session()
        answer = self._call(
            lambda: session.get(url, headers=remote.request_headers(), timeout=30), "asking for Xet storage"
        )
        return int(answer.status_code) == 200

    def _addition(self, file: PushFile, xet: bool, opened: list[_Counting]) -> Any:
        """The client's operation for a file, whose bytes must still be those of the plan."""
        from huggingface_hub import CommitOperationAdd

        source: Any = file.source
        if isinstance(source, Path):
            try:
                size = source.stat().st_size
                if not xet:
                    source = _Counting(source, partial(self._advance, file.name))
                    opened.append(source)
            except OSError as error:
                raise InputError(
                    f"{source} can't be read any more ({error.strerror}); no commit was made",
                    "push again when the folder is complete",
                ) from error
            if size != file.size:
                raise self._has_changed(file)
        operation = CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=source)
        if not xet and operation.upload_info.sha256.hex() != file.sha256:
            raise self._has_changed(file)
        return operation

    def _has_changed(self, file: PushFile) -> InputError:
        return InputError(
            f"{self.plan.folder / file.name} has changed since the push was planned; no commit was made",
            "let what writes to the folder finish, then push again",
        )

    def _advance(self, name: str, at: int) -> None:
        if self.progress is None or not self._sending:
            return
        with self._lock:
            self._sent[name] = max(at, self._sent.get(name, 0))
            self.progress(sum(self._sent.values()), self.plan.bytes_to_send)

    def _upload(self, operations: Sequence[Any]) -> None:
        """Send the large files, one after the other, so that it can be said which ones failed.

        The client tries each several times by itself. A refusal ends it at once; another failure leaves the
        next files their chance, since what arrives now needn't be sent by the next run.
        """
        plan, failed, last = self.plan, [], None
        large = [
            (operation, file)
            for operation, file in zip(operations, plan.changed, strict=True)
            if file.name.endswith(WEIGHTS) or file.size > 10_000_000
        ]
        for operation, file in large:
            try:
                send = partial(
                    self.api.preupload_lfs_files,
                    plan.repo_id,
                    [operation],
                    revision=plan.revision,
                    create_pr=plan.create_pr,
                    free_memory=False,
                )
                remote.retrying(send, f"sending {file.name}", self.notify)
            except remote.upload_errors() as error:
                failed.append(file.name)
                last = error
                status = remote.status_of(error)
                if status is not None and not remote.is_transient(error):
                    break
                continue
            self._advance(file.name, file.size)
            if operation.upload_info.sha256.hex() != file.sha256:
                raise self._has_changed(file)
        if last is not None:
            why = remote.explain(last, plan.repo_id, plan.revision)
            count = f"{len(failed)} of {len(large)} large files failed ({', '.join(failed)})"
            raise Unavailable(
                f"{count}: {why.message}; no commit was made",
                f"{why.hint}; run the push again: what has arrived isn't sent again" if why.hint else None,
            ) from remote.clean_cause(last)

    def _commit(self, operations: Sequence[Any], message: str, parent: str) -> tuple[str, str | None]:
        """The commit that makes it all visible, and the pull request's address.

        The client doesn't try this again, since an answer can get lost after the commit was made. So before
        each new try the Hub is asked whether it has been.
        """
        from huggingface_hub import CommitOperationDelete

        plan = self.plan
        deletes = [CommitOperationDelete(path_in_repo=name) for name in plan.deletes]
        tried = False

        def commit() -> tuple[str, str | None]:
            nonlocal tried
            if tried and (landed := self._landed(parent)) is not None:
                return landed
            tried = True
            info = self.api.create_commit(
                plan.repo_id,
                [*operations, *deletes],
                commit_message=message,
                revision=plan.revision,
                create_pr=plan.create_pr,
                parent_commit=parent,
            )
            return str(info.oid), info.pr_url

        try:
            return remote.retrying(commit, f"committing to {plan.repo_id}", self.notify)
        except remote.upload_errors() as error:
            if remote.is_transient(error) and (landed := self._landed(parent)) is not None:
                return landed
            if remote.status_of(error) == 412:
                raise Unavailable(
                    f"{plan.repo_id} has moved on since the push was planned (412); no commit was made",
                    "run the push again: it compares with what is there now",
                ) from remote.clean_cause(error)
            why = remote.explain(error, plan.repo_id, plan.revision)
            raise Unavailable(f"{why.message}; no commit was made", why.hint) from remote.clean_cause(error)

    def _landed(self, parent: str) -> tuple[str, str | None] | None:
        """The commit, when it was made although its answer got lost."""
        there = self._there()
        if self.plan.create_pr:
            return there.equal_pull_request(self.plan.files, self.plan.deletes)
        if there.commit in (None, parent) or differences(self.plan.files, self.plan.deletes, there.files):
            return None
        return str(there.commit), None
