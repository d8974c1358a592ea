"""Pick the lines of a log that need reading, at memory speed.

A server that runs for weeks writes gigabytes of statistics and access lines between the few that matter. A
block of whole lines is classified by vector operations over its bytes: the head of each message decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_PAD = 96  # bytes behind the block that classification may look at
_PREFIX = range(20, 56)  # where the "]" of "[2026-11-29 18:42:14 DP0 TP0] " can be
_PROCESS = range(8, 40)  # where the ")" of "(APIServer pid=123) " can be
_SOURCE = range(20, 72)  # where the "]" of "INFO 11-20 10:00:00 [core.py:93] " can be


def _key(text: bytes) -> int:
    return int.from_bytes(text, "big")


_INFO = _key(b"INFO")
_LEVELS = np.array([_key(text) for text in (b"INFO", b"WARN", b"ERRO", b"DEBU", b"CRIT")], np.uint64)
_SEVERE = np.array([_key(text) for text in (b"ERRO", b"CRIT")], np.uint64)
_DECODE, _PREFILL, _SPECULATIVE = _key(b"Decode b"), _key(b"Prefill "), _key(b"SpecDeco")
_RECEIVE, _FINISH, _RECEIVED = _key(b"Receive:"), _key(b"Finish: "), _key(b"Received")
_VLLM_STATS, _TRTLLM = _key(b"Engine 0"), _key(b"[TRT-LLM")
# How messages begin that mean something after a server is ready: a restart, a stop, a death, a note.
_TELLING = np.array(
    [
        _key(text)
        for text in (
            b"serv", b"Serv", b"The ", b"Init", b"Load", b"KV C", b"Full", b"SWA ", b"Memo", b"Capt", b"max_",
            b"Sche", b"Data", b"Deto", b"Toke", b"Mult", b"Rece", b"SIGQ", b"SIGT", b"Rank", b"Subp", b"Grac",
            b"Sign", b"Para", b"Eagl", b"DSpa", b"Unre", b"Foll", b"Warn", b"Over", b"Usin", b"spec", b"Atte",
            b"Draf", b"Heal", b"Dete", b"Igno", b"Watc", b"vLLM", b"non-", b"Reso", b"Star", b"Mode", b"Avai",
            b"GPU ", b"Dyna", b"torc", b"Comp", b"Cach", b"Grap", b"init", b"Engi", b"Work", b"Asyn", b"Shut",
            b"Spec", b"Trac", b"[shu", b"Wait", b"Fini", b"Appl", b"Uvic", b"Gene", b"Chat", b"LLM ", b"DFLA",
        )
    ],
    np.uint64,
)  # fmt: skip
# What a line without a logger's prefix must hold to mean something then.
_NEEDLES = (
    b"Error", b"xception", b"Traceback", b"Killed", b"error: ", b"Segmentation", b"terminate called", b"Interrupt",
    b"Watchdog", b"accept len: ", b"acceptance length", b"igquit", b"SIG", b"ServerArgs(", b"default args", b"ERROR",
    b"Shutting down", b"exit code",
)  # fmt: skip
_TRACEBACK = b"Traceback (most recent call last)"
_TRACEBACK_LINES = 400
_ESCAPE = re.compile(rb"\x1b\[[0-9;]*m")
_WRAPPED = re.compile(
    rb"[\w.-]+ +\| (?=[\[(IWED])|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) |"
    rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w.@/-]+\[\d+\]: "
)


@dataclass(frozen=True)
class Block:
    """The classified lines of a block.

    Attributes:
        starts, stops: Byte ranges of the lines, newlines excluded.
        keep: Indices of lines that may mean something while a server comes up, ascending.
        telling: Those of ``keep`` that can still mean something once it serves.
        served: Indices of statistics and access lines: proof that the server works.
        owner: Per line, the index of the record it belongs to (its own for a record), -1 before any.
        dumps: Indices of records that dump what users sent and don't end on their line.
        accept_at: Byte offsets of the acceptance lengths of decode lines, ascending.
        accept_len: Those lengths in hundredths.
        accept_rate: The rates in ten-thousandths; -1 where a line has none.
        last_stamped: Index of the last record with a time stamp, or -1.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    keep: NDArray[np.int64]
    telling: NDArray[np.int64]
    served: NDArray[np.int64]
    owner: NDArray[np.int64]
    dumps: NDArray[np.int64]
    accept_at: NDArray[np.int64]
    accept_len: NDArray[np.int64]
    accept_rate: NDArray[np.int64]
    last_stamped: int


def without_colours(block: bytes) -> bytes:
    """The block without escape sequences for colours; there are few different ones, each is removed at once."""
    while hit := _ESCAPE.search(block):
        block = block.replace(hit.group(), b"")
    return block


def scan(block: bytes, *, in_traceback: bool = False) -> Block:
    """Classify a block of whole lines (each ends with a newline), without colours.

    Args:
        in_traceback: The block before ended inside a traceback.
    """
    padded = np.frombuffer(block + bytes(_PAD), np.uint8)
    data = padded[: len(block)]
    stops = np.flatnonzero(data == 10)
    starts = np.concatenate(([0], stops[:-1] + 1)) if len(stops) else stops
    message = _unwrapped(padded, block, starts)
    is_record = np.zeros(len(starts), bool)

    process = np.flatnonzero(padded[message] == ord("("))
    _advance(padded, message, process, ord(")"), _PROCESS)
    head = padded[message]
    bracket = np.flatnonzero(head == ord("["))
    bracket = bracket[padded[message[bracket] + 1] - 48 < 10]  # a digit follows: a time stamp
    stamped = _advance(padded, message, bracket, ord("]"), _PREFIX)
    is_record[stamped] = True

    key = _four(padded, message)
    level = _any_of(key, _LEVELS)
    colon = padded[message + 4] == ord(":")
    access = (key == _INFO) & colon & (padded[message + 10] - 48 < 10)
    severe = _any_of(key, _SEVERE)
    # Behind a level, vLLM names the source and uvicorn pads: the message is behind that.
    sourced = _advance(padded, message, np.flatnonzero(level & ~colon), ord("]"), _SOURCE)
    eight = _eight(padded, message)
    trtllm = np.flatnonzero(eight == _TRTLLM)
    if len(trtllm):
        message[trtllm] += len(b"[TRT-LLM] [I] ")
        eight[trtllm] = _eight(padded, message[trtllm])
    statistics = (eight == _DECODE) | (eight == _PREFILL)
    is_record |= statistics | level
    speculative = np.flatnonzero(is_record & (eight == _SPECULATIVE))
    spoken = _speculative(padded, message, stops, speculative)
    counted = np.zeros(len(starts), bool)
    counted[spoken[0]] = True
    served = access | statistics | counted

    request = padded[message + 9] == ord("r")
    asked = is_record & ((eight == _RECEIVE) | (eight == _FINISH) | ((eight == _RECEIVED) & request))
    closing = data[np.maximum(stops - 1, 0)]
    dump = asked & ~((closing == ord(")")) | (closing == ord("}")) | (closing == ord(".")))

    blank = (head == 32) | (head == 9)
    bar = blank & (padded[message + 3] == ord("%"))
    value_error = padded[message + 2] == ord("V")  # pydantic indents its message
    frame = blank & ~bar & ~is_record & ~value_error
    keep = ~(served | asked | (stops == starts) | frame)
    telling = keep & is_record & (severe | (level & colon))
    rest = np.flatnonzero(keep & is_record & ~telling)
    telling[rest] = np.isin(eight[rest] >> np.uint64(32), _TELLING) & (eight[rest] != _VLLM_STATS)
    telling |= _telling_words(block, starts, keep & ~is_record, in_traceback)
    last_stamped = max(int(rows.max()) if len(rows) else -1 for rows in (stamped, sourced))

    index = np.arange(len(starts))
    owner = np.maximum.accumulate(np.where(is_record, index, -1)) if len(starts) else index
    at, length, rate = _acceptance(padded, len(block))
    inside = statistics[np.searchsorted(starts, at, "right") - 1] if len(at) else np.zeros(0, bool)
    at, length, rate = at[inside], length[inside], rate[inside]
    if len(spoken[0]):
        at = np.concatenate((at, starts[spoken[0]]))
        length, rate = np.concatenate((length, spoken[1])), np.concatenate((rate, spoken[2]))
        order = np.argsort(at, kind="stable")
        at, length, rate = at[order], length[order], rate[order]
    return Block(
        starts,
        stops,
        np.flatnonzero(keep),
        np.flatnonzero(telling),
        np.flatnonzero(served),
        owner,
        np.flatnonzero(dump),
        at,
        length,
        rate,
        last_stamped,
    )


def _any_of(key: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """As ``np.isin``, for a handful of values."""
    out: NDArray[np.bool_] = key == wanted[0]
    for value in wanted[1:]:
        out |= key == value
    return out


def _unwrapped(padded: NDArray[np.uint8], block: bytes, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where lines begin behind what a container runtime puts before each; its width is that of the first line's."""
    message: NDArray[np.int64] = starts.copy()
    hit = _WRAPPED.match(block)
    if hit is not None and len(starts):
        width = hit.end()
        at = np.minimum(starts + width - 2, len(padded) - 2)
        same = (padded[at] == block[width - 2]) & (padded[at + 1] == 32)
        message[same] += width
        np.minimum(message, len(padded) - 80, out=message)
    return message


def _telling_words(
    block: bytes, starts: NDArray[np.int64], plain: NDArray[np.bool_], in_traceback: bool
) -> NDArray[np.bool_]:
    """Which lines without a prefix hold one of the words, or stand behind a traceback's head."""
    out = np.zeros(len(starts), bool)
    if not plain.any():
        return out
    for needle in _NEEDLES:
        at = block.find(needle)
        while at >= 0:
            line = int(np.searchsorted(starts, at, "right")) - 1
            out[line] = True
            after = int(starts[line + 1]) if line + 1 < len(starts) else len(block)
            at = block.find(needle, after)
    heads = [0] if in_traceback else []
    at = block.find(_TRACEBACK)
    while at >= 0:
        heads.append(int(np.searchsorted(starts, at, "right")) - 1)
        at = block.find(_TRACEBACK, at + 1)
    for line in heads:
        out[line : line + _TRACEBACK_LINES] = True
    return out & plain


def _speculative(
    padded: NDArray[np.uint8], message: NDArray[np.int64], stops: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """vLLM's statistics: the length stands at a fixed place, the rate (33.3%) ends the line.

    The rows that are written so, their lengths in hundredths and their rates in ten-thousandths.
    """
    value = message[rows] + len(b"SpecDecoding metrics: Mean acceptance length: ")
    end = stops[rows]
    ok = (value + 4 < end) & (padded[message[rows] + 22] == ord("M")) & (padded[end - 1] == ord("%"))
    rows, value, end = rows[ok], value[ok], end[ok]
    ok = (padded[value + 1] == ord(".")) & (padded[end - 3] == ord("."))
    rows, value, end = rows[ok], value[ok], end[ok]
    length = _digit(padded, value) * 100 + _digit(padded, value + 2) * 10 + _digit(padded, value + 3)
    tens = padded[end - 5]
    hundreds = np.where(tens != 32, padded[end - 6], 32)
    tenths = _digit(padded, end - 2) + _digit(padded, end - 4) * 10
    tenths += np.where(tens != 32, tens.astype(np.int64) - 48, 0) * 100
    tenths += np.where(hundreds != 32, hundreds.astype(np.int64) - 48, 0) * 1000
    return rows, length, tenths * 10


def _digit(padded: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.int64]:
    digit: NDArray[np.int64] = padded[at].astype(np.int64) - 48
    return digit


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
    np.minimum(message, len(padded) - 80, out=message)
    return np.concatenate(moved) if moved else np.zeros(0, np.int64)


def _four(padded: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint64]:
    out: NDArray[np.uint64] = padded[at].astype(np.uint64)
    for offset in (1, 2, 3):
        out = (out << np.uint64(8)) | padded[at + offset]
    return out


def _eight(padded: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (_four(padded, at) << np.uint64(32)) | _four(padded, at + 4)


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
    rate = _digit(data, rest + 15) * 100 + _digit(data, rest + 17) * 10 + _digit(data, rest + 18)
    return at, length, np.where(has, rate * 100, -1)
