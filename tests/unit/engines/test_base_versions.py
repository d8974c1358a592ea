"""Versions compare as packages do, and a contract answers for the versions after it."""

from __future__ import annotations

import pytest

from ckpt_tools.engines.versions import nearest, parse
from ckpt_tools.errors import UsageError

KNOWN = ("0.4.6", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.23")


def test_post_releases_and_two_digit_parts_sort_as_in_pep_440() -> None:
    versions = ["0.5.23", "0.5.10.post1", "0.5.9", "0.5.10", "0.5.11rc1", "0.5.11"]
    assert sorted(versions, key=parse) == ["0.5.9", "0.5.10", "0.5.10.post1", "0.5.11rc1", "0.5.11", "0.5.23"]


def test_a_local_part_is_dropped() -> None:
    assert parse("0.5.9+cu128") == parse("0.5.9")


@pytest.mark.parametrize(
    ("version", "contract"),
    [
        ("0.5.9", "0.5.9"),
        ("0.5.9.post1", "0.5.9"),
        ("0.5.12", "0.5.10.post1"),
        ("1.0", "0.5.23"),
        ("0.1", "0.4.6"),
    ],
)
def test_nearest_older_and_the_oldest_before_all(version: str, contract: str) -> None:
    assert nearest(KNOWN, version) == contract


def test_no_version_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'newest' is no version"):
        parse("newest")
