"""The engine's refusal, while its loader is followed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Stage = Literal["config", "class", "load"]


class Refused(Exception):
    """SGLang raises here.

    Args:
        error: Name of the exception that SGLang (or a library below it) raises.
        message: Its text.
        stage: ``config`` while the config is read, ``class`` while the model is built, ``load`` while tensors are loaded.
    """

    def __init__(self, error: str, message: str, stage: Stage) -> None:
        super().__init__(f"{error}: {message}")
        self.stage = stage


@contextmanager
def values_as_in_the_engine(stage: Stage) -> Iterator[None]:
    """A config value that no expression here can take (a list for a width) is one that the engine's own can't."""
    try:
        yield
    except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
        raise Refused(type(error).__name__, str(error), stage) from error
