"""SGLang with ckpt's model package loaded: what it does with a draft, strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang import engine as sglang
from ckpt_tools.engines.sglang import hf
from ckpt_tools.engines.sglang.features import features
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.sglang_ext.head import ARCHITECTURE, Head, HeadError, read_head
from ckpt_tools.engines.sglang_ext.releases import release
from ckpt_tools.engines.versions import nearest
from ckpt_tools.model import Engine, Fill, LoadMap

if TYPE_CHECKING:
    from ckpt_tools.model import Checkpoint, Target

_EMBED = "model.embed_tokens.weight"


def builds(checkpoint: Checkpoint) -> bool:
    """Whether ckpt's class is the one that SGLang builds: the first of ``architectures`` that is registered."""
    named = (checkpoint.config or {}).get("architectures")
    return isinstance(named, list) and ARCHITECTURE in named


def load_map(
    engine: Engine,
    checkpoint: Checkpoint,
    target: Target | None = None,
    *,
    algorithm: str | None = None,
    cuda_graphs: bool = True,
) -> LoadMap:
    """What ckpt's class does with a folder that names it: all is filled, or it raises with the names.

    Args:
        engine: Resolved for ``sglang-ext``.
        checkpoint: Headers and config are read, no values. A class that isn't ckpt's loads as in SGLang.
        target: Not needed: the draft's loader reads nothing of it.
        algorithm: As for SGLang; ckpt's class is served as EAGLE3 alone.
        cuda_graphs: Decoding is captured.
    """
    if not builds(checkpoint):
        contract = nearest(sglang.ENGINE.contracts, engine.version)
        plain = Engine(sglang.ENGINE.name, engine.version, contract, engine.why)
        return sglang.ENGINE.load_map(plain, checkpoint, target, algorithm=algorithm)
    names = tuple(checkpoint.tensors)
    try:
        config = hf.read(checkpoint.config or {}, features(engine).transformers, checkpoint.root)
        head = read_head(config.attributes)
        limit = head.limit(release(engine.contract)) if cuda_graphs else None
        if limit is not None:
            raise HeadError(limit)
    except Refused as error:
        return LoadMap({}, names, str(error), None, error.stage)
    except HeadError as error:
        return LoadMap({}, names, _raised(error), ARCHITECTURE, "class")
    refused = head.disagreement({name: t.shape for name, t in checkpoint.tensors.items()})
    expected = head.tensors()
    loaded = {n for n in names if n in expected and checkpoint.tensors[n].shape == expected[n]} - {"t2d"}
    parameters = {
        name: _fill(name, tensors, frozenset(loaded), head) for name, tensors in head.parameters().items()
    }
    return LoadMap(
        parameters,
        tuple(n for n in names if n not in loaded),
        _raised(HeadError(refused)) if refused else None,
        ARCHITECTURE,
        "load" if refused else None,
    )


def _fill(parameter: str, tensors: tuple[str, ...], loaded: frozenset[str], head: Head) -> Fill:
    sources = tuple(t for t in tensors if t in loaded)
    if parameter == _EMBED and not head.own_embedding:
        return Fill(sources, "target")
    if len(sources) == len(tensors):
        return Fill(sources, "checkpoint")
    if sources:
        return Fill(sources, "partly")
    return Fill((), "default" if "norm" in tensors[0] else "nothing")


def _raised(error: HeadError) -> str:
    return f"{type(error).__name__}: {error}"
