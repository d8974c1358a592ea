"""Failures of the tool, as opposed to defects of a checkpoint (those are findings).

Every exception that may reach a user derives from :class:`CkptError` and carries what to do next. The
command line turns it into a message, a hint and the documented exit status.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit statuses; fixed by the interface."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    INPUT = 3
    UNAVAILABLE = 4
    BUG = 70
    INTERRUPTED = 130


class CkptError(Exception):
    """A failure that the user can act on.

    Args:
        message: What failed: the file, the key, what was found, what was expected.
        hint: What to type or change next; ``None`` when there is nothing to add.
    """

    exit_code: ExitCode = ExitCode.INPUT
    kind: str = "input"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(CkptError):
    """The path isn't there, isn't a checkpoint at all, or can't be opened (exit 3)."""


class UsageError(CkptError):
    """The arguments contradict each other or name something unknown (exit 2)."""

    exit_code = ExitCode.USAGE
    kind = "usage"


class Unavailable(CkptError):
    """A remote or a backend (the Hub, torch, a GPU, an engine) can't be had (exit 4)."""

    exit_code = ExitCode.UNAVAILABLE
    kind = "unavailable"


class WriteError(CkptError):
    """The output could not be written; what was there before is untouched (exit 3)."""

    kind = "write"
