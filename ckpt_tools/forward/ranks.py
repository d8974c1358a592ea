"""Whether a head that is cut over ranks computes what the whole one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.heads import BlockHead, build
from ckpt_tools.forward.smoke import BATCH, Check, cast

if TYPE_CHECKING:
    from ckpt_tools.forward.equivalence import Side
    from ckpt_tools.forward.parallel import Group


@torch.no_grad()
def compare(side: Side, group: Group, steps: int, *, tokens: int = 16, seed: int = 0) -> Check:
    """Logits of all ranks together beside one rank's, in float32 on the same inputs.

    Raises:
        InputError: The head can't be cut into that many parts.
    """
    wide = cast(side, torch.float32, group.device)
    cut, whole = (
        build(wide.spec, wide.tensors, wide.target, group),
        build(wide.spec, wide.tensors, wide.target),
    )
    if isinstance(whole, BlockHead):
        steps = min(steps, whole.max_steps)
    generator = torch.Generator().manual_seed(seed)
    columns = whole.head.shape[0]  # type: ignore[attr-defined]  # every head has one
    rows = whole.to_target(torch.randint(0, columns, (1, tokens), generator=generator).to(group.device))
    width = wide.spec.num_aux * wide.spec.target_hidden_size
    aux = torch.randn(1, tokens, width, generator=generator).to(group.device)
    together = cut.draft(rows, aux, steps)
    alone = whole.draft(rows, aux, steps, forced=together.ids[:, :-1])
    # a selector puts -inf where it excludes: the ranks have to exclude the same
    said = alone.logits.isfinite()
    apart = (together.logits - alone.logits)[said].abs().max()
    difference = float(apart / alone.logits[said].std())
    same = together.ids.equal(alone.ids) and together.logits.isfinite().equal(said)
    return Check(
        "ranks-equal-one",
        difference <= BATCH and same,
        difference,
        BATCH,
        f"{group.size} ranks differ from one by {difference:.3g} of the logits' spread",
    )
