"""The modules that a draft class builds, as a tree of parameters, and how a tensor is copied into one.

The tree is what vLLM's ``AutoWeightsLoader`` walks (``model_executor/models/utils.py:216-502``): a name is split at
its dots, and each part must be a child module or a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.engines.vllm.refusal import Refused, refuse_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Shape = tuple[int, ...]
ShardId = str | int | None
# plain, replicated: exact shape, each with its own message; exact: without one; column/row: narrowed along the output or input axis; vocab: rows
# exact; scale: one number per shard
Rule = Literal["plain", "replicated", "column", "row", "exact", "vocab", "scale"]


@dataclass
class Parameter:
    """One parameter and what has reached it.

    Attributes:
        shape: As the engine allocates it (a vocabulary is padded to a multiple of 64 rows).
        rule: How a tensor is copied in.
        initial: What it holds when nothing is copied: ``default`` (norms of ones, maps of zeros) or ``nothing``.
        shards: Of a fused parameter: shard -> (first row, rows).
        rows: Rows of a vocabulary without padding.
        out_axis: The axis of the layer's outputs; 1 where a quantised weight is stored transposed.
    """

    shape: Shape
    rule: Rule = "plain"
    initial: Literal["default", "nothing"] = "nothing"
    shards: Mapping[ShardId, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0
    out_axis: int = 0
    filled: set[ShardId] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return numel(self.shape)

    @property
    def complete(self) -> bool:
        """Every row was written."""
        if self.numel == 0:
            return True
        needed = {shard for shard, (_, rows) in self.shards.items() if rows} or {None}
        return needed <= self.filled

    def load(self, source: str, shape: Shape, shard: ShardId = None) -> None:
        """Copy a tensor of ``shape`` in, as the parameter's weight loader does.

        Raises:
            Refused: The shapes don't fit.
        """
        if self.shards and shard is None:
            for part, (first, rows) in self.shards.items():
                self._copy(
                    source,
                    shape if self.rule == "scale" else _narrow(shape, self.out_axis, first, rows),
                    part,
                )
            last_first, last_rows = list(self.shards.values())[-1]
            if self.rule == "column" and shape[self.out_axis] > last_first + last_rows:
                self._cut(source, shape, self.out_axis, last_first + last_rows)
        else:
            self._copy(source, shape, shard)
        if source not in self.sources and self.numel:
            self.sources.append(source)

    def _copy(self, source: str, shape: Shape, shard: ShardId) -> None:
        if self.rule == "vocab":
            self._copy_vocabulary(shape)
        elif self.rule == "column":
            axis = self.out_axis
            rows = self.shards[shard][1] if self.shards else self.shape[axis]
            part = _narrow(shape, axis, 0, rows)
            _same((*self.shape[:axis], rows, *self.shape[axis + 1 :]), part)
            if shape[axis] > rows:
                self._cut(source, shape, axis, rows)
        elif self.rule == "row":
            axis = 1 - self.out_axis
            part = _narrow(shape, axis, 0, self.shape[axis])
            _same(self.shape, part)
            if shape[axis] > self.shape[axis]:
                self._cut(source, shape, axis, self.shape[axis])
        elif self.rule == "scale":
            _same((1,), shape or (1,))
        elif self.rule == "exact":
            _same(self.shape, shape or (1,))
        elif self.rule == "replicated":
            given = shape or (1,)
            if given != self.shape:
                raise load_error(
                    "AssertionError",
                    f"Tried to load weights of size {_size(given)}to a parameter of size {_size(self.shape)}",
                )
        elif shape != self.shape and not (self.numel == numel(shape) == 1):
            raise load_error(
                "AssertionError",
                f"Attempted to load weight ({_size(shape)}) into parameter ({_size(self.shape)})",
            )
        self.filled.add(shard if self.shards else None)

    def _copy_vocabulary(self, shape: Shape) -> None:
        """Rows must be the vocabulary exactly; the copy broadcasts (vocab_parallel_embedding.py:480-520)."""
        if not shape:
            raise load_error("IndexError", "tuple index out of range")
        if shape[0] != self.rows:
            raise load_error("AssertionError", "")
        goal = (self.rows, *self.shape[1:])
        for given, wanted in zip(reversed(shape), reversed(goal), strict=False):
            if given not in (wanted, 1):
                raise load_error(
                    "RuntimeError",
                    f"The size of tensor a ({wanted}) must match the size of tensor b ({given})",
                )
        if any(dim != 1 for dim in shape[: len(shape) - len(goal)]):
            raise load_error(
                "RuntimeError",
                f"output with shape {list(goal)} doesn't match the broadcast shape {list(shape)}",
            )

    def _cut(self, source: str, shape: Shape, axis: int, kept: int) -> None:
        self.cuts.append(
            f"{source} has {shape[axis]} {'rows' if axis == 0 else 'columns'}; the engine keeps the first {kept}"
        )


@dataclass
class Module:
    """A node of the tree.

    Attributes:
        cls: The class's name, as the engine's errors print it.
        children: Child modules by name.
        parameters: Own parameters by name.
        linear: A fused linear layer, whose own loader takes ``weight`` and ``bias`` and knows no other name.
        stacked: Substrings that a class's own loader replaces, with the shard that they become.
        renames: Substrings that are replaced before that; ``None`` drops the tensor.
        own_loader: It takes the names below it with a loader of its own.
        quantised: Its loader also maps and forgives the scales of quantised caches.
        before: What a base class builds in its place, to be replaced.
        key_errors: Its loader looks names up in a dict (releases before 0.25.0): any unknown one is a KeyError.
    """

    cls: str
    children: dict[str, Module] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    linear: bool = False
    stacked: Mapping[str, tuple[str, ShardId]] = field(default_factory=dict)
    renames: Mapping[str, str | None] = field(default_factory=dict)
    own_loader: bool = False
    quantised: bool = False
    before: Module | None = None
    key_errors: bool = False

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter with its full name, in the engine's order."""
        for name, parameter in self.parameters.items():
            yield prefix + name, parameter
        for name, child in self.children.items():
            yield from child.walk(f"{prefix}{name}.")


def numel(shape: Shape) -> int:
    """Number of elements of a shape."""
    total = 1
    for dim in shape:
        total *= dim
    return total


def load_error(error: str, message: str) -> Refused:
    """A refusal while tensors are copied."""
    return Refused(error, message, "load")


def _narrow(shape: Shape, axis: int, start: int, length: int) -> Shape:
    """``Tensor.narrow``."""
    if not shape:
        raise load_error("RuntimeError", "narrow() cannot be applied to a 0-dim tensor.")
    if axis >= len(shape):
        raise load_error(
            "IndexError",
            f"Dimension out of range (expected to be in range of [-{len(shape)}, {len(shape) - 1}], but got {axis})",
        )
    if start + length > shape[axis]:
        raise load_error(
            "RuntimeError", f"start ({start}) + length ({length}) exceeds dimension size ({shape[axis]})."
        )
    return (*shape[:axis], length, *shape[axis + 1 :])


def _same(goal: Shape, shape: Shape) -> None:
    """The bare asserts of the linear layers: no message."""
    if goal != shape:
        raise load_error("AssertionError", "")


def _size(shape: Shape) -> str:
    return f"torch.Size([{', '.join(map(str, shape))}])"


def allocated(function: str, *dims: Any, together: bool = False) -> Shape:
    """The shape that ``torch.empty``, ``ones`` or ``zeros`` makes of a config's raw values.

    ``together``: the dimensions come as one tuple, as torch's own modules pass them.

    Raises:
        Refused: A dimension is negative or no integer; with torch's own message.
    """
    for place, dim in enumerate(dims):
        if isinstance(dim, int) and not (isinstance(dim, bool) and place == 0):
            continue
        kind = type(dim).__name__
        if together:
            message = (
                f"{function}(): argument 'size' (position 1) must be tuple of ints, "
                f"but found element of type {kind} at pos {place}"
            )
        elif place:
            message = (
                f"{function}(): argument 'size' failed to unpack the object at pos {place + 1} with error "
                f'"type must be tuple of ints,but got {kind}"'
            )
        elif len(dims) > 1:
            message = f"{function}() takes 1 positional argument but {len(dims)} were given"
        else:
            message = f"{function}(): argument 'size' (position 1) must be tuple of ints, not {kind}"
        raise refuse_class("TypeError", message)
    negative = next((dim for dim in dims if dim < 0), None)
    if negative is not None:
        if function == "zeros":
            raise refuse_class("RuntimeError", "zeros: Dimension size must be non-negative.")
        sizes = [int(dim) for dim in dims]
        raise refuse_class(
            "RuntimeError", f"Trying to create tensor with negative dimension {negative}: {sizes}"
        )
    return tuple(int(dim) for dim in dims)


def divided(value: Any) -> Any:
    """A size over the ranks of a server with one: the engine's own arithmetic (``distributed/utils.py:51-62``)."""
    if value % 1:
        raise refuse_class("AssertionError", f"{value} is not divisible by 1")
    return value // 1


def norm(size: Any) -> Module:
    """RMSNorm: ones until a tensor is copied."""
    return Module("RMSNorm", parameters={"weight": Parameter(allocated("ones", size), initial="default")})


def replicated(out: Any, inp: Any) -> Module:
    """ReplicatedLinear without bias."""
    shape = allocated("empty", sum([out]), inp)
    return Module("ReplicatedLinear", parameters={"weight": Parameter(shape, "replicated")})


def column(out: Any, inp: Any) -> Module:
    """ColumnParallelLinear without bias: too many rows are cut."""
    shape = allocated("empty", sum([divided(out)]), inp)
    return Module("ColumnParallelLinear", parameters={"weight": Parameter(shape, "column")})


def row(out: Any, inp: Any, bias: bool = False) -> Module:
    """RowParallelLinear: too many columns are cut."""
    columns = divided(inp)
    shape = allocated("empty", sum([out]), columns)
    module = Module("RowParallelLinear", parameters={"weight": Parameter(shape, "row")})
    if bias:
        module.parameters["bias"] = Parameter(allocated("empty", out), "exact")
    return module


def fused(cls: str, parts: Mapping[ShardId, Any], inp: Any, bias: bool = False) -> Module:
    """A fused column-parallel layer: q/k/v or gate/up; each part is cut to its rows."""
    sizes = {shard: divided(rows) for shard, rows in parts.items()}
    shape = allocated("empty", sum(sizes.values()), inp)
    shards: dict[ShardId, tuple[int, int]] = {}
    total = 0
    for shard, rows in sizes.items():
        shards[shard] = (total, int(rows))
        total += int(rows)
    module = Module(cls, linear=True, parameters={"weight": Parameter(shape, "column", shards=shards)})
    if bias:
        module.parameters["bias"] = Parameter((total,), "column", shards=shards)
    return module


def vocabulary(cls: str, rows: Any, width: Any) -> Module:
    """VocabParallelEmbedding or ParallelLMHead: rows padded to a multiple of 64, the padding zeroed
    (``model_executor/layers/vocab_parallel_embedding.py:289-330``)."""
    padded = (rows - (rows - rows) + 63) // 64 * 64
    shape = allocated("empty", padded, width)
    return Module(cls, parameters={"weight": Parameter(shape, "vocab", rows=int(rows))})
