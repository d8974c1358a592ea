"""EAGLE-3 and P-EAGLE drafts: llama, qwen3 and MLA layers.

References: ``model_executor/models/llama_eagle3.py``, ``qwen3_eagle3.py``, ``deepseek_eagle3.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.layers import (
    head_counts,
    llama_layer,
    mla_layer,
    qkv,
    qwen3_layer,
)
from ckpt_tools.engines.vllm.loading import GATE_UP, QKV, Built, Offered
from ckpt_tools.engines.vllm.modules import (
    Module,
    Parameter,
    allocated,
    load_error,
    norm,
    numel,
    replicated,
    vocabulary,
)
from ckpt_tools.engines.vllm.refusal import refuse_class

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.config import Fields
    from ckpt_tools.engines.vllm.contract import Contract

MLA_STACKED = {
    **GATE_UP,
    ".q_a_proj": (".fused_qkv_a_proj", 0),
    ".kv_a_proj_with_mqa": (".fused_qkv_a_proj", 1),
}


def eagle_config(fields: Fields) -> Mapping[str, Any]:
    """The nested ``eagle_config``; null counts as empty."""
    nested = fields.get("eagle_config") or {}
    if not isinstance(nested, Mapping):
        raise refuse_class("AttributeError", f"'{type(nested).__name__}' object has no attribute 'get'")
    return nested


def uses_aux(fields: Fields) -> bool:
    """Whether captured layers feed ``fc``: ``eagle_config.use_aux_hidden_state``, default yes (:180)."""
    return bool(eagle_config(fields).get("use_aux_hidden_state", True))


def norm_before_fc(fields: Fields, contract: Contract) -> bool:
    """``eagle_config.norm_before_fc``, else the top-level key, else no (:183-187)."""
    value = eagle_config(fields).get("norm_before_fc", fields.get("norm_before_fc", False))
    return contract.norm_before_fc and bool(value)


def num_aux(fields: Fields, kind: str, contract: Contract) -> Any:
    """How many captured layers ``fc`` takes.

    llama and MLA: ``num_aux_hidden_states``, else the length of the *nested* ids, else 3 (llama_eagle3.py:209-221).
    qwen3: ``num_aux_layers``, ``num_aux_hidden_states``, top-level ids, nested ids, 3 (qwen3_eagle3.py:201-214).
    """
    if not contract.num_aux_from_config:
        return 3
    keys = ("num_aux_layers", "num_aux_hidden_states") if kind == "qwen3" else ("num_aux_hidden_states",)
    for key in keys:
        if fields.get(key) is not None:
            return fields[key]
    ids = eagle_config(fields).get("eagle_aux_hidden_state_layer_ids")
    if kind == "qwen3":
        ids = fields.get("eagle_aux_hidden_state_layer_ids") or ids
    return len(ids) if ids else 3


def build(fields: Fields, kind: str, target_vocab: int, contract: Contract, *, parallel: bool) -> Built:
    """The module tree of an EAGLE-3 draft.

    Args:
        fields: The resolved config.
        kind: ``llama``, ``qwen3`` or ``mla``.
        target_vocab: The target's vocabulary.
        contract: The release.
        parallel: ``parallel_drafting``.
    """
    vocab = fields.get("vocab_size")
    draft_vocab = fields.get("draft_vocab_size")
    if draft_vocab is None:
        if contract.draft_vocab_required and "draft_vocab_size" not in fields:
            raise refuse_class(
                "AttributeError", f"'{fields.owner}' object has no attribute 'draft_vocab_size'"
            )
        draft_vocab = vocab
    rows, hidden = fields.need("vocab_size"), fields.need("hidden_size")
    cls, top = _CLASSES[kind]
    aux = kind == "mla" or uses_aux(fields)
    before_fc = kind != "mla" and norm_before_fc(fields, contract)
    count = fields.need("num_hidden_layers") if contract.layers is None else contract.layers
    model = Module(
        cls,
        own_loader=True,
        key_errors=contract.unknown_name == "KeyError",
        renames={"midlayer.": "layers.0."},
        stacked=MLA_STACKED if kind == "mla" else {**QKV, **GATE_UP},
        children={"embed_tokens": vocabulary("VocabParallelEmbedding", rows, hidden)},
    )
    layers = Module("ModuleList")
    for index in range(count):
        layers.children[str(index)] = _layer(fields, kind, index, contract)
        layers.children[str(index)].children["hidden_norm"] = norm(hidden)
    model.children["layers"] = layers
    width = 0
    if aux:
        states = num_aux(fields, kind, contract)
        target_hidden = fields.get("target_hidden_size", hidden)
        width = target_hidden * states
        if before_fc:
            model.children["input_norm"] = norm(width)
        if contract.fc_norm and fields.get("fc_norm", False):
            norms = {str(i): norm(target_hidden) for i in range(states)}
            model.children["fc_norm"] = Module("ModuleList", children=norms)
        model.children["fc"] = replicated(hidden, width)
    model.children["norm"] = norm(hidden)
    root = Module(top, children={"model": model})
    root.children["lm_head"] = vocabulary("ParallelLMHead", draft_vocab, hidden)
    if draft_vocab != target_vocab or contract.full_vocab_d2t == "tolerated":
        root.parameters["draft_id_to_target_id"] = Parameter(
            allocated("zeros", draft_vocab), initial="default"
        )
    root.children["logits_processor"] = Module("LogitsProcessor")
    parallel = parallel and kind != "mla" and contract.parallel_drafting
    if parallel and not aux:
        if kind == "llama":  # llama_eagle3.py:180-221 sets it with captured layers alone
            raise refuse_class("AttributeError", "'LlamaModel' object has no attribute 'fc_input_size'")
        width = hidden
    return Built(root, _prepare(parallel, width, kind != "mla", aux, before_fc))


def _prepare(
    parallel: bool, width: int, mask: bool, aux: bool, before_fc: bool
) -> Callable[[Built, list[Offered]], list[Offered]]:
    """The class's own pass over the names (llama_eagle3.py:415-470)."""

    def prepare(built: Built, tensors: list[Offered]) -> list[Offered]:
        named: dict[str, Offered] = {}
        mapped = masked = False
        for tensor in tensors:
            name = tensor.name
            if "t2d" in name:
                continue
            if "d2t" in name:
                name, mapped = name.replace("d2t", "draft_id_to_target_id"), True
            elif mask and "mask_hidden" in name:
                if parallel:
                    if numel(tensor.shape) not in (width, 1):
                        raise load_error(
                            "RuntimeError",
                            f"The size of tensor a ({width}) must match the size of tensor b ({numel(tensor.shape)})",
                        )
                    built.held.append(tensor.source)
                    masked = True
                continue
            elif "lm_head" not in name:
                name = "model." + name
            built.own_embed |= "embed_tokens" in name
            built.own_head |= "lm_head" in name
            named[name] = Offered(tensor.source, name, tensor.shape)
        if parallel and not masked:
            raise load_error(
                "ValueError",
                "mask_hidden not found in weights but model is configured for parallel drafting.",
            )
        dropped = {
            "mask_hidden": mask,
            "draft_id_to_target_id": not mapped,
            "embed_tokens": not built.own_embed,
        }
        dropped |= {"fc.": not aux, "input_norm.": mask and not before_fc}
        built.root.renames = dict.fromkeys(key for key, on in dropped.items() if on)
        return list(named.values())

    return prepare


def _layer(fields: Fields, kind: str, index: int, contract: Contract) -> Module:
    """Layer 0 takes the embedding beside the hidden state: twice the width.

    llama and qwen3 build the plain layer first and then replace its q/k/v (llama_eagle3.py:64-93).
    """
    inp = fields.need("hidden_size") * (2 if index == 0 else 1)
    if kind == "mla":
        return mla_layer(fields, inp)
    layer = qwen3_layer(fields) if kind == "qwen3" else llama_layer(fields, index)
    bias = (kind == "qwen3" or contract.attention_bias) and bool(fields.get("attention_bias", False))
    children = layer.children["self_attn"].children
    wide = qkv(*head_counts(fields, kv_default=kind == "llama"), inp, bias)
    wide.before, children["qkv_proj"] = children["qkv_proj"], wide
    return layer


_CLASSES: Mapping[str, tuple[str, str]] = {
    "llama": ("LlamaModel", "Eagle3LlamaForCausalLM"),
    "qwen3": ("Qwen3Eagle3Model", "Eagle3Qwen3ForCausalLM"),
    "mla": ("DeepseekV2Eagle3Model", "Eagle3DeepseekV2ForCausalLM"),
}
