"""The fields that a DFlash or DSpark draft's config states, with SGLang's fallbacks and refusals.

``parse_dflash_draft_config`` (SGLang speculative/dflash_utils.py:588-813) and ``parse_dspark_draft_config``
(speculative/dspark_components/dspark_config.py); lines are of 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig

MARKOV_TYPES = ("vanilla", "gated", "rnn")


@dataclass(frozen=True)
class BlockConfig:
    """What the classes of this family build from.

    Attributes:
        ids: The captured layers that are named, or ``None``.
        target_layers: How many the target has, where the config says so.
        layers: How many the draft has.
        conv: Taps and group size of the grouped convolutions, or ``None``.
        selector_rank: Of DFlash2's candidate selector; 0 without.
        sinks: A bias per attention head.
        domino: Widths (gru, embedding) of the Domino projector, or ``None``.
    """

    ids: list[Any] | None
    target_layers: int | None
    layers: int
    conv: tuple[int, int] | None = None
    selector_rank: int = 0
    sinks: bool = False
    domino: tuple[int, int] | None = None


def parse(config: HfConfig, features: Features) -> BlockConfig:
    """The fields, nested in ``dflash_config`` first.

    Raises:
        Refused: At stage ``class``, a ValueError like SGLang's.
    """
    nested = _dict(config.get("dflash_config"))

    def either(key: str) -> Any:
        return nested[key] if key in nested else config.get(key)

    layers = _integer(config.get("num_hidden_layers"), "num_hidden_layers", 1)
    target_layers = _integer(either("num_target_layers"), "num_target_layers", 1)
    block_size = _integer(either("block_size"), "block_size", 1)
    conv, selector = _pairs(nested) if features.dflash2 else (None, 0)
    ids = either("target_layer_ids")
    if ids is not None and (not isinstance(ids, list) or not ids):
        raise _value(f"DFLASH dflash_config.target_layer_ids must be a non-empty list of ints, got {ids!r}.")
    _mask(either if features.dflash_top_level else nested.get)
    sinks = _numbers(nested) if features.dflash2 else False
    domino = (
        _domino(either, nested, config, block_size)
        if features.domino and either("projector_type") == "domino"
        else None
    )
    return BlockConfig(ids, target_layers, int(layers or 0), conv, selector, sinks, domino)


def markov(config: HfConfig) -> tuple[int, str]:
    """Rank and kind of a DSpark draft's Markov head.

    The nested spellings satisfy the parser alone: the head is built from the top level (models/dspark.py:385-405).
    """
    nested = {**_dict(config.get("dflash_config")), **_dict(config.get("dspark_config"))}
    prefixed = any(
        config.get(f"dspark_{key}") is not None
        for key in ("block_size", "markov_rank", "noise_token_id", "target_layer_ids")
    )
    rank = config.get("dspark_markov_rank")
    if rank is None:
        rank = nested["markov_rank"] if "markov_rank" in nested else config.get("markov_rank", 0)
    if int(rank or 0) < 0:
        raise _value(f"DSpark markov_rank must be >= 0, got {rank}.")
    kind = config.get("dspark_markov_head_type")
    if kind is None:
        kind = nested["markov_head_type"] if "markov_head_type" in nested else config.get("markov_head_type")
    if int(rank or 0) > 0 and kind is None and not prefixed:
        raise _value("DSpark requires markov_head_type when markov_rank > 0, got None.")
    if kind is not None and str(kind).lower() not in MARKOV_TYPES:
        raise _value(f"Unsupported DSpark markov_head_type={kind!r}.")
    if int(rank or 0) <= 0:
        raise _value(f"DSpark draft requires markov_rank > 0, got markov_rank={rank}.")
    built = int(config.get("markov_rank", 0))
    if built <= 0:
        raise _value(f"DSpark requires markov_rank > 0; got markov_rank={built}.")
    head = str(config.get("markov_head_type", "vanilla")).lower()
    if head not in MARKOV_TYPES:
        raise _value(f"Unsupported DSpark markov_head_type={head!r}.")
    return built, head


def feature_count(block: BlockConfig, features: Features) -> int:
    """How many captured layers fc takes: ``resolve_target_layer_ids`` and ``build_target_layer_ids`` (dflash_utils.py:348-385,
    :558-585), after the layers are built (models/dflash.py:745).

    Raises:
        Refused: At stage ``class``, a ValueError like SGLang's.
    """
    ids, layers = block.ids, block.layers
    total = block.target_layers
    if total is None:
        total = max(int(i) for i in ids) + 1 if ids and features.dflash_top_level else layers
    if ids is None:
        if layers > 1 and total < 4:
            raise _value(
                f"DFlash layer selection requires num_target_layers >= 4. Got num_target_layers={total}."
            )
        return layers
    for at, layer in enumerate(ids):
        if not 0 <= int(layer) < total:
            raise _value(
                f"DFLASH target_layer_ids contains an out-of-range layer id. target_layer_ids[{at}]={layer}, target_num_layers={total}."
            )
    return len(ids)


def _pairs(nested: Mapping[str, Any]) -> tuple[tuple[int, int] | None, int]:
    taps, group = (
        _integer(nested.get(key, 0), key, 0) or 0 for key in ("conv_kernel_size", "conv_group_size")
    )
    if bool(taps) != bool(group):
        raise _value("DFLASH grouped convolution needs conv_kernel_size and conv_group_size together.")
    rank, top = (_integer(nested.get(key, 0), key, 0) or 0 for key in ("selector_rank", "selector_top_k"))
    if bool(rank) != bool(top):
        raise _value("DFLASH selector needs rank and top_k together.")
    if float(nested.get("output_multiplier", 1.0)) <= 0:
        raise _value("DFLASH output_multiplier must be positive.")
    float(nested.get("final_logit_softcapping") or 0.0)
    return ((taps, group) if taps else None), rank


def _mask(read: Any) -> None:
    token, number = read("mask_token"), read("mask_token_id")
    if token is not None and (not isinstance(token, str) or not token):
        raise _value(f"DFLASH dflash_config.mask_token must be a non-empty string, got {token!r}.")
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
        raise _value(f"DFLASH dflash_config.mask_token_id must be a non-negative integer, got {number!r}.")


def _numbers(nested: Mapping[str, Any]) -> bool:
    sinks, scale = nested.get("attention_sink_bias", False), nested.get("attention_value_scale")
    if not isinstance(sinks, bool):
        raise _value(f"DFLASH dflash_config.attention_sink_bias must be a bool, got {sinks!r}.")
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (int, float))):
        raise _value(f"DFLASH dflash_config.attention_value_scale must be int|float|None, got {scale!r}.")
    return sinks


def _domino(
    either: Any, nested: Mapping[str, Any], config: HfConfig, block_size: int | None
) -> tuple[int, int]:
    shift, prefix, gru = (
        either("shift_label"),
        _integer(either("pure_draft_prefix_len"), "pure_draft_prefix_len", 0),
        either("gru_hidden_dim"),
    )
    gru = _integer(gru, "gru_hidden_dim", 1)
    inner, outer = (
        _integer(nested.get("emb_dim"), "emb_dim", 1),
        _integer(config.get("emb_dim"), "emb_dim", 1),
    )
    if inner is not None and outer is not None and inner != outer:
        raise _value("DFLASH Domino emb_dim differs between dflash_config and the top-level config.")
    width = inner if inner is not None else outer
    if not isinstance(shift, bool) or prefix != 1 or gru is None or width is None:
        raise _value(
            "DFLASH Domino requires shift_label, pure_draft_prefix_len=1, gru_hidden_dim and emb_dim."
        )
    if block_size is not None and block_size <= 1:
        raise _value(f"DFLASH Domino requires block_size > 1, got {block_size}.")
    return gru, width


def _integer(value: Any, name: str, least: int) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise _value(f"Invalid DFLASH {name}={value!r}.") from error
    if number < least:
        raise _value(f"DFLASH {name} must be >= {least}, got {number}.")
    return number


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _value(message: str) -> Refused:
    return Refused("ValueError", message, "class")
