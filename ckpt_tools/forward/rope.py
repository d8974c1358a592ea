"""Rotary position embeddings, as transformers computes them (`modeling_rope_utils.py`, 5.19).

Kinds: default, linear, dynamic (NTK), llama3, yarn; `mrope` sections over text, where the three position
streams are equal, give the default rope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Rope

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class Rotary:
    """Frequencies of one rope.

    Attributes:
        inverse: float32 [rotary_dim / 2], radians per position.
        scale: Factor on cos and sin (yarn's attention factor, else 1).
    """

    inverse: torch.Tensor
    scale: float
    _last: list[Any] = field(init=False, default_factory=list, repr=False, compare=False)

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, float32 [..., rotary_dim / 2], of integer positions [...]."""
        angles = positions.to(torch.float32).unsqueeze(-1) * self.inverse
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self.scale == 1.0 else (cos * self.scale, sin * self.scale)

    def wide(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, cos) and (-sin, sin), float32 [..., rotary_dim].

        All steps of a graph and all layers ask with the same tensor, so the last answer is kept.
        """
        if not self._last or self._last[0] is not positions:
            cos, sin = self.tables(positions)
            self._last[:] = (positions, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
        return self._last[1], self._last[2]


def kind(scaling: Mapping[str, Any] | None) -> str:
    """The rope type that a scaling dict names; `mrope` over text is the default rope."""
    if not scaling:
        return "default"
    stated = scaling.get("rope_type", scaling.get("type", "default"))
    if stated in ("mrope", "default"):
        return "default"
    if stated not in KINDS:
        raise InputError(
            f"rope type {stated!r} can't be computed here; known are {', '.join(KINDS)} and mrope",
            hint="check rope_scaling / rope_parameters in the draft's config.json",
        )
    return str(stated)


def _number(scaling: Mapping[str, Any], key: str) -> float:
    value = scaling.get(key)
    if not isinstance(value, (int, float)):
        raise InputError(
            f"rope scaling of type {kind(scaling)!r} needs the number {key!r}, found {value!r}",
            hint=f"write {key} into rope_scaling / rope_parameters of the draft's config.json",
        )
    return float(value)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Yarn's magnitude correction for a context stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn(
    scaling: Mapping[str, Any], theta: float, dim: int, max_position: int | None
) -> tuple[torch.Tensor, float]:
    original = _number(scaling, "original_max_position_embeddings")
    stretched = scaling.get("factor") is None and max_position is not None
    factor = (max_position or 0) / original if stretched else _number(scaling, "factor")
    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    own = yarn_mscale(factor)
    if mscale and all_dim:
        own = yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
    attention = scaling.get("attention_factor") or own

    def turns_at(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turns_at(scaling.get("beta_fast") or 32), turns_at(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    steps = theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    kept = 1 - ramp
    return 1.0 / (factor * steps) * (1 - kept) + 1.0 / steps * kept, float(attention)


def _llama3(scaling: Mapping[str, Any], plain: torch.Tensor) -> torch.Tensor:
    factor, original = _number(scaling, "factor"), _number(scaling, "original_max_position_embeddings")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    out = torch.where(wavelength > original / low, plain / factor, plain)
    medium = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(medium, between, out)


def rotary(
    rope: Rope,
    head_dim: int,
    *,
    default_theta: float,
    max_position: int | None = None,
    sequence_length: int | None = None,
) -> Rotary:
    """Frequencies of `rope` for heads of `head_dim`.

    Args:
        rope: The draft's rotary settings; a theta that it doesn't state is `default_theta`.
        head_dim: Size of the rotated head (for MLA: of the rotary part).
        default_theta: What the engine assumes.
        max_position: `max_position_embeddings`, which dynamic and yarn without a factor need.
        sequence_length: Positions in use; dynamic NTK stretches with it beyond `max_position`.

    Raises:
        InputError: An unknown kind or a missing parameter.
    """
    scaling = rope.scaling or {}
    name = kind(scaling)
    theta = default_theta if rope.theta is None else rope.theta
    partial = rope.partial_rotary_factor
    dim = head_dim if partial is None else int(head_dim * partial)
    if name == "yarn":
        return Rotary(*_yarn(scaling, theta, dim, max_position))
    if name == "dynamic":
        factor = _number(scaling, "factor")
        if max_position is None:
            raise InputError(
                "dynamic rope needs max_position_embeddings", hint="write it into the draft's config.json"
            )
        length = max(sequence_length or 0, max_position)
        theta = theta * (factor * length / max_position - (factor - 1)) ** (dim / (dim - 2))
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if name == "linear":
        plain = plain / _number(scaling, "factor")
    elif name == "llama3":
        plain = _llama3(scaling, plain)
    return Rotary(plain, 1.0)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [..., heads, head_dim] turned in pairs (i, i + rotary_dim / 2), by :meth:`Rotary.wide` tables.

    Dimensions beyond rotary_dim pass through. The tables' float32 widens `x`; returned in its dtype.
    """
    width = cos.shape[-1]
    part = x[..., :width]
    turned = torch.addcmul(part * cos.unsqueeze(-2), part.roll(width // 2, -1), sin.unsqueeze(-2))
    out = turned.to(x.dtype)
    return out if width == x.shape[-1] else torch.cat((out, x[..., width:]), dim=-1)


def rotate_neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [..., heads, rotary_dim] turned in pairs (2i, 2i + 1), as DeepSeek's MLA does, by :meth:`Rotary.tables`."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x[..., 0::2], x[..., 1::2]
    first, second = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
    return torch.stack((first, second), -1).flatten(-2).to(x.dtype)
