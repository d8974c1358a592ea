"""speculators, releases 0.1 to 0.9: a nested decoder config, ``layers.0.*`` names, ids that count layer inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import dflash, eagle1, limits
from ckpt_tools.formats.base import (
    CaptureIds,
    Clue,
    Format,
    Implied,
    Limit,
    Seen,
    Variant,
    WriteRequest,
    architecture_is,
    field_is,
    has_field,
    has_tensor,
)
from ckpt_tools.formats.canonical import vocabulary
from ckpt_tools.formats.eagle3 import DROPS, LAYERS, NO_OTHER_HEAD, PEAGLE, TWIN_DROP
from ckpt_tools.formats.facts import boolean, decoder_facts, id_list, integer, overlay, text
from ckpt_tools.formats.flat import carried
from ckpt_tools.formats.names import NameMap, Row
from ckpt_tools.formats.rope import write_rope
from ckpt_tools.model import Verifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: Classes by algorithm: as training writes them first, then what converters and old releases wrote.
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "eagle3": ("Eagle3DraftModel", "Eagle3Speculator"),
    "peagle": ("PEagleDraftModel", "PEagleSpeculator"),
    "dflash": ("DFlashDraftModel", "DFlashSpeculator"),
    "dflash2": ("DFlash2DraftModel",),
    "dspark": ("DSparkDraftModel", "DSparkSpeculator"),
    "xpress": ("XPressDraftModel", "XPressSpeculator"),
    "mtp": ("MTPDraftModel",),
    "eagle": ("EagleSpeculator",),
}
#: The config class that training copies beside, per algorithm.
CONFIGS: Mapping[str, str] = {
    "eagle3": "Eagle3",
    "peagle": "PEagle",
    "dflash": "DFlash",
    "dflash2": "DFlash2",
    "dspark": "DSpark",
    "xpress": "XPress",
    "mtp": "MTP",
}
#: Facts of the heads that each algorithm has a field for, beside the family's.
FAMILY_FIELDS: Mapping[str, tuple[str, ...]] = {
    "dflash": (),
    "dflash2": ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
    "dspark": ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"),
    "xpress": ("xpress_rank", "xpress_mlp_ratio", "num_jacobi_passes"),
}
#: Decoder configs that speculators has an MTP layer for (speculators 0.9.0 models/mtp/model_definitions.py:152-205).
MTP_LAYERS = ("qwen3", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
#: EAGLE-1 and HASS of releases up to 0.6.
_EAGLE1 = NameMap(
    (Row("fusion_fc.**", "fc.**"), Row("transformer.**", "layers.0.**"), Row("**", "**")), vocabulary("eagle")
)
NAMES: Mapping[str, NameMap] = {
    "eagle": _EAGLE1,
    "peagle": PEAGLE,
    "mtp": NameMap((Row("**", "**"),), vocabulary("mtp")),
    **{a: dflash.names(a) for a in ("dflash", "dflash2", "dspark", "xpress")},
}

#: What the tensors have to show, so that a folder without its config is told from others.
SIGNATURES: Mapping[str, tuple[Clue, ...]] = {
    "eagle": (eagle1.FUSION,),
    "peagle": (has_tensor("mask_hidden", "P-EAGLE's mask_hidden"),),
    "mtp": (has_tensor("mtp_layers.**", "mtp_layers.* (next-token layers)"),),
    **{a: (dflash.SIGNATURE, *dflash.only(a)) for a in ("dflash", "dflash2", "dspark", "xpress")},
}

#: The release whose layout is written.
WRITTEN_VERSION = "0.9.0"


def read_verifier(config: Mapping[str, Any]) -> Verifier | None:
    """The target that the draft names."""
    block = config.get("speculators_config")
    verifier = block.get("verifier") if isinstance(block, dict) else None
    if not isinstance(verifier, dict):
        return None
    name = verifier.get("name_or_path")
    listed = verifier.get("architectures")
    return Verifier(
        name if isinstance(name, str) and name else None,
        tuple(map(str, listed)) if isinstance(listed, list) else (),
    )


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:
    """Facts of a speculators config: the decoder nested, the rest on top.

    A nested block without ``model_type`` is read as Qwen3 since 0.7 and as Llama before
    (speculators 0.9.0 models/eagle3/config.py:103-114), so the tensors decide then.
    """
    inner = config.get("transformer_layer_config")
    decoder: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    ids = id_list(config.get("eagle_aux_hidden_state_layer_ids") or config.get("aux_hidden_state_layer_ids"))
    facts = overlay(
        decoder_facts(decoder),
        target_hidden_size=integer(config, "target_hidden_size"),
        draft_vocab_size=integer(config, "draft_vocab_size"),
        norm_before_residual=boolean(config, "norm_before_residual"),
        norm_before_fc=boolean(config, "norm_before_fc"),
        fc_norm=boolean(config, "fc_norm"),
        norm_output=boolean(config, "norm_output"),
        embed_requires_grad=boolean(config, "embed_requires_grad"),
        tie_word_embeddings=boolean(config, "tie_word_embeddings"),
        dtype=text(config, "dtype", "torch_dtype"),
        verifier=read_verifier(config),
        num_aux=integer(decoder, "num_aux_hidden_states") or (len(ids) if ids else None),
        block_size=integer(config, "block_size"),
        mask_token_id=integer(config, "mask_token_id"),
    )
    heads = {k: config[k] for k in dflash.HEAD_FIELDS if config.get(k) is not None}
    if variant.algorithm in dflash.FAMILY:
        # Its windows' field is about sliding layers alone (speculators 0.9.0 models/dflash/attention.py:42-43).
        if config.get("sliding_window_non_causal") is True and facts.sliding_window is not None:
            heads["sliding_window_non_causal"] = True
        return overlay(facts, layer_type="qwen3", extra={**facts.extra, **heads})
    if variant.algorithm == "mtp":
        kind = text(decoder, "model_type")
        return overlay(
            facts, layer_type=kind, extra={**facts.extra, **({"model_type": kind} if kind else {})}
        )
    if variant.algorithm == "eagle":
        return replace(facts, draft_vocab_size=None, fc_bias=boolean(config, "fusion_bias"))
    if "model_type" not in decoder and any(n.endswith("self_attn.q_norm.weight") for n in seen.tensors):
        return overlay(facts, layer_type="qwen3")
    return facts


def proposal(request: WriteRequest) -> dict[str, Any]:
    """The proposal block: the source's own when it has one, else greedy with as many tokens as training writes."""
    block = request.source_config.get("speculators_config")
    if isinstance(block, dict) and isinstance(block.get("proposal_methods"), list):
        return {k: block[k] for k in ("proposal_methods", "default_proposal_method") if k in block}
    method = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": _tokens(request),
        "verifier_accept_k": 1,
    }
    return {"proposal_methods": [method], "default_proposal_method": "greedy"}


def _tokens(request: WriteRequest) -> int:
    """Tokens per round as training writes them (speculators 0.9.0 models/*/core.py from_training_args)."""
    if request.algorithm in dflash.FAMILY and request.facts.block_size is not None:
        return request.facts.block_size - (0 if request.facts.extra.get("sample_from_anchor") else 1)
    return 8 if request.algorithm == "peagle" else 3


def layer_config(request: WriteRequest) -> dict[str, Any]:
    """The nested decoder config; its vocabulary is the target's, its layers are the draft's."""
    facts = request.facts
    windowed = facts.sliding_window is not None
    kinds = facts.layer_types or (
        ("sliding_attention" if windowed else "full_attention",) * (facts.num_layers or 1)
    )
    out: dict[str, Any] = {
        **carried(request),
        "attention_bias": bool(facts.attention_bias),
        "head_dim": facts.head_dim,
        "hidden_act": facts.hidden_act or "silu",
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.intermediate_size,
        "layer_types": list(kinds),
        "max_position_embeddings": facts.max_position_embeddings,
        "mlp_bias": bool(facts.mlp_bias),
        "model_type": facts.layer_type or "llama",
        "num_attention_heads": facts.num_attention_heads,
        "num_hidden_layers": facts.num_layers,
        "num_key_value_heads": facts.num_key_value_heads,
        "rms_norm_eps": facts.rms_norm_eps,
        "sliding_window": facts.sliding_window,
        "tie_word_embeddings": False,
        "use_sliding_window": windowed,
        "vocab_size": facts.vocab_size,
    }
    if facts.num_aux not in (None, 3) and request.algorithm in ("eagle3", "peagle"):
        # vLLM's llama class counts no top-level ids (vllm 0.33.0 model_executor/models/llama_eagle3.py:209-221).
        out["num_aux_hidden_states"] = facts.num_aux
    if facts.rope is not None:
        out["rope_parameters"] = write_rope(facts.rope)["rope_parameters"]
    return {k: out[k] for k in sorted(out) if out[k] is not None or k == "sliding_window"}


def _shared(request: WriteRequest, decoder: Mapping[str, Any]) -> dict[str, Any]:
    """What every algorithm has; no top-level ``model_type`` (vLLM would ignore the nested blocks)."""
    verifier = request.facts.verifier or Verifier(None)
    return {
        "architectures": [ARCHITECTURES[request.algorithm][0]],
        "auto_map": {"": f"config.{CONFIGS[request.algorithm]}SpeculatorConfig"},
        "dtype": request.facts.dtype,
        "speculators_config": {
            "algorithm": request.algorithm,
            **proposal(request),
            "verifier": {"architectures": list(verifier.architectures), "name_or_path": verifier.name},
        },
        "speculators_model_type": request.algorithm,
        "speculators_version": WRITTEN_VERSION,
        "tie_word_embeddings": False,
        "transformer_layer_config": dict(decoder),
    }


def _eagle3(request: WriteRequest) -> dict[str, Any]:
    facts = request.facts
    ids = list(request.top_level_ids) if request.top_level_ids else None
    peagle = request.algorithm == "peagle"
    return {
        "draft_vocab_size": facts.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": ids,
        "embed_requires_grad": peagle if facts.embed_requires_grad is None else facts.embed_requires_grad,
        "fc_norm": bool(facts.fc_norm),
        "norm_before_fc": bool(facts.norm_before_fc),
        "norm_before_residual": bool(facts.norm_before_residual),
        "norm_output": bool(facts.norm_output),
        "target_hidden_size": facts.target_hidden_size,
        **({"mask_token_id": facts.mask_token_id} if peagle else {}),
    }


def _dflash(request: WriteRequest) -> dict[str, Any]:
    """The DFlash family. Without sliding layers ``sliding_window_non_causal`` has no meaning in training, and vLLM turns
    false into causal for all layers (vllm 0.33.0 transformers_utils/configs/speculators/algos.py:90-126), so it is true."""
    facts = request.facts
    heads = {k: v for k, v in facts.extra.items() if k in FAMILY_FIELDS[request.algorithm]}
    return {
        "aux_hidden_state_layer_ids": list(request.top_level_ids) if request.top_level_ids else None,
        "block_size": facts.block_size,
        "draft_vocab_size": facts.draft_vocab_size or facts.vocab_size,
        "mask_token_id": facts.mask_token_id,
        "sample_from_anchor": bool(facts.extra.get("sample_from_anchor")),
        "sliding_window_non_causal": facts.sliding_window is None
        or bool(facts.extra.get("sliding_window_non_causal")),
        "target_hidden_size": facts.target_hidden_size,
        **heads,
    }


def mtp_decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The target's own text config, as it stands (speculators 0.9.0 convert/mtp/converter.py)."""
    for key in ("transformer_layer_config", "text_config"):
        if isinstance(config.get(key), dict):
            return dict(config[key])
    return {k: v for k, v in config.items() if k != "quantization_config"}


def write(request: WriteRequest) -> dict[str, Any]:
    """A config that speculators 0.9.0 loads."""
    if request.algorithm == "mtp":
        shared = _shared(request, mtp_decoder(request.source_config))
        return dict(sorted({**shared, "num_nextn_predict_layers": 1}.items()))
    own = _dflash(request) if request.algorithm in dflash.FAMILY else _eagle3(request)
    return dict(sorted({**_shared(request, layer_config(request)), **own}.items()))


def _layer_type(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if facts.layer_type in (None, "llama", "qwen3"):
        return None
    return f"{facts.layer_type} layers: speculators has llama and qwen3 draft layers only"


def _fc_bias(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    if facts.fc_bias or "fc.bias" in tensors:
        return "fc.bias: speculators' EAGLE-3 head has no bias in fc"
    return None


def _widths(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if facts.target_hidden_size in (None, facts.hidden_size):
        return None
    return (
        f"hidden_size {facts.hidden_size} differs from target_hidden_size {facts.target_hidden_size}; "
        "speculators' training class refuses that"
    )


def _verifier(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    named = facts.verifier is not None and facts.verifier.name is not None
    return (
        None if named else "the draft names no target, and speculators can't load one whose verifier is null"
    )


def _mtp_kind(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    kind = facts.extra.get("model_type")
    return (
        None
        if kind in MTP_LAYERS
        else f"next-token layers of {kind}: speculators has them for {', '.join(MTP_LAYERS)}"
    )


def _whole_vocabulary(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    if "d2t" not in tensors and facts.draft_vocab_size in (None, facts.vocab_size):
        return None
    return (
        f"a reduced vocabulary of {facts.draft_vocab_size}: speculators' DFlash2 has the target's whole one"
    )


def _head_facts(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    named = [
        k
        for k in ("use_gemma_norm", "output_multiplier", "final_logit_softcapping", "attention_sink_bias")
        if facts.extra.get(k)
    ]
    return f"{', '.join(named)}: speculators' DFlash has no such field" if named else None


LIMITS = (
    Limit(
        "LAY004",
        "layer-type-unsupported",
        _layer_type,
        "keep the draft in SGLang's or vLLM's format",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "KEY005",
        "bias-dropped-by-engine",
        _fc_bias,
        "keep the draft in SGLang's format",
        algorithms=limits.EAGLE3,
    ),
    Limit(
        "SHP004",
        "draft-width-unsupported",
        _widths,
        "keep the draft in SGLang's or vLLM's format",
        algorithms=(*limits.EAGLE3, *dflash.FAMILY),
    ),
    Limit("CFG009", "verifier-unknown", _verifier, "name it: --target ID, a folder or a Hub id"),
    Limit(
        "LAY004",
        "layer-type-unsupported",
        _mtp_kind,
        "stitch the layers back into their target (--to bundled)",
        algorithms=("mtp",),
    ),
    Limit(
        "PAR011",
        "reduced-vocabulary-unsupported",
        _whole_vocabulary,
        "vLLM and z-lab's format take it",
        algorithms=("dflash2",),
    ),
    Limit(
        "PAR012",
        "head-fact-inexpressible",
        _head_facts,
        "keep the draft in z-lab's format",
        algorithms=dflash.FAMILY,
    ),
    dflash.CAUSAL,
    dflash.MASK,
    dflash.CAPTURE,
)


def _silent(facts: DraftFacts, algorithm: str) -> DraftFacts:
    if algorithm != "dspark" or "sample_from_anchor" in facts.extra:
        return facts
    return replace(facts, extra={**facts.extra, "sample_from_anchor": False})


FORMAT = Format(
    name="speculators",
    title="speculators",
    variants=(
        Variant(
            algorithm="eagle3",
            must=(
                field_is("speculators_model_type", "eagle3"),
                *NO_OTHER_HEAD,
            ),
            hints=(
                architecture_is(*ARCHITECTURES["eagle3"]),
                has_field("transformer_layer_config", "the decoder's config is nested", 2),
                has_field("speculators_config", "a speculators_config block", 2),
                has_tensor("layers.0.**", "layer 0 is named layers.0"),
                has_tensor("layers.0.hidden_norm.weight", "layer 0 has a hidden_norm"),
            ),
            names=LAYERS,
            drops=(*DROPS, *TWIN_DROP),
        ),
        *(
            Variant(
                algorithm=algorithm,
                must=(field_is("speculators_model_type", algorithm), *SIGNATURES[algorithm]),
                hints=(
                    architecture_is(*ARCHITECTURES[algorithm]),
                    has_field("transformer_layer_config", "the decoder's config is nested", 2),
                    has_field("speculators_config", "a speculators_config block", 2),
                ),
                names=names,
                drops=(*DROPS, *TWIN_DROP),
                # Removed in 0.7: no release that is served loads it any more.
                read_only=algorithm == "eagle",
                experts="fused" if algorithm == "mtp" else None,
            )
            for algorithm, names in NAMES.items()
        ),
    ),
    read=read,
    capture=CaptureIds(
        paths=("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"),
        convention=("layer_input", "layer_input"),
        certain=(True, True),
    ),
    references=(
        "speculators 0.9.0 config.py:236-336",
        "speculators 0.9.0 models/eagle3/config.py:14-119",
        "speculators 0.9.0 models/eagle3/core.py:39-42",
        "vllm 0.33.0 model_executor/models/interfaces.py:1640-1650 (id k is the state before layer k)",
    ),
    schema="speculators.config.json",
    write=write,
    engine="vllm",
    limits=LIMITS,
    implied=Implied(
        _silent,
        "sample_from_anchor isn't stated; readers take false for such an older export "
        "(vllm 0.33.0 transformers_utils/configs/speculators/algos.py:188)",
    ),
    sorted_rows=True,
)
