"""LAY: number of layers, layer types, windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.parallel import FAMILY
from ckpt_tools.engines.history import family, first_release, holds
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


def layer_numbers(ctx: Context) -> tuple[int, ...]:
    """Numbers of the decoder layers that have tensors, ascending."""
    names = ctx.draft.tensors if ctx.draft is not None else ()
    return tuple(sorted({int(p[1]) for n in names if (p := n.split("."))[0] == "layers" and p[1].isdigit()}))


def layers_in_file(ctx: Context) -> int | None:
    """Decoder layers that the tensors make up, counted to the highest number; ``None`` without tensors."""
    found = layer_numbers(ctx)
    return found[-1] + 1 if found else None


def layer_of(parameter: str) -> int | None:
    """The layer that an engine's parameter belongs to."""
    return next((int(p) for p in parameter.split(".") if p.isdigit()), None)


def beyond_file(ctx: Context, parameter: str) -> bool:
    """Whether a parameter belongs to a layer that the config promises and the file doesn't hold: LAY002 says it."""
    there = layers_in_file(ctx)
    if there is None or ctx.draft is None or ctx.draft.algorithm == "mtp":
        return False
    return (layer_of(parameter) or 0) >= there


def _at(ctx: Context) -> str:
    nested = ctx.draft is not None and ctx.draft.format == "speculators"
    return "/transformer_layer_config/num_hidden_layers" if nested else "/num_hidden_layers"


@check("LAY002", "layer-count-too-high", Severity.ERROR, needs=("draft",), after=("FIL", "KEY003", "LAY010"))
def too_many(ctx: Context) -> Iterator[Hit]:
    """The config promises more draft layers than the file holds.

    Checks: num_hidden_layers is the number of decoder layers among the tensors.
    Why: the extra layers are built and stay uninitialised. The number is often copied from the target.
    Example: num_hidden_layers is 36 and the file holds 1 decoder layer: 35 layers stay uninitialised
    Fix: Write the number of layers in the file.
    References: sglang 0.5.23 (run: 49 parameters without data); up to 0.5.11: ValueError `EAGLE3 currently only supports 1 layer`.
    """
    assert ctx.draft is not None
    stated, there = ctx.draft.facts.num_layers, layers_in_file(ctx)
    if stated is None or there is None or stated <= there or ctx.draft.algorithm == "mtp":
        return
    yield Hit(
        f"num_hidden_layers is {stated} and the file holds {there} decoder layer{'s' if there > 1 else ''}: "
        f"{stated - there} layers would stay uninitialised",
        pointer=_at(ctx),
        hint=f'write "num_hidden_layers": {there}',
    )


@check("LAY010", "layers-misnumbered", Severity.ERROR, needs=("draft",), after=("FIL", "KEY003"))
def misnumbered(ctx: Context) -> Iterator[Hit]:
    """The decoder layers aren't numbered from zero on.

    Checks: the decoder layers among the tensors have the numbers 0, 1, 2 … without a gap.
    Why: engines count from zero. SGLang drops the others without a word and leaves the missing ones uninitialised, vLLM raises.
    Example: the file's only decoder layer is layers.1.*: engines look for layers.0.*
    Fix: Rename them (or midlayer.* for a single one), or take the missing layers from the training checkpoint.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:325-378 (run: the whole layer stays uninitialised); vllm 0.33.0 (run: There is
        no module or parameter named 'layers.1').
    """
    assert ctx.draft is not None
    found = layer_numbers(ctx)
    lost = sorted(set(range(len(found))) - set(found))
    if not lost or ctx.draft.algorithm == "mtp":
        return
    first = next(native for n, native in ctx.draft.tensors.items() if n.startswith(f"layers.{found[-1]}."))
    numbers = ", ".join(map(str, found))
    yield Hit(
        f"the file's decoder layers are numbered {numbers}: engines look for layers.{lost[0]}.*, and there is none",
        tensor=first,
        hint="number the layers from 0 on, or take the missing ones from the training checkpoint",
    )


@check("LAY003", "layer-count-too-low", Severity.ERROR, needs=("draft",), after=("FIL", "LAY010"))
def too_few(ctx: Context) -> Iterator[Hit]:
    """The file holds more decoder layers than the config says.

    Checks: every layer among the tensors is counted by num_hidden_layers.
    Why: SGLang drops the extra layers without a word, vLLM raises. The head was trained with them.
    Example: the file holds 2 decoder layers and num_hidden_layers is 1: layers.1.* would be lost
    Fix: Write the number of layers in the file.
    References: sglang 0.5.23 (run: dropped silently); vllm 0.33.0 (run: There is no module or parameter named 'layers.1').
    """
    assert ctx.draft is not None
    stated, there = ctx.draft.facts.num_layers, layers_in_file(ctx)
    if stated is None or there is None or stated >= there or ctx.draft.algorithm == "mtp":
        return
    lost = next(
        (native for n, native in ctx.draft.tensors.items() if n.startswith(f"layers.{stated}.")), None
    )
    yield Hit(
        f"the file holds {there} decoder layers and num_hidden_layers is {stated}: layers.{stated}.* would be lost",
        pointer=_at(ctx),
        tensor=lost,
        hint=f'write "num_hidden_layers": {there}',
    )


@check(
    "LAY005", "layer-count-unsupported", Severity.ERROR, needs=("draft", "engine"), after=("LAY002", "LAY003")
)
def unsupported(ctx: Context) -> Iterator[Hit]:
    """More draft layers than this release or class builds.

    Checks: one layer for MLA drafts and for SGLang before 0.5.12.
    Why: the engine raises `EAGLE3 currently only supports 1 layer`.
    Example: 2 draft layers: SGLang serves them from 0.5.12 on, and this is 0.5.9
    Fix: Serve with a newer release.
    References: sglang 0.5.9 srt/models/llama_eagle3.py:199, 0.5.23 srt/models/kimi_k25_eagle3.py:243 (run).
    """
    assert ctx.draft is not None and ctx.engine is not None
    stated = ctx.draft.facts.num_layers
    if stated is None or stated < 2 or ctx.draft.algorithm != "eagle3" or family(ctx.engine.name) != "sglang":
        return
    if ctx.draft.facts.layer_type == "mla":
        yield Hit(f"{stated} draft layers: SGLang's MLA class builds one and raises", pointer=_at(ctx))
    elif holds("eagle3.multilayer", ctx.engine) is False and not ctx.own_class:
        first = first_release("eagle3.multilayer")
        yield Hit(
            f"{stated} draft layers: SGLang serves them from {first} on, and this is {ctx.engine.version}",
            pointer=_at(ctx),
            hint=f"serve with sglang >= {first}",
        )


@check("LAY006", "sliding-window-ignored", Severity.WARNING, needs=("draft", "engine"), engines=("sglang",))
def window_ignored(ctx: Context) -> Iterator[Hit]:
    """The draft was trained with a sliding window that SGLang doesn't read from it.

    Checks: an EAGLE-3 draft with a sliding window is launched with --speculative-draft-window-size; this release reads a DFlash draft's
        layer_types and is_causal.
    Why: SGLang reads neither sliding_window nor layer_types of an EAGLE-3 draft; past the window the head sees more than in
        training, and acceptance falls on long contexts.
    Example: sliding_window is 2048 and SGLang doesn't read it
    Fix: Launch with --speculative-draft-window-size 2048 (0.5.12 and later).
    References: sglang 0.5.23 srt/models/llama_eagle3.py:288-299; flag from 0.5.12. DFlash: srt/models/dflash.py:157-191, from 0.5.14 on
        (0.5.14 srt/models/dflash.py:31); is_causal from 0.5.17 on (:63).
    """
    assert ctx.draft is not None and ctx.engine is not None
    if ctx.draft.algorithm in FAMILY:
        yield from _dflash_windows(ctx)
        return
    window = ctx.draft.facts.sliding_window
    if window is None or ctx.draft.algorithm != "eagle3" or ctx.own_class:
        return
    if ctx.launch is not None and ctx.launch.given("--speculative-draft-window-size"):
        return
    yield Hit(
        f"sliding_window is {window}, and SGLang doesn't read it from an EAGLE-3 draft: past {window} tokens the head sees more than in "
        "training",
        pointer="/transformer_layer_config/sliding_window"
        if ctx.draft.format == "speculators"
        else "/sliding_window",
        hint=f"launch with --speculative-draft-window-size {window} (SGLang 0.5.12 and later)",
    )


def _dflash_windows(ctx: Context) -> Iterator[Hit]:
    """Windows and causality that older releases ignore in a DFlash draft."""
    assert ctx.draft is not None and ctx.engine is not None
    config = ctx.checkpoint.config or {}
    for field, fact, there in (
        ("layer_types", "dflash.sliding_window", "sliding_attention" in (ctx.draft.facts.layer_types or ())),
        ("is_causal", "dflash.is_causal", isinstance(config.get("is_causal"), bool)),
    ):
        if there and holds(fact, ctx.engine) is False:
            first = first_release(fact)
            yield Hit(
                f"{field}: SGLang reads it from a DFlash draft from {first} on, and this is {ctx.engine.version}: the layers attend otherwise "
                "than in training",
                pointer=f"/{field}",
                hint=f"serve with sglang >= {first}",
            )
