"""Failures on their way out: a message, a hint and the documented exit status."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

import ckpt_tools
from ckpt_tools.errors import CkptError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

EPILOG = (
    "Exit status: 0 clean, 1 findings at or above --fail-on, 2 usage, 3 input can't be read, "
    "4 a remote or a backend is unavailable, 70 a bug in ckpt, 130 interrupted."
)
ISSUES = "https://github.com/ckpt-tools/ckpt-tools/issues"


def say(message: str, hint: str | None = None) -> None:
    """An error on stderr."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def guarded(run: Callable[[], Any]) -> None:
    """Run a command and exit with its status; nothing leaves as a traceback unless --debug asks for it."""
    debug = "--debug" in sys.argv
    try:
        status = run()
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except CkptError as error:
        if debug:
            traceback.print_exc()
        say(error.message, error.hint)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader went away (`ckpt … | head`): not our failure, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.CLEAN)
    except Exception as error:  # noqa: BLE001  # the last net: a bug becomes a report, not a traceback
        if debug:
            traceback.print_exc()
        _bug(error)
        sys.exit(ExitCode.BUG)
    sys.exit(status if isinstance(status, int) else ExitCode.CLEAN)


def _bug(error: Exception) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f for f in reversed(frames) if "ckpt_tools" in f.filename), frames[-1] if frames else None)
    spot = f"{os.path.basename(where.filename)}:{where.lineno} in {where.name}" if where else "?"
    click.echo(
        "\n".join(
            (
                "error: this is a bug in ckpt. Please report it with the lines below:",
                f"  {ISSUES}",
                "",
                f"  ckpt {ckpt_tools.__version__}, Python {platform.python_version()}, {platform.system()}",
                f"  ckpt {' '.join(sys.argv[1:])}",
                f"  {type(error).__name__}: {error}",
                f"  at {spot}",
                "",
                "  (--debug shows the traceback)",
            )
        ),
        err=True,
    )
