"""What the EAGLE-3 formats share: the signature of the head, its names, and the tensors nobody carries over."""

from __future__ import annotations

from ckpt_tools.formats.base import Clue, any_of, architecture_is, has_field, has_tensor, no_tensor, width_is
from ckpt_tools.formats.canonical import vocabulary
from ckpt_tools.formats.names import NameMap, Row

VOCABULARY = vocabulary("eagle3")

#: The classes that engines build for EAGLE-3.
CLASSES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3DeepseekV2ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM",
)

#: Any one of these makes a head EAGLE-3; a damaged one still has some of the others.
SIGNATURE: Clue = any_of(
    "the head of EAGLE-3: captured layers through fc, layer 0 over [embedding, hidden]",
    has_tensor("midlayer.**", ""),
    has_tensor("layers.0.hidden_norm.weight", ""),
    has_tensor("d2t", ""),
    width_is("layers.0.self_attn.q_proj.weight", 2, "norm.weight", ""),
    has_field("draft_vocab_size", ""),
    has_field("eagle_config", ""),
    architecture_is(*CLASSES),
)

NOT_MLA = no_tensor("**.self_attn.kv_b_proj.weight", "no MLA attention")
MLA = has_tensor("**.self_attn.kv_b_proj.weight", "MLA attention (kv_b_proj)", weight=2)
#: Tensors of other algorithms that share EAGLE-3's names.
NO_OTHER_HEAD = (
    no_tensor("mask_hidden", "no P-EAGLE mask"),
    no_tensor("hidden_norm.weight", "no norm after fc (DFlash)"),
    no_tensor("markov_head.**", "no Markov head (DSpark)"),
    no_tensor("candidate_selector.**", "no candidate selector (DFlash2)"),
    no_tensor("medusa_heads.**", "no Medusa heads"),
    no_tensor("parallel_draft_heads.**", "no parallel heads (EAGLE-Medusa)"),
    no_tensor("eh_proj.**", "no eh_proj (MTP)"),
)

DROPS: tuple[tuple[str, str], ...] = (
    ("verifier_lm_head.**", "the target's own head, kept by training; engines take it from the target"),
    ("verifier_norm.**", "the target's own norm, kept by training; no engine reads it"),
    ("**rotary_emb.inv_freq", "a rotary cache; engines compute it from the config"),
    ("**rotary_emb.cos_cached", "a rotary cache; engines compute it from the config"),
    ("**rotary_emb.sin_cached", "a rotary cache; engines compute it from the config"),
    ("rotary_emb.inv_freq", "a rotary cache; engines compute it from the config"),
)

#: The target's embedding, where a format's folders never hold one.
NO_EMBEDDING = (
    ("embed_tokens.weight", "this format's folders hold no embedding; readers take the target's"),
)

#: vLLM and speculators norm later layers by `input_layernorm`; a `hidden_norm` beside it is SGLang's twin.
TWIN_DROP = (
    ("layers.{n}.hidden_norm.weight", "later layers are normed by input_layernorm here; SGLang's twin"),
)

_SAME = Row("**", "**")

#: speculators and vLLM: layer 0 is `layers.0`, later layers have `input_layernorm`.
LAYERS = NameMap((Row("midlayer.**", "layers.0.**", read_only=True), _SAME), VOCABULARY)

#: vLLM: as speculators; its later layers also build a `hidden_norm` that they never apply, and SGLang does.
VLLM = NameMap(
    (
        Row("midlayer.**", "layers.0.**", read_only=True),
        Row(
            "layers.{n}.input_layernorm.weight",
            "layers.{n}.input_layernorm.weight",
            also=("layers.{n}.hidden_norm.weight",),
        ),
        _SAME,
    ),
    VOCABULARY,
)

#: P-EAGLE: as speculators and vLLM name EAGLE-3, with its mask.
PEAGLE = NameMap((Row("midlayer.**", "layers.0.**", read_only=True), _SAME), vocabulary("peagle"))

#: The same with vLLM's twin of later layers' norm.
PEAGLE_VLLM = NameMap(VLLM.rows, vocabulary("peagle"))

#: EAGLE's own naming, one layer.
MIDLAYER = NameMap((Row("midlayer.**", "layers.0.**"), _SAME), VOCABULARY)

#: SGLang: layer 0 is `midlayer` (every release takes that), later layers are normed by `hidden_norm`, and the
#: `input_layernorm` parameter that they also have is read by vLLM: both names get the data.
SGLANG = NameMap(
    (
        Row("midlayer.**", "layers.0.**"),
        Row(
            "layers.{n}.hidden_norm.weight",
            "layers.{n}.input_layernorm.weight",
            also=("layers.{n}.input_layernorm.weight",),
        ),
        Row("aux_norm_low.weight", "fc_norm.0.weight", read_only=True),
        Row("aux_norm_mid.weight", "fc_norm.1.weight", read_only=True),
        Row("aux_norm_high.weight", "fc_norm.2.weight", read_only=True),
        _SAME,
    ),
    VOCABULARY,
)
