"""TensorRT-LLM as one of the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.trtllm import loadmap
from ckpt_tools.engines.trtllm.contract import CONTRACTS

if TYPE_CHECKING:
    from ckpt_tools.model import Checkpoint, Engine, LoadMap, Target


@dataclass(frozen=True)
class TensorRTLLM:
    """TensorRT-LLM's contract (``engines.EngineContract``)."""

    name: str = "trtllm"
    contracts: tuple[str, ...] = CONTRACTS
    default: str = CONTRACTS[-1]

    def load_map(
        self,
        engine: Engine,
        checkpoint: Checkpoint,
        target: Target | None = None,
        *,
        algorithm: str | None = None,
        **options: Any,
    ) -> LoadMap:
        """See :func:`ckpt_tools.engines.trtllm.loadmap.load_map`.

        Args:
            engine: Resolved for ``trtllm``.
            checkpoint: Headers and config are read, no values.
            target: Not needed: the draft's loader reads nothing of it.
            algorithm: What the draft is.
            options: ``captured``: how many layers ``eagle3_layers_to_capture`` names.
        """
        return loadmap.load_map(
            engine, checkpoint, target, algorithm=algorithm, captured=options.get("captured")
        )
