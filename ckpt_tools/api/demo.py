"""``ckpt demo``: a tiny real draft and target, and the main job on them."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING

from ckpt_tools.errors import Unavailable, UsageError, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.abc import Traversable

    from ckpt_tools.model import Report

PARTS = ("draft", "target")
# What the demonstration writes; a folder with anything else in it is somebody's.
OWN = (*PARTS, "states.safetensors", "draft-sglang")


@dataclass(frozen=True)
class Step:
    """One command of the demonstration.

    Attributes:
        line: As it would be typed.
        run: Does it; ``None`` for a step that is skipped.
        skipped: Why.
    """

    line: str
    run: Callable[[], Report] | None
    skipped: str | None = None


def write_pair(folder: str) -> Path:
    """Write the draft, the target and recorded states into ``folder``.

    Raises:
        UsageError: There is something else in it.
        WriteError: It can't be written.
    """
    out = Path(folder)
    if out.is_dir() and any(p.name not in OWN for p in out.iterdir()):
        raise UsageError(f"{folder}: holds other files", "give an empty folder or one that isn't there yet")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{folder}: is a file", "give an empty folder or one that isn't there yet")
    try:
        out.mkdir(parents=True, exist_ok=True)
        _copy(_package_data(), out)
    except OSError as error:
        raise WriteError(f"{folder}: can't be written ({error.strerror})", "give another folder") from error
    return out


def _package_data() -> Traversable:
    """The pair: in the wheel's own folder, in a checkout under ``fixtures``."""
    root = resources.files("ckpt_tools")
    packed = root.joinpath("_demo")
    return packed if packed.is_dir() else root.joinpath("..").joinpath("fixtures").joinpath("pair")


def _copy(source: Traversable, out: Path) -> None:
    with ExitStack() as stack:
        for part in PARTS:
            (out / part).mkdir(exist_ok=True)
            for file in source.joinpath(part).iterdir():
                copyfile(stack.enter_context(resources.as_file(file)), out / part / file.name)
        states = source.joinpath("states.safetensors")
        copyfile(stack.enter_context(resources.as_file(states)), out / states.name)


def steps(folder: str) -> Iterator[Step]:
    """The commands, in order, on what :func:`write_pair` wrote."""
    from ckpt_tools.api.converting import Request, fix_keys
    from ckpt_tools.api.inspecting import inspect
    from ckpt_tools.api.verifying import VerifyRequest, verify

    draft, target, out = f"{folder}/draft", f"{folder}/target", f"{folder}/draft-sglang"
    states = f"{folder}/states.safetensors"
    yield Step(_line("inspect", draft), lambda: inspect(draft))
    yield Step(
        _line("fix-keys", draft, out, "--target", target, "--force"),
        lambda: fix_keys(Request(draft, out, target=target, force=True)),
    )
    yield Step(
        _line("verify", out, "--target", target, "--deep"),
        lambda: verify(VerifyRequest(path=out, target=target, deep=True)),
    )
    line = _line("smoke", out, "--target", target, "--states", states)
    from ckpt_tools.api.smoking import SmokeRequest, choose_device, smoke

    try:
        device = choose_device("cpu")
    except Unavailable as error:
        yield Step(line, None, f"smoke skipped: {error.message}; add it with {error.hint}")
        return
    yield Step(line, lambda: smoke(SmokeRequest(out, target, device=device, states=states)))


def _line(*words: str) -> str:
    return shlex.join(("ckpt", *words))
