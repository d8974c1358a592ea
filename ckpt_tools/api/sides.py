"""A draft as the reference heads take it: its tensors, what it borrows of the target, one framework's semantics."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckpt_tools import targets
from ckpt_tools.api.subjects import Opened, open_draft, target_checkpoint
from ckpt_tools.checks.base import finding
from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.formats import formats
from ckpt_tools.forward import devices
from ckpt_tools.forward.borrow import Reader, borrow, stand_in
from ckpt_tools.forward.equivalence import Side
from ckpt_tools.forward.fit import check_captured, check_fit
from ckpt_tools.forward.heads import build
from ckpt_tools.forward.loading import load_tensors, shapes_of
from ckpt_tools.forward.parts import NOTHING
from ckpt_tools.forward.semantics import ALL_TYPES, find
from ckpt_tools.forward.spec import resolve

if TYPE_CHECKING:
    from ckpt_tools.forward.parts import TargetParts
    from ckpt_tools.forward.semantics import Semantics
    from ckpt_tools.forward.spec import HeadSpec
    from ckpt_tools.model import Draft, Finding, LoadMap, Target

# Formats whose own framework has reference semantics; the others' drafts are trained as SGLang runs them.
FRAMEWORKS = {"speculators": "speculators", "vllm": "vllm"}


@dataclass(frozen=True)
class Lender:
    """The files of a target, opened, with the facts that they state."""

    target: Target
    reader: Reader


def framework_of(draft: Draft) -> str:
    """The framework whose semantics a draft was trained under."""
    return next((name for start, name in FRAMEWORKS.items() if draft.format.startswith(start)), "sglang")


def semantics_as_trained(draft: Draft) -> Semantics:
    """What the framework that wrote a draft computes with it.

    A format that no engine serves under its own name is of a training framework: that one reads every tensor that it wrote,
    the upper layers' norm under whatever name it has, biases, and its own embedding.
    """
    semantics = find(framework_of(draft))
    form = formats().get(draft.format)
    if form is None or form.engine is not None:
        return semantics
    norm = draft.tensors.get("layers.1.input_layernorm.weight", "")
    return replace(
        semantics,
        upper_norm="hidden_norm" if norm.endswith("hidden_norm.weight") else "input_layernorm",
        qkv_bias=ALL_TYPES,
        o_bias=ALL_TYPES,
        mlp_bias=ALL_TYPES,
        embedding="own",
    )


def open_target(target: Target, *, offline: bool = False) -> Lender:
    """The target's files: its folder, or its repository on the Hub.

    Raises:
        Unavailable: They are on the Hub, and it can't be asked.
        InputError: There are none, or no weights among them.
    """
    opened = target_checkpoint(target)
    where = target.id
    if opened is None and target.origin != "local":
        where = target.hf_repo or target.id
        if target.origin == "registry" and target.hf_repo is None:
            raise InputError(
                f"{target.id}: the registry knows no repository of it", "give the target's folder as --target"
            )
        if offline:
            raise Unavailable(
                f"{where}: its embedding rows are needed and --offline keeps ckpt from asking the Hub",
                "give the target's folder as --target",
            )
        opened = open_draft(f"hf://{where}")
    if opened is None or not opened.checkpoint.tensors:
        raise InputError(
            f"{where}: no weights there, and the head needs rows of the target's matrices",
            "give a folder with the target's weights",
        )
    return _lender(opened, where, target)


def _lender(opened: Opened, where: str, target: Target) -> Lender:
    """Names of the matrices are taken from the files themselves, other facts from what was asked for."""
    found = targets.from_config(
        opened.checkpoint.config or {},
        where,
        tensors=opened.checkpoint.tensors,
        origin="local" if target.origin == "local" else "hub",
    )
    return Lender(found, Reader(opened.checkpoint, opened.source))


def needs_target(spec: HeadSpec) -> bool:
    """Whether a head borrows anything."""
    return "target" in (spec.embedding, spec.head)


def as_read_by(draft: Draft, opened: Opened, semantics: Semantics) -> Draft:
    """The draft with the upper layers' norms under the name that a framework looks for, where the files hold both."""
    names = dict(draft.tensors)
    for canonical, name in draft.tensors.items():
        if re.fullmatch(r"layers\.[1-9]\d*\.input_layernorm\.weight", canonical):
            other = re.sub(r"[^.]+(?=\.weight$)", semantics.upper_norm, name)
            if other in opened.checkpoint.tensors:
                names[canonical] = other
    return replace(draft, tensors=names)


def spec_of(opened: Opened, draft: Draft, semantics: Semantics, *, without: tuple[str, ...] = ()) -> HeadSpec:
    """The head that ``semantics`` makes of a draft, as if tensors ``without`` weren't there.

    Raises:
        InputError: A tensor or a size is missing, or doesn't fit the others.
    """
    shapes = {n: s for n, s in shapes_of(draft, opened.checkpoint).items() if n not in without}
    spec = resolve(draft, shapes, semantics)
    check_fit(spec, shapes)
    check_captured(spec, draft.facts.capture_layers)
    return spec


def side_of(
    opened: Opened,
    draft: Draft,
    spec: HeadSpec,
    parts: TargetParts,
    *,
    capture_layers: tuple[int, ...] | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    without: tuple[str, ...] = (),
) -> Side:
    """The draft's tensors under a decided spec.

    Args:
        opened, draft: The draft.
        spec: As :func:`spec_of` gave it.
        parts: What it borrows.
        capture_layers: Used when the files don't say.
        device: Where the tensors are read to.
        dtype: Name of the dtype that floating-point tensors are cast to.
        without: Tensors to leave out.

    Raises:
        InputError: A tensor or a size that the head needs is missing, or a tensor's dtype is none to compute with.
    """
    skip = (*without, *(("embed_tokens.weight",) if spec.embedding == "target" else ()))
    tensors = load_tensors(
        draft,
        opened.checkpoint,
        Reader(opened.checkpoint, opened.source),
        skip=skip,
        device=device,
        dtype=devices.dtype(dtype) if dtype is not None else None,
    )
    layers = None
    if draft.algorithm not in ("eagle", "mtp"):
        layers = draft.facts.capture_layers or capture_layers or tuple(range(spec.num_aux))
    build(spec, tensors, parts)  # what is missing is told here, once
    return Side(spec, tensors, parts, layers)


@dataclass(frozen=True)
class Ready:
    """A head that can be run, and whom it borrows from.

    Attributes:
        side: Spec, tensors, borrowed parts.
        lender: The target's files; ``None`` for a head that borrows nothing.
    """

    side: Side
    lender: Lender | None

    @property
    def parameters(self) -> int:
        """Elements of the tensors that a step multiplies; looking up rows isn't work."""
        return sum(t.numel() for n, t in self.side.tensors.items() if n != "embed_tokens.weight")


def ready(
    opened: Opened,
    draft: Draft,
    target: Target,
    semantics: Semantics,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    offline: bool = False,
) -> Ready | Finding:
    """The draft's head with what it borrows of ``target``, or why it can't be run (VAL020).

    Raises:
        Unavailable: The target's files are on the Hub, and it can't be asked; or no reference head computes such a draft.
        InputError: The target lacks what the head needs of it.
    """
    draft = as_read_by(draft, opened, semantics)
    try:
        spec = spec_of(opened, draft, semantics)
    except InputError as error:
        return finding("VAL020", error.message, hint=error.hint)
    lender = open_target(target, offline=offline) if needs_target(spec) else None
    parts = borrow(spec, lender.target, lender.reader, device=device) if lender is not None else NOTHING
    try:
        return Ready(side_of(opened, draft, spec, parts, device=device, dtype=dtype), lender)
    except InputError as error:
        return finding("VAL020", error.message, hint=error.hint)


def unfilled(draft: Draft, spec: HeadSpec, load: LoadMap | None) -> tuple[str, ...]:
    """Canonical matrices that the head reads and the engine leaves as uninitialised memory.

    Norms and biases that a loader misses keep their defined defaults; the semantics know about those.
    """
    if load is None or load.refused is not None or not load.parameters:
        return ()
    lost = set(load.unused)
    return tuple(
        sorted(
            canonical
            for canonical, name in draft.tensors.items()
            if name in lost
            and canonical not in spec.unused
            and canonical.endswith(".weight")
            and "norm" not in canonical.rsplit(".", 2)[-2]
            and not (canonical == "embed_tokens.weight" and spec.embedding == "target")
            and not (canonical == "lm_head.weight" and spec.head != "own")
        )
    )


__all__ = [
    "Lender",
    "Ready",
    "borrow",
    "framework_of",
    "needs_target",
    "open_target",
    "ready",
    "side_of",
    "spec_of",
    "stand_in",
    "unfilled",
]
