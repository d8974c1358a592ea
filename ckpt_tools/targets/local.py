"""A target on this machine: a folder, its config.json, or a single weight file beside one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.container import open_checkpoint
from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.targets.config import from_config

if TYPE_CHECKING:
    from ckpt_tools.model import Target, TensorInfo

CONFIG = "config.json"
MODELOPT = "hf_quant_config.json"


def read_target(path: str | Path) -> Target:
    """Facts of the target at *path*, from its config and, where its weights are, from their headers.

    Raises:
        InputError: Nothing is there, or no readable config.json.
    """
    place = Path(path).expanduser()
    if place.name == CONFIG or place.is_dir():
        folder = place.parent if place.name == CONFIG else place
        return _read_folder(folder, str(path))
    if place.suffix == ".json":
        return from_config(_read_json(place), str(path))
    checkpoint = open_checkpoint(place)
    if checkpoint.config is None:
        raise InputError(f"{path}: no {CONFIG} beside it", "give the target's folder, or its config.json")
    return from_config(checkpoint.config, str(path), _modelopt(place.parent), checkpoint.tensors)


def _read_folder(folder: Path, name: str) -> Target:
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder}: no {CONFIG}", "a target is a registry id, a folder with config.json, or a Hub id"
        )
    config = _read_json(folder / CONFIG)
    return from_config(config, name, _modelopt(folder), _tensors(folder))


def _tensors(folder: Path) -> Mapping[str, TensorInfo] | None:
    """Headers of the folder's weights; ``None`` when it has none that can be read here."""
    try:
        return open_checkpoint(folder).tensors
    except Unavailable:  # pickled weights and no torch: the config alone has to do
        return None


def _modelopt(folder: Path) -> Mapping[str, Any] | None:
    path = folder / MODELOPT
    return _read_json(path) if path.is_file() else None


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data
