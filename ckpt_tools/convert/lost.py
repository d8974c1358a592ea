"""Whether the output says everything that the input says: its own config is read back and compared."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding
from ckpt_tools.formats import detect, read_as
from ckpt_tools.model import Checkpoint, Rope, Severity, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckpt_tools.convert.plan import Tensor
    from ckpt_tools.formats.base import Format, Variant
    from ckpt_tools.model import Draft, DraftFacts, Finding, Target

#: Facts of training, of the target or of bookkeeping: their loss changes nothing that an engine computes.
HARMLESS = frozenset(
    {
        "embed_requires_grad", "dtype", "tie_word_embeddings", "num_target_layers", "attention_mode",
        "confidence_head_alpha", "layer_type", "draft_vocab_size",
    }
)  # fmt: skip
#: How ids are counted is the format's own affair, the target's name stands in conversion.json, and fc.bias speaks for itself.
_IGNORED = frozenset({"capture_convention", "extra", "verifier", "fc_bias"})


def flat_facts(facts: DraftFacts) -> dict[str, Any]:
    """Facts by name, those of an algorithm among them, in a form that compares: absent is false, and no layer that slides is none."""
    out = {f.name: getattr(facts, f.name) for f in fields(facts) if f.name not in _IGNORED}
    out |= dict(facts.extra)
    kinds = out.get("layer_types")
    if kinds is not None and set(kinds) == {"full_attention"}:
        out["layer_types"] = None
    if out.get("layer_types") is None and out.get("sliding_window") is not None:
        out["layer_types"] = ("sliding_attention",) * (facts.num_layers or 1)
    if out["draft_vocab_size"] == out["vocab_size"]:
        out["draft_vocab_size"] = None
    if out["target_hidden_size"] == out["hidden_size"]:
        out["target_hidden_size"] = None
    rope = out.get("rope")
    if rope is None or rope == Rope():
        out["rope"] = None
    elif isinstance(rope, Rope) and rope.scaling is not None:
        out["rope"] = Rope(rope.theta, dict(rope.scaling), rope.partial_rotary_factor)
    return {k: v for k, v in out.items() if v is not None and v is not False}


def differing(before: DraftFacts, after: DraftFacts) -> dict[str, tuple[Any, Any]]:
    """Facts that were stated and aren't stated so any more: name -> (before, after)."""
    one, two = flat_facts(before), flat_facts(after)
    return {k: (v, two.get(k)) for k, v in one.items() if two.get(k) != v}


def read_back(
    tensors: Sequence[Tensor],
    config: Mapping[str, Any],
    to: Format,
    variant: Variant,
    target: Target | None,
) -> tuple[Checkpoint, Draft]:
    """The output's headers, and what its own format reads in them."""
    infos = {t.name: TensorInfo(t.name, t.dtype, t.shape, t.shard, 0, 0) for t in tensors}
    made = Checkpoint("", "", config, "", infos, ())
    return made, read_as(made, detect(made), to, variant, target=target)


def lost_facts(before: DraftFacts, back: Draft, to: Format, explained: frozenset[str]) -> Iterator[Finding]:
    """One finding per fact that the format doesn't carry.

    Args:
        back: The output as its format reads it; what all of its readers take where it is silent counts as said.
        explained: Facts whose loss another finding already names.
    """
    after = to.implied.facts(back.facts, back.algorithm) if to.implied is not None else back.facts
    for name, (was, now) in differing(before, after).items():
        if name in explained:
            continue
        yield finding(
            "CFG014",
            f"{name} is {_shown(was)} in the source, and {to.title}'s config "
            + (f"would say {_shown(now)}" if now is not None else "has no place for it"),
            file="config.json",
            severity=Severity.INFO if name in HARMLESS else Severity.ERROR,
        )


def unsaid(before: DraftFacts, back: Draft) -> dict[str, Any]:
    """Facts that the output doesn't state, by name, for ``conversion.json``: the way back needs them.

    The draft's vocabulary isn't among them: it is that of the head and the tables that are there, or left behind with them.
    """
    differ = differing(before, back.facts).items()
    return {name: was for name, (was, now) in differ if now is None and name != "draft_vocab_size"}


def _shown(value: Any) -> str:
    name = getattr(value, "name", None)
    return str(list(value) if isinstance(value, tuple) else name if name is not None else value)
