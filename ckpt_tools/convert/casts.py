"""Casting floating-point data in a stream, as torch's ``.to(dtype)`` does: round to nearest, ties to even."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np


class OverflowsError(InputError):
    """A finite value that the asked dtype can't hold; ``tensor`` is its name in the input's files."""

    def __init__(self, tensor: str, value: float) -> None:
        super().__init__(
            f"{tensor}: a value of {value:.6g} doesn't fit float16 (65504 at most)",
            "cast to bf16, which has float32's range: --dtype bf16",
        )
        self.tensor = tensor


_WIDTH = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
CHUNK = 8 << 20


def _to_float32(data: bytes, dtype: str) -> np.ndarray[Any, Any]:
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype])


def _from_float(values: np.ndarray[Any, Any], dtype: str, name: str) -> bytes:
    import numpy as np

    if dtype == "BF16":
        bits = values.astype("<f4").view("<u4")
        nan = np.isnan(values)
        rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2")
        rounded[nan] = 0x7FC0
        return bytes(rounded.tobytes())
    with np.errstate(over="ignore"):
        cast = values.astype({"F16": "<f2", "F32": "<f4"}[dtype])
    if dtype == "F16" and bool(np.any(np.isinf(cast) & np.isfinite(values))):
        raise OverflowsError(name, float(np.max(np.abs(values[np.isfinite(values)]))))
    return bytes(cast.tobytes())


def to_float64(data: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """Little-endian elements as float64."""
    return _to_float32(data, dtype).astype("<f8")


def from_float64(values: np.ndarray[Any, Any], dtype: str, name: str) -> bytes:
    """Values as little-endian elements of a dtype. Raises :class:`OverflowsError` for one that doesn't fit float16."""
    if dtype == "F64":
        return bytes(values.astype("<f8").tobytes())
    return _from_float(values, dtype, name)


def cast_chunks(chunks: Iterable[bytes], source: str, result: str, name: str) -> Iterator[bytes]:
    """Cast a stream of little-endian elements.

    Args:
        chunks: Data of the source dtype, cut anywhere.
        source: BF16, F16, F32 or F64.
        result: BF16, F16 or F32.
        name: Of the tensor, for the message.

    Raises:
        OverflowsError: A finite value doesn't fit the result.
    """
    width, rest = _WIDTH[source], b""
    for chunk in chunks:
        data = rest + chunk
        whole = len(data) // width * width
        rest = data[whole:]
        if whole:
            yield _from_float(_to_float32(data[:whole], source), result, name)
