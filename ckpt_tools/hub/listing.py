"""What a repository holds, and how that differs from what a push wants there."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.hub import remote
from ckpt_tools.hub.files import CARD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckpt_tools.hub.files import PushFile

_PULL_REQUESTS = 20  # how many of the newest are looked at for an equal one


@dataclass(frozen=True)
class Have:
    """A file as the Hub lists it: small ones by git's blob id, large ones by their sha256."""

    size: int
    blob_id: str
    sha256: str | None

    def is_file(self, file: PushFile) -> bool:
        """Whether size and hash are those of the file."""
        same = self.sha256 == file.sha256 if self.sha256 is not None else self.blob_id == file.blob_id
        return same and self.size == file.size


def differences(files: Sequence[PushFile], deletes: Sequence[str], listing: Mapping[str, Have]) -> list[str]:
    """How a listing differs from what is wanted there, one sentence each."""
    out = []
    for file in files:
        there = listing.get(file.name)
        if there is None:
            out.append(f"{file.name} is missing")
        elif there.size != file.size:
            out.append(f"{file.name} has {there.size} bytes instead of {file.size}")
        elif not there.is_file(file):
            out.append(f"{file.name} has another hash")
    return out + [f"{name} is still there" for name in deletes if name in listing]


@dataclass
class Repository:
    """A model repository at a branch, asked once, when the object is made.

    Attributes:
        exists: Whether the repository is there.
        private: Whether it is private.
        commit: The branch's commit; ``None`` when there is no such branch.
        files: What the commit holds.

    Raises:
        CkptError: It is gated, the token is refused, or the Hub is down.
    """

    repo_id: str
    branch: str
    notify: remote.Notify | None
    exists: bool = False
    private: bool = False
    commit: str | None = None
    files: dict[str, Have] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

        self.api = HfApi(endpoint=remote.endpoint(), library_name="ckpt-tools")
        try:
            self.private = bool(self._info(None).private)
            self.exists = True
            self.commit = str(self._info(self.branch).sha)
        except GatedRepoError as error:
            raise remote.explain(error, self.repo_id) from remote.clean_cause(error)
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return  # the push makes it
        except remote.client_errors() as error:
            raise remote.explain(error, self.repo_id, self.branch) from remote.clean_cause(error)
        self.files = self.listing(self.commit)

    def call(self, call: Callable[[], Any], what: str | None = None) -> Any:
        """The result of a call, tried again when there is a name for it, its failure explained.

        Raises:
            CkptError: It failed.
        """
        try:
            return call() if what is None else remote.retrying(call, what, self.notify)
        except remote.client_errors() as error:
            raise remote.explain(error, self.repo_id, self.branch) from remote.clean_cause(error)

    def listing(self, revision: str) -> dict[str, Have]:
        """Every file at a revision.

        Raises:
            CkptError: It can't be had.
        """
        from huggingface_hub.hf_api import RepoFile

        def ask() -> dict[str, Have]:
            rows = self.api.list_repo_tree(self.repo_id, recursive=True, revision=revision)
            return {
                row.path: Have(row.size, row.blob_id, row.lfs.sha256 if row.lfs else None)
                for row in rows
                if isinstance(row, RepoFile)
            }

        return dict(self.call(ask, f"listing {self.repo_id}"))

    def card(self) -> str | None:
        """The README.md at the branch."""
        if CARD not in self.files:
            return None
        from huggingface_hub import hf_hub_download

        download = partial(
            hf_hub_download, self.repo_id, CARD, revision=self.commit, endpoint=remote.endpoint()
        )
        return Path(self.call(download, f"reading {CARD}")).read_bytes().decode("utf-8", "replace")

    def equal_pull_request(self, files: Sequence[PushFile], deletes: Sequence[str]) -> tuple[str, str] | None:
        """A pull request that holds exactly what is wanted: its commit and address."""
        ask = partial(self.api.list_repo_refs, self.repo_id, include_pull_requests=True)
        refs = self.call(ask, f"listing the pull requests of {self.repo_id}")
        newest = sorted(refs.pull_requests or (), key=lambda ref: int(ref.ref.rsplit("/", 1)[-1]))
        for ref in reversed(newest[-_PULL_REQUESTS:]):
            if not differences(files, deletes, self.listing(ref.ref)):
                number = ref.ref.rsplit("/", 1)[-1]
                return ref.target_commit, f"{remote.endpoint()}/{self.repo_id}/discussions/{number}"
        return None

    def _info(self, revision: str | None) -> Any:
        ask = partial(self.api.model_info, self.repo_id, revision=revision, timeout=30)
        return remote.retrying(ask, f"listing {self.repo_id}", self.notify)
