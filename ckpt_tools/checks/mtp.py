"""MTP: bundled next-token weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), dict):
            inner: Mapping[str, Any] = config[key]
            return inner
    return config


def promised(config: Mapping[str, Any]) -> tuple[int, str]:
    """(next-token layers that a target's config promises, the field)."""
    flat = _flat(config)
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        value = flat.get(key)
        if isinstance(value, int) and value > 0:
            return value, key
    return 0, ""


def bundled(ctx: Context) -> list[str]:
    """Names of next-token tensors in a target."""
    config = _flat(ctx.checkpoint.config or {})
    depth = config.get("num_hidden_layers")
    names = []
    for name in ctx.checkpoint.tensors:
        layer = _LAYER.search(name)
        if name.startswith("mtp.") or ".mtp." in name or "mtp_layers." in name or (layer is not None and isinstance(depth, int) and int(layer.group(1)) >= depth):
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
    depth = _flat(config).get("num_hidden_layers")
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


@check("MTP002", "next-token-quantisation-mismatch", Severity.ERROR, needs=("config",), after=("FIL",))
def quantisation(ctx: Context) -> Iterator[Hit]:
    """Plain next-token weights that the engine builds quantised, or names in ignore that never match.

    Checks: in a quantised target, next-token linears stored plain are in the ignore list under the names that the engine builds.
    Why: SGLang builds Qwen's mtp.* head under model.*, so ignore entries named mtp.* never match and packed modules wait for plain
        tensors: KeyError. Experts that the list forgets are built packed on every engine.
    Example: 12 mtp.* linears are stored plain and listed in ignore under mtp.*, but SGLang builds this head as model.*
    Fix: Quantise them too, or list them under the names that the engine builds.
    References: sglang 0.5.23 srt/models/qwen3_next_mtp.py (run with a GPU pretended: KeyError); vllm#41994, sglang#35797.
    """
    config = _flat(ctx.checkpoint.config or {})
    block = config.get("quantization_config") or (ctx.checkpoint.config or {}).get("quantization_config")
    if not isinstance(block, dict):
        return
    names = [n for n in bundled(ctx) if n.endswith(".weight") and len(ctx.checkpoint.tensors[n].shape) == 2]
    plain = [n for n in names if ctx.checkpoint.tensors[n].dtype in ("BF16", "F16", "F32") and _is_linear(n)]
    ignore = [str(i) for i in block.get("ignore") or block.get("modules_to_not_convert") or []]
    unlisted = [n for n in plain if not _listed(n.removesuffix(".weight"), ignore)]
    sglang = ctx.engine is not None and ctx.engine.name.startswith("sglang")
    if unlisted:
        yield Hit(
            f"{len(unlisted)} next-token linears (such as {unlisted[0]}) are stored plain and not listed in quantization_config.ignore: the "
            "engine builds them quantised and nothing fills them",
            tensor=unlisted[0],
            pointer="/quantization_config/ignore",
            hint="list them in ignore",
        )
    elif sglang and any(n.startswith("mtp.") for n in plain):
        first = next(n for n in plain if n.startswith("mtp."))
        yield Hit(
            f"{len(plain)} mtp.* linears are stored plain and listed in ignore under mtp.*, but SGLang builds this head under model.*: the "
            "entries never match, the head is built quantised, and loading raises KeyError",
            tensor=first,
            pointer="/quantization_config/ignore",
            hint="list them under model.* as well, or quantise them",
        )


def _is_linear(name: str) -> bool:
    return not any(
        part in name
        for part in ("norm", "embed_tokens", "lm_head", "mlp.gate.weight", "shared_expert_gate", "conv1d")
    )


def _listed(module: str, ignore: list[str]) -> bool:
    for entry in ignore:
        if entry.startswith("re:"):
            if re.match(entry[3:], module):
                return True
        elif module == entry or module.startswith(entry.rstrip("*").rstrip(".") + ".") or entry in module:
            return True
    return False
