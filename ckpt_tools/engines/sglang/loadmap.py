"""The load map: what SGLang's loader does with a draft, from its headers and config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang import (
    architectures,
    dflash,
    hf,
    llama,
    llama_eagle3,
    mla_eagle3,
    model_config,
    quantization,
)
from ckpt_tools.engines.sglang.features import features
from ckpt_tools.engines.sglang.refusal import Refused, values_as_in_the_engine
from ckpt_tools.model import LoadMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig
    from ckpt_tools.engines.sglang.parameters import Model
    from ckpt_tools.model import Checkpoint, Engine, Target, TensorInfo

EAGLE3 = (*llama_eagle3.CLASSES, *mla_eagle3.CLASSES)
_FAMILIES = {cls: family for family in (llama_eagle3, mla_eagle3, llama, dflash) for cls in family.CLASSES}
MODELLED = tuple(_FAMILIES)


def load_map(
    engine: Engine,
    checkpoint: Checkpoint,
    target: Target | None = None,  # noqa: ARG001 - every engine is asked with it
    *,
    algorithm: str | None = None,
) -> LoadMap:
    """What SGLang at *engine*'s version does with *checkpoint* when it is served as a draft.

    Args:
        engine: Resolved for ``sglang``.
        checkpoint: Headers and config are read, no values.
        target: Not needed: the draft's loader reads nothing of it.
        algorithm: ``--speculative-algorithm``; without one, EAGLE3 for the EAGLE-3 classes and EAGLE for others. It decides
            what the server replaces by the target's after loading.

    Returns:
        Parameters under SGLang's own names. After a refusal while loading, what was filled until then. A class that no draft is
        served by (``MODELLED`` lacks it) has no parameters, no refusal and its name as ``architecture``.
    """
    names = tuple(checkpoint.tensors)
    built = Built()
    try:
        _build(built, engine, checkpoint)
    except Refused as refused:
        return LoadMap(
            {}, names, str(refused), built.name if refused.stage != "config" else None, refused.stage
        )
    if built.model is None or built.config is None:
        return LoadMap({}, (), None, built.name)
    refusal = _load(built.model, features(engine), checkpoint)
    used = {source for filling in built.model.filling.values() for source in filling.sources}
    used |= {source for sources in built.model.held.values() for source in sources}
    return LoadMap(
        built.model.fills(replaced(built.model, built.config, algorithm)),
        tuple(n for n in names if n not in used),
        str(refusal) if refusal else None,
        built.name,
        refusal.stage if refusal else None,
    )


def parameter_shapes(engine: Engine, checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter that SGLang builds for *checkpoint*'s config, fused and padded as it builds them.

    Empty when the config or the class is refused, or for a class that isn't mapped.
    """
    built = Built()
    try:
        _build(built, engine, checkpoint)
    except Refused:
        return {}
    return {n: p.shape for n, p in built.model.parameters.items()} if built.model else {}


@dataclass
class Built:
    """How far SGLang gets before tensors are loaded: config, class, model."""

    config: HfConfig | None = None
    name: str | None = None
    model: Model | None = None


def _build(built: Built, engine: Engine, checkpoint: Checkpoint) -> None:
    """Read the config, choose the class, build it; *built* holds what was reached.

    Raises:
        Refused: At stage ``config`` or ``class``.
    """
    switches = features(engine)
    registered = architectures.registered(engine.version)
    with values_as_in_the_engine("config"):
        config = built.config = hf.read(checkpoint.config or {}, switches.transformers, checkpoint.root)
        if config.get("architectures") is not None:
            architectures.check(config.get("architectures"))
        text = model_config.text_config(config, switches)
        given = config.get("architectures")
        architectures.check(given)
        quantize = model_config.quantization_config(config, checkpoint.extra.get("hf_quant_config"), switches)
        model_config.derive(config, text, switches, given, registered)
        method = quantization.method_name(quantize, engine.version, switches)
    with values_as_in_the_engine("class"):
        name = built.name = architectures.choose(config, registered, switches)
        quantized = quantization.resolve(method, quantize, switches)
        model_config.check_dtype(config)
        if name in _FAMILIES and quantized.modelled:
            built.model = _FAMILIES[name].build(name, config, switches, quantized)


def load_order(checkpoint: Checkpoint) -> Iterator[TensorInfo]:
    """Files in order, and in each the tensors by name, as ``safe_open.keys`` gives them (model_loader/weight_utils.py:1354).

    Pickles are read only where there is no safetensors file (model_loader/loader.py:490-553).
    """
    files = checkpoint.weight_files
    chosen = [file for file in files if file.kind == "safetensors"] or list(files)
    grouped: dict[str, list[TensorInfo]] = {file.name: [] for file in chosen}
    for tensor in checkpoint.tensors.values():
        if tensor.file in grouped:
            grouped[tensor.file].append(tensor)
    for tensors in grouped.values():
        yield from sorted(tensors, key=lambda tensor: tensor.name)


def _load(model: Model, switches: Features, checkpoint: Checkpoint) -> Refused | None:
    try:
        _FAMILIES[model.name].load(model, load_order(checkpoint), switches)
    except Refused as refused:
        return refused
    return None


def replaced(model: Model, config: HfConfig, algorithm: str | None) -> tuple[str, ...]:
    """Parameters that the server takes from the target after loading (speculative/eagle_worker_v2.py:353-379).

    EAGLE3 takes the embedding unless the draft's width differs from the target's, and the head if the draft has none of its
    own; EAGLE takes both. The DFlash family builds neither.
    """
    embed, head = "model.embed_tokens.weight", "lm_head.weight"
    if (algorithm or ("EAGLE3" if model.name in EAGLE3 else "EAGLE")).upper() != "EAGLE3":
        return tuple(p for p in (embed, head) if p in model.parameters)
    out = []
    wide = config.get("target_hidden_size")
    if wide is None or wide == config.get("hidden_size"):  # models/llama.py:910-918
        out.append(embed)
    # ``load_lm_head_from_target``: models/llama_eagle3.py:306, kimi_k25_eagle3.py:352
    if (
        model.name in EAGLE3
        and not config.get("tie_word_embeddings")
        and config.get("draft_vocab_size") is None
    ):
        out.append(head)
    return tuple(p for p in out if p in model.parameters)
