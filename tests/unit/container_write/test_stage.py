"""Stages: what is refused, how a finished one gets in place, what the next run clears."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_tools.container import stage
from ckpt_tools.container.stage import Place, Stage, find_place, recover, refuse_overlap
from ckpt_tools.errors import UsageError, WriteError

from .support import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEX = "0123456789abcdef"


def checkpoint(folder: Path, generation: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(generation)
    (folder / "model.safetensors").write_text(generation)
    return folder


def staged(out: Path, place: Place, generation: str = "new") -> Stage:
    made = Stage(out, place)
    made.create()
    checkpoint(made.payload, generation)
    return made


def holds(folder: Path, generation: str) -> bool:
    return tree(folder) == {"config.json": generation.encode(), "model.safetensors": generation.encode()}


@contextmanager
def working_directory(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# --- what OUT is


def test_absent_and_empty_folders_are_fresh(tmp_path: Path) -> None:
    assert find_place(tmp_path / "a/b", force=False) is Place.FRESH
    (tmp_path / "empty").mkdir()
    assert find_place(tmp_path / "empty", force=False) is Place.FRESH
    assert find_place(tmp_path / "empty", force=True) is Place.FRESH


def test_a_checkpoint_needs_force(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out", "old")
    with pytest.raises(UsageError, match="isn't empty") as caught:
        find_place(out, force=False)
    assert caught.value.hint is not None
    assert "--force" in caught.value.hint
    assert find_place(out, force=True) is Place.SWAP


@pytest.mark.parametrize("name", ["config.json", "x.safetensors", "pytorch_model.bin", "training_state.pt"])
def test_what_makes_a_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert find_place(tmp_path, force=True) is Place.SWAP


@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml", "0", "safetensors"])
def test_force_spares_what_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match="holds no checkpoint"):
        find_place(tmp_path, force=True)


def test_a_file_and_a_dangling_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(WriteError, match="is a file"):
        find_place(tmp_path / "file", force=True)
    with pytest.raises(WriteError, match="symlink to nothing"):
        find_place(tmp_path / "link", force=True)


def test_what_cannot_be_renamed_over_is_filled(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert find_place(tmp_path / "link", force=False) is Place.FILL
    with working_directory(real):
        assert find_place(real, force=False) is Place.FILL
    assert find_place(real, force=False) is Place.FRESH


def test_mount_points(mount: Callable[..., Path], tmp_path: Path) -> None:
    disk = mount("-t", "tmpfs", "tmpfs", name="a disk")
    (disk / "lost+found").mkdir()
    assert find_place(disk, force=False) is Place.FILL
    (tmp_path / "real").mkdir()
    bound = mount("--bind", str(tmp_path / "real"), name="bound to\\it")
    assert find_place(bound, force=False) is Place.FILL


def test_mounts_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Path) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    assert stage.is_mount(Path("/"))
    assert not stage.is_mount(tmp_path)


# --- IN and OUT


def test_places_apart(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "in", "x")
    refuse_overlap(source, tmp_path / "out")
    refuse_overlap(source, tmp_path / "in2/deep/out")
    refuse_overlap(source / "model.safetensors", tmp_path / "out")
    refuse_overlap(source / "model.safetensors", source / "out")


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("in", "is the input itself"),
        ("in/", "is the input itself"),
        ("other/../in", "is the input itself"),
        ("link", "is the input itself"),
        ("in/out", "lies inside the input"),
        ("link/a/b", "lies inside the input"),
        (".", "holds the input"),
    ],
)
def test_overlaps(tmp_path: Path, out: str, says: str) -> None:
    source = checkpoint(tmp_path / "in", "x")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(UsageError, match=says) as caught:
        refuse_overlap(source, tmp_path / out)
    assert caught.value.hint is not None
    with pytest.raises(UsageError, match=says):
        refuse_overlap(tmp_path / "link", tmp_path / out)


def test_a_file_in_out_is_input_too(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "in", "x")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/model.safetensors").symlink_to(source / "model.safetensors")
    with pytest.raises(UsageError, match="holds the input"):
        refuse_overlap(tmp_path / "linked/model.safetensors", source)


def test_overlap_through_a_bind_mount(mount: Callable[..., Path], tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "in", "x")
    twin = mount("--bind", str(source), name="twin")
    with pytest.raises(UsageError, match="is the input itself"):
        refuse_overlap(source, twin)


# --- into place


def test_fresh(tmp_path: Path) -> None:
    out = tmp_path / "a/b/out"
    made = staged(out, Place.FRESH)
    assert made.path.parent == out.parent
    assert (made.path / "lock").read_text() == f"{os.getpid()}\n"
    made.commit()
    assert made.remove(failed=False)
    assert holds(out, "new")
    assert os.listdir(out.parent) == ["out"]


def test_over_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(0o700)
    made = staged(tmp_path / "out", Place.FRESH)
    made.commit()
    made.remove(failed=False)
    assert holds(tmp_path / "out", "new")


def test_what_appears_meanwhile_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = staged(out, Place.FRESH)
    checkpoint(out, "somebody else's")
    with pytest.raises(WriteError, match="appeared while"):
        made.commit()
    made.remove(failed=True)
    assert holds(out, "somebody else's")
    assert os.listdir(tmp_path) == ["out"]


def test_a_rename_that_fails_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = staged(tmp_path / "out", Place.FRESH)

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "rename", denied)
    with pytest.raises(PermissionError):
        made.commit()


def test_exchange(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out", "old")
    (out / "figures").mkdir()
    (out / "figures/loss.png").write_text("png")
    (out / "figures").chmod(0o500)
    made = staged(out, Place.SWAP)
    made.commit()
    assert holds(out, "new")
    assert made.remove(failed=False)
    assert os.listdir(tmp_path) == ["out"]


def by_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_exchange", lambda *_: False)


def test_swap_by_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_backup(monkeypatch)
    out = checkpoint(tmp_path / "out", "old")
    made = staged(out, Place.SWAP)
    made.commit()
    assert holds(out, "new")
    assert holds(made.path / "backup", "old")
    assert made.remove(failed=False)
    assert os.listdir(tmp_path) == ["out"]


def failing_second_rename(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, meanwhile: Any = None
) -> None:
    real, calls = os.rename, []

    def rename(one: Path, other: Path) -> None:
        calls.append(one)
        if len(calls) == 2:
            if meanwhile is not None:
                meanwhile()
            raise error
        real(one, other)

    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_failed_swap_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    by_backup(monkeypatch)
    out = checkpoint(tmp_path / "out", "old")
    made = staged(out, Place.SWAP)
    failing_second_rename(monkeypatch, error)
    with pytest.raises(type(error)):
        made.commit()
    assert holds(out, "old")
    made.remove(failed=True)
    assert holds(out, "old")
    assert os.listdir(tmp_path) == ["out"]


def test_a_backup_is_never_lost_to_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_backup(monkeypatch)
    out = checkpoint(tmp_path / "out", "old")
    made = staged(out, Place.SWAP)
    failing_second_rename(monkeypatch, OSError(errno.ENOTEMPTY, "full"), lambda: checkpoint(out, "stranger"))
    with pytest.raises(OSError):
        made.commit()
    assert not made.remove(failed=True)
    recover(out)
    assert holds(out, "stranger")
    assert holds(made.path / "backup", "old")


def answering(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    class Library:
        @staticmethod
        def renameat2(*_: object) -> int:
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_where_nothing_can_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    out = checkpoint(tmp_path / "out", "old")
    made = staged(out, Place.SWAP)
    answering(monkeypatch, code)
    made.commit()
    assert holds(out, "new")
    assert holds(made.path / "backup", "old")


def test_an_exchange_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = checkpoint(tmp_path / "out", "old")
    made = staged(out, Place.SWAP)
    answering(monkeypatch, errno.EACCES)
    with pytest.raises(PermissionError):
        made.commit()
    assert holds(out, "old")


def test_a_folder_of_an_image(mount: Callable[..., Path]) -> None:
    """An overlay shows folders of its lower layers but can't rename them."""
    layers = mount("-t", "tmpfs", "tmpfs", name="layers")
    for name in ("lower", "upper", "work"):
        (layers / name).mkdir()
    checkpoint(layers / "lower/out", "old")
    options = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
    out = mount("-t", "overlay", "overlay", "-o", options, name="merged") / "out"
    made = staged(out, Place.SWAP)
    with pytest.raises(WriteError, match="lower layer of an overlay"):
        made.commit()
    made.remove(failed=True)
    assert holds(out, "old")
    assert os.listdir(out.parent) == ["out"]


def test_systems_without_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert not stage._exchange(tmp_path, tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not stage._exchange(tmp_path, tmp_path)


def test_fill_through_a_symlink(tmp_path: Path) -> None:
    real = checkpoint(tmp_path / "disk/real", "old")
    (real / "model-00002.safetensors").write_text("stray")
    (real / "figures").mkdir()
    (real / "README.md").symlink_to(tmp_path)
    (tmp_path / "out").symlink_to(real)
    made = staged(tmp_path / "out", Place.FILL)
    assert made.path.parent == real
    made.commit()
    assert made.remove(failed=False)
    assert (tmp_path / "out").is_symlink()
    assert holds(real, "new")
    assert tmp_path.is_dir()
    assert sorted(os.listdir(real)) == ["config.json", "model.safetensors"]


def test_fill_replaces_a_folder_of_the_same_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "model.safetensors").mkdir(parents=True)
    made = staged(out, Place.FILL)
    made.commit()
    made.remove(failed=False)
    assert holds(out, "new")


def test_fill_puts_config_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = checkpoint(tmp_path / "out", "old")
    made = staged(out, Place.FILL)
    (made.payload / "tokenizer.json").write_text("{}")
    seen: list[tuple[str, bool]] = []
    real = os.replace

    def replace(one: Path, other: Path) -> None:
        seen.append((other.name, (out / "config.json").exists()))
        real(one, other)

    monkeypatch.setattr(os, "replace", replace)
    made.commit()
    assert seen == [("model.safetensors", False), ("tokenizer.json", False), ("config.json", False)]


def test_fill_keeps_lost_and_found(small_disk: Path) -> None:
    checkpoint(small_disk, "old")
    (small_disk / "lost+found").mkdir()
    made = staged(small_disk, Place.FILL)
    made.commit()
    made.remove(failed=False)
    assert sorted(os.listdir(small_disk)) == ["config.json", "lost+found", "model.safetensors"]


def test_failures_leave_no_folders(tmp_path: Path) -> None:
    made = staged(tmp_path / "a/b/out", Place.FRESH)
    made.remove(failed=True)
    assert os.listdir(tmp_path) == []


def test_parents_in_use_stay(tmp_path: Path) -> None:
    made = staged(tmp_path / "a/b/out", Place.FRESH)
    (tmp_path / "a/other").mkdir()
    made.remove(failed=True)
    assert os.listdir(tmp_path / "a") == ["other"]


def test_removing_before_anything_was_made(tmp_path: Path) -> None:
    assert Stage(tmp_path / "out", Place.FRESH).remove(failed=True)
    made = Stage(tmp_path / "out", Place.FRESH)
    made.path = tmp_path / f".out.ckpt-{HEX}"
    assert made.remove(failed=True)


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = staged(tmp_path / "out", Place.FRESH)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert not made.remove(failed=True)


def test_folders_without_write_permission_are_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the owner who isn't root meets them."""
    made = staged(tmp_path / "out", Place.FRESH)
    made.payload.chmod(0o500)
    opened: list[str] = []

    def chmod(folder: str, mode: int) -> None:
        opened.append(folder)
        assert mode == 0o700
        raise PermissionError

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "chmod", chmod)
    assert made.remove(failed=True)
    assert opened == [str(made.payload)]


# --- what killed writers leave


def abandoned(home: Path, name: str = "out", digits: str = HEX) -> Path:
    path = home / f".{name}.ckpt-{digits}"
    path.mkdir()
    (path / "lock").write_text("1\n")
    return path


def test_recover_removes_unlocked_stages(tmp_path: Path) -> None:
    left = abandoned(tmp_path)
    checkpoint(left / "out", "half")
    empty = tmp_path / f".out.ckpt-{HEX[::-1]}"
    empty.mkdir()
    recover(tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_recover_finds_stages_inside(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "out").symlink_to(real)
    checkpoint(abandoned(real, "real") / "out", "half")
    recover(tmp_path / "out")
    assert os.listdir(real) == []


def test_recover_spares_the_living_and_strangers(tmp_path: Path) -> None:
    alive = staged(tmp_path / "out", Place.FRESH)
    others = [
        abandoned(tmp_path, "out2"),
        abandoned(tmp_path, "out", "nothex"),
        abandoned(tmp_path, "out", HEX + HEX),
        abandoned(tmp_path, "out.ckpt-a"),
    ]
    foreign = tmp_path / f".out.ckpt-{HEX}"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("")
    (tmp_path / f".out.ckpt-{HEX[::-1]}").write_text("a file")
    recover(tmp_path / "out")
    assert holds(alive.payload, "new")
    assert all((other / "lock").exists() for other in others)
    assert (foreign / "thesis.tex").exists()
    assert (tmp_path / f".out.ckpt-{HEX[::-1]}").exists()


def test_recover_puts_the_backup_back(tmp_path: Path) -> None:
    left = abandoned(tmp_path)
    checkpoint(left / "out", "new")
    checkpoint(left / "backup", "old")
    recover(tmp_path / "out")
    assert holds(tmp_path / "out", "old")
    assert os.listdir(tmp_path) == ["out"]


def test_recover_does_not_undo_a_finished_swap(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out", "new")
    checkpoint(abandoned(tmp_path) / "backup", "old")
    recover(out)
    assert holds(out, "new")
    assert os.listdir(tmp_path) == ["out"]


def test_recover_without_a_parent(tmp_path: Path) -> None:
    recover(tmp_path / "nowhere/out")
    assert os.listdir(tmp_path) == []


def test_a_stage_taken_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may see the stage before its lock, before the lock is held, or hold the lock itself."""
    real_open, real_flock = os.open, fcntl.flock
    steps = iter(["folder removed", "file removed", "lock held", "nothing"])
    held: list[int] = []

    def opening(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name == "lock" and flags & os.O_CREAT and (step := next(steps)) != "nothing":
            if step == "folder removed":
                Path(path).parent.rmdir()
            fd = real_open(path, flags, mode)
            if step == "file removed":
                os.unlink(path)
            else:
                other = real_open(path, os.O_RDWR)
                real_flock(other, fcntl.LOCK_EX)
                held.append(other)
            return fd
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", opening)
    made = Stage(tmp_path / "out", Place.FRESH)
    made.create()
    assert next(steps, None) is None
    assert made.payload.is_dir()
    for fd in held:
        os.close(fd)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    made = staged(tmp_path / "out", Place.FRESH)
    recover(tmp_path / "out")
    assert holds(made.payload, "new"), "nobody can tell that it is abandoned"
    made.commit()
    made.remove(failed=False)
    assert holds(tmp_path / "out", "new")


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_folders_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(os, "fsync", refuse)
    stage.sync_folder(tmp_path)


def test_a_folder_that_fails_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken"):
        stage.sync_folder(tmp_path)
