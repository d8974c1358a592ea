"""The engine's refusals, as they travel inside this package until :func:`load_map` catches them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Stage = Literal["config", "class", "load"]


class Refused(Exception):
    """What the engine raises.

    Args:
        error: The exception's class in the engine (``ValueError``, ``AssertionError``, …).
        message: Its own message, without the parts that vary from run to run.
        stage: Where: ``config`` while it reads config.json, ``class`` while it builds the modules, ``load``
            while it copies tensors.
    """

    def __init__(self, error: str, message: str, stage: Stage) -> None:
        super().__init__(f"{error}: {message}")
        self.stage: Stage = stage


def refuse_config(error: str, message: str) -> Refused:
    """A refusal while config.json is read."""
    return Refused(error, message, "config")


def refuse_class(error: str, message: str) -> Refused:
    """A refusal while the modules are built."""
    return Refused(error, message, "class")


@contextmanager
def on_values_of_the_file(stage: Stage) -> Iterator[None]:
    """Arithmetic on a config's raw values, as the engine does it: a value of the wrong type raises there as here.

    Raises:
        Refused: With Python's own error for the value.
    """
    try:
        yield
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
        raise Refused(type(error).__name__, str(error), stage) from error
