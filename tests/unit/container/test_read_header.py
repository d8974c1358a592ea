"""The header reader agrees with the safetensors library, on good and on broken input."""

from __future__ import annotations

import json

import pytest
from safetensors import SafetensorError, safe_open

from ckpt_tools.container.header import HEAD, MAX_HEADER, Header, parse_header, read_header
from ckpt_tools.model import DTYPE_BITS
from tests.unit.container.folders import LFS, framed

F32 = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
FOUR = b"\0" * 4
DEEP = 125  # levels below an unknown field of a tensor that the library still takes


def read(data: bytes) -> Header:
    return read_header(lambda start, stop: data[start:stop], len(data), "model.safetensors")


def library(data: bytes, folder) -> tuple[dict[str, tuple[str, list[int]]], dict[str, str] | None] | None:
    """What safe_open says: tensors and metadata, ``None`` when it refuses."""
    path = folder / "x.safetensors"
    path.write_bytes(data)
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            return {
                name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()
            }, file.metadata()
    except SafetensorError:
        return None


def ours(header: Header) -> tuple[dict[str, tuple[str, list[int]]], dict[str, str] | None] | None:
    if header.damage:
        return None
    tensors = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in header.tensors.items()}
    return tensors, None if header.metadata is None else dict(header.metadata)


def tensor(dtype: str = '"F32"', shape: str = "[1]", offsets: str = "[0,4]") -> str:
    return f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'


ACCEPTED = {
    "plain": (f'{{"a":{{{F32}}}}}', FOUR),
    "tensor as a list": ('{"a":["F32",[1],[0,4]]}', FOUR),
    "dtype as a map": (tensor('{"F32":null}'), FOUR),
    "name twice, last wins": (f'{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"a":{{{F32}}}}}', FOUR),
    "name twice by an escape": (f'{{"a":{{{F32}}},"\\u0061":{{{F32}}}}}', FOUR),
    "unknown field": (f'{{"a":{{{F32},"x":{{"y":[1,2.5,-3,true]}}}}}}', FOUR),
    "unknown field twice": (f'{{"a":{{{F32},"x":1,"x":2}}}}', FOUR),
    "unknown field, tiny number": (f'{{"a":{{{F32},"x":1e-999}}}}', FOUR),
    "unknown field, long number": (f'{{"a":{{{F32},"x":{"9" * 300}}}}}', FOUR),
    "nested as deep as allowed": (f'{{"a":{{{F32},"x":{"[" * DEEP}{"]" * DEEP}}}}}', FOUR),
    "metadata null": (f'{{"__metadata__":null,"a":{{{F32}}}}}', FOUR),
    "metadata empty": (f'{{"__metadata__":{{}},"a":{{{F32}}}}}', FOUR),
    "metadata key twice": (f'{{"__metadata__":{{"q":"1","q":"2"}},"a":{{{F32}}}}}', FOUR),
    "metadata with escapes": (f'{{"__metadata__":{{"q":"\\"1\\"\\n"}},"a":{{{F32}}}}}', FOUR),
    "surrogate pair": (f'{{"\\ud83d\\ude00":{{{F32}}}}}', FOUR),
    "name with NUL": (f'{{"a\\u0000":{{{F32}}}}}', FOUR),
    "name empty": (f'{{"":{{{F32}}}}}', FOUR),
    "name not ASCII": (f'{{"é":{{{F32}}}}}', FOUR),
    "white space around": (f' \n\t\r{{"a":{{{F32}}}}}   ', FOUR),
    "no tensors": ("{}", b""),
    "metadata only": ('{"__metadata__":{"format":"pt"}}', b""),
    "scalar": (tensor(shape="[]"), FOUR),
    "F4 pair": (tensor('"F4"', "[2]", "[0,1]"), b"\0"),
    "empty tensor first": (f'{{"z":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}},"a":{{{F32}}}}}', FOUR),
    "empty tensor last": (f'{{"z":{{"dtype":"F32","shape":[0],"data_offsets":[4,4]}},"a":{{{F32}}}}}', FOUR),
    "0 before an overflow": (tensor(shape="[0,4294967296,4294967296,9]", offsets="[0,0]"), b""),
    "many dimensions": (tensor(shape="[1,1,1,1,1,1,1,1,1,1]"), FOUR),
    "not in offset order": (f'{{"b":{{"dtype":"U8","shape":[1],"data_offsets":[4,5]}},"a":{{{F32}}}}}', b"\0" * 5),
}  # fmt: skip

REFUSED = {
    "list of four": ('{"a":["F32",[1],[0,4],1]}', FOUR, "FIL005"),
    "dtype as a full map": (tensor('{"F32":{}}'), FOUR, "FIL005"),
    "dtype a number": (tensor("17"), FOUR, "FIL005"),
    "dtype unknown": (tensor('"f32"'), FOUR, "FIL005"),
    "dtype missing": ('{"a":{"shape":[1],"data_offsets":[0,4]}}', FOUR, "FIL005"),
    "name twice, first is bad": (f'{{"a":5,"a":{{{F32}}}}}', FOUR, "FIL005"),
    "field twice": (f'{{"a":{{"dtype":"F32",{F32}}}}}', FOUR, "FIL005"),
    "metadata twice": (f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{{{F32}}}}}', FOUR, "FIL005"),
    "metadata nested": (f'{{"__metadata__":{{"q":{{"z":"1"}}}},"a":{{{F32}}}}}', FOUR, "FIL005"),
    "metadata number": (f'{{"__metadata__":{{"q":1}},"a":{{{F32}}}}}', FOUR, "FIL005"),
    "metadata list": (f'{{"__metadata__":[],"a":{{{F32}}}}}', FOUR, "FIL005"),
    "misspelt metadata": (f'{{"__meta__":"x","a":{{{F32}}}}}', FOUR, "FIL005"),
    "offset -0": (tensor(offsets="[-0,4]"), FOUR, "FIL005"),
    "offset negative": (tensor(offsets="[-4,0]"), FOUR, "FIL005"),
    "offset true": (tensor(offsets="[false,4]"), FOUR, "FIL005"),
    "three offsets": (tensor(offsets="[0,4,4]"), FOUR, "FIL005"),
    "one offset": (tensor(offsets="[4]"), FOUR, "FIL005"),
    "offsets an object": (tensor(offsets='{"0":4}'), FOUR, "FIL005"),
    "shape 1.0": (tensor(shape="[1.0]"), FOUR, "FIL005"),
    "shape true": (tensor(shape="[true]"), FOUR, "FIL005"),
    "shape a string": (tensor(shape='["1"]'), FOUR, "FIL005"),
    "shape null": (tensor(shape="null"), FOUR, "FIL005"),
    "shape beyond 64 bits": (tensor(shape="[18446744073709551616]"), FOUR, "FIL005"),
    "lone surrogate": (f'{{"\\ud800":{{{F32}}}}}', FOUR, "FIL005"),
    "NaN": (f'{{"a":{{{F32},"x":NaN}}}}', FOUR, "FIL005"),
    "1e999": (f'{{"a":{{{F32},"x":1e999}}}}', FOUR, "FIL005"),
    "number beyond a double": (f'{{"a":{{{F32},"x":{"9" * 320}}}}}', FOUR, "FIL005"),
    "number beyond Python's limit": (f'{{"a":{{{F32},"x":{"9" * 5000}}}}}', FOUR, "FIL005"),
    "nested too deep": (f'{{"a":{{{F32},"x":{"[" * (DEEP + 1)}{"]" * (DEEP + 1)}}}}}', FOUR, "FIL005"),
    "nested far too deep": ('{"a":' * 5000, b"", "FIL005"),
    "control character": (f'{{"a\x01":{{{F32}}}}}', FOUR, "FIL005"),
    "NUL after the object": (f'{{"a":{{{F32}}}}}\0\0', FOUR, "FIL005"),
    "byte order mark": (f'\ufeff{{"a":{{{F32}}}}}', FOUR, "FIL005"),
    "a list": ("[]", b"", "FIL005"),
    "null": ("null", b"", "FIL005"),
    "empty header": ("", b"", "FIL005"),
    "F4 alone": (tensor('"F4"', "[1]", "[0,1]"), b"\0", "FIL006"),
    "gap before the first": (tensor(offsets="[4,8]"), b"\0" * 8, "FIL006"),
    "empty tensor inside": (f'{{"z":{{"dtype":"F32","shape":[0],"data_offsets":[2,2]}},"a":{{{F32}}}}}', FOUR, "FIL006"),
    "empty tensor beyond": (f'{{"z":{{"dtype":"F32","shape":[0],"data_offsets":[8,8]}},"a":{{{F32}}}}}', FOUR, "FIL006"),
    "overlap": (f'{{"b":{{"dtype":"U8","shape":[4],"data_offsets":[2,6]}},"a":{{{F32}}}}}', b"\0" * 6, "FIL006"),
    "ends before it starts": (tensor(offsets="[0,0]"), b"", "FIL006"),
    "end below start": (tensor(offsets="[4,0]", shape="[0]"), FOUR, "FIL006"),
    "too many bytes for the shape": (tensor(offsets="[0,8]"), b"\0" * 8, "FIL006"),
    "overflow before a 0": (tensor(shape="[4294967296,4294967296,0,1,1,1,1,1,1]", offsets="[0,0]"), b"", "FIL006"),
    "overflow in bits": (tensor(shape="[4611686018427387904]"), FOUR, "FIL006"),
    "hostile shape": (tensor(shape=f"[{','.join(['18446744073709551615'] * 3000)}]"), FOUR, "FIL006"),
    "truncated": (tensor(), b"\0" * 3, "FIL003"),
    "trailing": (tensor(), b"\0" * 5, "FIL004"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts_what_the_library_accepts(name, tmp_path):
    text, data = ACCEPTED[name]
    file = framed(text.encode(), data)
    assert library(file, tmp_path) is not None
    assert ours(read(file)) == library(file, tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_the_library_refuses(name, tmp_path):
    text, data, code = REFUSED[name]
    file = framed(text.encode("utf-8", "surrogatepass"), data)
    assert library(file, tmp_path) is None
    damage = read(file).damage
    assert damage is not None
    assert damage.code == code
    assert damage.message.startswith("model.safetensors")
    assert damage.hint
    assert len(damage.message) < 600


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_knows_every_dtype_of_the_library(dtype, tmp_path):
    size = DTYPE_BITS[dtype]  # eight elements
    file = framed(tensor(f'"{dtype}"', "[8]", f"[0,{size}]").encode(), bytes(size))
    assert ours(read(file)) == library(file, tmp_path) == ({"a": (dtype, [8])}, None)


def test_knows_no_dtype_that_the_library_lacks(tmp_path):
    message = ""
    path = tmp_path / "x.safetensors"
    path.write_bytes(framed(tensor('"?"').encode(), FOUR))
    try:
        with safe_open(path, "np"):
            pass
    except SafetensorError as error:
        message = str(error)
    listed = set(
        message.split("expected one of")[1].split(" at line")[0].replace("`", "").replace(" ", "").split(",")
    )
    assert listed == set(DTYPE_BITS)


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"", "FIL007", "0 bytes"),
        (b"1234567", "FIL003", "7 bytes, at least 8"),
        (b"\x10" + bytes(7) + b"{}", "FIL003", "10 bytes, the header alone needs 24"),
        ((MAX_HEADER + 1).to_bytes(8, "little") + b"{}", "FIL005", "100,000,001 bytes, at most 100,000,000"),
        ((2**64 - 1).to_bytes(8, "little"), "FIL005", "no safetensors file"),
        (b"PK\x03\x04" + bytes(40), "FIL003", "truncated"),
        (b"PK\x03\x04" + b"\xff" * 40, "FIL005", "a pickle"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9", "FIL005", "a pickle"),
        (b"<!DOCTYPE html><html></html>", "FIL005", "a web page"),
        (framed(b"\xff{}"), "FIL005", "not UTF-8 at byte 0"),
    ],
)  # fmt: skip
def test_files_that_are_none(data, code, says, tmp_path):
    assert library(data, tmp_path) is None
    damage = read(data).damage
    assert damage is not None
    assert (damage.code, says in damage.message) == (code, True), damage.message


def test_lfs_pointer_is_told_apart_with_the_size_it_names():
    damage = read(LFS).damage
    assert damage is not None
    assert damage.code == "FIL002"
    assert "Git LFS pointer" in damage.message
    assert "123,456" in damage.message
    assert "git lfs pull" in str(damage.hint)
    assert read(LFS.split(b"size")[0]).damage.code == "FIL002"


def test_offsets_are_absolute_and_in_file_order():
    text = f'{{"b":{{"dtype":"U8","shape":[3],"data_offsets":[4,7]}},"a":{{{F32}}}}}'
    header = read(framed(text.encode(), b"\0" * 7))
    base = 8 + len(text)
    assert [(t.name, t.start, t.stop, t.file) for t in header.tensors.values()] == [
        ("a", base, base + 4, "model.safetensors"),
        ("b", base + 4, base + 7, "model.safetensors"),
    ]
    assert header.raw == text.encode()


def test_both_ways_of_reading_agree():
    entries = {
        f"t{i}": {"dtype": "F32", "shape": [2, 3], "data_offsets": [24 * i, 24 * i + 24]} for i in range(5)
    }
    plain = json.dumps({"__metadata__": {"format": "pt"}, **entries})
    fast = read(framed(plain.encode(), bytes(120)))
    slow = read(framed(plain.replace('"t0"', '"\\u00740"').encode(), bytes(120)))
    assert [t.name for t in fast.tensors.values()] == [t.name for t in slow.tensors.values()]
    assert [t.shape for t in fast.tensors.values()] == [t.shape for t in slow.tensors.values()]
    assert fast.metadata == slow.metadata
    first = fast.tensors["t0"]
    assert hash(first) == hash(
        type(first)(*(getattr(first, n) for n in ("name", "dtype", "shape", "file", "start", "stop")))
    )
    with pytest.raises(AttributeError):
        first.name = "x"  # type: ignore[misc]


def test_damaged_files_are_still_described():
    header = read(framed(tensor().encode(), b"\0" * 3))
    assert list(header.tensors) == ["a"]
    overflowing = read(framed(tensor(shape="[4294967296,4294967296,9]").encode(), FOUR))
    assert not overflowing.tensors


def test_duplicates_are_reported():
    text, data = ACCEPTED["name twice, last wins"]
    header = read(framed(text.encode(), data))
    assert header.duplicates == ("a",)
    assert header.tensors["a"].shape == (1,)


def test_a_long_header_is_read_in_two_goes():
    entries = {
        f"layers.{i}.weight": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(2000)
    }
    data = framed(json.dumps(entries).encode(), bytes(2000))
    assert len(data) > HEAD
    calls: list[tuple[int, int]] = []

    def reader(start: int, stop: int) -> bytes:
        calls.append((start, stop))
        return data[start:stop]

    header = read_header(reader, len(data), "x")
    assert len(header.tensors) == 2000
    assert calls == [(0, HEAD), (HEAD, len(data) - 2000)]


def test_a_file_that_shrinks_while_it_is_read():
    assert parse_header(b"{}", 5, "x").damage.code == "FIL003"
