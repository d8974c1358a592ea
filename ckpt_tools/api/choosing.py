"""Which engine is meant: a contract's version, or the one that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines import resolve
from ckpt_tools.errors import Unavailable

if TYPE_CHECKING:
    from ckpt_tools.model import Engine

INSTALLED = "installed"


def choose_engine(text: str, why: str, engine_python: str | None = None) -> Engine:
    """The engine that ``sglang``, ``vllm==0.33.0`` or ``sglang==installed`` names.

    Args:
        text: Name, and after ``==`` a version or ``installed``.
        why: What chose it.
        engine_python: The interpreter that has it, for ``installed``.

    Raises:
        UsageError: No such engine or version.
        Unavailable: It isn't installed in that interpreter.
    """
    name, _, version = (part.strip() for part in text.partition("=="))
    if version != INSTALLED:
        return resolve(text, why)
    from ckpt_tools.serving.installed import find_engine

    known = resolve(name, why)
    found = find_engine(known.name, engine_python)
    if found is None:
        raise Unavailable(
            f"{known.name} is not installed in {engine_python or 'this interpreter'}",
            "--engine-python names another interpreter",
        )
    return resolve(f"{known.name}=={found.version}", why)
