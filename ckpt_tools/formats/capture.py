"""Reading captured layers into the canonical form: outputs of 0-based target layers, ascending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.capture import decide_convention
from ckpt_tools.formats.base import CaptureIds, pointer
from ckpt_tools.formats.facts import id_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import CaptureConvention


@dataclass(frozen=True)
class Captured:
    """What the config says of captured layers.

    Attributes:
        layers: Outputs of 0-based target layers, ascending, each once; ``None`` when absent or undecided.
        convention: How the ids are counted; ``None`` when absent or undecided.
        ids: As written.
        path: Where they stand.
        undecided: The ids are there and nothing decides how they count.
    """

    layers: tuple[int, ...] | None = None
    convention: CaptureConvention | None = None
    ids: tuple[int, ...] | None = None
    path: str | None = None
    undecided: bool = False


def to_layers(ids: tuple[int, ...], convention: CaptureConvention) -> tuple[int, ...]:
    """Ids of a convention as outputs of 0-based layers, ascending, each once."""
    shift = 1 if convention == "layer_input" else 0
    return tuple(sorted({i - shift for i in ids}))


def read_capture(
    config: Mapping[str, Any],
    rule: CaptureIds,
    num_layers: int | None,
    forced: CaptureConvention | None = None,
) -> Captured:
    """Captured layers of a config.

    Args:
        rule: Where the format writes them.
        num_layers: Of the target, if known: it decides some lists that are undecided without it.
        forced: The convention that the user states for ids at an uncertain path.
    """
    stated = [
        (path, ids, convention, certain)
        for path, convention, certain in zip(rule.paths, rule.convention, rule.certain, strict=True)
        if (ids := id_list(pointer(config, path))) is not None
    ]
    if not stated:
        return Captured()
    path, ids, convention, certain = stated[0]
    if forced is not None and not certain:
        return Captured(to_layers(ids, forced), forced, ids, path)
    if not certain:
        # A second spelling beside it settles the first: engines with a fixed reading wrote or take it.
        witness = next((to_layers(i, c) for _, i, c, sure in stated[1:] if sure), None)
        candidates: tuple[CaptureConvention, ...] = ("layer_output", "layer_input")
        agreeing = [c for c in candidates if witness is not None and to_layers(ids, c) == witness]
        decided = agreeing[0] if agreeing else decide_convention(ids, num_layers)
        if decided is None:
            return Captured(None, None, ids, path, undecided=True)
        convention = decided
    return Captured(to_layers(ids, convention), convention, ids, path)
