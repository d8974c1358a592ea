"""The load map of vLLM: for every parameter what fills it, for every tensor whether it is used."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ckpt_tools.engines.vllm import dflash, eagle, eagle3, sharing
from ckpt_tools.engines.vllm.config import Asked, Resolved, config_of, resolve_config
from ckpt_tools.engines.vllm.contract import CONTRACTS, Contract
from ckpt_tools.engines.vllm.files import tensors
from ckpt_tools.engines.vllm.loading import Built, load
from ckpt_tools.engines.vllm.quantization import quantise, read
from ckpt_tools.engines.vllm.refusal import Refused, on_values_of_the_file, refuse_config
from ckpt_tools.engines.vllm.registry import class_of, kind_of
from ckpt_tools.engines.vllm.runners import check_runner, default_runner
from ckpt_tools.engines.vllm.schemes import NotModelled
from ckpt_tools.model import Checkpoint, Engine, Fill, LoadMap, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.engines.vllm.modules import Parameter


def load_map(
    engine: Engine,
    checkpoint: Checkpoint,
    target: Target | None = None,
    *,
    algorithm: str | None = None,
    method: str | None = None,
    parallel_drafting: bool | None = None,
    runner: str | None = None,
) -> LoadMap:
    """What vLLM's loader does with a draft.

    Args:
        engine: Name and version; its ``contract`` names the release.
        checkpoint: The draft.
        target: What it is served with. Without one, a target of the draft's own ``vocab_size``.
        algorithm, method, parallel_drafting: See :class:`ckpt_tools.engines.vllm.config.Asked`.
        runner: ``V1`` or ``V2``; ``None`` is the runner that this release takes by default.

    Returns:
        After a refusal while loading, what had been copied by then. A class that this package doesn't model
        (Llama 4, MiniCPM, Cohere, the MTP heads, rare quantisations) gives its name, no parameters and no refusal.
    """
    everything = tuple(checkpoint.tensors)
    try:
        loaded = _load(
            engine, checkpoint, target, Asked(method, parallel_drafting, algorithm, checkpoint.path), runner
        )
    except Refused as refused:
        return LoadMap({}, everything, str(refused), None, refused.stage)
    built = loaded.built
    if built is None:
        return LoadMap({}, (), None, class_of(loaded.resolved.architecture))
    walked = dict(built.root.walk())
    parameters = {name: _fill(parameter, loaded.owners.get(name)) for name, parameter in walked.items()}
    used = {source for parameter in walked.values() for source in parameter.sources} | set(built.held)
    unused = tuple(name for name in everything if name not in used)
    stage: Literal["load"] | None = None if loaded.error is None else "load"
    return LoadMap(parameters, unused, loaded.error, built.root.cls, stage)


@dataclass(frozen=True)
class _Loaded:
    """A draft class after its tensors were offered; ``built`` is ``None`` for a class that isn't modelled."""

    resolved: Resolved
    built: Built | None = None
    error: str | None = None
    owners: dict[str, sharing.Shared] = field(default_factory=dict)


def _load(
    engine: Engine, checkpoint: Checkpoint, target: Target | None, asked: Asked, runner: str | None
) -> _Loaded:
    contract = CONTRACTS[engine.contract]
    with on_values_of_the_file("config"):
        resolved = resolve_config(config_of(checkpoint), asked, contract)
        chosen = runner or default_runner(resolved, contract)
        _check_vocabulary(resolved, target)
        check_runner(resolved, chosen)
    dtypes = {name: info.dtype for name, info in checkpoint.tensors.items()}
    layers = target.num_hidden_layers if target is not None else None
    try:
        with on_values_of_the_file("class"):
            with _settings_of(contract):
                method = read(resolved.fields.get("quantization_config"), dtypes)
            built = _build(resolved, checkpoint, target, contract, chosen)
            if method is not None:
                with _settings_of(contract):
                    quantise(built.root, method, layers)
    except NotModelled:
        return _Loaded(resolved)
    error: str | None = None
    try:
        load(built, tensors(checkpoint))
    except Refused as refused:
        error = str(refused)
    return _Loaded(resolved, built, error, _owners(built, target, contract, chosen))


@contextmanager
def _settings_of(contract: Contract) -> Iterator[None]:
    """Refusals of quantisation settings, where they are the release's."""
    try:
        with on_values_of_the_file("class"):
            yield
    except Refused as refused:
        if contract.quantisation:
            raise
        raise NotModelled(str(refused)) from refused


def _check_vocabulary(resolved: Resolved, target: Target | None) -> None:
    """A plain draft model scores the target's tokens (``config/speculative.py:1870-1886``)."""
    theirs, own = target.vocab_size if target is not None else None, resolved.fields.get("vocab_size", 0)
    if resolved.method == "draft_model" and theirs is not None and theirs != int(own):
        raise refuse_config("ValueError", "Target and draft model should have the same vocabulary size.")


def _build(
    resolved: Resolved, checkpoint: Checkpoint, target: Target | None, contract: Contract, runner: str
) -> Built:
    fields, kind = resolved.fields, kind_of(resolved.architecture)
    vocab = target.vocab_size if target is not None else None
    vocab = fields.get("vocab_size", 0) if vocab is None else vocab
    if kind in ("llama", "qwen3", "mla"):
        return eagle3.build(fields, kind, vocab, contract, parallel=resolved.parallel_drafting)
    if kind == "eagle":
        return eagle.build(fields, target.num_hidden_layers if target is not None else None)
    if kind is None:
        raise NotModelled(resolved.architecture)
    return dflash.build(fields, kind, vocab, runner, frozenset(info.name for info in checkpoint.files))


def _owners(
    built: Built, target: Target | None, contract: Contract, runner: str
) -> dict[str, sharing.Shared]:
    """Who owns the embedding and the head, by parameter name."""
    walked = dict(built.root.walk())
    owners: dict[str, sharing.Shared] = {}
    embed, head = walked["model.embed_tokens.weight"], walked.get("lm_head.weight")
    if built.shares_embed:
        theirs = (target.vocab_size, target.hidden_size) if target is not None else (None, None)
        size = (embed.rows, embed.shape[1])
        owners["model.embed_tokens.weight"] = sharing.embedding(
            contract, runner, built.own_embed, size, theirs
        )
    else:
        owners["model.embed_tokens.weight"] = sharing.kept(built.own_embed)
    if head is not None and built.shares_head:
        vocab = target.vocab_size if target is not None else None
        owners["lm_head.weight"] = sharing.head(contract, built.own_head, head.rows, vocab)
    elif head is not None:
        owners["lm_head.weight"] = sharing.kept(built.own_head)
    return owners


def _fill(parameter: Parameter, owner: sharing.Shared | None) -> Fill:
    if owner is not None and owner.owner == "target":
        return Fill((), "target", owner.problem)
    sources = tuple(sorted(parameter.sources))
    cut = "; ".join(parameter.cuts) or None
    if parameter.complete:
        return Fill(sources, "checkpoint", cut)
    if sources:
        return Fill(sources, "partly", cut)
    return Fill((), parameter.initial, owner.problem if owner is not None else None)
