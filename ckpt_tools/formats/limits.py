"""Limits that several formats share: what a head may have that a layout, or the engine that it is for, has no home for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.formats.base import Limit
from ckpt_tools.formats.facts import qk_norms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

EAGLE3 = ("eagle3", "peagle")


def qk_norm_names(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """q/k norms of qwen3 layers."""
    names = qk_norms("eagle3", tensors)
    return (
        f"{len(names)} q_norm/k_norm tensors (qwen3 layers) have no place in a llama layer" if names else None
    )


def layer_biases(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    """Attention and MLP biases."""
    names = [n for n in tensors if n.startswith("layers.") and n.endswith(".bias")]
    if not names:
        return (
            "attention_bias is true and the layers are built without biases" if facts.attention_bias else None
        )
    return f"{len(names)} attention or MLP biases (such as {names[0]}) have no place"


def fc_bias(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    """A bias in fc."""
    return "fc.bias: fc is built without a bias" if facts.fc_bias or "fc.bias" in tensors else None


def flag(name: str) -> Limit:
    """A norm flag of EAGLE-3 that a format has no field for."""
    tensor = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}.get(name)

    def lost(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
        return (
            f"{name} is true, and this format has no such field"
            if getattr(facts, name) or tensor in tensors
            else None
        )

    code = "NRM001" if name == "norm_before_residual" else "NRM005"
    title = "norm-before-residual-unsupported" if code == "NRM001" else "norm-flag-not-implemented"
    return Limit(code, title, lost, "keep the draft in SGLang's or vLLM's format", algorithms=EAGLE3)


def window(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """A sliding window."""
    if facts.sliding_window is None:
        return None
    return f"a sliding window of {facts.sliding_window}, which this format has no field for"


def one_layer(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """More than one draft layer."""
    return (
        f"{facts.num_layers} draft layers; this format's head has one"
        if (facts.num_layers or 1) > 1
        else None
    )


def three_captured(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """Another number of captured layers than three."""
    return (
        None
        if facts.num_aux in (None, 3)
        else f"{facts.num_aux} captured layers; this format's fc takes three"
    )


def no_mla(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """MLA attention."""
    return "mla layers: this format has llama layers alone" if facts.layer_type == "mla" else None


def own_width(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """A draft of another width than its target."""
    if facts.target_hidden_size in (None, facts.hidden_size):
        return None
    return f"hidden_size {facts.hidden_size} differs from target_hidden_size {facts.target_hidden_size}"


def activation(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    """Another activation than silu."""
    return (
        None
        if facts.hidden_act in (None, "silu")
        else f"hidden_act is {facts.hidden_act}; this format's head has silu"
    )


def reduced_markov(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    """A DSpark head over a reduced vocabulary."""
    if "d2t" not in tensors and facts.draft_vocab_size in (None, facts.vocab_size):
        return None
    return (
        f"a reduced vocabulary of {facts.draft_vocab_size}: SGLang's DSpark head has the target's {facts.vocab_size} rows in "
        "markov_w2 and knows no d2t"
    )


def markov_kind(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    """A DSpark head with another Markov head than the vanilla one."""
    parts = [n for n in tensors if n.startswith(("markov_head.gate_proj.", "markov_head.joint_proj."))]
    kind = facts.extra.get("markov_head_type")
    if not parts and kind in (None, "vanilla"):
        return None
    return f"a {kind or 'gated or rnn'} Markov head: vLLM's has no gate_proj or joint_proj and raises on their tensors"


KEEP = "keep the draft in a format that carries it: --to sglang, --to vllm or --to speculators"
QK_NORMS = Limit("NRM002", "qk-norms-unsupported", qk_norm_names, KEEP, algorithms=EAGLE3)
BIASES = Limit("KEY005", "bias-dropped-by-engine", layer_biases, KEEP, algorithms=EAGLE3)
FC_BIAS = Limit("KEY005", "bias-dropped-by-engine", fc_bias, KEEP, algorithms=EAGLE3)
WINDOW = Limit("LAY007", "window-inexpressible", window, KEEP, algorithms=EAGLE3)
ONE_LAYER = Limit("LAY008", "layer-count-inexpressible", one_layer, KEEP, algorithms=EAGLE3)
THREE = Limit("CAP015", "capture-count-inexpressible", three_captured, KEEP, algorithms=EAGLE3)
NO_MLA = Limit("LAY004", "layer-type-unsupported", no_mla, KEEP, algorithms=EAGLE3)
OWN_WIDTH = Limit("SHP004", "draft-width-unsupported", own_width, KEEP, algorithms=EAGLE3)
SILU = Limit("CFG006", "activation-unsupported", activation, KEEP, algorithms=EAGLE3)
REDUCED_MARKOV = Limit(
    "PAR011",
    "reduced-vocabulary-unsupported",
    reduced_markov,
    "vLLM serves it (--to vllm)",
    algorithms=("dspark",),
)
VANILLA_MARKOV = Limit(
    "PAR014",
    "markov-head-unsupported",
    markov_kind,
    "SGLang serves it, with the target's whole vocabulary (--to sglang)",
    algorithms=("dspark",),
)
