"""Prefixes that training wrappers put before every tensor name, and that belong to no format."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# DDP and DeepSpeed, torch.compile, FSDP, SpecForge, Hugging Face, Model-Optimizer, peft.
PREFIXES = (
    "module.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "draft_model.",
    "eagle_module.",
    "dflash_module.",
    "base_model.",
    "model.",
)
# torch.compile and FSDP wrap inner modules, too, so these may stand anywhere in a name.
_INNER = ("_orig_mod.", "_fsdp_wrapped_module.")
# Registered beside the wrapped module by some writers, and so left without its prefix.
_UNPREFIXED = ("d2t", "t2d", "lm_head.", "embed_tokens.")


@dataclass(frozen=True)
class Wrapper:
    """What wraps the names of a checkpoint.

    Attributes:
        prefix: The common prefix, possibly of several parts (``module.draft_model.``), or "".
        names: Name in the files -> name without wrappers. Without a collision, always one to one.
        unprefixed: Names in the files that don't carry the prefix although all others do.
        inner: Wrapper parts taken out of the middle of names (``_orig_mod.``).
        collisions: Name without wrappers -> names in the files that would share it; these keep their own.
    """

    prefix: str
    names: Mapping[str, str]
    unprefixed: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    collisions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


def unwrap(names: Iterable[str]) -> Wrapper:
    """Find the wrapper prefix that all names share.

    A prefix counts only when every name carries it, save ``d2t``, ``t2d``, ``lm_head.*`` and
    ``embed_tokens.*``, which some writers register beside the wrapped module.
    """
    raw = list(names)
    stripped = {name: name for name in raw}
    prefix = ""
    while (part := _common_part(stripped.values())) is not None:
        prefix += part
        stripped = {name: now.removeprefix(part) for name, now in stripped.items()}
    inner = tuple(part for part in _INNER if any(part in now for now in stripped.values()))
    if not prefix and not inner:
        return Wrapper("", MappingProxyType(stripped))
    unprefixed = tuple(name for name in raw if not name.startswith(prefix))
    for part in inner:
        stripped = {name: now.replace(part, "") for name, now in stripped.items()}
    by_target: dict[str, list[str]] = {}
    for name, now in stripped.items():
        by_target.setdefault(now, []).append(name)
    collisions = {now: tuple(sources) for now, sources in by_target.items() if len(sources) > 1}
    for sources in collisions.values():
        for name in sources:
            stripped[name] = name
    return Wrapper(prefix, MappingProxyType(stripped), unprefixed, inner, MappingProxyType(collisions))


def _common_part(names: Iterable[str]) -> str | None:
    bound = [name for name in names if not name.startswith(_UNPREFIXED)]
    if not bound:
        return None
    for part in PREFIXES:
        if bound[0].startswith(part) and all(n.startswith(part) and len(n) > len(part) for n in bound):
            return part
    return None
