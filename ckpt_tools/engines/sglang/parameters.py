"""The parameters that a model class builds, and loading tensors into them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ckpt_tools.engines.sglang import shapes
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.model import Fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckpt_tools.engines.sglang.shapes import Shape
    from ckpt_tools.model import FilledBy, TensorInfo

Unfilled = Literal["default", "nothing"]


@dataclass(frozen=True)
class Part:
    """A slice of a fused parameter's rows that one tensor fills."""

    start: int
    rows: int


@dataclass(frozen=True)
class Parameter:
    """One parameter as the engine builds it.

    Attributes:
        shape: As built (the vocabulary padded to a multiple of 64).
        loader: How a whole tensor enters; a parameter with parts is sliced first.
        parts: Shard id -> slice, for fused parameters.
        unfilled: What it holds without a tensor: a defined value or whatever memory held.
        logical: The shape that tensors are compared with, where it isn't ``shape``.
        part_loader: How one part's tensor enters.
        dtype: Where a method fixes it; a column's loader refuses what doesn't go into it.
    """

    shape: Shape
    loader: Callable[[Shape, Shape], str | None]
    unfilled: Unfilled = "nothing"
    parts: Mapping[str | int, Part] = field(default_factory=dict)
    part_loader: Callable[[Shape, Shape], str | None] | None = None
    logical: Shape | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuse what ``torch.empty`` refuses."""
        for size in self.shape:
            if type(size) is not int:  # a config may hold anything, and a bool is no size
                raise Refused(
                    "TypeError",
                    f"empty(): argument 'size' must be tuple of ints, but found {type(size).__name__}",
                    "class",
                )
            if size < 0:
                raise Refused(
                    "RuntimeError",
                    f"Trying to create tensor with negative dimension {size}: {list(self.shape)}",
                    "class",
                )


@dataclass
class Filling:
    """What has reached one parameter so far."""

    sources: set[str] = field(default_factory=set)
    cuts: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    parts: set[str | int] = field(default_factory=set)


class Model:
    """A built class: its parameters by name, and what has been loaded into them.

    Args:
        name: The class.
        parameters: In the order that ``named_parameters`` gives.
        tied: The config ties the head to the embedding.

    ``held`` names, by attribute, the tensors that it keeps outside its parameters.
    """

    def __init__(self, name: str, parameters: Mapping[str, Parameter], *, tied: bool = False) -> None:
        self.name = name
        self.tied = tied
        self.parameters = dict(parameters)
        self.filling = {n: Filling() for n in self.parameters}
        self.held: dict[str, set[str]] = {}

    def hold(self, attribute: str, source: str) -> None:
        """Keep a tensor outside the parameters; a later one takes its place."""
        self.held[attribute] = {source}

    def load(self, parameter: str, tensor: TensorInfo, shard: str | int | None = None) -> None:
        """Load one tensor into a parameter, or into the part of it that *shard* names.

        Raises:
            Refused: As the engine's loader raises.
        """
        built, filling = self.parameters[parameter], self.filling[parameter]
        if shard is not None and built.part_loader is not None:
            part = built.parts[shard]
            cut = built.part_loader((part.rows, *built.shape[1:]), tensor.shape)
            filling.parts.add(shard)
        elif built.parts:
            cut = self._load_fused(built, filling, tensor.name, tensor.shape)
        else:
            cut = self._load_whole(built, filling, tensor.shape, tensor.dtype)
        filling.sources.add(tensor.name)
        if cut is not None:
            filling.cuts[tensor.name] = cut

    def load_joined(self, parameter: str, tensors: tuple[TensorInfo, TensorInfo], shape: Shape) -> None:
        """Load two tensors that were concatenated before."""
        built, filling = self.parameters[parameter], self.filling[parameter]
        cut = self._load_whole(built, filling, shape, tensors[0].dtype)
        filling.sources.update(tensor.name for tensor in tensors)
        if cut is not None:
            filling.cuts[tensors[0].name] = cut

    @staticmethod
    def _load_whole(built: Parameter, filling: Filling, shape: Shape, dtype: str) -> str | None:
        cut = built.loader(built.logical or built.shape, shape)
        if built.loader is shapes.column:
            shapes.check_dtype(built.dtype, dtype)
        filling.whole = True
        return cut

    def _load_fused(self, built: Parameter, filling: Filling, source: str, shape: Shape) -> str | None:
        """A tensor that is fused in the file is sliced by the same rows (layers/linear.py:794-828, 1396-1463)."""
        assert built.part_loader is not None
        end = 0
        for shard, part in built.parts.items():
            shapes.narrow(shape, 0, part.start, part.rows)
            built.part_loader((part.rows, *built.shape[1:]), (part.rows, *shape[1:]))
            filling.parts.add(shard)
            filling.sources.add(source)
            end = part.start + part.rows
        return f"only {end} of {shape[0]} rows are kept" if shape[0] > end else None

    def fills(self, from_target: Iterable[str]) -> dict[str, Fill]:
        """How every parameter ends up; *from_target* are those that the server replaces by the target's."""
        replaced = set(from_target)
        return {name: self._fill(name, name in replaced) for name in self.parameters}

    def _fill(self, name: str, replaced: bool) -> Fill:
        built, filling = self.parameters[name], self.filling[name]
        by: FilledBy
        if replaced:
            by = "target"
        elif filling.whole or (built.parts and filling.parts == set(built.parts)):
            by = "checkpoint"
        elif filling.parts:
            by = "partly"
        else:
            by = built.unfilled
        cut = "; ".join(f"{source}: {text}" for source, text in sorted(filling.cuts.items())) or None
        return Fill(tuple(sorted(filling.sources)), by, cut)
