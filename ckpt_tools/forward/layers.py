"""The building blocks of a draft head: norms, attention with its cache, MLA, MLP, over plain tensors.

Weights are [out, in]; q, k and v, and gate and up, are one matrix each, as the engines run them. With a
:class:`Comm` of several ranks every block holds its rank's share, cut as the engines cut it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import functional, torch
from ckpt_tools.forward.rope import Rotary, kind, rotary, rotate, rotate_neighbours, yarn_mscale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckpt_tools.forward.spec import HeadSpec


class Comm(Protocol):
    """What tensor parallelism needs of a group of ranks."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """Ranks in the group."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The ranks' shares joined along the last dimension, in rank order."""


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself."""
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself."""
        return x


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def fused(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """`parts` stacked along dimension 0: a view when they already lie one after the other, else a copy."""
    first = parts[0]
    end = first.storage_offset()
    rows = 0
    for part in parts:
        adjacent = (
            part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and part.storage_offset() == end
            and part.is_contiguous()
            and not part.requires_grad
        )
        if not adjacent:
            return torch.cat(list(parts))
        end += part.numel()
        rows += part.shape[0]
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def by_head(x: torch.Tensor, dim: int) -> torch.Tensor:
    """[..., heads · dim] -> [..., heads, dim]."""
    return x.view(*x.shape[:-1], -1, dim)


class Cache(Protocol):
    """Keys and values of the rows seen so far, per layer."""

    def extend(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds k and v [B, heads, T, dim] and returns all rows of that layer."""


class GrowingCache:
    """Rows joined as they come; differentiable."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def extend(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds rows and returns all of them."""
        if layer in self._rows:
            old_k, old_v = self._rows[layer]
            k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
        self._rows[layer] = k, v
        return k, v


class StaticCache:
    """A fixed number of rows written in place at `slots`, so that a step can be captured as a CUDA graph."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots = torch.zeros(0, dtype=torch.long)
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def extend(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes rows at `slots` and returns the whole buffers; unwritten rows are zeros and to be masked."""
        if layer not in self._rows:
            self._rows[layer] = (
                k.new_zeros((*k.shape[:2], self.capacity, k.shape[3])),
                v.new_zeros((*v.shape[:2], self.capacity, v.shape[3])),
            )
        keys, values = self._rows[layer]
        keys.index_copy_(2, self.slots, k)
        values.index_copy_(2, self.slots, v)
        return keys, values


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Grouped-query attention.

    Args:
        q: [B, heads, T, dim].
        k, v: [B, kv heads, L, dim].
        mask: bool [T, L], true where a query sees a key; `None` where all see all.
        scale: Factor on the scores.

    Returns:
        [B, T, heads · value dim].
    """
    batch, heads, rows, dim = q.shape
    groups = heads // k.shape[1]
    # the heads that share a key are more rows of it, so that no key is copied
    grouped = q.reshape(batch, k.shape[1], groups * rows, dim)
    seen = mask if mask is None or groups == 1 or rows == 1 else mask.repeat(groups, 1)
    out = functional.scaled_dot_product_attention(grouped, k, v, attn_mask=seen, scale=scale)
    return out.reshape(batch, heads, rows, -1).transpose(1, 2).reshape(batch, rows, -1)


@dataclass
class Slice:
    """Rows or columns of a matrix that one rank holds."""

    start: int
    stop: int


def share(total: int, comm: Comm, what: str) -> Slice:
    """This rank's part of `total` equal pieces.

    Raises:
        InputError: `total` can't be cut evenly.
    """
    if total % comm.size:
        raise InputError(
            f"{what} ({total}) can't be cut into {comm.size} equal parts",
            hint="choose a --tp that divides it",
        )
    size = total // comm.size
    return Slice(comm.rank * size, (comm.rank + 1) * size)


def kv_share(spec: HeadSpec, comm: Comm) -> Slice:
    """This rank's kv heads; fewer kv heads than ranks are repeated, as the engines do."""
    if spec.num_kv_heads >= comm.size:
        return share(spec.num_kv_heads, comm, "num_key_value_heads")
    if comm.size % spec.num_kv_heads:
        raise InputError(
            f"{spec.num_kv_heads} kv heads can't be repeated over {comm.size} ranks",
            hint="choose a --tp that is a multiple of num_key_value_heads",
        )
    head = comm.rank // (comm.size // spec.num_kv_heads)
    return Slice(head, head + 1)


def take(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The tensor of that canonical name.

    Raises:
        InputError: It is missing.
    """
    if name not in tensors:
        raise InputError(
            f"the head can't be run: tensor {name!r} is missing",
            hint="ckpt inspect PATH --tensors lists what the files hold",
        )
    return tensors[name]


def _rope_of(spec: HeadSpec, dim: int, device: torch.device) -> Rotary:
    rope = rotary(spec.rope, dim, default_theta=spec.default_theta, max_position=spec.max_position)
    return replace(rope, inverse=rope.inverse.to(device))


class Attention:
    """Llama's or Qwen3's attention: q, k, v in one matrix, optional biases and per-head norms."""

    def __init__(
        self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], prefix: str, layer: int, comm: Comm
    ) -> None:
        self.spec, self.layer, self.comm = spec, layer, comm
        self.heads, kv = share(spec.num_heads, comm, "num_attention_heads"), kv_share(spec, comm)
        self.num_heads, self.num_kv = self.heads.stop - self.heads.start, kv.stop - kv.start
        cuts = {"q": self.heads, "k": kv, "v": kv}
        dim = spec.head_dim

        def rows(part: str, kind_: str) -> torch.Tensor:
            whole = take(tensors, f"{prefix}self_attn.{part}_proj.{kind_}")
            return whole[cuts[part].start * dim : cuts[part].stop * dim]

        self.qkv = fused([rows(p, "weight") for p in "qkv"])
        self.qkv_bias = torch.cat([rows(p, "bias") for p in "qkv"]) if spec.qkv_bias else None
        columns = slice(self.heads.start * dim, self.heads.stop * dim)
        self.out = take(tensors, prefix + "self_attn.o_proj.weight")[:, columns]
        self.out_bias = take(tensors, prefix + "self_attn.o_proj.bias") if spec.o_bias else None
        ones = self.qkv.new_ones(dim)
        # an engine's missing per-head norm is a norm of ones, not no norm
        self.q_norm = tensors.get(prefix + "self_attn.q_norm.weight", ones) if spec.qk_norm else None
        self.k_norm = tensors.get(prefix + "self_attn.k_norm.weight", ones) if spec.qk_norm else None
        self.rope = _rope_of(spec, dim, self.qkv.device)

    def project(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v [B, heads, T, dim] of x [B, T, in], q and k turned to `positions` [B, T]."""
        dim, spec = self.spec.head_dim, self.spec
        flat = functional.linear(x, self.qkv, self.qkv_bias)
        both = (self.num_heads + self.num_kv) * dim
        qk, v = by_head(flat[..., :both], dim), by_head(flat[..., both:], dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = torch.split(qk, [self.num_heads, self.num_kv], dim=-2)
            qk = torch.cat((rms_norm(q, self.q_norm, spec.eps), rms_norm(k, self.k_norm, spec.eps)), dim=-2)
        q, k = torch.split(rotate(qk, *self.rope.wide(positions)), [self.num_heads, self.num_kv], dim=-2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def finish(self, mixed: torch.Tensor) -> torch.Tensor:
        """o_proj of [B, T, heads · dim]."""
        out = self.comm.all_reduce(functional.linear(mixed, self.out))
        return out if self.out_bias is None else out + self.out_bias

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor, cache: Cache, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention of new rows x [B, T, in] over the cache and themselves; mask bool [T, L]."""
        q, k, v = self.project(x, positions)
        k, v = cache.extend(self.layer, k, v)
        return self.finish(attend(q, k, v, mask, self.spec.head_dim**-0.5))


class MlaAttention:
    """DeepSeek's multi-head latent attention, unabsorbed; rotary pairs are neighbours.

    A yarn rope with `mscale_all_dim` also scales the scores, by its magnitude correction squared.
    """

    def __init__(
        self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], prefix: str, layer: int, comm: Comm
    ) -> None:
        if spec.mla is None:
            raise InputError("MLA layers without their ranks", hint="ckpt inspect PATH --tensors")
        self.spec, self.layer, self.comm, self.mla = spec, layer, comm, spec.mla
        heads = share(spec.num_heads, comm, "num_attention_heads")
        self.num_heads = heads.stop - heads.start

        def of(name: str) -> torch.Tensor:
            return take(tensors, f"{prefix}self_attn.{name}.weight")

        def rows(name: str, dim: int) -> torch.Tensor:
            return of(name)[heads.start * dim : heads.stop * dim]

        mla = spec.mla
        self.down = fused([of("q_a_proj"), of("kv_a_proj_with_mqa")])
        self.q_norm, self.kv_norm = of("q_a_layernorm"), of("kv_a_layernorm")
        self.q_up = rows("q_b_proj", mla.nope_dim + mla.rope_dim)
        self.kv_up = rows("kv_b_proj", mla.nope_dim + mla.value_dim)
        self.out = of("o_proj")[:, heads.start * mla.value_dim : heads.stop * mla.value_dim]
        self.rope = _rope_of(spec, mla.rope_dim, self.down.device)
        self.scale = (mla.nope_dim + mla.rope_dim) ** -0.5
        scaling = spec.rope.scaling or {}
        if kind(scaling) == "yarn" and scaling.get("mscale_all_dim"):
            self.scale *= yarn_mscale(float(scaling["factor"]), float(scaling["mscale_all_dim"])) ** 2

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor, cache: Cache, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention of new rows x [B, T, in] over the cache and themselves; mask bool [T, L]."""
        mla, eps = self.mla, self.spec.eps
        down = functional.linear(x, self.down)
        q_low, kv_low, k_rope = torch.split(down, [mla.q_rank, mla.kv_rank, mla.rope_dim], dim=-1)
        q = functional.linear(rms_norm(q_low, self.q_norm, eps), self.q_up)
        q = by_head(q, mla.nope_dim + mla.rope_dim)
        q_nope, q_rope = torch.split(q, [mla.nope_dim, mla.rope_dim], dim=-1)
        kv = functional.linear(rms_norm(kv_low, self.kv_norm, eps), self.kv_up)
        kv = by_head(kv, mla.nope_dim + mla.value_dim)
        k_nope, v = torch.split(kv, [mla.nope_dim, mla.value_dim], dim=-1)
        cos, sin = self.rope.tables(positions)
        q_rope = rotate_neighbours(q_rope, cos, sin)
        k_rope = rotate_neighbours(k_rope.unsqueeze(-2), cos, sin)
        q = torch.cat((q_nope, q_rope), dim=-1).transpose(1, 2)
        k = torch.cat((k_nope, k_rope.expand(*k_nope.shape[:-1], -1)), dim=-1).transpose(1, 2)
        k, v = cache.extend(self.layer, k, v.transpose(1, 2))
        mixed = attend(q, k, v, mask, self.scale)
        return self.comm.all_reduce(functional.linear(mixed, self.out))


class Mlp:
    """down(silu(gate(x)) · up(x)); gate and up are one matrix."""

    def __init__(self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], prefix: str, comm: Comm) -> None:
        self.comm = comm
        gate, up = (
            take(tensors, prefix + "mlp.gate_proj.weight"),
            take(tensors, prefix + "mlp.up_proj.weight"),
        )
        part = share(gate.shape[0], comm, "intermediate_size")
        self.gate_up = fused([gate[part.start : part.stop], up[part.start : part.stop]])
        self.down = take(tensors, prefix + "mlp.down_proj.weight")[:, part.start : part.stop]
        self.gate_up_bias = self.down_bias = None
        if spec.mlp_bias:
            biases = [
                take(tensors, f"{prefix}mlp.{p}_proj.bias")[part.start : part.stop] for p in ("gate", "up")
            ]
            self.gate_up_bias = torch.cat(biases)
            self.down_bias = take(tensors, prefix + "mlp.down_proj.bias")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, hidden] -> [B, T, hidden]."""
        gate, up = functional.linear(x, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        out = self.comm.all_reduce(functional.linear(functional.silu(gate) * up, self.down))
        return out if self.down_bias is None else out + self.down_bias


def causal_mask(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """bool [T, L]: a query sees the keys at its own index and before."""
    return queries.unsqueeze(-1) >= keys
