"""EAGLE-1 drafts of the llama family (``model_executor/models/llama_eagle.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines.vllm.layers import llama_layer
from ckpt_tools.engines.vllm.loading import GATE_UP, QKV, Built, Offered
from ckpt_tools.engines.vllm.modules import Module, replicated, vocabulary

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.config import Fields


def build(fields: Fields, target_layers: int | None) -> Built:
    """Embedding, ``fc`` over 2H, plain layers; layer 0 has no input norm; no final norm, no head.

    ``target_layers`` is where the engine starts to count the draft's layers when it indexes ``layer_types``.
    """
    first = len(fields.get("layer_types") or ()) if target_layers is None else target_layers
    rows, hidden = fields.need("vocab_size"), fields.need("hidden_size")
    embedding, layers = vocabulary("VocabParallelEmbedding", rows, hidden), Module("ModuleList")
    for index in range(fields.need("num_hidden_layers")):
        layer = llama_layer(fields, first + index)
        if index == 0:
            layer.children["input_layernorm"] = Module("Identity")
        layers.children[str(index)] = layer
    model = Module(
        "LlamaModel",
        own_loader=True,
        stacked={**QKV, **GATE_UP},
        children={
            "embed_tokens": embedding,
            "layers": layers,
            "fc": replicated(hidden, 2 * hidden),
        },
    )
    return Built(
        Module(
            "EagleLlamaForCausalLM", children={"model": model, "logits_processor": Module("LogitsProcessor")}
        ),
        _prepare,
    )


def _prepare(built: Built, tensors: list[Offered]) -> list[Offered]:
    """Names get a ``model.`` prefix unless they hold ``lm_head``, which has no place (llama_eagle.py:185-196)."""
    out = []
    for tensor in tensors:
        name = tensor.name if "lm_head" in tensor.name else "model." + tensor.name
        built.own_embed |= "embed_tokens" in name
        built.own_head |= "lm_head" in name
        out.append(Offered(tensor.source, name, tensor.shape))
    return out
