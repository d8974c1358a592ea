"""The norm flags of a draft's config that TensorRT-LLM reads, and where it looks for them.

modeling_speculative.py ``Eagle3DraftModel.__init__``: ``norm_before_fc`` in ``eagle_config`` alone, ``fc_norm`` on the top level
alone, the post-norm hidden state by ``norm_output`` on the top level or ``return_hidden_post_norm`` in ``eagle_config``. The
residual of a layer is always its un-normed input (``Eagle3DecoderLayer.forward``): no flag changes that.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Flag -> where it is looked for: (inside ``eagle_config``, name).
READ: Mapping[str, tuple[tuple[bool, str], ...]] = MappingProxyType(
    {
        "norm_before_fc": ((True, "norm_before_fc"),),
        "fc_norm": ((False, "fc_norm"),),
        "norm_output": ((False, "norm_output"), (True, "return_hidden_post_norm")),
        "norm_before_residual": (),
    }
)


def is_on(flag: str, config: Mapping[str, Any]) -> bool:
    """Whether the engine sees *flag* set in this ``config.json``."""
    nested = config.get("eagle_config")
    eagle = nested if isinstance(nested, dict) else {}
    return any(bool((eagle if inside else config).get(name)) for inside, name in READ[flag])


def places(flag: str) -> tuple[str, ...]:
    """Where the engine looks for *flag*, as paths in ``config.json``; empty when it knows no such flag."""
    return tuple(f"eagle_config.{name}" if inside else name for inside, name in READ[flag])
