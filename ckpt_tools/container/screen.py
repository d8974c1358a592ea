"""Whether values are sound, at the speed of reading them: what a check before a deploy needs to know.

One OR over the bit patterns of a window bounds its magnitudes, since patterns are ordered like magnitudes once the
sign is off, and an OR is no less than any of its operands. As weights are below 2, that bound nearly always
says that nothing is NaN or infinite; only windows where it doesn't are looked at again, value by value.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.read import find, local_source
from ckpt_tools.container.values import BLOCK, FLOATS, TensorStats, number, scan
from ckpt_tools.container.windows import fold

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.model import Checkpoint

    Array = npt.NDArray[Any]

ROUGH = 4.0  # below this, a bound on the magnitudes is as good as their largest
_COUNTED = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


@dataclass(frozen=True)
class Screened:
    """What the values of one floating-point tensor are like.

    Attributes:
        numel: Number of elements.
        nan: Number of NaNs.
        inf: Number of infinities.
        constant: The finite value that all elements have; ``None`` when they differ.
        reach: No finite magnitude is above this; exact above :data:`ROUGH`.
        rms: Root of the mean square of the finite values; of vectors and 8-bit floats alone, else ``None``.
    """

    numel: int = 0
    nan: int = 0
    inf: int = 0
    constant: float | None = None
    reach: float = 0.0
    rms: float | None = None

    def __add__(self, other: Screened) -> Screened:
        if not self.numel:
            return other
        return Screened(
            self.numel + other.numel,
            self.nan + other.nan,
            self.inf + other.inf,
            self.constant if self.constant == other.constant else None,
            max(self.reach, other.reach),
        )


def screen(
    checkpoint: Checkpoint,
    names: Iterable[str] | None = None,
    source: ByteSource | None = None,
    threads: int | None = None,
) -> dict[str, Screened]:
    """What the floating-point tensors are like, by name; the others are left out.

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
    # Norms are vectors, and their RMS matters; floats of 8 bits are counted, which tells everything.
    whole = [t.name for t in tensors if t.dtype in _COUNTED or (t.dtype in FLOATS and len(t.shape) < 2)]
    kernels = {
        t.name: functools.partial(_screen, t.dtype)
        for t in tensors
        if t.dtype in FLOATS and len(t.shape) >= 2
    }
    found = fold(checkpoint, kernels, Screened(), source, threads)
    found |= {
        name: _known(stats)
        for name, stats in scan(checkpoint, whole, source, threads).items()
        if stats is not None
    }
    return {t.name: found[t.name] for t in tensors if t.name in found}


def _known(stats: TensorStats) -> Screened:
    ends = [abs(v) for v in (stats.min, stats.max) if v is not None]
    constant = stats.min if stats.constant else None
    return Screened(stats.numel, stats.nan, stats.inf, constant, max(ends, default=0.0), stats.rms)


def _screen(dtype: str, data: Any) -> Screened:
    """One window, by the OR of its bit patterns alone unless that leaves something open."""
    import numpy as np

    bits, infinity = FLOATS[dtype]
    patterns = np.frombuffer(data, f"<u{bits // 8}")
    magnitudes = _union(patterns, bits) & ((1 << bits - 1) - 1)
    bound = number(dtype, magnitudes) if magnitudes < infinity else None
    if bound is None or bound > ROUGH:
        part = Screened()
        for start in range(0, len(patterns), BLOCK):
            part += _block(dtype, patterns[start : start + BLOCK], infinity)
        nan, inf, bound = part.nan, part.inf, part.reach
    else:
        nan = inf = 0
    constant = _constant(dtype, patterns, magnitudes) if not nan and not inf else None
    return Screened(len(patterns), nan, inf, constant, bound)


def _union(patterns: Array, bits: int) -> int:
    """The OR of all patterns, eight bytes at a time where they lie on such a border."""
    import numpy as np

    size = bits // 8
    skip = -patterns.ctypes.data % 8
    if skip % size:  # elements that don't lie on their own border
        return int(np.bitwise_or.reduce(patterns))
    first = skip // size
    stop = first + (len(patterns) - first) // (8 // size) * (8 // size)
    if stop <= first:
        return int(np.bitwise_or.reduce(patterns))
    wide = int(np.bitwise_or.reduce(patterns[first:stop].view("<u8")))
    edges = int(np.bitwise_or.reduce(patterns[:first])) | int(np.bitwise_or.reduce(patterns[stop:]))
    lanes = functools.reduce(int.__or__, (wide >> shift for shift in range(0, 64, bits)))
    return (lanes & ((1 << bits) - 1)) | edges


def _block(dtype: str, block: Array, infinity: int) -> Screened:
    """NaNs, infinities and the largest finite magnitude of a block."""
    import numpy as np

    sign = 1 << (8 * block.itemsize - 1)
    # Negative patterns are the largest as unsigned, positive ones as signed numbers.
    negative = int(block.max())
    positive = int(block.view(f"<i{block.itemsize}").max())
    top = max(positive, negative - sign)  # one of the two is below zero where there is no such value
    if top < infinity:
        return Screened(len(block), reach=number(dtype, top))
    magnitude = block & (sign - 1)
    inf = int(np.count_nonzero(magnitude == infinity))
    nan = int(np.count_nonzero(magnitude > infinity))
    top = int(magnitude[magnitude < infinity].max(initial=0))
    return Screened(len(block), nan, inf, reach=number(dtype, top))


def _constant(dtype: str, patterns: Array, magnitudes: int) -> float | None:
    """The value that all elements have, given the OR of their magnitudes; zeros of both signs are one value."""
    if not magnitudes:
        return 0.0
    first = int(patterns[0])
    if first & magnitudes != magnitudes or not bool((patterns == patterns[0]).all()):
        return None
    return number(dtype, first)
