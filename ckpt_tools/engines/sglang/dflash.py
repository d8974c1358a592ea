"""DFlash and DSpark drafts (SGLang models/dflash.py and models/dspark.py; lines are of 0.5.23).

They have neither embedding nor head of their own: both are the target's, and the draft's own tensors of that kind load as nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang import dflash_config, modules, shapes
from ckpt_tools.engines.sglang.parameters import Model, Parameter
from ckpt_tools.engines.sglang.quantization import NONE
from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpt_tools.engines.sglang.dflash_config import BlockConfig
    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig
    from ckpt_tools.engines.sglang.modules import Parameters
    from ckpt_tools.engines.sglang.quantization import Quantization
    from ckpt_tools.model import TensorInfo

SELECTOR = ("DFlash2DraftModel", "DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel")
LAGUNA = "DFlashLagunaForCausalLM"
DSPARK = ("Qwen3DSparkModel", "LingDSparkModel", "DSparkDraftModel")
CLASSES = ("DFlashDraftModel", "MuseGlimmerAssistantModel", LAGUNA, *SELECTOR, *DSPARK)

# dflash.py:887-894
STACKED: tuple[tuple[str, str, str | int], ...] = (
    ("qkv_proj", "q_proj", "q"),
    ("qkv_proj", "k_proj", "k"),
    ("qkv_proj", "v_proj", "v"),
    ("gate_up_proj", "gate_proj", 0),
    ("gate_up_proj", "up_proj", 1),
)
ENCODER_ALIASES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}  # :900-903
DOMINO = ("prefix_gru.weight_ih_l0", "prefix_gru.weight_hh_l0", "embed_proj.0.weight", "embed_proj.2.weight")
DSPARK_SKIPPED = ("lm_head.", "rotary_emb.", "embed_tokens.")  # dspark.py:510, 632-641


def build(name: str, config: HfConfig, features: Features, quantization: Quantization) -> Model:
    """The parameters (dflash.py:706-812).

    Raises:
        Refused: At stage ``class``.
    """
    hidden = config.need("hidden_size")
    block = dflash_config.parse(config, features)
    method = quantization if features.dflash_quantized else NONE
    out: Parameters = {}
    for i in range(modules.layer_count(config)):
        out |= _layer(f"layers.{i}", i, name, config, block, features, method)
    count = dflash_config.feature_count(block, features)
    out |= modules.norm("norm", hidden) | modules.norm("hidden_norm", hidden)
    out |= modules.torch_linear("fc", count * hidden, hidden, bias=False)
    if block.domino:
        gru, width = block.domino
        sizes: tuple[tuple[int, int], ...] = (
            (3 * gru, hidden),
            (3 * gru, gru),
            (width, hidden + gru),
            (config.need("vocab_size"), width),
        )
        out |= {n: Parameter(size, shapes.plain) for n, size in zip(DOMINO, sizes, strict=True)}
    if name == LAGUNA:
        for j in range(count):
            out |= modules.norm(f"aux_hidden_norms.{j}", hidden)
    if name in SELECTOR:
        out |= _selector(config, block)
    if name in DSPARK:
        out |= _markov(config)
    return Model(name, out)


def _layer(
    name: str,
    index: int,
    cls: str,
    config: HfConfig,
    block: BlockConfig,
    features: Features,
    quantization: Quantization,
) -> Parameters:
    """dflash.py:199-336, 518-647."""
    hidden, method = config.need("hidden_size"), quantization.linear
    heads, kv_heads, head_dim = modules.attention(config)
    bias = bool(config.get("attention_bias", False))
    convolutions: Parameters = {}
    if block.conv:
        for conv in ("attention_conv", "mlp_conv"):
            convolutions |= _convolution(f"{name}.{conv}", hidden, *block.conv)
    # layers are built without a prefix (:736-740)
    out = modules.qkv(
        f"{name}.self_attn.qkv_proj", hidden, heads, kv_heads, head_dim, method, bias=bias, path="qkv_proj"
    )
    out |= modules.row(f"{name}.self_attn.o_proj", heads * head_dim, hidden, method, bias=bias, path="o_proj")
    for norm in ("q_norm", "k_norm"):  # always there
        out |= modules.norm(f"{name}.self_attn.{norm}", head_dim)
    modules.check_rope(config, features, reads_theta=features.dflash_rope_theta)
    if features.dflash_layer_types:
        _check_layer_type(index, config)
    if block.sinks:
        out[f"{name}.self_attn.attention_sink_bias"] = Parameter((heads,), shapes.sharded)
    if quantization.attention_scales:
        out |= modules.attention_scales(f"{name}.self_attn.attn")
    if cls == LAGUNA:
        out |= _gate(f"{name}.self_attn.g_proj", config, heads, head_dim, quantization)
    width = int(config.get("intermediate_size", 0))
    if width <= 0:
        raise Refused("ValueError", f"Invalid intermediate_size={width} for DFlash MLP.", "class")
    out |= modules.gate_up(f"{name}.mlp.gate_up_proj", hidden, width, method, path="gate_up_proj")
    out |= modules.row(f"{name}.mlp.down_proj", width, hidden, method, path="down_proj")
    if config.get("hidden_act", "silu") not in ("silu", "swigluoai"):
        raise Refused("ValueError", f"Unsupported DFlash activation: {config.get('hidden_act')}.", "class")
    for norm in ("input_layernorm", "post_attention_layernorm"):
        out |= modules.norm(f"{name}.{norm}", hidden)
    return out | convolutions


def _check_layer_type(index: int, config: HfConfig) -> None:
    """dflash.py:157-191; a sliding layer needs a window, which Qwen's configs drop without ``use_sliding_window``."""
    types = config.get("layer_types")
    if types is None:
        return
    if index >= len(types):
        raise Refused(
            "ValueError",
            f"DFLASH config.layer_types must contain one entry per draft layer. Got {len(types)} entries.",
            "class",
        )
    if types[index] == "sliding_attention" and config.get("sliding_window") is None:
        raise Refused("ValueError", "DFLASH sliding_attention layers require config.sliding_window.", "class")
    if types[index] not in ("full_attention", "sliding_attention"):
        raise Refused(
            "ValueError",
            f"Unsupported DFLASH draft layer type. layer_types[{index}]={types[index]!r}.",
            "class",
        )


def _gate(name: str, config: HfConfig, heads: int, head_dim: int, quantization: Quantization) -> Parameters:
    """dflash.py:1018-1045, configs/laguna.py:26-37."""
    gating: Any = config.get("gating", True)
    if gating in (False, None, "disabled"):
        return {}
    if gating not in (True, "per-head", "per-element"):
        raise Refused(
            "ValueError",
            f"gating must be one of True, False, None, per-head, per-element or disabled; got {gating!r}.",
            "class",
        )
    rows = heads * head_dim if gating == "per-element" else heads
    return modules.column(name, config.need("hidden_size"), rows, quantization.linear, path="g_proj")


def _convolution(name: str, hidden: int, taps: int, group: int) -> Parameters:
    """``DFlashGroupedConv`` (dflash.py:536-562): an identity until loaded, but its projection is random."""
    if hidden % group:
        raise Refused(
            "ValueError", f"DFLASH conv_group_size={group} must divide hidden_size={hidden}.", "class"
        )
    kernel = {f"{name}.base_kernel": Parameter((2, taps, hidden), shapes.plain, "default")}
    return kernel | modules.torch_linear(
        f"{name}.kernel_projection", hidden, 2 * taps * (hidden // group), bias=False
    )


def _selector(config: HfConfig, block: BlockConfig) -> Parameters:
    """``CandidateSelector`` (dflash.py:1143-1180): codebooks of zeros until loaded."""
    if not block.selector_rank:
        raise Refused("ValueError", "DFlash selector draft requires dflash_config.selector_rank.", "class")
    name, size = "candidate_selector", (config.need("vocab_size"), block.selector_rank)
    out = {
        f"{name}.{book}_codebook": Parameter(size, shapes.plain, "default")
        for book in ("predecessor", "successor")
    }
    return out | modules.torch_linear(
        f"{name}.hidden_projection", config.need("hidden_size"), block.selector_rank, bias=False
    )


def _markov(config: HfConfig) -> Parameters:
    """``build_markov_head`` (dspark.py:186-405); everything random until loaded. The confidence head isn't built by default."""
    rank, kind = dflash_config.markov(config)
    vocab, hidden, name = config.need("vocab_size"), config.need("hidden_size"), "markov_head"
    out = {f"{name}.{w}.weight": Parameter((vocab, rank), shapes.plain) for w in ("markov_w1", "markov_w2")}
    if kind == "gated":
        out |= modules.torch_linear(f"{name}.gate_proj", hidden + rank, rank, bias=True)
    if kind == "rnn":
        out |= modules.torch_linear(f"{name}.joint_proj", 2 * rank + hidden, 3 * rank, bias=True)
    return out


def load(model: Model, tensors: Iterable[TensorInfo], features: Features) -> None:
    """``load_weights`` of the class (dflash.py:886-1000; dspark.py:620-665 takes the Markov head's tensors last).

    Raises:
        Refused: At stage ``load``.
    """
    late: list[TensorInfo] = []
    for tensor in tensors:
        if model.name in DSPARK:
            if tensor.name.removeprefix("model.").startswith(DSPARK_SKIPPED) or tensor.name.startswith(
                "confidence_head."
            ):
                continue
            if tensor.name.startswith("markov_head."):
                late.append(tensor)
                continue
        _load_one(model, tensor, features)
    domino = DOMINO[0] in model.parameters
    missing = [n for n in DOMINO if domino and not model.filling[n].sources]
    if missing:
        raise shapes.refuse(
            "ValueError",
            f"DFLASH Domino checkpoint is missing required projector weights: {sorted(missing)}.",
        )
    for tensor in late:
        if tensor.name not in model.parameters:
            raise shapes.refuse(
                "ValueError",
                f"DSpark unexpected markov weight {tensor.name!r} not found in model parameters.",
            )
        model.load(tensor.name, tensor)


def _load_one(model: Model, tensor: TensorInfo, features: Features) -> None:
    name = tensor.name
    domino = features.domino and name.removeprefix("model.").startswith(("prefix_gru.", "embed_proj."))
    if domino and DOMINO[0] not in model.parameters:
        raise shapes.refuse(
            "ValueError",
            "DFLASH checkpoint contains Domino projector weights but projector_type is not domino.",
        )
    for fused, part, shard in STACKED:
        if f".{part}." in name:
            found = _resolve(model, name.replace(part, fused), features)
            if found is not None:
                model.load(found, tensor, shard)
                return
    found = _resolve(model, name, features)
    if found is None:
        return
    expected = model.parameters[found].shape
    if found.endswith("fc.weight") and tensor.shape != expected:
        raise shapes.refuse(
            "ValueError",
            "DFLASH fc.weight shape mismatch. This usually means the draft checkpoint's number of context features (K) "
            f"does not match this config. Expected fc.weight.shape={expected}, but got {tensor.shape} for weight '{name}'.",
        )
    if domino and tensor.shape != expected:
        raise shapes.refuse(
            "ValueError",
            f"DFLASH Domino projector weight shape mismatch: expected {found}{expected}, got {tensor.shape}.",
        )
    model.load(found, tensor)


def _resolve(model: Model, name: str, features: Features) -> str | None:
    """:905-919: with or without ``model.``, or under the names of the native export's encoder."""
    if name in model.parameters:
        return name
    stripped = name.removeprefix("model.")
    if stripped in model.parameters:
        return stripped
    alias = ENCODER_ALIASES.get(name) if features.dflash_encoder_names else None
    return alias if alias in model.parameters else None
