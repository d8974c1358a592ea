"""How many positions a target is served with when no flag says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckpt_tools.targets.config import unwrap

if TYPE_CHECKING:
    from ckpt_tools.model import Target

# In this order; the first that is stated wins (SGLang 0.5.23 utils/hf_transformers/common.py:660-666).
CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
# SGLang's own fallback when no key is stated (common.py:694).
FALLBACK = 2048
# transformers 5 always completes these kinds with `original_max_position_embeddings`, so they never multiply.
COMPLETED = ("yarn", "longrope", "llama3")


def derived_context_length(config: Mapping[str, Any], *, transformers: int = 5) -> int:
    """The context length that SGLang derives from a target's or a draft's config.json, in tokens.

    The first of :data:`CONTEXT_KEYS`, times the rope factor unless the rope dict states
    ``original_max_position_embeddings`` or is of kind llama3: in effect only linear and dynamic scaling
    multiply. (SGLang 0.5.23 utils/hf_transformers/common.py:668-694.)

    Args:
        config: As parsed; a wrapper is unwrapped.
        transformers: Major version beside the engine. SGLang up to 0.5.9 runs on 4, where only
            ``rope_scaling`` is read and yarn without its original length multiplies too.
    """
    inner = unwrap(config).inner
    factor = _factor(_rope_dict(inner, transformers), transformers)
    for key in CONTEXT_KEYS:
        value = inner.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(factor * value)
    return FALLBACK


def context_length(target: Target) -> int | None:
    """The context length that SGLang serves *target* with by default; ``None`` when its facts don't say.

    A config that states no length isn't read as :data:`FALLBACK`: transformers fills in its class's own default first.
    """
    if target.config is not None:
        inner = unwrap(target.config).inner
        stated = any(isinstance(inner.get(key), int | float) for key in CONTEXT_KEYS)
        return derived_context_length(target.config) if stated else None
    if target.max_position_embeddings is None:
        return None
    scaling = target.rope.scaling if target.rope else None
    return int(_factor(scaling, 5) * target.max_position_embeddings)


def _rope_dict(config: Mapping[str, Any], transformers: int) -> Mapping[str, Any] | None:
    keys = ("rope_parameters", "rope_scaling") if transformers >= 5 else ("rope_scaling",)
    for key in keys:
        value = config.get(key)
        if isinstance(value, Mapping) and value:
            return value
    return None


def _factor(scaling: Mapping[str, Any] | None, transformers: int) -> float:
    if not scaling or "original_max_position_embeddings" in scaling:
        return 1
    kind = scaling.get("rope_type")
    if transformers >= 5:
        kind = kind or scaling.get("type")
    if kind == "llama3" or (transformers >= 5 and kind in COMPLETED):
        return 1
    factor = scaling.get("factor", 1)
    return factor if isinstance(factor, int | float) and not isinstance(factor, bool) else 1
