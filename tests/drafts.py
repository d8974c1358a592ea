"""Tiny drafts in memory: a sound one per format, and edits on it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from ckpt_tools.checks.base import Context
from ckpt_tools.checks.runner import run_checks
from ckpt_tools.engines import load_map, resolve
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Checkpoint, FileInfo, Finding, Skipped, Target, TensorInfo

H, F, A, K, D, V, W = 64, 128, 4, 2, 16, 256, 96
MAP = tuple(range(0, 2 * W, 2))  # target ids 0, 2, 4 … of the draft's rows

FLAT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H, "intermediate_size": F,
    "num_attention_heads": A, "num_key_value_heads": K, "head_dim": D, "num_hidden_layers": 1, "vocab_size": V,
    "draft_vocab_size": W, "max_position_embeddings": 512, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "dtype": "bfloat16", "torch_dtype": "bfloat16", "norm_before_residual": False,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
}  # fmt: skip


def layer(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a decoder layer with an input of this width."""
    return {
        f"{prefix}self_attn.q_proj.weight": (A * D, width),
        f"{prefix}self_attn.k_proj.weight": (K * D, width),
        f"{prefix}self_attn.v_proj.weight": (K * D, width),
        f"{prefix}self_attn.o_proj.weight": (H, A * D),
        f"{prefix}mlp.gate_proj.weight": (F, H),
        f"{prefix}mlp.up_proj.weight": (F, H),
        f"{prefix}mlp.down_proj.weight": (H, F),
        f"{prefix}post_attention_layernorm.weight": (H,),
        f"{prefix}input_layernorm.weight": (H,),
    }


EAGLE3: dict[str, tuple[int, ...]] = {
    "fc.weight": (H, 3 * H),
    **layer("midlayer.", 2 * H),
    "midlayer.hidden_norm.weight": (H,),
    "norm.weight": (H,),
    "lm_head.weight": (W, H),
    "d2t": (W,),
    "t2d": (V,),
}
EAGLE1: dict[str, tuple[int, ...]] = {
    "fc.weight": (H, 2 * H),
    "fc.bias": (H,),
    **{k: v for k, v in layer("layers.0.", H).items() if "input_layernorm" not in k},
    "embed_tokens.weight": (V, H),
}
DFLASH_CONFIG: dict[str, Any] = {
    **{k: v for k, v in FLAT.items() if "eagle" not in k and k not in ("draft_vocab_size", "norm_before_residual")},
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_target_layers": 8, "block_size": 4,
    "dflash_config": {"mask_token_id": 250, "target_layer_ids": [1, 3, 5]},
}  # fmt: skip
DFLASH: dict[str, tuple[int, ...]] = {
    "fc.weight": (H, 3 * H),
    "hidden_norm.weight": (H,),
    "norm.weight": (H,),
    **layer("layers.0.", H),
    "layers.0.self_attn.q_norm.weight": (D,),
    "layers.0.self_attn.k_norm.weight": (D,),
}

LLAMA = Target(
    id="tiny", origin="local", architectures=("LlamaForCausalLM",), text_architectures=("LlamaForCausalLM",),
    model_type="llama", text_model_type="llama", hidden_size=H, num_hidden_layers=8, vocab_size=V,
    max_position_embeddings=512, tie_word_embeddings=False, dtype="bfloat16", num_attention_heads=A,
    num_key_value_heads=K, head_dim=D, embed_tensor="model.embed_tokens.weight", lm_head_tensor="lm_head.weight",
)  # fmt: skip

Edit = Callable[[dict[str, Any], dict[str, tuple[int, ...]]], None]


def draft(
    edit: Edit | None = None,
    config: dict[str, Any] = FLAT,
    tensors: dict[str, tuple[int, ...]] = EAGLE3,
    dtypes: dict[str, str] | None = None,
) -> Checkpoint:
    """A checkpoint in memory; ``edit`` changes copies of config and shapes in place."""
    c, t = copy.deepcopy(config), dict(tensors)
    if edit is not None:
        edit(c, t)
    kinds = {"d2t": "I64", "t2d": "BOOL", **(dtypes or {})}
    infos = {
        n: TensorInfo(
            n, kinds.get(n.rpartition(".")[2], kinds.get(n, "BF16")), tuple(s), "model.safetensors", 0, 0
        )
        for n, s in sorted(t.items())
    }
    text = json.dumps(c, indent=1)
    files = (FileInfo("model.safetensors", 1, "safetensors"),) if infos else ()
    return Checkpoint("draft", "draft", c, text, infos, files)


def context(
    checkpoint: Checkpoint,
    engine: str = "sglang",
    target: Target | None = LLAMA,
    tables: dict[str, tuple[int, ...]] | None = None,
    **more: Any,
) -> Context:
    """What the checks look at."""
    resolved = resolve(engine, "--engine")
    read = read_draft(checkpoint, target)
    load = (
        load_map(resolved, checkpoint, target, algorithm=read.algorithm)
        if read and checkpoint.tensors
        else None
    )
    rows = {
        "d2t": tuple(m - i for i, m in enumerate(MAP)),
        "t2d": tuple(int(i in set(MAP)) for i in range(V)),
    }
    rows.update(tables or {})
    return Context(
        checkpoint=checkpoint,
        draft=read,
        target=target,
        engine=resolved,
        load=load,
        table=lambda n: rows.get(n),
        **more,
    )


def checked(
    checkpoint: Checkpoint,
    engine: str = "sglang",
    target: Target | None = LLAMA,
    tables: dict[str, tuple[int, ...]] | None = None,
    **more: Any,
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """What the checks say of a draft."""
    out = run_checks([context(checkpoint, engine, target, tables, **more)])
    return out.findings, out.skipped


def codes(findings: tuple[Finding, ...], *severities: str) -> list[str]:
    """Codes of the findings of these severities (all but info by default)."""
    wanted = severities or ("error", "warning")
    return sorted({f.code for f in findings if f.severity.value in wanted})
