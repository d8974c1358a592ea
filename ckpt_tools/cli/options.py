"""Options that several commands share, and what they come to."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ckpt_tools.errors import CkptError, ExitCode, WriteError
from ckpt_tools.model import Severity
from ckpt_tools.render import Style, render, renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckpt_tools.model import Report

F = TypeVar("F", bound="Callable[..., Any]")


@dataclass(frozen=True)
class Output:
    """How a report leaves.

    Attributes:
        format: Name of a renderer.
        file: Where to, ``None`` for stdout.
        verbosity: -1, 0, 1.
        color: ``None`` decides by the terminal.
        debug: Tracebacks are wanted.
        offline: The Hub isn't asked.
    """

    format: str
    file: str | None
    verbosity: int
    color: bool | None
    debug: bool
    offline: bool

    def emit(self, reports: Sequence[Report], *, many: bool = False) -> None:
        """Render and write.

        Raises:
            WriteError: The file can't be written.
        """
        text = render(self.format, reports, self._style(many)) + "\n"
        if self.file is None:
            click.echo(text, nl=False, color=True)
            return
        try:
            Path(self.file).write_text(text, "utf-8")
        except OSError as error:
            raise WriteError(
                f"{self.file}: can't be written ({error.strerror})", "choose another --output"
            ) from error

    def _style(self, many: bool) -> Style:
        import shutil  # it brings three compressors along

        terminal = self.file is None and sys.stdout.isatty()
        color = terminal and not os.environ.get("NO_COLOR") if self.color is None else self.color
        width = shutil.get_terminal_size((100, 24)).columns
        return Style(self.verbosity, bool(color) and self.format == "table", width, many)


def output_options(function: F) -> F:
    """``--format``, ``--output``, ``-q``, ``-v``, ``--debug``, ``--no-color``, ``--offline``; passed as ``output``."""

    def wrapped(**kwargs: Any) -> Any:
        quiet, verbose = kwargs.pop("quiet"), kwargs.pop("verbose")
        kwargs["output"] = Output(
            format=kwargs.pop("format"),
            file=kwargs.pop("output"),
            verbosity=-1 if quiet else 1 if verbose else 0,
            color=False if kwargs.pop("no_color") else None,
            debug=kwargs.pop("debug"),
            offline=kwargs.pop("offline"),
        )
        return function(**kwargs)

    wrapped.__doc__ = function.__doc__
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = wrapped
    for option in reversed(
        (
            click.option(
                "--format",
                type=click.Choice(renderers()),
                default="table",
                show_default=True,
                help="Output format.",
            ),
            click.option("--output", metavar="FILE", help="Write the result to FILE instead of stdout."),
            click.option("-q", "--quiet", is_flag=True, help="Findings and verdict only, no infos."),
            click.option(
                "-v", "--verbose", is_flag=True, help="Every finding with place and help; skipped checks."
            ),
            click.option("--debug", is_flag=True, help="Show tracebacks."),
            click.option("--no-color", is_flag=True, help="No colours (NO_COLOR does the same)."),
            click.option("--offline", is_flag=True, help="Never ask the Hub."),
        )
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def target_option(required: bool = False) -> Callable[[F], F]:
    """``--target``."""
    return click.option(
        "--target",
        metavar="TARGET",
        required=required,
        help="Target model: a registry id (ckpt targets list), a folder, a config.json or a Hub id.",
    )


def convention_option(function: F) -> F:
    """``--layer-convention``."""
    return click.option(
        "--layer-convention",
        "convention",
        type=click.Choice(("layer_output", "layer_input")),
        help="How captured-layer ids count where the files can't decide: outputs of layers (SpecForge, Model-Optimizer) "
        "or states entering them (speculators, vLLM).",
    )(function)


def codes(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Comma-separated, repeatable codes or family prefixes; one that no code begins with would silently do nothing."""
    given = tuple(c.strip().upper() for v in value for c in v.split(",") if c.strip())
    if given:
        from ckpt_tools.api.explaining import unknown_code

        for code in given:
            if (said := unknown_code(code)) is not None:
                raise click.BadParameter(f"{said} `ckpt explain` lists them")
    return given


def size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """A size such as ``5GB``, ``500MB``, ``1GiB`` or plain bytes."""
    if value is None:
        return None
    units = {
        "": 1,
        "b": 1,
        "kb": 10**3,
        "mb": 10**6,
        "gb": 10**9,
        "tb": 10**12,
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
    }
    text = value.strip().lower()
    number = text.rstrip("kmgtib")
    unit = text[len(number) :]
    try:
        result = int(float(number) * units[unit])
    except (ValueError, KeyError):
        raise click.BadParameter(f"{value!r} is no size; write 5GB, 500MB or 1GiB") from None
    if result <= 0:
        raise click.BadParameter("a size above zero")
    return result


def exit_status(reports: Sequence[Report]) -> int:
    """The worst of the reports."""
    verdicts = {r.verdict for r in reports}
    if "error" in verdicts:
        kinds = {r.error.kind for r in reports if r.error is not None}
        return ExitCode.UNAVAILABLE if kinds == {"unavailable"} else ExitCode.INPUT
    return ExitCode.FINDINGS if "fail" in verdicts else ExitCode.CLEAN


def run(output: Output, command: str, path: str, work: Callable[[], Report]) -> int:
    """Do the work and emit its report; a failure of the tool is a report too, and a message on stderr."""
    from ckpt_tools.api.reports import failed
    from ckpt_tools.cli.failures import say

    try:
        report = work()
    except CkptError as error:
        if error.exit_code == ExitCode.USAGE:
            raise
        if output.format != "table":
            output.emit([failed(command, path, error)])
        say(error.message, error.hint)
        if output.debug:
            raise
        return int(error.exit_code)
    output.emit([report])
    return exit_status([report])


FAIL_ON = {"error": Severity.ERROR, "warning": Severity.WARNING, "never": None}
