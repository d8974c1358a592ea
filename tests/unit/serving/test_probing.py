"""The probe: what is followed and how, against a stand-in for an engine, in this process and in a subprocess."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import types
from pathlib import Path

import pytest

from ckpt_tools.errors import Unavailable
from ckpt_tools.serving import probe_child
from ckpt_tools.serving.probe import load_map, probe

torch = pytest.importorskip("torch")

# An engine in miniature: a class, a loader that drops what it doesn't know, joins what it fuses, and keeps a table.
ENGINE = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": """
        class ServerArgs:
            def __init__(self, **kw): self.__dict__.update(kw)
    """,
    "sglang/srt/runtime_context.py": """
        class SpawnRanks:
            def __init__(self, **kw): pass
        def publish(args, role, ranks): pass
    """,
    "sglang/srt/distributed/__init__.py": "",
    "sglang/srt/distributed/parallel_state.py": """
        def init_distributed_environment(**kw): assert kw["world_size"] == 1
        def initialize_model_parallel(backend): pass
    """,
    "sglang/srt/configs/__init__.py": "",
    "sglang/srt/configs/load_config.py": "class LoadConfig: pass",
    "sglang/srt/configs/model_config.py": """
        import json, os, types
        class ModelConfig:
            def __init__(self, model_path, is_draft_model, speculative_algorithm, dtype):
                import torch
                self.path, self.dtype = model_path, torch.float32
                with open(os.path.join(model_path, "config.json")) as file:
                    data = json.load(file)
                if "sleep" in data:
                    import time
                    time.sleep(data["sleep"])
                if "exit" in data:
                    os._exit(data["exit"])
                self.hf_config = types.SimpleNamespace(**data)
                if "hidden_size" not in data:
                    raise ValueError("Unrecognized model")
    """,
    "sglang/srt/layers/__init__.py": "",
    "sglang/srt/layers/linear.py": "_is_cpu = True",
    "sglang/srt/layers/parameter.py": "",
    "sglang/srt/model_loader/__init__.py": "",
    "sglang/srt/model_loader/utils.py": """
        import contextlib
        @contextlib.contextmanager
        def set_default_torch_dtype(dtype):
            yield
    """,
    "sglang/srt/model_loader/loader.py": """
        import os, torch
        from torch import nn
        import sgl_kernel                       # missing: a stand-in answers
        from safetensors.torch import load_file

        def _get_quantization_config(config, load): return None

        class Draft(nn.Module):
            load_lm_head_from_target = False
            def __init__(self, config, quantization=None):
                super().__init__()
                size = config.hf_config.hidden_size
                self.qkv = nn.Parameter(torch.empty(3 * size, size))
                self.part = nn.Parameter(torch.empty(4, size))
                self.lost = nn.Parameter(torch.empty(size))
                self.table = nn.Parameter(torch.empty(4, dtype=torch.int64), requires_grad=False)
                self.norm = nn.Parameter(torch.ones(size))
                self.bias = nn.Parameter(torch.zeros(size))
                self.embed_tokens = nn.Module()
                self.embed_tokens.weight = nn.Parameter(torch.empty(8, size))
                self.hot = None
                self.cache = {}
            def load_weights(self, weights):
                for name, tensor in weights:
                    if name in "qkv":
                        self.cache[name] = tensor.float()
                        if len(self.cache) == 3:
                            self.qkv.data.copy_(torch.cat([self.cache[n] for n in "qkv"]))
                    elif name == "part":
                        self.part.data[:2].copy_(tensor)
                    elif name == "d2t":
                        self.hot = tensor + torch.arange(tensor.shape[0])
                    elif name == "table":
                        self.table.data.copy_(tensor)
                    elif name == "boom":
                        raise KeyError(name)

        def _initialize_model(config, load, quantization): return Draft(config)

        class DefaultModelLoader:
            def __init__(self, load): pass
            def _get_all_weights(self, config, model):
                yield from sorted(load_file(os.path.join(config.path, "model.safetensors")).items())
    """,
}


def install(site: Path) -> None:
    for name, text in ENGINE.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    info = site / "sglang-7.7.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 7.7.7\n")


def folder(place: Path, config: dict, **tensors) -> Path:
    from safetensors.torch import save_file

    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(place / "model.safetensors"))
    return place


def whole(place: Path, **more) -> Path:
    rows = {name: torch.rand(4, 4) for name in "qkv"}
    tensors = {
        **rows,
        "part": torch.rand(2, 4),
        "d2t": torch.arange(3),
        "table": torch.arange(4),
        "odd": torch.ones(1),
    }
    return folder(place, {"hidden_size": 4}, **tensors, **more)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "site"
    made.mkdir()
    install(made)
    monkeypatch.setenv("PYTHONPATH", str(made))
    return made


EXPECTED = {
    "qkv": ("checkpoint", ("k", "q", "v")),
    "part": ("partly", ("part",)),
    "lost": ("nothing", ()),
    "table": ("checkpoint", ("table",)),
    "norm": ("default", ()),
    "bias": ("default", ()),
    "embed_tokens.weight": ("target", ()),
}


def test_a_stand_in_engine_in_a_subprocess(site: Path, tmp_path: Path) -> None:
    found = probe("sglang", whole(tmp_path / "draft"), algorithm="eagle3", time_limit=120)
    assert found.installed.version == "7.7.7"
    assert {n: (f.filled_by, f.sources) for n, f in found.load.parameters.items()} == EXPECTED
    assert found.load.unused == ("odd",)
    assert (found.load.architecture, found.load.refused, found.load.stage) == ("Draft", None, None)


def test_refusals(site: Path, tmp_path: Path) -> None:
    refused = probe("sglang", folder(tmp_path / "a", {}, q=torch.ones(1)), algorithm="eagle3").load
    assert (refused.refused, refused.stage, refused.parameters) == (
        "ValueError: Unrecognized model",
        "config",
        {},
    )
    raised = probe("sglang", whole(tmp_path / "b", boom=torch.ones(1)), algorithm="eagle").load
    assert (raised.refused, raised.stage) == ("KeyError: 'boom'", "load")
    assert raised.parameters["qkv"].filled_by == "nothing"


def test_an_engine_that_is_not_whole_is_no_verdict_on_the_draft(site: Path, tmp_path: Path) -> None:
    (site / "sglang" / "srt" / "server_args.py").write_text("raise ImportError('\\nneeds the library x\\n')")
    with pytest.raises(Unavailable, match="can't be imported: ImportError: needs the library x"):
        probe("sglang", whole(tmp_path / "draft"), algorithm="eagle3", time_limit=120)


def test_limits(site: Path, tmp_path: Path) -> None:
    slow = folder(tmp_path / "a", {"sleep": 60}, q=torch.ones(1))
    with pytest.raises(Unavailable, match="seconds"):
        probe("sglang", slow, algorithm="eagle3", time_limit=0.1)
    with pytest.raises(Unavailable, match="GiB"):
        probe("sglang", slow, algorithm="eagle3", memory_limit=1)


def test_a_probe_that_dies(site: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="died"):
        probe("sglang", folder(tmp_path / "a", {"exit": 3}, q=torch.ones(1)), algorithm="eagle3")


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not installed"):
        probe("vllm", whole(tmp_path / "draft"), algorithm="eagle3")


# ---- in this process


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The stand-in engine on this interpreter's path, and away again."""
    made = tmp_path / "site"
    made.mkdir()
    install(made)
    monkeypatch.syspath_prepend(str(made))
    before, finders = set(sys.modules), list(sys.meta_path)
    yield made
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("sglang", "vllm", *probe_child._STAND_INS):
            del sys.modules[name]


def ask(draft: Path, **more) -> dict:
    asked = {
        "engine": "sglang",
        "draft": str(draft),
        "algorithm": "EAGLE3",
        "dtype": "auto",
        "scratch": str(draft),
    }
    return asked | more


def test_in_process(engine: Path, tmp_path: Path) -> None:
    answer = probe_child.probe(ask(whole(tmp_path / "draft")))
    got = load_map(answer)
    assert {n: (f.filled_by, f.sources) for n, f in got.parameters.items()} == EXPECTED
    assert got.unused == ("odd",)


def test_own_width_and_shared_head(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = folder(tmp_path / "draft", {"hidden_size": 4, "target_hidden_size": 8}, q=torch.ones(4, 4))
    assert not probe_child.probe(ask(draft))["parameters"]["embed_tokens.weight"]["target"]
    assert probe_child.probe(ask(draft, algorithm="EAGLE"))["parameters"]["embed_tokens.weight"]["target"]
    assert not probe_child.probe(ask(draft, algorithm="DFLASH"))["parameters"]["embed_tokens.weight"][
        "target"
    ]
    loader = sys.modules["sglang.srt.model_loader.loader"]
    monkeypatch.setattr(loader.Draft, "load_lm_head_from_target", True)
    assert probe_child.probe(ask(draft))["error"] is None


def test_older_releases(engine: Path, tmp_path: Path) -> None:
    """Without a runtime context, a quantisation step, and with fewer arguments."""
    (engine / "sglang/srt/runtime_context.py").unlink()
    args = engine / "sglang/srt/server_args.py"
    args.write_text(args.read_text() + "\nSEEN = []\nset_global_server_args_for_scheduler = SEEN.append\n")
    config = engine / "sglang/srt/configs/model_config.py"
    config.write_text(config.read_text().replace(", speculative_algorithm, dtype", ", dtype"))
    loader = engine / "sglang/srt/model_loader/loader.py"
    text = loader.read_text().replace("def _get_quantization_config(config, load): return None", "")
    loader.write_text(
        text.replace(
            "def _initialize_model(config, load, quantization)", "def _initialize_model(config, load)"
        )
    )
    answer = probe_child.probe(ask(whole(tmp_path / "draft")))
    assert answer["error"] is None
    assert len(sys.modules["sglang.srt.server_args"].SEEN) == 1


def test_nothing_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    answer = probe_child.probe(ask(tmp_path))
    assert answer["stage"] == "import"
    assert "ModuleNotFoundError" in answer["error"]


def test_vllm_in_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    class Draft(torch.nn.Module):
        has_own_embed_tokens = False
        has_own_lm_head = True

        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(4, 2)
            self.fc = torch.nn.Linear(2, 2)

        def load_weights(self, weights) -> None:
            for name, tensor in weights:
                self.get_parameter(name).data.copy_(tensor)

    seen = {}

    def module(name: str, **members) -> None:
        made = types.ModuleType(name)
        made.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, made)

    def engine_args(**kw):
        seen.update(kw)
        draft = types.SimpleNamespace(dtype=torch.float32)
        config = types.SimpleNamespace(
            speculative_config=types.SimpleNamespace(draft_model_config=draft), load_config=None
        )
        return types.SimpleNamespace(create_engine_config=lambda: config)

    nothing = contextlib.nullcontext
    loader = types.SimpleNamespace(get_all_weights=lambda *_: iter([("fc.weight", torch.ones(2, 2))]))
    for name in ("vllm", "vllm.engine", "vllm.distributed", "vllm.model_executor", "vllm.utils"):
        module(name)
    module("vllm.engine.arg_utils", EngineArgs=engine_args)
    module("vllm.config", set_current_vllm_config=nothing)
    module(
        "vllm.distributed.parallel_state",
        init_distributed_environment=lambda *_: None,
        ensure_model_parallel_initialized=lambda *_: None,
    )
    module("vllm.model_executor.model_loader", get_model_loader=lambda _: loader)
    module("vllm.model_executor.model_loader.utils", initialize_model=lambda **_: Draft())
    module("vllm.utils.torch_utils", set_default_torch_dtype=nothing)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    request = {"engine": "vllm", "draft": "/d", "target": "/t", "algorithm": "eagle3", "dtype": "auto", "scratch": "/s",
               "speculative": {"parallel_drafting": True}}  # fmt: skip
    got = load_map(probe_child.probe(request))
    assert seen["speculative_config"] == {
        "model": "/d", "method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True,
    }  # fmt: skip
    assert seen["dtype"] == "bfloat16"
    assert {n: f.filled_by for n, f in got.parameters.items()} == {
        "embed_tokens.weight": "target", "fc.weight": "checkpoint", "fc.bias": "nothing",
    }  # fmt: skip


def test_main_writes_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["child", str(tmp_path / "in"), str(tmp_path / "out")])
    monkeypatch.setattr(probe_child, "probe", lambda request: {"got": request})
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    probe_child.main()
    assert json.loads((tmp_path / "out").read_text()) == {"got": {}}
    assert left == [0]


# ---- following


def test_names_follow_data_through_operations() -> None:
    mode = probe_child.follow(torch)
    a, b, parameter = torch.ones(4), torch.ones(4), torch.zeros(8)
    with mode:
        mode.source("a", a)
        mode.source("b", b)
        mode.source("a", a)
        parameter[:4].copy_(a * 2)
        both = torch.cat([a, b])
        fresh = torch.zeros(4)
    assert mode.of(parameter) == {"a"}
    assert mode.of(both) == {"a", "b"}
    assert mode.of(fresh) == frozenset()
    assert mode.of(torch.empty(0)) == frozenset()


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "int32", "int16", "int8", "uint8"]
)
def test_poison_is_seen_in_every_dtype(dtype: str) -> None:
    tensor = torch.zeros(6, dtype=getattr(torch, dtype))
    assert probe_child.poisoned(torch, tensor) == 0
    probe_child.poison(torch, tensor)
    assert probe_child.poisoned(torch, tensor) == 6
    tensor[:2] = torch.zeros(2, dtype=tensor.dtype)
    assert probe_child.poisoned(torch, tensor) == 4


def test_what_can_t_be_poisoned() -> None:
    for tensor in (torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.complex64)):
        probe_child.poison(torch, tensor)
        assert probe_child.poisoned(torch, tensor) == 0
    assert probe_child.poisoned(torch, torch.empty(0)) == 0


def test_memory_that_nothing_wrote_to() -> None:
    with probe_child.unwritten(torch):
        empty, like, zeros = torch.empty(4), torch.empty_like(torch.ones(3)), torch.zeros(2)
    assert probe_child.poisoned(torch, empty) == 4
    assert probe_child.poisoned(torch, like) == 3
    assert probe_child.constant(torch, zeros)
    assert not probe_child.constant(torch, empty)
    assert not probe_child.constant(torch, torch.arange(3))
    assert not probe_child.constant(torch, torch.empty(0))


def test_stand_ins() -> None:
    finder = probe_child._Finder()
    assert finder.find_spec("json") is None
    spec = finder.find_spec("sgl_kernel.ops")
    module = finder.create_module(spec)
    finder.exec_module(module)
    assert module.Thing is module.Thing
    assert module.decorate(len) is len
    assert module.jit(1)(len) is len
    assert list(module.Thing.Inner) == []
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.ops"):
        module.kernels(1, 2)
    with pytest.raises(AttributeError):
        _ = module.__wrapped__
    with pytest.raises(AttributeError):
        _ = module.Thing.__wrapped__


def test_an_invented_target(tmp_path: Path) -> None:
    from ckpt_tools.serving.probe import _invented_target

    draft = tmp_path / "draft"
    draft.mkdir()
    place = tmp_path / "a"
    place.mkdir()
    assert json.loads((_invented_target(draft, place) / "config.json").read_text())["hidden_size"] == 64
    (draft / "config.json").write_text(
        json.dumps({"transformer_layer_config": {"hidden_size": 256, "vocab_size": 9}})
    )
    place = tmp_path / "b"
    place.mkdir()
    made = json.loads((_invented_target(draft, place) / "config.json").read_text())
    assert (made["hidden_size"], made["num_attention_heads"], made["vocab_size"]) == (256, 2, 9)
