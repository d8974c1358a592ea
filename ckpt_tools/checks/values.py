"""VAL: values: NaN, zeros, constants, norms, rows for unreachable ids (``--deep``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.model import FLOAT_DTYPES, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.container.values import TensorStats

#: Trained RMSNorm gains stay within this range of RMS in every public draft that was looked at.
NORM_RMS = (0.01, 100.0)


def _floats(ctx: Context) -> Iterator[tuple[str, TensorStats]]:
    assert ctx.values is not None
    dropped = ctx.draft.dropped if ctx.draft is not None else {}
    for name, stats in ctx.values.items():
        info = ctx.checkpoint.tensors.get(name)
        if (
            stats is not None
            and info is not None
            and info.dtype in FLOAT_DTYPES
            and info.numel
            and name not in dropped
        ):
            yield name, stats


@check("VAL001", "not-finite", Severity.ERROR, needs=("values",), after=("FIL",))
def not_finite(ctx: Context) -> Iterator[Hit]:
    """NaN or infinite values.

    Checks: (--deep) every value of every floating-point tensor is finite.
    Why: one NaN makes every logit NaN; engines don't look (SGLang's checks are off by default).
    Example: fc.weight holds 3 NaN of 12288 values
    Fix: Take an earlier checkpoint of the training run.
    References: sglang 0.5.23 srt/environ.py:516; speculators 0.9.0's MTP converter writes verifier_lm_head full of NaN.
    """
    for name, stats in _floats(ctx):
        if stats.nan or stats.inf:
            what = " and ".join(f"{n} {w}" for n, w in ((stats.nan, "NaN"), (stats.inf, "infinities")) if n)
            yield Hit(
                f"{name} holds {what} of {stats.numel} values", tensor=name, hint="take an earlier checkpoint"
            )


@check("VAL002", "constant", Severity.ERROR, needs=("values",), after=("FIL", "VAL001"))
def constant(ctx: Context) -> Iterator[Hit]:
    """A matrix whose values are all equal.

    Checks: (--deep) no weight matrix is all zero or constant.
    Why: it was never trained or never written; its input is dead.
    Example: midlayer.mlp.down_proj.weight is all zero
    Fix: Take the tensor from the training checkpoint.
    References: verl-SpeCo, SpecForge export: missing keys are written as initialised.
    """
    for name, stats in _floats(ctx):
        shape = ctx.checkpoint.tensors[name].shape
        if stats.constant and len(shape) >= 2 and stats.numel > 1:
            yield Hit(
                f"{name} is all zero"
                if stats.max == 0
                else f"{name} holds {stats.max:g} alone ({stats.numel} times)",
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
    for name, stats in _floats(ctx):
        if "norm" not in name or len(ctx.checkpoint.tensors[name].shape) != 1 or stats.rms is None:
            continue
        if stats.rms == 0:
            yield Hit(f"{name} is all zero: what it norms is cut off", tensor=name, severity=Severity.ERROR)
        elif not NORM_RMS[0] <= stats.rms <= NORM_RMS[1]:
            yield Hit(f"{name} has an RMS of {stats.rms:.3g}, far from 1", tensor=name)


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
    stats = [ctx.values.get(n) for n in norms]
    if len(norms) >= 2 and all(s is not None and s.constant and s.max == 1.0 for s in stats):
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
    for name, stats in _floats(ctx):
        top = max(abs(stats.min or 0.0), abs(stats.max or 0.0))
        if top > 65504:
            yield Hit(
                f"{name} reaches {top:.4g}, and the draft may run as float16 (65504 at most)", tensor=name
            )
