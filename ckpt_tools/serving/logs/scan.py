"""Pick the lines of a log that need reading, at memory speed.

A server that runs for weeks writes gigabytes of statistics and access lines between the few that matter. A
block of whole lines is classified by vector operations over its bytes: the head of each message decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_HEAD = 64  # bytes that classification may look at after a line's start
_PREFIX = range(20, 56)  # where the "]" of "[2026-11-29 18:42:14 DP0 TP0] " can be
_PROCESS = range(8, 40)  # where the ")" of "(APIServer pid=123) " can be


def _key(text: bytes) -> int:
    return int.from_bytes(text, "big")


_INFO = _key(b"INFO")
_DECODE, _PREFILL = _key(b"Decode b"), _key(b"Prefill ")
_RECEIVE, _FINISH, _RECEIVED = _key(b"Receive:"), _key(b"Finish: "), _key(b"Received")


@dataclass(frozen=True)
class Block:
    """The classified lines of a block.

    Attributes:
        starts, stops: Byte ranges of the lines, newlines excluded.
        keep: Indices of lines to read, ascending.
        served: Indices of statistics and access lines: proof that the server works.
        owner: Per line, the index of the record it belongs to (its own for a record), -1 before any.
        dumps: Indices of records that dump what users sent and don't end on their line.
        accept_at: Byte offsets of the acceptance lengths of decode lines, ascending.
        accept_len, accept_rate: Those values in hundredths; a rate of -1 where none follows.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    keep: NDArray[np.int64]
    served: NDArray[np.int64]
    owner: NDArray[np.int64]
    dumps: NDArray[np.int64]
    accept_at: NDArray[np.int64]
    accept_len: NDArray[np.int64]
    accept_rate: NDArray[np.int64]


def scan(block: bytes) -> Block:
    """Classify a block of whole lines (each ends with a newline)."""
    padded = np.frombuffer(block + bytes(_HEAD + 8), np.uint8)
    data = padded[: len(block)]
    stops = np.flatnonzero(data == 10)
    starts = np.concatenate(([0], stops[:-1] + 1)) if len(stops) else stops
    first = padded[starts]
    message = starts.copy()
    is_record = np.zeros(len(starts), bool)

    process = np.flatnonzero(first == ord("("))
    _advance(padded, message, process, ord(")"), _PROCESS)
    head = padded[message]
    bracket = np.flatnonzero(head == ord("["))
    bracket = bracket[padded[message[bracket] + 1] - 48 < 10]  # a digit follows: a time stamp
    is_record[_advance(padded, message, bracket, ord("]"), _PREFIX)] = True

    key = _four(padded, message)
    info = key == _INFO
    digit = padded[message + 10] - 48 < 10
    colon = padded[message + 4] == ord(":")
    access = info & colon & digit
    eight = (key << np.uint64(32)) | _four(padded, message + 4)
    statistics = (eight == _DECODE) | (eight == _PREFILL)
    served = access | statistics
    is_record |= statistics | _levels(key)

    request = padded[message + 9] == ord("r")
    request_record = is_record & ((eight == _RECEIVE) | (eight == _FINISH) | ((eight == _RECEIVED) & request))

    closing = data[np.maximum(stops - 1, 0)]
    dump = request_record & ~((closing == ord(")")) | (closing == ord("}")) | (closing == ord(".")))

    blank = (head == 32) | (head == 9)
    bar = blank & (padded[message + 3] == ord("%"))
    empty = stops == starts
    keep = ~(
        served | request_record | empty | (blank & ~bar & ~is_record & ~(padded[message + 2] == ord("V")))
    )

    index = np.arange(len(starts))
    owner = np.maximum.accumulate(np.where(is_record, index, -1)) if len(starts) else index
    at, length, rate = _acceptance(padded, len(block))
    inside = statistics[np.searchsorted(starts, at, "right") - 1] if len(at) else np.zeros(0, bool)
    at, length, rate = at[inside], length[inside], rate[inside]
    return Block(
        starts,
        stops,
        np.flatnonzero(keep),
        np.flatnonzero(served),
        owner,
        np.flatnonzero(dump),
        at,
        length,
        rate,
    )


def _advance(
    padded: NDArray[np.uint8],
    message: NDArray[np.int64],
    rows: NDArray[np.int64],
    closing: int,
    where: Iterable[int],
) -> NDArray[np.int64]:
    """Move the message of *rows* behind its closing character and a space; the rows where there is one."""
    moved: list[NDArray[np.int64]] = []
    for offset in where:
        if not len(rows):
            break
        at = message[rows] + offset
        at = np.minimum(at, len(padded) - 2)
        hit = (padded[at] == closing) & (padded[at + 1] == 32)
        found = rows[hit]
        if len(found):
            message[found] += offset + 2
            moved.append(found)
            rows = rows[~hit]
    np.minimum(message, len(padded) - 16, out=message)
    return np.concatenate(moved) if moved else np.zeros(0, np.int64)


def _four(padded: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint64]:
    out = padded[at].astype(np.uint64)
    for offset in (1, 2, 3):
        out = (out << np.uint64(8)) | padded[at + offset]
    return out


_LEVELS = np.array([_key(text) for text in (b"INFO", b"WARN", b"ERRO", b"DEBU", b"CRIT")], np.uint64)


def _levels(key: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.isin(key, _LEVELS)


def _acceptance(
    padded: NDArray[np.uint8], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Values of ``accept len: 2.10[, accept rate: 0.42]``; both are written with two decimals and a length
    under 100. Found by the "p" of "accept", which is rare in these lines."""
    data = padded
    at = np.flatnonzero(data[:size] == ord("p"))
    at = at[at > 4]
    for offset, wanted in ((3, "l"), (4, "e"), (5, "n"), (6, ":"), (-1, "e"), (-2, "c"), (-4, "a")):
        at = at[data[at + offset] == ord(wanted)]
    at = at + 8
    two = data[at + 1] != ord(".")  # 10.00 and more
    point = at + 1 + two
    ok = data[point] == ord(".")
    at, point, two = at[ok], point[ok], two[ok]
    ones = data[point - 1].astype(np.int64) - 48
    tens = np.where(two, data[at].astype(np.int64) - 48, 0)
    length = tens * 1000 + ones * 100 + (data[point + 1].astype(np.int64) - 48) * 10 + data[point + 2] - 48
    rest = point + 3  # ", accept rate: 0.42"
    has = (data[rest] == ord(",")) & (data[rest + 9] == ord("r")) & (data[rest + 16] == ord("."))
    rate = (data[rest + 15].astype(np.int64) - 48) * 100
    rate += (data[rest + 17].astype(np.int64) - 48) * 10 + data[rest + 18] - 48
    return at, length, np.where(has, rate, -1)
