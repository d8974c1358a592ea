"""What became of every field of the input's config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.convert.plan import ConfigEdit
from ckpt_tools.formats.flat import FRAMEWORK_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Why fields that a target format doesn't have are left behind.
_REASONS: Mapping[str, str] = {
    **FRAMEWORK_ONLY,
    "sliding_window": "no field for it here; a window that some layer uses is named in a finding",
    "use_sliding_window": "no field for it here; a window that some layer uses is named in a finding",
    "layer_types": "no field for it here; a window that some layer uses is named in a finding",
    "max_window_layers": "no field for it here; a window that some layer uses is named in a finding",
    "embed_requires_grad": "of training",
    "attention_bias": "false is the default, and no engine reads it here",
    "mlp_bias": "false is the default, and no engine reads it here",
}


def _leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}")
    else:
        yield at, value


def config_edits(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[ConfigEdit, ...]:
    """Every leaf that changed, moved or went, with the reason; leaves that stay are left out."""
    old, new = dict(_leaves(dict(before))), dict(_leaves(dict(after)))
    edits: list[ConfigEdit] = []
    for at, value in old.items():
        if at in new:
            if new[at] != value:
                edits.append(ConfigEdit(at, "set", new[at], f"was {value!r}"))
            continue
        leaf = at.rsplit("/", 1)[-1]
        moved = next(
            (n for n, v in new.items() if n not in old and n.rsplit("/", 1)[-1] == leaf and v == value), None
        )
        if moved is not None:
            edits.append(ConfigEdit(at, "moved", moved, None))
        elif value is None:
            edits.append(ConfigEdit(at, "dropped", None, "null"))
        else:
            parts = at.strip("/").split("/")
            reason = next(
                (_REASONS[p] for p in parts if p in _REASONS),
                "this format spells it otherwise or has no such field",
            )
            edits.append(ConfigEdit(at, "dropped", value, reason))
    arrived = {e.value for e in edits if e.action == "moved"}
    edits += [
        ConfigEdit(at, "set", value, "added")
        for at, value in new.items()
        if at not in old and at not in arrived
    ]
    return tuple(edits)
