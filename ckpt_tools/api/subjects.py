"""Opening what the user names: a draft, a target, an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.source import LocalSource
from ckpt_tools.errors import InputError, Unavailable

if TYPE_CHECKING:
    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.model import Checkpoint, Draft, Target


@dataclass(frozen=True)
class Opened:
    """A checkpoint and where its bytes are."""

    checkpoint: Checkpoint
    source: ByteSource


def _on_hub(text: str) -> bool:
    from ckpt_tools.hub.source import is_hub_id

    return is_hub_id(text)


def open_draft(path: str, *, offline: bool = False) -> Opened:
    """Open a PATH: an existing folder or file, else a Hub id.

    Raises:
        InputError: Neither, or not a checkpoint.
        Unavailable: On the Hub, which can't be reached.
    """
    local = Path(path)
    if local.exists() or not _on_hub(path):
        checkpoint = open_checkpoint(path)
        return Opened(checkpoint, LocalSource(local))
    return _from_hub(path, offline)


def _from_hub(path: str, offline: bool) -> Opened:
    from ckpt_tools.hub.source import open_hub

    try:
        source, _ = open_hub(path, offline=offline)
    except InputError as error:
        raise InputError(
            f"{path}: no such file or folder, and on the Hub: {error.message}", error.hint
        ) from error
    return Opened(open_checkpoint(path, source), source)


def find_target(text: str, *, offline: bool = False) -> Target:
    """A TARGET: registry id or alias, folder, config.json, or Hub id.

    Raises:
        InputError: Nothing of that name.
        Unavailable: Only the Hub would know, and offline was asked for.
    """
    from ckpt_tools import targets

    known = targets.find(text)
    path = Path(text)
    if known is not None and not (path.exists() and "/" in text):
        return known
    if path.exists():
        return targets.read_target(path)
    if _on_hub(text):
        if offline:
            raise Unavailable(
                f"{text}: not in the registry and not a folder; --offline keeps ckpt from asking the Hub"
            )
        opened = _from_hub(text, offline)
        if opened.checkpoint.config is None:
            raise InputError(f"{text}: the repository has no readable config.json")
        return targets.from_config(
            opened.checkpoint.config, text, tensors=opened.checkpoint.tensors or None, origin="hub"
        )
    near = targets.suggest(text)
    raise InputError(
        f"{text}: no target of that name in the registry, and no such file or folder",
        f"did you mean {', '.join(near)}? `ckpt targets list` shows all"
        if near
        else "`ckpt targets list` shows all",
    )


def named_target(draft: Draft | None) -> Target | None:
    """The target that the draft names itself, if the registry or this machine knows it (the Hub isn't asked)."""
    verifier = draft.facts.verifier if draft is not None else None
    if verifier is None or verifier.name is None:
        return None
    from ckpt_tools import targets

    known = targets.find(verifier.name)
    if known is not None:
        return known
    path = Path(verifier.name)
    if path.is_absolute() and (path / "config.json").is_file():
        try:
            return targets.read_target(path)
        except InputError:
            return None
    return None


def target_checkpoint(target: Target | None) -> Opened | None:
    """The target's own files, when they are on this machine and hold weights."""
    if target is None or target.origin != "local":
        return None
    path = Path(target.id)
    if not path.is_dir():
        return None
    opened = Opened(open_checkpoint(path), LocalSource(path))
    return opened if opened.checkpoint.tensors else None
