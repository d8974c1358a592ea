"""NRM: norm flags and norm tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.layers import beyond_file, layer_of
from ckpt_tools.engines.history import family, first_release, holds
from ckpt_tools.engines.trtllm.flags import is_on, places
from ckpt_tools.formats.facts import qk_norms
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


def _is(ctx: Context, engine: str) -> bool:
    return ctx.engine is not None and family(ctx.engine.name) == engine


def _refused_config(ctx: Context) -> bool:
    return ctx.load is not None and ctx.load.refused is not None and ctx.load.stage == "config"


@check(
    "NRM001",
    "norm-before-residual-unsupported",
    Severity.ERROR,
    needs=("draft", "engine"),
    engines=("sglang", "trtllm"),
)
def norm_before_residual(ctx: Context) -> Iterator[Hit]:
    """A head trained with norm_before_residual, on an engine that doesn't implement it.

    Checks: norm_before_residual is not true when the engine is SGLang (without ckpt's model package) or TensorRT-LLM.
    Why: both always keep the un-normed hidden state as the residual. The head loads without a word and drafts wrongly: on a
        real server accept length 1.03 of 4, cosine of the logits 0.55. No weight folding repairs it.
    Example: norm_before_residual is true and no SGLang release implements it
    Fix: Serve it with vLLM, or with ckpt's model package (fix-keys --to sglang-ext), or train with norm_before_residual off.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:97-102 (residual taken before hidden_norm); the name occurs nowhere in
        0.4.6-0.5.23. TensorRT-LLM _torch/models/modeling_speculative.py Eagle3DecoderLayer.forward (the same). speculators 0.9.0
        train/config/schema.py:145-148 (training default true).
    """
    if ctx.draft is not None and ctx.draft.facts.norm_before_residual and not ctx.own_class:
        who = "no SGLang release implements it" if _is(ctx, "sglang") else "TensorRT-LLM doesn't implement it"
        yield Hit(
            f"norm_before_residual is true and {who}: the server starts, answers correctly and accepts "
            "next to nothing (accept length 1.03 of 4 measured on SGLang)",
            pointer="/norm_before_residual",
            hint="serve it with vLLM (ckpt fix-keys IN OUT --to vllm) or through ckpt's model package (--to sglang-ext); "
            "training with norm_before_residual off avoids it",
        )


@check("NRM002", "qk-norms-unsupported", Severity.ERROR, needs=("draft", "engine"), after=("PAR002",))
def qk_norm_tensors(ctx: Context) -> Iterator[Hit]:
    """q_norm/k_norm tensors of a qwen3-style EAGLE-3 layer, on a class that has none.

    Checks: per-head norms are absent when the engine builds a llama-style EAGLE-3 layer.
    Why: SGLang drops them without a word and drafts wrongly; vLLM's llama class raises on them.
    Example: 2 q_norm/k_norm tensors have no parameter in LlamaForCausalLMEagle3
    Fix: vLLM serves them as Eagle3Qwen3ForCausalLM (fix-keys --to vllm); SGLang does with ckpt's model package.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:67-75 (run: silently dropped); vllm 0.33.0
        model_executor/models/llama_eagle3.py (raises), qwen3_eagle3.py (has them).
    """
    assert ctx.draft is not None and ctx.engine is not None
    if ctx.draft.algorithm not in ("eagle3", "peagle"):
        return
    names = [ctx.draft.tensors[n] for n in qk_norms(ctx.draft.algorithm, ctx.draft.tensors)]
    if not names or ctx.own_class:
        return
    lost = [n for n in names if ctx.load is None or n in ctx.load.unused]
    if lost:
        yield Hit(
            f"{len(lost)} q_norm/k_norm tensors (qwen3 layers) have no parameter in the class that {ctx.engine} builds"
            + (f" ({ctx.load.architecture})" if ctx.load and ctx.load.architecture else ""),
            tensor=lost[0],
            hint="vLLM serves qwen3 layers as Eagle3Qwen3ForCausalLM (ckpt fix-keys IN OUT --to vllm)",
        )


@check("NRM003", "norm-flag-without-tensor", Severity.ERROR, needs=("draft", "load"), after=("KEY003", "FIL"))
def flag_without_tensor(ctx: Context) -> Iterator[Hit]:
    """A norm flag is on and its tensors are missing.

    Checks: with norm_before_fc there is input_norm.weight; with fc_norm there is one fc_norm.*.weight per captured layer.
    Why: every engine builds the norm, finds nothing to load and leaves it at ones without a word.
    Example: norm_before_fc is true and input_norm.weight is missing: the norm stays at ones
    Fix: Take the tensor from the training checkpoint; turn the flag off only if the head was trained without.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:173-196; vllm 0.33.0 model_executor/models/llama_eagle3.py (run: ones).
    """
    assert ctx.draft is not None
    for flag, missing in flagged_norms_missing(ctx).items():
        several = len(missing) > 1
        yield Hit(
            f"{flag} is true and {', '.join(missing)} {'are' if several else 'is'} missing: the engine builds the norm"
            f"{'s' if several else ''} and leaves {'them' if several else 'it'} at ones without a word",
            pointer=f"/{flag}",
            hint=f"take {'them' if several else missing[0]} from the training checkpoint, or set {flag} to false if the head was "
            "trained without",
        )


def flagged_norms_missing(ctx: Context) -> dict[str, list[str]]:
    """Flag -> the norms that it asks for and that aren't there."""
    assert ctx.draft is not None
    facts, tensors = ctx.draft.facts, ctx.draft.tensors
    wanted: dict[str, list[str]] = {}
    if facts.norm_before_fc:
        wanted["norm_before_fc"] = ["input_norm.weight"]
    if facts.fc_norm:
        wanted["fc_norm"] = [f"fc_norm.{j}.weight" for j in range(facts.num_aux or 3)]
    lost = {flag: [n for n in names if n not in tensors] for flag, names in wanted.items()}
    return {flag: names for flag, names in lost.items() if names}


@check("NRM004", "norm-tensor-without-flag", Severity.ERROR, needs=("draft", "load"), after=("KEY003", "FIL"))
def tensor_without_flag(ctx: Context) -> Iterator[Hit]:
    """Norm tensors are there and the flag that makes the engine use them isn't.

    Checks: input_norm.weight comes with norm_before_fc, fc_norm.*.weight with fc_norm (or use_aux_norm on SGLang).
    Why: SGLang drops the tensors without a word; vLLM drops input_norm and raises on fc_norm. The head was trained with them.
    Example: input_norm.weight is there and norm_before_fc isn't set: SGLang drops the tensor without a word
    Fix: Set the flag in config.json, if the head was trained with the norm.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:173-196 (run); vllm 0.33.0 model_executor/models/llama_eagle3.py:464-465.
    """
    assert ctx.draft is not None and ctx.load is not None
    facts, tensors = ctx.draft.facts, ctx.draft.tensors
    for flag, name, on in (
        ("norm_before_fc", "input_norm.weight", facts.norm_before_fc),
        ("fc_norm", "fc_norm.0.weight", facts.fc_norm),
    ):
        native = tensors.get(name)
        if native is not None and not on and (native in ctx.load.unused or ctx.load.refused):
            yield Hit(
                f"{native} is there and {flag} isn't set: {ctx.engine} "
                + ("refuses the tensor" if ctx.load.refused else "drops it without a word")
                + ", and the head was trained with it",
                tensor=native,
                hint=f'set "{flag}": true in config.json',
            )


_FLAG_FACTS = {
    ("norm_before_fc", "llama"): "eagle3.norm_before_fc.llama",
    ("fc_norm", "llama"): "eagle3.fc_norm.llama",
    ("norm_output", "llama"): "eagle3.norm_output.llama",
    ("fc_norm", "mla"): "eagle3.fc_norm.mla",
    ("norm_output", "mla"): "eagle3.norm_output.mla",
}


@check("NRM005", "norm-flag-not-implemented", Severity.ERROR, needs=("draft", "engine"))
def flag_not_implemented(ctx: Context) -> Iterator[Hit]:
    """A norm flag that this release of the engine doesn't implement.

    Checks: norm_before_fc, fc_norm and norm_output are known to the engine's class at this release, and stand where it looks.
    Why: an unknown flag is ignored and its tensors are dropped or refused; the head computes something else than it was trained to.
    Example: norm_before_fc: SGLang implements it from 0.5.17 on, and this is 0.5.9
    Fix: Serve with a release that implements it.
    References: engine history: eagle3.norm_before_fc.llama (0.5.17), eagle3.fc_norm.llama (0.5.12), eagle3.norm_output.llama
        (0.5.12), the MLA class from 0.5.13, never norm_before_fc; vLLM 0.25.0 for all three (0.17.0 has none), and 0.33.0
        transformers_utils/configs/speculators/algos.py:53-87 for P-EAGLE, which copies neither fc_norm nor norm_output; TensorRT-LLM
        _torch/models/modeling_speculative.py Eagle3DraftModel.__init__ (norm_before_fc in eagle_config alone).
    """
    assert ctx.draft is not None and ctx.engine is not None
    facts = ctx.draft.facts
    if ctx.draft.algorithm == "peagle" and ctx.draft.format == "speculators" and _is(ctx, "vllm"):
        for flag in ("fc_norm", "norm_output"):
            if getattr(facts, flag):
                yield Hit(
                    f"{flag}: vLLM doesn't take it over from a speculators peagle folder: "
                    + (
                        "it refuses the tensors"
                        if flag == "fc_norm"
                        else "the flag is ignored without a word"
                    ),
                    pointer=f"/{flag}",
                    hint="ckpt fix-keys IN OUT --to vllm writes a plain folder, where vLLM reads the flag",
                )
        return
    if ctx.draft.algorithm != "eagle3" or ctx.own_class:
        return
    kind = "mla" if facts.layer_type == "mla" else "llama"
    for flag in ("norm_before_fc", "fc_norm", "norm_output"):
        if not getattr(facts, flag):
            continue
        if _is(ctx, "sglang"):
            fact = _FLAG_FACTS.get((flag, kind))
            if fact is None:
                yield Hit(f"{flag}: no SGLang release implements it in the MLA class", pointer=f"/{flag}")
            elif holds(fact, ctx.engine) is False:
                yield Hit(
                    f"{flag}: SGLang implements it from {first_release(fact)} on, and this is {ctx.engine.version}; the flag is "
                    "ignored and its tensors are dropped",
                    pointer=f"/{flag}",
                    hint=f"serve with sglang >= {first_release(fact)}",
                )
        elif _is(ctx, "vllm"):
            yield from _vllm_flag(ctx, flag, kind)
        elif _is(ctx, "trtllm") and not _refused_config(ctx) and not is_on(flag, ctx.checkpoint.config or {}):
            looks = " and ".join(places(flag))
            yield Hit(
                f"{flag} is set where TensorRT-LLM doesn't look ({looks}): the flag is ignored, and the head was trained with it",
                pointer=f"/{flag}" if flag in (ctx.checkpoint.config or {}) else None,
                file="config.json",
                hint=f'write "{places(flag)[0]}": true, too',
            )


#: The history keeps vLLM's flags under the names of the speculators fields that it reads them from.
_VLLM_FLAG_FACTS = {
    "norm_before_fc": "speculators.eagle3.norm_before_fc",
    "fc_norm": "speculators.eagle3.fc_norm_norm_output",
    "norm_output": "speculators.eagle3.fc_norm_norm_output",
}


def _vllm_flag(ctx: Context, flag: str, kind: str) -> Iterator[Hit]:
    assert ctx.engine is not None
    if kind == "mla" and flag == "norm_before_fc":
        yield Hit(
            "norm_before_fc: vLLM's MLA class has no input_norm and refuses the tensor", pointer=f"/{flag}"
        )
        return
    config = ctx.checkpoint.config or {}
    if flag == "fc_norm" and not config.get("fc_norm") and config.get("use_aux_norm"):
        yield Hit(
            "use_aux_norm is SGLang's name for fc_norm: vLLM doesn't know it and refuses the tensors",
            pointer="/use_aux_norm",
            hint='write "fc_norm": true, too; both engines read it',
        )
        return
    fact = _VLLM_FLAG_FACTS[flag]
    if holds(fact, ctx.engine) is False:
        yield Hit(
            f"{flag}: vLLM is known to implement it from {first_release(fact)} on, and this is {ctx.engine.version}",
            pointer=f"/{flag}",
            hint=f"serve with vllm >= {first_release(fact)}",
        )


@check(
    "NRM006",
    "norm-left-at-ones",
    Severity.ERROR,
    needs=("load", "draft"),
    after=("KEY003", "FIL", "KEY001", "LAY010", "CFG004"),
)
def norm_left_at_ones(ctx: Context) -> Iterator[Hit]:
    """A norm that the engine builds and that no tensor fills.

    Checks: every norm parameter gets data from the checkpoint.
    Why: a norm without data stays at ones; engines say nothing. Later layers are the common case: SGLang norms them by
        hidden_norm, vLLM by input_layernorm, and each ignores the other's name.
    Example: model.layers.1.hidden_norm.weight stays at ones: SGLang norms layers from the second on by hidden_norm, and the file
        has input_layernorm only
    Fix: ckpt fix-keys writes both names.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:97-105; vllm 0.33.0 model_executor/models/llama_eagle3.py:136-138.
    """
    assert ctx.load is not None and ctx.draft is not None
    if ctx.load.refused:
        return
    said = {n for names in flagged_norms_missing(ctx).values() for n in names}  # by NRM003
    at_ones = [
        name
        for name, fill in ctx.load.parameters.items()
        if fill.filled_by == "default"
        and "norm" in name
        and name.endswith(".weight")
        and _checkpoint_name(name) not in said
        and not _harmless(ctx, name)
        and not beyond_file(ctx, name)
    ]
    renamed = [
        n for n in at_ones if (layer_of(n) or 0) > 0 and ("hidden_norm" in n or "input_layernorm" in n)
    ]
    lost = [n for n in at_ones if n not in renamed]
    who = ctx.engine.name if ctx.engine else "the engine"
    if renamed:
        yield Hit(
            f"{_named(renamed)} no data and stay{'' if len(renamed) > 1 else 's'} at ones; {who} norms layers from the second on by "
            f"{renamed[0].rsplit('.', 2)[-2]}, and the file has another name for that norm",
            tensor=_checkpoint_name(renamed[0]),
            hint="ckpt fix-keys IN OUT writes the names that this engine reads",
        )
    if lost:
        yield Hit(
            f"{_named(lost)} no data and stay{'' if len(lost) > 1 else 's'} at ones",
            tensor=_checkpoint_name(lost[0]),
            hint=f"take the tensor{'s' if len(lost) > 1 else ''} from the training checkpoint",
        )


def _named(names: list[str]) -> str:
    """``a gets``, or ``a, b and 3 more norms get``."""
    if len(names) == 1:
        return f"{names[0]} gets"
    rest = f" and {len(names) - 3} more norms" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} get"


def _checkpoint_name(parameter: str) -> str:
    return parameter.removeprefix("model.")


def _harmless(ctx: Context, name: str) -> bool:
    """Norms that the engine builds and never applies to this head."""
    layer = layer_of(name)
    assert ctx.draft is not None
    by_hidden_norm = _is(ctx, "sglang") or _is(ctx, "trtllm")
    if layer is not None and layer > 0:
        unused = ("input_layernorm",) if by_hidden_norm else ("hidden_norm",)
        return any(u in name for u in unused)
    return ctx.draft.algorithm == "eagle" and "input_layernorm" in name


@check(
    "NRM007", "norm-before-residual-unstated", Severity.WARNING, needs=("draft", "engine"), engines=("vllm",)
)
def norm_before_residual_unstated(ctx: Context) -> Iterator[Hit]:
    """norm_before_residual isn't stated, and readers take different defaults.

    Checks: a speculators EAGLE-3 config states norm_before_residual.
    Why: vLLM takes true for a speculators folder that doesn't say, speculators itself false: the same files compute two functions.
    Example: norm_before_residual isn't stated: vLLM takes true, speculators false
    Fix: Write the value that the head was trained with.
    References: vllm 0.33.0 transformers_utils/configs/speculators/algos.py:15-50; speculators 0.9.0 models/eagle3/config.py.
    """
    assert ctx.draft is not None
    if (
        ctx.draft.format == "speculators"
        and ctx.draft.algorithm == "eagle3"
        and ctx.draft.facts.norm_before_residual is None
    ):
        yield Hit(
            "norm_before_residual isn't stated: vLLM takes true for a speculators folder, speculators itself false",
            pointer="/norm_before_residual",
            hint='write "norm_before_residual" as the head was trained',
        )
