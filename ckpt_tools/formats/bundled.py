"""Next-token layers inside a target's own files (MTP, NextN): ``mtp.*``, or decoder layers behind the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats.base import (
    CaptureIds,
    Clue,
    Format,
    Seen,
    Variant,
    WriteRequest,
    has_field,
    has_tensor,
)
from ckpt_tools.formats.facts import decoder_facts, overlay, text
from ckpt_tools.formats.names import NameMap, Row, fits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: Where a wrapper's config keeps its language model's.
INNER = ("text_config", "llm_config", "language_config")
_VOCABULARY = ("mtp_layers.{i}.**",)
#: Qwen3-Next, Qwen3.5 and their kin (speculators 0.9.0 convert/mtp/converter.py:35-44).
MTP = NameMap(
    (
        Row("mtp.fc.**", "mtp_layers.0.input_proj.**"),
        Row("mtp.norm.**", "mtp_layers.0.final_layernorm.**"),
        Row("mtp.pre_fc_norm_hidden.**", "mtp_layers.0.hidden_layernorm.**"),
        Row("mtp.pre_fc_norm_embedding.**", "mtp_layers.0.token_layernorm.**"),
        Row("mtp.layers.{i}.**", "mtp_layers.{i}.**"),
    ),
    _VOCABULARY,
)
#: DeepSeek and its kin, whose next-token layers are numbered on (vllm 0.33.0 model_executor/models/utils.py:575-601).
NEXTN = NameMap(
    tuple(
        Row(f"model.layers.{{i}}.{theirs}", f"mtp_layers.{{i}}.{ours}")
        for theirs, ours in (
            ("eh_proj.**", "input_proj.**"),
            ("enorm.**", "token_layernorm.**"),
            ("hnorm.**", "hidden_layernorm.**"),
            ("shared_head.norm.**", "final_layernorm.**"),
            ("**", "**"),
        )
    )
    + tuple(
        Row(f"layers.{{i}}.{theirs}", f"mtp_layers.{{i}}.{ours}", read_only=True)
        for theirs, ours in (
            ("eh_proj.**", "input_proj.**"),
            ("enorm.**", "token_layernorm.**"),
            ("hnorm.**", "hidden_layernorm.**"),
            ("shared_head.norm.**", "final_layernorm.**"),
            ("**", "**"),
        )
    ),
    _VOCABULARY,
)
_EH = ("layers.{i}.eh_proj.weight", "model.layers.{i}.eh_proj.weight")
NEXTN_LAYERS = "nextn"


def decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's config inside a wrapper's, or the config itself."""
    inner = next((config[k] for k in INNER if isinstance(config.get(k), dict)), None)
    return inner if inner is not None else config


def read(config: Mapping[str, Any], seen: Seen, variant: Variant) -> DraftFacts:  # noqa: ARG001
    """Facts of the target's own config: a next-token layer is built like the target's layers."""
    flat = decoder(config)
    kind = text(flat, "model_type")
    return overlay(decoder_facts(flat), layer_type=kind, extra={"model_type": kind} if kind else None)


def write(request: WriteRequest) -> dict[str, Any]:
    """The target's config, as it stands; the plan puts the target's own in its place when its weights are at hand."""
    source = request.source_config
    block = source.get("transformer_layer_config")
    config = dict(block) if isinstance(block, dict) else dict(source)
    if isinstance(block, dict) and "architectures" not in config and request.facts.verifier is not None:
        config["architectures"] = list(request.facts.verifier.architectures)
    return {k: config[k] for k in sorted(config)}


def mtp_inside(seen: Seen) -> tuple[str, ...]:  # noqa: ARG001
    """Patterns of the draft's tensors."""
    return ("mtp.**",)


def nextn_inside(seen: Seen) -> tuple[str, ...]:
    """Patterns of the layers that have an ``eh_proj``, which the target's own layers have not."""
    found = [n for n in seen.tensors if n.endswith(".eh_proj.weight") and any(fits(p, n) for p in _EH)]
    return tuple(sorted({n.rsplit(".", 2)[0] + ".**" for n in found}))


#: A config alone is a target's; only its tensors show next-token layers.
_TARGET = Clue(
    "any",
    "tensors",
    "weights to look at, and not speculators' layout",
    lambda seen: bool(seen.tensors) and "speculators_model_type" not in (seen.config or {}),
    weight=0,
)

FORMAT = Format(
    name="bundled",
    title="inside a target (MTP, NextN)",
    variants=(
        Variant(
            algorithm="mtp",
            must=(
                has_tensor("mtp.**", "mtp.* (next-token layers)", 2),
                has_tensor("mtp.fc.weight", "mtp.fc"),
                _TARGET,
            ),
            hints=(has_field("num_hidden_layers", "a target's config"),),
            names=MTP,
            inside=mtp_inside,
            experts="split",
        ),
        Variant(
            algorithm="mtp",
            layer_type=NEXTN_LAYERS,
            must=(
                Clue(
                    "tensor",
                    "layers.N.eh_proj.weight",
                    "a layer with eh_proj (next-token layer)",
                    lambda seen: bool(nextn_inside(seen)),
                    weight=2,
                ),
                _TARGET,
            ),
            hints=(has_field("num_nextn_predict_layers", "num_nextn_predict_layers is stated", 2),),
            names=NEXTN,
            inside=nextn_inside,
        ),
    ),
    read=read,
    capture=CaptureIds(paths=(), convention=(), certain=()),
    references=(
        "vllm 0.33.0 model_executor/models/qwen3_5_mtp.py:302-319, deepseek_mtp.py:530-537, utils.py:575-601",
        "speculators 0.9.0 convert/mtp/converter.py:35-44, cli/stitch.py",
    ),
    schema="bundled.config.json",
    write=write,
)
