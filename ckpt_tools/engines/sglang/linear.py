"""A linear layer before its quantisation method decides on its parameters, and the plain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ckpt_tools.engines.sglang import shapes
from ckpt_tools.engines.sglang.parameters import Parameter, Part

if TYPE_CHECKING:
    from ckpt_tools.engines.sglang.shapes import Shape

Kind = Literal["column", "row", "replicated", "qkv", "merged"]
# What names of modules that a config's targets give are compared with (compressed_tensors/utils.py ``find_matched_target``).
CLASS_NAMES: Mapping[Kind, str] = {
    "column": "ColumnParallelLinear",
    "row": "RowParallelLinear",
    "replicated": "ReplicatedLinear",
    "qkv": "QKVParallelLinear",
    "merged": "MergedColumnParallelLinear",
}


@dataclass(frozen=True)
class Linear:
    """A linear layer.

    Attributes:
        kind: Which class of parallel linear.
        inputs: Width.
        parts: Shard id -> rows.
        path: The name that the engine gives the layer to its quantisation method; a draft class may build it otherwise than
            its parameters are named.
    """

    kind: Kind
    inputs: int
    parts: Mapping[str | int, int]
    path: str = ""

    @property
    def outputs(self) -> int:
        """All rows."""
        return sum(self.parts.values())


Method = Callable[[str, Linear], dict[str, Parameter]]
LOADERS = {"column": shapes.column, "row": shapes.row, "replicated": shapes.replicated}


def matrix(linear: Linear, *, pack: int = 1, dtype: str | None = None) -> Parameter:
    """A weight of [rows, inputs / pack]; *dtype* where the method fixes it."""
    parts, part_loader = slices(linear)
    return Parameter(
        (linear.outputs, linear.inputs // pack),
        LOADERS.get(linear.kind, shapes.plain),
        "nothing",
        parts,
        part_loader,
        dtype=dtype,
    )


def slices(
    linear: Linear, rows_per: int = 1
) -> tuple[dict[str | int, Part], Callable[[Shape, Shape], str | None] | None]:
    """The slices of a fused linear, and how one part enters."""
    if linear.kind not in ("qkv", "merged"):
        return {}, None
    start, parts = 0, {}
    for shard, rows in linear.parts.items():
        parts[shard] = Part(start, -(-rows // rows_per))
        start += -(-rows // rows_per)
    return parts, shapes.qkv if linear.kind == "qkv" else shapes.merged


def unquantized(name: str, linear: Linear) -> dict[str, Parameter]:
    """``UnquantizedLinearMethod`` (unquant.py): one weight, uninitialised memory until loaded."""
    return {f"{name}.weight": matrix(linear)}


UNQUANTIZED: Method = unquantized
