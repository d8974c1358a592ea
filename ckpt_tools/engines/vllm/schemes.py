"""What a quantisation method is to the load map: which layers it takes, and the parameters that it gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.modules import Parameter, Rule, ShardId, allocated
from ckpt_tools.engines.vllm.refusal import refuse_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Layout = dict[str, Parameter]
FLOATS = frozenset({"F16", "BF16", "F32"})


class NotModelled(Exception):
    """A scheme that this package has no table for."""


@dataclass(frozen=True)
class Linear:
    """One linear layer before quantisation: the engine's name, outputs, inputs, and the outputs of each fused part."""

    name: str
    rule: Rule
    outputs: int
    inputs: int
    shards: Mapping[ShardId, tuple[int, int]]

    def matrix(
        self, out_div: Any = 1, in_div: int = 1, out_axis: int = 0, inputs: int | None = None
    ) -> Parameter:
        """A matrix with one row per ``out_div`` outputs and one column per ``in_div`` inputs, begun ones too.

        ``inputs`` is the number of columns where it is no division.
        """
        return self._matrix(lambda size: ceil(size / out_div), inputs or ceil(self.inputs / in_div), out_axis)

    def packed(self, out_div: Any, inputs: int) -> Parameter:
        """A transposed matrix whose outputs are packed by ``out_div``; outputs that fill no word are left out."""
        allocated("empty", inputs, self.outputs // out_div)
        return self._matrix(lambda size: size // out_div, inputs, 1)

    def _matrix(self, divide: Callable[[int], int], columns: int, out_axis: int) -> Parameter:
        rows = divide(self.outputs)
        shards = {k: (divide(first), divide(size)) for k, (first, size) in self.shards.items()}
        shape = (rows, columns) if out_axis == 0 else (columns, rows)
        return Parameter(shape, self.rule, shards=shards, out_axis=out_axis)

    def whole(self, shape: tuple[int, ...]) -> Parameter:
        """A tensor of the whole layer that no axis is narrowed of."""
        return Parameter(shape, "replicated" if self.rule == "replicated" else "exact")

    def scale(self) -> Parameter:
        """One number per fused part."""
        shards: dict[ShardId, tuple[int, int]] = {key: (i, 1) for i, key in enumerate(self.shards)}
        return Parameter((max(1, len(shards)),), "scale", shards=shards)

    def check_blocks(self, rows: int) -> None:
        """Every fused part but the last is whole blocks (``quantization/utils/fp8_utils.py:1329-1344``)."""
        for _, size in list(self.shards.values())[:-1]:
            if size % rows:
                raise refuse_class(
                    "ValueError",
                    f"Weight output_partition_size = {size} is not divisible by weight quantization block_n = {rows}.",
                )


def _no_head(_name: str, _cls: str) -> bool:
    return False


@dataclass(frozen=True)
class Method:
    """A block as the engine reads it.

    Attributes:
        scheme: (engine's name of a linear layer, its class) -> what gives it its parameters, ``None`` when it stays.
        head: The same question of a ``ParallelLMHead``.
        cache: Parameters that every attention layer gets for the scales of a quantised cache.
        latent: Latent attention gets them too.
    """

    scheme: Callable[[str, str], Callable[[Linear], Layout] | None]
    head: Callable[[str, str], bool] = _no_head
    cache: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    latent: bool = False

    def cache_parameters(self) -> Layout:
        """Fresh parameters of one attention layer."""
        return {name: Parameter(shape, initial="default") for name, shape in self.cache.items()}


FP8_CACHE: Mapping[str, tuple[int, ...]] = {"q_scale": (), "k_scale": (), "v_scale": (), "prob_scale": ()}


def needed(settings: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The first of the keys that is there (``quantization/base_config.py:181-189``)."""
    for key in keys:
        if key in settings:
            return settings[key]
    raise refuse_class("ValueError", f"Cannot find any of {list(keys)} in the model's quantization config.")
