"""The package itself: releases it knows, what it reads of the server, the targets that it completes, windows it refuses."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from typing import Any

import pytest
import torch  # noqa: TID251

from ckpt_tools.engines.sglang_ext.releases import RELEASES, UnknownRelease, release
from ckpt_tools.engines.sglang_ext.targets import WRAPPED, wrapped
from tests.unit.sglang_models.fake_sglang import Release


def test_importing_it_needs_neither_sglang_nor_torch() -> None:
    code = (
        "import sys, ckpt_tools.sglang_models as m; assert m.RELEASE is None, m.RELEASE;"
        "print([n for n in ('torch', 'numpy', 'click', 'rich', 'jsonschema', 'huggingface_hub', 'yaml') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_an_unknown_release_fails_at_import_with_the_way_out(beside: Any) -> None:
    with pytest.raises(
        ImportError, match=r"know SGLang 0\.5\.6 to 0\.5\.23, and this is SGLang 0\.6\.0\. Upgrade"
    ):
        beside("0.6.0")
    for version in ("0.5.5.post3", "0.5.99"):
        with pytest.raises(UnknownRelease):
            release(version)


def test_known_releases_and_local_versions(beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RELEASES[0] == "0.5.6" and RELEASES[-1] == "0.5.23" and "0.5.10.post1" in RELEASES
    assert beside("0.5.23+cu130").RELEASE.version == "0.5.23"
    assert beside(None).RELEASE is None
    package, module = beside("0.5.23"), importlib.import_module("ckpt_tools.sglang_models.llama_eagle3")
    monkeypatch.setattr(package, "RELEASE", None)
    with pytest.raises(ImportError, match="metadata is missing"):
        importlib.reload(module)


def test_every_module_registers_what_sglang_expects(beside: Any) -> None:
    """SGLang reads EntryClass of every module: a class or a list, names once."""
    found: dict[str, str] = {}
    beside("0.5.12")
    package = sys.modules["ckpt_tools.sglang_models"]
    import pkgutil

    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"ckpt_tools.sglang_models.{info.name}")
        if info.name.startswith("_"):
            assert not hasattr(module, "EntryClass")
            continue
        for entry in module.EntryClass:
            assert entry.__name__ not in found
            found[entry.__name__] = info.name
    assert found == {"CkptLlamaForCausalLMEagle3": "llama_eagle3"}


@pytest.mark.parametrize("version", ["0.5.9", "0.5.16", "0.5.23"])
def test_settings_come_from_where_the_release_keeps_them(version: str, beside: Any, server: Any) -> None:
    releases = beside(version, "_releases")
    server.speculative_draft_window_size = "64"
    server.decode_attention_backend = "triton"
    server.context_length = 512
    read = releases.settings(releases.installed())
    assert (read.window, read.cuda_graphs, read.context_length, read.topk) == (64, True, 512, 1)
    assert read.backends == {"fa3", "triton"}
    server.speculative_draft_attention_backend = "flashinfer"
    assert releases.settings(releases.installed()).backends == {"flashinfer"}
    assert Release.version == version


def test_which_targets_are_completed_on_which_releases() -> None:
    kimi = "KimiK25ForConditionalGeneration"
    assert [v for v in RELEASES if wrapped(kimi, v)] == ["0.5.9"]
    dense = [v for v in RELEASES if wrapped("Qwen3VLForConditionalGeneration", v)]
    assert dense[0] == "0.5.6" and dense[-1] == "0.5.10.post1"
    vision = "MiniMaxM3SparseForConditionalGeneration"
    assert [v for v in RELEASES if wrapped(vision, v)] == ["0.5.16", "0.5.17"]
    assert not wrapped("LlamaForCausalLM", "0.5.9")


def target_module(monkeypatch: pytest.MonkeyPatch, name: str, own: type) -> None:
    module = types.ModuleType(f"sglang.srt.models.{WRAPPED[name]}")
    setattr(module, name, own)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_kimi_passes_its_hooks_on(beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Inner:
        def set_eagle3_layers_to_capture(self, ids: Any) -> None:
            calls.append(ids)

        def get_embed_and_head(self) -> tuple[str, str]:
            return "embed", "head"

        def set_embed_and_head(self, *both: Any) -> None:
            calls.append(both)

    class Own:
        language_model = Inner()

    beside("0.5.9")
    target_module(monkeypatch, "KimiK25ForConditionalGeneration", Own)
    (entry,) = importlib.import_module("ckpt_tools.sglang_models.kimi_k25").EntryClass
    assert entry.__name__ == "KimiK25ForConditionalGeneration" and issubclass(entry, Own)
    target = entry()
    target.set_eagle3_layers_to_capture([1, 3, 4])
    target.set_embed_and_head("e", "h")
    assert target.get_embed_and_head() == ("embed", "head")
    assert calls == [[1, 3, 4], ("e", "h")]
    beside("0.5.12")
    assert importlib.import_module("ckpt_tools.sglang_models.kimi_k25").EntryClass == []


class Decoder(torch.nn.Module):
    """A decoder that captures once it was told to, as Qwen3-VL's and MiniMax-M3's do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(8))
        self.embed_tokens = torch.nn.Embedding(4, 2)
        self.layers_to_capture: list[int] = []

    def forward(self) -> Any:
        return ("states", ["captured"]) if self.layers_to_capture else "states"


class Vision(torch.nn.Module):
    """A wrapper that hands on what its decoder gives."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = Decoder(), torch.nn.Linear(2, 4)
        self.logits_processor: Any = Processor()
        self.pp_group = types.SimpleNamespace(is_last_rank=True)

    def forward(self) -> Any:
        return self.logits_processor("ids", self.model(), self.lm_head, "batch")


class Processor(torch.nn.Module):
    """What reaches SGLang's logits processor."""

    def forward(self, ids: Any, states: Any, head: Any, batch: Any, captured: Any = None) -> Any:
        assert head is not None
        return ids, states, batch, captured


@pytest.mark.parametrize(
    ("version", "module", "name", "default"),
    [
        ("0.5.9", "qwen3_vl", "Qwen3VLForConditionalGeneration", [2, 4, 5]),
        ("0.5.16", "minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", [3, 5, 6]),
    ],
)
def test_wrappers_over_a_bare_decoder(
    version: str, module: str, name: str, default: list[int], beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside(version)
    for other in WRAPPED:
        target_module(monkeypatch, other, type(other, (Vision,), {}))
    entries = {
        e.__name__: e for e in importlib.import_module(f"ckpt_tools.sglang_models.{module}").EntryClass
    }
    target = entries[name]()
    assert target() == ("ids", "states", "batch", None)
    target.set_eagle3_layers_to_capture()
    assert target.model.layers_to_capture == default
    for _ in range(2):  # graphs set them again
        target.set_eagle3_layers_to_capture([1, 3, 4])
    assert target.model.layers_to_capture == [2, 4, 5]
    assert target() == ("ids", "states", "batch", ["captured"])
    if module == "minimax_m3_vl":
        assert [i for i, layer in enumerate(target.model.layers) if layer._is_layer_to_capture] == [2, 4, 5]
    embed, head = target.get_embed_and_head()
    assert embed is target.model.embed_tokens.weight and head is target.lm_head.weight
    target.pp_group.is_last_rank = False
    target.set_eagle3_layers_to_capture([0, 1, 2])
    assert target.model.layers_to_capture == [2, 4, 5]


@pytest.mark.parametrize(
    ("version", "backend", "topk", "way"),
    [
        ("0.5.9", "fa3", 1, "serve with --context-length 16 or less"),
        ("0.5.12", "triton", 1, "--speculative-draft-attention-backend fa3 and"),
        ("0.5.23", "flashinfer", 1, "fa3 or triton and --speculative-eagle-topk 1"),
        ("0.5.23", "fa3", 4, "--speculative-eagle-topk 1"),
        ("0.5.23", None, 1, "an unknown one"),
    ],
)
def test_a_window_that_attention_wouldnt_apply_is_refused(
    version: str, backend: str | None, topk: int, way: str, beside: Any, server: Any
) -> None:
    windows = beside(version, "_windows")
    releases = importlib.import_module("ckpt_tools.sglang_models._releases")
    server.attention_backend, server.speculative_eagle_topk = backend, topk
    head = types.SimpleNamespace(num_layers=2, windows=(16, None), window=lambda _: 16)
    with pytest.raises(ValueError) as raised:
        windows.layer_windows(head, release(version), releases.settings(release(version)))
    assert way in str(raised.value) and "sliding window of 16" in str(raised.value)


def test_windows_are_per_layer(beside: Any) -> None:
    windows = beside("0.5.23", "_windows")
    releases = importlib.import_module("ckpt_tools.sglang_models._releases")
    head = types.SimpleNamespace(num_layers=2, windows=(16, None), window=lambda _: 16)
    read = releases.settings(release("0.5.23"))
    assert windows.layer_windows(head, release("0.5.23"), read) == (15, None)
