"""Planning a push: every check, the card, and what the Hub lacks. The Hub is asked and not changed.

Nothing is sent before every check has passed; :mod:`ckpt_tools.hub.upload` then does what the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_tools.container.source import LocalSource
from ckpt_tools.errors import Unavailable, UsageError
from ckpt_tools.hub import remote
from ckpt_tools.hub.card import CardInput, make_card, own_text, validate_card
from ckpt_tools.hub.codes import finding
from ckpt_tools.hub.files import (
    CARD,
    MAX_TEXT,
    PICKLES,
    REPORT,
    WEIGHTS,
    LeftOut,
    PushFile,
    Rewrite,
    choose,
    clean_config,
    find_secrets,
    hash_file,
    header_text,
)
from ckpt_tools.hub.listing import Repository
from ckpt_tools.hub.published import published
from ckpt_tools.hub.rights import check_rights
from ckpt_tools.model import EMPTY, Location, Report, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ckpt_tools.hub.card import Acceptance
    from ckpt_tools.hub.listing import Have
    from ckpt_tools.model import Finding

    Progress = Callable[[int, int], None]

_TEXT = (".json", ".md", ".txt", ".jinja", ".yaml", ".yml", ".tiktoken")
_INDEX = (".safetensors.index.json", ".bin.index.json")


@dataclass(frozen=True)
class PushPlan:
    """What a push would do.

    Attributes:
        folder: Of the draft.
        repo_id: Where it goes.
        revision: The branch.
        create_pr: A pull request instead of a commit on the branch.
        private: Make the repository private, if it is made.
        parent: The branch's commit that was compared with; ``None`` when the repository or branch is new.
        exists: Whether the repository is there.
        files: Every file as it is to be there.
        deletes: Weights of an earlier push that go.
        left_out: Files of the folder that don't go, and why.
        rewrites: Local paths that are replaced in what goes.
        findings: Family HUB; nothing is pushed while one is an error.
        proposed: A pull request that proposes exactly this already: its commit and address.
    """

    folder: Path
    repo_id: str
    revision: str
    create_pr: bool = False
    private: bool = False
    parent: str | None = None
    exists: bool = False
    files: tuple[PushFile, ...] = ()
    deletes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    findings: tuple[Finding, ...] = ()
    proposed: tuple[str, str] | None = None

    @property
    def blocked(self) -> bool:
        """Whether a check refuses the push."""
        return any(f.severity is Severity.ERROR for f in self.findings)

    @property
    def changed(self) -> tuple[PushFile, ...]:
        """The files that the Hub lacks or has with other bytes."""
        return tuple(f for f in self.files if f.state != "same")

    @property
    def nothing_to_do(self) -> bool:
        """Whether the Hub has exactly this already."""
        return self.proposed is not None or not (self.changed or self.deletes)

    @property
    def bytes_to_send(self) -> int:
        """At most; what an interrupted push has sent already isn't sent again."""
        return sum(f.size for f in self.changed)


def plan_push(
    folder: str | Path,
    repo_id: str,
    *,
    verify: Report,
    render_report: Callable[[Report], str],
    smoke: Report | None = None,
    license: str | None = None,
    base_model: str | None = None,
    serve: Mapping[str, str] = EMPTY,
    acceptance: Acceptance | None = None,
    tags: Sequence[str] = (),
    include: Collection[str] = (),
    revision: str | None = None,
    create_pr: bool = False,
    private: bool = False,
    notify: remote.Notify | None = None,
    progress: Progress | None = None,
) -> PushPlan:
    """Everything that a push would do; the Hub is asked and not changed.

    Checked in this order, and the first group with an error ends it: the reports; the token's rights; the
    files and the card, locally; the card, by the Hub; what the repository holds.

    Args:
        folder: The draft.
        repo_id: ``owner/name``.
        verify: The report of ``verify`` for this folder.
        render_report: Makes ``ckpt_report.json`` of the report, in which the folder is called by its Hub id.
        smoke: A report of ``smoke``; trusted only when its content hashes are those of the files.
        license: For the card; needed when the card has none.
        base_model: The target's Hub id; ``None`` takes the one that the registry knows.
        serve: Engine -> launch command, for the card.
        acceptance: For the card.
        tags: Further tags for the card.
        include: Names of further files that belong to the draft.
        revision: Branch; the default branch without it.
        create_pr: Propose the files instead of committing them.
        private: Make a new repository private.
        notify: Told in one line about every new try.
        progress: Called with (bytes done, bytes in all) while hashing.

    Raises:
        UsageError: The arguments contradict each other.
        InputError: The folder can't be read, or the id is malformed.
        Unavailable: Offline, no or a refused token, or the Hub is down.
    """
    branch = revision or "main"
    if create_pr and branch != "main":
        raise UsageError(
            f"--create-pr proposes to the default branch, and --revision names {branch}",
            "drop one of the two",
        )
    if remote.is_offline():
        raise Unavailable("HF_HUB_OFFLINE is set, and a push needs the Hub", "unset HF_HUB_OFFLINE")
    base_model = base_model or (verify.target.hf_repo if verify.target is not None else None)
    plan = PushPlan(Path(folder), repo_id, branch, create_pr=create_pr, private=private)
    if refused := _report_findings(verify, smoke):
        return replace(plan, findings=refused)
    if refused := check_rights(repo_id, create_pr, notify):
        return replace(plan, findings=refused)

    verify = published(verify, plan.folder, repo_id)
    plan, sources = _select(plan, include, base_model)
    given = CardInput(repo_id, verify, license, base_model, serve, acceptance, smoke, tuple(tags))
    there = Repository(repo_id, branch, notify)
    existing, replaced = _existing_card(sources, there)
    card = make_card(existing, given)
    secrets = tuple(find_secrets(CARD, card.text))
    plan = replace(plan, findings=(*plan.findings, *replaced, *card.findings, *secrets))
    if plan.blocked:
        return plan
    invalid = there.call(lambda: validate_card(card.text, notify))
    if invalid:
        return replace(plan, findings=(*plan.findings, *invalid))

    sources[CARD] = card.text.encode()
    sources[REPORT] = render_report(verify).encode()
    plan = replace(plan, files=_hash(sources, progress))
    plan = replace(plan, findings=(*plan.findings, *_smoke_findings(smoke, plan.files)))
    if plan.blocked:
        return plan
    return _compare(plan, there)


# -- the reports -------------------------------------------------------------------------------------------


def _report_findings(verify: Report, smoke: Report | None) -> tuple[Finding, ...]:
    out = []
    if verify.verdict != "pass":
        errors = [f.code for f in verify.findings if f.severity is Severity.ERROR]
        what = f"{len(errors)} errors ({', '.join(sorted(set(errors)))})" if errors else verify.verdict
        out.append(finding("HUB006", f"verify found {what}; nothing was uploaded"))
    if smoke is not None and smoke.verdict != "pass":
        out.append(finding("HUB007", f"smoke says {smoke.verdict}; nothing was uploaded"))
    elif smoke is not None and not smoke.subject.content:
        message = "the smoke report holds no content hashes, so it can't be told which files it is of"
        out.append(finding("HUB007", message))
    return tuple(out)


def _smoke_findings(smoke: Report | None, files: Sequence[PushFile]) -> Iterator[Finding]:
    """Where the smoke report's hashes aren't those of the weights on disk."""
    for file in files:
        if smoke is None or not file.name.endswith(WEIGHTS):
            continue
        there = (smoke.subject.content or {}).get(file.name, "nothing")
        if there != f"sha256:{file.sha256}":
            short = f"sha256:{file.sha256[:8]}…"
            message = f"the smoke report is of another {file.name} ({there[:15]}… there, {short} here)"
            yield finding("HUB007", message, Location(file.name))


# -- the files ---------------------------------------------------------------------------------------------


def _select(
    plan: PushPlan, include: Collection[str], base_model: str | None
) -> tuple[PushPlan, dict[str, Path | bytes]]:
    """The draft's own files, cleaned, and what is wrong with them."""
    local = LocalSource(plan.folder)
    names, left = choose(local.list(), include)
    folders = sorted(p.name for p in plan.folder.iterdir() if p.is_dir())
    left += [LeftOut(f"{name}/", "a folder") for name in folders]
    sources: dict[str, Path | bytes] = {name: local.local(name) for name in names}
    findings: list[Finding] = []
    rewrites: list[Rewrite] = []
    for name in names:
        path = local.local(name)
        if name.endswith(".safetensors"):
            findings += find_secrets(name, header_text(path))
        if not name.endswith(_TEXT) or path.stat().st_size > MAX_TEXT:
            continue
        text = local.read(name, 0, MAX_TEXT).decode("utf-8", "replace")
        findings += find_secrets(name, text)
        if name.endswith(".json"):
            cleaned, replaced, found = clean_config(name, text, base_model)
            findings += found
            rewrites += replaced
            if replaced:
                sources[name] = cleaned.encode()
    for missing in sorted(set(include) - set(names)):
        reason = next((item.reason for item in left if item.name == missing), "not in the folder")
        raise UsageError(
            f"--include {missing}: {reason}", "name a file of the folder that belongs to the draft"
        )
    weights = [name for name in names if name.endswith(WEIGHTS)]
    if not weights:
        findings.append(finding("HUB011", "no weight file is among the files that would be pushed"))
    for name in weights:
        if name.endswith(PICKLES):
            message = f"{name} is a pickle, and there are no safetensors"
            findings.append(finding("HUB013", message, Location(name)))
    for item in rewrites:
        value = "null" if item.value is None else item.value
        message = f"{item.file} {item.pointer} becomes {value} in what is pushed"
        findings.append(finding("HUB010", message, Location(item.file, item.pointer)))
    if left:
        names_left = ", ".join(f"{item.name} ({item.reason})" for item in left)
        count = f"{len(left)} files are" if len(left) > 1 else "1 file is"
        findings.append(finding("HUB012", f"{count} left out: {names_left}"))
    plan = replace(plan, left_out=tuple(left), rewrites=tuple(rewrites), findings=tuple(findings))
    return plan, sources


def _existing_card(
    sources: Mapping[str, Path | bytes], there: Repository
) -> tuple[str | None, tuple[Finding, ...]]:
    """The card to build on: the folder's, else the Hub's; a warning where the former hides the latter's text."""
    source = sources.get(CARD)
    local = source.read_bytes().decode("utf-8", "replace") if isinstance(source, Path) else None
    theirs = there.card()
    if local is None or theirs is None:
        return (theirs if local is None else local), ()
    own = own_text(theirs)
    if own and own != own_text(local):
        message = f"{CARD} on the Hub has text outside the generated part that the folder's {CARD} lacks"
        return local, (finding("HUB017", message, Location(CARD)),)
    return local, ()


def _hash(sources: Mapping[str, Path | bytes], progress: Progress | None) -> tuple[PushFile, ...]:
    total = sum(s.stat().st_size for s in sources.values() if isinstance(s, Path))
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return tuple(hash_file(name, source, advance) for name, source in sorted(sources.items()))


def _compare(plan: PushPlan, there: Repository) -> PushPlan:
    """The plan with what the repository holds."""
    findings = list(plan.findings)
    if plan.private and there.exists and not there.private:
        findings.append(finding("HUB016", f"{plan.repo_id} exists and is public"))
    have = there.files
    files = tuple(replace(f, state=_state(f, have.get(f.name))) for f in plan.files)
    names = {f.name for f in files}
    stale = sorted(
        name for name in have if "/" not in name and name.endswith((*WEIGHTS, *_INDEX)) and name not in names
    )
    if stale and REPORT in have:
        message = f"{', '.join(stale)}: no longer part of the draft, and removed in the same commit"
        findings.append(finding("HUB015", message))
    elif stale:
        message = f"{plan.repo_id} holds {', '.join(stale)}, which this push doesn't contain"
        findings.append(finding("HUB014", message))
        stale = []
    plan = replace(
        plan,
        parent=there.commit,
        exists=there.exists,
        files=files,
        deletes=tuple(stale),
        findings=tuple(findings),
    )
    if plan.create_pr and there.exists and not plan.nothing_to_do:
        plan = replace(plan, proposed=there.equal_pull_request(files, stale))
    return plan


def _state(file: PushFile, there: Have | None) -> str:
    if there is None:
        return "new"
    return "same" if there.is_file(file) else "changed"
