"""SGLang's releases as ckpt's model classes see them: which are known, and what their workers can't do.

``SGLANG_EXTERNAL_MODEL_PACKAGE`` is first in 0.5.6 (srt/models/registry.py:127). The classes call what is inside SGLang,
so a release that nobody has read is refused instead of tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckpt_tools.engines.history import fact, releases_read
from ckpt_tools.engines.versions import parse

FIRST = "0.5.6"
#: Oldest first.
RELEASES = tuple(v for v in releases_read("sglang") if parse(v) >= parse(FIRST))

#: The worker takes the number of captured layers from the draft's config from here on (speculative/eagle_utils.py:440).
#: Before, its graph buffers are three layers wide (eagle_draft_extend_cuda_graph_runner.py 0.5.9:112; from 0.5.12 it asks
#: the *target's* config, eagle_info.py:894, which names none).
_AUX_FROM_DRAFT = "0.5.15"
#: A window that cuts the context: FlashAttention applies a layer's own in every phase (flashattention_backend.py
#: 0.5.12:665 and :1082), from the release whose Llama EAGLE-3 has one at all. Triton builds window indices for draft
#: steps from 0.5.23 on (triton_backend.py:2555); before, such a layer decodes over none at all. FlashInfer plans draft
#: steps without the window.
_WINDOW_BACKENDS = (("fa3", "0.5.12"), ("triton", "0.5.23"))


class UnknownRelease(ImportError):
    """This SGLang has not been read."""


@dataclass(frozen=True)
class Release:
    """One release's limits.

    Attributes:
        version: As in the package's metadata, without a local part.
        any_aux: The worker's CUDA graphs take as many captured layers as the draft says; else three.
        graphs_keep_ids: CUDA graphs capture the layers that the draft's config names; else the default ones.
        window_backends: Attention backends that apply a draft layer's own window while it drafts.
    """

    version: str
    any_aux: bool
    graphs_keep_ids: bool
    window_backends: tuple[str, ...]


def release(version: str) -> Release:
    """What is known of a SGLang release.

    Raises:
        UnknownRelease: It is none of :data:`RELEASES`.
    """
    asked = parse(version)
    known = {parse(v): v for v in RELEASES}
    if asked not in known:
        raise UnknownRelease(
            f"ckpt's model classes know SGLang {RELEASES[0]} to {RELEASES[-1]}, and this is SGLang {version}. "
            "Upgrade ckpt-tools (pip install --no-deps --upgrade ckpt-tools), or serve with a SGLang that it knows."
        )
    forced = fact("capture.cudagraph_forces_default").last
    return Release(
        version=known[asked],
        any_aux=asked >= parse(_AUX_FROM_DRAFT),
        graphs_keep_ids=forced is not None and asked > parse(forced),
        window_backends=tuple(name for name, first in _WINDOW_BACKENDS if asked >= parse(first)),
    )
