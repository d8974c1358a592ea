"""Repairs that a conversion makes only when it is asked to, each with what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckpt_tools.convert.casts import from_float64, to_float64
from ckpt_tools.formats.trained import BASE, mrope
from ckpt_tools.model import Rope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.model import Checkpoint, Draft, DraftFacts

INPUT_NORM, HIDDEN_NORM = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"


@dataclass(frozen=True)
class Repair:
    """A documented repair.

    Attributes:
        name: As ``--repair`` takes it.
        help: What it does and for which drafts.
        error: How exact the result is.
        facts: What it changes in the facts, or ``None``.
    """

    name: str
    help: str
    error: str
    facts: Callable[[DraftFacts], DraftFacts] | None = None


def _rope(facts: DraftFacts) -> DraftFacts:
    if mrope(facts):
        return facts
    return replace(facts, rope=replace(facts.rope or Rope(), theta=BASE))


_ALL = (
    Repair(
        "d2t-absolute",
        "rewrite a d2t of absolute target ids as the offsets that engines add to the row number",
        "exact",
    ),
    Repair(
        "rope-10000",
        "write rope_theta 10000, the base that EAGLE's and AngelSlim's training uses whatever the config says",
        "exact for drafts that those trainers made; wrong for all others",
        _rope,
    ),
    Repair(
        "norm-output-off",
        "write norm_output false for a SpecForge draft trained before PR #879, which fed the state before the norm",
        "exact for such drafts; wrong for later ones",
        lambda facts: replace(facts, norm_output=None),
    ),
    Repair(
        "raw-residual",
        "write norm_before_residual false for a Model-Optimizer draft, whose module keeps the raw state",
        "exact for drafts of Model-Optimizer; wrong for all others",
        lambda facts: replace(facts, norm_before_residual=None),
    ),
    Repair(
        "modelopt-double-norm",
        "fold layer 0's input_layernorm into hidden_norm, for a draft that Model-Optimizer 0.43 to 0.47 trained with both",
        "direction exact (cosine 1); scale off by 0.2 to 7 % per token, up to 20 % with a few massive channels",
    ),
)
REPAIRS: Mapping[str, Repair] = {repair.name: repair for repair in _ALL}


def repaired_facts(facts: DraftFacts, asked: tuple[str, ...]) -> DraftFacts:
    """The facts after the repairs that were asked for."""
    for name in asked:
        change = REPAIRS[name].facts
        facts = change(facts) if change is not None else facts
    return facts


def folded_norm(draft: Draft, checkpoint: Checkpoint, raw: Callable[[str], bytes]) -> bytes | None:
    """hidden_norm with input_layernorm folded in, over the root mean square of the latter's gains; ``None`` without them.

    ``hidden_norm(input_layernorm(h)) = w_h * w_in * h / rms(w_in * h)``: the product of the gains gives the direction exactly.
    """
    names = [draft.tensors.get(n) for n in (INPUT_NORM, HIDDEN_NORM)]
    if names[0] is None or names[1] is None:
        return None
    inner, outer = (to_float64(raw(n), checkpoint.tensors[n].dtype) for n in names if n is not None)
    scale = float((inner * inner).mean()) ** 0.5
    return from_float64(outer * inner / scale, checkpoint.tensors[names[1]].dtype, names[1])
