"""Loading without a remainder: every parameter gets its data and every tensor has a home, or it raises with the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch  # noqa: TID251  # model classes are what torch is for

from ckpt_tools.engines.sglang_ext.head import ARCHITECTURE, Head, HeadError, is_skipped, parameter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def load(
    head: Head,
    parameters: Mapping[str, torch.nn.Parameter],
    weights: Iterable[tuple[str, torch.Tensor]],
    default_loader: Callable[..., None],
) -> torch.Tensor | None:
    """Fill a model's parameters.

    Args:
        head: What the config describes.
        parameters: The model's own, by name; a shard each under tensor parallelism.
        weights: The folder's tensors, whole.
        default_loader: For parameters without a ``weight_loader`` of their own.

    Returns:
        The target's id of every draft id, int64 [draft vocabulary]; ``None`` when they are the same.

    Raises:
        HeadError: Names what has no data, no home, another shape, or ids outside the target's vocabulary.
    """
    unknown = sorted(set(parameters) - set(head.parameters()))
    if unknown:
        raise HeadError(
            f"{ARCHITECTURE}: nothing fills {', '.join(unknown)} (a quantised draft isn't supported)"
        )
    expected = head.tensors()
    found: dict[str, tuple[int, ...]] = {}
    ids: torch.Tensor | None = None
    for name, tensor in weights:
        found[name] = tuple(tensor.shape)
        if is_skipped(name) or found[name] != expected.get(name):
            continue
        if name == "d2t":
            ids = target_ids(tensor, head.vocab_size)
        elif name != "t2d":
            _fill(parameters, name, tensor, default_loader)
    refused = head.disagreement(found)
    if refused is not None:
        raise HeadError(refused)
    return ids


def target_ids(d2t: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Offsets as ids: the target's id of draft id i is i + d2t[i].

    Raises:
        HeadError: An id lies outside the target's vocabulary (the table isn't one of offsets).
    """
    ids = d2t.long() + torch.arange(d2t.shape[0], device=d2t.device)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise HeadError(
            f"{ARCHITECTURE}: d2t maps draft ids to {low}..{high} of a vocabulary of {vocab_size}; it must hold offsets "
            "(ckpt fix-keys --repair d2t-absolute rewrites absolute ids)"
        )
    return ids


def _fill(
    parameters: Mapping[str, Any], name: str, tensor: torch.Tensor, default_loader: Callable[..., None]
) -> None:
    home, shard = parameter_of(name)
    parameter = parameters[home]
    loader = getattr(parameter, "weight_loader", default_loader)
    if shard is None:
        loader(parameter, tensor)
    else:
        loader(parameter, tensor, shard)
