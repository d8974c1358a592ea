"""Signs of training in weights: what an untrained or scrambled head lacks.

Freshly initialised matrices have the singular values of random ones and norms of exactly one; training leaves both
behind. Training also couples neighbours: the rows of `up_proj` that grow are those that `down_proj` reads with
growing columns. Shuffling a matrix keeps its spectrum or its values, but not its place beside its neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.spec import layer_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.forward.spec import HeadSpec


@dataclass(frozen=True)
class Signs:
    """Statistics of one head's weights.

    Attributes:
        gain_spread: Largest standard deviation of a norm's gains; 0 in an untrained head.
        outliers: Matrix -> its largest singular value over that of a random matrix of its size and variance; about 1
            when untrained or scrambled element by element.
        coupling: Pair of neighbours -> z-score of the correlation of their norms along the dimension they share;
            within ±3 by chance when one of them is untrained or shuffled.
    """

    gain_spread: float
    outliers: Mapping[str, float]
    coupling: Mapping[str, float]


def _largest(matrix: torch.Tensor, rounds: int = 12) -> float:
    """Largest singular value, by power iteration from a fixed start."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(matrix.shape[1], generator=generator).to(matrix.device)
    for _ in range(rounds):
        v = matrix.T @ (matrix @ v)
        v = v / v.norm().clamp(min=1e-30)
    return float((matrix @ v).norm())


def _outlier(matrix: torch.Tensor) -> float:
    """Largest singular value of the centred matrix over what chance gives."""
    wide = matrix.float()
    deviation = float(wide.std())
    if not math.isfinite(deviation) or deviation == 0:
        return 0.0
    rows, columns = wide.shape
    return _largest(wide) / (deviation * (math.sqrt(rows) + math.sqrt(columns)))


def _correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """z-score of the correlation of the logarithms of two positive vectors."""
    a, b = a.clamp(min=1e-20).log(), b.clamp(min=1e-20).log()
    a, b = a - a.mean(), b - b.mean()
    norm = float(a.norm() * b.norm())
    if norm == 0 or not math.isfinite(norm):
        return 0.0
    r = max(-0.999999, min(0.999999, float(a @ b) / norm))
    return math.atanh(r) * math.sqrt(max(1, len(a) - 3))


def signs(spec: HeadSpec, tensors: Mapping[str, torch.Tensor]) -> Signs:
    """The statistics of a head's own weights; borrowed ones (embedding, head) tell nothing about the head."""
    gains = [t.float().std() for name, t in tensors.items() if t.dim() == 1 and "norm" in name and len(t) > 1]
    outliers = {
        name: _outlier(t)
        for name, t in sorted(tensors.items())
        if t.dim() == 2 and name.endswith(("proj.weight", "fc.weight"))
    }
    coupling = {}
    for i in range(spec.num_layers):
        prefix = layer_prefix(spec.algorithm, i)
        parts = [tensors.get(f"{prefix}mlp.{p}_proj.weight") for p in ("gate", "up", "down")]
        if all(part is not None for part in parts):
            gate, up, down = (part.float() for part in parts if part is not None)
            coupling[f"{prefix}mlp.up_proj/down_proj"] = _correlation(up.norm(dim=1), down.norm(dim=0))
            coupling[f"{prefix}mlp.gate_proj/up_proj"] = _correlation(gate.norm(dim=1), up.norm(dim=1))
        value, out = (tensors.get(f"{prefix}self_attn.{p}_proj.weight") for p in ("v", "o"))
        if value is not None and out is not None and spec.mla is None:
            dim, repeats = spec.head_dim, spec.num_heads // spec.num_kv_heads
            columns = out.float().square().sum(0).view(-1, repeats, dim).sum(1).sqrt().flatten()
            coupling[f"{prefix}self_attn.v_proj/o_proj"] = _correlation(value.float().norm(dim=1), columns)
    return Signs(float(max(gains)) if gains else 0.0, outliers, coupling)
