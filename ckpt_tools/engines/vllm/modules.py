"""The modules that a draft class builds, as a tree of parameters, and how a tensor is copied into one.

The tree is what vLLM's ``AutoWeightsLoader`` walks (``model_executor/models/utils.py:216-502``): a name is split at
its dots, and each part must be a child module or a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ckpt_tools.engines.vllm.refusal import Refused

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


def norm(size: int) -> Module:
    """RMSNorm: ones until a tensor is copied."""
    return Module("RMSNorm", parameters={"weight": Parameter((size,), initial="default")})


def replicated(out: int, inp: int) -> Module:
    """ReplicatedLinear without bias."""
    return Module("ReplicatedLinear", parameters={"weight": Parameter((out, inp), "replicated")})


def column(out: int, inp: int) -> Module:
    """ColumnParallelLinear without bias: too many rows are cut."""
    return Module("ColumnParallelLinear", parameters={"weight": Parameter((out, inp), "column")})


def row(out: int, inp: int, bias: bool = False) -> Module:
    """RowParallelLinear: too many columns are cut."""
    module = Module("RowParallelLinear", parameters={"weight": Parameter((out, inp), "row")})
    if bias:
        module.parameters["bias"] = Parameter((out,), "exact")
    return module


def fused(cls: str, parts: Mapping[ShardId, int], inp: int, bias: bool = False) -> Module:
    """A fused column-parallel layer: q/k/v or gate/up; each part is cut to its rows."""
    shards: dict[ShardId, tuple[int, int]] = {}
    total = 0
    for shard, rows in parts.items():
        shards[shard] = (total, rows)
        total += rows
    module = Module(cls, linear=True, parameters={"weight": Parameter((total, inp), "column", shards=shards)})
    if bias:
        module.parameters["bias"] = Parameter((total,), "column", shards=shards)
    return module


def vocabulary(cls: str, rows: int, width: int) -> Module:
    """VocabParallelEmbedding or ParallelLMHead: rows padded to a multiple of 64, the padding zeroed."""
    padded = -(-rows // 64) * 64
    return Module(cls, parameters={"weight": Parameter((padded, width), "vocab", rows=rows)})
