"""ROP: rotary settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.engines.history import first_release, holds
from ckpt_tools.formats.rope import spellings_disagree
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def _flat(ctx: Context) -> tuple[Mapping[str, Any], str]:
    config = ctx.checkpoint.config or {}
    inner = config.get("transformer_layer_config")
    return (inner, "/transformer_layer_config") if isinstance(inner, dict) else (config, "")


@check("ROP001", "rope-spellings-disagree", Severity.ERROR, needs=("draft", "config"))
def disagree(ctx: Context) -> Iterator[Hit]:
    """rope_parameters and rope_theta/rope_scaling say different things.

    Checks: where both spellings are there, they are equal.
    Why: transformers 5 takes rope_parameters without a word, older engines (SGLang up to 0.5.9) the others: the same file drafts
        well on one and badly on the other.
    Example: rope_parameters has rope_theta 1000000 and rope_theta is 10000
    Fix: ckpt fix-keys writes both from one source; keep the values that the draft was trained with.
    References: transformers 5.19 (run); sglang 0.5.9 srt/models/llama.py:255-256.
    """
    flat, at = _flat(ctx)
    both = spellings_disagree(flat)
    if both is None:
        return
    new, old = both
    yield Hit(
        f"rope_parameters (theta {new.theta}, {dict(new.scaling) if new.scaling else 'no scaling'}) and rope_theta/rope_scaling "
        f"(theta {old.theta}, {dict(old.scaling) if old.scaling else 'no scaling'}) disagree: newer engines take the first, SGLang up to "
        "0.5.9 the second",
        pointer=f"{at}/rope_parameters",
        hint="keep the values that the draft was trained with in both spellings",
    )


@check(
    "ROP002",
    "rope-parameters-unread",
    Severity.ERROR,
    needs=("draft", "config", "engine"),
    engines=("sglang",),
    after=("CFG002", "ROP001"),
)
def unread(ctx: Context) -> Iterator[Hit]:
    """The rope base stands only where this release doesn't look.

    Checks: on SGLang before 0.5.10 rope_theta and rope_scaling are there, not only rope_parameters.
    Why: the release takes base 10000 and no scaling without a word.
    Example: rope_theta 1000000 stands in rope_parameters alone, which SGLang reads from 0.5.10 on
    Fix: ckpt fix-keys IN OUT writes both spellings.
    References: sglang 0.5.9 srt/models/llama.py:255-256; rope_parameters from 0.5.10 (llama.py:255).
    """
    assert ctx.engine is not None
    flat, at = _flat(ctx)
    block = flat.get("rope_parameters")
    if not isinstance(block, dict) or holds("eagle3.rope_parameters", ctx.engine) is not False:
        return
    theta = block.get("rope_theta")
    scaled = block.get("rope_type", "default") not in ("default", None)
    lost = [
        *(
            ["rope_theta " + str(theta)]
            if theta not in (None, 10000, 10000.0) and flat.get("rope_theta") is None
            else []
        ),
        *([f"scaling {block.get('rope_type')}"] if scaled and flat.get("rope_scaling") is None else []),
    ]
    if lost:
        first = first_release("eagle3.rope_parameters")
        yield Hit(
            f"{' and '.join(lost)} stand{'s' if len(lost) == 1 else ''} in rope_parameters alone, which SGLang reads from {first} on; "
            f"{ctx.engine.version} takes base 10000 and no scaling",
            pointer=f"{at}/rope_parameters",
            hint="ckpt fix-keys IN OUT writes both spellings",
        )


@check("ROP003", "rope-scaling-differs", Severity.WARNING, needs=("draft", "target.rope"))
def scaling_differs(ctx: Context) -> Iterator[Hit]:
    """The target scales its rope and the draft doesn't, or with the other kind.

    Checks: rope scaling of the draft is of the target's kind, when the target scales.
    Why: nothing compares the two. A converter may have dropped the scaling (speculators#574); or the draft was trained without, on
        short contexts, which is legitimate.
    Example: the target scales its rope (llama3, factor 8) and the draft doesn't
    Fix: Compare with the training config.
    References: sglang 0.5.23 srt/models/llama.py:322-336; vllm 0.33.0 (run: nothing compares); vllm-project/speculators#574.
    """
    assert ctx.draft is not None and ctx.target is not None and ctx.target.rope is not None
    theirs = ctx.target.rope.scaling
    mine = ctx.draft.facts.rope.scaling if ctx.draft.facts.rope else None
    if not theirs or mine is not None or ctx.draft.algorithm == "mtp" or ctx.draft.format == "safeailab":
        return
    _, at = _flat(ctx)
    yield Hit(
        f"the target scales its rope ({theirs.get('rope_type')}, factor {theirs.get('factor')}) and the draft's rope_scaling is absent",
        pointer=f"{at}/rope_scaling" if "rope_scaling" in _flat(ctx)[0] else None,
        file="config.json",
        severity=Severity.INFO,
        hint="right if the draft was trained so; a converter may have dropped it",
    )


@check("ROP004", "rope-theta-differs", Severity.INFO, needs=("draft", "target.rope"))
def theta_differs(ctx: Context) -> Iterator[Hit]:
    """The draft's rope base isn't the target's.

    Checks: rope_theta of the draft and of the target.
    Why: a draft has positions of its own and may be trained with any base; a base that got lost on the way would look the same.
    Example: rope_theta is 10000 and the target's is 5000000
    Fix: Compare with the training config.
    References: sglang 0.5.23 srt/models/llama.py:322-336 (the draft's alone is read); NeMo Automodel#2920.
    """
    assert ctx.draft is not None and ctx.target is not None and ctx.target.rope is not None
    theirs = ctx.target.rope.theta
    rope = ctx.draft.facts.rope
    mine = rope.theta if rope is not None else None
    if theirs is None or ctx.draft.algorithm == "mtp" or mine == theirs:
        return
    _, at = _flat(ctx)
    shown = f"rope_theta is {mine:g}" if mine is not None else "rope_theta is absent, and engines take 10000"
    if mine is None and theirs == 10000:
        return
    yield Hit(
        f"{shown}; the target's is {theirs:g}: right if the draft was trained so",
        pointer=f"{at}/rope_theta"
        if "rope_theta" in _flat(ctx)[0]
        else f"{at}/rope_parameters"
        if mine is not None
        else None,
        file="config.json",
    )


@check("ROP005", "rope-base-of-training", Severity.WARNING, needs=("draft", "config"))
def base_of_training(ctx: Context) -> Iterator[Hit]:
    """A framework that always trains with base 10000, and a config that says otherwise.

    Checks: a draft of the EAGLE repository or AngelSlim has rope_theta 10000 (or none).
    Why: their trainers build the rotary embedding with base 10000 whatever the config says, engines honour the config: Qwen3-4B
        lost 0.11 of accept length.
    Example: rope_theta is 1000000, and the EAGLE repository's trainer always uses 10000
    Fix: Write rope_theta 10000, and measure.
    References: EAGLE cb7e0841 eagle/traineagle3/cnets.py:101-113; AngelSlim 67394ce5 llama_eagle3.py _init_rope; sfllm#32.
    """
    assert ctx.draft is not None
    rope = ctx.draft.facts.rope
    if ctx.draft.format not in ("safeailab", "angelslim") or rope is None:
        return
    scaled = rope.scaling is not None and rope.scaling.get("rope_type") not in ("mrope", "default")
    if (rope.theta in (None, 10000.0) and not scaled) or (rope.scaling or {}).get("rope_type") == "mrope":
        return
    yield Hit(
        f"rope_theta is {rope.theta}, and this framework's trainer always uses 10000: engines would honour the config",
        pointer="/rope_theta" if "rope_theta" in (ctx.checkpoint.config or {}) else "/rope_parameters",
        hint="write rope_theta 10000 and measure the accept length",
    )


@check(
    "ROP007",
    "rope-unstated",
    Severity.WARNING,
    needs=("draft", "config", "engine"),
    engines=("vllm",),
    after=("CFG002",),
)
def unstated(ctx: Context) -> Iterator[Hit]:
    """A speculators folder doesn't state its rope.

    Checks: transformer_layer_config has rope_parameters, or rope_theta.
    Why: speculators always writes it. vLLM builds its config from that block alone and takes base 10000 (llama) or 1000000 (qwen3,
        DFlash) without a word.
    Example: transformer_layer_config states neither rope_parameters nor rope_theta: vLLM takes base 10000
    Fix: Write the rope that the draft was trained with.
    References: vllm 0.33.0 transformers_utils/configs/speculators/base.py:46-63 (run); speculators 0.9.0 config.py.
    """
    assert ctx.draft is not None
    flat, at = _flat(ctx)
    if not at or any(flat.get(k) is not None for k in ("rope_parameters", "rope_theta", "rope_scaling")):
        return
    base = (
        10000
        if ctx.draft.algorithm in ("eagle3", "peagle") and flat.get("model_type") != "qwen3"
        else 1000000
    )
    yield Hit(
        f"transformer_layer_config states neither rope_parameters nor rope_theta: vLLM takes base {base}",
        pointer=at,
        hint="write the rope that the draft was trained with",
    )
