"""Whatever the bytes, the header reader says what the safetensors library says."""

from __future__ import annotations

import json
import random

import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from ckpt_tools.container import jsontext
from ckpt_tools.container.header import read_header
from ckpt_tools.container.index import missing_parts
from ckpt_tools.container.wrappers import PREFIXES, unwrap
from ckpt_tools.model import DTYPE_BITS
from tests.fuzz.headers import change_bytes, check, frame
from tests.unit.container.folders import framed

NAMES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def headers(draw):
    """A valid header and the size of its data."""
    document = draw(st.sampled_from([{}, {"__metadata__": {"format": "pt"}}]))
    offset = 0
    names = draw(st.lists(NAMES.filter(lambda name: name != "__metadata__"), max_size=5, unique=True))
    for name in names:
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        shape = [*draw(st.lists(st.integers(0, 5), max_size=3)), 8]
        size = DTYPE_BITS[dtype]
        for dim in shape[:-1]:
            size *= dim
        document = {
            **document,
            name: {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]},
        }
        offset += size
    return document, offset


def verdicts(data):
    header = read_header(lambda start, stop: data[start:stop], len(data), "f")
    ours = None
    if not header.damage:
        ours = {t.name: (t.dtype, t.shape, data[t.start : t.stop]) for t in header.tensors.values()}
    try:
        theirs = {
            name: (info["dtype"], tuple(info["shape"]), bytes(info["data"]))
            for name, info in safetensors.deserialize(data)
        }
    except SafetensorError:
        theirs = None
    return ours, theirs


@settings(deadline=None)
@given(headers(), st.booleans(), st.randoms(use_true_random=False))
def test_valid_headers_in_any_order(header, escaped, rng):
    document, size = header
    items = list(document.items())
    rng.shuffle(items)
    raw = json.dumps(dict(items), ensure_ascii=escaped).encode()
    ours, theirs = verdicts(framed(raw, rng.randbytes(size)))
    assert theirs is not None
    assert ours == theirs


@settings(deadline=None)
@given(headers(), st.integers(0, 2**32))
def test_damaged_headers(header, seed):
    document, size = header
    rng = random.Random(seed)
    raw = change_bytes(json.dumps(document).encode(), rng)
    ours, theirs = verdicts(frame(raw, size, rng))
    assert ours == theirs


@settings(deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_any_json_object(document):
    ours, theirs = verdicts(framed(json.dumps(document).encode()))
    assert ours == theirs


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data):
    ours, theirs = verdicts(data)
    assert ours == theirs
    check({"config.json": data, "model.safetensors": data})
    check({"config.json": b"{}", "model.safetensors": data, "model.safetensors.index.json": data})


# -- positions in JSON texts


def pointers(value, prefix=""):
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        pointer = f"{prefix}/{str(key).replace('~', '~0').replace('/', '~1')}"
        yield pointer
        yield from pointers(child, pointer)


@settings(deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=4) | st.lists(JSON, max_size=4), st.booleans())
def test_every_pointer_has_the_line_it_is_printed_on(document, escaped):
    text = json.dumps(document, indent=1, ensure_ascii=escaped)
    found = list(jsontext.positions(text))
    assert [pointer for pointer, _ in found] == list(pointers(document))
    lines = text.split("\n")
    for pointer, line in found:
        key = pointer.rsplit("/", 1)[1].replace("~1", "/").replace("~0", "~")
        if not key.isdecimal():
            assert lines[line - 1].lstrip().startswith(json.dumps(key, ensure_ascii=escaped))
    assert jsontext.duplicate_keys(text) == ()


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_scanned(text):
    list(jsontext.positions(text))
    jsontext.duplicate_keys(text)


# -- names


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(PREFIXES), max_size=3),
    st.lists(st.sampled_from(["fc.weight", "norm.weight"]), min_size=1),
)
def test_wrappers_come_off_whatever_their_order(parts, names):
    prefix = "".join(parts)
    wrapper = unwrap({prefix + name for name in names})
    assert wrapper.prefix == prefix
    assert set(wrapper.names.values()) == set(names)


@settings(deadline=None)
@given(st.integers(1, 30), st.sets(st.integers(1, 30)))
def test_missing_parts_complete_a_set(total, there):
    names = {f"m-{part:05d}-of-{total:05d}.safetensors" for part in there if part <= total}
    missing = set(missing_parts(names))
    assert not missing & names
    everything = {f"m-{part:05d}-of-{total:05d}.safetensors" for part in range(1, total + 1)}
    assert missing == (everything - names if names else set())
