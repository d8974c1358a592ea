"""Fixtures of these tests: ckpt's package imported beside a stand-in for a SGLang release."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.sglang_models import fake_sglang

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def server() -> types.SimpleNamespace:
    """Arguments of a server with CUDA graphs and FlashAttention."""
    return types.SimpleNamespace(
        speculative_draft_window_size=None,
        speculative_draft_attention_backend=None,
        speculative_eagle_topk=1,
        attention_backend="fa3",
        prefill_attention_backend=None,
        decode_attention_backend=None,
        disable_cuda_graph=False,
        context_length=None,
    )


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch, server: types.SimpleNamespace) -> Iterator[Callable[..., Any]]:
    """Import a module of the package beside a stand-in release (``None``: beside no SGLang)."""
    real = importlib.metadata.version

    def load(version: str | None, name: str = "") -> Any:
        for module in fake_sglang.purge():
            monkeypatch.delitem(sys.modules, module)

        def answer(package: str) -> str:
            if package != "sglang":
                return real(package)
            if version is None:
                raise importlib.metadata.PackageNotFoundError(package)
            return version

        monkeypatch.setattr(importlib.metadata, "version", answer)
        if version is not None:
            for path, module in fake_sglang.modules(version.partition(".post")[0], server).items():
                monkeypatch.setitem(sys.modules, path, module)
        return importlib.import_module(f"ckpt_tools.sglang_models{'.' if name else ''}{name}")

    before = {n: sys.modules[n] for n in fake_sglang.purge()}
    yield load
    for module in list(fake_sglang.purge()):
        del sys.modules[module]
    sys.modules.update(before)
