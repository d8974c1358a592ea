"""``ckpt verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli.options import (
    FAIL_ON,
    Output,
    codes,
    convention_option,
    exit_status,
    output_options,
    target_option,
)

if TYPE_CHECKING:
    from ckpt_tools.api.policy import Policy
    from ckpt_tools.model import Report


@click.command("verify")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@target_option()
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="ENGINE",
    help="sglang, sglang-ext, vllm or trtllm, with ==VERSION.",
)
@click.option("--tp", type=click.IntRange(1), help="Tensor-parallel size.")
@click.option("--context-length", type=click.IntRange(1), help="Length that is served.")
@click.option("--launch", metavar="X", help="Launch command, a file with one, or - for stdin.")
@click.option("--log", metavar="X", help="Start-up log: a file, or - for stdin.")
@click.option("--deep", is_flag=True, help="Read every value, too.")
@click.option(
    "--against",
    metavar="SOURCE",
    help="The draft that this one was converted from: nothing lost, same function.",
)
@click.option("--probe", is_flag=True, help="Ask the installed engine's own loader.")
@click.option("--engine-python", metavar="PATH", help="The interpreter that has the engine.")
@click.option("--select", multiple=True, callback=codes, metavar="CODE", help="Only these codes or families.")
@click.option("--ignore", multiple=True, callback=codes, metavar="CODE", help="Not these codes or families.")
@click.option("--fail-on", type=click.Choice(tuple(FAIL_ON)), help="Severity that fails.  [default: error]")
@convention_option
@output_options
def command(paths: tuple[str, ...], output: Output, **options: Any) -> int:
    """Check what an engine will do with a draft and a target, from the files alone. PATH defaults to the current folder.

    Settings come from flags, then from the launch command, then from ckpt.toml or [tool.ckpt] in pyproject.toml.
    """
    from ckpt_tools.api.policy import find_policy
    from ckpt_tools.api.reports import failed
    from ckpt_tools.cli.failures import say
    from ckpt_tools.errors import CkptError, ExitCode

    policy = find_policy()
    given = paths or (".",)
    drafts = [d for path in given for d in _drafts(path, many=len(given) > 1)]
    reports: list[Report] = []
    for path in drafts:
        try:
            reports.append(_verify(path, policy, output, dict(options)))
        except CkptError as error:
            if error.exit_code == ExitCode.USAGE:
                raise
            if output.debug and len(drafts) == 1:
                raise
            say(error.message, error.hint)
            reports.append(failed("verify", path, error))
    shown = [r for r in reports if r.error is None or output.format != "table"]
    if shown:
        output.emit(shown, many=len(drafts) > 1)
    return exit_status(reports)


def _drafts(path: str, *, many: bool) -> list[str]:
    """The path itself, or every draft in a folder that only holds drafts."""
    folder = Path(path)
    if not folder.is_dir() or (folder / "config.json").exists() or any(folder.glob("*.safetensors")):
        return [path]
    from ckpt_tools.container.training import training_output

    inner = sorted(p.parent for p in folder.glob("*/config.json"))
    if not inner or training_output(folder) is not None or (path == "." and not many):
        return [path]
    return [str(p) for p in inner]


def _verify(path: str, policy: Policy, output: Output, options: dict[str, Any]) -> Report:
    from ckpt_tools.api.verifying import VerifyRequest, verify

    fail_on = options.pop("fail_on") or policy.fail_on or "error"
    engines = options.pop("engines")
    why = "--engine"
    launch = options.pop("launch")
    if not engines and launch is None and policy.engines:
        engines, why = policy.engines, "policy"
    request = VerifyRequest(
        path=path,
        target=options.pop("target") or policy.target,
        engines=engines,
        why=why,
        standing_tp=policy.tp,
        standing_length=policy.context_length,
        launch=launch if launch is not None else policy.launch,
        fail_on=FAIL_ON[fail_on],
        ignore=(*options.pop("ignore"), *policy.ignore),
        ignored_because=policy.ignore,
        offline=output.offline,
        stats=output.format == "html",  # the one format that draws them
        **options,
    )
    return verify(request)
