"""As much of SGLang as ckpt's classes touch, in plain torch at tensor-parallel size 1: layers that compute what SGLang's do."""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch  # noqa: TID251
import torch.nn.functional as functional  # noqa: TID251
from torch import nn  # noqa: TID251

if TYPE_CHECKING:
    from collections.abc import Iterator


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        summed = x if residual is None else x + residual
        normed = summed * torch.rsqrt(summed.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return normed if residual is None else (normed, summed)


class _Fused(nn.Module):
    def __init__(self, inputs: int, sizes: dict[Any, int], bias: bool) -> None:
        super().__init__()
        self.input_size, self.sizes = inputs, sizes
        self.weight = nn.Parameter(torch.full((sum(sizes.values()), inputs), float("nan")))
        self.bias = nn.Parameter(torch.full((sum(sizes.values()),), float("nan"))) if bias else None
        for parameter in self.parameters():
            parameter.weight_loader = self._load  # type: ignore[attr-defined]

    def _load(self, parameter: nn.Parameter, tensor: torch.Tensor, shard: Any = None) -> None:
        start = 0
        for name, size in self.sizes.items():
            if name == shard:
                parameter.data[start : start + size].copy_(tensor)
            start += size

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return functional.linear(x, self.weight, self.bias), None


class QKVParallelLinear(_Fused):
    def __init__(
        self, inputs: int, head_dim: int, heads: int, kv: int, *, bias: bool, quant_config: Any, prefix: str
    ) -> None:
        del quant_config, prefix
        super().__init__(inputs, {"q": heads * head_dim, "k": kv * head_dim, "v": kv * head_dim}, bias)


class MergedColumnParallelLinear(_Fused):
    def __init__(
        self, inputs: int, outputs: list[int], *, bias: bool, quant_config: Any, prefix: str
    ) -> None:
        del quant_config, prefix
        super().__init__(inputs, dict(enumerate(outputs)), bias)


class RowParallelLinear(_Fused):
    def __init__(self, inputs: int, outputs: int, *, bias: bool, quant_config: Any, prefix: str) -> None:
        del quant_config, prefix
        super().__init__(inputs, {None: outputs}, bias)


class SiluAndMul(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up


class Table(nn.Module):
    """``VocabParallelEmbedding`` and ``ParallelLMHead``, rows padded to 64."""

    def __init__(self, rows: int, width: int, *, prefix: str, quant_config: Any = None) -> None:
        super().__init__()
        del prefix, quant_config
        self.weight = nn.Parameter(torch.zeros(-(-rows // 64) * 64, width))
        self.weight.weight_loader = lambda p, t: p.data[: t.shape[0]].copy_(t)  # type: ignore[attr-defined]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(ids, self.weight)


class Rotary(nn.Module):
    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.size, self.frequencies = size, theta ** (-torch.arange(0, size, 2) / size)

    def forward(
        self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None].float() * self.frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]

        def turn(x: torch.Tensor) -> torch.Tensor:
            a, b = x.view(x.shape[0], -1, self.size).chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).reshape(x.shape)

        return turn(q), turn(k)


class RadixAttention(nn.Module):
    """Attention over the rows of all steps: a later step's row sees the prompt's up to its own and its own column."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim, self.sliding_window_size, self.steps = head_dim, -1, []  # type: ignore[var-annotated]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: Any) -> torch.Tensor:
        rows, step = q.shape[0], batch.step
        heads = [t.view(rows, -1, self.head_dim).transpose(0, 1) for t in (q, k, v)]
        self.steps = [*self.steps[:step], heads[1:]]
        keys, values = (torch.cat([s[i] for s in self.steps], dim=1) for i in (0, 1))
        groups = heads[0].shape[0] // keys.shape[0]
        seen = torch.ones(rows, rows).tril()
        if self.sliding_window_size >= 0:
            seen = seen.triu(step - self.sliding_window_size)
        mask = torch.cat([seen, *[torch.eye(rows)] * step], dim=1).bool()
        out = functional.scaled_dot_product_attention(
            heads[0], keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0), attn_mask=mask
        )
        return out.transpose(0, 1).reshape(rows, -1)


class LlamaAttention(nn.Module):
    def __init__(self, config: Any, inputs: int) -> None:
        super().__init__()
        self.total_num_heads, self.total_num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.q_size, self.kv_size = (
            self.total_num_heads * self.head_dim,
            self.total_num_kv_heads * self.head_dim,
        )
        more = {"quant_config": None, "prefix": ""}
        self.qkv_proj = QKVParallelLinear(
            inputs, self.head_dim, self.total_num_heads, self.total_num_kv_heads, bias=False, **more
        )
        bias = bool(getattr(config, "attention_bias", False))
        self.o_proj = RowParallelLinear(self.q_size, config.hidden_size, bias=bias, **more)
        self.rotary_emb = Rotary(self.head_dim, config.rope_theta)
        self.attn = RadixAttention(self.head_dim)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        return self.o_proj(self.attn(q, k, v, forward_batch))[0]  # type: ignore[no-any-return]


class LlamaMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        more = {"bias": False, "quant_config": None, "prefix": ""}
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, [config.intermediate_size] * 2, **more
        )
        self.down_proj = RowParallelLinear(config.intermediate_size, config.hidden_size, **more)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(SiluAndMul()(self.gate_up_proj(x)[0]))[0]  # type: ignore[no-any-return]


class Release:
    """Which release is played: what its EAGLE-3 layer builds for later layers, and where its settings are."""

    version = "0.5.23"


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config: Any, layer_id: int = 0, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        del quant_config, prefix
        wide = layer_id == 0 or Release.version == "0.5.9"
        self.self_attn = LlamaAttention(config, config.hidden_size * (2 if wide else 1))
        self.mlp = LlamaMLP(config)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(self, name, RMSNorm(config.hidden_size, config.rms_norm_eps))


class LlamaForCausalLMEagle3(nn.Module):
    model: Any
    config: Any

    def set_embed(self, embed: nn.Parameter) -> None:
        del self.model.embed_tokens.weight
        self.model.embed_tokens.weight = embed


class LogitsProcessor(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size


def default_weight_loader(parameter: nn.Parameter, tensor: torch.Tensor) -> None:
    parameter.data.copy_(tensor)


def modules(version: str, server: types.SimpleNamespace) -> dict[str, types.ModuleType]:
    """The modules of a release, by name."""
    Release.version = version
    contents: dict[str, dict[str, Any]] = {
        "layers.activation": {"SiluAndMul": SiluAndMul},
        "layers.layernorm": {"RMSNorm": RMSNorm},
        "layers.linear": {
            "MergedColumnParallelLinear": MergedColumnParallelLinear,
            "QKVParallelLinear": QKVParallelLinear,
            "RowParallelLinear": RowParallelLinear,
        },
        "layers.logits_processor": {"LogitsProcessor": LogitsProcessor},
        "layers.vocab_parallel_embedding": {"ParallelLMHead": Table, "VocabParallelEmbedding": Table},
        "model_loader.weight_utils": {"default_weight_loader": default_weight_loader},
        "models.llama_eagle3": {
            "LlamaDecoderLayer": LlamaDecoderLayer,
            "LlamaForCausalLMEagle3": LlamaForCausalLMEagle3,
        },
        "utils": {"add_prefix": lambda name, prefix: f"{prefix}.{name}"},
    }
    if version in ("0.5.9", "0.5.12"):
        contents["server_args"] = {"get_global_server_args": lambda: server}
        contents["distributed"] = {"get_pp_group": lambda: "pp"}
    elif version == "0.5.16":
        contents["runtime_context"] = {"get_server_args": lambda: server}
        contents["distributed"] = {"get_pp_group": lambda: "pp"}
    else:
        exec_ = types.SimpleNamespace(kernel=server, graph=server)
        contents["runtime_context"] = {
            "get_spec": lambda: server,
            "get_exec": lambda: exec_,
            "get_model": lambda: server,
            "get_parallel": lambda: types.SimpleNamespace(pp_group="pp"),
        }
        contents["layers.layer_boundary"] = {"layer_stack": nullcontext}
    out: dict[str, types.ModuleType] = {}
    for name, values in contents.items():
        path = f"sglang.srt.{name}"
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            parent = ".".join(parts[:depth])
            out.setdefault(parent, types.ModuleType(parent)).__path__ = []
        out[path].__dict__.update(values)
    for path, module in out.items():
        parent, _, name = path.rpartition(".")
        if parent:
            setattr(out[parent], name, module)
    return out


def purge() -> Iterator[str]:
    """Names of imported modules that depend on which SGLang is there."""
    yield from [
        n for n in sys.modules if n == "sglang" or n.startswith(("sglang.", "ckpt_tools.sglang_models"))
    ]
