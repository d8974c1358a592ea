"""Where a head runs, and in what."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpt_tools.errors import Unavailable, UsageError
from ckpt_tools.forward._torch import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

# Parameters below which a matrix product on a CPU is done before a second thread has woken up.
SMALL = 4 << 20


def choose(wanted: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` as a device that is there.

    Raises:
        Unavailable: A GPU was asked for and there is none of that number.
        UsageError: Another word.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return "cuda:0" if count else "cpu"
    if wanted == "cpu":
        return "cpu"
    match = re.fullmatch(r"cuda(?::(\d+))?", wanted)
    if match is None:
        raise UsageError(f"--device {wanted}: no such device", "auto, cpu, cuda or cuda:N")
    index = int(match[1] or 0)
    if index >= count:
        raise Unavailable(
            f"--device {wanted}: {f'only {count} GPUs are here' if count else 'no GPU is here'}",
            "`--device cpu` runs the same checks",
        )
    return f"cuda:{index}"


def dtype(name: str) -> torch.dtype:
    """A dtype by torch's name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


@contextmanager
def threads_for(parameters: int) -> Iterator[None]:
    """One thread for a head of so few parameters that sharing its work out costs more than the work, above all on a busy machine."""
    before = torch.get_num_threads()
    if parameters >= SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
