"""Sliding windows of a draft's layers, as SGLang's attention counts them, or why it can't apply them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt_tools.engines.sglang_ext.head import Head
    from ckpt_tools.engines.sglang_ext.releases import Release
    from ckpt_tools.sglang_models._releases import Settings


def layer_windows(head: Head, release: Release, server: Settings) -> tuple[int | None, ...]:
    """Per layer, how many positions before its own a query sees; ``None`` is all of them.

    A window as long as the served context changes nothing and isn't set. ``--speculative-draft-window-size`` goes before the
    config, as in SGLang's own class, which takes it uncounted.

    Raises:
        ValueError: The window cuts the served context and the attention backend wouldn't apply it while drafting.
    """
    if server.window is not None:
        return (server.window,) * head.num_layers
    window = head.window(server.context_length)
    if window is None:
        return (None,) * head.num_layers
    backends = sorted(b or "an unknown one" for b in server.backends)
    if not server.backends <= set(release.window_backends) or (server.topk or 1) > 1:
        can = " or ".join(release.window_backends)
        way = (
            f"--speculative-draft-attention-backend {can} and --speculative-eagle-topk 1, or " if can else ""
        )
        raise ValueError(
            f"the draft was trained with a sliding window of {window}, shorter than the served context, and SGLang "
            f"{release.version} doesn't apply it while drafting on {', '.join(backends)}: serve with {way}"
            f"--context-length {window} or less"
        )
    # SGLang counts the positions before the query, training counts the query too.
    return tuple(None if w is None else w - 1 for w in head.windows)
