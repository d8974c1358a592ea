"""Target models: a registry whose every value has a source, and facts read from a target's own files."""

from __future__ import annotations

from ckpt_tools.targets.add import add_target
from ckpt_tools.targets.config import from_config, unwrap
from ckpt_tools.targets.context import context_length, derived_context_length
from ckpt_tools.targets.local import read_target
from ckpt_tools.targets.registry import all_targets, find, suggest, target_json

__all__ = [
    "add_target",
    "all_targets",
    "context_length",
    "derived_context_length",
    "find",
    "from_config",
    "read_target",
    "suggest",
    "target_json",
    "unwrap",
]
