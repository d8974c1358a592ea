"""KEY: tensor names, prefixes, tensors and biases that an engine drops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.capture import aux_declined
from ckpt_tools.checks.filling import starved
from ckpt_tools.checks.layers import beyond_file
from ckpt_tools.engines.history import family
from ckpt_tools.model import Fix, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.model import LoadMap

#: Tensors that no engine reads and whose loss changes nothing.
HARMLESS = ("t2d", "rotary_emb.", "verifier_norm", "inv_freq", "cos_cached", "sin_cached")


def is_harmless(name: str) -> bool:
    """Whether a tensor may go unread without any effect."""
    return any(part in name for part in HARMLESS)


def groups(names: tuple[str, ...]) -> dict[str, list[str]]:
    """Names by their first part (``decoder.``, ``layers.1.`` …), so that one cause is one finding."""
    out: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        key = (
            ".".join(parts[:2]) + "."
            if len(parts) > 2 and parts[1].isdigit()
            else parts[0] + "."
            if len(parts) > 1
            else name
        )
        out.setdefault(key, []).append(name)
    return out


def _wanted_prefix(load: LoadMap, lost: list[str]) -> str | None:
    """The prefix of starved parameters whose tails match the lost names."""
    tails = {n.split(".", 1)[-1] for n in lost}
    for parameter in starved(load):
        bare = parameter.removeprefix("model.")
        for split in ("qkv_proj", "gate_up_proj"):
            bare = bare.replace(split, "q_proj" if split == "qkv_proj" else "gate_proj")
        for tail in tails:
            if bare.endswith(tail) and bare != tail:
                return bare[: -len(tail)]
    return None


@check(
    "KEY001",
    "tensor-ignored-by-engine",
    Severity.ERROR,
    needs=("load", "draft"),
    after=("FIL", "KEY003", "LAY010", "KEY008", "QNT002", "CFG004"),
)
def tensor_ignored(ctx: Context) -> Iterator[Hit]:
    """Tensors that reach no parameter of the class that the engine builds.

    Checks: every tensor of the file fills a parameter, save those that no engine reads (t2d, rotary caches).
    Why: loaders are not strict. A name that the engine doesn't know is dropped without a word, and the parameter that it was
        meant for stays uninitialised: the server starts, answers correctly and accepts nothing.
    Example: 9 tensors under decoder. reach no parameter of LlamaForCausalLMEagle3; 7 parameters of layer 0 stay uninitialised
    Fix: ckpt fix-keys IN OUT writes the names that the engine reads.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:325-378 (unknown names dropped), 0.4.9-0.5.11 drop layers.0.* too; vllm
        0.33.0 model_executor/models/utils.py:216-502 (unknown names raise).
    """
    load = ctx.load
    assert load is not None and ctx.draft is not None
    if load.refused:
        return
    kept = {ctx.draft.tensors.get(n) for n in ("embed_tokens.weight", "lm_head.weight")}
    if ctx.draft.facts.draft_vocab_size == ctx.draft.facts.vocab_size:
        kept.add(ctx.draft.tensors.get("d2t"))  # nothing to map
    if ctx.draft.algorithm == "peagle":
        kept.add(ctx.draft.tensors.get("mask_hidden"))  # PAR016 says when it is read
    kept |= _said_elsewhere(ctx)
    lost = tuple(
        n
        for n in load.unused
        if not is_harmless(n)
        and n not in kept
        and n not in ctx.draft.dropped
        and not _twin(n)
        and not n.endswith(".bias")  # KEY005
    )
    hungry = starved(load)
    for prefix, names in groups(lost).items():
        aim = _wanted_prefix(load, names) if hungry else None
        what = f"{len(names)} tensors under {prefix}" if len(names) > 1 else names[0]
        if hungry:
            yield Hit(
                f"{what} reach{'' if len(names) > 1 else 'es'} no parameter of {load.architecture}, and {len(hungry)} parameters "
                f"stay uninitialised (such as {hungry[0]}); nothing is logged"
                + (f". {ctx.engine} wants {aim}" if aim else ""),
                tensor=names[0],
                file=_file(ctx, names[0]),
                hint="ckpt fix-keys IN OUT writes the names that this engine reads",
                fix=Fix("ckpt fix-keys IN OUT", safe=True),
            )
        else:
            yield Hit(
                f"{what} reach{'' if len(names) > 1 else 'es'} no parameter of {load.architecture} and "
                f"{'are' if len(names) > 1 else 'is'} dropped without a word; every parameter gets its data from others",
                tensor=names[0],
                file=_file(ctx, names[0]),
                severity=Severity.WARNING,
                hint="remove them, or find out which parameter they were meant for",
            )


def _said_elsewhere(ctx: Context) -> set[str | None]:
    """Unread tensors whose cause has a code of its own: norms (NRM002, NRM004, NRM005), layers beyond the count (LAY003), fc (CAP013)."""
    assert ctx.draft is not None
    stated = ctx.draft.facts.num_layers
    read = {native for fill in (ctx.load.parameters if ctx.load else {}).values() for native in fill.sources}
    norms = {native: c.split(".")[0] for c, native in ctx.draft.tensors.items()}
    dropped_norms = {"input_norm", "fc_norm"} - {norms.get(native) for native in read}
    said: set[str | None] = set()
    for canonical, native in ctx.draft.tensors.items():
        parts = canonical.split(".")
        beyond = (
            parts[0] == "layers" and parts[1].isdigit() and stated is not None and int(parts[1]) >= stated
        )
        qk = ctx.draft.algorithm in ("eagle3", "peagle") and parts[-2:-1] in (["q_norm"], ["k_norm"])
        if beyond or qk or parts[0] in dropped_norms:
            said.add(native)
    if ctx.engine is not None and family(ctx.engine.name) == "sglang":
        # its default mode doesn't ask DSpark's confidence head at all (sglang 0.5.23 srt/environ.py:1572, models/dspark.py:667-696)
        said |= {native for c, native in ctx.draft.tensors.items() if c.startswith("confidence_head.")}
    if aux_declined(ctx):
        said.add(ctx.draft.tensors.get("fc.weight"))
    return said


def _twin(name: str) -> bool:
    parts = name.split(".")
    return (
        len(parts) == 4
        and parts[0] == "layers"
        and parts[2] in ("input_layernorm", "hidden_norm")
        and parts[1] != "0"
    )


def _file(ctx: Context, name: str) -> str | None:
    info = ctx.checkpoint.tensors.get(name)
    return info.file if info else None


@check(
    "KEY002",
    "parameter-left-unfilled",
    Severity.ERROR,
    needs=("load", "draft"),
    after=("FIL", "KEY001", "KEY003", "LAY010", "QNT002", "CFG004"),
)
def parameter_unfilled(ctx: Context) -> Iterator[Hit]:
    """Parameters that the engine builds and that no tensor fills.

    Checks: every parameter of the engine's class gets data from the checkpoint or the target.
    Why: engines don't check completeness. A linear layer without data is uninitialised memory; the draft computes noise.
    Example: model.fc.weight gets no data: fc.weight is missing
    Fix: Take the tensors from the training checkpoint.
    References: sglang 0.5.23 srt/model_loader/loader.py:1063 (result of load_weights ignored); vllm 0.33.0
        model_executor/model_loader/default_loader.py:512-523 (check skipped for drafts).
    """
    load = ctx.load
    assert load is not None
    if load.refused:
        return
    # lm_head, embed_tokens, the map and layers beyond the file's have codes of their own: HED001, HED006, VOC006, LAY002
    own = ["draft_id_to_target_id", "hot_token_id"]
    if ctx.draft is not None and ctx.draft.algorithm in ("eagle3", "peagle"):
        own += [n for n in ("lm_head", "embed_tokens") if f"{n}.weight" not in ctx.draft.tensors]
    hungry = [n for n in starved(load) if not any(part in n for part in own) and not beyond_file(ctx, n)]
    if not hungry:
        return
    partly = [n for n in hungry if load.parameters[n].filled_by == "partly"]
    missing = sorted({m for n in hungry for m in _meant(n, load.parameters[n].sources)})
    listed = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
    yield Hit(
        f"{len(hungry)} parameters of {load.architecture} get no data"
        + (f" ({len(partly)} only in part)" if partly else "")
        + f" and stay uninitialised without a word; missing: {listed}",
        tensor=missing[0] if missing else None,
        hint="take the missing tensors from the training checkpoint",
    )


def _meant(parameter: str, sources: tuple[str, ...]) -> list[str]:
    """Checkpoint names that would fill a parameter, fused ones taken apart; those that are there left out."""
    bare = parameter.removeprefix("model.")
    parts = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
        "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    }
    for fused, single in parts.items():
        if fused in bare:
            names = [bare.replace(fused, s) for s in single]
            have = {s.split("self_attn.")[-1].split("mlp.")[-1] for s in sources}
            return [n for n in names if n.split("self_attn.")[-1].split("mlp.")[-1] not in have]
    return [bare]


@check("KEY003", "wrapper-prefix", Severity.ERROR, needs=("draft", "load"))
def wrapper_prefix(ctx: Context) -> Iterator[Hit]:
    """Every tensor carries the prefix of a training wrapper.

    Checks: names don't all begin with module., _orig_mod., draft_model., model. and the like, unless the engine takes that.
    Why: a wrapped name is an unknown name: SGLang drops it without a word, vLLM raises.
    Example: all 15 tensors carry the wrapper prefix _orig_mod.; SGLang drops them without a word
    Fix: ckpt fix-keys IN OUT takes it off.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:325-378 (takes model. alone); vllm 0.33.0
        model_executor/models/utils.py:216-502 (takes none).
    """
    assert ctx.draft is not None and ctx.load is not None
    if not ctx.draft.wrapper:
        return
    if not ctx.load.refused and not starved(ctx.load):
        return
    lost = len([n for n in ctx.load.unused if not is_harmless(n)])
    every = lost >= len([n for n in ctx.checkpoint.tensors if not is_harmless(n)])
    yield Hit(
        f"all {len(ctx.checkpoint.tensors)} tensors carry the wrapper prefix {ctx.draft.wrapper}: {ctx.engine} "
        + (
            "refuses them"
            if ctx.load.refused
            else f"drops {'them' if every else f'{lost} of them'} without a word"
        ),
        tensor=next(iter(ctx.checkpoint.tensors), None),
        hint="ckpt fix-keys IN OUT takes it off",
        fix=Fix("ckpt fix-keys IN OUT", safe=True),
    )


@check("KEY005", "bias-dropped-by-engine", Severity.ERROR, needs=("draft", "load"), after=("KEY003",))
def bias_dropped(ctx: Context) -> Iterator[Hit]:
    """Biases in the file that the engine's class has no parameter for.

    Checks: every bias tensor fills a parameter.
    Why: SGLang builds EAGLE-3 attention without q/k/v bias whatever attention_bias says; vLLM drops any unexpected *.bias. The
        head was trained with them.
    Example: 4 biases (such as layers.0.self_attn.q_proj.bias) are dropped without a word
    Fix: vLLM keeps attention biases when attention_bias is true; SGLang does with ckpt's model package.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:67-75; vllm 0.33.0 model_executor/models/utils.py:458.
    """
    assert ctx.load is not None
    if ctx.load.refused:
        return
    # SGLang's default mode doesn't ask DSpark's confidence head at all
    lost = [n for n in ctx.load.unused if n.endswith(".bias") and "confidence_head." not in n]
    if lost:
        yield Hit(
            f"{len(lost)} biases (such as {lost[0]}) have no parameter in {ctx.load.architecture} and are dropped without a word",
            tensor=lost[0],
            hint="if the file is right, this engine can't serve the head; vLLM keeps attention biases with attention_bias: true",
        )


@check(
    "KEY007",
    "load-refused",
    Severity.ERROR,
    needs=("load",),
    after=("FIL", "CFG", "KEY", "SHP", "VOC", "CAP", "NRM", "HED", "LAY", "PAR", "QNT", "MTP", "ENG003"),
)
def load_refused(ctx: Context) -> Iterator[Hit]:
    """The engine refuses the draft, and no other check names the cause.

    Checks: the engine's own loader takes the draft.
    Why: the server doesn't start.
    Example: vLLM refuses it while loading: There is no module or parameter named 'layers.1' in LlamaModel
    Fix: As the engine's message says.
    References: the load map's rules, each with its file and line (docs/engines).
    """
    assert ctx.load is not None
    if ctx.load.refused:
        stage = {
            "config": "while reading config.json",
            "class": "while choosing the class",
            "load": "while loading weights",
        }
        yield Hit(
            f"{ctx.engine} refuses the draft {stage.get(ctx.load.stage or 'load')}: {ctx.load.refused}",
            file="config.json" if ctx.load.stage in ("config", "class") else None,
        )


@check(
    "KEY008",
    "name-refused-by-engine",
    Severity.ERROR,
    needs=("load", "draft"),
    after=("FIL", "KEY003", "NRM002", "NRM004", "LAY003", "LAY010", "VOC008", "HED008"),
)
def name_refused(ctx: Context) -> Iterator[Hit]:
    """The engine raises on a tensor name that it doesn't know.

    Checks: (vLLM) every name at the root of the file is one that the class knows.
    Why: vLLM raises on unknown names; the server doesn't start.
    Example: vLLM raises: There is no module or parameter named 'decoder' in LlamaModel
    Fix: ckpt fix-keys IN OUT --to vllm writes the names that vLLM knows.
    References: vllm 0.33.0 model_executor/models/utils.py:216-502.
    """
    assert ctx.load is not None and ctx.draft is not None
    refused = ctx.load.refused
    if refused is None or "no module or parameter named" not in refused:
        return
    named = refused.split("'")[1] if "'" in refused else ""
    spellings = (named, *(named.replace(fused, single) for fused, single in _FUSED if fused in named))
    culprit = next(
        (
            n
            for n in ctx.checkpoint.tensors
            if any(n.startswith(s) or n.split(".")[0] == s for s in spellings)
        ),
        None,
    )
    canonical = next((c for c, native in ctx.draft.tensors.items() if native == culprit), "")
    if _flag_unknown(ctx, canonical.split(".")[0]):
        return  # NRM005 says it
    yield Hit(
        f"{ctx.engine} raises on the tensor {culprit or named}: {refused.split('. The available')[0]}",
        tensor=culprit,
        hint="ckpt fix-keys IN OUT --to vllm writes the names that vLLM knows, or remove the tensor",
    )


#: Parameters that vLLM joins, and a name that the file has for them: it names the joined one when it raises.
_FUSED = (("qkv_proj", "q_proj"), ("gate_up_proj", "gate_proj"))


def _flag_unknown(ctx: Context, norm: str) -> bool:
    """Whether a flag goes with this norm and is set: the engine doesn't know it, then."""
    assert ctx.draft is not None
    facts = ctx.draft.facts
    flags = {"input_norm": facts.norm_before_fc, "fc_norm": facts.fc_norm}
    return bool(flags.get(norm))
