"""EAGLE-3 drafts as speculators trains them, served by SGLang's own EAGLE-3 worker."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch  # noqa: TID251  # model classes are what torch is for
from sglang.srt.layers.layernorm import RMSNorm  # type: ignore[import-not-found]
from sglang.srt.layers.logits_processor import LogitsProcessor  # type: ignore[import-not-found]
from sglang.srt.layers.vocab_parallel_embedding import (  # type: ignore[import-not-found]
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.srt.model_loader.weight_utils import default_weight_loader  # type: ignore[import-not-found]
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3  # type: ignore[import-not-found]
from sglang.srt.utils import add_prefix  # type: ignore[import-not-found]

from ckpt_tools.engines.sglang_ext.head import Head, HeadError, read_head
from ckpt_tools.sglang_models import RELEASE, _loading, _releases
from ckpt_tools.sglang_models._layers import DraftLayer
from ckpt_tools.sglang_models._windows import layer_windows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpt_tools.engines.sglang_ext.releases import Release

if RELEASE is None:
    raise ImportError("SGLang's version isn't known: its package metadata is missing")
_RELEASE: Release = RELEASE


class DraftModel(torch.nn.Module):
    """Captured states and token embeddings to the draft's states."""

    def __init__(self, config: Any, head: Head, release: Release, quant_config: Any, prefix: str) -> None:
        super().__init__()
        self.config = config
        self.head = head
        self.release = release
        self.is_mrope_enabled = _uses_mrope(config)
        self.embed_tokens = VocabParallelEmbedding(
            head.vocab_size, head.hidden_size, prefix=add_prefix("embed_tokens", prefix)
        )
        captured = head.target_hidden_size * head.num_aux
        eps = config.rms_norm_eps
        self.fc = torch.nn.Linear(captured, head.hidden_size, bias=head.fc_bias)
        self.input_norm = RMSNorm(captured, eps=eps) if head.norm_before_fc else None
        self.fc_norm = (
            torch.nn.ModuleList([RMSNorm(head.target_hidden_size, eps=eps) for _ in range(head.num_aux)])
            if head.fc_norm
            else None
        )
        with _releases.building_layers(release):
            self.layers = torch.nn.ModuleList(
                [DraftLayer(config, head, i, quant_config, prefix) for i in range(head.num_layers)]
            )
        self.norm = RMSNorm(head.hidden_size, eps=eps)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,  # noqa: ARG002  # SGLang passes it; a draft has one stage
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """States for the logits, and those that the next step gets, both [tokens, hidden]."""
        if input_embeds is None:
            input_embeds = _releases.embeddings(self.release, self.embed_tokens, input_ids, forward_batch)
        if self.is_mrope_enabled:
            positions = forward_batch.mrope_positions
        hidden = forward_batch.spec_info.hidden_states
        if hidden.shape[-1] != self.head.hidden_size:
            hidden = self._fuse(hidden)
        if hidden.shape[0] == 0:
            return hidden, [hidden]
        residual: torch.Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(positions, input_embeds, hidden, forward_batch, residual)
        normed, summed = self.norm(hidden, residual)
        return normed, [normed if self.head.norm_output else summed]

    def _fuse(self, captured: torch.Tensor) -> torch.Tensor:
        """The target's captured layers, side by side, to the draft's width."""
        if self.input_norm is not None:
            captured = self.input_norm(captured)
        if self.fc_norm is not None:
            # Not every norm kernel takes strided rows.
            chunks = captured.chunk(self.head.num_aux, dim=-1)
            captured = torch.cat(
                [norm(chunk.contiguous()) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1
            )
        out: torch.Tensor = self.fc(captured)
        return out


class CkptLlamaForCausalLMEagle3(LlamaForCausalLMEagle3):  # type: ignore[misc]
    """SGLang's EAGLE-3 class over :class:`DraftModel`; what its worker asks of a draft is inherited."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        torch.nn.Module.__init__(self)
        head = read_head(config.to_dict())
        server = _releases.settings(_RELEASE)
        limit = head.limit(_RELEASE) if server.cuda_graphs else None
        if limit is not None:
            raise HeadError(limit)
        windows = layer_windows(head, _RELEASE, server)
        self.config = config
        self.quant_config = quant_config
        self.head = head
        self.pp_group = _releases.pipeline_group(_RELEASE)
        self.model = DraftModel(config, head, _RELEASE, quant_config, add_prefix("model", prefix))
        for index, window in enumerate(windows):
            if window is not None:
                attention: Any = self.model.get_submodule(f"layers.{index}.self_attn.attn")
                attention.sliding_window_size = window
        self._window = next((w for w in windows if w is not None), None)
        self.lm_head = ParallelLMHead(
            head.draft_vocab_size,
            head.hidden_size,
            quant_config=quant_config,
            prefix=add_prefix("lm_head", prefix),
        )
        # The logits are of the draft's vocabulary, which is smaller than the config's.
        scored = copy.deepcopy(config)
        scored.vocab_size = head.draft_vocab_size
        self.logits_processor = LogitsProcessor(scored)
        self.load_lm_head_from_target = False
        self.capture_aux_hidden_states = True
        self.hot_token_id: torch.Tensor | None = None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every parameter, or raise naming what is missing and what has no place."""
        self.hot_token_id = _loading.load(
            self.head, dict(self.named_parameters()), weights, default_weight_loader
        )

    def set_embed(self, embed: torch.Tensor) -> None:
        """Take the target's embedding, unless the draft's own was trained."""
        if not self.head.own_embedding:
            super().set_embed(embed)

    def get_attention_sliding_window_size(self) -> int | None:
        """As SGLang's attention counts it: positions before the query."""
        return self._window


def _uses_mrope(config: Any) -> bool:
    """Whether positions are three-dimensional; SGLang then wants the rope's type to be the default one."""
    scalings = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    found = [s for s in scalings if s and "mrope_section" in s]
    for scaling in found:
        scaling["rope_type"] = "default"
    return bool(found)


EntryClass = [CkptLlamaForCausalLMEagle3]
