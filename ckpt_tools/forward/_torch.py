"""The one import of torch: every module of this package takes it from here."""

from __future__ import annotations

from ckpt_tools.errors import Unavailable

try:
    import torch  # noqa: TID251  # the reference heads are what torch is for
    import torch.nn.functional as functional  # noqa: TID251  # the same
except ImportError as error:  # pragma: no cover - the test environment has torch
    raise Unavailable(
        f"running a draft head needs torch, which can't be imported: {error}",
        hint="pip install 'ckpt-tools[torch]'",
    ) from error

__all__ = ["functional", "torch"]
