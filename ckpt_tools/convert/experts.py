"""Whether a layer's experts are all there and alike: only then can they be put into one tensor, or one tensor be cut into them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import finding
from ckpt_tools.convert.tensors import EXPERT, FUSED
from ckpt_tools.formats.facts import integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckpt_tools.model import Checkpoint, Draft, Finding

KINDS = ("gate", "up", "down")
_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
_BLOCKS = ("transformer_layer_config", "text_config")


def stated_experts(config: Mapping[str, object]) -> int | None:
    """The number of experts that a config states."""
    blocks = [config, *(b for k in _BLOCKS if isinstance(b := config.get(k), dict))]
    return next((n for b in blocks if (n := integer(b, *_COUNTS)) is not None), None)


def incomplete(checkpoint: Checkpoint, draft: Draft) -> Iterator[Finding]:
    """KEY009 for experts that are missing, SHP003 for experts that aren't like the others."""
    layers: dict[str, dict[tuple[int, str], str]] = {}
    for canonical, native in draft.tensors.items():
        if hit := EXPERT.match(canonical):
            layers.setdefault(hit[1], {})[int(hit[2]), hit[3]] = native
        elif (hit := FUSED.match(canonical)) and not _cuttable(checkpoint.tensors[native].shape, hit[2]):
            yield _odd(native, f"{list(checkpoint.tensors[native].shape)}, expected [experts, rows, columns]")
    for base, found in layers.items():
        count = stated_experts(checkpoint.config or {}) or 1 + max(index for index, _ in found)
        missing = [
            f"{base}.{index}.{kind}_proj.weight"
            for index in range(count)
            for kind in KINDS
            if (index, kind) not in found
        ]
        if missing:
            listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            yield finding(
                "KEY009",
                f"{listed} {'are' if len(missing) > 1 else 'is'}n't there: the layer has {count} experts, and readers count them",
                tensor=missing[0],
                hint="take the target's files again, or finish the download",
            )
            continue
        yield from _unlike(checkpoint, found)


def _cuttable(shape: tuple[int, ...], kind: str) -> bool:
    return len(shape) == 3 and not (kind == "gate_up" and shape[1] % 2)


def _unlike(checkpoint: Checkpoint, found: Mapping[tuple[int, str], str]) -> Iterator[Finding]:
    """Experts whose shape or dtype isn't that of most of their kind; gate and up lie side by side."""
    for kinds in (("gate", "up"), ("down",)):
        infos = [checkpoint.tensors[native] for (_, kind), native in found.items() if kind in kinds]
        seen = Counter((t.dtype, t.shape) for t in infos)
        usual = seen.most_common(1)[0][0]
        odd = next((t for t in infos if (t.dtype, t.shape) != usual), None)
        if odd is not None:
            yield _odd(odd.name, f"{odd.dtype} {list(odd.shape)}, the others are {usual[0]} {list(usual[1])}")


def _odd(native: str, says: str) -> Finding:
    return finding("SHP003", f"{native} is {says}", tensor=native, hint="export the layer again from one run")
