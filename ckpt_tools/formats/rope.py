"""Rotary settings: two spellings on disk, one canonical form.

transformers 5 writes ``rope_parameters: {rope_theta, rope_type, …}``; transformers 4 wrote ``rope_theta`` beside
``rope_scaling: {type or rope_type, …}``. Where both are there and differ, transformers 5 takes ``rope_parameters``
without a word (transformers 5.19, run), and SGLang up to 0.5.9 reads only the old one
(sglang 0.5.9 models/llama.py:255-256).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.model import Rope

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACED_ELSEWHERE = frozenset({"rope_theta", "type", "rope_type", "partial_rotary_factor"})


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _scaling(block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = block.get("rope_type", block.get("type"))
    rest = {k: v for k, v in block.items() if k not in _PLACED_ELSEWHERE and v is not None}
    if kind in (None, "default") and not rest:
        return None
    return {"rope_type": kind if isinstance(kind, str) else "default", **rest}


def _of_layers(block: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block of the layers' kind where transformers 5 keeps one per kind; as it is when their kinds differ in it."""
    if not block or not all(isinstance(v, dict) for v in block.values()):
        return block
    kinds = config.get("layer_types")
    used = [block[k] for k in kinds if k in block] if isinstance(kinds, list) else list(block.values())
    first: Mapping[str, Any] = used[0] if used else block
    return first if all(one == first for one in used) else block


def by_layer_type(rope: Rope | None) -> bool:
    """Whether the settings differ between kinds of layers, which no draft's class can be told."""
    return rope is not None and any(isinstance(v, dict) for v in (rope.scaling or {}).values())


def _new_spelling(config: Mapping[str, Any]) -> Rope | None:
    block = config.get("rope_parameters")
    if not isinstance(block, dict):
        return None
    block = _of_layers(block, config)
    theta = _number(block.get("rope_theta"))
    return Rope(
        theta if theta is not None else _number(config.get("rope_theta")),
        _scaling(block),
        _number(block.get("partial_rotary_factor", config.get("partial_rotary_factor"))),
    )


def _old_spelling(config: Mapping[str, Any]) -> Rope | None:
    block = config.get("rope_scaling")
    theta = _number(config.get("rope_theta"))
    partial = _number(config.get("partial_rotary_factor"))
    if not isinstance(block, dict):
        return None if theta is None and partial is None else Rope(theta, None, partial)
    return Rope(
        theta if theta is not None else _number(block.get("rope_theta")),
        _scaling(block),
        partial if partial is not None else _number(block.get("partial_rotary_factor")),
    )


def read_rope(config: Mapping[str, Any]) -> Rope | None:
    """Rotary settings of a flat config; ``None`` when it states none. ``rope_parameters`` wins."""
    return _new_spelling(config) or _old_spelling(config)


def spellings_disagree(config: Mapping[str, Any]) -> tuple[Rope, Rope] | None:
    """Both readings when the two spellings are there and say different things, else ``None``."""
    new, old = _new_spelling(config), _old_spelling(config)
    old_stated = config.get("rope_theta") is not None or isinstance(config.get("rope_scaling"), dict)
    if new is None or old is None or not old_stated:
        return None
    theta_differs = old.theta is not None and new.theta != old.theta
    scaling_stated = isinstance(config.get("rope_scaling"), dict)
    return (new, old) if theta_differs or (scaling_stated and new.scaling != old.scaling) else None


def write_rope(rope: Rope) -> dict[str, Any]:
    """Config fields of both spellings, from one source and always equal."""
    scaling = dict(rope.scaling or {"rope_type": "default"})
    kind = scaling.pop("rope_type", "default")
    parameters: dict[str, Any] = {"rope_type": kind, **scaling}
    out: dict[str, Any] = {}
    if rope.theta is not None:
        parameters["rope_theta"] = out["rope_theta"] = rope.theta
    if rope.partial_rotary_factor is not None:
        parameters["partial_rotary_factor"] = out["partial_rotary_factor"] = rope.partial_rotary_factor
    if rope.scaling is not None:
        out["rope_scaling"] = {"rope_type": kind, "type": kind, **scaling}
    out["rope_parameters"] = parameters
    return out
