"""Runs in the engine's own interpreter: load a draft with the engine's class and loader, say what reached what.

A script, not a module of ours: it imports the engine, torch and the standard library only. The request is a
JSON file (first argument), the answer another (second). Parameters are poisoned before loading, so what is
still poison was never written; a dispatch mode carries the tensors' names along with their storages through
every operation.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from typing import Any

# Packages of GPU kernels and media that loading on a CPU never calls; a stand-in answers where they are missing.
_STAND_INS = ("torchvision", "torchaudio", "tvm_ffi", "sgl_kernel", "flashinfer", "deep_gemm", "flash_attn")
_DECORATORS = ("jit", "kernel", "custom_op", "register_fake", "register_custom_op", "autotune", "heuristics")
_INTEGER_POISON = {8: -113, 16: -31111, 32: -(2**30) + 7, 64: -(2**62) + 7}


class _StandIn(type):
    """A class that has every attribute, and whose use for anything but decorating raises."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__module__}.{cls.__name__}", name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], _StandIn):
            return args[0]
        if cls.__name__ in _DECORATORS:
            return lambda function: function
        raise NotImplementedError(f"{cls.__module__}.{cls.__name__} isn't installed here")

    def __iter__(cls) -> Any:
        return iter(())


def _stand_in(module: str, name: str) -> Any:
    return _StandIn(name, (), {"__module__": module})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _stand_in(self.__name__, name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on sys.meta_path: what is installed wins."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - the protocol's
        if fullname.split(".")[0] not in _STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = _Module(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = "0.0.0"
        return module

    def exec_module(self, module: Any) -> None:
        pass


def _install_stand_ins() -> None:
    try:
        available = importlib.import_module("transformers.utils.import_utils")
    except ImportError:
        available = None
    asks = tuple(f"is_{name}" for name in _STAND_INS)
    for name in dir(available):
        if name.startswith(asks) and name.endswith("_available"):
            getattr(available, name)()  # remembers the honest answer before the stand-ins are there
    sys.meta_path.append(_Finder())


# ---- following tensors


def _key(tensor: Any) -> int | None:
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() if storage.nbytes() else None
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def _flatten(value: Any, torch: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _flatten(item, torch)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _flatten(item, torch)]
    return []


def follow(torch: Any) -> Any:
    """A dispatch mode that knows which tensors of the file a storage holds data of."""
    mode = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Follow(mode):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.names: dict[int, frozenset[str]] = {}
            self.held: list[Any] = []

        def source(self, name: str, tensor: Any) -> None:
            key = _key(tensor)
            if key is not None:
                self.names[key] = frozenset({name})
                self.held = [tensor]  # its address must not be used again before the next one comes

        def of(self, tensor: Any) -> frozenset[str]:
            key = _key(tensor)
            return self.names.get(key, frozenset()) if key is not None else frozenset()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            inputs = _flatten((args, kwargs or {}), torch)
            known = frozenset().union(*(self.of(tensor) for tensor in inputs)) if inputs else frozenset()
            input_keys = {_key(tensor) for tensor in inputs}
            for tensor in _flatten(out, torch):
                key = _key(tensor)
                if key is None:
                    continue
                if key in input_keys:
                    self.names[key] = self.names.get(key, frozenset()) | known
                else:
                    self.names[key] = known  # a new storage: whatever lived at this address before is gone
            return out

    return Follow()


def unwritten(torch: Any) -> Any:
    """A mode for building a model: memory that nothing is written to holds poison instead of what was there."""
    mode = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Unwritten(mode):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func.__name__.split(".")[0] in ("empty", "empty_like", "new_empty", "empty_strided"):
                poison(torch, out)
            return out

    return Unwritten()


def poison(torch: Any, tensor: Any) -> None:
    """Fill with NaN, or with a number that no checkpoint holds."""
    with torch.no_grad():
        if tensor.is_complex() or tensor.dtype is torch.bool or tensor.device.type == "meta":
            return
        if tensor.is_floating_point():
            if tensor.element_size() == 1:
                tensor.data.view(torch.uint8).fill_(0x7F)
            else:
                tensor.data.fill_(float("nan"))
        elif tensor.dtype is torch.uint8:
            tensor.data.fill_(211)
        else:
            tensor.data.fill_(_INTEGER_POISON[tensor.element_size() * 8])


def poisoned(torch: Any, tensor: Any) -> int:
    """How many elements are still poison."""
    data = tensor.data
    if not data.numel() or data.dtype is torch.bool or data.is_complex():
        return 0
    if data.is_floating_point():
        return int(torch.isnan(data.float() if data.element_size() == 1 else data).sum())
    value = 211 if data.dtype is torch.uint8 else _INTEGER_POISON[data.element_size() * 8]
    return int((data == value).sum())


def constant(torch: Any, tensor: Any) -> bool:
    """Whether a freshly built parameter has one defined value: a norm's ones, a bias's zeros."""
    data = tensor.data
    if not data.numel() or poisoned(torch, tensor):
        return False
    flat = (data.float() if data.is_floating_point() else data).flatten()
    return bool((flat == flat[0]).all())


# ---- engines


def _distributed_file(request: dict[str, Any]) -> str:
    return "file://" + os.path.join(request["scratch"], "rendezvous")


def sglang(request: dict[str, Any], torch: Any, answer: dict[str, Any]) -> Any:
    """Build the draft as SGLang's draft worker does; (model, iterator of its tensors, names from the target)."""
    server_args = importlib.import_module("sglang.srt.server_args")
    state = importlib.import_module("sglang.srt.distributed.parallel_state")
    configs = importlib.import_module("sglang.srt.configs.model_config")
    load_config = importlib.import_module("sglang.srt.configs.load_config")
    loaders = importlib.import_module("sglang.srt.model_loader.loader")
    utils = importlib.import_module("sglang.srt.model_loader.utils")
    answer["stage"] = "config"
    args = server_args.ServerArgs(
        model_path=request["draft"],
        device="cpu",
        tp_size=1,
        attention_backend="torch_native",
        trust_remote_code=False,
    )
    try:
        context = importlib.import_module("sglang.srt.runtime_context")
        context.publish(args, role="test", ranks=context.SpawnRanks(world_rank=0, dp_rank=None))
    except (ImportError, AttributeError):  # releases without a runtime context keep the arguments in a global
        setter = getattr(server_args, "set_global_server_args_for_scheduler", None)
        if setter is not None:
            setter(args)
    state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=_distributed_file(request)
    )
    state.initialize_model_parallel(backend="gloo")

    algorithm = request["algorithm"]
    try:
        config = configs.ModelConfig(
            model_path=request["draft"],
            is_draft_model=True,
            speculative_algorithm=algorithm,
            dtype=request["dtype"],
        )
    except TypeError:  # before 0.5.1x there was no such argument
        config = configs.ModelConfig(model_path=request["draft"], is_draft_model=True, dtype=request["dtype"])
    load = load_config.LoadConfig()
    loader = loaders.DefaultModelLoader(load)
    answer["stage"] = "class"
    quantization = (
        loaders._get_quantization_config(config, load)
        if hasattr(loaders, "_get_quantization_config")
        else None
    )
    with unwritten(torch), utils.set_default_torch_dtype(config.dtype), torch.device("cpu"):
        try:
            model = loaders._initialize_model(config, load, quantization)
        except TypeError:
            model = loaders._initialize_model(config, load)
    for name in ("linear", "parameter"):  # a CPU build pads what is too small; a GPU server raises
        layers: Any = importlib.import_module(f"sglang.srt.layers.{name}")
        if hasattr(layers, "_is_cpu"):
            layers._is_cpu = False
    shared = []
    if algorithm in ("EAGLE", "NEXTN"):
        shared = ["embed_tokens.weight", "lm_head.weight"]
    elif algorithm == "EAGLE3":
        shared = ["embed_tokens.weight"]
    get = loader._get_all_weights

    def shared_now() -> list[str]:
        more = ["lm_head.weight"] if getattr(model, "load_lm_head_from_target", False) else []
        own = getattr(config.hf_config, "target_hidden_size", None)
        if algorithm == "EAGLE3" and own and own != config.hf_config.hidden_size:
            return more
        return shared + more

    return model, get(config, model), shared_now


def vllm(request: dict[str, Any], torch: Any, answer: dict[str, Any]) -> Any:
    """Build the draft as vLLM does from its speculative config."""
    engine = importlib.import_module("vllm.engine.arg_utils")
    configs = importlib.import_module("vllm.config")
    state = importlib.import_module("vllm.distributed.parallel_state")
    loading = importlib.import_module("vllm.model_executor.model_loader")
    utils = importlib.import_module("vllm.model_executor.model_loader.utils")
    dtypes = importlib.import_module("vllm.utils.torch_utils")
    answer["stage"] = "config"
    speculative = {"model": request["draft"], "method": request["algorithm"], "num_speculative_tokens": 3}
    speculative |= request.get("speculative") or {}
    config = engine.EngineArgs(
        model=request["target"],
        skip_tokenizer_init=True,
        speculative_config=speculative,
        enforce_eager=True,
        max_model_len=128,
        dtype=request["dtype"] if request["dtype"] != "auto" else "bfloat16",
    ).create_engine_config()
    draft = config.speculative_config.draft_model_config
    answer["stage"] = "class"
    with configs.set_current_vllm_config(config):
        state.init_distributed_environment(1, 0, _distributed_file(request), 0, "gloo")
        state.ensure_model_parallel_initialized(1, 1)
        with unwritten(torch), dtypes.set_default_torch_dtype(draft.dtype), torch.device("cpu"):
            model = utils.initialize_model(vllm_config=config, model_config=draft)
        loader = loading.get_model_loader(config.load_config)
        weights = loader.get_all_weights(draft, model)

    def shared_now() -> list[str]:
        out = []
        for attribute, name in (
            ("has_own_embed_tokens", "embed_tokens.weight"),
            ("has_own_lm_head", "lm_head.weight"),
        ):
            if hasattr(model, attribute) and not getattr(model, attribute):
                out.append(name)
        return out

    def load(weights: Any) -> None:
        with configs.set_current_vllm_config(config):
            model.load_weights(weights)

    answer["load"] = load
    return model, weights, shared_now


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """The answer: parameters with what filled them, unused tensors, and the engine's refusal if there is one."""
    answer: dict[str, Any] = {"stage": "import", "error": None, "parameters": {}, "tensors": [], "used": []}
    try:
        _install_stand_ins()
        torch = importlib.import_module("torch")
        build = sglang if request["engine"] == "sglang" else vllm
        model, weights, shared_now = build(request, torch, answer)
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the answer
        answer.pop("load", None)
        return answer | {"error": f"{type(error).__name__}: {error}"}
    answer["architecture"] = type(model).__name__
    load = answer.pop("load", model.load_weights)
    parameters = dict(model.named_parameters(remove_duplicate=True))
    defaults = {name for name, parameter in parameters.items() if constant(torch, parameter)}
    for parameter in parameters.values():
        poison(torch, parameter)
    mode = follow(torch)
    seen: list[str] = []

    def passed() -> Any:
        for name, tensor in weights:
            mode.source(name, tensor)
            seen.append(name)
            yield name, tensor

    answer["stage"] = "load"
    try:
        with mode:
            load(passed())
        answer["stage"] = None
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the answer
        answer["error"] = f"{type(error).__name__}: {error}"
    used: set[str] = set()
    shared = shared_now()
    for name, parameter in model.named_parameters(remove_duplicate=True):
        sources = mode.of(parameter)
        used |= sources
        answer["parameters"][name] = {
            "shape": list(parameter.shape),
            "elements": parameter.numel(),
            "poisoned": poisoned(torch, parameter),
            "from": sorted(sources),
            "target": any(name.endswith(suffix) for suffix in shared),
            "default": name in defaults,
        }
    for module in model.modules():  # tables that are kept beside the parameters (d2t, split projections)
        for value in (*vars(module).values(), *module._buffers.values()):
            if isinstance(value, torch.Tensor):
                used |= mode.of(value)
    return answer | {"tensors": seen, "used": sorted(used)}


def main() -> None:
    """Read the request, write the answer; leave without the engine's own clean-up."""
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    answer = probe(request)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os._exit(0)


if __name__ == "__main__":
    main()
