from __future__ import annotations

import os

import pytest

from ckpt_tools.container import LocalSource
from ckpt_tools.container.source import leaves_folder
from ckpt_tools.errors import InputError
from tests.unit.container.folders import draft


def test_lists_regular_files_of_the_top_level_by_name(tmp_path):
    draft(tmp_path, {"b.bin": b"12", "a.txt": b""})
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x").write_bytes(b"1")
    os.mkfifo(tmp_path / "pipe")
    source = LocalSource(tmp_path)
    assert list(source.list()) == ["a.txt", "b.bin", "config.json"]
    assert source.list()["b.bin"] == 2
    assert source.root == str(tmp_path)


def test_a_file_stands_for_its_folder(tmp_path):
    draft(tmp_path)
    source = LocalSource(tmp_path / "model.safetensors")
    assert source.root == str(tmp_path)
    assert "config.json" in source.list()


def test_links_are_followed_and_broken_ones_listed_as_empty(tmp_path):
    blob = tmp_path / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_bytes(b"12345")
    folder = draft(tmp_path / "snapshot")
    (folder / "good.bin").symlink_to(blob)
    (folder / "bad.bin").symlink_to(tmp_path / "nowhere")
    source = LocalSource(folder)
    assert source.list()["good.bin"] == 5
    assert source.list()["bad.bin"] == 0
    assert source.read("good.bin", 1, 3) == b"23"


def test_reads_ranges_and_stops_at_the_end(tmp_path):
    (tmp_path / "x").write_bytes(b"0123456789")
    source = LocalSource(tmp_path)
    assert source.read("x", 2, 5) == b"234"
    assert source.read("x", 8, 50) == b"89"
    assert source.read("x", 50, 60) == b""


def test_short_reads_are_continued(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"0123456789")

    class Slow:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def read(self, size):
            return self.file.read(min(size, 3))

    monkeypatch.setattr(
        "builtins.open", lambda path, *_, **__: Slow(os.fdopen(os.open(path, os.O_RDONLY), "rb"))
    )
    assert LocalSource(tmp_path).read("x", 0, 9) == b"012345678"
    assert LocalSource(tmp_path).read("x", 0, 90) == b"0123456789"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "", "a\0b", "\\\\host\\share", "..\\x", "C:\\x", "C:x", ".."]
)
def test_names_that_leave_the_folder(name, tmp_path):
    assert leaves_folder(name)
    with pytest.raises(InputError, match="leads out"):
        LocalSource(tmp_path).local(name)
    with pytest.raises(InputError, match="leads out"):
        LocalSource(tmp_path).read(name, 0, 1)


@pytest.mark.parametrize("name", ["model.safetensors", "a/b.bin", "..x", "x..y", "a..", "é"])
def test_names_that_stay(name):
    assert not leaves_folder(name)


def test_failures_name_the_path_and_what_to_do(tmp_path):
    with pytest.raises(InputError, match="can't be read") as caught:
        LocalSource(tmp_path).read("absent", 0, 1)
    assert "absent" in caught.value.message
    assert caught.value.hint
    with pytest.raises(InputError, match="can't be listed"):
        LocalSource(tmp_path / "absent").list()


def test_files_that_vanish_while_listing_are_left_out(tmp_path, monkeypatch):
    draft(tmp_path)

    class Entry:
        name = "gone"

        def stat(self):
            raise FileNotFoundError

        def is_symlink(self):
            return False

    class Entries(list):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(os, "scandir", lambda _: Entries([Entry()]))
    assert LocalSource(tmp_path).list() == {}
