"""vLLM as one of the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import loadmap
from ckpt_tools.engines.vllm.contract import CONTRACTS

if TYPE_CHECKING:
    from ckpt_tools.model import Checkpoint, Engine, LoadMap, Target


class Vllm:
    """The contracts of vLLM that are known, and their load map."""

    name = "vllm"
    contracts = tuple(CONTRACTS)
    default = tuple(CONTRACTS)[-1]

    def load_map(
        self,
        engine: Engine,
        checkpoint: Checkpoint,
        target: Target | None = None,
        *,
        algorithm: str | None = None,
        **options: Any,
    ) -> LoadMap:
        """What vLLM's loader does with a draft.

        Args:
            engine: Name and version.
            checkpoint: The draft.
            target: What it is served with.
            algorithm: What the draft is; it decides the method where neither *options* nor config.json do.
            options: ``method``, ``parallel_drafting`` and ``runner`` (see :func:`ckpt_tools.engines.vllm.loadmap.load_map`).
        """
        return loadmap.load_map(engine, checkpoint, target, algorithm=algorithm, **options)
