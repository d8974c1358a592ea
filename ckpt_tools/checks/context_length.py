"""CTX: context length of the draft against what is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.engines.history import holds, transformers_pin
from ckpt_tools.engines.sglang.hf import read as read_config
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Severity
from ckpt_tools.targets import context_length, derived_context_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
#: Rope kinds whose factor is in max_position_embeddings already (vllm 0.33.0 config/model.py _get_and_verify_max_len).
ALREADY_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default")
#: Rope kinds whose draft vLLM lengthens to the target's (vllm 0.33.0 config/speculative.py:104-113, 1806-1846).
RAISED_BY_VLLM = ("default", "linear", "llama3", "ntk", "proportional")


def draft_length(ctx: Context) -> int | None:
    """The draft's context length as SGLang derives it, with the default of the config's class where it states none."""
    config = ctx.checkpoint.config
    if config is None or ctx.draft is None or ctx.engine is None:
        return None
    pinned = transformers_pin(ctx.engine) or "5"
    flat = _flat(ctx)
    if flat is config:
        try:
            flat = read_config(config, pinned, ctx.checkpoint.root).attributes
        except Refused:
            return None  # the engine gets no further; CFG002 says it
    return derived_context_length(flat, transformers=parse(pinned).major)


def override_set(ctx: Context) -> bool:
    """Whether the launch sets the variable that lets a longer context through."""
    env = ctx.launch.env if ctx.launch is not None else {}
    return str(env.get(VARIABLE, "")).lower() in ("1", "true", "yes")


def _pointer(ctx: Context) -> str:
    config = ctx.checkpoint.config or {}
    nested = isinstance(config.get("transformer_layer_config"), dict)
    return "/transformer_layer_config/max_position_embeddings" if nested else "/max_position_embeddings"


@check(
    "CTX001",
    "draft-context-too-short",
    Severity.ERROR,
    needs=("draft", "engine", "config", "served"),
    engines=("sglang",),
    after=("CFG002",),
)
def too_short(ctx: Context) -> Iterator[Hit]:
    """The draft's context is shorter than what is served.

    Checks: the served length (flag, launch command, else the target's) doesn't exceed the draft's, by SGLang's own rule.
    Why: the draft runs at the target's positions. From 0.5.1 on SGLang refuses to start unless
        SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set; with it the head drafts at positions it never saw.
    Example: the draft's context is 131072 and 262144 is served (the target kimi-k2.5): SGLang refuses to start
    Fix: Serve with --context-length 131072, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.
    References: sglang 0.5.23 srt/configs/model_config.py:1291-1326, srt/speculative/eagle_worker_v2.py:228-229; a warning only up
        to 0.4.10.post2, an error from 0.5.1.
    """
    assert ctx.engine is not None and ctx.served is not None
    mine = draft_length(ctx)
    served, says = ctx.served
    if mine is None or ctx.draft is None or ctx.draft.algorithm == "mtp":
        return
    own = context_length(ctx.target) if ctx.target is not None else None
    if served <= mine:
        if own is not None and own > mine and says != f"the target {ctx.target.id if ctx.target else ''}":
            yield Hit(
                f"the draft's context is {mine} and the target's {own}; {says} serves {served}, which brings it under",
                pointer=_pointer(ctx),
                severity=Severity.INFO,
            )
        return
    stated = "max_position_embeddings" in _flat(ctx)
    shown = f"the draft's context is {mine}" + (
        ""
        if stated
        else " (max_position_embeddings is absent, and this is the default of the config's class)"
    )
    if override_set(ctx):
        yield Hit(
            f"{shown} and {served} is served ({says}); {VARIABLE} lets it through, and the head drafts at positions it never saw",
            pointer=_pointer(ctx) if stated else None,
            file="config.json",
            severity=Severity.WARNING,
            hint=f"serve with --context-length {mine} unless that was measured",
        )
        return
    refuses = holds("ctx.error", ctx.engine) is not False
    yield Hit(
        f"{shown} and {served} is served ({says}): "
        + (
            "SGLang refuses to start"
            if refuses
            else "this release only warns, and drafts at positions it never saw"
        ),
        pointer=_pointer(ctx) if stated else None,
        file="config.json",
        severity=None if refuses else Severity.WARNING,
        hint=f"serve with --context-length {mine}, or set {VARIABLE}=1 to let the longer context through",
    )


def _flat(ctx: Context) -> Mapping[str, Any]:
    config = ctx.checkpoint.config or {}
    inner = config.get("transformer_layer_config")
    return inner if isinstance(inner, dict) else config


@check(
    "CTX002",
    "draft-context-short-on-vllm",
    Severity.WARNING,
    needs=("draft", "engine", "config", "served"),
    engines=("vllm",),
    after=("CFG002",),
)
def short_on_vllm(ctx: Context) -> Iterator[Hit]:
    """On vLLM a short draft context caps the server or stops drafting.

    Checks: the served length doesn't exceed the draft's max_position_embeddings.
    Why: with plain, linear or llama3 rope vLLM raises the draft's length and says so, but its V1 runner (P-EAGLE) drafts zeros beyond
        the stated length; with YaRN and others the whole server's max_model_len is lowered.
    Example: max_position_embeddings is 128 and 512 is served: vLLM raises the draft's length and drafts beyond what it saw
    Fix: Serve with --max-model-len 128, or write the length that the draft was trained for.
    References: vllm 0.33.0 config/speculative.py:104-113, 1806-1846, config/vllm.py:3025-3051, v1/worker/gpu_model_runner.py:677-680;
        _get_and_verify_max_len in config/model.py (a factor multiplies, but for YaRN, llama3 and longrope).
    """
    assert ctx.draft is not None and ctx.served is not None
    stated = ctx.draft.facts.max_position_embeddings
    length = stated if stated is not None else _default_on_vllm(ctx)
    served, says = ctx.served
    scaling = (ctx.draft.facts.rope.scaling if ctx.draft.facts.rope else None) or {}
    kind = scaling.get("rope_type") or "default"
    factor = 1 if kind in ALREADY_SCALED else scaling.get("factor") or 1
    if length is None or ctx.draft.algorithm == "mtp":
        return
    mine = int(length * factor)
    if served <= mine:
        return
    if kind not in RAISED_BY_VLLM:
        effect = f"with {kind} rope vLLM lowers the whole server's max_model_len to {mine}"
    elif ctx.draft.algorithm == "peagle":
        effect = f"vLLM's V1 runner drafts zeros for sequences longer than {mine}"
    else:
        effect = "vLLM raises the draft's length and says so; the head drafts at positions it never saw"
    shown = f"is {length}" if stated is not None else f"is absent, so {length} by the config's class,"
    if factor != 1:
        shown += f" times {factor:g} ({kind} rope)"
    yield Hit(
        f"max_position_embeddings {shown} and {served} is served ({says}): {effect}",
        pointer=_pointer(ctx) if stated is not None else None,
        file="config.json",
        hint=f"serve with --max-model-len {mine}, or write the length that the draft was trained for",
    )


def _default_on_vllm(ctx: Context) -> int | None:
    """What the config's class takes where a flat config states no length."""
    config = ctx.checkpoint.config or {}
    if "model_type" not in config or isinstance(config.get("transformer_layer_config"), dict):
        return None
    from ckpt_tools.engines.vllm.hf import auto_config  # the engine's own part, where it is asked for
    from ckpt_tools.engines.vllm.refusal import Refused as RefusedByVllm

    try:
        value = auto_config(config).get("max_position_embeddings")
    except RefusedByVllm:
        return None  # CFG002 says it
    return value if isinstance(value, int) else None
