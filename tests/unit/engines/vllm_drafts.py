"""Tiny drafts, as headers, for the vLLM tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm.loadmap import load_map
from ckpt_tools.model import Checkpoint, FileInfo, Target, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import LoadMap

H, V, VD, INTER = 64, 256, 128, 96
Table = dict[str, tuple[int, ...]]


def config(**changes: Any) -> dict[str, Any]:
    """A plain llama EAGLE-3 config; a value of ``...`` takes the key away."""
    out: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": H,
        "intermediate_size": INTER,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": V,
        "draft_vocab_size": VD,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
    }
    out |= changes
    return {key: value for key, value in out.items() if value is not ...}


def speculators(
    kind: str = "eagle3", layer: Mapping[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """The same draft as speculators writes it."""
    inner = {k: v for k, v in config().items() if k not in ("architectures", "draft_vocab_size")}
    out: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": kind,
        "draft_vocab_size": VD,
        "transformer_layer_config": inner | dict(layer or {}),
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"speculative_tokens": 3}],
            "verifier": {"name_or_path": "a/b", "architectures": []},
        },
    }
    out |= changes
    return {key: value for key, value in out.items() if value is not ...}


def eagle3(prefix: str = "layers.0.") -> Table:
    """Names and shapes of a whole EAGLE-3 llama draft without its embedding."""
    layer = {
        "self_attn.q_proj.weight": (128, 2 * H),
        "self_attn.k_proj.weight": (64, 2 * H),
        "self_attn.v_proj.weight": (64, 2 * H),
        "self_attn.o_proj.weight": (H, 128),
        "mlp.gate_proj.weight": (INTER, H),
        "mlp.up_proj.weight": (INTER, H),
        "mlp.down_proj.weight": (H, INTER),
        "input_layernorm.weight": (H,),
        "post_attention_layernorm.weight": (H,),
        "hidden_norm.weight": (H,),
    }
    top = {"d2t": (VD,), "t2d": (V,), "fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (VD, H)}
    return {prefix + name: shape for name, shape in layer.items()} | top


def checkpoint(
    config: Mapping[str, Any] | None, table: Mapping[str, tuple[int, ...]], *files: str
) -> Checkpoint:
    """A draft folder as headers."""
    dtypes = {"d2t": "I64", "t2d": "BOOL"}
    tensors = {
        name: TensorInfo(name, dtypes.get(name, "BF16"), shape, "model.safetensors", 0, 0)
        for name, shape in table.items()
    }
    infos = (FileInfo("model.safetensors", 0, "safetensors"), *(FileInfo(name, 0, "other") for name in files))
    return Checkpoint("draft", "draft", config, json.dumps(config), tensors, infos)


def target(**changes: Any) -> Target:
    """A llama target of the drafts' vocabulary."""
    facts = {
        "architectures": ("LlamaForCausalLM",),
        "vocab_size": V,
        "hidden_size": H,
        "num_hidden_layers": 8,
    }
    return Target("target", "local", **{**facts, **changes})


def mapped(
    config: Mapping[str, Any] | None,
    table: Mapping[str, tuple[int, ...]],
    version: str = "0.33.0",
    **options: Any,
) -> LoadMap:
    """The load map of a draft with :func:`target`."""
    served = options.pop("target", target())
    return load_map(resolve(f"vllm=={version}", "--engine"), checkpoint(config, table), served, **options)
