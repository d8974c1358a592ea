"""What a target needs to serve EAGLE-3 drafts, for classes whose language model can already do it and whose wrapper can't.

The wrappers carry SGLang's own class names, so they take its classes' place; each adds what a later release has.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch  # noqa: TID251  # model classes are what torch is for

from ckpt_tools.engines.sglang_ext.targets import WRAPPED, wrapped

if TYPE_CHECKING:
    from ckpt_tools.engines.sglang_ext.releases import Release


def wrappers(release: Release | None, mixin: type[Any], *architectures: str) -> list[type[Any]]:
    """SGLang's classes with the hooks of *mixin*, on a release that has them without.

    Args:
        release: The installed one; ``None`` gives none.
        mixin: What a later release's class has.
        architectures: Of :data:`WRAPPED`; SGLang's module isn't imported when nothing is missing.
    """
    lacking = [name for name in architectures if release is not None and wrapped(name, release.version)]
    return [
        type(name, (mixin, getattr(import_module(f"sglang.srt.models.{WRAPPED[name]}"), name)), {})
        for name in lacking
    ]


class Delegating:
    """For a wrapper whose ``language_model`` is a whole causal model with hooks of its own."""

    language_model: Any

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        """Capture the outputs of these layers, or of the default ones."""
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

    def get_embed_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The embedding and the head, for the draft."""
        shared: tuple[torch.Tensor, torch.Tensor] = self.language_model.get_embed_and_head()
        return shared

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        """Take another's embedding and head."""
        self.language_model.set_embed_and_head(embed, head)


class WithCaptured(torch.nn.Module):
    """A logits processor that takes a decoder's (states, captured states) where the wrapper passes on what it got."""

    def __init__(self, processor: Any) -> None:
        super().__init__()
        self.processor = processor

    def forward(self, input_ids: Any, states: Any, lm_head: Any, batch: Any) -> Any:
        """As the wrapped one; an idle batch has no captured states."""
        captured = None
        if isinstance(states, tuple):
            states, captured = states
        return self.processor(input_ids, states, lm_head, batch, captured)


class Capturing:
    """For a wrapper over a bare decoder that captures layers itself, and whose head is the wrapper's."""

    model: Any
    lm_head: Any
    logits_processor: Any
    pp_group: Any
    #: Where the default layers are counted from: 0 as given, 1 as outputs.
    default_shift = 0

    def get_embed_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The embedding and the head, for the draft."""
        return self.model.embed_tokens.weight, self.lm_head.weight

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        """Capture the outputs of these layers, or of the default ones: a decoder captures what enters layer k."""
        if not self.pp_group.is_last_rank:
            return
        depth = len(self.model.layers)
        default = [k + self.default_shift for k in (2, depth // 2, depth - 3)]
        self.mark(default if layer_ids is None else [k + 1 for k in layer_ids])
        if not isinstance(self.logits_processor, WithCaptured):
            self.logits_processor = WithCaptured(self.logits_processor)

    def mark(self, entered: list[int]) -> None:
        """Tell the decoder which layers' inputs to keep."""
        self.model.layers_to_capture = entered


class CapturingByLayer(Capturing):
    """For a decoder that asks each layer, and whose default layers count as outputs."""

    default_shift = 1

    def mark(self, entered: list[int]) -> None:
        """Also tell each layer."""
        super().mark(entered)
        for index, layer in enumerate(self.model.layers):
            layer._is_layer_to_capture = index in entered
