"""The canonical tensors of every draft algorithm: names, shapes, and when they must be there.

Shapes are products of symbols: ``H`` hidden size, ``T`` target hidden size (``H`` unless stated), ``A`` attention
heads, ``K`` key/value heads, ``D`` head dimension, ``I`` intermediate size, ``V`` vocabulary, ``W`` draft
vocabulary, ``N`` captured layers, and numbers. Linear weights are [out, in].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.formats.names import fits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts


@dataclass(frozen=True)
class Slot:
    """One canonical tensor of an algorithm.

    Attributes:
        name: Canonical name pattern.
        shape: Products of symbols, per dimension; ``None`` when any shape is right.
        need: ``always``, ``never`` (optional), or the fact that makes it needed.
    """

    name: str
    shape: tuple[str, ...] | None
    need: str = "always"


def _attention(first_in: str, rest_in: str = "H") -> tuple[Slot, ...]:
    """q/k/v/o of a decoder layer; layer 0 may take a wider input than the others."""
    slots = []
    for index, width in (("0", first_in), ("{n}", rest_in)):
        base = f"layers.{index}.self_attn"
        slots += [
            Slot(f"{base}.q_proj.weight", ("A*D", width)),
            Slot(f"{base}.k_proj.weight", ("K*D", width)),
            Slot(f"{base}.v_proj.weight", ("K*D", width)),
            Slot(f"{base}.o_proj.weight", ("H", "A*D")),
        ]
    slots += [
        Slot("layers.{i}.self_attn.q_proj.bias", ("A*D",), "attention_bias"),
        Slot("layers.{i}.self_attn.k_proj.bias", ("K*D",), "attention_bias"),
        Slot("layers.{i}.self_attn.v_proj.bias", ("K*D",), "attention_bias"),
        Slot("layers.{i}.self_attn.o_proj.bias", ("H",), "attention_bias"),
        Slot("layers.{i}.self_attn.q_norm.weight", ("D",), "qk_norm"),
        Slot("layers.{i}.self_attn.k_norm.weight", ("D",), "qk_norm"),
    ]
    return tuple(slots)


_MLA = (
    Slot("layers.{i}.self_attn.q_a_proj.weight", ("q_lora_rank", "2*H"), "mla"),
    Slot("layers.{i}.self_attn.q_a_layernorm.weight", ("q_lora_rank",), "mla"),
    Slot("layers.{i}.self_attn.q_b_proj.weight", None, "mla"),
    Slot("layers.{i}.self_attn.kv_a_proj_with_mqa.weight", None, "mla"),
    Slot("layers.{i}.self_attn.kv_a_layernorm.weight", ("kv_lora_rank",), "mla"),
    Slot("layers.{i}.self_attn.kv_b_proj.weight", None, "mla"),
)

_MLP = (
    Slot("layers.{i}.mlp.gate_proj.weight", ("I", "H")),
    Slot("layers.{i}.mlp.up_proj.weight", ("I", "H")),
    Slot("layers.{i}.mlp.down_proj.weight", ("H", "I")),
    Slot("layers.{i}.mlp.gate_proj.bias", ("I",), "mlp_bias"),
    Slot("layers.{i}.mlp.up_proj.bias", ("I",), "mlp_bias"),
    Slot("layers.{i}.mlp.down_proj.bias", ("H",), "mlp_bias"),
)

_VOCABULARY = (
    Slot("embed_tokens.weight", ("V", "H"), "never"),
    Slot("lm_head.weight", ("W", "H")),
    Slot("d2t", ("W",), "reduced_vocabulary"),
    Slot("t2d", ("V",), "never"),
)

EAGLE3 = (
    *_VOCABULARY,
    Slot("fc.weight", ("H", "T*N")),
    Slot("fc.bias", ("H",), "fc_bias"),
    Slot("input_norm.weight", ("T*N",), "norm_before_fc"),
    Slot("fc_norm.{j}.weight", ("T",), "fc_norm"),
    Slot("layers.{i}.input_layernorm.weight", ("H",)),
    Slot("layers.0.hidden_norm.weight", ("H",)),
    Slot("layers.{i}.post_attention_layernorm.weight", ("H",)),
    *_attention("2*H"),
    *_MLA,
    *_MLP,
    Slot("norm.weight", ("H",)),
)

PEAGLE = (*EAGLE3, Slot("mask_hidden", None))

EAGLE = (
    Slot("embed_tokens.weight", ("V", "H"), "never"),
    Slot("lm_head.weight", ("V", "H"), "never"),
    Slot("fc.weight", ("H", "2*H")),
    Slot("fc.bias", ("H",), "fc_bias"),
    Slot("layers.{i}.input_layernorm.weight", ("H",), "never"),
    Slot("layers.{i}.post_attention_layernorm.weight", ("H",)),
    *_attention("H"),
    *_MLP,
    Slot("embedding_layernorm.weight", ("H",), "never"),
    Slot("pre_lm_head_layernorm.weight", ("H",), "never"),
)

_DFLASH_BODY = (
    Slot("fc.weight", ("H", "T*N")),
    Slot("hidden_norm.weight", ("H",)),
    Slot("layers.{i}.input_layernorm.weight", ("H",)),
    Slot("layers.{i}.post_attention_layernorm.weight", ("H",)),
    *_attention("H"),
    *_MLP,
    Slot("norm.weight", ("H",)),
    Slot("embed_tokens.weight", ("V", "H"), "never"),
    Slot("lm_head.weight", ("W", "H"), "reduced_vocabulary"),
    Slot("d2t", ("W",), "reduced_vocabulary"),
    Slot("t2d", ("V",), "never"),
)

DFLASH = _DFLASH_BODY

DFLASH2 = (
    *_DFLASH_BODY,
    Slot("layers.{i}.attention_conv.base_kernel", None),
    Slot("layers.{i}.attention_conv.kernel_projection.weight", None),
    Slot("layers.{i}.mlp_conv.base_kernel", None),
    Slot("layers.{i}.mlp_conv.kernel_projection.weight", None),
    Slot("candidate_selector.predecessor_codebook", None),
    Slot("candidate_selector.successor_codebook", None),
    Slot("candidate_selector.hidden_projection.weight", None),
)

DOMINO = (
    *_DFLASH_BODY,
    Slot("prefix_gru.weight_ih_l0", None),
    Slot("prefix_gru.weight_hh_l0", None),
    Slot("embed_proj.0.weight", None),
    Slot("embed_proj.2.weight", None),
)

DSPARK = (
    *_DFLASH_BODY,
    Slot("markov_head.markov_w1.weight", None, "markov"),
    Slot("markov_head.markov_w2.weight", None, "markov"),
    Slot("markov_head.gate_proj.weight", None, "never"),
    Slot("markov_head.gate_proj.bias", None, "never"),
    Slot("markov_head.joint_proj.weight", None, "never"),
    Slot("markov_head.joint_proj.bias", None, "never"),
    Slot("confidence_head.proj.weight", None, "never"),
    Slot("confidence_head.proj.bias", None, "never"),
)

XPRESS = (
    *_DFLASH_BODY,
    *(
        Slot(f"refiner_head.{part}.weight", None)
        for part in (
            "token_embed",
            "down_h",
            "down_g",
            "in_proj",
            "mlp_gate",
            "mlp_up",
            "mlp_down",
            "readout",
        )
    ),
    Slot("refiner_head.mix_l", None),
)

MTP = (
    Slot("mtp_layers.{i}.hidden_layernorm.weight", ("H",)),
    Slot("mtp_layers.{i}.token_layernorm.weight", ("H",)),
    Slot("mtp_layers.{i}.final_layernorm.weight", ("H",)),
    Slot("mtp_layers.{i}.input_layernorm.weight", ("H",)),
    Slot("mtp_layers.{i}.post_attention_layernorm.weight", ("H",)),
    Slot("mtp_layers.{i}.input_proj.weight", ("H", "2*H")),
    Slot("mtp_layers.{i}.self_attn.**", None),
    Slot("mtp_layers.{i}.mlp.**", None),
)

#: Heads that are recognised and that no format here writes.
_ANYTHING = (Slot("**", None, "never"),)

ALGORITHMS: Mapping[str, tuple[Slot, ...]] = {
    "eagle": EAGLE,
    "eagle3": EAGLE3,
    "peagle": PEAGLE,
    "dflash": DFLASH,
    "dflash2": DFLASH2,
    "domino": DOMINO,
    "dspark": DSPARK,
    "xpress": XPRESS,
    "mtp": MTP,
    "medusa": _ANYTHING,
    "dflare": _ANYTHING,
    "unexported": _ANYTHING,
}


def vocabulary(algorithm: str) -> tuple[str, ...]:
    """Patterns of the canonical names of an algorithm."""
    return tuple(slot.name for slot in ALGORITHMS[algorithm])


def slot_of(algorithm: str, canonical: str) -> Slot | None:
    """The slot that a canonical name belongs to."""
    return next((s for s in ALGORITHMS[algorithm] if fits(s.name, canonical)), None)


def symbols(facts: DraftFacts) -> dict[str, int]:
    """Values of the shape symbols as far as the facts state them."""
    values = {
        "H": facts.hidden_size,
        "T": facts.target_hidden_size or facts.hidden_size,
        "A": facts.num_attention_heads,
        "K": facts.num_key_value_heads,
        "D": facts.head_dim,
        "I": facts.intermediate_size,
        "V": facts.vocab_size,
        "W": facts.draft_vocab_size,
        "N": facts.num_aux,
        "q_lora_rank": facts.extra.get("q_lora_rank"),
        "kv_lora_rank": facts.extra.get("kv_lora_rank"),
    }
    return {k: v for k, v in values.items() if isinstance(v, int)}


def expected_shape(slot: Slot, values: Mapping[str, int]) -> tuple[int | None, ...] | None:
    """The shape that a slot asks for; ``None`` per dimension whose symbols aren't known, ``None`` if free."""
    if slot.shape is None:
        return None
    return tuple(_product(expression, values) for expression in slot.shape)


def _product(expression: str, values: Mapping[str, int]) -> int | None:
    out = 1
    for term in expression.split("*"):
        factor = int(term) if term.isdigit() else values.get(term)
        if factor is None:
            return None
        out *= factor
    return out
