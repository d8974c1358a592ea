"""Decoder layers of an EAGLE-3 draft: SGLang's own, with biases, per-head norms and the residual as the head was trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch  # noqa: TID251  # model classes are what torch is for
from sglang.srt.layers.activation import SiluAndMul  # type: ignore[import-not-found]
from sglang.srt.layers.layernorm import RMSNorm  # type: ignore[import-not-found]
from sglang.srt.layers.linear import (  # type: ignore[import-not-found]
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from sglang.srt.models import llama_eagle3  # type: ignore[import-not-found]
from sglang.srt.utils import add_prefix  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from ckpt_tools.engines.sglang_ext.head import Head


class BiasedMLP(torch.nn.Module):
    """SGLang's Llama MLP with biases, which it has no switch for (models/llama.py:78-107)."""

    def __init__(self, head: Head, quant_config: Any, prefix: str) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            head.hidden_size,
            [head.intermediate_size] * 2,
            bias=True,
            quant_config=quant_config,
            prefix=add_prefix("gate_up_proj", prefix),
        )
        self.down_proj = RowParallelLinear(
            head.intermediate_size,
            head.hidden_size,
            bias=True,
            quant_config=quant_config,
            prefix=add_prefix("down_proj", prefix),
        )
        self.act_fn = SiluAndMul()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        gate_up, _ = self.gate_up_proj(hidden)
        out: torch.Tensor = self.down_proj(self.act_fn(gate_up))[0]
        return out


class DraftLayer(llama_eagle3.LlamaDecoderLayer):  # type: ignore[misc]
    """One layer; the first takes [embedding, hidden], later ones are ordinary pre-norm layers."""

    def __init__(self, config: Any, head: Head, index: int, quant_config: Any, prefix: str) -> None:
        super().__init__(config, layer_id=index, quant_config=quant_config, prefix=prefix)
        self.first = index == 0
        self.norm_before_residual = head.norm_before_residual
        attention = self.self_attn
        width = head.hidden_size * (2 if self.first else 1)
        # SGLang's layer builds q, k and v without a bias, and up to 0.5.11 always for [embedding, hidden].
        if head.attention_bias or attention.qkv_proj.input_size != width:
            attention.qkv_proj = QKVParallelLinear(
                width,
                attention.head_dim,
                attention.total_num_heads,
                attention.total_num_kv_heads,
                bias=head.attention_bias,
                quant_config=quant_config,
                prefix=add_prefix("qkv_proj", prefix),
            )
        self.qk_norm = head.qk_norm
        if self.qk_norm:
            attention.q_norm = RMSNorm(attention.head_dim, eps=config.rms_norm_eps)
            attention.k_norm = RMSNorm(attention.head_dim, eps=config.rms_norm_eps)
        if head.mlp_bias:
            self.mlp = BiasedMLP(head, quant_config, prefix)
        if not self.first:
            del self.hidden_norm

    def forward(
        self,
        positions: torch.Tensor,
        embeds: torch.Tensor,
        hidden_states: torch.Tensor,
        forward_batch: Any,
        residual: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, hidden] of embeddings and states to the layer's output and the residual to add to it."""
        if self.first:
            normed = self.hidden_norm(hidden_states)
            residual = normed if self.norm_before_residual else hidden_states
            hidden_states = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self._attend(positions, hidden_states, forward_batch)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual

    def _attend(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        attention = self.self_attn
        if not self.qk_norm:
            out: torch.Tensor = attention(
                positions=positions, hidden_states=hidden_states, forward_batch=forward_batch
            )
            return out
        qkv, _ = attention.qkv_proj(hidden_states)
        q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        q, k = (
            _per_head(attention.q_norm, q, attention.head_dim),
            _per_head(attention.k_norm, k, attention.head_dim),
        )
        q, k = attention.rotary_emb(positions, q, k)
        projected: torch.Tensor = attention.o_proj(attention.attn(q, k, v, forward_batch))[0]
        return projected


def _per_head(norm: torch.nn.Module, states: torch.Tensor, head_dim: int) -> torch.Tensor:
    out: torch.Tensor = norm(states.reshape(-1, head_dim)).view(states.shape)
    return out
