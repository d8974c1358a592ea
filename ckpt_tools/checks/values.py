"""VAL: values: NaN, zeros, constants, norms, rows for unreachable ids (``--deep``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.vocabulary import PADDING
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.container.screen import Screened

#: Trained RMSNorm gains stay within this range of RMS in every public draft that was looked at.
NORM_RMS = (0.01, 100.0)


def _floats(ctx: Context) -> Iterator[tuple[str, Screened]]:
    assert ctx.values is not None
    dropped = ctx.draft.dropped if ctx.draft is not None else {}
    for name, screened in ctx.values.items():
        if screened.numel and name not in dropped:
            yield name, screened


@check("VAL001", "not-finite", Severity.ERROR, needs=("values",), after=("FIL",))
def not_finite(ctx: Context) -> Iterator[Hit]:
    """NaN or infinite values.

    Checks: (--deep) every value of every floating-point tensor is finite.
    Why: one NaN makes every logit NaN; engines don't look (SGLang's checks are off by default).
    Example: fc.weight holds 3 NaN of 12288 values
    Fix: Take an earlier checkpoint of the training run.
    References: sglang 0.5.23 srt/environ.py:516; speculators 0.9.0's MTP converter writes verifier_lm_head full of NaN.
    """
    for name, screened in _floats(ctx):
        if screened.nan or screened.inf:
            what = " and ".join(
                f"{n} {w}" for n, w in ((screened.nan, "NaN"), (screened.inf, "infinities")) if n
            )
            yield Hit(
                f"{name} holds {what} of {screened.numel} values",
                tensor=name,
                hint="take an earlier checkpoint",
            )


@check("VAL002", "constant", Severity.ERROR, needs=("values",), after=("FIL", "VAL001"))
def constant(ctx: Context) -> Iterator[Hit]:
    """A matrix whose values are all equal.

    Checks: (--deep) no weight matrix is all zero or constant. Scales of quantised weights may be.
    Why: it was never trained or never written; its input is dead.
    Example: midlayer.mlp.down_proj.weight is all zero
    Fix: Take the tensor from the training checkpoint.
    References: verl-SpeCo, SpecForge export: missing keys are written as initialised.
    """
    for name, screened in _floats(ctx):
        shape = ctx.checkpoint.tensors[name].shape
        scale = "scale" in name.rsplit(".", 1)[-1]  # of a quantised weight, and often one for all blocks
        if screened.constant is not None and len(shape) >= 2 and screened.numel > 1 and not scale:
            yield Hit(
                f"{name} is all zero"
                if screened.constant == 0
                else f"{name} holds {screened.constant:g} alone ({screened.numel} times)",
                tensor=name,
                hint="take the tensor from the training checkpoint",
            )


@check("VAL003", "norm-gain", Severity.WARNING, needs=("values", "draft"), after=("FIL", "VAL001"))
def norm_gain(ctx: Context) -> Iterator[Hit]:
    """A norm whose gains are far from one, or zero.

    Checks: (--deep) norm weights have an RMS between 0.01 and 100.
    Why: a zero gain cuts what it norms off; very large ones overflow float16.
    Example: midlayer.hidden_norm.weight is all zero: the hidden state is cut off
    Fix: Compare with the training checkpoint. Norms that store gain - 1 (Gemma) belong to another class.
    References: speculators 0.9.0 models/utils.py:13-68 (1 + w norms).
    """
    for name, screened in _floats(ctx):
        if "norm" not in name or len(ctx.checkpoint.tensors[name].shape) != 1 or screened.rms is None:
            continue
        if screened.rms == 0:
            yield Hit(f"{name} is all zero: what it norms is cut off", tensor=name, severity=Severity.ERROR)
        elif not NORM_RMS[0] <= screened.rms <= NORM_RMS[1]:
            yield Hit(f"{name} has an RMS of {screened.rms:.3g}, far from 1", tensor=name)


@check("VAL004", "untrained-norms", Severity.WARNING, needs=("values", "draft"), after=("FIL", "VAL001"))
def untrained(ctx: Context) -> Iterator[Hit]:
    """Every norm of the decoder layer is exactly one.

    Checks: (--deep) not all norms of layer 0 are exactly ones.
    Why: training moves them; all ones mean that the layer was initialised and never filled, as speculators' converter of 0.2 to 0.4
        left it when it lost the midlayer names.
    Example: all 3 norms of layer 0 are exactly ones: the layer was never trained or never filled
    Fix: Convert again with a newer release, from the original file.
    References: speculators 0.2.0-0.4.0 convert/eagle/eagle3_converter.py (no midlayer remap), speculators#360.
    """
    assert ctx.draft is not None and ctx.values is not None
    norms = [
        native
        for n, native in ctx.draft.tensors.items()
        if n.startswith("layers.0.") and n.endswith("norm.weight")
    ]
    found = [ctx.values.get(n) for n in norms]
    if len(norms) >= 2 and all(s is not None and s.constant == 1.0 for s in found):
        yield Hit(
            f"all {len(norms)} norms of layer 0 are exactly ones: the layer was never trained, or never filled",
            tensor=norms[0],
            hint="convert again from the original file",
        )


@check("VAL005", "float16-overflow", Severity.WARNING, needs=("values", "draft"), after=("FIL", "VAL001"))
def overflow(ctx: Context) -> Iterator[Hit]:
    """Values beyond float16 in a draft that runs as float16.

    Checks: (--deep) values fit float16 when the config's dtype is float16.
    Why: the engine casts while loading; a value above 65504 becomes infinite.
    Example: fc.weight reaches 1e5 and the draft runs as float16
    Fix: Serve in bfloat16.
    References: sglang 0.5.23 srt/configs/model_config.py:2284-2345 (float32 runs as float16).
    """
    config = ctx.checkpoint.config or {}
    stated = config.get("dtype", config.get("torch_dtype"))
    if stated not in ("float16", "float32", None):
        return
    for name, screened in _floats(ctx):
        if screened.reach > 65504:
            yield Hit(
                f"{name} reaches {screened.reach:.4g}, and the draft may run as float16 (65504 at most)",
                tensor=name,
            )


@check(
    "VAL006",
    "head-rows-beyond-vocabulary",
    Severity.WARNING,
    needs=("values", "draft", "load", "target.vocab_size"),
    after=("FIL", "SHP003"),
)
def beyond(ctx: Context) -> Iterator[Hit]:
    """Rows of the head for ids that the target doesn't have.

    Checks: (--deep) where the head has more rows than the target has ids, and no d2t, the rows beyond are zeros.
    Why: such a row competes with the others; what it wins is an id outside the target's embedding. Rows of zeros are padding.
    Example: rows 256..319 of lm_head.weight hold values, and tiny has ids 0..255 alone
    Fix: Set those rows to zero, or take the head that was trained for this target.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:350-353 (without d2t the rows are target ids);
        vllm 0.33.0 model_executor/models/llama_eagle3.py:339.
    """
    assert ctx.draft is not None and ctx.load is not None and ctx.target is not None
    native = ctx.draft.tensors.get("lm_head.weight")
    vocab = ctx.target.vocab_size
    if native is None or vocab is None or ctx.rows is None or "d2t" in ctx.draft.tensors:
        return
    used = any(native in fill.sources for fill in ctx.load.parameters.values())
    rows = ctx.checkpoint.tensors[native].shape[0]
    if used and vocab < rows <= vocab + PADDING and ctx.rows(native, vocab, rows):
        yield Hit(
            f"rows {vocab}..{rows - 1} of {native} hold values, and {ctx.target.id} has ids 0..{vocab - 1} alone",
            tensor=native,
            hint="set those rows to zero, or take the head that was trained for this target",
        )
