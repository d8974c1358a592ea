"""d2t and t2d: derived from one another, and every way in which they go wrong."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.formats import tables

ids = st.lists(st.integers(0, 200), min_size=1, max_size=60, unique=True)


@given(ids.map(sorted))
def test_a_sorted_map_survives_the_mask(values: list[int]) -> None:
    d2t = tables.offsets(tuple(values))
    mask = tables.mask_from_d2t(d2t, 201)
    assert tables.d2t_from_mask(tuple(mask)) == d2t
    assert tables.target_ids(d2t) == tuple(values)
    assert tables.is_ascending(d2t)
    assert tables.problems(d2t, 201, len(values), tuple(mask)) == ()


@given(ids)
def test_any_order_of_distinct_ids_is_sound(values: list[int]) -> None:
    d2t = tables.offsets(tuple(values))
    assert tables.problems(d2t, 201, len(values), None) == ()
    assert tables.is_ascending(d2t) == (values == sorted(values))


@given(ids.map(sorted).filter(lambda v: len(v) > 1 and tuple(v) != tuple(range(len(v)))))
def test_absolute_ids_are_seen_with_the_mask(values: list[int]) -> None:
    mask = tuple(int(i in set(values)) for i in range(201))
    found = tables.problems(tuple(values), 201, len(values), mask)
    assert [p.kind for p in found] == ["absolute"]


def test_absolute_ids_are_seen_without_the_mask_when_they_leave_the_vocabulary() -> None:
    absolute = tuple(range(3, 256, 2))
    assert [p.kind for p in tables.problems(absolute, 256, len(absolute), None)] == ["absolute"]


def test_an_identity_map_is_never_taken_for_absolute() -> None:
    assert not tables.looks_absolute((0, 0, 0), 256, None)
    assert tables.is_identity((0, 0, 0))
    assert not tables.looks_absolute((0,), 256, None)


@pytest.mark.parametrize(
    ("d2t", "vocab", "small", "t2d", "kinds"),
    [
        ((0, 0), 8, 3, None, ["length"]),
        ((300, 0), 8, 2, None, ["range"]),
        ((-1, 0), 8, 2, None, ["range"]),
        ((1, 0), 8, 2, None, ["duplicate"]),
        ((0, 0), 8, 2, (1, 1, 0, 0), ["mask"]),
        ((0, 0), 4, 2, (1, 0, 0, 0), ["mask"]),
        ((0, 0), 4, 2, (1, 0, 1, 0), ["mask"]),
        ((0, 0), None, None, None, []),
    ],
)
def test_each_fault_has_its_kind(
    d2t: tuple[int, ...], vocab: int | None, small: int | None, t2d: tuple[int, ...] | None, kinds: list[str]
) -> None:
    assert [p.kind for p in tables.problems(d2t, vocab, small, t2d)] == kinds


def test_a_mask_refuses_ids_outside_the_vocabulary() -> None:
    with pytest.raises(IndexError):
        tables.mask_from_d2t((-1,), 4)
    with pytest.raises(IndexError):
        tables.mask_from_d2t((4,), 4)


def test_bytes_are_little_endian_int64() -> None:
    data = tables.int64_bytes((1, -2))
    assert array("q", [1, -2]).tobytes() == data
    assert data[:8] == b"\x01" + b"\0" * 7
