"""The modules of ``Eagle3ForCausalLM`` and their parameters, as a draft's config has them built (tensor-parallel size 1).

Names below are the engine's own. References: modeling_speculative.py ``Eagle3Attention``, ``Eagle3DecoderLayer``,
``Eagle3DraftModel``, ``Eagle3ForCausalLM``; attention.py ``Attention``; gated_mlp.py ``GatedMLP``; embedding.py ``LMHead``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.engines.sglang.hf import HfConfig

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Module:
    """A module that owns parameters.

    Attributes:
        name: As ``named_modules`` gives it.
        parameters: Own parameters -> shape, without the module's name.
        parts: Names of the layers in the file that a fused one is joined from, beside it.
        unfilled: What a parameter without data holds: norms are ones (rms_norm.py), all else is uninitialised memory.
    """

    name: str
    parameters: Mapping[str, Shape]
    parts: tuple[str, ...] = ()
    unfilled: Literal["default", "nothing"] = "nothing"


@dataclass(frozen=True)
class Model:
    """The draft as built.

    Attributes:
        layers: Decoder layers; more than one are numbered (``midlayer.0``).
        own_embedding: It has an embedding of its own; else it is the target's.
        draft_vocab: Rows of its head.
        maps_vocabulary: It has a ``d2t`` table.
    """

    layers: int
    own_embedding: bool
    draft_vocab: int
    maps_vocabulary: bool
    modules: tuple[Module, ...] = field(default=())


def build(config: HfConfig, captured: int) -> Model:
    """The modules that a config makes.

    Args:
        config: As transformers reads it.
        captured: Captured target layers (``num_capture_layers`` of the LLM API's config).

    Raises:
        Refused: An attribute that the engine asks for isn't there.
        TypeError, AttributeError: A value that its arithmetic can't take, as in the engine.
    """
    hidden, eagle = config.need("hidden_size"), _eagle_config(config)
    wide = config.get("target_hidden_size") if config.has("target_hidden_size") else hidden
    vocab = config.need("vocab_size")
    stated = config.get("draft_vocab_size")
    draft_vocab = vocab if stated is None else stated
    layers = config.need("num_hidden_layers")
    before_attention = bool(eagle.get("eh_proj_before_attn", False))
    modules: list[Module] = []
    if captured > 1:
        modules.append(_linear("model.fc", wide * captured, hidden, bias=bool(config.get("bias", False))))
    if eagle.get("norm_before_fc", False):
        modules.append(_norm("model.input_norm", wide * captured))
    if config.get("fc_norm", False):
        modules += [_norm(f"model.fc_norm.{j}", wide) for j in range(captured)]
    regular = bool(eagle.get("next_layer_regular", True))
    for i in range(max(layers, 1)):
        name = f"model.midlayer.{i}" if layers > 1 else "model.midlayer"
        modules += _layer(name, config, joined=not (before_attention or (regular and i > 0)))
    modules.append(_norm("model.norm", hidden))
    if vocab != draft_vocab:
        modules.append(Module("model", {"d2t": (draft_vocab,)}))
    if before_attention:
        modules.append(_norm("model.enorm", hidden))
        modules.append(
            _linear("model.eh_proj", 2 * hidden, hidden, bias=bool(eagle.get("eh_proj_bias", False)))
        )
    if wide != hidden:
        modules.append(Module("model.embed_tokens", {"weight": (vocab, hidden)}))
    modules.append(Module("lm_head", {"weight": (draft_vocab, hidden)}))
    return Model(layers, wide != hidden, draft_vocab, vocab != draft_vocab, tuple(modules))


def _eagle_config(config: HfConfig) -> Mapping[str, object]:
    """``config.eagle_config`` as it is; ``null`` raises at the first ``.get``, as in the engine."""
    found: Mapping[str, object] = config.get("eagle_config") if config.has("eagle_config") else {}
    return found


def _layer(name: str, config: HfConfig, *, joined: bool) -> list[Module]:
    """One decoder layer; a *joined* one takes embedding and hidden state side by side, and norms both."""
    hidden = config.need("hidden_size")
    heads, kv_heads = config.need("num_attention_heads"), config.need("num_key_value_heads")
    head_dim = config.get("head_dim")
    if not isinstance(head_dim, int):  # attention.py Attention.__init__
        head_dim = hidden // heads
    biased, mlp_biased = bool(config.need("attention_bias")), bool(config.get("mlp_bias", False))
    inner = config.need(
        "intermediate_size_mlp" if config.get("model_type") == "llama4_text" else "intermediate_size"
    )
    rows = (heads + 2 * kv_heads) * head_dim
    qkv = _parameters(2 * hidden if joined else hidden, rows, biased)
    return [
        Module(f"{name}.self_attn.qkv_proj", qkv, ("q_proj", "k_proj", "v_proj")),
        _linear(f"{name}.self_attn.o_proj", heads * head_dim, hidden, bias=biased),
        Module(
            f"{name}.mlp.gate_up_proj", _parameters(hidden, 2 * inner, mlp_biased), ("gate_proj", "up_proj")
        ),
        _linear(f"{name}.mlp.down_proj", inner, hidden, bias=mlp_biased),
        *([_norm(f"{name}.input_layernorm", hidden)] if joined else []),
        _norm(f"{name}.hidden_norm", hidden),
        _norm(f"{name}.post_attention_layernorm", hidden),
    ]


def _parameters(inputs: int, outputs: int, bias: bool) -> dict[str, Shape]:
    return {"weight": (outputs, inputs)} | ({"bias": (outputs,)} if bias else {})


def _linear(name: str, inputs: int, outputs: int, *, bias: bool) -> Module:
    return Module(name, _parameters(inputs, outputs, bias))


def _norm(name: str, width: int) -> Module:
    return Module(name, {"weight": (width,)}, unfilled="default")
