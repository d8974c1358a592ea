"""The engine's refusal, while its loader is followed."""

from __future__ import annotations

from typing import Literal

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
