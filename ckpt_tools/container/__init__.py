"""Open checkpoints lazily over a :class:`ByteSource`, and write them atomically.

Names are loaded on first use: reading headers must not pay for the writing half, for numpy or for torch. The
function ``fingerprint`` is imported from its module, whose name it shares.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckpt_tools.container.codes import CODES, Code
    from ckpt_tools.container.fingerprint import content_hashes
    from ckpt_tools.container.open import open_checkpoint
    from ckpt_tools.container.read import iter_tensor, read_ints, read_tensor
    from ckpt_tools.container.source import ByteSource, LocalSource
    from ckpt_tools.container.training import Epoch, TrainingOutput, training_output
    from ckpt_tools.container.values import TensorStats, scan
    from ckpt_tools.container.wrappers import Wrapper, unwrap

_HOME = {
    "CODES": "codes",
    "ByteSource": "source",
    "Code": "codes",
    "Epoch": "training",
    "LocalSource": "source",
    "TensorStats": "values",
    "TrainingOutput": "training",
    "Wrapper": "wrappers",
    "content_hashes": "fingerprint",
    "iter_tensor": "read",
    "open_checkpoint": "open",
    "read_ints": "read",
    "read_tensor": "read",
    "scan": "values",
    "training_output": "training",
    "unwrap": "wrappers",
}

__all__ = [
    "CODES",
    "ByteSource",
    "Code",
    "Epoch",
    "LocalSource",
    "TensorStats",
    "TrainingOutput",
    "Wrapper",
    "content_hashes",
    "iter_tensor",
    "open_checkpoint",
    "read_ints",
    "read_tensor",
    "scan",
    "training_output",
    "unwrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
