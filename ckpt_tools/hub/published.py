"""A report as others may read it: nothing of this machine is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ckpt_tools.model import EMPTY

if TYPE_CHECKING:
    from ckpt_tools.model import Report

T = TypeVar("T")


def published(report: Report, folder: Path, repo_id: str) -> Report:
    """The report with the draft's Hub id for its folder, and a local target by its name alone."""
    for path in {str(folder.absolute()), str(folder.resolve())}:
        report = without_path(report, path, repo_id)
    target = report.target
    if target is not None and target.origin == "local":
        target = replace(target, id=target.hf_repo or Path(target.id).name, config=None, sources=EMPTY)
    return replace(report, subject=replace(report.subject, path=repo_id), target=target)


def without_path(value: T, path: str, name: str) -> T:
    """The same data, a report included, with *name* wherever the absolute *path* is; the keys of mappings stay."""
    return _replaced(value, re.compile(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])"), name)  # type: ignore[no-any-return]


def _replaced(value: Any, pattern: re.Pattern[str], name: str) -> Any:
    if type(value) is str:  # an enumeration's member is one, too, and stays what it is
        return pattern.sub(lambda _: name, value)
    if isinstance(value, Mapping):
        return {key: _replaced(item, pattern, name) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(item, pattern, name) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _replaced(getattr(value, f.name), pattern, name) for f in fields(value)}
        return replace(value, **changed)
    return value
