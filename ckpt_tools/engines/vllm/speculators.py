"""speculators-format config.json files as vLLM reads them (``transformers_utils/configs/speculators/``).

Every attribute that the draft class reads must be in ``transformer_layer_config``: no config class adds defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.refusal import refuse_config

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.contract import Contract

Pairs = dict[str, Any]


def serve_settings(config: Mapping[str, Any]) -> tuple[str, bool, Any]:
    """What a speculators folder that is served directly asks for (``base.py:76-137``).

    Returns:
        (method, parallel_drafting, num_speculative_tokens); an unknown type passes through as its own name.

    Raises:
        Refused: The structure is not what vLLM expects.
    """
    try:
        block = config["speculators_config"]
        tokens = block["proposal_methods"][0]["speculative_tokens"]
        _ = block["verifier"]["name_or_path"]
        kind = config["speculators_model_type"]
    except (KeyError, IndexError, TypeError) as error:
        raise refuse_config("ValueError", "Invalid speculators config structure") from error
    if "transformer_layer_config" not in config:
        raise refuse_config("ValueError", "Must provide transformer_layer_config")
    if not isinstance(config["transformer_layer_config"], Mapping):
        raise refuse_config("TypeError", "'transformer_layer_config' must be a dictionary if provided")
    if tokens is None:
        raise refuse_config("ValueError", "Missing 'speculative_tokens' in proposal method.")
    if kind == "peagle":
        return "eagle3", True, tokens
    return ("dflash" if kind == "dflash2" else str(kind)), False, tokens


def to_attributes(config: Mapping[str, Any], contract: Contract) -> Pairs:
    """The dict that ``SpeculatorsConfig`` is built from (``base.py:46-63``, ``algos.py``).

    Raises:
        Refused: Unsupported ``speculators_model_type`` or layer type, or a required field is missing.
    """
    kind = config.get("speculators_model_type")
    if kind not in contract.speculators_types:
        raise refuse_config("ValueError", "Expected one of: {")
    layer: Pairs = deepcopy(dict(config.get("transformer_layer_config") or {}))
    _UPDATES[str(kind)](config, layer, contract)
    return layer


def _shared(config: Mapping[str, Any], layer: Pairs) -> None:
    layer["draft_vocab_size"] = config.get("draft_vocab_size")
    if config.get("target_hidden_size") is not None:
        layer["target_hidden_size"] = config["target_hidden_size"]


def _architecture(layer: Pairs, prefix: str, label: str, contract: Contract) -> None:
    kind = layer.get("model_type", "llama")
    if contract.speculators_layers is None:
        kind = "llama"
    elif kind not in contract.speculators_layers:
        raise refuse_config("ValueError", f"Unsupported model_type {kind} for {label} speculator")
    layer["architectures"] = [prefix + {"llama": "Llama", "qwen3": "Qwen3"}[kind] + "ForCausalLM"]


def _captured(config: Mapping[str, Any], layer: Pairs, contract: Contract) -> None:
    if contract.speculators_aux and config.get("eagle_aux_hidden_state_layer_ids"):
        layer["eagle_aux_hidden_state_layer_ids"] = config["eagle_aux_hidden_state_layer_ids"]


def _eagle3(config: Mapping[str, Any], layer: Pairs, contract: Contract) -> None:  # algos.py:15-50
    _shared(config, layer)
    layer["norm_before_residual"] = config.get("norm_before_residual", True)
    if contract.norm_before_fc:
        layer["norm_before_fc"] = config.get("norm_before_fc", False)
    if contract.fc_norm:
        layer["fc_norm"] = config.get("fc_norm", False)
        layer["norm_output"] = config.get("norm_output", False)
    _architecture(layer, "Eagle3", "Eagle3", contract)
    _captured(config, layer, contract)


def _peagle(config: Mapping[str, Any], layer: Pairs, contract: Contract) -> None:  # algos.py:53-87
    _shared(config, layer)
    layer["norm_before_residual"] = config.get("norm_before_residual", False)
    layer["norm_before_fc"] = config.get("norm_before_fc", False)
    _architecture(layer, "Peagle", "PEagle", contract)
    layer["pard_token"] = _required(config, "mask_token_id")
    _captured(config, layer, contract)


def _dflash(config: Mapping[str, Any], layer: Pairs, _contract: Contract) -> None:  # algos.py:90-126
    layer["architectures"] = ["DFlashDraftModel"]
    _shared(config, layer)
    ids = _required(config, "aux_hidden_state_layer_ids")
    layer["eagle_aux_hidden_state_layer_ids"] = ids
    layer["dflash_config"] = {
        "mask_token_id": _required(config, "mask_token_id"),
        "target_layer_ids": _one_less(ids),
        "sample_from_anchor": config.get("sample_from_anchor", False),
        "causal": not config.get("sliding_window_non_causal", True),
    }


def _dflash2(config: Mapping[str, Any], layer: Pairs, contract: Contract) -> None:  # algos.py:129-149
    _dflash(config, layer, contract)
    layer["architectures"] = ["DFlash2DraftModel"]
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if config.get(key) is not None:
            layer["dflash_config"][key] = config[key]


def _dspark(config: Mapping[str, Any], layer: Pairs, _contract: Contract) -> None:  # algos.py:152-209
    names = config.get("architectures") or []
    layer["architectures"] = [n for n in names if n in ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")] or [
        "Qwen3DSparkModel"
    ]
    anchor = config.get("sample_from_anchor", False)
    layer["sample_from_anchor"], layer["dspark_bonus_anchor"] = anchor, not anchor
    ids = _required(config, "aux_hidden_state_layer_ids")
    layer["eagle_aux_hidden_state_layer_ids"] = ids
    layer["target_layer_ids"] = _one_less(ids)
    for key in (
        "draft_vocab_size", "target_hidden_size", "mask_token_id", "markov_rank", "markov_head_type", "block_size",
        "enable_confidence_head", "confidence_head_with_markov", "use_aux_hidden_state",
    ):  # fmt: skip
        if config.get(key) is not None:
            layer[key] = config[key]


def _required(config: Mapping[str, Any], key: str) -> Any:
    if key not in config:
        raise refuse_config("KeyError", f"'{key}'")
    return config[key]


def _one_less(ids: Any) -> list[int]:
    if not isinstance(ids, list):
        raise refuse_config("TypeError", "object is not iterable")
    return [i - 1 for i in ids]


_UPDATES: Mapping[str, Callable[[Mapping[str, Any], Pairs, Contract], None]] = {
    "eagle3": _eagle3, "peagle": _peagle, "dflash": _dflash, "dflash2": _dflash2, "dspark": _dspark,
}  # fmt: skip
