"""Statistics of tensor values: one pass over a memory map, in parallel, for all value checks together.

Floats are looked at as integers first: their bit patterns are ordered like their values, so two integer
maxima give minimum, maximum and whether any NaN or infinity occurs. Only sums need the values themselves, a
block at a time, small enough to stay in a core's cache.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.read import find, local_source
from ckpt_tools.container.windows import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.model import Checkpoint

    Array = npt.NDArray[Any]

BLOCK = 128 * 1024  # elements that are converted at a time: 512 KiB of float32
_DOT = 8192  # elements per dot product; BLAS starts threads of its own above 10,000


@dataclass(frozen=True)
class TensorStats:
    """Statistics of one tensor; the first four are over its finite values, ``None`` when it has none.

    Attributes:
        numel: Number of elements.
        min: Smallest finite value.
        max: Largest finite value.
        mean: Mean.
        rms: Root of the mean square.
        nan: Number of NaNs.
        inf: Number of infinities.
        zero: Number of zeros, of either sign.
    """

    numel: int
    min: float | None
    max: float | None
    mean: float | None
    rms: float | None
    nan: int
    inf: int
    zero: int

    @property
    def constant(self) -> bool:
        """Whether all elements are the same finite value."""
        return self.min is not None and self.min == self.max and not self.nan and not self.inf


@dataclass(frozen=True)
class _Part:
    """Statistics of some elements, in a form that adds up."""

    numel: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    nan: int = 0
    inf: int = 0
    zero: int = 0

    def __add__(self, other: _Part) -> _Part:
        return _Part(
            self.numel + other.numel,
            min(self.low, other.low),
            max(self.high, other.high),
            self.total + other.total,
            self.squares + other.squares,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zero + other.zero,
        )

    def stats(self) -> TensorStats:
        finite = self.numel - self.nan - self.inf
        if not finite:
            return TensorStats(self.numel, None, None, None, None, self.nan, self.inf, self.zero)
        return TensorStats(
            self.numel,
            self.low,
            self.high,
            # Rounding may lead a mean of equal values out of their range.
            min(max(self.total / finite, self.low), self.high),
            math.sqrt(self.squares / finite),
            self.nan,
            self.inf,
            self.zero,
        )


def scan(
    checkpoint: Checkpoint,
    names: Iterable[str] | None = None,
    source: ByteSource | None = None,
    threads: int | None = None,
) -> dict[str, TensorStats | None]:
    """Statistics of tensors by name, each byte read once; ``None`` for dtypes without plain values (F6, C64).

    Args:
        checkpoint: Where the tensors are.
        names: Which of them; all by default.
        source: Where the bytes are, when not in the local folder ``checkpoint.root``.
        threads: How many to use; as many as there are cores (at most 8) by default.

    Raises:
        InputError: There is no such tensor, or a file ends before it.
        Unavailable: A pickle, and torch isn't installed.
    """
    source = source or local_source(checkpoint)
    tensors = [find(checkpoint, name) for name in (checkpoint.tensors if names is None else names)]
    kernels = {tensor.name: kernel for tensor in tensors if (kernel := _kernel(tensor.dtype)) is not None}
    parts = fold(checkpoint, kernels, _Part(), source, threads)
    return {tensor.name: parts[tensor.name].stats() if tensor.name in parts else None for tensor in tensors}


# -- kernels: bytes of whole elements -> _Part


def _kernel(dtype: str) -> Callable[[Any], _Part] | None:
    """What reads the values of a dtype, ``None`` when nothing does."""
    if dtype in ("BF16", "F16", "F32", "F64"):
        return functools.partial(_floats, dtype)
    if dtype in _SMALL:
        return functools.partial(_table, dtype)
    if dtype in _INTEGERS:
        return functools.partial(_integers, _INTEGERS[dtype])
    return None


# Bits of the integer view, and the pattern of +infinity.
FLOATS: Mapping[str, tuple[int, int]] = {
    "BF16": (16, 0x7F80),
    "F16": (16, 0x7C00),
    "F32": (32, 0x7F80_0000),
    "F64": (64, 0x7FF0_0000_0000_0000),
}
_STRUCTS: Mapping[str, tuple[str, int]] = {
    "BF16": ("<f", 4),
    "F16": ("<e", 2),
    "F32": ("<f", 4),
    "F64": ("<d", 8),
}
_INTEGERS: Mapping[str, str] = {
    "BOOL": "u1",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
}


def _floats(dtype: str, data: Any) -> _Part:
    import numpy as np

    bits, infinity = FLOATS[dtype]
    patterns = np.frombuffer(data, f"<u{bits // 8}")
    part = _Part()
    with np.errstate(over="ignore", invalid="ignore"):  # sums that overflow are looked at again
        for start in range(0, len(patterns), BLOCK):
            part += _float_block(dtype, patterns[start : start + BLOCK], infinity)
    return part


def _float_block(dtype: str, block: Array, infinity: int) -> _Part:
    import numpy as np

    sign = 1 << (8 * block.itemsize - 1)
    # As unsigned, negative patterns lie above positive ones, and grow with the magnitude; as signed, the
    # largest is the largest positive value, if there is one.
    top = int(block.max())
    signed_top = int(block.view(f"<i{block.itemsize}").max())
    if signed_top >= infinity or top >= sign + infinity:
        magnitude = block & (sign - 1)
        finite = magnitude < infinity
        inf = int(np.count_nonzero(magnitude == infinity))
        rest = (
            _Part()
            if not finite.any()
            else _float_block(dtype, np.ascontiguousarray(block[finite]), infinity)
        )
        lost = len(block) - rest.numel
        return replace(rest, numel=len(block), inf=inf, nan=lost - inf)
    low = top if top >= sign else int(block.min())
    high = signed_top if signed_top >= 0 else int(block.min())
    zero = len(block) - int(np.count_nonzero(block + block))  # doubling drops the sign bit
    total, squares = _sums(_values(dtype, block)) if zero < len(block) else (0.0, 0.0)
    return _Part(len(block), number(dtype, low), number(dtype, high), total, squares, 0, 0, zero)


def number(dtype: str, pattern: int) -> float:
    """The value of one bit pattern."""
    code, size = _STRUCTS[dtype]
    if dtype == "BF16":
        pattern <<= 16
    return float(struct.unpack(code, pattern.to_bytes(size, "little"))[0])


def _values(dtype: str, patterns: Array) -> Array:
    """The values of bit patterns: float64 for F64, else float32."""
    import numpy as np

    if dtype == "BF16":
        wide = patterns.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if dtype == "F16":
        return patterns.view("<f2").astype(np.float32)
    return patterns.view("<f4" if dtype == "F32" else "<f8")


def _sums(values: Array) -> tuple[float, float]:
    """Sum and sum of squares of finite values, not all of them zero."""
    import numpy as np

    total = _total(values)
    squares = _squares(values)
    if math.isfinite(total) and math.isfinite(squares) and squares > 1e-30:
        return total, squares
    # Squares that leave float32's range on either side; those that leave float64's, too, stay infinite.
    wide = values.astype(np.float64)
    return float(wide.sum()), float((wide * wide).sum())


@functools.lru_cache(maxsize=4)
def _ones(dtype: str) -> Array:
    import numpy as np

    return np.ones((_DOT, 1), dtype)


def _total(values: Array) -> float:
    """Sum in pieces, added up in double precision."""
    import numpy as np

    whole = len(values) - len(values) % _DOT
    total = float(values[whole:].sum(dtype=np.float64))
    if whole:
        # A product with ones, which stay in the cache, takes half the time of a sum.
        total += float((values[:whole].reshape(-1, 1, _DOT) @ _ones(values.dtype.str)).sum(dtype=np.float64))
    return total


def _squares(values: Array) -> float:
    """Sum of squares in pieces that one thread computes, added up in double precision."""
    import numpy as np

    whole = len(values) - len(values) % _DOT
    rest = values[whole:]
    total = float(np.dot(rest, rest))
    if whole:
        rows = values[:whole]
        total += float((rows.reshape(-1, 1, _DOT) @ rows.reshape(-1, _DOT, 1)).sum(dtype=np.float64))
    return total


def _integers(dtype: str, data: Any) -> _Part:
    import numpy as np

    values = np.frombuffer(data, dtype)
    part = _Part()
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        wide = block.astype(np.float64)
        part += _Part(
            len(block),
            float(block.min()),
            float(block.max()),
            float(wide.sum()),
            _squares(wide),
            zero=len(block) - int(np.count_nonzero(block)),
        )
    return part


# -- dtypes of 8 and 4 bits: values from a table, statistics from a histogram


@dataclass(frozen=True)
class _Small:
    """A float of a few bits: exponent, mantissa, bias, and which patterns aren't finite."""

    exponent: int
    mantissa: int
    bias: int
    nans: tuple[int, ...] = ()
    infs: tuple[int, ...] = ()


_SMALL: Mapping[str, _Small] = {
    "F8_E4M3": _Small(4, 3, 7, nans=(0x7F, 0xFF)),
    "F8_E5M2": _Small(5, 2, 15, nans=(0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), infs=(0x7C, 0xFC)),
    "F8_E4M3FNUZ": _Small(4, 3, 8, nans=(0x80,)),
    "F8_E5M2FNUZ": _Small(5, 2, 16, nans=(0x80,)),
    "F8_E8M0": _Small(8, 0, 127, nans=(0xFF,)),
    "F4": _Small(2, 1, 1),
}


@functools.lru_cache(maxsize=8)
def table(dtype: str) -> tuple[float, ...]:
    """The value of every pattern of an 8-bit float dtype, or of F4 (16 values).

    OCP 8-bit floating point and microscaling formats; the FNUZ kinds have one NaN in place of minus zero.
    """
    small = _SMALL[dtype]
    width = small.exponent + small.mantissa + (0 if dtype == "F8_E8M0" else 1)
    values: list[float] = []
    for pattern in range(1 << width):
        if pattern in small.nans:
            values.append(math.nan)
            continue
        sign = -1.0 if dtype != "F8_E8M0" and pattern >> (width - 1) else 1.0
        if pattern in small.infs:
            values.append(sign * math.inf)
            continue
        exponent = (pattern >> small.mantissa) & ((1 << small.exponent) - 1)
        fraction = (pattern & ((1 << small.mantissa) - 1)) / (1 << small.mantissa)
        if dtype == "F8_E8M0":
            values.append(math.ldexp(1.0, exponent - small.bias))
        elif exponent:
            values.append(sign * math.ldexp(1.0 + fraction, exponent - small.bias))
        else:
            values.append(sign * math.ldexp(fraction, 1 - small.bias))
    return tuple(values)


def _table(dtype: str, data: Any) -> _Part:
    import numpy as np

    octets = np.frombuffer(data, np.uint8)
    counts = np.zeros(256, np.int64)
    # Counting pairs of bytes halves the number of increments, which are all that this costs.
    for start in range(0, len(octets) - 1, 2 * BLOCK):
        block = octets[start : start + 2 * BLOCK]
        pairs = np.bincount(block[: len(block) // 2 * 2].view("<u2"), minlength=65536).reshape(256, 256)
        counts += pairs.sum(axis=0) + pairs.sum(axis=1)
    if len(octets) % 2:
        counts[octets[-1]] += 1
    if dtype == "F4":
        nibbles = counts.reshape(16, 16)
        counts = nibbles.sum(axis=0) + nibbles.sum(axis=1)
    return _from_histogram(counts, np.array(table(dtype)))


def _from_histogram(counts: Array, values: Array) -> _Part:
    import numpy as np

    there = counts > 0
    finite = np.isfinite(values) & there
    numel = int(counts.sum())
    nan = int(counts[np.isnan(values)].sum())
    inf = int(counts[np.isinf(values)].sum())
    if not finite.any():
        return _Part(numel, nan=nan, inf=inf)
    some, often = values[finite], counts[finite]
    return _Part(
        numel,
        float(some.min()),
        float(some.max()),
        float((some * often).sum()),
        float((some * some * often).sum()),
        nan,
        inf,
        int(often[some == 0].sum()),
    )
