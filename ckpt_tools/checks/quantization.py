"""QNT: quantised target or draft."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.filling import starved
from ckpt_tools.checks.mtp import bundled, flat_config
from ckpt_tools.engines.history import family
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKED = (
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "qweight",
    "qzeros",
    "scales",
    "weight_shape",
    "g_idx",
    "input_scale",
)


def quantization_config(ctx: Context) -> Mapping[str, Any] | None:
    """The draft's own quantisation block, wherever engines look for it."""
    config = ctx.checkpoint.config or {}
    for key in ("quantization_config", "compression_config"):
        if isinstance(config.get(key), dict):
            block: Mapping[str, Any] = config[key]
            return block
    extra = ctx.checkpoint.extra.get("hf_quant_config")
    return extra if isinstance(extra, dict) else None


def quantised_tensors(ctx: Context) -> list[str]:
    """Tensors that a quantised checkpoint has beside or instead of plain weights."""
    return [n for n in ctx.checkpoint.tensors if n.rsplit(".", 1)[-1] in PACKED]


def _method(block: Mapping[str, Any]) -> str:
    inner = block.get("quantization")
    value = (
        block.get("quant_method")
        or block.get("quant_algo")
        or (inner.get("quant_algo") if isinstance(inner, dict) else None)
    )
    return str(value or "unknown")


@check("QNT001", "quantised-without-config", Severity.ERROR, needs=("draft",), after=("FIL",))
def without_config(ctx: Context) -> Iterator[Hit]:
    """Quantised tensors without a quantization_config.

    Checks: packed weights and scales come with a quantization_config (or hf_quant_config.json).
    Why: the engine builds plain layers: packed tensors have no parameter, float8 weights are cast without their scale.
    Example: 7 quantised tensors (such as layers.0.mlp.gate_proj.weight_packed) and no quantization_config
    Fix: Write the quantization_config that the draft was quantised with.
    References: vllm 0.33.0 models/utils.py:324-341 (run: cast without scale); sglang 0.5.23 srt/configs/model_config.py:1727.
    """
    assert ctx.draft is not None
    names = [
        *quantised_tensors(ctx),
        *(n for n, t in ctx.checkpoint.tensors.items() if t.dtype.startswith("F8")),
    ]
    if names and quantization_config(ctx) is None and ctx.draft.algorithm != "mtp":
        yield Hit(
            f"{len(names)} quantised tensors (such as {names[0]}) and no quantization_config: the engine builds plain layers",
            tensor=names[0],
            hint="write the quantization_config that the draft was quantised with",
        )


def quantises_plain_tensors(ctx: Context) -> bool:
    """Whether a quantization_config stands over plain tensors alone, and the engine builds quantised layers for it."""
    block = quantization_config(ctx)
    if block is None or ctx.draft is None or ctx.draft.algorithm == "mtp":
        return False
    if quantised_tensors(ctx) or not ctx.checkpoint.tensors:
        return False
    if any(
        t.dtype.startswith("F8") or t.dtype in ("U8", "I8", "F4") for t in ctx.checkpoint.tensors.values()
    ):
        return False
    # A config may ignore every layer of the draft.
    return ctx.load is None or not ctx.load.parameters or bool(ctx.load.refused) or bool(starved(ctx.load))


@check("QNT002", "quantization-config-of-the-target", Severity.ERROR, needs=("draft",), after=("FIL",))
def copied(ctx: Context) -> Iterator[Hit]:
    """A quantization_config over plain tensors: copied from the target.

    Checks: with a quantization_config some tensors are quantised, unless it ignores all of them.
    Why: the engine builds quantised layers; plain weights have no parameter (SGLang drops them without a word) or are quantised
        without a scale (vLLM, float8).
    Example: quantization_config (compressed-tensors) and only plain tensors: it was copied from the target
    Fix: Remove quantization_config; ckpt fix-keys does.
    References: sglang 0.5.23 (run: all linears unloaded); vllm 0.33.0 (run: cast to float8 without a scale).
    """
    if not quantises_plain_tensors(ctx):
        return
    block = quantization_config(ctx) or {}
    at = "/quantization_config" if "quantization_config" in (ctx.checkpoint.config or {}) else None
    yield Hit(
        f"quantization_config ({_method(block)}) and only plain tensors: it was copied from the target, and the engine builds quantised "
        "layers that nothing fills",
        pointer=at,
        file="config.json" if at else "hf_quant_config.json",
        hint="remove quantization_config",
    )


@check(
    "QNT003",
    "draft-quantised-with-the-target",
    Severity.WARNING,
    needs=("draft", "launch", "engine"),
    engines=("sglang",),
)
def with_the_target(ctx: Context) -> Iterator[Hit]:
    """--quantization on the command line quantises the draft, too.

    Checks: with --quantization and a plain draft there is --speculative-draft-model-quantization.
    Why: SGLang copies the flag to the draft and quantises it on the fly (fp8), or fails (compressed-tensors without its config).
    Example: --quantization fp8 is copied to the draft, which is plain float16
    Fix: --speculative-draft-model-quantization unquant (SGLang 0.5.7 and later).
    References: sglang 0.5.23 srt/arg_groups/serving_hook.py:675-710 (run); sglang#3824.
    """
    assert ctx.launch is not None
    method = ctx.launch.value("--quantization")
    if method is None or quantization_config(ctx) is not None:
        return
    if ctx.launch.given("--speculative-draft-model-quantization"):
        return
    yield Hit(
        f"--quantization {method} is copied to the draft, which is plain: set it apart with "
        "--speculative-draft-model-quantization unquant",
        hint="add --speculative-draft-model-quantization unquant (SGLang 0.5.7 and later)",
    )


@check(
    "QNT004",
    "float16-draft-on-float8-target",
    Severity.WARNING,
    needs=("draft", "target.quantization", "engine"),
)
def float16_on_float8(ctx: Context) -> Iterator[Hit]:
    """A float16 draft beside a float8 target.

    Checks: the draft's dtype is bfloat16 when the target is quantised to float8.
    Why: reported to break: dtype clashes in the draft's graph on SGLang, first token right and then noise on vLLM.
    Example: the target is quantised (fp8) and the draft says float16
    Fix: Prefer bfloat16: ckpt fix-keys IN OUT --dtype bf16
    References: sglang#3824; vllm#9534 (vLLM runs the draft in the target's dtype: config/speculative.py:1418).
    """
    assert ctx.draft is not None and ctx.target is not None and ctx.target.quantization is not None
    method = str(ctx.target.quantization.get("quant_method", "")).lower()
    config = ctx.checkpoint.config or {}
    stated = config.get("dtype", config.get("torch_dtype"))
    if "fp8" not in method and "float8" not in str(ctx.target.quantization).lower():
        return
    if stated != "float16":
        return
    vllm = ctx.engine is not None and family(ctx.engine.name) == "vllm"
    yield Hit(
        f"the target is quantised ({method or 'fp8'}) and the draft says float16: reported to break; prefer bfloat16",
        pointer="/dtype" if "dtype" in config else "/torch_dtype",
        severity=Severity.INFO if vllm else None,
        hint="ckpt fix-keys IN OUT --dtype bf16",
    )


@check("QNT005", "target-quantised", Severity.INFO, needs=("draft", "target.quantization"), after=("QNT002",))
def target_quantised(ctx: Context) -> Iterator[Hit]:
    """A plain draft beside a quantised target, which is as it should be.

    Checks: whether the target is quantised and the draft isn't.
    Why: current engines read the draft's own config only; older vLLM built the draft with the target's.
    Example: the target is quantised (compressed-tensors), the draft is plain: right on current engines
    Fix: Nothing.
    References: vllm 0.33.0 model_executor/models/utils.py:985-1007; sglang 0.5.23 srt/configs/model_config.py:2117-2138.
    """
    assert ctx.target is not None and ctx.target.quantization is not None
    if quantization_config(ctx) is None and ctx.draft is not None and ctx.draft.algorithm != "mtp":
        yield Hit(
            f"the target is quantised ({_method(ctx.target.quantization)}) and the draft is plain: right on current engines"
        )


@check("QNT006", "next-token-quantisation-mismatch", Severity.ERROR, needs=("config",), after=("FIL",))
def quantisation(ctx: Context) -> Iterator[Hit]:
    """Plain next-token weights that the engine builds quantised, or names in ignore that never match.

    Checks: in a quantised target, next-token linears stored plain are in the ignore list under the names that the engine builds.
    Why: SGLang builds Qwen's mtp.* head under model.*, so ignore entries named mtp.* never match and packed modules wait for plain
        tensors: KeyError. Experts that the list forgets are built packed on every engine.
    Example: 12 mtp.* linears are stored plain and listed in ignore under mtp.*, but SGLang builds this head as model.*
    Fix: Quantise them too, or list them under the names that the engine builds.
    References: sglang 0.5.23 srt/models/qwen3_next_mtp.py (run with a GPU pretended: KeyError); vllm#41994, sglang#35797.
    """
    config = flat_config(ctx.checkpoint.config or {})
    block = config.get("quantization_config") or (ctx.checkpoint.config or {}).get("quantization_config")
    if not isinstance(block, dict):
        return
    names = [n for n in bundled(ctx) if n.endswith(".weight") and len(ctx.checkpoint.tensors[n].shape) == 2]
    plain = [n for n in names if ctx.checkpoint.tensors[n].dtype in ("BF16", "F16", "F32") and _is_linear(n)]
    ignore = [str(i) for i in block.get("ignore") or block.get("modules_to_not_convert") or []]
    unlisted = [n for n in plain if not _listed(n.removesuffix(".weight"), ignore)]
    sglang = ctx.engine is not None and ctx.engine.name.startswith("sglang")
    if unlisted:
        yield Hit(
            f"{len(unlisted)} next-token linears (such as {unlisted[0]}) are stored plain and not listed in quantization_config.ignore: the "
            "engine builds them quantised and nothing fills them",
            tensor=unlisted[0],
            pointer="/quantization_config/ignore",
            hint="list them in ignore",
        )
    elif sglang and any(n.startswith("mtp.") for n in plain):
        first = next(n for n in plain if n.startswith("mtp."))
        yield Hit(
            f"{len(plain)} mtp.* linears are stored plain and listed in ignore under mtp.*, but SGLang builds this head under model.*: the "
            "entries never match, the head is built quantised, and loading raises KeyError",
            tensor=first,
            pointer="/quantization_config/ignore",
            hint="list them under model.* as well, or quantise them",
        )


def _is_linear(name: str) -> bool:
    return not any(
        part in name
        for part in ("norm", "embed_tokens", "lm_head", "mlp.gate.weight", "shared_expert_gate", "conv1d")
    )


def _listed(module: str, ignore: list[str]) -> bool:
    for entry in ignore:
        if entry.startswith("re:"):
            if re.match(entry[3:], module):
                return True
        elif module == entry or module.startswith(entry.rstrip("*").rstrip(".") + ".") or entry in module:
            return True
    return False
