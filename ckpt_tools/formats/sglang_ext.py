"""EAGLE-3 drafts for ckpt's own SGLang class: what SGLang's class has no home for stays, under a name that SGLang alone refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang_ext.head import ARCHITECTURE
from ckpt_tools.formats import sglang
from ckpt_tools.formats.base import (
    CaptureIds,
    Format,
    Limit,
    Seen,
    Variant,
    WriteRequest,
    architecture_is,
    field_is,
)
from ckpt_tools.formats.eagle3 import DROPS, LAYERS
from ckpt_tools.formats.facts import boolean, overlay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: The name is ours alone, so it outweighs whatever else a folder looks like.
_IS_OURS = replace(architecture_is(ARCHITECTURE), weight=20)
_QK_NORM = field_is("qk_norm", True)


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:
    """Facts of a folder that names ckpt's class."""
    return overlay(
        sglang.read(config, seen, variant),
        fc_bias=boolean(config, "fc_bias"),
        embed_requires_grad=boolean(config, "embed_requires_grad"),
    )


def write(request: WriteRequest) -> dict[str, Any]:
    """SGLang's config under ckpt's class, with the fields that it reads beside.

    ``bias`` would give SGLang's own attention a bias too, so fc's is called ``fc_bias``.
    """
    facts = request.facts
    config = {k: v for k, v in sglang.write(request).items() if k != "bias"}
    config["architectures"] = [ARCHITECTURE]
    flags = {
        "qk_norm": facts.layer_type == "qwen3",
        "attention_bias": facts.attention_bias,
        "mlp_bias": facts.mlp_bias,
        "fc_bias": facts.fc_bias,
        "embed_requires_grad": facts.embed_requires_grad,
    }
    config |= {name: True for name, value in flags.items() if value}
    if facts.sliding_window is not None:
        layers = facts.num_layers or 1
        config["sliding_window"] = facts.sliding_window
        config["layer_types"] = list(facts.layer_types or ("sliding_attention",) * layers)
        config["use_sliding_window"] = True
    return {k: config[k] for k in sorted(config)}


def _mla(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    return "MLA attention: the model package has a Llama class alone" if facts.layer_type == "mla" else None


def _partial_biases(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    """Biases on some of a layer's projections: SGLang's attention has them on all four or on none."""
    for flag, block, parts in (
        (facts.attention_bias, "self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
        (facts.mlp_bias, "mlp", ("gate_proj", "up_proj", "down_proj")),
    ):
        names = {f"layers.{i}.{block}.{part}.bias" for i in range(facts.num_layers or 1) for part in parts}
        present = names & set(tensors)
        if present and present != names:
            return f"biases on some of the {block} projections only ({', '.join(sorted(names - present))} missing)"
        if bool(flag) != bool(present):
            stated = f"{'attention' if block == 'self_attn' else 'mlp'}_bias is {bool(flag)}"
            return f"{stated} and the folder has {len(present)} {block} biases"
    return None


def _embedding(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:
    if facts.embed_requires_grad and "embed_tokens.weight" not in tensors:
        return "embed_requires_grad is true and there is no embed_tokens.weight to keep"
    return None


def _one_layer_wide(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    wide = facts.target_hidden_size or facts.hidden_size
    if facts.num_aux is None or wide is None or facts.num_aux * wide != facts.hidden_size:
        return None
    return (
        f"{facts.num_aux} captured layer is as wide as the draft: SGLang's worker hands features and the draft's own state to the "
        "same forward, and nothing tells them apart"
    )


LIMITS = (
    Limit("LAY004", "layer-type-unsupported", _mla, "SGLang's own class serves MLA heads (--to sglang)"),
    Limit("KEY005", "bias-dropped-by-engine", _partial_biases, "vLLM keeps them (--to vllm)"),
    Limit(
        "HED003",
        "trained-embedding-replaced",
        _embedding,
        "take the draft from a run that saved its embedding, or set embed_requires_grad to false to use the target's",
    ),
    *(limit for limit in sglang.LIMITS if limit.code == "CFG006"),
    Limit("CAP010", "capture-count", _one_layer_wide, "vLLM serves such a head (--to vllm)"),
)

FORMAT = Format(
    name="sglang-ext",
    title="SGLang with ckpt's model package",
    variants=tuple(
        Variant(
            algorithm="eagle3",
            layer_type=kind,
            must=(_IS_OURS, clue),
            names=LAYERS,
            drops=DROPS,
            architecture=ARCHITECTURE,
        )
        for kind, clue in (("llama", replace(_QK_NORM, absent=True)), ("qwen3", _QK_NORM))
    ),
    read=read,
    capture=CaptureIds(
        paths=sglang.FORMAT.capture.paths,
        convention=sglang.FORMAT.capture.convention,
        certain=sglang.FORMAT.capture.certain,
    ),
    references=(
        "sglang 0.5.23 srt/models/registry.py:22-28 and :154-157",
        "sglang 0.5.23 srt/models/llama_eagle3.py:46-384",
        "speculators 0.9.0 models/eagle3/core.py:192-365",
    ),
    schema="sglang-ext.eagle3.config.json",
    write=write,
    engine="sglang-ext",
    limits=LIMITS,
)
