"""Launch commands: read them in any form, check them against the engine's own parser, write them."""

from __future__ import annotations

from ckpt_tools.serving.args.command import LaunchPlan, Place, Wish, launch_command
from ckpt_tools.serving.args.forms import RENDERERS
from ckpt_tools.serving.args.launch import Flag, Launch, parse_launch, parse_launches
from ckpt_tools.serving.args.problem import Problem
from ckpt_tools.serving.args.problems import launch_problems
from ckpt_tools.serving.args.tables import ArgTable, Option, table

__all__ = [
    "RENDERERS",
    "ArgTable",
    "Flag",
    "Launch",
    "LaunchPlan",
    "Option",
    "Place",
    "Problem",
    "Wish",
    "launch_command",
    "launch_problems",
    "parse_launch",
    "parse_launches",
    "table",
]
