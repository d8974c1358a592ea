"""Rotary settings of a target in one spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt_tools.model import Rope


def rope_of(config: Mapping[str, Any]) -> Rope | None:
    """Rope of a flat config in either spelling; ``None`` when it states nothing about it.

    ``rope_parameters`` (transformers 5) wins over ``rope_scaling`` with ``rope_theta`` (before), as it does
    in transformers. Settings that differ per layer type stay nested under their layer types.
    """
    scaling = config.get("rope_parameters")
    if not isinstance(scaling, Mapping) or not scaling:
        scaling = config.get("rope_scaling")
    return canonical_rope(
        theta=config.get("rope_theta"),
        scaling=scaling if isinstance(scaling, Mapping) else None,
        partial=config.get("partial_rotary_factor"),
    )


def canonical_rope(theta: object, scaling: Mapping[str, Any] | None, partial: object) -> Rope | None:
    """One spelling: theta and the partial factor out of the dict, ``type`` as ``rope_type``."""
    rest = dict(scaling or {})
    inner_theta, inner_partial = rest.pop("rope_theta", None), rest.pop("partial_rotary_factor", None)
    legacy = rest.pop("type", None)
    kind = rest.pop("rope_type", None) or legacy
    if kind == "mrope":  # transformers reads it as the default rope with sections
        kind = "default"
    if kind is not None and (kind != "default" or rest):
        rest = {"rope_type": kind, **rest}
    base = _number(inner_theta if inner_theta is not None else theta)
    factor = _number(inner_partial if inner_partial is not None else partial)
    if base is None and factor is None and not rest and not scaling:
        return None
    return Rope(theta=base, scaling=rest or None, partial_rotary_factor=factor)


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None
