"""Which files of a folder are its weights, chosen as SGLang and vLLM choose them."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpt_tools.model import FileKind

# The first pattern with a match wins (SGLang 0.5.23 model_loader/loader.py:490-553, vLLM 0.33.0
# default_loader.py:147-263).
_PATTERNS: tuple[tuple[str, FileKind], ...] = (
    (".safetensors", "safetensors"),
    (".bin", "pickle"),
    (".pt", "pickle"),
)

# Pickles of training that aren't the draft's weights. The engines skip the first five names themselves; the
# others they would load, and fail on.
_LEFTOVERS = (
    "*training_args.bin",
    "*optimizer.bin",
    "*optimizer.pt",
    "*scheduler.pt",
    "*scaler.pt",
    "scheduler*.bin",
    "optimizer*.pt",
    "optimizer*.bin",
    "scheduler*.pt",
    "random_states_*.pkl",
    "rng_state*.pth",
    "training_state_rank*.pt",
    "modelopt_state.pth",
    "*_optim_states.pt",
    "*_model_states.pt",
    "scaler.bin",
    "sampler.bin",
    "trainer_state.pt",
)
# Beside exported weights, SpecForge's training_state.pt is a leftover; alone, it holds the draft.
_TRAINING_STATE = "training_state.pt"

# Small pickles that belong to a draft without being its weights.
SIDE_FILES = ("vocab_mapping.pt", "cache.pt", "d2t.pt", "t2d.pt", "mask_embedding.pt", "eagle_meta.pt")


@dataclass(frozen=True)
class Choice:
    """The weights of a folder.

    Attributes:
        kind: What they are, ``None`` when there are none.
        names: In load order.
        unread: Weight-like files of a kind that engines don't look at once they found a better one.
        leftovers: Files of training.
    """

    kind: FileKind | None
    names: tuple[str, ...]
    unread: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


def choose(names: Iterable[str]) -> Choice:
    """Choose among the names of a folder's files; those with a "/" lie deeper than engines look."""
    top = sorted(name for name in names if "/" not in name)
    leftovers = [name for name in top if any(fnmatch.fnmatchcase(name, pattern) for pattern in _LEFTOVERS)]
    rest = [name for name in top if name not in set(leftovers) and name not in SIDE_FILES]
    for index, (suffix, kind) in enumerate(_PATTERNS):
        chosen = tuple(name for name in rest if name.endswith(suffix))
        if not chosen:
            continue
        unread = [name for name in rest for other, _ in _PATTERNS[index + 1 :] if name.endswith(other)]
        if _TRAINING_STATE in unread:
            unread.remove(_TRAINING_STATE)
            leftovers.append(_TRAINING_STATE)
        return Choice(kind, chosen, tuple(unread), tuple(leftovers))
    return Choice(None, (), (), tuple(leftovers))


def how_to_merge(names: Iterable[str]) -> str | None:
    """What to type when a folder holds the sharded state of a training run instead of weights."""
    for name in names:
        if name.endswith("_model_states.pt"):  # DeepSpeed, which copies its merging script beside them
            return "merge the DeepSpeed shards first: python zero_to_fp32.py . OUT"
        if name.endswith(".distcp"):
            return (
                "merge the distributed checkpoint first: "
                "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER OUT.pt"
            )
    return None


def kind_of(name: str) -> FileKind:
    """The kind of a weight file by its name; ``other`` when it is none."""
    for suffix, kind in (*_PATTERNS, (".pth", "pickle")):
        if name.endswith(suffix):
            return kind
    return "other"
