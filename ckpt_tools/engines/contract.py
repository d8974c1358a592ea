"""What an engine's package offers: its name, the releases that are known, its loader's load map."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckpt_tools.model import Checkpoint, Engine, LoadMap, Target


@dataclass(frozen=True)
class EngineContract:
    """An engine. Declaring it loads nothing: its package's ``loadmap`` module is imported when it is asked.

    Attributes:
        name: As in ``--engine``, and its package's name (with "_" for "-").
        contracts: Versions whose behaviour is known, oldest first.
    """

    name: str
    contracts: tuple[str, ...]

    @property
    def default(self) -> str:
        """The version meant when none is given."""
        return self.contracts[-1]

    def load_map(
        self,
        engine: Engine,
        checkpoint: Checkpoint,
        target: Target | None = None,
        *,
        algorithm: str | None = None,
        **options: Any,
    ) -> LoadMap:
        """What the engine's loader does with *checkpoint*; *options* are the engine's own."""
        package = f"ckpt_tools.engines.{self.name.replace('-', '_')}"
        found: LoadMap = importlib.import_module(f"{package}.loadmap").load_map(
            engine, checkpoint, target, algorithm=algorithm, **options
        )
        return found
