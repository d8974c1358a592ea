"""File systems of their own for tests that need a small, another or a block-sharing one."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

from .support import save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source of three tensors, 2 MB, the last with an odd size."""
    rng = np.random.default_rng(0)
    return save(
        tmp_path / "in",
        {
            "fc.weight": rng.standard_normal((512, 1024)).astype(np.float32),
            "norm.weight": rng.standard_normal((300, 7)).astype(np.float16),
            "t2d": rng.integers(0, 2, 3001).astype(bool),
        },
    )


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount something on a new folder below tmp_path; unmounted at the end."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system needs root and mount(8)")
    mounted: list[Path] = []

    def make(*arguments: str, name: str = "disk") -> Path:
        point = tmp_path / name
        point.mkdir()
        done = subprocess.run(["mount", *arguments, str(point)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mount {' '.join(arguments)} isn't allowed here: {done.stderr.strip()}")
        mounted.append(point)
        return point

    yield make
    for point in reversed(mounted):
        subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
def small_disk(mount: Callable[..., Path]) -> Path:
    """A file system of 1 MiB."""
    return mount("-t", "tmpfs", "-o", "size=1m", "tmpfs")


@pytest.fixture(params=["btrfs", "xfs"])
def sharing_disk(request: pytest.FixtureRequest, mount: Callable[..., Path], tmp_path: Path) -> Path:
    """A file system whose files can share blocks."""
    make = shutil.which(f"mkfs.{request.param}")
    if make is None:
        pytest.skip(f"mkfs.{request.param} isn't installed")
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    subprocess.run([make, "-q", str(image)], check=True, capture_output=True)
    return mount("-o", "loop", str(image))
