"""Positions in a JSON text: on which line does a pointer lie, and which keys occur twice.

The standard parser gives neither. The scanner here is tolerant: on a damaged text it says what it can.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|"', re.DOTALL)
_MAX_DEPTH = 1000  # json.loads gives up at about this depth, too
_MAX_POINTER = 4096  # hostile texts only; keeps the scanner linear


def parse(text: str) -> tuple[Any, bool]:
    """A JSON text as Python values, and whether some object holds a key twice (the last one wins).

    Raises:
        ValueError: The text isn't JSON; the message says where.
    """
    repeated = False

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        built = dict(pairs)
        repeated = repeated or len(built) != len(pairs)
        return built

    try:
        return json.loads(text, object_pairs_hook=build), repeated
    except RecursionError:
        raise ValueError("nested too deeply") from None


def line_of(text: str, pointer: str) -> int | None:
    """The 1-based line of a JSON pointer's key (of a list item: its first character); ``None`` when absent.

    Of a key that occurs twice, the last counts, as it does for parsers.
    """
    found = None
    for where, line in positions(text):
        if where == pointer:
            found = line
    return found


def duplicate_keys(text: str) -> tuple[tuple[str, int], ...]:
    """Pointer and line of every key that stood in its object before."""
    seen: set[str] = set()
    again: list[tuple[str, int]] = []
    for pointer, line in positions(text):
        if pointer in seen:
            again.append((pointer, line))
            # What lies under the second occurrence is new, whatever lay under the first.
            seen = {other for other in seen if not other.startswith(pointer + "/")}
        seen.add(pointer)
    return tuple(again)


def positions(text: str) -> Iterator[tuple[str, int]]:
    """Pointer and line of every key and list item, in the order of the text."""
    line, counted = 1, 0
    # Per open container: its pointer, and the next index of a list (None for an object).
    stack: list[tuple[str, int | None]] = []
    at = ""
    expects_value = True
    for token in _TOKEN.finditer(text):
        line += text.count("\n", counted, token.start())
        counted = token.start()
        symbol = token[0]
        if symbol in "}]":
            if not stack:
                return
            stack.pop()
            expects_value = False
            continue
        if symbol == ",":
            expects_value = bool(stack) and stack[-1][1] is not None
            continue
        if symbol == ":":
            expects_value = True
            continue
        if stack and stack[-1][1] is None and not expects_value:
            if not symbol.startswith('"') or len(symbol) < 2:
                return
            at = f"{stack[-1][0]}/{_escape(_unquote(symbol))}"
            if len(at) > _MAX_POINTER:
                return
            yield at, line
            continue
        if not expects_value:
            return
        prefix, index = stack[-1] if stack else ("", None)
        if index is not None:
            at = f"{prefix}/{index}"
            stack[-1] = (prefix, index + 1)
            yield at, line
        elif not stack:
            at = ""
        expects_value = False
        if symbol in "{[":
            if len(stack) >= _MAX_DEPTH:
                return
            stack.append((at, 0 if symbol == "[" else None))
            expects_value = symbol == "["


def _unquote(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token[1:-1]


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
