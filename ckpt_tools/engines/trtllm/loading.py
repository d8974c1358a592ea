"""TensorRT-LLM's weight loading over names and shapes: which tensor reaches which parameter, and what raises.

Each module asks for the names below its own and copies what it needs (modeling_utils.py ``_load_weights_impl_v2``); nothing asks
whether every tensor was used. A module that finds no name at all is left as it was built, without a word (1.0.0rc4 still failed
there); one that finds some and lacks its ``weight``, or the ``bias`` that it has, fails a bare assert. A fused layer always asks
for its parts. Modules load side by side and the error is raised at the end, so what the others copied is there all the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.model import Fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckpt_tools.engines.trtllm.model import Module, Shape
    from ckpt_tools.model import TensorInfo

Weights = dict[str, "TensorInfo"]


def files_read(names: Sequence[str]) -> tuple[str, ...]:
    """The weight files that are read (hf/weight_loader.py ``HfWeightLoader.load_weights``).

    safetensors win over ``.bin``, ``.bin`` over ``.pth``; a consolidated copy is read only where there is nothing else.

    Raises:
        Refused: None of these.
    """
    found = [n for n in names if n.endswith(".safetensors")]
    plain = [n for n in found if "consolidated" not in n]
    for chosen in (
        plain or found,
        [n for n in names if n.endswith(".bin")],
        [n for n in names if n.endswith(".pth")],
    ):
        if chosen:
            return tuple(chosen)
    raise Refused("RuntimeError", "No weight files found", "load")


def renamed(name: str, layers: int) -> str:
    """A name of the file as the modules look for it (modeling_speculative.py ``Eagle3ForCausalLM.load_weights``)."""
    pattern, midlayer = (
        (r"^layers\.0\.", "midlayer.") if layers == 1 else (r"^layers\.(\d+)\.", r"midlayer.\1.")
    )
    name = re.sub(pattern, midlayer, name)
    return name if "lm_head" in name else f"model.{name}"


def offered(tensors: Iterable[TensorInfo], layers: int) -> Weights:
    """What the modules choose from; of two names that become one, the later wins."""
    return {renamed(tensor.name, layers): tensor for tensor in tensors}


def brings_head(weights: Weights) -> bool:
    """Whether the engine counts on a head in the file, else it takes the target's (same function)."""
    return any("lm_head" in name for name in weights)


def load(modules: Iterable[Module], weights: Weights) -> tuple[dict[str, Fill], Refused | None]:
    """Load every module: (parameter -> how it is filled, the first refusal)."""
    fills: dict[str, Fill] = {}
    refusal: Refused | None = None
    for module in modules:
        try:
            filled = _load_fused(module, weights) if module.parts else _load_plain(module, weights)
        except Refused as refused:
            refusal, filled = refusal or refused, {}
        for parameter in module.parameters:
            sources = filled.get(parameter)
            fills[f"{module.name}.{parameter}"] = (
                Fill((), module.unfilled) if sources is None else Fill(sources, "checkpoint")
            )
    return fills, refusal


def _below(prefix: str, weights: Weights) -> Weights:
    """base_weight_mapper.py ``filter_weights``: a bare ``startswith``, then one character more is cut."""
    return {name[len(prefix) + 1 :]: t for name, t in weights.items() if name.startswith(prefix)}


def _load_plain(module: Module, weights: Weights) -> dict[str, tuple[str, ...]]:
    """A layer of its own: linear.py ``load_weights_vanilla_helper``, base_weight_mapper.py ``handle_manual_copy``."""
    own = _below(module.name, weights)
    if not own:
        return {}
    for parameter in module.parameters:
        if parameter not in own:
            raise _missing(module, parameter, (f"{module.name}.{parameter}",))
    for parameter, shape in module.parameters.items():
        _copy(module, shape, own[parameter].shape)
    return {parameter: (own[parameter].name,) for parameter in module.parameters}


def _load_fused(module: Module, weights: Weights) -> dict[str, tuple[str, ...]]:
    """q/k/v or gate/up: linear.py ``load_weights_fused_qkv_helper``; the parts are joined, then copied as one."""
    beside = module.name.rpartition(".")[0]
    parts = {part: _below(f"{beside}.{part}", weights) for part in module.parts}
    for parameter in module.parameters:
        lost = tuple(f"{beside}.{part}.{parameter}" for part in module.parts if parameter not in parts[part])
        if lost:
            raise _missing(module, parameter, lost)
    out = {}
    for parameter, shape in module.parameters.items():
        tensors = [parts[part][parameter] for part in module.parts]
        _copy(module, shape, _joined(module, [t.shape for t in tensors]))
        out[parameter] = tuple(sorted(t.name for t in tensors))
    return out


def _missing(module: Module, parameter: str, names: tuple[str, ...]) -> Refused:
    listed = ", ".join(names)
    return _refusal(module, "AssertionError", f"a bare assert, for {parameter} isn't there: {listed}")


def _refusal(module: Module, error: str, message: str) -> Refused:
    """The engine logs the module with the error (modeling_utils.py ``run_concurrently``)."""
    return Refused(error, f"load_single_module({module.name!r}): {message}", "load")


def _joined(module: Module, shapes: Sequence[Shape]) -> Shape:
    """``torch.cat``: all but the first dimension must agree."""
    first = _whole(module, shapes[0])
    for i, shape in enumerate(shapes):
        if len(_whole(module, shape)) != len(first):
            raise _refusal(
                module,
                "RuntimeError",
                f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)}",
            )
        for expected, got in zip(first[1:], shape[1:], strict=True):
            if expected != got:
                raise _refusal(
                    module,
                    "RuntimeError",
                    f"Sizes of tensors must match except in dimension 0. Expected size {expected} but got size {got} "
                    f"for tensor number {i} in the list.",
                )
    return (sum(shape[0] for shape in shapes), *first[1:])


def _copy(module: Module, parameter: Shape, tensor: Shape) -> None:
    """``Tensor.copy_`` of ``tensor[:]``: it broadcasts, and refuses what doesn't."""
    _whole(module, tensor)
    for i in range(1, min(len(parameter), len(tensor)) + 1):
        if tensor[-i] not in (1, parameter[-i]) and parameter[-i] != 1:
            raise _refusal(
                module,
                "RuntimeError",
                f"The size of tensor a ({parameter[-i]}) must match the size of tensor b ({tensor[-i]}) at non-singleton "
                f"dimension {max(len(parameter), len(tensor)) - i}",
            )
    wide = tuple(
        max(a, b) for a, b in zip(_padded(parameter, tensor), _padded(tensor, parameter), strict=True)
    )
    if wide != parameter:
        raise _refusal(
            module,
            "RuntimeError",
            f"output with shape {list(parameter)} doesn't match the broadcast shape {list(wide)}",
        )


def _padded(shape: Shape, other: Shape) -> Shape:
    return (*(1,) * (len(other) - len(shape)), *shape)


def _whole(module: Module, shape: Shape) -> Shape:
    if not shape:
        raise _refusal(module, "IndexError", "slice() cannot be applied to a 0-dim tensor.")
    return shape


def used(fills: Mapping[str, Fill]) -> frozenset[str]:
    """Names of the tensors that reached a parameter."""
    return frozenset(source for fill in fills.values() for source in fill.sources)
