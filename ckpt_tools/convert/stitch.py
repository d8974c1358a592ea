"""Putting next-token layers back into their target: its files as they are, with the layers' tensors in place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.convert.plan import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckpt_tools.model import Checkpoint

#: Tensors of a draft that never go into a target: they are the target's own.
TARGETS_OWN = ("verifier_lm_head.weight", "embed_tokens.weight", "lm_head.weight")


def stitched(target: Checkpoint, layers: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The target's tensors in their order and shards, each replaced by the layers' of the same name; new ones go last.

    Args:
        target: The target, headers alone.
        layers: The draft's tensors under the target's names.
    """
    ours = {t.name: t for t in layers}
    out: list[Tensor] = []
    for name, info in target.tensors.items():
        if name in ours:
            new = ours.pop(name)
            out.append(_in(new, info.file))
        else:
            out.append(Tensor(name, info.dtype, info.shape, info.file, name, info.dtype, origin="target"))
    last = out[-1].shard if out else "model.safetensors"
    return (*out, *(_in(t, last) for t in ours.values()))


def _in(tensor: Tensor, shard: str) -> Tensor:
    return replace(tensor, shard=shard)


def stitched_config(target: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The target's config; a count of next-token layers that it states as 0 or null becomes theirs."""
    config = dict(target)
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        if key in config and not config[key]:
            config[key] = layers
    return config
