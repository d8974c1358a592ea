"""vLLM's weight loading over names and shapes alone: which tensor reaches which parameter, and the first refusal.

``AutoWeightsLoader`` (``model_executor/models/utils.py:216-502``) walks the module tree. It raises on a name without a
place, except that any unexpected ``*.bias`` and the rotary caches of old checkpoints are dropped without a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt_tools.engines.vllm.modules import Module, Parameter, Shape, ShardId, load_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# model_executor/models/utils.py:233-240
ROTARY_CACHES: Mapping[str, str | None] = dict.fromkeys(
    ("rotary_pos_emb.inv_freq", "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
)
QKV: Mapping[str, tuple[str, ShardId]] = {
    ".q_proj": (".qkv_proj", "q"),
    ".k_proj": (".qkv_proj", "k"),
    ".v_proj": (".qkv_proj", "v"),
}
# model_executor/layers/quantization/base_config.py:109-116 and :217-256
CACHE_SUFFIXES = (".q_scale", ".k_scale", ".v_scale", ".q_zero_point", ".k_zero_point", ".v_zero_point")
CACHE_SCALES = (
    (r"\.kv_scale$", ".attn.k_scale"),
    (r"\.self_attn\.[kv]_proj\.([kv])_scale$", r".self_attn.attn.\1_scale"),
    (r"\.self_attn\.qk(?:qk)?v_proj\.([kv])_scale$", r".self_attn.attn.\1_scale"),
    (r"\.self_attn\.q\.scale$", ".self_attn.attn.q_scale"),
    (r"\.self_attn\.([kv])_cache\.scale$", r".self_attn.attn.\1_scale"),
    (r"(?<!\.attn)\.([qkv])_scale$", r".attn.\1_scale"),
    (r"(?<!\.attn)\.([qkv])_zero_point$", r".attn.\1_zero_point"),
)
GATE_UP: Mapping[str, tuple[str, ShardId]] = {
    ".gate_proj": (".gate_up_proj", 0),
    ".up_proj": (".gate_up_proj", 1),
}


@dataclass
class Offered:
    """One tensor on its way: its name in the file, its name for the loader, its shape."""

    source: str
    name: str
    shape: Shape
    shard: ShardId = None


@dataclass
class Built:
    """A draft class ready to take tensors.

    Attributes:
        root: The module tree.
        prepare: What the class's ``load_weights`` does to the names before the generic loader sees them; it may
            refuse, hold a tensor outside the parameters or drop it.
        held: Tensors that reach the model outside its parameters (buffers).
        own_embed, own_head: The file brings its own embedding or head, whatever becomes of it.
        shares_embed, shares_head: The class takes the target's when the file brings none.
    """

    root: Module
    prepare: Callable[[Built, list[Offered]], list[Offered]]
    held: list[str] = field(default_factory=list)
    own_embed: bool = False
    own_head: bool = False
    shares_embed: bool = True
    shares_head: bool = True


def load(built: Built, tensors: Iterable[tuple[str, Shape]]) -> None:
    """Offer every tensor, in file order.

    Raises:
        Refused: At the first tensor that the engine refuses; what came before it is in the parameters.
    """
    offered = built.prepare(built, [Offered(name, name, shape) for name, shape in tensors])
    for tensor in offered:
        mapped = rename(tensor.name, built.root)
        if mapped is not None:
            _enter(built.root, "", built.root, mapped[0], mapped[1], tensor)


def rename(name: str, loader: Module) -> tuple[str, ShardId] | None:
    """A loader's ``WeightsMapper``: substrings in order, ``None`` drops; then the stacked ones, which also name a shard."""
    if loader.quantised:
        if name.endswith(".g_idx"):
            return None
        for pattern, place in CACHE_SCALES:
            name = re.sub(pattern, place, name)
    for old, new in {**loader.renames, **ROTARY_CACHES}.items():
        if old in name:
            if new is None:
                return None
            name = name.replace(old, new, 1)
    shard: ShardId = None
    for old, (stacked_name, stacked_shard) in loader.stacked.items():
        if old in name:
            name, shard = name.replace(old, stacked_name, 1), stacked_shard
    return name, shard


def _enter(loader: Module, prefix: str, module: Module, rest: str, shard: ShardId, tensor: Offered) -> None:
    """One step of the walk: ``rest`` is the name below ``module``, whose full name for this loader is ``prefix``."""
    if module is not loader and module.own_loader:
        mapped = rename(rest, module)
        if mapped is None:
            return
        if module.key_errors and mapped[0] not in dict(module.walk()):
            raise load_error("KeyError", repr(mapped[0]))
        _enter(module, "", module, mapped[0], mapped[1], tensor)
        return
    if module.linear:
        _linear(module, rest, shard, tensor)
        return
    head, dot, tail = rest.partition(".")
    name = f"{prefix}.{head}" if prefix and head else prefix or head
    if head in module.children:
        _enter(loader, name, module.children[head], tail if dot else "", shard, tensor)
    elif head in module.parameters:
        _parameter(module.parameters[head], name, tail, tensor, shard)
    elif not name.endswith((".bias", *(CACHE_SUFFIXES if loader.quantised else ()))):
        raise load_error("ValueError", f"There is no module or parameter named '{name}' in {loader.cls}.")


def _parameter(parameter: Parameter, name: str, tail: str, tensor: Offered, shard: ShardId) -> None:
    if tail:
        if tail.endswith(".bias") or tail == "bias":
            return
        raise load_error(
            "ValueError", f"Attempted to load nested weight '{name}.{tail}' into a single parameter '{name}'"
        )
    parameter.load(tensor.source, tensor.shape, shard if parameter.shards else None)


def _linear(module: Module, rest: str, shard: ShardId, tensor: Offered) -> None:
    """The own loader of the fused layers (``model_executor/layers/linear.py:980-996``)."""
    if rest in module.parameters:
        module.parameters[rest].load(tensor.source, tensor.shape, shard)
    elif rest != "bias":
        if "." in rest:
            raise load_error("AttributeError", "")
        raise load_error("AttributeError", f"'{module.cls}' object has no attribute 'data'")
