"""One thing about a launch command, and what a launch is checked against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckpt_tools.model import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.model import Draft, Engine, Severity, Target
    from ckpt_tools.serving.args.launch import Launch


@dataclass(frozen=True)
class Problem:
    """One thing about a launch command.

    Attributes:
        id: Short and stable.
        flag: The flag, field or variable that it is about.
        line: 1-based line in the launch text.
        reference: Where the engine does it.
    """

    id: str
    severity: Severity
    message: str
    hint: str | None = None
    flag: str | None = None
    line: int | None = None
    reference: str | None = None


@dataclass(frozen=True)
class Pair:
    """What a launch is checked against. What isn't known is ``None``.

    Attributes:
        config: The draft's ``config.json``.
        exists: Whether a local path is there; ``None`` when that can't be told from here.
    """

    launch: Launch
    engine: Engine
    draft: Draft | None = None
    target: Target | None = None
    config: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    exists: Callable[[str], bool | None] | None = None

    @property
    def algorithm(self) -> str | None:
        """The draft's algorithm."""
        return self.draft.algorithm if self.draft else None

    @property
    def known(self) -> bool:
        """Whether anything of the draft is known."""
        return self.draft is not None or bool(self.config)

    @property
    def dtype(self) -> str | None:
        """The draft's dtype: as read, else as its config states it."""
        stated = self.config.get("dtype") or self.config.get("torch_dtype")
        return (self.draft.facts.dtype if self.draft else None) or (
            stated if isinstance(stated, str) else None
        )
