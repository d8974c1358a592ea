"""DTY: dtypes of config and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.engines.history import family
from ckpt_tools.model import FLOAT_DTYPES, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAMES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def stated_dtype(config: Mapping[str, Any]) -> str | None:
    """dtype, else torch_dtype, without ``torch.``."""
    value = config.get("dtype", config.get("torch_dtype"))
    return value.removeprefix("torch.") if isinstance(value, str) else None


def sglang_dtype(config: Mapping[str, Any]) -> str:
    """What SGLang runs a draft in under ``--dtype auto``.

    Missing and float32 become float16 (sglang 0.5.23 srt/configs/model_config.py:2284-2345, run).
    """
    value = stated_dtype(config)
    return "float16" if value is None or value in ("float32", "float") else value


def launch_dtype(ctx: Context) -> str | None:
    """``--dtype`` of the launch command."""
    value = ctx.launch.value("--dtype") if ctx.launch is not None else None
    return value if value != "auto" else None


@check(
    "DTY001",
    "draft-dtype-differs",
    Severity.WARNING,
    needs=("draft", "engine", "config", "target.dtype"),
    engines=("sglang",),
    after=("CFG002",),
)
def differs(ctx: Context) -> Iterator[Hit]:
    """SGLang runs the draft in another dtype than the target.

    Checks: the dtype that SGLang resolves for the draft equals the target's, or --dtype is given.
    Why: under --dtype auto a config with no dtype, or float32, runs as float16. Beside a bfloat16 target fc gets states of another
        dtype: likely a crash in the first forward pass.
    Example: dtype is absent, so SGLang runs the draft as float16 beside a bfloat16 target
    Fix: Write "dtype": "bfloat16"; ckpt fix-keys does; or launch with an explicit --dtype.
    References: sglang 0.5.23 srt/configs/model_config.py:2284-2345 (run).
    """
    assert ctx.target is not None and ctx.draft is not None
    if launch_dtype(ctx) is not None or ctx.draft.algorithm == "mtp" or ctx.draft.format == "speculators":
        return
    config = ctx.checkpoint.config or {}
    mine, stated = sglang_dtype(config), stated_dtype(config)
    theirs = (ctx.target.dtype or "").removeprefix("torch.")
    theirs = "float16" if theirs == "float32" else theirs
    if not theirs or mine == theirs:
        return
    pointer = "/dtype" if "dtype" in config else "/torch_dtype" if "torch_dtype" in config else None
    why = f"dtype is {stated}" if stated is not None else "dtype is absent"
    yield Hit(
        f"{why}, so SGLang runs the draft as {mine} beside a {theirs} target: fc gets states of another dtype",
        pointer=pointer,
        file="config.json",
        hint=f'write "dtype": "{theirs}" (and torch_dtype), or launch with --dtype {theirs}',
    )


@check("DTY002", "tensors-dtype-differs", Severity.INFO, needs=("draft", "config"), after=("FIL",))
def tensors_differ(ctx: Context) -> Iterator[Hit]:
    """The tensors' dtype isn't the config's.

    Checks: the floating-point tensors have the dtype that config.json states.
    Why: engines cast while loading, so serving works; the file is larger than it need be, or values were rounded.
    Example: the tensors are float32 and config.json says bfloat16: engines cast them; the file is twice as big as needed
    Fix: ckpt fix-keys IN OUT --dtype bf16
    References: sglang 0.5.23 srt/layers/linear.py (copy_ casts); vllm 0.33.0 models/utils.py:324-341 (a warning).
    """
    config = ctx.checkpoint.config or {}
    stated = stated_dtype(config)
    sizes: dict[str, int] = {}
    for t in ctx.checkpoint.tensors.values():
        if t.dtype in FLOAT_DTYPES:
            sizes[t.dtype] = sizes.get(t.dtype, 0) + t.nbytes
    if not sizes or stated is None:
        return
    main = NAMES[max(sizes, key=lambda k: sizes[k])]
    if main == stated:
        return
    sglang = ctx.engine is not None and family(ctx.engine.name) == "sglang"
    runs = f"; SGLang runs it as {sglang_dtype(config)}" if sglang else ""
    yield Hit(
        f"the tensors are {main} and config.json says {stated}: engines cast them while loading{runs}",
        pointer="/dtype" if "dtype" in config else "/torch_dtype",
        hint=f"ckpt fix-keys IN OUT --dtype {'bf16' if stated == 'bfloat16' else 'fp16' if stated == 'float16' else 'fp32'}",
    )


@check(
    "DTY003",
    "float32-draft",
    Severity.INFO,
    needs=("draft", "config", "engine"),
    engines=("sglang",),
    after=("FIL", "CFG002", "DTY001"),
)
def float32(ctx: Context) -> Iterator[Hit]:
    """A float32 draft runs as float16.

    Checks: the config doesn't say float32.
    Why: under --dtype auto SGLang turns float32 into float16, whose range is smaller; the file is twice as big as needed.
    Example: dtype is float32: SGLang runs the draft as float16
    Fix: ckpt fix-keys IN OUT --dtype bf16
    References: sglang 0.5.23 srt/configs/model_config.py:2284-2345 (run).
    """
    config = ctx.checkpoint.config or {}
    if (
        stated_dtype(config) in ("float32", "float")
        and launch_dtype(ctx) is None
        and ctx.draft is not None
        and ctx.draft.format != "speculators"
    ):
        yield Hit(
            "dtype is float32: SGLang runs the draft as float16 under --dtype auto; the file is twice as big as needed",
            pointer="/dtype" if "dtype" in config else "/torch_dtype",
            hint="ckpt fix-keys IN OUT --dtype bf16",
        )
