"""The load map of TensorRT-LLM: what fills each parameter of an EAGLE-3 draft, and what happens to each tensor.

Modelled: ``eagle3_one_model`` (the default; the two-model engine is deprecated) with Llama-style attention, unquantised, at
tensor-parallel size 1. Not modelled, and said so by a map without parameters and refusal: MLA (its loader is DeepSeek's),
Mistral-Large-3, quantised drafts, configs of remote code, and every algorithm but EAGLE-3.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang import hf
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.trtllm import loading
from ckpt_tools.engines.trtllm.capture import DEFAULT_COUNT
from ckpt_tools.engines.trtllm.contract import ARCHITECTURE, OWN_CONFIGS, TRANSFORMERS
from ckpt_tools.engines.trtllm.model import EMBEDDING, HEAD, Model, build
from ckpt_tools.model import Fill, LoadMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ckpt_tools.engines.sglang.hf import HfConfig
    from ckpt_tools.engines.trtllm.model import Shape
    from ckpt_tools.model import Checkpoint, Engine, Target

_IDS = "eagle_aux_hidden_state_layer_ids"
_QUANTISED = "hf_quant_config.json"


def load_map(
    engine: Engine,  # noqa: ARG001 - there is one contract
    checkpoint: Checkpoint,
    target: Target | None = None,  # noqa: ARG001 - every engine is asked with it
    *,
    algorithm: str | None = None,
    captured: int | None = None,
) -> LoadMap:
    """What TensorRT-LLM does with *checkpoint* when it is served as an EAGLE-3 draft.

    Args:
        engine: Resolved for ``trtllm``.
        checkpoint: Headers and config are read, no values.
        target: Not needed: the draft's loader reads nothing of it.
        algorithm: What the draft is; without one, a config that holds ``draft_vocab_size`` is an EAGLE-3 draft's, as
            the engine itself decides (modeling_auto.py ``_resolve_class``).
        captured: How many layers ``eagle3_layers_to_capture`` names; without it, as many as the draft's own config
            lists (they are to be passed on), else three.

    Returns:
        Parameters under the engine's own names. What isn't modelled has no parameters and no refusal.
    """
    names = tuple(checkpoint.tensors)
    if not _is_eagle3(checkpoint, algorithm):
        return LoadMap({}, (), None, None)
    try:
        model = _model(checkpoint, captured)
    except Refused as refused:
        return LoadMap({}, names, str(refused), None, "config")
    if model is None:
        return LoadMap({}, (), None, ARCHITECTURE)
    try:
        read = frozenset(loading.files_read([f.name for f in checkpoint.weight_files]))
    except Refused as refused:
        return LoadMap({}, names, str(refused), ARCHITECTURE, "load")
    weights = loading.offered((t for t in checkpoint.tensors.values() if t.file in read), model.layers)
    own_head = loading.brings_head(weights)
    modules = [m for m in model.modules if own_head or m.name != "lm_head"]
    fills, refusal = loading.load(modules, weights)
    used = loading.used(fills)
    return LoadMap(
        fills | _from_target(model, own_head),
        tuple(n for n in names if n not in used),
        str(refusal) if refusal else None,
        ARCHITECTURE,
        "load" if refusal else None,
    )


def parameter_shapes(
    engine: Engine,  # noqa: ARG001 - there is one contract
    checkpoint: Checkpoint,
    *,
    captured: int | None = None,
) -> dict[str, Shape]:
    """Shape of every parameter that the draft's config makes, fused as the engine builds it.

    Empty when the config is refused or isn't modelled.
    """
    try:
        model = _model(checkpoint, captured)
    except Refused:
        return {}
    modules = model.modules if model is not None else ()
    return {f"{m.name}.{name}": shape for m in modules for name, shape in m.parameters.items()}


def _is_eagle3(checkpoint: Checkpoint, algorithm: str | None) -> bool:
    if algorithm is None:
        return "draft_vocab_size" in (checkpoint.config or {})
    return algorithm.lower() == "eagle3"


def _model(checkpoint: Checkpoint, captured: int | None) -> Model | None:
    """The draft as built, ``None`` when that isn't modelled.

    Raises:
        Refused: At stage ``config``: the class is fixed, so what fails before loading is a value of the config.
    """
    given = checkpoint.config or {}
    remote = given.get("auto_map")
    if given.get("model_type") in OWN_CONFIGS or (isinstance(remote, dict) and "AutoConfig" in remote):
        return None
    with _values_as_in_the_engine():
        config = hf.read(given, TRANSFORMERS, checkpoint.root)
        _check_architectures(config.get("architectures"))
        if config.get("kv_lora_rank") or _is_quantised(checkpoint, config):
            return None
        count = captured if captured is not None else _stated_count(given)
        model = build(config, count)
        if not config.get("tie_word_embeddings", False):
            return model
    if model.own_embedding:
        return None
    # modeling_utils.py DecoderModelForCausalLM.__init__ asks the draft's embedding, which is None until loading, for its
    # tensor-parallel size.
    raise Refused(
        "AttributeError",
        "'NoneType' object has no attribute 'tp_size' (tie_word_embeddings is true)",
        "config",
    )


def _check_architectures(listed: object) -> None:
    """model_config.py ``ModelConfig.from_pretrained`` looks at the first name; the class that is built doesn't depend on it."""
    if listed is None:
        raise Refused(
            "TypeError", "'NoneType' object is not subscriptable (there are no architectures)", "config"
        )
    if not listed:
        raise Refused("IndexError", "list index out of range (architectures is empty)", "config")


def _is_quantised(checkpoint: Checkpoint, config: HfConfig) -> bool:
    return bool(config.get("quantization_config")) or any(f.name == _QUANTISED for f in checkpoint.files)


def _stated_count(config: Mapping[str, Any]) -> int:
    """Captured layers that the draft's config lists; the engine's own default where it lists none."""
    nested = config.get("eagle_config")
    for holder in (nested if isinstance(nested, dict) else {}, config):
        ids = holder.get(_IDS)
        if isinstance(ids, list) and ids:
            return len({str(i) for i in ids})  # the LLM API's field is a set
    return DEFAULT_COUNT


def _from_target(model: Model, own_head: bool) -> dict[str, Fill]:
    """What the draft borrows (modeling_speculative.py ``Eagle3ForCausalLM.load_weights_from_target_model``)."""
    out: dict[str, Fill] = {}
    if not model.own_embedding:
        out[EMBEDDING] = Fill((), "target")
    if not own_head:
        cut = f"it has a row per target token, and the draft has {model.draft_vocab} and maps them by d2t"
        out[HEAD] = Fill((), "target", cut if model.maps_vocabulary else None)
    return out


@contextmanager
def _values_as_in_the_engine() -> Iterator[None]:
    """A config value that no expression here can take is one that the engine's own can't."""
    try:
        yield
    except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
        raise Refused(type(error).__name__, str(error), "config") from error
