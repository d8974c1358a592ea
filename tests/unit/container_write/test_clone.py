"""Moving bytes between open files, and the ways that are tried in turn."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_tools.container import clone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = os.urandom(300_000)


@contextmanager
def pair(folder: Path, data: bytes = DATA) -> Iterator[tuple[int, int]]:
    (folder / "src").write_bytes(data)
    with open(folder / "src", "rb", buffering=0) as src, open(folder / "dst", "w+b", buffering=0) as dst:
        yield src.fileno(), dst.fileno()


def failing(code: int) -> Any:
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def copied(folder: Path, start: int = 1000, stop: int = 250_000, at: int = 77) -> None:
    told: list[int] = []
    with pair(folder) as (src, dst):
        os.truncate(dst, at + stop - start)
        clone.copy(src, dst, start, stop, at, told.append)
    assert (folder / "dst").read_bytes() == bytes(at) + DATA[start:stop]
    assert sum(told) == stop - start


def test_copy_file_range(tmp_path: Path) -> None:
    copied(tmp_path)


@pytest.mark.parametrize("code", sorted(clone.UNSUPPORTED))
def test_each_way_gives_up_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "copy_file_range", failing(code))
    copied(tmp_path)
    monkeypatch.setattr(os, "sendfile", failing(code))
    copied(tmp_path)


def test_a_way_that_moves_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    copied(tmp_path)


def test_without_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    monkeypatch.delattr(os, "SEEK_DATA")
    monkeypatch.setattr(sys, "platform", "darwin")
    copied(tmp_path)


def test_short_calls_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "COPY_CALL", 1234)
    copied(tmp_path)
    monkeypatch.setattr(os, "copy_file_range", failing(errno.EXDEV))
    monkeypatch.setattr(os, "sendfile", failing(errno.EINVAL))
    monkeypatch.setattr(clone, "BUFFER", 999)
    copied(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_real_failures_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "copy_file_range", failing(code))
    with pytest.raises(OSError) as caught:
        copied(tmp_path)
    assert caught.value.errno == code


def test_the_last_way_reports_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("copy_file_range", "sendfile", "write"):
        monkeypatch.setattr(os, name, failing(errno.EPERM))
    with pytest.raises(PermissionError):
        copied(tmp_path)


def test_a_source_that_ends_too_early(tmp_path: Path) -> None:
    with pair(tmp_path) as (src, dst), pytest.raises(clone.SourceTooShort):
        clone.copy(src, dst, 0, len(DATA) + 1, 0, lambda _: None)


def test_a_source_that_shrinks_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(tmp_path) as (src, dst):
        size = os.fstat(src)
        os.truncate(tmp_path / "src", 100_000)
        monkeypatch.setattr(os, "fstat", lambda _: size)
        monkeypatch.setattr(clone, "data_extents", lambda _fd, start, stop: iter([(start, stop)]))
        with pytest.raises(clone.SourceTooShort):
            clone.copy(src, dst, 0, len(DATA), 0, lambda _: None)


def sparse(folder: Path) -> bytes:
    """1 MiB of which the second and the last 64 KiB are data, and the last 4 KiB but one a hole again."""
    with open(folder / "src", "wb") as file:
        file.seek(64 << 10)
        file.write(DATA[: 64 << 10])
        file.seek((1 << 20) - (64 << 10))
        file.write(DATA[: 32 << 10])
        file.truncate(1 << 20)
    return (folder / "src").read_bytes()


def test_holes_stay_holes(tmp_path: Path) -> None:
    data = sparse(tmp_path)
    told: list[int] = []
    with open(tmp_path / "src", "rb") as src, open(tmp_path / "dst", "wb") as dst:
        dst.truncate(1 << 20)
        clone.copy(src.fileno(), dst.fileno(), 0, 1 << 20, 0, told.append)
    assert (tmp_path / "dst").read_bytes() == data
    assert sum(told) == 1 << 20
    assert (tmp_path / "dst").stat().st_blocks <= (tmp_path / "src").stat().st_blocks < (1 << 20) // 512


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1 << 20), (0, 4096), (70_000, 80_000), (130_000, 140_000), (65_000, 1_000_000)]
)
def test_extents_cover_all_data(tmp_path: Path, start: int, stop: int) -> None:
    data = sparse(tmp_path)
    with open(tmp_path / "src", "rb") as src:
        extents = list(clone.data_extents(src.fileno(), start, stop))
    rebuilt = bytearray(stop - start)
    for begin, end in extents:
        assert start <= begin < end <= stop
        rebuilt[begin - start : end - start] = data[begin:end]
    assert rebuilt == data[start:stop]


def test_a_file_system_that_knows_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(tmp_path) as (src, _):
        monkeypatch.setattr(os, "lseek", failing(errno.EINVAL))
        assert list(clone.data_extents(src, 5, 70)) == [(5, 70)]


def test_share_on_a_file_system_that_shares(sharing_disk: Path) -> None:
    with pair(sharing_disk) as (src, dst):
        assert clone.share(src, dst, 4096, 4096 * 20, 8192)
        assert not clone.share(src, dst, 4096, 4096 * 20, 100), "unaligned, so refused"
    assert (sharing_disk / "dst").read_bytes() == bytes(8192) + DATA[4096 : 4096 * 20]


def test_share_in_several_calls(sharing_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "SHARE_CALL", 3 * 4096)
    with pair(sharing_disk) as (src, dst):
        assert clone.share(src, dst, 0, 4096 * 20, 0)
    assert (sharing_disk / "dst").read_bytes() == DATA[: 4096 * 20]


def test_share_fails_softly_only_where_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(tmp_path) as (src, dst):
        monkeypatch.setattr(clone.fcntl, "ioctl", failing(errno.EOPNOTSUPP))
        assert not clone.share(src, dst, 0, 4096, 0)
        monkeypatch.setattr(clone.fcntl, "ioctl", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="space"):
            clone.share(src, dst, 0, 4096, 0)
        monkeypatch.setattr(sys, "platform", "darwin")
        assert not clone.share(src, dst, 0, 4096, 0)


def test_writing_starts_early_for_what_is_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        clone, "_sync_file_range", lambda: lambda _fd, at, length, _: asked.append((at.value, length.value))
    )
    monkeypatch.setattr(clone, "SMALL", 100_000)
    monkeypatch.setattr(clone, "COPY_CALL", 120_000)
    copied(tmp_path)
    assert asked == [(77, 120_000), (77 + 120_000, 120_000)]


def test_only_linux_starts_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clone._sync_file_range.__wrapped__() is not None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert clone._sync_file_range.__wrapped__() is None
    monkeypatch.setattr(clone, "_sync_file_range", lambda: None)
    clone.start_writing(-1, 0, 1 << 30)
