"""The EAGLE-3 head that ckpt's draft class builds: its config fields, tensors and parameters.

One definition for both sides: the class that SGLang loads builds and checks what stands here, and the load map says so
beforehand from the files. Nothing is defaulted but what transformers' ``LlamaConfig`` defaults too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.engines.sglang_ext.releases import Release

#: The class, and so the name in ``architectures``: one that SGLang doesn't have, so that a server without the package
#: refuses the folder.
ARCHITECTURE = "CkptLlamaForCausalLMEagle3"

Shape = tuple[int, ...]
#: Parameter parts that are fused: name in the engine -> names in the files, in order.
_FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
#: Tensors that training leaves in a folder and no engine needs.
_SKIPPED = ("verifier_",)
_EMBED, _HEAD = "embed_tokens.weight", "lm_head.weight"


class HeadError(ValueError):
    """The config describes no head that the class can build, or the folder doesn't hold what it describes."""


@dataclass(frozen=True)
class Head:
    """An EAGLE-3 head of Llama layers.

    Attributes:
        target_hidden_size: Width of one captured layer.
        num_aux: Captured layers that fc takes.
        norm_before_residual: The residual is the hidden state after ``hidden_norm``, not before.
        own_embedding: The draft's own embedding is used, not the target's.
        windows: Per layer, how many positions a query sees, itself included; ``None`` is all.
        capture_ids: As ``eagle_config`` states them; ``None`` is the engine's default.
    """

    hidden_size: int
    target_hidden_size: int
    num_aux: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    attention_bias: bool
    mlp_bias: bool
    fc_bias: bool
    qk_norm: bool
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    own_embedding: bool
    windows: tuple[int | None, ...]
    capture_ids: tuple[int, ...] | None

    def tensors(self) -> dict[str, Shape]:
        """Every tensor that has a home, and its shape; linear weights are [out, in]."""
        h, wide = self.hidden_size, self.target_hidden_size * self.num_aux
        q, kv = (n * self.head_dim for n in (self.num_attention_heads, self.num_key_value_heads))
        out: dict[str, Shape] = {_EMBED: (self.vocab_size, h), "fc.weight": (h, wide)}
        if self.fc_bias:
            out["fc.bias"] = (h,)
        if self.norm_before_fc:
            out["input_norm.weight"] = (wide,)
        if self.fc_norm:
            out |= {f"fc_norm.{j}.weight": (self.target_hidden_size,) for j in range(self.num_aux)}
        for i in range(self.num_layers):
            rows = {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": h}
            width = {"o_proj": q}
            layer: dict[str, Shape] = {"input_layernorm.weight": (h,)}
            if i == 0:
                layer["hidden_norm.weight"] = (h,)
            layer["post_attention_layernorm.weight"] = (h,)
            for name, size in rows.items():
                layer[f"self_attn.{name}.weight"] = (size, width.get(name, 2 * h if i == 0 else h))
                if self.attention_bias:
                    layer[f"self_attn.{name}.bias"] = (size,)
            if self.qk_norm:
                layer |= {f"self_attn.{name}.weight": (self.head_dim,) for name in ("q_norm", "k_norm")}
            for name, shape in (
                ("gate_proj", (self.intermediate_size, h)),
                ("up_proj", (self.intermediate_size, h)),
                ("down_proj", (h, self.intermediate_size)),
            ):
                layer[f"mlp.{name}.weight"] = shape
                if self.mlp_bias:
                    layer[f"mlp.{name}.bias"] = shape[:1]
            out |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
        return out | {
            "norm.weight": (h,),
            _HEAD: (self.draft_vocab_size, h),
            "d2t": (self.draft_vocab_size,),
            "t2d": (self.vocab_size,),
        }

    def optional(self) -> frozenset[str]:
        """Of those, the tensors that may be absent: the target's embedding takes its place, or nothing needs it."""
        out = {"t2d"}
        if not self.own_embedding:
            out.add(_EMBED)
        if self.draft_vocab_size == self.vocab_size:
            out.add("d2t")
        return frozenset(out)

    def parameters(self) -> dict[str, tuple[str, ...]]:
        """The class's parameters, and the tensors that fill each."""
        out: dict[str, tuple[str, ...]] = {}
        for name in self.tensors():
            if name not in ("d2t", "t2d"):
                home = parameter_of(name)[0]
                out[home] = (*out.get(home, ()), name)
        return out

    def disagreement(self, found: Mapping[str, Shape]) -> str | None:
        """What of a folder has no home, no data or another shape; ``None`` when all is as the config says.

        Args:
            found: Names and shapes of the folder's tensors.
        """
        expected, optional = self.tensors(), self.optional()
        missing = [n for n in expected if n not in found and n not in optional]
        stray = [n for n in found if n not in expected and not is_skipped(n)]
        shapes = [
            f"{n} is {list(found[n])}, config.json makes it {list(expected[n])}"
            for n in found
            if n in expected and tuple(found[n]) != expected[n]
        ]
        parts = [
            f"no tensor for {', '.join(sorted(missing))}" if missing else "",
            f"no parameter for {', '.join(sorted(stray))}" if stray else "",
            "; ".join(sorted(shapes)),
        ]
        said = "; ".join(p for p in parts if p)
        return f"{ARCHITECTURE}: the weights don't fit config.json: {said}" if said else None

    def limit(self, release: Release) -> str | None:
        """What this head asks for that the release can't do with CUDA graphs; ``None`` when nothing."""
        if self.num_aux != 3 and not release.any_aux:
            return (
                f"the draft takes {self.num_aux} captured layers and SGLang {release.version} sizes its CUDA graphs for three: "
                "serve with --disable-cuda-graph, or with SGLang 0.5.15 or later"
            )
        if (
            not release.graphs_keep_ids
            and self.capture_ids is not None
            and not _default_ids(self.capture_ids)
        ):
            return (
                f"eagle_aux_hidden_state_layer_ids {list(self.capture_ids)} aren't the default ones, and SGLang {release.version} "
                "captures those in CUDA graphs whatever the config says: serve with --disable-cuda-graph, or with SGLang 0.5.11 "
                "or later"
            )
        return None

    def window(self, context_length: int | None) -> int | None:
        """The window that cuts a context of that length (the config's own when not given); ``None`` when none does."""
        longest = min(context_length or self.max_position_embeddings, self.max_position_embeddings)
        cutting = {w for w in self.windows if w is not None and w < longest}
        return next(iter(cutting), None)


def is_skipped(name: str) -> bool:
    """Whether a tensor is left behind by training and never needed."""
    return name.startswith(_SKIPPED)


def parameter_of(tensor: str) -> tuple[str, str | int | None]:
    """The parameter that a tensor belongs to, and the shard of it: ``q``, ``k``, ``v`` of qkv_proj, 0 and 1 of gate_up_proj."""
    parts = tensor.split(".")
    shard: str | int | None = None
    for fused, names in _FUSED.items():
        if len(parts) > 1 and parts[-2] in names:
            shard = parts[-2][0] if fused == "qkv_proj" else names.index(parts[-2])
            parts[-2] = fused
            break
    name = ".".join(parts)
    return (name if name == _HEAD else f"model.{name}"), shard


def read_head(config: Mapping[str, Any]) -> Head:
    """The head that a config describes.

    Args:
        config: config.json, or the dictionary of the config object that SGLang made of it.

    Raises:
        HeadError: Naming the field.
    """
    architectures = config.get("architectures") or ["?"]
    heads = _size(config, "num_attention_heads")
    hidden = _size(config, "hidden_size")
    layers = _size(config, "num_hidden_layers")
    block = config.get("eagle_config") or {}
    ids = block.get("eagle_aux_hidden_state_layer_ids")
    num_aux = config.get("num_aux_hidden_states") or (len(ids) if ids else 3)
    target = config.get("target_hidden_size") or hidden
    flags = {
        name: bool(config.get(name))
        for name in (
            "attention_bias", "mlp_bias", "fc_bias", "qk_norm", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
        )
    }  # fmt: skip
    if config.get("model_type") != "llama":
        raise HeadError(
            f"{architectures[0]} takes model_type llama, and config.json says {config.get('model_type')!r}"
        )
    if config.get("hidden_act") != "silu":
        raise HeadError(f"hidden_act is {config.get('hidden_act')!r}; SGLang's Llama layers take silu alone")
    if config.get("tie_word_embeddings"):
        raise HeadError("tie_word_embeddings is true: an EAGLE-3 head has its own lm_head.weight")
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise HeadError("norm_before_fc and fc_norm are both true; a head has one of them")
    if num_aux * target == hidden:
        raise HeadError(
            f"the captured layers together are as wide as the draft ({hidden}): SGLang's worker hands both to the same forward, "
            "and nothing tells them apart"
        )
    return Head(
        hidden_size=hidden,
        target_hidden_size=target,
        num_aux=num_aux,
        num_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate_size=_size(config, "intermediate_size"),
        vocab_size=_size(config, "vocab_size"),
        draft_vocab_size=_size(config, "draft_vocab_size"),
        max_position_embeddings=_size(config, "max_position_embeddings"),
        own_embedding=bool(config.get("embed_requires_grad")) or target != hidden,
        windows=_windows(config, layers),
        capture_ids=tuple(ids) if ids else None,
        **flags,
    )


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HeadError(f"config.json: {key} is {value!r}; it must be a positive integer")
    return value


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Per layer; without ``layer_types`` every layer has the window if ``use_sliding_window`` isn't false."""
    window = config.get("sliding_window")
    kinds = config.get("layer_types")
    if kinds is None:
        used = window is not None and config.get("use_sliding_window", True)
        kinds = ["sliding_attention" if used else "full_attention"] * layers
    if len(kinds) != layers:
        raise HeadError(f"layer_types has {len(kinds)} entries for {layers} layers")
    if unknown := sorted(set(kinds) - {"sliding_attention", "full_attention"}):
        raise HeadError(
            f"layer_types names {', '.join(unknown)}; known are sliding_attention and full_attention"
        )
    if "sliding_attention" in kinds and window is None:
        raise HeadError("layer_types names sliding_attention and sliding_window is missing")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _default_ids(ids: tuple[int, ...]) -> bool:
    """Whether these are the layers that SGLang captures unasked, for some number of target layers."""
    depth = ids[-1] + 4
    return ids == (1, depth // 2 - 1, depth - 4)
