"""Everything in which SGLang's releases differ for these classes, and what they read from the running server.

Nothing of SGLang is imported before a function is called.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang_ext.releases import Release, release
from ckpt_tools.engines.versions import parse

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch  # noqa: TID251  # types alone


def installed() -> Release | None:
    """The installed SGLang's release; ``None`` when there is none.

    Raises:
        UnknownRelease: It is one that nobody has read.
    """
    try:
        found = version("sglang")
    except PackageNotFoundError:
        return None
    return release(found)


@dataclass(frozen=True)
class Settings:
    """What the running server was told.

    Attributes:
        window: ``--speculative-draft-window-size``.
        cuda_graphs: Whether decoding is captured.
        context_length: ``--context-length``; ``None`` is the model's own.
        backends: The attention backends that the draft may run on; ``None`` is not chosen yet.
        topk: ``--speculative-eagle-topk``.
    """

    window: int | None
    cuda_graphs: bool
    context_length: int | None
    backends: frozenset[str | None]
    topk: int | None


def settings(known: Release) -> Settings:
    """The server's settings; from 0.5.17 SGLang keeps resolved values in bags, apart from what was typed."""
    if parse(known.version) >= parse("0.5.17"):
        context = import_module("sglang.srt.runtime_context")
        spec, kernel, graph = context.get_spec(), context.get_exec().kernel, context.get_exec().graph
        length = context.get_model().context_length
    elif parse(known.version) >= parse("0.5.15"):
        spec = kernel = graph = import_module("sglang.srt.runtime_context").get_server_args()
        length = spec.context_length
    else:
        spec = kernel = graph = import_module("sglang.srt.server_args").get_global_server_args()
        length = spec.context_length
    draft = getattr(spec, "speculative_draft_attention_backend", None)
    phases = ("prefill_attention_backend", "decode_attention_backend")
    window = getattr(spec, "speculative_draft_window_size", None)
    return Settings(
        window=None if window is None else int(window),
        cuda_graphs=not getattr(graph, "disable_cuda_graph", False),
        context_length=length,
        backends=frozenset(
            {draft} if draft else {getattr(kernel, p, None) or kernel.attention_backend for p in phases}
        ),
        topk=getattr(spec, "speculative_eagle_topk", None),
    )


def pipeline_group(known: Release) -> Any:
    """The pipeline-parallel group (models/llama_eagle3.py 0.5.20:274, 0.5.21:274)."""
    if parse(known.version) >= parse("0.5.21"):
        return import_module("sglang.srt.runtime_context").get_parallel().pp_group
    return import_module("sglang.srt.distributed").get_pp_group()


def building_layers(known: Release) -> AbstractContextManager[Any]:
    """What decoder layers are built under (models/llama_eagle3.py 0.5.22:197)."""
    if parse(known.version) >= parse("0.5.22"):
        context: AbstractContextManager[Any] = import_module("sglang.srt.layers.layer_boundary").layer_stack()
        return context
    return nullcontext()


def embeddings(known: Release, table: Any, input_ids: torch.Tensor, batch: Any) -> torch.Tensor:
    """Token embeddings of a draft step, [tokens, hidden].

    For prompts with images the target hands over its own, in which only the last token of each request is the draft's
    to look up (models/llama_eagle3.py 0.5.10:157, 0.5.14:197).
    """
    given: torch.Tensor | None = None
    if parse(known.version) >= parse("0.5.10"):
        given = batch.mm_input_embeds
    if given is None:
        looked_up: torch.Tensor = table(input_ids)
        return looked_up
    per_request = parse(known.version) >= parse("0.5.14")
    mode = batch.forward_mode
    verified = mode.is_draft_extend_v2() if per_request else mode.is_draft_extend(include_v2=True)
    if mode.is_extend() and batch.contains_mm_inputs() and not verified:
        if not per_request:
            joined: torch.Tensor = import_module("torch").cat([given[:-1], table(input_ids[-1].unsqueeze(0))])
            return joined
        last = (batch.extend_start_loc + batch.extend_seq_lens - 1).long()
        given[last] = table(input_ids[last])
    return given
