"""The pairs of fixtures/args as the facts that a launch command is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ckpt_tools.model import Draft, DraftFacts, Engine, Target
from ckpt_tools.serving.args import LaunchPlan, Place, Wish, launch_command

FOLDER = Path(__file__).parents[3] / "fixtures" / "args"
PAIRS: list[dict[str, Any]] = json.loads((FOLDER / "pairs.json").read_text(encoding="utf-8"))


def engine(text: str) -> Engine:
    name, _, version = text.partition("==")
    return Engine(name, version, version)


def draft(algorithm: str = "eagle3", **facts: Any) -> Draft:
    return Draft("any", algorithm, (), DraftFacts(**facts), {})


def target(**fields: Any) -> Target:
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Target("target", "local", **fields)


def plan(pair: dict[str, Any]) -> LaunchPlan:
    wish = dict(pair["wish"])
    if "extra" in wish:
        wish["extra"] = tuple(wish["extra"])
    return launch_command(
        draft(**pair["draft"]),
        target(**pair["target"]),
        engine(pair["engine"]),
        draft_at=Place("/models/target" if pair.get("bundled") else "/models/draft"),
        target_at=Place("/models/target"),
        wish=Wish(**wish),
    )
