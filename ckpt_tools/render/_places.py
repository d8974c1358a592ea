"""Where findings are, as other programs name places: paths from a repository's root, or addresses on the Hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_tools.model import Report

#: What a finding about the launch command or the log calls its "file": no file of the checkpoint.
BESIDE = ("launch", "log")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_MANIFEST = "config.json"


@dataclass(frozen=True)
class Around:
    """What paths are made relative to.

    Attributes:
        root: The repository's top folder, or the current folder outside one.
        cwd: The folder that relative paths start from.
        hub: Subjects that are on the Hub rather than on disk.
    """

    root: Path
    cwd: Path
    hub: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Place:
    """A file as others name it.

    Attributes:
        path: From the root with ``/``; ``None`` when it lies outside.
        uri: Percent-encoded: relative to the root, else absolute.
    """

    path: str | None
    uri: str


def look_around(reports: Sequence[Report], root: Path | None = None) -> Around:
    """Look at the disk: the repository around the current folder, and which subjects aren't on disk."""
    from ckpt_tools.hub.source import is_hub_id

    cwd = Path.cwd()
    away = {
        r.subject.path for r in reports if is_hub_id(r.subject.path) and not Path(r.subject.path).exists()
    }
    return Around(root or repository_root(cwd) or cwd, cwd, frozenset(away))


def repository_root(start: Path) -> Path | None:
    """The nearest folder upwards that git calls its top, or ``None``."""
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), None)


def place(subject: str, file: str | None, around: Around) -> Place:
    """Where a subject's file is.

    Args:
        subject: The report's path.
        file: Relative to the checkpoint, or absolute; for none, or one that belongs to no checkpoint, the subject's config.
        around: What to be relative to.
    """
    inner = _MANIFEST if file is None or file in BESIDE else file
    if os.path.isabs(inner):  # of another checkpoint than the subject
        return _relative(Path(os.path.normpath(inner)), around.root)
    if subject in around.hub:
        name, _, revision = subject.removeprefix("hf://").partition("@")
        address = f"https://huggingface.co/{name}/blob/{revision or 'main'}/{inner}"
        return Place(None, quote(os.fsencode(address), safe=":/"))
    folder = PurePath(subject)
    if folder.suffix in _WEIGHTS:
        inner = folder.name if file is None or file in BESIDE else inner
        folder = folder.parent
    full = Path(os.path.normpath(around.cwd / folder / inner))
    return _relative(full, around.root)


def subject_place(subject: str, around: Around) -> Place:
    """The subject itself."""
    if subject in around.hub:
        return place(subject, "", around)
    return _relative(Path(os.path.normpath(around.cwd / subject)), around.root)


def _relative(full: Path, root: Path) -> Place:
    try:
        inside = full.relative_to(root).as_posix()
    except ValueError:
        return Place(None, "file://" + quote(os.fsencode(full.as_posix())))
    return Place(inside, quote(os.fsencode(inside)))
