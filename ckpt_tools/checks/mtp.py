"""MTP: bundled next-token weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def flat_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's config inside a wrapper's, or the config itself."""
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), dict):
            inner: Mapping[str, Any] = config[key]
            return inner
    return config


def promised(config: Mapping[str, Any]) -> tuple[int, str]:
    """(next-token layers that a target's config promises, the field)."""
    flat = flat_config(config)
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        value = flat.get(key)
        if isinstance(value, int) and value > 0:
            return value, key
    return 0, ""


def bundled(ctx: Context) -> list[str]:
    """Names of next-token tensors in a target."""
    config = flat_config(ctx.checkpoint.config or {})
    depth = config.get("num_hidden_layers")
    names = []
    for name in ctx.checkpoint.tensors:
        layer = _LAYER.search(name)
        if (
            name.startswith("mtp.")
            or ".mtp." in name
            or "mtp_layers." in name
            or (layer is not None and isinstance(depth, int) and int(layer.group(1)) >= depth)
        ):
            names.append(name)
    return names


@check("MTP001", "next-token-layer-missing", Severity.ERROR, needs=("config",), after=("FIL",))
def missing(ctx: Context) -> Iterator[Hit]:
    """The config promises next-token layers that the files don't hold.

    Checks: (a target given as the draft) with num_nextn_predict_layers there are tensors of those layers (model.layers.N.* or mtp.*).
    Why: the head is built and stays uninitialised; acceptance is zero. Quantising tools often drop these tensors.
    Example: num_nextn_predict_layers is 1 and there is no model.layers.8.* and no mtp.*
    Fix: Take the tensors from the original checkpoint, or set the field to 0.
    References: sglang 0.5.23 srt/models/glm4_moe_nextn.py (run: 14 parameters without data); modelscope/ms-swift#7848.
    """
    config = ctx.checkpoint.config or {}
    if ctx.draft is not None and ctx.draft.algorithm != "mtp":
        return
    count, field = promised(config)
    depth = flat_config(config).get("num_hidden_layers")
    if not count or not ctx.checkpoint.tensors or not isinstance(depth, int) or depth < 2:
        return
    if bundled(ctx):
        return
    yield Hit(
        f"{field} is {count} and the files hold no next-token layer (model.layers.{depth}.* or mtp.*): the head would stay uninitialised",
        pointer=f"/{field}" if field in config else None,
        file="config.json",
        hint="take the tensors from the original checkpoint, or set the field to 0",
    )
