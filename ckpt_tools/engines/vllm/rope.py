"""Rotary settings, from a draft's config to the rotary module.

transformers moves ``rope_scaling``, ``rope_theta`` and ``partial_rotary_factor`` into ``rope_parameters`` (5.19
``modeling_rope_utils.py:743-891``); vLLM then renames legacy types (``transformers_utils/config.py:563-641``) and builds
the module (``model_executor/layers/rotary_embedding/__init__.py:34-350``). Values are taken as they are in the file:
one of the wrong type raises Python's own error there, and here.
"""

from __future__ import annotations

from math import ceil, floor, log, pi
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.refusal import refuse_class, refuse_config

if TYPE_CHECKING:
    from collections.abc import Mapping

Attributes = dict[str, Any]

# transformers 5.19 configuration_utils.py:65-80
LAYER_TYPES = frozenset(
    {
        "full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention",
        "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
        "hybrid_sliding", "linear_attention",
    }
)  # fmt: skip
# transformers 5.19 modeling_rope_utils.py:896-1080; a missing one raises KeyError
REQUIRED: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor", "original_max_position_embeddings"}),
    "longrope": frozenset({"short_factor", "long_factor", "original_max_position_embeddings"}),
    "llama3": frozenset(
        {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "rope_theta"}
    ),
    "proportional": frozenset({"rope_theta"}),
}
SCALED = ("llama3", "yarn", "longrope")
# rotary_embedding/__init__.py:102-350: type -> keys that it indexes
TYPES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "proportional": (),
    "mllama4": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "linear": ("factor",),
    "ntk": ("factor",),
    "dynamic": (),
    "yarn": ("factor", "original_max_position_embeddings"),
    "deepseek_yarn": ("factor", "original_max_position_embeddings"),
    "deepseek_llama_scaling": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "openpangu": (),
    "bailing_mrope": ("mrope_section",),
}


def convert(attributes: Attributes, values: Attributes, default_theta: float) -> None:
    """``rope_scaling``/``rope_theta`` into ``rope_parameters`` (modeling_rope_utils.py:752-778).

    A non-empty ``rope_scaling`` replaces ``rope_parameters`` whole; ``rope_theta`` fills in only what they lack.
    """
    rope = values.pop("rope_scaling", None) or attributes.get("rope_parameters")
    rope = {} if rope is None else rope
    theta = values.pop("rope_theta", attributes.get("rope_theta", default_theta))
    partial = values.get("partial_rotary_factor", attributes.get("partial_rotary_factor"))
    for part in _parts(rope, attributes):
        part.setdefault("rope_theta", theta)
        if partial is not None:
            part.setdefault("partial_rotary_factor", partial)
    attributes["rope_parameters"] = rope
    standardize(attributes)


def standardize(attributes: Attributes) -> None:
    """``standardize_rope_params`` (modeling_rope_utils.py:780-833)."""
    rope, theta = attributes.get("rope_parameters") or {}, attributes.get("rope_theta")
    partial, nested = attributes.get("partial_rotary_factor"), bool(_nested(rope, attributes))
    if not (rope or theta):
        return
    for part in _parts(rope, attributes):
        part.setdefault("rope_type", part.get("type", "default"))
        part.setdefault("rope_theta", theta)
        if partial is not None:
            part.setdefault("partial_rotary_factor", partial)
        if part["rope_type"] in SCALED:
            if "original_max_position_embeddings" in attributes and not nested:
                part["original_max_position_embeddings"] = attributes["original_max_position_embeddings"]
            else:
                part.setdefault("original_max_position_embeddings", attributes.get("max_position_embeddings"))
    attributes["rope_parameters"] = rope


def validate(attributes: Mapping[str, Any]) -> None:
    """transformers' check of ``rope_parameters`` (modeling_rope_utils.py:835-880).

    Raises:
        Refused: A key is missing.
        ValueError, TypeError, ArithmeticError: As there.
    """
    rope = attributes.get("rope_parameters")
    if not rope:
        return
    head_dim = attributes.get("head_dim")
    for part in _parts(rope, attributes):
        kind = part.setdefault("rope_type", part.get("type", "default"))
        missing = REQUIRED.get(str(kind), frozenset()) - set(part)
        if missing:
            raise refuse_config(
                "KeyError", f"Missing required keys in `rope_parameters` for 'rope_type'='{kind}'"
            )
        _compare(str(kind), part, attributes)
        share = part.get("partial_rotary_factor", 1.0)
        if head_dim is not None and head_dim > 4 and head_dim % 2 and int(head_dim * share) == head_dim:
            raise ValueError("RoPE requires an even rotary dimension")


def _compare(kind: str, part: Attributes, attributes: Mapping[str, Any]) -> None:
    """What the validators compute before they warn (modeling_rope_utils.py:920-1060)."""
    if kind == "longrope":
        _ = len(part["short_factor"]), len(part["long_factor"])
    elif kind == "yarn":
        _ = (part.get("beta_fast") or 32) < (part.get("beta_slow") or 1)
        _ = attributes["max_position_embeddings"] / part["original_max_position_embeddings"]
    elif kind == "llama3":
        _ = part["high_freq_factor"] <= part["low_freq_factor"]
        _ = part["original_max_position_embeddings"] >= attributes["max_position_embeddings"]


def patch(attributes: Attributes) -> None:
    """vLLM's own pass after transformers': old type names, then the same rules once more (config.py:622-641)."""
    theta = attributes.get("rope_theta", attributes.get("rotary_emb_base"))
    rope = attributes.get("rope_parameters")
    if theta is None and not rope:
        return
    if rope is not None:
        for part in stated(rope):
            _rename(part)
    if theta is not None:
        attributes["rope_theta"] = theta
    standardize(attributes)
    validate(attributes)


def stated(rope: Any) -> list[Attributes]:
    """The settings per layer type, or the one dict of all layers; vLLM goes by the keys alone (config.py:179-185)."""
    if rope and set(rope) <= LAYER_TYPES:
        return [part for part in rope.values() if part is not None]
    return [rope]


def _rename(part: Attributes) -> None:
    if "rope_type" in part and "type" in part:
        kind, old = part["rope_type"], part["type"]
        if kind != old and (old, kind) not in (("su", "longrope"), ("mrope", "default")):
            raise refuse_config(
                "ValueError", f"Found conflicts between 'rope_type={kind}' (modern field) and 'type={old}'"
            )
    if "rope_type" not in part and "type" in part:
        part["rope_type"] = part["type"]
    kind = part.get("rope_type")
    if kind == "su":
        part["rope_type"] = "longrope"
    elif kind == "mrope":
        if "mrope_section" not in part:
            raise refuse_config(
                "ValueError", "Legacy rope_type 'mrope' requires 'mrope_section' in rope_parameters"
            )
        part["rope_type"] = "default"


def _nested(rope: Any, attributes: Mapping[str, Any]) -> list[str]:
    return [key for key in rope if key in (attributes.get("layer_types") or ())]


def _parts(rope: Any, attributes: Mapping[str, Any]) -> list[Attributes]:
    """transformers goes by the layer types that the config declares (modeling_rope_utils.py:743-750)."""
    return [part for part in [rope[key] for key in _nested(rope, attributes)] or [rope] if part is not None]


def build(rope: Any, head_dim: Any, max_position: Any) -> None:
    """``get_rope`` over ``rope_parameters``.

    Raises:
        Refused: Unknown type, no base, a partial rotation outside (0, 1], sections or factors that don't fit.
    """
    rope = rope or {}
    hash(tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in rope.items()))
    width = rope.get("rope_dim")
    if not width:
        share = rope.get("partial_rotary_factor", 1.0)
        if share <= 0.0 or share > 1.0:
            raise refuse_class("ValueError", f"partial_rotary_factor={share} must be between 0.0 and 1.0")
        width = int(head_dim * share)
    kind = rope.get("rope_type", "default")
    if kind not in TYPES:
        raise refuse_class("ValueError", f"Unknown RoPE scaling type {kind}")
    for key in TYPES[kind]:
        if key not in rope:
            raise refuse_class("KeyError", f"'{key}'")
    if kind == "dynamic" and "alpha" not in rope and "factor" not in rope:
        raise refuse_class("ValueError", "Dynamic rope scaling must contain either 'alpha' or 'factor' field")
    if kind == "openpangu" and not ("mrope_section" in rope and rope.get("mrope_interleaved", False)):
        raise refuse_class("ValueError", "Pangu mrope lacks necessary parameters.")
    base = rope.get("rope_theta", 10000)
    if not isinstance(base, (int, float)):
        raise refuse_class("TypeError", "unsupported operand type(s) for ** or pow()")
    if kind in ("yarn", "deepseek_yarn", "deepseek_llama_scaling"):
        _yarn(rope, base, width, kind == "yarn")
    if kind == "linear":
        # a number that isn't written as a float is iterated over (linear_scaling_rope.py:67-83)
        factors = [rope["factor"]] if isinstance(rope["factor"], float) else rope["factor"]
        for factor in factors:
            _ = max_position * factor
    elif kind == "longrope":
        for key in ("short_factor", "long_factor"):
            if len(rope[key]) not in (1, ceil(width / 2)):
                raise refuse_class(
                    "RuntimeError", f"The size of tensor a ({len(rope[key])}) must match the size of tensor b"
                )
    elif (
        kind in ("default", "yarn") and rope.get("mrope_section") and sum(rope["mrope_section"]) != width // 2
    ):
        raise refuse_class("AssertionError", "")  # mrope.py:356


def _yarn(rope: Mapping[str, Any], base: float, width: int, own: bool) -> None:
    """The numbers that yarn's tables start from (``rotary_embedding/common.py:34-76``, ``yarn_scaling_rope.py:24-88``).

    ``own`` is plain yarn; deepseek's takes its scale from ``mscale`` alone (``deepseek_scaling_rope.py:30-104``).
    """
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    scales: tuple[Any, ...] = (rope.get("mscale", 1), rope.get("mscale_all_dim", 0))
    if own and rope.get("attention_factor") is not None:
        scales = (rope["attention_factor"],)
    elif own:
        scales = (1,)
    for scale in scales if factor > 1 else ():
        _ = 0.1 * float(scale) * log(factor) + 1.0
    for rotations in (rope.get("beta_fast", 32), rope.get("beta_slow", 1)):
        floor(width * log(original / (rotations * 2 * pi)) / (2 * log(base)))
    _ = original * factor
