"""A strict reader of safetensors headers that needs byte ranges only.

It accepts and refuses exactly what ``safetensors.safe_open`` does (safetensors 0.8; tests compare the two),
since that is what every engine opens files with. Where the library is laxer than the format's description, so
is this:

- a tensor name that occurs twice is accepted, and the last one wins (reported as ``duplicates``);
- unknown fields of a tensor are ignored, even when they occur twice;
- a tensor may be written as the list ``[dtype, shape, offsets]``, and a dtype as ``{"F32": null}``;
- white space may stand before and after the JSON object.

Where it is stricter than JSON readers usually are: a *known* field that occurs twice, ``NaN``, a lone
surrogate, ``-0`` or ``1.0`` as a size, a number that a double can't hold and nesting deeper than 127 are
refused. One thing is not followed: the library adds up sizes in 64 bits that wrap around.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ckpt_tools.container.codes import shown
from ckpt_tools.model import DTYPE_BITS, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_HEADER = 100_000_000
PREFIX = 8  # bytes of the header's length
HEAD = 64 * 1024  # read in one go: holds the header of most files
LFS_MAGIC = b"version https://git-lfs.github.com/spec/"

_U64 = 2**64 - 1
_MAX_DEPTH = 127
_FIELDS = ("dtype", "shape", "data_offsets")
_LFS_SIZE = re.compile(rb"^size (\d+)$", re.MULTILINE)
_NEGATIVE_ZERO = re.compile(rb"-0[\s,\]}]")


@dataclass(frozen=True)
class Damage:
    """Why a file is refused by ``safe_open``: the code of the finding, what is wrong, and what to do."""

    code: str
    message: str
    hint: str | None = None
    tensor: str | None = None


@dataclass(frozen=True)
class Header:
    """A header as far as it could be read.

    Attributes:
        tensors: By name in offset order, offsets absolute in the file. Also filled when only the layout or
            the size of the data is wrong, so that a damaged file can still be described.
        metadata: ``__metadata__``, ``None`` when absent.
        raw: The header's bytes without its length.
        damage: Why the library refuses the file, ``None`` when it opens it.
        duplicates: Tensor names that occur more than once; the last counts.
    """

    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    metadata: Mapping[str, str] | None = None
    raw: bytes = b""
    damage: Damage | None = None
    duplicates: tuple[str, ...] = ()


class _Refused(Exception):
    """Internal: the header's JSON isn't what the library takes."""


def read_header(read: Callable[[int, int], bytes], size: int, file: str) -> Header:
    """Read and judge a safetensors header.

    Args:
        read: Returns the bytes ``start`` to ``stop`` of the file.
        size: Size of the file in bytes.
        file: Its name, for messages and :class:`~ckpt_tools.model.TensorInfo`.
    """
    if size == 0:
        return Header(damage=Damage("FIL007", f"{shown(file)} is empty (0 bytes)", _again(file)))
    head = read(0, min(size, HEAD))
    if head.startswith(LFS_MAGIC):
        return Header(damage=lfs_damage(head, file))
    if size < PREFIX:
        return Header(
            damage=Damage(
                "FIL003",
                f"{shown(file)} is truncated: {size} bytes, at least {PREFIX} expected",
                _again(file),
            )
        )
    length = int.from_bytes(head[:PREFIX], "little")
    if length > MAX_HEADER:
        return Header(damage=_not_safetensors(head, length, file))
    stop = PREFIX + length
    if stop > size:
        return Header(
            damage=Damage(
                "FIL003",
                f"{shown(file)} is truncated inside its header: {size:,} bytes, the header alone needs {stop:,}",
                _again(file),
            )
        )
    raw = head[PREFIX:stop] if stop <= len(head) else head[PREFIX:] + read(len(head), stop)
    return parse_header(raw, size, file)


def parse_header(raw: bytes, size: int, file: str) -> Header:
    """Judge a header's bytes (without the length prefix) for a file of ``size`` bytes."""
    if PREFIX + len(raw) > size:  # the file shrank while it was read
        return Header(
            raw=raw,
            damage=Damage(
                "FIL003", f"{shown(file)} is truncated inside its header: {size:,} bytes", _again(file)
            ),
        )
    plain = _plain(raw, size, file)
    if plain is not None:
        return plain
    try:
        entries, metadata, duplicates = _decode(raw)
    except _Refused as refused:
        return Header(
            raw=raw,
            damage=Damage(
                "FIL005",
                f"{shown(file)} has a damaged header: {refused}",
                "write the file again with `safetensors`",
            ),
        )
    tensors, damage = _lay_out(entries, PREFIX + len(raw), size, file)
    return Header(tensors, metadata, raw, damage, duplicates)


def lfs_damage(head: bytes, file: str) -> Damage:
    """The defect of a file that is a Git LFS pointer."""
    size = _LFS_SIZE.search(head)
    names = f" (of {int(size[1]):,} bytes)" if size else ""
    return Damage(
        "FIL002",
        f"{shown(file)} is a Git LFS pointer to the file{names}, not the file itself",
        f"fetch it with `git lfs pull --include {shown(file)}`, or with `hf download`",
    )


def _again(file: str) -> str:
    return f"download or copy {shown(file)} again, then compare sizes"


def _not_safetensors(head: bytes, length: int, file: str) -> Damage:
    message = (
        f"{shown(file)} is no safetensors file: its header would be {length:,} bytes, "
        f"at most {MAX_HEADER:,} are allowed"
    )
    if head.startswith(b"PK\x03\x04") or head[:1] == b"\x80":
        return Damage(
            "FIL005", f"{shown(file)} is no safetensors file but a pickle", "rename it to end in .bin"
        )
    if head.lstrip()[:1] == b"<":
        return Damage(
            "FIL005", f"{shown(file)} is no safetensors file but a web page (a failed download)", _again(file)
        )
    return Damage("FIL005", message, _again(file))


_Entry = tuple[str, str, list[int], int, int]


def _decode(raw: bytes) -> tuple[list[_Entry], dict[str, str] | None, tuple[str, ...]]:
    """Entries (name, dtype, shape, begin, end) in header order, metadata, duplicate names."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _Refused(f"not UTF-8 at byte {error.start}") from None
    return _decode_text(text)


def _plain(raw: bytes, size: int, file: str) -> Header | None:
    """The headers that writers make, fast; ``None`` for anything that needs a closer look.

    Without escapes, a header whose number of quotes is that of its distinct names and three fields per tensor
    can hold no duplicate key, so the C scanner may build plain dicts. Whatever else isn't as it should be is
    left to the long way to judge.
    """
    if b"\\" in raw or _NEGATIVE_ZERO.search(raw):
        return None
    try:
        document = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    if type(document) is not dict:
        return None
    metadata = document.pop("__metadata__", None)
    strings = 5 * len(document)
    if metadata is not None:
        if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
            return None
        strings += 1 + 2 * len(metadata)
    if raw.count(b'"') != 2 * strings:
        return None
    base = PREFIX + len(raw)
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    bits_of = DTYPE_BITS
    blank = object.__new__
    fill = object.__setattr__
    try:
        for name, entry in document.items():
            if len(entry) != 3:
                return None
            dtype = entry["dtype"]
            shape = entry["shape"]
            begin, end = entry["data_offsets"]
            bits = bits_of[dtype]
            if len(shape) > 8 or type(shape) is not list or type(begin) is not int or type(end) is not int:
                return None
            for dim in shape:
                if type(dim) is not int or dim <= 0:
                    return None
                bits *= dim
            if begin != expected or bits != (end - begin) * 8:
                return None
            expected = end
            # A target has 100,000 tensors. This is TensorInfo(...) at a third of the price, which the
            # constructor of a frozen dataclass spends on six guarded assignments.
            tensor = blank(TensorInfo)
            fill(
                tensor,
                "__dict__",
                {
                    "name": name,
                    "dtype": dtype,
                    "shape": tuple(shape),
                    "file": file,
                    "start": base + begin,
                    "stop": base + end,
                },
            )
            tensors[name] = tensor
    except (TypeError, KeyError, ValueError):
        return None
    if base + expected != size:
        return None
    return Header(tensors, metadata, raw)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its duplicate keys."""


def _constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is no JSON")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _Refused(f"the number {text[:32]} is out of range")
    return number


def _int(text: str) -> int | float:
    # -0 is a floating-point number to the library, and so is what exceeds 64 bits; neither can be a size.
    if text == "-0" or len(text) > 20:
        return _float(text)
    return int(text)


def _decode_text(text: str) -> tuple[list[_Entry], dict[str, str] | None, tuple[str, ...]]:
    try:
        document = json.loads(
            text, object_pairs_hook=_Pairs, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except RecursionError:
        raise _Refused(f"nested deeper than {_MAX_DEPTH}") from None
    except ValueError as error:
        raise _Refused(f"not JSON ({error})") from None
    _check_tree(document)
    if not isinstance(document, _Pairs):
        raise _Refused(f"{_kind(document)} instead of an object of tensors")
    metadata: dict[str, str] | None = None
    seen_metadata = False
    entries: dict[str, _Entry] = {}
    duplicates: dict[str, None] = {}
    for name, value in document:
        if name == "__metadata__":
            if seen_metadata:
                raise _Refused("__metadata__ occurs twice")
            seen_metadata = True
            metadata = _metadata(value)
            continue
        entry = _entry(name, value)
        if name in entries:
            duplicates[name] = None
        entries[name] = entry
    return list(entries.values()), metadata, tuple(duplicates)


def _check_tree(document: object) -> None:
    """Refuse what only shows in the parsed tree: too deep nesting and lone surrogates."""
    stack = [(document, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _Refused("a lone surrogate in a string") from None
        elif isinstance(value, list):
            if depth > _MAX_DEPTH:
                raise _Refused(f"nested deeper than {_MAX_DEPTH}")
            for item in value:
                if isinstance(item, tuple):
                    stack.append((item[0], depth + 1))
                    stack.append((item[1], depth + 1))
                else:
                    stack.append((item, depth + 1))


def _short(value: object) -> str:
    """A value as it may stand in a message: escaped, and never longer than a line."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "…"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, _Pairs):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _short(value)


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, _Pairs):
        raise _Refused(f"__metadata__ is {_kind(value)}, expected an object of strings")
    for key, text in value:
        if not isinstance(text, str):
            raise _Refused(f"__metadata__ has {_kind(text)} under {_short(key)}, expected a string")
    return dict(value)


def _entry(name: str, value: object) -> _Entry:
    if isinstance(value, _Pairs):
        fields: dict[str, Any] = {}
        for key, item in value:
            if key in _FIELDS:
                if key in fields:
                    raise _Refused(f"tensor {_short(name)} has {key} twice")
                fields[key] = item
        for key in _FIELDS:
            if key not in fields:
                raise _Refused(f"tensor {_short(name)} has no {key}")
        dtype, shape, offsets = (fields[key] for key in _FIELDS)
    elif isinstance(value, list) and len(value) == len(_FIELDS):
        dtype, shape, offsets = value
    else:
        raise _Refused(f"tensor {_short(name)} is {_kind(value)}, expected dtype, shape and data_offsets")
    if isinstance(dtype, _Pairs) and len(dtype) == 1 and dtype[0][1] is None:
        dtype = dtype[0][0]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _Refused(
            f"tensor {_short(name)} has the unknown dtype {_kind(dtype)}, "
            f"expected one of {', '.join(DTYPE_BITS)}"
        )
    sizes = _sizes(name, "shape", shape)
    bounds = _sizes(name, "data_offsets", offsets)
    if len(bounds) != 2:
        raise _Refused(f"tensor {_short(name)} has {len(bounds)} data_offsets, expected 2")
    return name, dtype, sizes, bounds[0], bounds[1]


def _sizes(name: str, field: str, value: object) -> list[int]:
    if not isinstance(value, list) or isinstance(value, _Pairs):
        raise _Refused(f"tensor {_short(name)} has {_kind(value)} as {field}, expected a list of sizes")
    for number in value:
        if type(number) is not int or not 0 <= number <= _U64:
            raise _Refused(
                f"tensor {_short(name)} has {_kind(number)} in {field}, expected a whole number from 0"
            )
    return value


def _lay_out(
    entries: list[_Entry], base: int, size: int, file: str
) -> tuple[dict[str, TensorInfo], Damage | None]:
    """Tensors in offset order, and the first reason why their bytes don't add up to the file."""
    entries.sort(key=_offsets)  # stable, and one pass over what writers make
    tensors: dict[str, TensorInfo] = {}
    damage: Damage | None = None
    expected = 0
    for index, (name, dtype, shape, begin, end) in enumerate(entries):
        # A hostile shape may be long; its product is only formed once it is known to be small.
        bits = (math.prod(shape) if len(shape) <= 8 else _elements(shape)) * DTYPE_BITS[dtype]
        if damage is None:
            if begin != expected or bits != (end - begin) * 8 or not 0 < bits <= _U64:
                damage = _misfit(entries, index, expected, file)
            expected = end
        if bits <= _U64:
            tensors[name] = TensorInfo(name, dtype, tuple(shape), file, base + begin, base + end)
    if damage is None and base + expected != size:
        damage = _wrong_size(base + expected, size, file)
    return tensors, damage


def _elements(shape: list[int]) -> int:
    """Product of a shape, multiplied from the left as the library does; more than 64 bits at an overflow.

    The library multiplies in 64 bits, so a later 0 doesn't save an overflow.
    """
    elements = 1
    for dim in shape:
        elements *= dim
        if elements > _U64:
            break
    return elements


def _offsets(entry: _Entry) -> tuple[int, int]:
    return entry[3], entry[4]


def _misfit(entries: list[_Entry], index: int, expected: int, file: str) -> Damage | None:
    """Why a tensor's bytes don't follow those of the tensor before it; ``None`` when they do after all."""
    name, dtype, shape, begin, end = entries[index]
    where = f"{shown(file)}: tensor {_short(name)}"
    repair = "the file was not written by the safetensors library; export it again"
    if begin > expected:
        return Damage(
            "FIL006", f"{where} starts at data byte {begin:,}, leaving a gap after {expected:,}", repair, name
        )
    if begin < expected:
        before = entries[index - 1][0]
        return Damage(
            "FIL006",
            f"{where} starts at data byte {begin:,}, inside {_short(before)}, which ends at {expected:,}",
            repair,
            name,
        )
    if end < begin:
        return Damage(
            "FIL006", f"{where} ends at data byte {end:,}, before its start {begin:,}", repair, name
        )
    elements = _elements(shape)
    bits = elements * DTYPE_BITS[dtype]
    what = f"{dtype} {_short(shape)}"
    if bits > _U64:
        return Damage("FIL006", f"{where} overflows: {what} needs more than 2^64 bits", repair, name)
    if bits % 8:
        return Damage("FIL006", f"{where} does not fill whole bytes: {what} is {bits} bits", repair, name)
    if bits != (end - begin) * 8:
        return Damage(
            "FIL006",
            f"{where} has {end - begin:,} bytes, {what} needs {bits // 8:,}",
            repair,
            name,
        )
    return None


def _wrong_size(needed: int, size: int, file: str) -> Damage:
    if size < needed:
        return Damage(
            "FIL003",
            f"{shown(file)} is truncated: {size:,} bytes, its header needs {needed:,} ({needed - size:,} missing)",
            _again(file),
        )
    return Damage(
        "FIL004",
        f"{shown(file)} has {size - needed:,} trailing bytes after the last tensor: {size:,} bytes in all, "
        f"its header needs {needed:,}",
        f"cut them off with `truncate -s {needed} {shown(file)}`, or write the file again",
    )
