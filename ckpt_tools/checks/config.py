"""CFG: config fields, architectures, model_type."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import CheckFunction, Context, Hit, check
from ckpt_tools.checks.capture import invalid, not_delivered
from ckpt_tools.checks.needs import newer_release
from ckpt_tools.checks.parallel import FAMILY as DFLASH_FAMILY
from ckpt_tools.checks.quantization import quantises_plain_tensors
from ckpt_tools.checks.shapes import heads
from ckpt_tools.engines.history import family
from ckpt_tools.formats import formats
from ckpt_tools.model import Fix, Severity
from ckpt_tools.schemas import violations

if TYPE_CHECKING:
    from collections.abc import Iterator


#: What engines say when architectures names no class of theirs (vllm 0.33.0 model_executor/models/registry.py:1249, where it is looked
#: up while the config is read; sglang 0.5.23 srt/model_loader/utils.py:111-195). Whatever else they say while building is about the config.
_NO_CLASS = ("Model architectures", "Cannot find model module", "has no SGlang implementation")


def _about_class(refused: str) -> bool:
    return any(said in refused for said in _NO_CLASS)


def _said_elsewhere(ctx: Context, refused: str) -> bool:
    """Whether another check says what the engine's words are about: LAY002, LAY003, LAY005, QNT002, CAP005, CAP006, SHP006 or CFG006."""
    if "quantization" in refused and quantises_plain_tensors(ctx):
        return True
    layers = ctx.draft.facts.num_layers if ctx.draft is not None else None
    if "only supports 1 layer" in refused and (layers or 1) > 1:
        return True
    told: tuple[tuple[tuple[str, ...], tuple[CheckFunction, ...]], ...] = (
        (("layer id",), (not_delivered, invalid)),
        (("divisible", "multiple"), (heads,)),
        (("activation",), (activation,)),
    )
    return ctx.draft is not None and any(
        any(word in refused for word in words) and any(next(said(ctx), None) is not None for said in by)
        for words, by in told
    )


def _config(ctx: Context) -> dict[str, Any]:
    return dict(ctx.checkpoint.config or {})


@check(
    "CFG002",
    "config-refused",
    Severity.ERROR,
    needs=("load", "config"),
    after=("CFG005", "CFG007", "HED002", "HED008", "PAR002", "MTP"),
)
def config_refused(ctx: Context) -> Iterator[Hit]:
    """The engine refuses the draft's config.json.

    Checks: the engine reads the config and can build its class from it: model_type is known to it, the fields that it needs are
        there and of the right kind.
    Why: the server refuses to start. A speculators folder has no model_type, so SGLang refuses it; the launcher says so before
        any GPU work.
    Example: SGLang refuses config.json: Unrecognized model. Should have a `model_type` key in its config.json
    Fix: ckpt fix-keys IN OUT writes a config that the engine reads.
    References: sglang 0.5.23 srt/utils/hf_transformers/config.py:215-233; vllm 0.33.0 transformers_utils/config.py:342-468.
    """
    assert ctx.load is not None
    refused, stage = ctx.load.refused, ctx.load.stage
    if refused is None or stage not in ("config", "class") or _about_class(refused):
        return
    if _said_elsewhere(ctx, refused):
        return
    kind = _config(ctx).get("model_type")
    speculators = ctx.draft is not None and ctx.draft.format == "speculators"
    flat = speculators and family(ctx.engine.name if ctx.engine else "") == "sglang"
    about_type = stage == "config" and kind is not None
    yield Hit(
        f"{ctx.engine} {'refuses' if stage == 'config' else 'cannot build the draft from'} config.json"
        + (f" (model_type {kind!r})" if about_type else "")
        + f": {refused}",
        pointer="/model_type" if about_type else None,
        file="config.json",
        hint="ckpt fix-keys IN OUT --to sglang writes a flat config with model_type"
        if flat
        else newer_release(ctx)
        or "write a config that the engine reads; ckpt fix-keys IN OUT does for the formats that it knows",
        fix=Fix("ckpt fix-keys IN OUT", safe=True) if speculators else None,
    )


@check(
    "CFG003",
    "architecture-unknown",
    Severity.ERROR,
    needs=("load", "config"),
    after=("CFG002", "CFG007", "PAR002", "ENG003"),
)
def architecture_unknown(ctx: Context) -> Iterator[Hit]:
    """The engine has no class of the name in architectures.

    Checks: architectures names a class that the engine's registry has at this release.
    Why: the server refuses to start; or, when transformers knows the class, the engine builds something that isn't a draft.
    Example: architectures ['EagleQwen2ForCausalLM'] is not known to vllm==0.33.0
    Fix: ckpt fix-keys writes the engine's own name; or serve with a release that has the class.
    References: sglang 0.5.23 srt/models/registry.py:93-150, srt/model_loader/utils.py:111-239; vllm 0.33.0
        model_executor/models/registry.py:655-745, 1249.
    """
    assert ctx.load is not None
    if ctx.load.refused is None or not _about_class(ctx.load.refused):
        return
    yield Hit(
        f"architectures {_config(ctx).get('architectures')} is not known to {ctx.engine}: {ctx.load.refused}",
        pointer="/architectures" if "architectures" in _config(ctx) else None,
        file="config.json",
        hint=newer_release(ctx) or "ckpt fix-keys IN OUT --to sglang (or vllm) writes the engine's own name",
    )


#: Words in the names of the engines' draft classes.
_DRAFT_WORDS = (
    "Eagle",
    "EAGLE",
    "DFlash",
    "DSpark",
    "MTP",
    "NextN",
    "XPress",
    "LiLiCorr",
    "Assistant",
    "Muse",
)


def names_draft(architecture: str) -> bool:
    """Whether a class's name is a draft's."""
    return any(word in architecture for word in _DRAFT_WORDS)


#: What a draft's class should be, by engine and algorithm, when architectures names a plain model.
_SHOULD = {
    ("sglang", "eagle3"): "LlamaForCausalLMEagle3",
    ("sglang", "eagle"): "…Eagle",
    ("vllm", "eagle3"): "Eagle3…",
    ("vllm", "eagle"): "Eagle…",
}


@check(
    "CFG004",
    "architecture-is-no-draft",
    Severity.ERROR,
    needs=("load", "draft", "config"),
    after=("CFG002", "CFG003"),
)
def architecture_is_no_draft(ctx: Context) -> Iterator[Hit]:
    """architectures names a plain model, so the engine builds no draft.

    Checks: the class that the engine builds is one of its draft classes.
    Why: the loader fills what fits and ignores the rest: most parameters stay uninitialised, or the start fails later with an
        attribute that a draft has and a plain model hasn't.
    Example: architectures names LlamaForCausalLM, a plain model: SGLang builds it and leaves 7 parameters uninitialised; it wants
        LlamaForCausalLMEagle
    Fix: ckpt fix-keys IN OUT, or write the draft class.
    References: sglang 0.5.23 srt/model_loader/utils.py:198-239, srt/models/llama_eagle.py, sglang#2863 (run).
    """
    assert ctx.load is not None and ctx.draft is not None
    built = ctx.load.architecture
    if built is None or ctx.engine is None or ctx.load.stage in ("config", "class"):
        return
    if names_draft(built):
        return
    if ctx.draft.algorithm == "mtp":
        return
    engine = family(ctx.engine.name)
    wants = _SHOULD.get((engine, ctx.draft.algorithm), "a draft class")
    if wants == "…Eagle":
        wants = f"{built}Eagle"
    hungry = sum(f.filled_by in ("nothing", "partly") for f in ctx.load.parameters.values())
    effect = (
        f"and refuses its tensors ({ctx.load.refused})"
        if ctx.load.refused
        else f"ignores the draft's own tensors and leaves {hungry} parameters uninitialised"
    )
    yield Hit(
        f"architectures names {built}, a plain model: {ctx.engine} builds it {effect}; it wants {wants}",
        pointer="/architectures",
        hint="ckpt fix-keys IN OUT writes the draft class"
        if ctx.draft.algorithm == "eagle3"
        else f'write "architectures": ["{wants}"]',
    )


@check("CFG005", "null-field", Severity.ERROR, needs=("draft", "engine", "config"))
def null_field(ctx: Context) -> Iterator[Hit]:
    """A field is null where the engine computes with it.

    Checks: target_hidden_size is absent rather than null in a flat config; dflash_config and eagle_config are absent or objects.
    Why: SGLang's Llama class multiplies target_hidden_size by the number of layers (TypeError: NoneType and int); so does vLLM in
        flat configs. speculators writes null by default, so copying its fields is how it gets there.
    Example: target_hidden_size is null: SGLang computes None * 3 and raises TypeError
    Fix: Remove the field; ckpt fix-keys does.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:151-154 (run); vllm 0.33.0 model_executor/models/llama_eagle3.py (run),
        qwen3_dflash.py (run).
    """
    assert ctx.draft is not None and ctx.engine is not None
    config = _config(ctx)
    if ctx.draft.format == "speculators":
        return
    if (
        "target_hidden_size" in config
        and config["target_hidden_size"] is None
        and ctx.draft.algorithm in ("eagle3", "peagle")
    ):
        if ctx.draft.facts.layer_type == "mla" or (ctx.load is not None and not ctx.load.refused):
            return
        yield Hit(
            f"target_hidden_size is null: {ctx.engine} multiplies it and raises TypeError (NoneType and int)",
            pointer="/target_hidden_size",
            hint="remove the field; ckpt fix-keys IN OUT does",
        )
    for field in ("dflash_config", "eagle_config"):
        if (
            field in config
            and config[field] is None
            and family(ctx.engine.name) == "vllm"
            and ctx.draft.algorithm.startswith("dflash")
        ):
            yield Hit(
                f"{field} is null: {ctx.engine} raises on it", pointer=f"/{field}", hint="remove the field"
            )


@check("CFG006", "activation-unsupported", Severity.ERROR, needs=("draft", "engine"))
def activation(ctx: Context) -> Iterator[Hit]:
    """hidden_act isn't one that the engine's draft class has.

    Checks: hidden_act is silu; SGLang's DFlash classes take swigluoai, too.
    Why: both engines raise while building the layer.
    Example: hidden_act is gelu; SGLang's class takes silu alone and raises
    Fix: No engine serves it; retrain with silu (speculators train --draft-hidden-act silu).
    References: sglang 0.5.23 srt/models/llama.py:116-119, dflash.py:493 (run); vllm 0.33.0 model_executor/models/llama.py:112,
        qwen3_dflash.py (run).
    """
    assert ctx.draft is not None and ctx.engine is not None
    act = ctx.draft.facts.hidden_act
    parallel = ctx.draft.algorithm in DFLASH_FAMILY
    takes = ("silu", "swigluoai") if parallel and family(ctx.engine.name) == "sglang" else ("silu",)
    if act is None or act in takes or ctx.draft.algorithm == "mtp" or ctx.engine.name == "trtllm":
        return
    if parallel and ctx.load is not None and not ctx.load.refused:
        return
    yield Hit(
        f"hidden_act is {act}; {ctx.engine}'s draft class takes {' or '.join(takes)} alone and raises ValueError",
        pointer="/transformer_layer_config/hidden_act"
        if ctx.draft.format == "speculators"
        else "/hidden_act",
    )


@check(
    "CFG007", "model-type-rewritten", Severity.ERROR, needs=("draft", "engine", "config"), engines=("vllm",)
)
def model_type_rewritten(ctx: Context) -> Iterator[Hit]:
    """vLLM rewrites the draft's config to its MTP class by model_type.

    Checks: an MLA EAGLE-3 draft doesn't say model_type deepseek_v3, deepseek_v32 or glm_moe_dsa on vLLM; a speculators folder has no
        top-level model_type.
    Why: vLLM looks at model_type before architectures and ends with an unknown class, or ignores the nested blocks.
    Example: model_type deepseek_v3 makes vLLM look for Eagle3DeepSeekMTPModel, which doesn't exist
    Fix: model_type kimi_k2 or deepseek_v2; remove model_type from a speculators config.
    References: vllm 0.33.0 config/speculative.py:710-1169, transformers_utils/config.py:361-424 (run).
    """
    config = _config(ctx)
    kind = config.get("model_type")
    if ctx.draft is None or ctx.load is None or ctx.load.refused is None:
        return
    if ctx.draft.format == "speculators" and kind is not None:
        yield Hit(
            f"model_type {kind!r} on the top level makes vLLM read the folder as a plain model and ignore transformer_layer_config",
            pointer="/model_type",
            hint="remove model_type",
        )
    elif kind in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa") and ctx.draft.algorithm == "eagle3":
        yield Hit(
            f"model_type {kind} makes vLLM look for Eagle3DeepSeekMTPModel, which doesn't exist",
            pointer="/model_type",
            hint='write "model_type": "kimi_k2" (or deepseek_v2)',
        )


@check("CFG012", "verifier-not-target", Severity.WARNING, needs=("draft", "target"))
def verifier_not_target(ctx: Context) -> Iterator[Hit]:
    """The draft names another target than the one it is checked for.

    Checks: the verifier that the draft records is --target; for a target on this machine, its class is the target's.
    Why: a draft is trained on one target's hidden states; on another, even of the same family and shape, it accepts less. Serving
        works, so this is said and not refused.
    Example: the draft names moonshotai/Kimi-K2-Instruct, and --target is kimi-k2.5
    Fix: Check that the draft is meant for this target.
    References: speculators 0.9.0 config.py (speculators_config.verifier).
    """
    assert ctx.draft is not None and ctx.target is not None
    from ckpt_tools.convert.ids import names_target

    verifier = ctx.draft.facts.verifier
    named = verifier.name if verifier is not None else None
    if ctx.target.origin == "local":  # a folder may be called anything; its class can't
        theirs = {*ctx.target.architectures, *ctx.target.text_architectures}
        if (
            verifier is not None
            and verifier.architectures
            and theirs
            and not theirs & set(verifier.architectures)
        ):
            yield Hit(
                f"the draft was made for a {verifier.architectures[0]}"
                + (f" ({named})" if named else "")
                + f", and {ctx.target.id} is a {ctx.target.architectures[0] if ctx.target.architectures else min(theirs)}",
                pointer="/speculators_config/verifier/architectures",
                hint="check that the draft is meant for this target",
            )
        return
    if named is None or names_target(named, ctx.target):
        return
    yield Hit(
        f"the draft names {named} as its target, and it is checked for {ctx.target.id}",
        pointer="/speculators_config/verifier/name_or_path",
        severity=Severity.INFO if named.startswith(("/", ".", "~")) else None,
        hint="check that the draft is meant for this target",
    )


#: What vLLM takes as a repository on the Hub (one slash at most, no path).
_REMOTE = re.compile(r"[A-Za-z0-9_-][\w.-]*(/[\w.-]+)?")


@check(
    "CFG017",
    "verifier-not-remote",
    Severity.INFO,
    needs=("draft", "engine", "config"),
    engines=("vllm",),
    after=("CFG002",),
)
def verifier_not_remote(ctx: Context) -> Iterator[Hit]:
    """`vllm serve` of the draft's own folder needs a verifier on the Hub.

    Checks: a speculators config names a repository as its verifier, when the folder itself is served.
    Why: vLLM replaces the served model by the verifier that the config names, and refuses a local path or none.
    Example: the verifier is /data/Qwen3-8B: `vllm serve` of this folder itself is refused
    Fix: Serve the target, with the draft in --speculative-config.
    References: vllm 0.33.0 transformers_utils/config.py:800-876 (run).
    """
    assert ctx.draft is not None
    if ctx.draft.format != "speculators" or (ctx.checkpoint.config or {}).get("speculators_config") is None:
        return
    name = ctx.draft.facts.verifier.name if ctx.draft.facts.verifier else None
    if name is not None and _REMOTE.fullmatch(name):
        return
    itself = ctx.launch is not None and ctx.launch.model is not None and _same_folder(ctx, ctx.launch.model)
    if ctx.launch is not None and not itself:
        return
    yield Hit(
        f"the verifier is {name or 'not named'}: `vllm serve` of this folder itself is refused, as vLLM takes the target's model from there",
        pointer="/speculators_config/verifier/name_or_path",
        severity=Severity.ERROR if itself else None,
        hint="serve the target, with the draft in --speculative-config",
    )


def _same_folder(ctx: Context, model: str) -> bool:
    return os.path.abspath(model) == os.path.abspath(ctx.checkpoint.path)


@check("CFG013", "config-schema", Severity.WARNING, needs=("draft", "config"), after=("CFG002", "CFG005"))
def schema(ctx: Context) -> Iterator[Hit]:
    """A field of config.json is of the wrong kind.

    Checks: config.json fits the schema of its format (schemas/): numbers are numbers, lists are lists, fields that every reader
        needs are there.
    Why: engines and trainers take wrong kinds in different ways: a text "64" is refused here and computed with there.
    Example: /hidden_size: '64' is not of type 'integer'
    Fix: Write the field as the schema says.
    References: schemas/ (one per format), each with what its framework writes.
    """
    assert ctx.draft is not None
    form = formats().get(ctx.draft.format)
    if form is None:
        return
    for at, message in violations(form.schema, _config(ctx)):
        if at in ("/draft_vocab_size", "/architectures") or (
            not at and "is a required property" in message and "draft_vocab" in message
        ):
            continue  # HED008 and CFG003 say it better
        yield Hit(f"{at or 'config.json'}: {message[:300]}", pointer=at or None, file="config.json")
