"""Recorded target states: what a target computed on texts, to run a draft head on.

Three layouts are read:

`ckpt-tools/states.v1` (one safetensors file)
    ``hidden_states`` [texts, T, A + 1, H] (captured layers ascending, then the last layer's output before the
    final norm), ``token_ids`` int64 [texts, T], optional ``lengths`` and ``prompt_lengths`` int64 [texts];
    metadata ``layout``, and ``capture_layers``, a JSON list of 0-based target layers whose outputs these are.
speculators (a file per text, or a folder of them)
    ``hidden_states`` [T, A + 1, H], ``token_ids`` [T]; optional ``loss_mask`` [T].
SpecForge (a `.ckpt` per text, or a folder tree of them)
    ``input_ids`` [T], ``loss_mask`` [T], ``aux_hidden_state`` [1, T, A · H], ``hidden_state`` [1, T, H], the last after the
    final norm.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.forward.spec import HeadSpec

LAYOUT = "ckpt-tools/states.v1"


@dataclass(frozen=True)
class Text:
    """One text and what the target computed on it.

    Attributes:
        tokens: int64 [T].
        aux: [T, A · H], captured states, low layers first.
        last: [T, H], the last layer's output, or `None`.
        last_normed: Whether `last` is after the final norm.
        start: First token that is a response; drafting is judged from there on.
    """

    tokens: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor | None
    last_normed: bool
    start: int

    def features(self, spec: HeadSpec) -> torch.Tensor:
        """The states [T, width] that a head with `spec` takes.

        Raises:
            InputError: The file doesn't hold them.
        """
        if spec.algorithm not in ("eagle", "mtp"):
            return self.aux
        wants_normed = spec.algorithm == "eagle"
        if self.last is None or self.last_normed != wants_normed:
            found = "none" if self.last is None else "after it" if self.last_normed else "before it"
            raise InputError(
                f"a head of algorithm {spec.algorithm} takes the target's last state "
                f"{'after' if wants_normed else 'before'} the final norm; the file holds {found}",
                hint="record the states again, with that state in them",
            )
        return self.last


@dataclass(frozen=True)
class States:
    """Texts of one recording.

    Attributes:
        layout: `ckpt-tools`, `speculators` or `specforge`.
        capture_layers: 0-based target layers whose outputs `aux` holds; `None` when the files don't say.
    """

    layout: str
    texts: tuple[Text, ...]
    capture_layers: tuple[int, ...] | None

    def rms(self, parts: int) -> tuple[float, ...]:
        """Root mean square of each of `parts` captured layers over all texts."""
        pooled = torch.cat([text.aux.float() for text in self.texts])
        return tuple(float(chunk.square().mean().sqrt()) for chunk in pooled.chunk(parts, dim=-1))


def _start(mask: torch.Tensor | None) -> int:
    """Index of the first token that counts."""
    if mask is None:
        return 1
    counted = mask.flatten().nonzero()
    return max(1, int(counted[0])) if counted.numel() else mask.numel()


def _bad(path: Path, why: str) -> InputError:
    return InputError(
        f"{path}: {why}",
        hint=f"layouts that can be read: {LAYOUT}, speculators' hs_*.safetensors, SpecForge's *.ckpt",
    )


def _from_safetensors(path: Path) -> tuple[str, list[Text], tuple[int, ...] | None]:
    try:
        with safe_open(path, "pt") as file:
            meta = file.metadata() or {}
            data = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no iterator
    except SafetensorError as error:
        raise _bad(path, f"is no safetensors file ({error})") from error
    if "hidden_states" not in data or "token_ids" not in data:
        raise _bad(path, f"needs hidden_states and token_ids, found {', '.join(sorted(data)) or 'nothing'}")
    hidden, tokens = data["hidden_states"], data["token_ids"].long()
    if hidden.shape[: tokens.dim()] != tokens.shape or hidden.dim() != tokens.dim() + 2:
        raise _bad(path, f"hidden_states {list(hidden.shape)} doesn't fit token_ids {list(tokens.shape)}")
    if meta.get("layout") != LAYOUT:
        if tokens.dim() != 1:
            raise _bad(path, f"token_ids should be one text, found {list(tokens.shape)}")
        text = Text(tokens, hidden[:, :-1].flatten(1), hidden[:, -1], False, _start(data.get("loss_mask")))
        return "speculators", [text], None
    count, length = tokens.shape
    lengths = data.get("lengths", torch.full((count,), length)).tolist()
    starts = data.get("prompt_lengths", torch.ones(count, dtype=torch.long)).tolist()
    texts = [
        Text(tokens[i, :n], hidden[i, :n, :-1].flatten(1), hidden[i, :n, -1], False, start)
        for i, (n, start) in enumerate(zip(lengths, starts, strict=True))
    ]
    layers = json.loads(meta["capture_layers"]) if "capture_layers" in meta else None
    return "ckpt-tools", texts, tuple(layers) if layers is not None else None


def _from_specforge(path: Path) -> Text:
    try:
        data: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise _bad(path, f"can't be read as weights only ({error})") from error
    if not isinstance(data, dict) or not {"input_ids", "aux_hidden_state"} <= data.keys():
        found = ", ".join(sorted(map(str, data))) if isinstance(data, dict) else type(data).__name__
        raise _bad(path, f"needs input_ids and aux_hidden_state, found {found}")
    tokens = data["input_ids"].flatten().long()
    aux = data["aux_hidden_state"].reshape(tokens.numel(), -1)
    last = data.get("hidden_state")
    return Text(
        tokens,
        aux,
        None if last is None else last.reshape(tokens.numel(), -1),
        True,
        _start(data.get("loss_mask")),
    )


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for suffix in ("*.safetensors", "*.ckpt"):
        yield from sorted(path.rglob(suffix))


def read_states(path: str | Path, limit: int | None = None) -> States:
    """The recorded states in a file or a folder.

    Args:
        path: A file of one of the layouts, or a folder of such files.
        limit: At most so many texts.

    Raises:
        InputError: There is nothing to read, or it has none of the layouts.
    """
    root = Path(path)
    texts: list[Text] = []
    layout, layers = "", None
    for file in _files(root):
        if limit is not None and len(texts) >= limit:
            break
        if file.suffix == ".safetensors":
            layout, found, layers = _from_safetensors(file)
            texts += found
        else:
            layout = "specforge"
            texts.append(_from_specforge(file))
    if not texts:
        raise _bad(root, "holds no recorded states")
    return States(layout, tuple(texts[:limit]), layers)
