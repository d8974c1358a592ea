"""Which layers a quantisation config leaves alone: each method compares names in a way of its own.

The names are the engine's paths of modules, not those of a checkpoint's tensors: an EAGLE-3 head's are ``model.qkv_proj``,
``model.self_attn.o_proj``, ``model.gate_up_proj`` and ``model.down_proj`` (models/llama_eagle3.py:67-80, 200), so that an ignore list
copied from a target's config seldom matches. References are to SGLang 0.5.23, below ``sglang/srt/layers/quantization/``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckpt_tools.engines.sglang.features import Features

# utils.py:61-64; what a fused layer is called in the files
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# modelopt_quant.py:399
_MLA_PARTS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")


def by_path(path: str, ignored: Sequence[str], features: Features) -> bool:
    """``is_layer_skipped`` (utils.py:67-121): whole dotted names, and a fused layer by all of its parts; once, any piece of a name.

    Raises:
        Refused: Some parts of a fused layer are left alone, others aren't.
    """
    last = path.rpartition(".")[2]
    if not features.skips_whole_names:  # 0.5.9 utils.py:46-96
        gate, up = (path.replace("gate_up_proj", part) for part in FUSED["gate_up_proj"])
        both = "gate_up_proj" in path and gate in ignored and up in ignored
        return both or any(name in path for name in ignored)
    if last not in FUSED:
        return any(_within(name, path) for name in ignored)
    found = {any(_within(name, path.replace(last, part)) for name in ignored) for part in FUSED[last]}
    if len(found) > 1:
        raise Refused(
            "ValueError",
            f"Detected some but not all shards of {path} are quantized. All shards of fused layers to have the same precision.",
            "class",
        )
    return found.pop()


def _within(name: str, path: str) -> bool:
    return f".{name.rstrip('.')}." in f".{path.rstrip('.')}."


def by_pattern(path: str, excluded: Sequence[str]) -> bool:
    """``is_layer_excluded`` (modelopt_quant.py:379-424): ``*`` for anything, over the whole path or any part of it."""
    last = path.rpartition(".")[2]
    for pattern in excluded:
        compiled = re.compile(pattern.replace(".", r"\.").replace("*", ".*"))
        if any(compiled.fullmatch(name) for name in (path, *path.split("."))):
            return True
        tail = pattern.rpartition(".")[2]
        if tail in _MLA_PARTS and tail in last:
            return True
    return False


def by_suffix(path: str, ignored: Iterable[str], features: Features) -> bool:
    """``should_ignore_layer`` (compressed_tensors/utils.py:23-104): ``re:`` patterns and the ends of a path; once, any piece of it."""
    for name in ignored:
        if name.startswith("re:"):
            if re.match(name[3:], path):
                return True
        elif (
            path == name or path.endswith(f".{name}")
            if features.ignores_suffixes
            else name.lower() in path.lower()
        ):
            return True
    return False


def by_piece(path: str, ignored: Iterable[str]) -> bool:
    """``is_layer_skipped_awq`` (awq/awq.py:61)."""
    return any(name in path for name in ignored)


def none(path: str) -> bool:  # noqa: ARG001
    """No layer is left alone."""
    return False
