"""Whole folders, read back by the reference library."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckpt_tools.container import fill, write
from ckpt_tools.container.layout import FileRange, OutFile, OutWeights
from ckpt_tools.container.write import plan_write, write_folder
from ckpt_tools.errors import InputError, UsageError, WriteError

from .support import CONFIG, draft, produced, ranges, read, renamed, save, tree, with_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def expected(source: Path) -> dict[str, np.ndarray]:
    return {f"midlayer.{name}": value for name, value in read(source).items()}


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        assert found[name].tobytes() == value.tobytes(), name


def alone(out: Path, *beside: str) -> bool:
    """Nothing is left beside OUT but what is named."""
    return sorted(os.listdir(out.parent)) == sorted(beside)


# --- what is written


def test_rename_only(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    written = write_folder(out, draft(source), source=source.parent)
    assert_same(read(out / "model.safetensors"), expected(source))
    assert (out / "config.json").read_bytes() == CONFIG.data
    assert alone(out, "in", "out")
    assert (written.path, written.replaced, written.atomic, written.content, written.leftover) == (
        out,
        False,
        True,
        None,
        None,
    )
    assert written.bytes_shared + written.bytes_copied == sum(map(len, tree(out).values()))


def test_produced_tensors_and_copied_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "in/tokenizer.json").write_bytes(b"t" * 9000)
    chunks = [b"a" * 3, b"", b"b" * 5000, memoryview(b"c" * 9)]
    files = [
        *draft(source, produced("mask_hidden", chunks), produced("tiny", [b"x"]), produced("none", [])),
        OutFile("tokenizer.json", FileRange(tmp_path / "in/tokenizer.json", 0, 9000)),
        OutFile("empty.txt", b""),
    ]
    for checksum in (False, True):
        write_folder(tmp_path / "out", files, force=checksum, checksum=checksum)
        found = read(tmp_path / "out/model.safetensors")
        assert found.pop("mask_hidden").tobytes() == b"aaa" + b"b" * 5000 + b"c" * 9
        assert found.pop("tiny").tobytes() == b"x"
        assert found.pop("none").shape == (0,)
        assert_same(found, expected(source))
        assert (tmp_path / "out/tokenizer.json").read_bytes() == b"t" * 9000
        assert (tmp_path / "out/empty.txt").read_bytes() == b""


def test_several_files_from_several_sources(source: Path, tmp_path: Path) -> None:
    other = save(tmp_path / "in", {"embed": np.arange(5000, dtype=np.int64)}, "extra.safetensors")
    one, two, three = ranges(source)
    (embed,) = ranges(other)
    files = [
        OutWeights("a.safetensors", (two, embed, renamed(two, "twin"))),
        OutWeights("b.safetensors", (three, one)),
    ]
    write_folder(tmp_path / "out", files)
    original = read(source)
    assert_same(
        read(tmp_path / "out/a.safetensors"),
        {two.name: original[two.name], "embed": read(other)["embed"], "twin": original[two.name]},
    )
    assert_same(
        read(tmp_path / "out/b.safetensors"),
        {one.name: original[one.name], three.name: original[three.name]},
    )


def test_checksum_gives_the_hash_of_each_file(source: Path, tmp_path: Path) -> None:
    written = write_folder(tmp_path / "out", draft(source, produced("p", [b"12", b"345"])), checksum=True)
    assert written.content == {
        name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in tree(tmp_path / "out").items()
    }


@pytest.mark.parametrize("checksum", [False, True])
def test_progress_adds_up(source: Path, tmp_path: Path, checksum: bool) -> None:
    told: list[tuple[int, int]] = []
    write_folder(
        tmp_path / "out",
        draft(source, produced("p", [b"12", b"345"])),
        checksum=checksum,
        progress=lambda done, total: told.append((done, total)),
    )
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {told[-1][0]}


def test_permissions_come_from_the_umask(source: Path, tmp_path: Path) -> None:
    source.chmod(0o400)
    before = os.umask(0o027)
    try:
        write_folder(tmp_path / "out", draft(source))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "out").iterdir()} == {0o640}


def test_nothing_is_linked_hard(source: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "out", draft(source))
    assert source.stat().st_nlink == 1
    assert {p.stat().st_nlink for p in (tmp_path / "out").iterdir()} == {1}


def test_relative_paths(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = write_folder("new/out", draft(source.relative_to(tmp_path)), source="in")
    assert written.path == tmp_path / "new/out"
    assert_same(read(tmp_path / "new/out/model.safetensors"), expected(source))


def test_into_the_working_directory(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert not write_folder(".", draft(source), source=source.parent).atomic
    assert sorted(os.listdir(".")) == ["config.json", "model.safetensors"]


def test_no_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", [])
    assert tree(tmp_path / "out") == {}


# --- sharing blocks


def test_the_plan_is_what_happens(sharing_disk: Path, source: Path) -> None:
    there = save(sharing_disk / "in", read(source))
    files = draft(there, produced("p", [b"x" * 100]))
    plan = plan_write(sharing_disk / "new/out", files)
    assert os.listdir(sharing_disk) == ["in"]
    assert plan.bytes_shared >= 2 << 20
    written = write_folder(sharing_disk / "new/out", files, checksum=True)
    assert (written.bytes_shared, written.bytes_copied) == (plan.bytes_shared, plan.bytes_copied)
    found = read(sharing_disk / "new/out/model.safetensors")
    assert found.pop("p").tobytes() == b"x" * 100
    assert_same(found, expected(there))


def test_sources_elsewhere_are_copied(sharing_disk: Path, source: Path) -> None:
    plan = plan_write(sharing_disk / "out", draft(source))
    assert plan.bytes_shared == 0
    assert write_folder(sharing_disk / "out", draft(source)).bytes_shared == 0
    assert_same(read(sharing_disk / "out/model.safetensors"), expected(source))


def test_a_share_that_fails_after_all_is_copied(
    sharing_disk: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = save(sharing_disk / "in", read(source))
    real, calls = write.clone.share, []

    def share(*arguments: int) -> bool:
        calls.append(arguments)
        return len(calls) == 1 and real(*arguments)

    monkeypatch.setattr(write.clone, "share", share)
    written = write_folder(sharing_disk / "out", draft(there))
    assert len(calls) == 2
    assert written.bytes_shared == 0
    assert_same(read(sharing_disk / "out/model.safetensors"), expected(there))


def test_the_files_are_the_same_on_every_file_system(
    sharing_disk: Path, source: Path, tmp_path: Path
) -> None:
    write_folder(sharing_disk / "out", draft(source))
    write_folder(tmp_path / "out", draft(source))
    assert tree(sharing_disk / "out") == tree(tmp_path / "out")


def test_probing_needs_a_folder_that_takes_nameless_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert plan_write(tmp_path / "out", draft(source)).bytes_shared == 0
    monkeypatch.delattr(os, "O_TMPFILE")
    assert plan_write(tmp_path / "out", draft(source)).bytes_shared == 0


@pytest.mark.parametrize(
    ("stated", "used"), [(4096, 4096), (65536, 65536), (1 << 20, 4096), (0, 4096), (6000, 4096)]
)
def test_block_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: int, used: int) -> None:
    class Stated:
        f_bsize = stated

    monkeypatch.setattr(os, "statvfs", lambda _: Stated)
    assert write._block_size(tmp_path) == used


def test_other_systems(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert write._block_size(tmp_path) == 4096
    write._check_space(tmp_path, plan_write(tmp_path / "out", draft(source)))


def test_holes_are_kept_and_need_no_room(tmp_path: Path) -> None:
    source = tmp_path / "in.safetensors"
    huge = 1 << 46  # 64 TiB, more than the disk
    text = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (huge // 1024, huge // 1024)
    with open(source, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + huge // 1024)
    write_folder(tmp_path / "out", [OutWeights("model.safetensors", ranges(source, "y"))])
    found = (tmp_path / "out/model.safetensors").stat()
    assert found.st_size > huge // 1024
    assert found.st_blocks * 512 < 1 << 20


# --- replacing


def test_without_force_nothing_is_touched(source: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "out", draft(source))
    before = tree(tmp_path / "out")
    with pytest.raises(UsageError, match="isn't empty"):
        write_folder(tmp_path / "out", [CONFIG])
    assert tree(tmp_path / "out") == before
    assert alone(tmp_path / "out", "in", "out")


def test_force_replaces_all_of_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out/figures").mkdir(parents=True)
    (tmp_path / "out/pytorch_model.bin").write_text("old")
    written = write_folder(tmp_path / "out", draft(source), force=True)
    assert written.replaced
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]
    assert alone(tmp_path / "out", "in", "out")


def test_a_symlink_and_a_mount_point_are_filled(
    source: Path, tmp_path: Path, mount: Callable[..., Path]
) -> None:
    disk = mount("-t", "tmpfs", "tmpfs")
    (tmp_path / "link").symlink_to(disk)
    for out, force, replaced in ((disk, False, False), (tmp_path / "link", True, True), (disk, True, True)):
        written = write_folder(out, draft(source), force=force)
        assert (written.atomic, written.replaced) == (False, replaced)
        assert sorted(os.listdir(disk)) == ["config.json", "model.safetensors"]
        assert_same(read(out / "model.safetensors"), expected(source))


def test_a_leftover_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write.stage.Stage, "remove", lambda *_, **__: False)
    written = write_folder(tmp_path / "out", draft(source))
    assert written.leftover is not None
    assert written.leftover.name.startswith(".out.ckpt-")


def test_what_killed_runs_left_is_cleared_first(source: Path, tmp_path: Path) -> None:
    left = tmp_path / ".out.ckpt-0123456789abcdef"
    left.mkdir()
    (left / "lock").touch()
    write_folder(tmp_path / "out", draft(source))
    assert alone(tmp_path / "out", "in", "out")


# --- where IN and OUT lie


@pytest.mark.parametrize("out", ["in", "in/out", "."])
def test_overlaps_are_refused(source: Path, tmp_path: Path, out: str) -> None:
    before = tree(tmp_path)
    with pytest.raises(UsageError) as caught:
        write_folder(tmp_path / out, draft(source), source=source.parent, force=True)
    assert caught.value.hint is not None
    assert tree(tmp_path) == before


def test_sources_are_inputs_even_unnamed(source: Path) -> None:
    with pytest.raises(UsageError, match="holds the input"):
        write_folder(source.parent, draft(source), force=True)


def test_beside_a_single_file(source: Path) -> None:
    write_folder(source.parent / "out", draft(source), source=source)
    assert_same(read(source.parent / "out/model.safetensors"), expected(source))


def test_another_file_system(source: Path, mount: Callable[..., Path]) -> None:
    out = mount("-t", "tmpfs", "tmpfs") / "out"
    write_folder(out, draft(source), checksum=True)
    assert_same(read(out / "model.safetensors"), expected(source))


def test_a_read_only_source(source: Path, tmp_path: Path, mount: Callable[..., Path]) -> None:
    disk = mount("-t", "tmpfs", "tmpfs")
    there = save(disk / "in", read(source))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    write_folder(tmp_path / "out", draft(there), source=there.parent)
    assert_same(read(tmp_path / "out/model.safetensors"), expected(there))


def test_a_read_only_destination(source: Path, mount: Callable[..., Path]) -> None:
    disk = mount("-t", "tmpfs", "tmpfs")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(WriteError, match="Read-only file system"):
        write_folder(disk / "a/out", draft(source))
    assert os.listdir(disk) == []


# --- failures leave nothing


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    """An OUT that has to stay as it is, with nothing beside it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("old")
    yield out
    assert tree(out) == {"config.json": b"old"}
    assert alone(out, "in", "out")


@pytest.mark.parametrize(
    ("chunks", "nbytes", "says"),
    [
        ([b"12"], 5, "takes 5 bytes, 2 came"),
        ([b"12", b"3456"], 5, "takes 5 bytes, 6 or more came"),
        ([], 5, "takes 5 bytes, 0 came"),
        ([b"x" * 10_000_000] * 3, 5, "takes 5 bytes, 10000000 or more came"),
    ],
)
def test_chunks_of_another_length(
    source: Path, old: Path, chunks: list[bytes], nbytes: int, says: str
) -> None:
    with pytest.raises(WriteError, match=f"model.safetensors: tensor 'p' {says}"):
        write_folder(old, draft(source, produced("p", chunks, nbytes)), force=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InputError("bad pickle"), ZeroDivisionError()])
def test_chunks_that_fail(source: Path, old: Path, error: BaseException) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"12"
        raise error

    tensor = produced("p", [b"1234"])
    broken = OutWeights("p.safetensors", (with_chunks(tensor, chunks),))
    with pytest.raises(type(error)):
        write_folder(old, [*draft(source), broken], force=True)


def test_a_plan_that_is_refused(source: Path, old: Path) -> None:
    with pytest.raises(WriteError, match="no plain file name"):
        write_folder(old, [*draft(source), OutFile("../x", b"")], force=True)


def test_a_missing_source(tmp_path: Path, old: Path, source: Path) -> None:
    gone = OutFile("x", FileRange(tmp_path / "in/gone", 0, 5))
    with pytest.raises(InputError, match=r"can't read .*gone"):
        write_folder(old, [*draft(source), gone], force=True)


def test_a_source_that_vanishes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(fill, "open", refuse, raising=False)
    with pytest.raises(InputError, match="Permission denied"):
        fill.open_source(source)


def test_a_truncated_source(source: Path, old: Path) -> None:
    files = draft(source)
    os.truncate(source, source.stat().st_size - 1)
    with pytest.raises(InputError, match="its header promises") as caught:
        write_folder(old, files, force=True)
    assert str(source) in caught.value.message


def test_a_source_that_changes(source: Path, old: Path) -> None:
    def touch() -> Iterator[bytes]:
        os.utime(source, ns=(1, 1))
        yield b"1"

    files = [*draft(source), OutWeights("p.safetensors", (with_chunks(produced("p", [b"1"]), touch),))]
    with pytest.raises(WriteError, match="changed while it was read"):
        write_folder(old, files, force=True)


def corrupt(monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> None:
    """Flip a byte of a written file, counted from its end when negative, before it is compared."""
    real = fill.sync_file

    def flip(path: Path) -> None:
        if path.name == name:
            with open(path, "r+b") as file:
                file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))
        real(path)

    monkeypatch.setattr(write, "sync_file", flip)


@pytest.mark.parametrize(
    ("name", "at", "checksum"),
    [
        ("config.json", 0, False),
        ("model.safetensors", 3, False),
        ("model.safetensors", 100, False),
        ("model.safetensors", -1, False),
        ("model.safetensors", -9000, False),
        ("model.safetensors", -9001, False),
        ("model.safetensors", -9010, False),
        ("model.safetensors", -1_000_000, True),
        ("model.safetensors", -4500, True),
        ("config.json", -1, True),
    ],
)
def test_what_the_disk_gives_back_is_compared(
    source: Path, old: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int, checksum: bool
) -> None:
    corrupt(monkeypatch, name, at)
    files = draft(source, produced("p", [b"x" * 9000]))
    with pytest.raises(WriteError, match=f"{name}: what the disk gives back"):
        write_folder(old, files, force=True, checksum=checksum)


def test_a_size_that_is_off(source: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "sync_file", lambda path: os.truncate(path, 10))
    with pytest.raises(WriteError, match="came out with 10 bytes"):
        write_folder(old, draft(source), force=True)


def test_a_file_that_ends_inside_what_is_compared(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"123")
    with open(tmp_path / "x", "rb", buffering=0) as file:
        assert fill._read_at(file, 1, 10) == b"23"


def test_names_that_meet_on_disk(source: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As README.md and readme.md do where case doesn't count."""
    real = write.write_file
    monkeypatch.setattr(write, "write_file", lambda *a: (real(*a), real(*a))[1])
    with pytest.raises(WriteError, match=r"File exists.*model\.safetensors"):
        write_folder(old, draft(source), force=True)


# --- a full disk


def test_too_little_room_is_seen_first(source: Path, small_disk: Path) -> None:
    with pytest.raises(WriteError, match=r"the output needs \d+ bytes, \d+ bytes are free") as caught:
        write_folder(small_disk / "a/out", draft(source))
    assert str(plan_write(small_disk, draft(source)).total_bytes) in caught.value.message
    assert os.listdir(small_disk) == []


@pytest.mark.parametrize("where", ["out", "."])
@pytest.mark.parametrize("made", [False, True])
def test_the_disk_fills(
    source: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, where: str, made: bool
) -> None:
    monkeypatch.setattr(write, "_check_space", lambda *_: None)
    out = small_disk / where
    out.mkdir(exist_ok=True)
    (out / "config.json").write_text("old")
    files = draft(source)
    if made:
        files = [OutWeights("p.safetensors", (produced("p", [bytes(1 << 19)] * 6),))]
    before = tree(small_disk)
    with pytest.raises(WriteError, match=r"no room for .*: the output needs \d+ bytes; nothing was changed"):
        write_folder(out, files, force=True)
    assert tree(small_disk) == before
    assert os.listdir(out) == ["config.json"]
    assert len(os.listdir(small_disk)) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_room_that_is_missed_at_the_sync(
    source: Path, old: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError, match="no room"):
        write_folder(old, draft(source), force=True)


def test_a_limit_on_file_sizes(source: Path, old: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(WriteError, match="no room"):
            write_folder(old, draft(source), force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_file_systems_that_do_not_say_how_full_they_are(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        f_bsize = f_frsize = 4096
        f_blocks = f_bavail = f_bfree = 0

    monkeypatch.setattr(os, "statvfs", lambda _: Silent)
    write_folder(tmp_path / "out", draft(source))


def test_reserved_blocks_are_only_roots(source: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reserved:
        f_bsize = f_frsize = 4096
        f_blocks = f_bfree = 1 << 30
        f_bavail = 7

    monkeypatch.setattr(os, "statvfs", lambda _: Reserved)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(WriteError, match=f"{7 * 4096} bytes are free"):
        write_folder(old, draft(source), force=True)


def test_other_failures_name_the_file(source: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error", "/dev/sda")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError, match=r"can't write .*: Input/output error \(/dev/sda\)"):
        write_folder(old, draft(source), force=True)


def test_a_device_that_says_nothing(source: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError("strange")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError, match=r"can't write .*: strange$"):
        write_folder(old, draft(source), force=True)


# --- signals


def test_sigterm_cleans_up_and_takes_its_course(
    source: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)

    def chunks() -> Iterator[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield b"1"

    files = [*draft(source), OutWeights("p.safetensors", (with_chunks(produced("p", [b"1"]), chunks),))]
    with pytest.raises(write._Terminated):
        write_folder(old, files, force=True)
    assert raised == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
def test_a_signalled_process(tmp_path: Path, number: signal.Signals, status: int) -> None:
    code = f"""
import signal, sys, time
# a shell's background job inherits SIGINT as ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
from ckpt_tools.container.layout import OutTensor, OutWeights, Produced
from ckpt_tools.container.write import write_folder
def chunks():
    yield b"1"
    print("writing", flush=True)
    time.sleep(60)
tensor = OutTensor("x", "U8", (2,), Produced(2, chunks))
write_folder({str(tmp_path / "new/out")!r}, [OutWeights("m.safetensors", (tensor,))])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        assert len(list((tmp_path / "new").glob(".out.ckpt-*"))) == 1
        child.send_signal(number)
        child.communicate(timeout=30)
    assert child.returncode == status
    assert os.listdir(tmp_path) == []


def test_a_handler_of_the_callers_own_stays(source: Path, tmp_path: Path) -> None:
    def own(*_: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, own)
    seen: list[object] = []
    try:
        write_folder(
            tmp_path / "out",
            draft(source),
            progress=lambda *_: seen.append(signal.getsignal(signal.SIGTERM)),
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(seen) == {own}


def test_in_another_thread(source: Path, tmp_path: Path) -> None:
    worker = threading.Thread(target=write_folder, args=(tmp_path / "out", draft(source)))
    worker.start()
    worker.join()
    assert_same(read(tmp_path / "out/model.safetensors"), expected(source))


# --- flat memory


def test_memory_stays_flat(tmp_path: Path) -> None:
    """A sparse 20 GB source, first by the kernel's calls, then through this process's own buffers."""
    source = tmp_path / "in.safetensors"
    size = 20 << 30
    text = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with open(source, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for place in range(1 << 30, size, 4 << 30):
            file.seek(place)
            file.write(b"x" * (16 << 20))
        file.truncate(8 + len(text) + size)
    code = f"""
import errno, os, resource
from pathlib import Path
from ckpt_tools.container.layout import FileRange, OutTensor, OutWeights
from ckpt_tools.container.write import write_folder
data = FileRange(Path({str(source)!r}), {8 + len(text)}, {8 + len(text) + size})
files = [OutWeights("m.safetensors", (OutTensor("y", "U8", ({size},), data),))]
def missing(*_):
    raise OSError(errno.ENOSYS, "")
write_folder({str(tmp_path / "out")!r}, files)
os.copy_file_range = os.sendfile = missing
write_folder({str(tmp_path / "out")!r}, files, force=True)
def peak():
    # ru_maxrss starts with the parent's, which may have loaded anything
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
print(peak() if os.path.exists("/proc/self/status") else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 150 << 10
    assert (tmp_path / "out/m.safetensors").stat().st_blocks * 512 < 200 << 20


@pytest.mark.parametrize("below", ["a/out", "a/b/out"])
def test_an_out_below_a_file(below, tmp_path):
    (tmp_path / "a").write_text("x")
    with pytest.raises(WriteError, match=r"can't write .*: (Not a directory|File exists)") as caught:
        write_folder(tmp_path / below, [OutFile("config.json", b"{}")], source=tmp_path / "in")
    assert "choose another output folder" in caught.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_an_out_that_may_not_be_listed(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()

    def refused(path="."):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(WriteError, match=r"can't write .*: Permission denied"):
        write_folder(tmp_path / "out", [OutFile("config.json", b"{}")])
