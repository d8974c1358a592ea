"""The load map of vLLM: for every parameter what fills it, for every tensor whether it is used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ckpt_tools.engines.vllm import dflash, eagle, eagle3
from ckpt_tools.engines.vllm.config import Resolved, resolve_config
from ckpt_tools.engines.vllm.contract import CONTRACTS, Contract
from ckpt_tools.engines.vllm.loading import Built, load
from ckpt_tools.engines.vllm.modules import Module, Parameter, Shape
from ckpt_tools.engines.vllm.refusal import Refused
from ckpt_tools.engines.vllm.registry import drafts
from ckpt_tools.engines.vllm.runners import check_runner, default_runner
from ckpt_tools.model import Checkpoint, Engine, Fill, LoadMap, Target

ENGINE = "vllm"


def load_map(
    engine: Engine,
    checkpoint: Checkpoint,
    target: Target | None = None,
    *,
    algorithm: str | None = None,
    method: str | None = None,
    runner: str | None = None,
) -> LoadMap:
    """What vLLM's loader does with a draft.

    Args:
        engine: Name and version; its ``contract`` names the release.
        checkpoint: The draft.
        target: What it is served with. Without one, a target of the draft's own ``vocab_size``.
        algorithm: Of the draft, as its format says; not read by vLLM.
        method: The ``method`` of ``--speculative-config``; ``None`` derives it from the draft.
        runner: ``V1`` or ``V2``; ``None`` is the runner that this release takes by default.
    """
    contract = CONTRACTS[engine.contract]
    config = checkpoint.config or {}
    try:
        resolved = resolve_config(config, method, contract)
        runner = runner or default_runner(resolved, contract)
        check_runner(resolved, runner)
        built = build(resolved, checkpoint, target, contract, runner)
    except Refused as refused:
        return LoadMap({}, tuple(checkpoint.tensors), str(refused), None, refused.stage)
    error: Refused | None = None
    try:
        load(built, _tensors(checkpoint))
    except Refused as refused:
        error = refused
    parameters = {name: _fill(name, parameter, built) for name, parameter in built.root.walk()}
    used = {source for _, p in built.root.walk() for source in p.sources} | set(built.held)
    unused = tuple(name for name in checkpoint.tensors if name not in used)
    if error is not None:
        return LoadMap(parameters, unused, str(error), built.root.cls, "load")
    return LoadMap(parameters, unused, None, built.root.cls)


def build(resolved: Resolved, checkpoint: Checkpoint, target: Target | None, contract: Contract, runner: str) -> Built:
    fields = resolved.fields
    vocab = target.vocab_size if target is not None and target.vocab_size is not None else fields.get("vocab_size", 0)
    module, cls = drafts().get(resolved.architecture, ("", ""))
    kind = {"llama_eagle3": "llama", "qwen3_eagle3": "qwen3", "deepseek_eagle3": "mla"}.get(module)
    if kind is not None:
        return eagle3.build(fields, kind, vocab, contract, parallel=resolved.parallel_drafting)
    if module == "llama_eagle":
        return eagle.build(fields, target.num_hidden_layers if target is not None else None)
    kind = {"qwen3_dflash": "dflash", "qwen3_dflash2": "dflash2", "qwen3_dspark": "dspark"}.get(module)
    if kind is not None:
        files = frozenset(info.name for info in checkpoint.files)
        return dflash.build(fields, kind, vocab, runner, files)
    raise NotImplementedError(resolved.architecture)


def _tensors(checkpoint: Checkpoint) -> Iterable[tuple[str, Shape]]:
    """Files in natural order, names sorted within each: the order of safetensors' ``keys()`` (weight_utils.py:1098,1191)."""
    infos = sorted(checkpoint.tensors.values(), key=lambda info: (_natural(info.file), info.name))
    return [(info.name, info.shape) for info in infos]


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _fill(name: str, parameter: Parameter, built: Built) -> Fill:
    shared = (built.shares_embed and not built.own_embed and name.endswith("embed_tokens.weight")) or (
        built.shares_head and not built.own_head and name.endswith("lm_head.weight")
    )
    sources = tuple(sorted(parameter.sources))
    cut = "; ".join(parameter.cuts) or None
    if shared:
        return Fill((), "target")
    if parameter.complete:
        return Fill(sources, "checkpoint", cut)
    if sources:
        return Fill(sources, "partly", cut)
    return Fill((), parameter.initial)
