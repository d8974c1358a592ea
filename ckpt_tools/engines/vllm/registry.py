"""Which class vLLM builds for an architecture name.

The names are data from vLLM's own registry (``model_executor/models/registry.py:655-745``); a release before the
newest takes names away (see :data:`ckpt_tools.engines.vllm.contract.CONTRACTS`).
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.hf import DATA
from ckpt_tools.engines.vllm.refusal import refuse_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckpt_tools.engines.vllm.contract import Contract


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads((DATA / "registry.json").read_text(encoding="utf-8"))
    return data


@cache
def drafts() -> Mapping[str, tuple[str, str]]:
    """Draft architectures of the newest release: name -> (module, class)."""
    return {name: (module, cls) for name, (module, cls) in _data()["drafts"].items()}


# module that builds it -> how this package models it
_KINDS: Mapping[str, str] = {
    "llama_eagle3": "llama", "qwen3_eagle3": "qwen3", "deepseek_eagle3": "mla", "llama_eagle": "eagle",
    "qwen3_dflash": "dflash", "qwen3_dflash2": "dflash2", "qwen3_dspark": "dspark",
}  # fmt: skip


def kind_of(architecture: str) -> str | None:
    """How this package models the class of an architecture; ``None`` when it doesn't."""
    return _KINDS.get(drafts().get(architecture, ("", ""))[0])


def class_of(architecture: str) -> str:
    """The Python class that vLLM builds."""
    return drafts().get(architecture, ("", architecture))[1]


def model_class_of(model_type: str) -> str | None:
    """transformers' bare model class of a ``model_type`` (what an absent ``architectures`` becomes)."""
    name: str | None = _data()["model_classes"].get(model_type)
    return name


def resolve(architectures: Sequence[str], contract: Contract) -> str:
    """The first name that vLLM can build.

    Returns:
        The draft architecture, or any other name that is no draft (a target class, a transformers class).

    Raises:
        Refused: None of them is known.
    """
    if not architectures:
        raise refuse_config("ValueError", "No model architectures are specified")
    known = (
        set(_data()["targets"])
        | set(drafts()) - contract.missing_architectures
        | contract.extra_architectures
    )
    if (
        not any(name in known for name in architectures)
        and architectures[0] in _data()["through_transformers"]
    ):
        return architectures[0]
    for name in architectures:
        if name in known:
            return name
    names = "[" + ", ".join(repr(n) for n in architectures) + "]"
    raise refuse_config("ValueError", f"Model architectures {names} are not supported for now.")
