"""How vLLM turns a draft's config.json into the config that its draft class reads.

Three forms: speculators (no ``model_type``, ``speculators_config`` present), vLLM's own (``model_type: eagle``) and
plain (anything that ``AutoConfig`` knows), which is wrapped in ``EAGLEConfig`` for EAGLE and DFlash methods
(``transformers_utils/config.py:342-468``, ``transformers_utils/configs/eagle.py``, ``config/speculative.py:1406-1532``).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import arch, registry, rope
from ckpt_tools.engines.vllm.hf import Attributes, assign, auto_config, bare_config, classes, validate_rope
from ckpt_tools.engines.vllm.mtp import rewrite
from ckpt_tools.engines.vllm.quantization import DEPRECATED
from ckpt_tools.engines.vllm.quantization import METHODS as QUANTIZATIONS
from ckpt_tools.engines.vllm.refusal import on_values_of_the_file, refuse_class, refuse_config
from ckpt_tools.engines.vllm.speculators import serve_settings, to_attributes

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.contract import Contract
    from ckpt_tools.model import Checkpoint

# config/speculative.py:38-82; the legacy *_mtp names become mtp
METHODS = frozenset(
    {"ngram", "ngram_gpu", "draft_model", "suffix", "custom_class", "eagle", "eagle3", "extract_hidden_states", "dflash",
     "dspark", "mtp"}
)  # fmt: skip


class Fields(dict[str, Any]):
    """A draft's resolved config: reading a missing attribute refuses as the engine's ``getattr`` does."""

    owner = "PreTrainedConfig"

    def need(self, name: str) -> Any:
        """The attribute, or the engine's AttributeError."""
        if name not in self:
            raise refuse_class("AttributeError", f"'{self.owner}' object has no attribute '{name}'")
        return self[name]


@dataclass(frozen=True)
class Resolved:
    """What the engine knows once config.json is read.

    Attributes:
        config_class: ``SpeculatorsConfig``, ``EAGLEConfig`` or the transformers class.
        fields: Every attribute that the draft class can read.
        architecture: The name that the registry is asked for.
        method: The speculative method.
        parallel_drafting: Several tokens per pass (P-EAGLE, DFlash, DSpark).
    """

    config_class: str
    fields: Fields
    architecture: str
    method: str
    parallel_drafting: bool


def config_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """config.json, with ModelOpt's side file as its quantisation when it has none (``config.py:953-965``)."""
    config = checkpoint.config or {}
    side = checkpoint.extra.get("hf_quant_config")
    return (
        config
        if side is None or config.get("quantization_config") is not None
        else {**config, "quantization_config": side}
    )


def derive_method(config: Mapping[str, Any]) -> str | None:
    """The method to ask for when the user names none: from the speculators type, else from the architecture's name.

    vLLM itself guesses from the path (see :func:`detect_method`); this is what the draft *is*.
    """
    if config.get("speculators_config") is not None:
        return serve_settings(config)[0]
    names = config.get("architectures")
    name = names[0].lower() if isinstance(names, list) and names and isinstance(names[0], str) else ""
    return next((method for method in ("eagle3", "dflash", "dspark", "eagle") if method in name), None)


def detect_method(path: str, architectures: tuple[str, ...], model_type: str | None) -> str:
    """The method that vLLM takes when none is given, from the lower-cased model path.

    Source: ``config/speculative.py:1236-1501``. Parent folders count, ``eagle-`` wins over ``eagle3``, and
    ``architectures`` is looked at for DFlash and DSpark alone.
    """
    lowered = path.lower()
    if "eagle-" in lowered:
        return "eagle"
    if "eagle3" in lowered:
        return "eagle3"
    if "dflash" in lowered or "MuseGlimmerAssistantModel" in architectures:
        return "dflash"
    dspark = {"Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel"}
    if "dspark" in lowered or dspark & set(architectures):
        return "dspark"
    if "DSparkDraftModel" in architectures and model_type == "qwen3":
        return "dspark"
    return "mtp" if model_type is not None and model_type.endswith("_mtp") else "draft_model"


@dataclass(frozen=True)
class Asked:
    """What the server was told about the draft.

    Attributes:
        method: ``method`` of ``--speculative-config``; ``None`` derives it from the draft.
        parallel_drafting: The key of that name; ``None`` takes what the draft's files say when served directly.
        algorithm: What the draft is, for one whose config names no method (an EAGLE-1 head under a target's name).
        path: Where it lies: a method other than EAGLE's and DFlash's own yields to what vLLM reads there.
    """

    method: str | None = None
    parallel_drafting: bool | None = None
    algorithm: str | None = None
    path: str = ""


BY_ALGORITHM = {"eagle": "eagle", "eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash",
                "xpress": "dflash", "dspark": "dspark", "mtp": "mtp"}  # fmt: skip


@on_values_of_the_file("config")
def resolve_config(config: Mapping[str, Any], asked: Asked, contract: Contract) -> Resolved:
    """Everything up to the choice of the class.

    Args:
        config: config.json.
        asked: What the server was told.
        contract: The release.

    Raises:
        Refused: As the engine refuses.
    """
    parallel, method, tokens = bool(asked.parallel_drafting), asked.method, None
    if method is None and config.get("speculators_config") is not None:
        method, stated, tokens = serve_settings(config)
        parallel = stated if asked.parallel_drafting is None else parallel
    method = method or derive_method(config) or BY_ALGORITHM.get(asked.algorithm or "") or "draft_model"
    if method not in METHODS:
        raise refuse_config("ValidationError", "Input should be 'ngram'")

    config_class, attributes = _parse(config, contract)
    if (
        config.get("quantization_config") is not None
    ):  # the raw top-level block, whatever the form (config.py:953-965)
        attributes["quantization_config"] = deepcopy(config["quantization_config"])
        _ = attributes["quantization_config"].get("scale_fmt")
    if not attributes.get("architectures"):
        attributes["architectures"] = _bare_architectures(attributes)
    kind = attributes["model_type"]
    attributes = rewrite(attributes)
    rope.patch(attributes)
    _text_config(attributes)
    arch.check(attributes)
    registry.resolve(attributes["architectures"], contract)
    if attributes.get("sliding_window") == 0:  # counts as none (config/model.py:802-808)
        attributes["sliding_window"] = None
    arch.check_length(attributes)
    _check_quantization(attributes, contract)

    if asked.method is not None:
        method = _settled(method, asked.path, attributes)
    if method in ("eagle", "eagle3", "dflash") and config_class not in ("EAGLEConfig", "SpeculatorsConfig"):
        _wrap(kind)
        attributes = {
            **attributes,
            "architectures": rename(attributes["architectures"], method),
            "model_type": "eagle",
        }
        config_class = "EAGLEConfig"
    if (
        config_class == "EAGLEConfig" and "model" in attributes
    ):  # a key of the file takes the wrapped config's place
        kind = type(attributes["model"]).__name__
        raise refuse_config("AttributeError", f"'{kind}' object has no attribute 'model_type'")
    if tokens is not None and method != "dspark":
        _check_tokens(tokens, attributes.get("n_predict"))
    fields = Fields(attributes)
    fields.owner = config_class
    architecture = registry.resolve(attributes["architectures"], contract)
    return Resolved(config_class, fields, architecture, method, parallel or method in ("dflash", "dspark"))


def _check_tokens(tokens: Any, predicted: Any) -> None:
    """Whole passes of a head that predicts several tokens (``config/speculative.py:1489-1507``)."""
    if predicted is not None and tokens > predicted and tokens % predicted:
        raise refuse_config(
            "ValueError", f"num_speculative_tokens:{tokens} must be divisible by n_predict={predicted}"
        )


def _settled(method: str, path: str, attributes: Attributes) -> str:
    """What becomes of a method that was asked for (``config/speculative.py:1335-1395``)."""
    if method in ("eagle", "eagle3", "dflash", "dspark"):
        return method
    found = detect_method(path, tuple(attributes["architectures"]), attributes["model_type"])
    if found == "draft_model" and method != found:
        raise refuse_config("NotImplementedError", f"Unsupported speculative method: '{method}'")
    return found


def rename(architectures: list[str], method: str) -> list[str]:
    """EAGLEConfig's rewrite of the names (``transformers_utils/configs/eagle.py:42-81``).

    Raises:
        Refused: For a method that EAGLEConfig doesn't know.
    """
    if method == "eagle":
        return [a if a.startswith("Eagle") else f"Eagle{a}" for a in architectures]
    if method == "eagle3":
        return [a if a.startswith("Eagle3") or a.endswith("Eagle3") else f"Eagle3{a}" for a in architectures]
    if method == "dflash":
        kept = ("DFlash", "LiLiCorrDraftModel")
        return [
            a if a.startswith(kept[0]) or a.endswith(kept[0]) or a == kept[1] else f"DFlash{a}"
            for a in architectures
        ]
    raise refuse_config(
        "ValueError", f"Invalid method {method}. Supported methods are eagle, eagle3, and dflash."
    )


def _parse(config: Mapping[str, Any], contract: Contract) -> tuple[str, Attributes]:
    """The parser's three branches (``transformers_utils/config.py:361-367,416-430``)."""
    model_type = config.get("model_type")
    speculators = model_type is None and config.get("speculators_config") is not None
    if speculators or model_type == "speculators":
        return "SpeculatorsConfig", {
            "model_type": "speculators",
            **bare_config(to_attributes(config, contract)),
        }
    if model_type == "eagle":
        return "EAGLEConfig", _native(config)
    attributes = auto_config(config)
    return classes()[attributes["model_type"]]["class"], attributes


def _native(config: Mapping[str, Any]) -> Attributes:
    """vLLM's own form: ``model`` holds the real config, ``method`` says how its name is rewritten (eagle.py:14-88)."""
    model = config.get("model")
    method = config.get("method", "eagle")
    if isinstance(model, Mapping):
        if "model_type" not in model:
            raise refuse_config(
                "TypeError", "AutoConfig.for_model() missing 1 required positional argument: 'model_type'"
            )
        if not isinstance(model["model_type"], str) or model["model_type"] not in classes():
            raise refuse_config("ValueError", f"Unrecognized model identifier: {model['model_type']}.")
        inner = auto_config(model)
        _wrap(inner["model_type"])
    elif model is not None:
        raise refuse_config(
            "AttributeError", f"'{type(model).__name__}' object has no attribute 'vocab_size'"
        )
    elif method in ("eagle", "eagle3", "dflash"):
        raise refuse_config("AssertionError", f"model should not be None when method is {method}")
    else:
        raise refuse_config("ValueError", f"Invalid method {method}.")
    if not isinstance(inner.get("architectures"), list):
        raise refuse_config("TypeError", "'NoneType' object is not iterable")
    outer = {
        k: v
        for k, v in config.items()
        if k not in ("model", "method", "model_type", "architectures", "truncated_vocab_size")
    }
    for key, value in outer.items():
        if key == "rope_scaling":  # a property that writes rope_parameters, base and all
            inner["rope_parameters"] = deepcopy(value)
        elif key in inner:
            assign(inner["model_type"], inner, key, deepcopy(value))
    names = rename(inner["architectures"], method)
    if "rope_parameters" in outer or "rope_scaling" in outer:  # checked before a base is filled in
        validate_rope(inner)
    return {**inner, **deepcopy(outer), "architectures": names, "model_type": "eagle"}


def _bare_architectures(attributes: Attributes) -> list[str] | None:
    """An absent ``architectures``: the bare model class of the type (``transformers_utils/config.py:940-949``)."""
    name = registry.model_class_of(attributes["model_type"])
    return attributes.get("architectures") if name is None else [name]


def _text_config(attributes: Attributes) -> None:
    """``get_hf_text_config`` wants a nested text config to be a config (``transformers_utils/config.py:1195-1209``)."""
    for name in ("text_encoder", "decoder", "generator", "text_config"):
        if attributes.get(name) is not None:
            raise _no_text_config()


def _wrap(kind: str) -> None:
    """A class with a text config inside: ``EAGLEConfig`` copies that as a dict."""
    if classes()[kind].get("wraps"):
        raise _no_text_config()


def _no_text_config() -> Exception:
    return refuse_config(
        "ValueError", "The text_config extracted from the model config does not have `num_attention_"
    )


def _check_quantization(attributes: Attributes, contract: Contract) -> None:
    """An unknown method is refused here (``config/model.py:1370-1458``)."""
    block = arch.quantization(attributes)
    if block is not None:
        attributes["quantization_config"] = dict(block)
    name = str(block["quant_method"]) if block is not None and contract.quantisation else ""
    if name and name not in QUANTIZATIONS:
        raise refuse_config("ValueError", f"Unknown quantization method: {name}.")
    if name in DEPRECATED:
        raise refuse_config("ValueError", "('The quantization method %s is deprecated ")
