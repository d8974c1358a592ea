"""Recognise the output folder of a training run, and say which checkpoint in it to take.

Known layouts: speculators (``0/ 1/ checkpoint_best run.yaml``; with ``--save-best`` only the best epoch and
no run.yaml; ``interrupted/``), SpecForge (``RUN-step100/ RUN-latest RUN-best``, before that
``epoch_0_step_100/`` and ``epoch_0/``), EAGLE's own trainer (``state_0/``) and the Hugging Face Trainer
(``checkpoint-100/``).
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.weights import choose
from ckpt_tools.model import EMPTY

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_SIDE_FILE = 1024 * 1024
_MAX_NAME = 255
BEST = "checkpoint_best"
INTERRUPTED = "interrupted"
RUN_CONFIG = "run.yaml"
METRICS = "val_metrics.json"
STATE = "training_state.json"

# Framework -> what its checkpoint folders are called; the last number orders them.
_LAYOUTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("speculators", re.compile(r"^(?P<number>[0-9]+)$")),
    ("specforge", re.compile(r"^(?P<run>.+)-step(?P<number>[0-9]+)$")),
    ("specforge", re.compile(r"^epoch_(?P<epoch>[0-9]+)_step_(?P<number>[0-9]+)$")),
    ("specforge", re.compile(r"^epoch_(?P<number>[0-9]+)$")),
    ("eagle", re.compile(r"^state_(?P<number>[0-9]+)$")),
    ("transformers", re.compile(r"^checkpoint-(?P<number>[0-9]+)$")),
)


@dataclass(frozen=True)
class Epoch:
    """One checkpoint folder of a run.

    Attributes:
        number: Epoch or step, as the folder's name counts.
        path: The folder, below the path that the run was given as.
        metrics: ``val_metrics.json`` (speculators writes it only in epochs that became the best so far).
        training_state: ``training_state.json``: epoch, local_step, global_step.
        has_weights: Whether there is something to load in it.
        damaged: Side files in it that can't be read, as paths.
    """

    number: int
    path: str
    metrics: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    training_state: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    has_weights: bool = True
    damaged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name."""
        return Path(self.path).name


@dataclass(frozen=True)
class TrainingOutput:
    """The output folder of a training run.

    Attributes:
        path: As given.
        framework: speculators, specforge, eagle or transformers.
        epochs: Oldest first.
        best: What the run marks as its best, ``None`` when it marks none.
        newest: The last one with weights.
        interrupted: The folder that a stopped speculators run leaves; newer than every epoch.
        links: Other names of checkpoints (``epoch1_end``, ``RUN-latest``) -> folder name.
        run_config: ``run.yaml`` as parsed; empty without one.
        best_lost: Why what the run marks as its best can't be taken, or ``None``.
        damaged: Side files that can't be read, as paths: what they say is unknown.
    """

    path: str
    framework: str
    epochs: tuple[Epoch, ...]
    best: Epoch | None
    newest: Epoch | None
    interrupted: str | None = None
    links: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    run_config: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    best_lost: str | None = None
    damaged: tuple[str, ...] = ()

    @property
    def take(self) -> str:
        """The checkpoint folder to use: the best, else the newest, else the interrupted one."""
        for epoch in (self.best, self.newest):
            if epoch is not None:
                return epoch.path
        return self.interrupted or self.path

    def line(self, command: str = "ckpt verify", *rest: str) -> str:
        """What to type instead of the run's own folder, with why in a shell comment.

        Args:
            rest: Arguments that follow the folder.
        """
        if self.best is not None:
            why = f"the best of {len(self.epochs)}" if len(self.epochs) > 1 else "the best"
        elif self.newest is not None:
            why = f"the newest; {self.best_lost or 'the run marks no best one'}"
        else:
            why = "interrupted"
        return f"{command} {shlex.join((self.take, *rest))}  # {why}"


def training_output(path: str | Path) -> TrainingOutput | None:
    """What a folder says about the training run that wrote it; ``None`` when it is no such folder.

    Damaged side files (metrics, run.yaml) count as absent, since they only inform, and are named.
    """
    root = Path(path)
    try:
        names = sorted(entry.name for entry in root.iterdir())
    except OSError:
        return None
    links = {name: target for name in names if (target := _link(root / name)) is not None}
    framework, numbers = _layout(root, [name for name in names if name not in links])
    interrupted = str(Path(path) / INTERRUPTED) if _has_weights(root / INTERRUPTED) else None
    run_file = RUN_CONFIG in names
    if not numbers and not (interrupted and run_file):
        return None
    epochs = tuple(_epoch(Path(path), name, number) for number, name in sorted(numbers))
    if not any(epoch.has_weights for epoch in epochs) and interrupted is None:
        return None
    by_name = {epoch.name: epoch for epoch in epochs}
    best = next(
        (by_name[target] for name, target in links.items() if _marks_best(name) and target in by_name), None
    )
    if best is None and _has_weights(root / BEST):
        # A download follows links, and leaves a copy in their place.
        copy = _epoch(Path(path), BEST, -1)
        epoch = copy.training_state.get("epoch")
        best = replace(copy, number=epoch) if isinstance(epoch, int) else copy
    lost = _lost_best(root, names)
    if best is not None and not best.has_weights:
        lost = f"{best.name}, marked as the best, holds no weights"
    run_config = _yaml(root / RUN_CONFIG) if run_file else EMPTY
    damaged = [name for epoch in epochs for name in epoch.damaged]
    if run_config is None:
        damaged.append(str(Path(path) / RUN_CONFIG))
    loadable = [epoch for epoch in epochs if epoch.has_weights]
    return TrainingOutput(
        path=str(path),
        framework=framework or "speculators",
        epochs=epochs,
        best=best if best and best.has_weights else None,
        newest=loadable[-1] if loadable else None,
        interrupted=interrupted,
        links=links,
        run_config=EMPTY if run_config is None else run_config,
        best_lost=lost,
        damaged=tuple(damaged),
    )


def _marks_best(name: str) -> bool:
    return name == BEST or name.endswith("-best")


def _lost_best(root: Path, names: list[str]) -> str | None:
    """What a mark of the best leads to when that isn't there any more."""
    for name in filter(_marks_best, names):
        if (root / name).is_symlink() and not (root / name).exists():
            return f"{name} leads to {(root / name).readlink()}, which isn't there"
    return None


def _layout(root: Path, names: list[str]) -> tuple[str | None, list[tuple[int, str]]]:
    """The first layout that some folders follow, and those folders with their numbers."""
    for framework, pattern in _LAYOUTS:
        found = [
            (int(match["number"]), name)
            for name in names
            if len(name) <= _MAX_NAME and (match := pattern.match(name)) and (root / name).is_dir()
        ]
        if any(_has_weights(root / name) for _, name in found):
            return framework, found
    return None, []


def _link(path: Path) -> str | None:
    """The neighbour that a link leads to, also where links were unpacked as files that hold the target."""
    try:
        if path.is_symlink():
            target = str(path.readlink())
        elif path.is_file() and path.suffix == "" and path.stat().st_size <= _MAX_NAME:
            target = path.read_text(encoding="utf-8").strip()
        else:
            return None
    except (OSError, UnicodeDecodeError):
        return None
    name = target.rstrip("/").rpartition("/")[2]
    if not name or "\n" in name or "\0" in name or name in (".", "..") or not (path.parent / name).is_dir():
        return None
    return name


def _has_weights(folder: Path) -> bool:
    try:
        return choose(entry.name for entry in folder.iterdir()).kind is not None
    except OSError:
        return False


def _epoch(root: Path, name: str, number: int) -> Epoch:
    folder = root / name
    read = {file: _json(folder / file) for file in (METRICS, STATE)}
    return Epoch(
        number=number,
        path=str(folder),
        metrics=read[METRICS] or EMPTY,
        training_state=read[STATE] or EMPTY,
        has_weights=_has_weights(folder),
        damaged=tuple(str(folder / file) for file, content in read.items() if content is None),
    )


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MAX_SIDE_FILE:
            return None
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        return None


def _json(path: Path) -> Mapping[str, Any] | None:
    """A JSON object; empty when there is no such file, ``None`` when it can't be read."""
    text = _text(path)
    if not text:
        return EMPTY if text is not None and not path.exists() else None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _yaml(path: Path) -> Mapping[str, Any] | None:
    """A YAML mapping; ``None`` when it can't be read."""
    import yaml

    text = _text(path)
    if text is None:
        return None
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else EMPTY if document is None else None
