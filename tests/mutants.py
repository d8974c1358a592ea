"""Faults that really happen to drafts, made in the trained pair, and which commands find them.

``python -m tests.mutants docs/mutants.md`` writes the table of the documentation anew.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from ckpt_tools.api.accepting import AcceptRequest, accept
from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.api.smoking import SmokeRequest, smoke
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.forward._torch import torch
from ckpt_tools.model import Report, Severity

from .conftest import FIXTURES

PAIR = FIXTURES / "pair"
LAYERS = {"speculators": "layers.0.", "sglang": "midlayer."}
# The engine that a base is for as it is.
ENGINES = {"speculators": "vllm", "sglang": "sglang"}
TARGET, STATES = str(PAIR / "target"), str(PAIR / "states.safetensors")
# Depth at which acceptance is compared, and what of the healthy length a mutant keeps to go unseen.
DEPTH, KEEPS = 3, 0.9
COMMANDS = ("verify", "smoke", "smoke --states", "verify --against", "accept")
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass
class Head:
    """A draft in memory; what a mutant changes.

    Attributes:
        tensors: By name as in the files.
        config: As in config.json.
        layer: Prefix of the one layer's tensors.
    """

    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]
    layer: str

    @property
    def sizes(self) -> dict[str, Any]:
        """The part of the config that holds the layer's sizes."""
        inner: dict[str, Any] = self.config.get("transformer_layer_config", self.config)
        return inner

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[self.name(name)]

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        self.tensors[self.name(name)] = value.contiguous()

    def __delitem__(self, name: str) -> None:
        del self.tensors[self.name(name)]

    def name(self, name: str) -> str:
        """``self_attn.q_proj.weight`` with the layer's prefix, any other name as it is."""
        inner = name.startswith(("self_attn.", "mlp.", "input_layernorm", "hidden_norm", "post_attention"))
        return self.layer + name if inner else name


Edit = Callable[[Head], None]
MUTANTS: dict[str, Edit] = {}


def mutant(name: str) -> Callable[[Edit], Edit]:
    """Register a mutant."""

    def add(edit: Edit) -> Edit:
        MUTANTS[name] = edit
        return edit

    return add


def _seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _scrambled(t: torch.Tensor) -> torch.Tensor:
    return t.flatten()[torch.randperm(t.numel(), generator=_seeded())].view(t.shape)


def _rows(t: torch.Tensor) -> torch.Tensor:
    return t[torch.randperm(len(t), generator=_seeded())]


def _each(head: Head, dims: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name, t in head.tensors.items():
        if t.dim() == dims and t.dtype in FLOATS:
            head.tensors[name] = change(t).to(t.dtype).contiguous()


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def edit(head: Head) -> None:
        head[name] = change(head[name]).to(head[name].dtype)

    return edit


def _gone(name: str) -> Edit:
    return lambda head: head.__delitem__(name)


def _swapped(a: str, b: str) -> Edit:
    def edit(head: Head) -> None:
        head[a], head[b] = head[b], head[a]

    return edit


def _size(**values: Any) -> Edit:
    return lambda head: head.sizes.update(values)


def _flag(**values: Any) -> Edit:
    return lambda head: head.config.update(values)


def _captured(change: Callable[[list[int]], list[int]]) -> Edit:
    def edit(head: Head) -> None:
        key = "eagle_aux_hidden_state_layer_ids"
        for place in (head.config, head.config.get("eagle_config", {})):
            if key in place:
                place[key] = change(place[key])

    return edit


def _poisoned(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(t: torch.Tensor) -> torch.Tensor:
        out = t.clone()
        out.view(-1)[7] = value
        return out

    return change


def _blocks(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Edit:
    def edit(head: Head) -> None:
        head["fc.weight"] = torch.cat(change(list(head["fc.weight"].chunk(3, 1))), 1)

    return edit


def _renamed(change: Callable[[str], str]) -> Edit:
    def edit(head: Head) -> None:
        head.tensors = {change(n): t for n, t in head.tensors.items()}

    return edit


def _interleaved(t: torch.Tensor, dim: int = 32) -> torch.Tensor:
    """Rows of q or k in the order of rotary pairs side by side, as Meta's own files have them."""
    return t.view(-1, 2, dim // 2, t.shape[1]).transpose(1, 2).reshape(t.shape)


@mutant("scrambled layer")
def _(head: Head) -> None:
    for name, t in head.tensors.items():
        if name.startswith(head.layer) and t.dim() == 2:
            head.tensors[name] = _scrambled(t)


@mutant("untrained: fresh matrices and norms of one")
def _(head: Head) -> None:
    generator = _seeded(0)
    _each(head, 2, lambda t: torch.randn(t.shape, generator=generator) * 0.02)
    _each(head, 1, torch.ones_like)


@mutant("half trained: a layer blurred with noise")
def _(head: Head) -> None:
    generator = _seeded(1)
    for name, t in head.tensors.items():
        if name.startswith(head.layer) and t.dim() == 2:
            noise = torch.randn(t.shape, generator=generator) * t.float().std()
            head.tensors[name] = (t.float() + 2 * noise).to(t.dtype)


@mutant("fp16 overflow in the weights")
def _(head: Head) -> None:
    head["mlp.down_proj.weight"] = head["mlp.down_proj.weight"].float() * 1e6
    for name, t in head.tensors.items():
        if t.dtype in FLOATS:
            head.tensors[name] = t.half()
    head.config["dtype"] = head.sizes["dtype"] = "float16"


@mutant("fp16 overflow while computing")
def _(head: Head) -> None:
    head["mlp.down_proj.weight"] = head["mlp.down_proj.weight"].float() * 3e4
    head["mlp.up_proj.weight"] = head["mlp.up_proj.weight"].float() * 30
    for name, t in head.tensors.items():
        if t.dtype in FLOATS:
            head.tensors[name] = t.half()
    head.config["dtype"] = head.sizes["dtype"] = "float16"


@mutant("captured layers of the middle only")
def _(head: Head) -> None:
    head["fc.weight"] = head["fc.weight"][:, :128]


@mutant("draft vocabulary off by one in the tensors")
def _(head: Head) -> None:
    head["lm_head.weight"] = head["lm_head.weight"][:-1]


@mutant("d2t absolute")
def _(head: Head) -> None:
    head["d2t"] = head["d2t"] + torch.arange(len(head["d2t"]))


@mutant("d2t in int32 halves")
def _(head: Head) -> None:
    head["d2t"] = torch.stack((head["d2t"], torch.zeros_like(head["d2t"])), 1).flatten()[: len(head["d2t"])]


@mutant("a norm per captured layer promised, none there")
def _(head: Head) -> None:
    head.config["fc_norm"] = True


@mutant("fused qkv under its own name")
def _(head: Head) -> None:
    parts = [f"self_attn.{p}_proj.weight" for p in "qkv"]
    head["self_attn.qkv_proj.weight"] = torch.cat([head[p][:, :64] for p in parts], 0)
    for part in parts:
        del head[part]


@mutant("an adapter's names")
def _(head: Head) -> None:
    for part in "qv":
        head[f"self_attn.{part}_proj.base_layer.weight"] = head[f"self_attn.{part}_proj.weight"]
        del head[f"self_attn.{part}_proj.weight"]


def _alternating(head: Head) -> None:
    head.sizes["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    head.sizes.pop("rope_parameters", None)


def _base(value: float) -> Edit:
    def edit(head: Head) -> None:
        head.sizes["rope_theta"] = value
        if "rope_parameters" in head.sizes:
            head.sizes["rope_parameters"] = {**head.sizes["rope_parameters"], "rope_theta": value}

    return edit


_Q, _K, _V, _O = (f"self_attn.{p}_proj.weight" for p in "qkvo")
_GATE, _UP, _DOWN = (f"mlp.{p}_proj.weight" for p in ("gate", "up", "down"))
MUTANTS |= {
    "scrambled down_proj": _tensor(_DOWN, _scrambled),
    "scrambled o_proj rows": _tensor(_O, _rows),
    "transposed fc blocks": _blocks(lambda blocks: [b.T for b in blocks]),
    "fc blocks in reverse order": _blocks(lambda blocks: blocks[::-1]),
    "fc blocks rotated": _blocks(lambda blocks: [blocks[2], blocks[0], blocks[1]]),
    "zeroed fc block": _blocks(lambda blocks: [blocks[0], blocks[1] * 0, blocks[2]]),
    "fc block taken twice": _blocks(lambda blocks: [blocks[0], blocks[0], blocks[2]]),
    "fc rows permuted": _tensor("fc.weight", _rows),
    "captured layers shifted up": _captured(lambda ids: [i + 1 for i in ids]),
    "captured layers shifted down": _captured(lambda ids: [i - 1 for i in ids]),
    "captured layers permuted": _captured(lambda ids: [ids[1], ids[0], ids[2]]),
    "a captured layer that the target lacks": _captured(lambda ids: [*ids[:2], 99]),
    "two captured layers": _captured(lambda ids: ids[:2]),
    "d2t shifted by one": _tensor("d2t", lambda t: t + 1),
    "d2t rolled": _tensor("d2t", lambda t: t.roll(1)),
    "d2t of zeros": _tensor("d2t", torch.zeros_like),
    "t2d of another vocabulary": _tensor("t2d", lambda t: t.roll(1)),
    "norm_before_residual flipped": _flag(norm_before_residual=True),
    "norm_before_fc set": _flag(norm_before_fc=True),
    "norm_output set": _flag(norm_output=True),
    "rope base changed": _base(500000.0),
    "rope scaled": _alternating,
    "rope pairs interleaved": lambda head: [_tensor(n, _interleaved)(head) for n in (_Q, _K)] and None,
    "another target's lm_head": _tensor(
        "lm_head.weight", lambda t: torch.randn(t.shape, generator=_seeded(4)) * t.float().std()
    ),
    "lm_head rows permuted": _tensor("lm_head.weight", _rows),
    "lm_head rolled by one": _tensor("lm_head.weight", lambda t: t.roll(1, 0)),
    "lm_head of zeros": _tensor("lm_head.weight", torch.zeros_like),
    "lm_head of one row": _tensor("lm_head.weight", lambda t: t[:1].expand_as(t)),
    "lm_head scaled": _tensor("lm_head.weight", lambda t: t.float() * 1e-3),
    "missing o_proj": _gone(_O),
    "missing fc": _gone("fc.weight"),
    "missing hidden_norm": _gone("hidden_norm.weight"),
    "missing post_attention_layernorm": _gone("post_attention_layernorm.weight"),
    "missing final norm": _gone("norm.weight"),
    "missing lm_head": _gone("lm_head.weight"),
    "missing d2t": _gone("d2t"),
    "zeroed final norm": _tensor("norm.weight", torch.zeros_like),
    "zeroed hidden_norm": _tensor("hidden_norm.weight", torch.zeros_like),
    "norms of one": lambda head: _each(head, 1, torch.ones_like),
    "NaN in down_proj": _tensor(_DOWN, _poisoned(math.nan)),
    "infinity in fc": _tensor("fc.weight", _poisoned(math.inf)),
    "swapped q and k": _swapped(_Q, _K),
    "swapped k and v": _swapped(_K, _V),
    "swapped gate and up": _swapped(_GATE, _UP),
    "swapped hidden_norm and input_layernorm": _swapped("hidden_norm.weight", "input_layernorm.weight"),
    "transposed down_proj": _tensor(_DOWN, lambda t: t.T),
    "halves of q's input swapped": _tensor(_Q, lambda t: t.roll(64, 1)),
    "halves of qkv's input swapped": lambda head: (
        [_tensor(n, lambda t: t.roll(64, 1))(head) for n in (_Q, _K, _V)] and None
    ),
    "zeroed q": _tensor(_Q, torch.zeros_like),
    "zeroed v": _tensor(_V, torch.zeros_like),
    "heads of o in another order": _tensor(_O, lambda t: t.roll(32, 1)),
    "negated o_proj": _tensor(_O, lambda t: -t),
    "scaled down_proj": _tensor(_DOWN, lambda t: t.float() * 16),
    "wrong head_dim": _size(head_dim=16),
    "wrong number of heads": _size(num_attention_heads=8),
    "wrong number of kv heads": _size(num_key_value_heads=4),
    "wrong hidden size": _size(hidden_size=128),
    "wrong intermediate size": _size(intermediate_size=256),
    "wrong vocabulary size": _size(vocab_size=321),
    "draft vocabulary off by one in the config": _flag(draft_vocab_size=161),
    "two layers promised": _size(num_hidden_layers=2),
    "norm epsilon of one": _size(rms_norm_eps=1.0),
    "another activation": _size(hidden_act="gelu"),
    "names of a wrapper class": _renamed(lambda n: f"eagle.draft.{n}"),
    "attention under older names": _renamed(lambda n: n.replace("self_attn.q_proj", "attention.wq")),
}  # fmt: skip
# The served draft looks tokens up in the target's embedding on SGLang: its own copy is of no account there.
OWN_EMBEDDING: dict[str, Edit] = {
    "scrambled embedding": _tensor("embed_tokens.weight", _rows),
    "embedding rolled by one": _tensor("embed_tokens.weight", lambda t: t.roll(1, 0)),
    "embedding of zeros": _tensor("embed_tokens.weight", torch.zeros_like),
}


class Bases:
    """The pair's draft, and its exact conversion, to make mutants of; files go under ``work``."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.folders = {"speculators": PAIR / "draft", "sglang": work / "sglang"}
        made = fix_keys(Request(str(PAIR / "draft"), str(self.folders["sglang"]), target=TARGET))
        assert made.verdict == "pass", made.findings
        self.lengths = {
            base: self.length(self._accept(base, folder)) for base, folder in self.folders.items()
        }

    def head(self, base: str) -> Head:
        """A base in memory."""
        folder = self.folders[base]
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return Head(load_file(folder / "model.safetensors"), config, LAYERS[base])

    def write(self, base: str, edit: Edit) -> Path:
        """A mutant of a base, as a folder; the next one replaces it."""
        head, out = self.head(base), self.work / "mutant"
        edit(head)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / "config.json").write_text(json.dumps(head.config, indent=2), "utf-8")
        tensors = {n: t.clone().contiguous() for n, t in head.tensors.items()}
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        return out

    def _accept(self, base: str, folder: Path) -> Report:
        return accept(AcceptRequest(STATES, str(folder), TARGET, engine=ENGINES[base], depth=DEPTH))

    def length(self, report: Report) -> float | None:
        """Expected length at :data:`DEPTH`, ``None`` when the head can't be run."""
        row = report.facts["expected_length"].get(str(DEPTH))
        return None if row is None else row["mean"]

    def judge(self, base: str, folder: Path) -> dict[str, tuple[str, ...]]:
        """Command -> what it says against a draft: codes of errors and warnings, a refusal, a fallen length."""
        path, engine = str(folder), ENGINES[base]
        source = str(self.folders[base])

        def shorter() -> Report:
            made = self._accept(base, folder)
            length, healthy = self.length(made), self.lengths[base]
            assert healthy is not None
            if length is not None and length < KEEPS * healthy:
                raise CkptError(f"{length:.2f} of {healthy:.2f}")
            return made

        runs: dict[str, Callable[[], Report]] = {
            "verify": lambda: verify(VerifyRequest(path, TARGET, engines=(engine,), deep=True)),
            "smoke": lambda: smoke(SmokeRequest(path, TARGET, engine=engine, device="cpu")),
            "smoke --states": lambda: smoke(
                SmokeRequest(path, TARGET, engine=engine, device="cpu", states=STATES)
            ),
            "verify --against": lambda: verify(
                VerifyRequest(path, TARGET, engines=(engine,), against=source, select=("EQV",))
            ),
            "accept": shorter,
        }
        return {name: _said(run) for name, run in runs.items()}


def _said(run: Callable[[], Report]) -> tuple[str, ...]:
    try:
        report = run()
    except CkptError as error:
        return (error.message,)
    return tuple(sorted({f.code for f in report.findings if f.severity is not Severity.INFO}))


def all_mutants() -> Iterator[tuple[str, str]]:
    """(base, name) of every mutant."""
    for base in LAYERS:
        yield from ((base, name) for name in MUTANTS)
    yield from (("speculators", name) for name in OWN_EMBEDDING)


def edit_of(name: str) -> Edit:
    """The edit of that name."""
    return MUTANTS[name] if name in MUTANTS else OWN_EMBEDDING[name]


TEXT = """# Faults, and who finds them

Every row is a fault made in the trained pair of `fixtures/pair` (`tests/mutants.py`), once in the speculators draft, served by vLLM,
and once in its exact conversion, served by SGLang. A test holds that none escapes all commands and that the healthy pair and its
conversions trip none. The cells are what the command says; accept finds a fault by an expected length that fell by more than
a tenth, or by a head that can't be run.

"""


def _cell(said: str) -> str:
    """A code or a length as it is, a refusal without its paths."""
    return said if re.fullmatch(r"[A-Z]{3}\d{3}|[\d.]+ of [\d.]+", said) else "refused"


def table() -> str:
    """docs/mutants.md."""
    lines = [f"| fault | {' | '.join(COMMANDS)} |", "| --- |" + " --- |" * len(COMMANDS)]
    with tempfile.TemporaryDirectory() as work:
        bases = Bases(Path(work))
        for base, name in sorted(all_mutants(), key=lambda row: row[0] == "speculators"):
            if base == "speculators" and name in MUTANTS:
                continue
            said = bases.judge(base, bases.write(base, edit_of(name)))
            cells = [", ".join(map(_cell, said[c])) for c in COMMANDS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return TEXT + "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table(), "utf-8")
