"""The repository speaks of itself alone: no file names a place of the machine that it was made on."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

#: Put together here, so that this file doesn't hold them.
FORBIDDEN = tuple(
    "/".join(parts)
    for parts in (("", "work", ""), ("", "root", ""), ("shared", "oracles"), ("tmp", "helpers"))
)


def tracked() -> list[Path]:
    """Files under version control, or in a tree without git all files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        return [p for p in ROOT.rglob("*") if p.is_file()]
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def content(file: Path) -> str:
    data = file.read_bytes()
    if file.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode("utf-8", "replace")


def test_no_file_names_a_place_of_its_making() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {word}"
        for file in tracked()
        for text in [content(file)]
        for word in FORBIDDEN
        if word in text
    ]
    assert found == []


@pytest.mark.parametrize("word", FORBIDDEN)
def test_the_test_would_notice(word: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json.gz"
    file.write_bytes(gzip.compress(f"a {word} b".encode()))
    assert word in content(file)
