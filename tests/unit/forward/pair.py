"""The trained pair of fixtures/pair, as a draft, its tensors and its states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from safetensors.torch import load_file

from ckpt_tools.forward.equivalence import Side
from ckpt_tools.forward.semantics import Semantics, speculators
from ckpt_tools.forward.spec import resolve
from ckpt_tools.forward.states import read_states
from ckpt_tools.model import Draft

from .drafts import FIXTURES, facts_of

if TYPE_CHECKING:
    from ckpt_tools.forward._torch import torch

PAIR = FIXTURES / "pair"
STATES = read_states(PAIR / "states.safetensors")
CONFIG = json.loads((PAIR / "draft" / "config.json").read_text())
TENSORS = {k: v for k, v in load_file(PAIR / "draft" / "model.safetensors").items() if k != "t2d"}
ACCEPTANCE = json.loads((PAIR / "acceptance.json").read_text())
VLLM = json.loads((PAIR / "vllm.json").read_text())
VOCAB = 320


def pair_side(tensors: dict[str, torch.Tensor] | None = None, semantics: Semantics = speculators) -> Side:
    """The pair's head, or a mutant of it, in float32."""
    tensors = TENSORS if tensors is None else tensors
    wide = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
    draft = Draft("speculators", "eagle3", (), facts_of(CONFIG), {k: k for k in tensors})
    spec = resolve(draft, {k: tuple(v.shape) for k, v in wide.items()}, semantics)
    return Side(spec, wide, capture_layers=STATES.capture_layers)
