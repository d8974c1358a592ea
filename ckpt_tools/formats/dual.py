"""One folder that SGLang and vLLM both load right: SGLang's layout with vLLM's fields beside, without what either can't carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats import sglang, vllm
from ckpt_tools.formats.base import CaptureIds, Format, Variant, WriteRequest
from ckpt_tools.formats.eagle3 import SGLANG

if TYPE_CHECKING:
    from collections.abc import Mapping


def write(request: WriteRequest) -> dict[str, Any]:
    """SGLang's config plus what vLLM reads: a window stays in the config (SGLang takes it from a flag and reads no field)."""
    config: Mapping[str, Any] = sglang.write(request)
    theirs = vllm.write(request)
    shared = ("sliding_window", "layer_types", "use_sliding_window")
    return {**config, **{k: theirs[k] for k in shared if k in theirs}}


FORMAT = Format(
    name="dual",
    title="SGLang and vLLM in one folder",
    # No clues: what is written is recognised as SGLang's, whose layout it is.
    variants=tuple(
        Variant(algorithm="eagle3", layer_type=kind, must=(), names=SGLANG) for kind in ("llama", "mla")
    ),
    read=sglang.read,
    capture=CaptureIds(
        paths=sglang.FORMAT.capture.paths,
        convention=sglang.FORMAT.capture.convention,
        certain=sglang.FORMAT.capture.certain,
    ),
    references=(*sglang.FORMAT.references, *vllm.FORMAT.references),
    schema="sglang.eagle3.config.json",
    write=write,
    engine="sglang",
    limits=(*sglang.LIMITS, *vllm.LIMITS),
)
