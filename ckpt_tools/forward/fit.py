"""Whether tensors have the shapes that a head multiplies; pure, so that a misfit is told before torch meets it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpt_tools.errors import InputError
from ckpt_tools.forward.spec import BLOCK_ALGORITHMS, layer_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckpt_tools.forward.spec import HeadSpec

Shape = tuple[int, ...]


def _attention(spec: HeadSpec, width: int) -> Iterator[tuple[str, Shape]]:
    hidden = spec.hidden_size
    if spec.mla is not None:
        mla = spec.mla
        yield "q_a_proj.weight", (mla.q_rank, width)
        yield "q_b_proj.weight", (spec.num_heads * (mla.nope_dim + mla.rope_dim), mla.q_rank)
        yield "kv_a_proj_with_mqa.weight", (mla.kv_rank + mla.rope_dim, width)
        yield "kv_b_proj.weight", (spec.num_heads * (mla.nope_dim + mla.value_dim), mla.kv_rank)
        yield "o_proj.weight", (hidden, spec.num_heads * mla.value_dim)
        return
    rows = {"q": spec.num_heads * spec.head_dim}
    rows["k"] = rows["v"] = spec.num_kv_heads * spec.head_dim
    for part, size in rows.items():
        yield f"{part}_proj.weight", (size, width)
        yield f"{part}_proj.bias", (size,)
    yield "o_proj.weight", (hidden, rows["q"])
    yield "o_proj.bias", (hidden,)
    for part in "qk":
        yield f"{part}_norm.weight", (spec.head_dim,)


def _layer(spec: HeadSpec, index: int, inner: int) -> Iterator[tuple[str, Shape]]:
    prefix, hidden = layer_prefix(spec.algorithm, index), spec.hidden_size
    width = 2 * hidden if spec.algorithm in ("eagle3", "peagle") and index == 0 else hidden
    for name, shape in _attention(spec, width):
        yield f"{prefix}self_attn.{name}", shape
    for part in ("gate", "up"):
        yield f"{prefix}mlp.{part}_proj.weight", (inner, hidden)
        yield f"{prefix}mlp.{part}_proj.bias", (inner,)
    yield f"{prefix}mlp.down_proj.weight", (hidden, inner)
    yield f"{prefix}mlp.down_proj.bias", (hidden,)
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        yield f"{prefix}{norm}.weight", (hidden,)


def expected_shapes(spec: HeadSpec, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Canonical name -> shape that a head with ``spec`` multiplies, of the tensors whose shape it fixes.

    Args:
        spec: The head.
        shapes: Of its tensors; the size between gate and down of each layer is gate's own.
    """
    hidden, captured = spec.hidden_size, spec.num_aux * spec.target_hidden_size
    out: dict[str, Shape] = {"norm.weight": (hidden,), "fc.bias": (hidden,), "input_norm.weight": (captured,)}
    out |= {f"fc_norm.{j}.weight": (spec.target_hidden_size,) for j in range(spec.num_aux)}
    if spec.algorithm == "eagle":
        out["fc.weight"] = (hidden, 2 * hidden)
    elif spec.algorithm != "mtp":
        out["fc.weight"] = (hidden, captured)
    if spec.algorithm in BLOCK_ALGORITHMS:
        out["hidden_norm.weight"] = (hidden,)
    for index in range(spec.num_layers):
        gate = shapes.get(f"{layer_prefix(spec.algorithm, index)}mlp.gate_proj.weight")
        if gate is not None:
            out |= dict(_layer(spec, index, gate[0]))
    for name in ("lm_head.weight", "embed_tokens.weight"):
        if name in shapes:
            out[name] = (shapes[name][0], hidden)
    return out


def check_fit(spec: HeadSpec, shapes: Mapping[str, Shape]) -> None:
    """Every tensor that the head reads has the shape that it multiplies.

    Raises:
        InputError: One hasn't; the message names it.
    """
    if spec.num_heads % spec.num_kv_heads:
        raise InputError(
            f"the head can't be run: {spec.num_heads} heads of q over {spec.num_kv_heads} of k and v",
            "q_proj's rows are a multiple of k_proj's; `ckpt inspect PATH --tensors` lists them",
        )
    for name, wanted in expected_shapes(spec, shapes).items():
        found = shapes.get(name)
        if found is not None and name not in spec.unused and found != wanted:
            raise InputError(
                f"the head can't be run: {name} is {list(found)}, expected {list(wanted)}",
                _hint(name),
            )


def check_captured(spec: HeadSpec, layers: tuple[int, ...] | None) -> None:
    """fc takes as many captured layers as config.json names.

    Raises:
        InputError: It doesn't.
    """
    if layers is not None and spec.algorithm not in ("eagle", "mtp") and len(layers) != spec.num_aux:
        raise InputError(
            f"the head can't be run: fc takes {spec.num_aux} captured layers, config.json names {list(layers)}",
            "correct the ids of the captured layers in the draft's config.json",
        )


def _hint(name: str) -> str:
    if re.search(r"self_attn\.", name):
        return "`ckpt verify` compares the attention's shapes with config.json"
    return "`ckpt inspect PATH --tensors` lists the shapes"
