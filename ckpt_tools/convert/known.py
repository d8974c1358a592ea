"""Facts that a conversion completes from the tensors, and those that it can't do without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding
from ckpt_tools.model import FLOAT_DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.convert.options import Options
    from ckpt_tools.model import Checkpoint, Draft, DraftFacts, Finding

DTYPE_NAMES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_NEEDED = (
    ("hidden_size", "hidden_size"),
    ("num_attention_heads", "num_attention_heads"),
    ("intermediate_size", "intermediate_size"),
    ("vocab_size", "vocab_size"),
    ("draft_vocab_size", "draft_vocab_size"),
    ("num_hidden_layers", "num_layers"),
)


def with_written_dtype(facts: DraftFacts, checkpoint: Checkpoint, draft: Draft, asked: Options) -> DraftFacts:
    """The dtype that the tensors will have, whatever the config says."""
    if asked.dtype is not None:
        return replace(facts, dtype=DTYPE_NAMES[asked.dtype])
    sizes: dict[str, int] = {}
    for native in draft.tensors.values():
        t = checkpoint.tensors[native]
        if t.dtype in FLOAT_DTYPES:
            sizes[t.dtype] = sizes.get(t.dtype, 0) + t.nbytes
    return replace(facts, dtype=DTYPE_NAMES[max(sizes, key=lambda k: sizes[k])]) if sizes else facts


def with_tensor_flags(facts: DraftFacts, draft: Draft) -> DraftFacts:
    """Flags that only some frameworks write, from the tensors that they go with."""
    shown: dict[str, Any] = {
        flag: True
        for flag, tensor in (
            ("fc_bias", "fc.bias"),
            ("fc_norm", "fc_norm.0.weight"),
            ("norm_before_fc", "input_norm.weight"),
            ("attention_bias", "layers.0.self_attn.q_proj.bias"),
        )
        if getattr(facts, flag) is None and tensor in draft.tensors
    }
    return replace(facts, **shown)


def with_geometry(facts: DraftFacts, draft: Draft, checkpoint: Checkpoint) -> DraftFacts:
    """Heads' width and number as the tensors have them, where the config leaves them to a default."""
    shapes = {n: checkpoint.tensors[native].shape for n, native in draft.tensors.items()}
    q, k = (shapes.get(f"layers.0.self_attn.{p}_proj.weight") for p in "qk")
    heads = facts.num_attention_heads
    head_dim = facts.head_dim
    if head_dim is None and heads and q and q[0] % heads == 0:
        head_dim = q[0] // heads
    kv = facts.num_key_value_heads
    if kv is None and head_dim and k and k[0] % head_dim == 0:
        kv = k[0] // head_dim
    return replace(facts, head_dim=head_dim, num_key_value_heads=kv)


def required(facts: DraftFacts, algorithm: str) -> list[Finding]:
    """Sizes that the output's config needs and that nothing states."""
    if algorithm == "mtp":
        return []
    own_vocabulary = algorithm in ("eagle3", "peagle")
    needed = [(n, getattr(facts, f)) for n, f in _NEEDED if n != "draft_vocab_size" or own_vocabulary]
    missing = [name for name, value in needed if value is None]
    if not missing:
        return []
    return [
        finding(
            "CFG010",
            f"config.json doesn't state {', '.join(missing)} and the tensors' shapes don't either; nothing is guessed",
            file="config.json",
            hint=f"add {', '.join(missing)} to config.json"
            + ("" if "vocab_size" not in missing else ", or give --target"),
        )
    ]
