"""From a draft's facts and one framework's semantics to a fully decided description of the head that runs.

Pure: shapes in, :class:`HeadSpec` out, no torch. Sizes come from the tensors themselves, choices from the facts
where the semantics read them; what the semantics don't use is listed in ``HeadSpec.unused``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.model import Rope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.forward.semantics import Semantics
    from ckpt_tools.model import Draft, DraftFacts

BLOCK_ALGORITHMS = frozenset({"dflash", "dflash2", "dspark", "xpress"})
KNOWN_ALGORITHMS = frozenset({"eagle", "eagle3", "peagle", "mtp"}) | BLOCK_ALGORITHMS


@dataclass(frozen=True)
class Mla:
    """Sizes of a multi-head latent attention."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class HeadSpec:
    """Everything that a reference head needs besides weights; nothing here is open any more.

    Attributes:
        algorithm: As in :class:`~ckpt_tools.model.Draft`.
        layer_type: `llama`, `qwen3` or `mla`.
        hidden_size, target_hidden_size: Widths of the draft and of one captured state.
        num_aux: Captured layers that fc takes.
        vocab_size: Rows of the embedding; `None` when no file says so.
        draft_vocab_size: Rows of the head.
        input_norm, fc_norm: Norms before fc that run.
        norm_before_residual, norm_output: As the semantics take them.
        lost_upper_norms: Layers whose input norm stays at ones, since the framework looks for another name.
        windows: Sliding window per layer, or `None`.
        causal: Per layer, whether a DFlash block is causal within itself.
        embedding, head: Whose table is used; `head` may be `embedding` (tied).
        unused: Canonical tensors that the framework's computation never reads.
    """

    algorithm: str
    layer_type: str
    num_layers: int
    hidden_size: int
    target_hidden_size: int
    num_aux: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int | None
    draft_vocab_size: int | None
    eps: float
    input_norm: bool
    fc_norm: bool
    fc_bias: bool
    skip_fc: bool
    norm_before_residual: bool
    norm_output: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    lost_upper_norms: tuple[int, ...]
    windows: tuple[int | None, ...]
    window_from: Literal["anchor", "query"]
    causal: tuple[bool, ...]
    rope: Rope
    default_theta: float
    max_position: int | None
    position_start: int
    embedding: Literal["own", "target"]
    head: Literal["own", "target", "embedding"]
    d2t: bool
    mla: Mla | None = None
    block_size: int | None = None
    mask_token_id: int | None = None
    sample_from_anchor: bool = False
    markov: str | None = None
    confidence: bool = False
    conv_group: int | None = None
    selector_top_k: int | None = None
    jacobi_passes: int | None = None
    unused: tuple[str, ...] = ()


def _missing(name: str) -> InputError:
    return InputError(
        f"the head can't be run: tensor {name!r} is missing",
        hint="ckpt inspect PATH --tensors lists what the files hold",
    )


def _fact(value: Any, key: str) -> Any:
    if value is None:
        raise InputError(
            f"the head can't be run: config.json states no {key}",
            hint=f"write {key} into the draft's config.json",
        )
    return value


def _rows(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    if name not in shapes:
        raise _missing(name)
    return shapes[name][0]


def _columns(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    if name not in shapes:
        raise _missing(name)
    return shapes[name][-1]


def layer_prefix(algorithm: str, index: int) -> str:
    """Start of the canonical names of draft layer `index`."""
    return f"mtp_layers.{index}." if algorithm == "mtp" else f"layers.{index}."


def _layers(shapes: Mapping[str, tuple[int, ...]], algorithm: str) -> int:
    stem = "mtp_layers" if algorithm == "mtp" else "layers"
    found = {int(m[1]) for name in shapes if (m := re.match(rf"{stem}\.(\d+)\.", name))}
    if not found:
        raise _missing(f"{stem}.0.*")
    return max(found) + 1


def _attention(
    shapes: Mapping[str, tuple[int, ...]], facts: DraftFacts, prefix: str
) -> tuple[str, int, int, int, Mla | None]:
    """(layer type, heads, kv heads, head_dim, MLA sizes) from the tensors, with the facts where they decide."""
    attn = prefix + "self_attn."
    if attn + "kv_a_proj_with_mqa.weight" in shapes:
        heads = _fact(facts.num_attention_heads, "num_attention_heads")
        kv_rank = _rows(shapes, attn + "kv_a_layernorm.weight")
        rope_dim = _rows(shapes, attn + "kv_a_proj_with_mqa.weight") - kv_rank
        q_dim = _rows(shapes, attn + "q_b_proj.weight") // heads
        value_dim = _columns(shapes, attn + "o_proj.weight") // heads
        mla = Mla(
            _rows(shapes, attn + "q_a_layernorm.weight"), kv_rank, q_dim - rope_dim, rope_dim, value_dim
        )
        return "mla", heads, heads, q_dim, mla
    q_rows, k_rows = _rows(shapes, attn + "q_proj.weight"), _rows(shapes, attn + "k_proj.weight")
    if attn + "q_norm.weight" in shapes:
        head_dim = _rows(shapes, attn + "q_norm.weight")
    elif facts.head_dim is not None:
        head_dim = facts.head_dim
    else:
        head_dim = q_rows // _fact(facts.num_attention_heads, "head_dim or num_attention_heads")
    gated = 2 if _columns(shapes, attn + "o_proj.weight") * 2 == q_rows else 1
    if gated == 2:
        raise Unavailable(
            "a gated attention (q_proj twice as tall as o_proj is wide) has no reference head",
            hint="ckpt verify checks such a draft's names and shapes",
        )
    if q_rows % head_dim or k_rows % head_dim:
        raise InputError(
            f"{attn}q_proj ({q_rows} rows) or k_proj ({k_rows} rows) is no multiple of head_dim {head_dim}",
            hint="correct head_dim in the draft's config.json",
        )
    layer_type = "qwen3" if facts.layer_type == "qwen3" or attn + "q_norm.weight" in shapes else "llama"
    return layer_type, q_rows // head_dim, k_rows // head_dim, head_dim, None


def _upper_norms_lost(draft: Draft, semantics: Semantics, layers: int) -> tuple[int, ...]:
    """Layers ≥ 1 whose norm has in the files the name that this framework doesn't read."""
    lost = []
    for i in range(1, layers):
        name = draft.tensors.get(f"layers.{i}.input_layernorm.weight")
        if name is None or f".{semantics.upper_norm}." not in name:
            lost.append(i)
    return tuple(lost)


def _windows(facts: DraftFacts, layers: int) -> tuple[int | None, ...]:
    types = facts.layer_types or ()
    return tuple(
        facts.sliding_window if i < len(types) and types[i] == "sliding_attention" else None
        for i in range(layers)
    )


def _causal(facts: DraftFacts, semantics: Semantics, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    non_causal = facts.extra.get("sliding_window_non_causal")
    stated = facts.extra.get("is_causal")
    if isinstance(stated, bool):
        return (stated,) * len(windows)
    if semantics.dflash_causal == "flag" and non_causal is not None:
        return (not non_causal,) * len(windows)
    return tuple(window is not None and not non_causal for window in windows)


def resolve(draft: Draft, shapes: Mapping[str, tuple[int, ...]], semantics: Semantics) -> HeadSpec:
    """What `semantics` makes of `draft`.

    Args:
        draft: The canonical draft; of its `tensors` only the names in the files are read.
        shapes: Canonical name -> shape of the tensors that reach the head.
        semantics: The framework that runs it.

    Raises:
        InputError: A size that neither tensors nor facts give.
        Unavailable: An algorithm or an attention without a reference head.
    """
    facts, algorithm = draft.facts, draft.algorithm
    if algorithm not in KNOWN_ALGORITHMS:
        raise Unavailable(
            f"algorithm {algorithm!r} has no reference head",
            hint=f"heads exist for {', '.join(sorted(KNOWN_ALGORITHMS))}",
        )
    prefix = layer_prefix(algorithm, 0)
    layers = _layers(shapes, algorithm)
    if semantics.max_layers is not None:
        layers = min(layers, semantics.max_layers)
    layer_type, heads, kv_heads, head_dim, mla = _attention(shapes, facts, prefix)
    if layer_type == "qwen3" and "qwen3" not in semantics.qk_norm and algorithm in ("eagle3", "peagle"):
        layer_type = "llama"
    hidden = _columns(shapes, prefix + "mlp.gate_proj.weight")
    eagle3 = algorithm in ("eagle3", "peagle")
    fused = eagle3 or algorithm in BLOCK_ALGORITHMS
    fc_in = _columns(shapes, "fc.weight") if "fc.weight" in shapes else None
    target_hidden = facts.target_hidden_size or hidden
    stated_aux = facts.num_aux or len(facts.capture_layers or ()) or 1
    num_aux = (fc_in // target_hidden if fc_in is not None else stated_aux) if fused else 1
    windows = _windows(facts, layers)
    if eagle3 and semantics.window == "flag":
        windows = (None,) * layers
    own_head = "lm_head.weight" in shapes
    head: Literal["own", "target", "embedding"] = "own" if own_head else "target"
    if algorithm in ("eagle", "mtp") or (algorithm in BLOCK_ALGORITHMS and semantics.dflash_head == "target"):
        head = "target"
    if eagle3 and semantics.tied_head and facts.tie_word_embeddings:
        head = "embedding"
    own_embedding = "embed_tokens.weight" in shapes and (
        semantics.embedding == "own" or target_hidden != hidden
    )
    if algorithm in ("eagle", "mtp") or algorithm in BLOCK_ALGORITHMS:
        own_embedding = "embed_tokens.weight" in shapes and semantics.embedding == "own"
    norm_before_residual = facts.norm_before_residual
    if norm_before_residual is None:
        norm_before_residual = semantics.norm_before_residual_default
    norm_output = bool(facts.norm_output) and layer_type in semantics.norm_output
    if algorithm == "peagle":
        norm_output = norm_output and semantics.peagle_norm_output
    biased = "llama" if algorithm == "eagle" else layer_type
    fc_rule = semantics.eagle1_fc_bias if algorithm == "eagle" else semantics.fc_bias
    extra = facts.extra
    draft_vocab = shapes["lm_head.weight"][0] if head == "own" else facts.draft_vocab_size or facts.vocab_size
    markov = extra.get("markov_head_type", "vanilla") if "markov_head.markov_w1.weight" in shapes else None
    spec = HeadSpec(
        algorithm=algorithm,
        layer_type=layer_type,
        num_layers=layers,
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_aux=num_aux,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=shapes["embed_tokens.weight"][0] if "embed_tokens.weight" in shapes else facts.vocab_size,
        draft_vocab_size=draft_vocab,
        eps=_fact(facts.rms_norm_eps, "rms_norm_eps"),
        input_norm=eagle3 and bool(facts.norm_before_fc) and layer_type in semantics.norm_before_fc,
        fc_norm=eagle3 and bool(facts.fc_norm) and layer_type in semantics.fc_norm,
        fc_bias="fc.bias" in shapes and fc_rule != "never",
        skip_fc=eagle3 and semantics.skip_equal_fc and fc_in == hidden,
        norm_before_residual=norm_before_residual and layer_type in semantics.norm_before_residual,
        norm_output=norm_output,
        qkv_bias=prefix + "self_attn.q_proj.bias" in shapes
        and (biased in semantics.qkv_bias or algorithm in BLOCK_ALGORITHMS),
        o_bias=prefix + "self_attn.o_proj.bias" in shapes
        and (biased in semantics.o_bias or algorithm in BLOCK_ALGORITHMS),
        mlp_bias=prefix + "mlp.gate_proj.bias" in shapes and biased in semantics.mlp_bias,
        qk_norm=layer_type == "qwen3",
        lost_upper_norms=_upper_norms_lost(draft, semantics, layers) if eagle3 else (),
        windows=windows,
        window_from=semantics.window_from,
        causal=_causal(facts, semantics, windows),
        rope=facts.rope or Rope(),
        default_theta=semantics.default_theta,
        max_position=facts.max_position_embeddings,
        position_start=semantics.position_start if algorithm == "eagle3" else 0,
        embedding="own" if own_embedding else "target",
        head=head,
        d2t="d2t" in shapes and head == "own",
        mla=mla,
        block_size=facts.block_size,
        mask_token_id=facts.mask_token_id,
        sample_from_anchor=bool(extra.get("sample_from_anchor", False)),
        markov=markov if algorithm == "dspark" else None,
        confidence=algorithm == "dspark" and "confidence_head.proj.weight" in shapes,
        conv_group=_conv_group(shapes),
        selector_top_k=extra.get("selector_top_k") if algorithm == "dflash2" else None,
        jacobi_passes=extra.get("num_jacobi_passes") if algorithm == "xpress" else None,
    )
    return _with_unused(spec, shapes)


def _conv_group(shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    kernel = shapes.get("layers.0.attention_conv.base_kernel")
    if kernel is None:
        return None
    _, taps, hidden = kernel
    return hidden * 2 * taps // _rows(shapes, "layers.0.attention_conv.kernel_projection.weight")


def _reads(spec: HeadSpec, name: str) -> bool:
    """Whether a head with `spec` reads canonical tensor `name`."""
    match = re.match(r"(?:mtp_)?layers\.(\d+)\.(.*)", name)
    if match:
        index, rest = int(match[1]), match[2]
        lost = index in spec.lost_upper_norms and rest == "input_layernorm.weight"
        # EAGLE-1's first layer has no input norm; layers past the first have no norm of the hidden state.
        foreign = (spec.algorithm == "eagle" and index == 0 and rest == "input_layernorm.weight") or (
            rest == "hidden_norm.weight" and index > 0
        )
        rules = (
            (".bias", "self_attn.o_proj", spec.o_bias),
            (".bias", "self_attn.", spec.qkv_bias),
            (".bias", "mlp.", spec.mlp_bias),
            ("_norm.weight", "self_attn.", spec.qk_norm),
        )
        for end, start, used in rules:
            if rest.startswith(start) and rest.endswith(end):
                return used
        return index < spec.num_layers and not lost and not foreign
    return {
        "embed_tokens.weight": spec.embedding == "own",
        "lm_head.weight": spec.head == "own",
        "d2t": spec.d2t,
        "t2d": False,
        "fc.weight": not spec.skip_fc,
        "fc.bias": spec.fc_bias,
        "input_norm.weight": spec.input_norm,
        "mask_hidden": spec.algorithm == "peagle",
        "norm.weight": spec.algorithm != "eagle",
    }.get(name, spec.fc_norm if name.startswith("fc_norm.") else True)


def _with_unused(spec: HeadSpec, shapes: Mapping[str, tuple[int, ...]]) -> HeadSpec:
    # t2d is the inverse of d2t and read by nobody: it is no loss.
    return replace(spec, unused=tuple(sorted(n for n in shapes if n != "t2d" and not _reads(spec, n))))
