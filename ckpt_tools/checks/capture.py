"""CAP: captured layers and their convention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.parallel import FAMILY, layer_ids
from ckpt_tools.engines import resolve
from ckpt_tools.engines.capture import LAST_LAYER_SINCE, Capture, captured, default_layers
from ckpt_tools.engines.history import family, holds
from ckpt_tools.engines.hooks import id_policy
from ckpt_tools.engines.trtllm import capture as trtllm
from ckpt_tools.formats.base import pointer
from ckpt_tools.formats.facts import id_list
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

NESTED = "eagle_config/eagle_aux_hidden_state_layer_ids"
TOP = "eagle_aux_hidden_state_layer_ids"
EAGLE3 = ("eagle3", "peagle")


def written_ids(ctx: Context) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """(nested, top-level) ids as the config writes them."""
    config = ctx.checkpoint.config or {}
    return id_list(pointer(config, NESTED)), id_list(pointer(config, TOP))


def engine_capture(ctx: Context, runner: str | None = None) -> Capture | None:
    """What the engine captures for this draft and target."""
    if ctx.engine is None or ctx.draft is None or ctx.draft.algorithm not in EAGLE3:
        return None
    nested, top = written_ids(ctx)
    config = ctx.checkpoint.config or {}
    listed = config.get("architectures")
    architecture = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None
    if ctx.draft.algorithm == "peagle":
        architecture = "PEagleDraftModel"
    use = pointer(config, "eagle_config/use_aux_hidden_state")
    chosen = runner if runner in ("V1", "V2") else None
    return captured(
        ctx.engine,
        target_class(ctx),
        ctx.target.num_hidden_layers if ctx.target else None,
        nested_ids=nested,
        top_level_ids=top,
        use_aux=use is not False,
        draft_architecture=architecture,
        runner=chosen,  # type: ignore[arg-type]
    )


def aux_declined(ctx: Context) -> bool:
    """Whether the config declines the captured layers that fc was trained on."""
    if ctx.draft is None or ctx.draft.algorithm not in EAGLE3:
        return False
    fc = ctx.draft.tensors.get("fc.weight")
    width = ctx.draft.facts.target_hidden_size or ctx.draft.facts.hidden_size
    if pointer(ctx.checkpoint.config or {}, "eagle_config/use_aux_hidden_state") is not False or fc is None:
        return False
    shape = ctx.checkpoint.tensors[fc].shape
    return width is not None and len(shape) == 2 and shape[1] > width


def target_class(ctx: Context) -> str | None:
    """The target's class: of the target at hand, else as the draft records it."""
    if ctx.target is not None and ctx.target.architectures:
        return ctx.target.architectures[0]
    verifier = ctx.draft.facts.verifier if ctx.draft else None
    return verifier.architectures[0] if verifier is not None and verifier.architectures else None


def _path(ctx: Context) -> str:
    nested, _ = written_ids(ctx)
    return "/" + (NESTED if nested is not None else TOP)


def _refused_config(ctx: Context) -> bool:
    return ctx.load is not None and ctx.load.refused is not None and ctx.load.stage in ("config", "class")


@check("CAP005", "capture-not-delivered", Severity.ERROR, needs=("draft", "engine"), after=("CAP006",))
def not_delivered(ctx: Context) -> Iterator[Hit]:
    """The engine can't capture the layers that the ids ask for.

    Checks: every id names a layer that the target's class captures; ids are not negative, repeated, or beyond the last
        capture point.
    Why: engines test membership while running the layers, so an id that is never reached, or given twice, yields fewer states
        than fc takes: a shape error at the first prefill, after minutes of loading, or an assertion in the packer.
    Example: id 8 asks for the output of layer 8 of 8, which LlamaForCausalLM never captures: two states come back where fc takes three
    Fix: Retrain with layers that the class captures, or serve with an engine that captures the last one (vLLM).
    References: sglang 0.5.23 srt/models/llama.py:485-494, srt/layers/aux_hidden_states.py:84-90, for DFlash
        srt/speculative/dflash_utils.py (run: ValueError for an id out of range); vllm 0.33.0
        model_executor/models/interfaces.py:1616-1617, qwen3_dflash.py:839-845.
    """
    assert ctx.draft is not None
    if ctx.draft.algorithm in FAMILY:
        yield from _parallel_not_delivered(ctx)
        return
    capture = engine_capture(ctx)
    if capture is None or capture.source in ("default", "off") or capture.problem is None:
        return
    if _is_graph_problem(capture.problem) or (capture.layers is None and "isn't known" in capture.problem):
        return
    if "V1 runner takes the ids" in capture.problem:
        return  # they are captured, and CAP007 says which
    ids = list(capture.configured or ())
    if capture.layers is None and (
        "depends on the target" in capture.problem or "may count" in capture.problem
    ):
        return
    if capture.layers is not None and -1 in capture.layers:
        yield Hit(f"ids {ids}: {capture.problem}", pointer=_path(ctx), severity=Severity.WARNING)
        return
    yield Hit(
        f"ids {ids}: {capture.problem}",
        pointer=_path(ctx),
        hint=f"{ctx.engine} says nothing while loading; the first prefill fails",
    )


def _parallel_not_delivered(ctx: Context) -> Iterator[Hit]:
    """Ids of a DFlash or DSpark draft that the engine refuses or never reaches; they always count outputs."""
    assert ctx.engine is not None
    ids, path = layer_ids(ctx)
    depth = ctx.target.num_hidden_layers if ctx.target is not None else None
    if ids is None or depth is None:
        return
    outputs = [k - 1 for k in ids] if path == "aux_hidden_state_layer_ids" else list(ids)
    named, sglang = target_class(ctx), family(ctx.engine.name) == "sglang"
    outside = [k for k, out in zip(ids, outputs, strict=True) if out >= depth or (sglang and out < 0)]
    last = sglang and depth - 1 in outputs and _stops_before_last(ctx, named)
    if outside:
        effect = (
            "SGLang raises ValueError (out-of-range layer id)"
            if sglang
            else f"{len(ids) - len(outside)} states come back where fc takes {len(ids)}"
        )
        yield Hit(
            f"{path} {list(ids)} holds {outside[0]}, which names no layer of a target of {depth}: {effect}",
            pointer="/" + path,
            hint="write the ids that the draft was trained with; is this its target?",
        )
    elif last:
        yield Hit(
            f"{path} {list(ids)}: the output of layer {depth - 1} of {depth} is never captured by {named}: {len(ids) - 1} states come "
            f"back where fc takes {len(ids)}",
            pointer="/" + path,
            hint="vLLM captures the last layer's output",
        )


def _stops_before_last(ctx: Context, named: str | None) -> bool:
    """Whether the class is known to count outputs and to stop before the last one."""
    if named is None or ctx.engine is None or named in LAST_LAYER_SINCE:
        return False
    policy, _ = id_policy(ctx.engine, named)
    return policy in ("plus1", "plus1_if_first_is_1")


def _is_graph_problem(problem: str) -> bool:
    return "CUDA graphs" in problem or "cuda-graph" in problem


@check("CAP006", "capture-ids-invalid", Severity.ERROR, needs=("draft",))
def invalid(ctx: Context) -> Iterator[Hit]:
    """Ids that are negative, repeated, or no integers.

    Checks: capture ids are distinct, non-negative integers.
    Why: duplicates collapse to one state; a negative id is never reached. fc then gets fewer features than it takes.
    Example: target_layer_ids [1, 3, 3] holds 3 twice
    Fix: Write the ids that the draft was trained with.
    References: sglang 0.5.23 srt/models/llama.py:485-494 (membership test); NVIDIA/Model-Optimizer#2149.
    """
    assert ctx.draft is not None
    config = ctx.checkpoint.config or {}
    for path in (
        NESTED,
        TOP,
        "dflash_config/target_layer_ids",
        "target_layer_ids",
        "aux_hidden_state_layer_ids",
    ):
        value = pointer(config, path)
        if not isinstance(value, list) or not value:
            continue
        wrong = [v for v in value if not isinstance(v, int) or isinstance(v, bool)]
        if wrong:
            yield Hit(f"{path} holds {wrong[0]!r}, which is no integer", pointer="/" + path)
            continue
        low = -1 if path.endswith("target_layer_ids") and ctx.draft.algorithm in FAMILY else 0
        negative = [v for v in value if v < low]
        twice = sorted({v for v in value if value.count(v) > 1})
        if negative:
            yield Hit(f"{path} {value} holds {negative[0]}, a layer that doesn't exist", pointer="/" + path)
            return
        elif twice:
            yield Hit(
                f"{path} {value} holds {twice[0]} twice: the states collapse to one and fc takes {len(value)}",
                pointer="/" + path,
            )
            return


@check(
    "CAP007", "capture-ids-not-read", Severity.ERROR, needs=("draft", "engine"), after=("CFG002", "CFG003")
)
def not_read(ctx: Context) -> Iterator[Hit]:
    """The ids stand where this engine doesn't look.

    Checks: SGLang finds ids in eagle_config, vLLM on the top level of the config; TensorRT-LLM looks nowhere.
    Why: SGLang ignores the top-level spelling and takes the default layers; vLLM's default runner ignores the nested one, and its
        older runner reads it one layer off; TensorRT-LLM takes them from its own API. Where the draft was trained on other layers,
        acceptance drops without a word.
    Example: the ids [2, 12, 22] stand on the top level, where SGLang doesn't look: it captures the default layers
    Fix: ckpt fix-keys IN OUT --to dual writes both spellings; for TensorRT-LLM, pass eagle3_layers_to_capture.
    References: sglang 0.5.23 srt/model_executor/model_runner_components/spec_aux_hidden_state.py:185-196; vllm 0.33.0
        v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:119, v1/worker/gpu_model_runner.py:5207-5219; TensorRT-LLM
        _torch/speculative/utils.py get_spec_metadata.
    """
    assert ctx.draft is not None and ctx.engine is not None
    if ctx.draft.algorithm == "dflash":
        yield from _dflash_on_v1(ctx)
    if ctx.draft.algorithm not in EAGLE3 or _refused_config(ctx):
        return
    nested, top = written_ids(ctx)
    trained = ctx.draft.facts.capture_layers
    depth = ctx.target.num_hidden_layers if ctx.target else None
    engine = family(ctx.engine.name)
    capture = engine_capture(ctx)
    if capture is None or capture.source == "off":
        return
    takes = capture.layers if capture.source == "default" else None
    if engine == "trtllm":
        yield from _trtllm(ctx)
        return
    read_nowhere = capture.source == "default" and capture.problem is not None
    if read_nowhere and (nested if engine == "sglang" else top) is not None and takes != trained:
        yield Hit(
            f"{capture.problem}{f' (outputs of {list(takes)})' if takes else ''}{_trained(trained)}",
            pointer=_path(ctx) if engine == "sglang" else "/" + TOP,
            severity=None if takes is not None and trained is not None else Severity.WARNING,
            hint=f"serve with a newer {ctx.engine.name}",
        )
        return
    if engine == "sglang" and nested is None and top is not None:
        if takes is not None and trained == takes:
            return
        yield Hit(
            f"the ids {list(top)} stand on the config's top level, where SGLang doesn't look: it captures its default layers "
            + (f"(outputs of {list(takes)})" if takes is not None else "(2, N//2, N-3)")
            + f", and the draft was trained on the outputs of {list(trained or ())}",
            pointer="/" + TOP,
            severity=None if depth is not None else Severity.WARNING,
            hint="ckpt fix-keys IN OUT writes them where SGLang looks",
        )
    if engine == "vllm" and top is None and nested is not None and ctx.draft.algorithm == "peagle":
        if capture.layers is not None and capture.layers != trained:
            yield Hit(
                f"the ids {list(nested)} stand in eagle_config: vLLM's V1 runner, which P-EAGLE takes, "
                + (
                    "reads them as states entering those layers, the outputs of "
                    if capture.source == "eagle_config"
                    else "ignores them and captures its default layers, the outputs of "
                )
                + f"{list(capture.layers)}{_trained(trained)}",
                pointer="/" + NESTED,
                severity=None if trained is not None else Severity.WARNING,
                hint=f'write "eagle_aux_hidden_state_layer_ids": {[k + 1 for k in trained]} on the top level'
                if trained
                else None,
            )
        return
    if engine == "vllm" and top is None and nested is not None:
        default = default_layers(depth) if depth else None
        if trained is not None and default == trained:
            return
        yield Hit(
            f"the ids {list(nested)} stand in eagle_config: vLLM's default runner (V2) ignores them and captures its default layers"
            + (f" (outputs of {list(default)})" if default else "")
            + f"; the V1 runner takes them as states entering those layers{_trained(trained)}",
            pointer="/" + NESTED,
            severity=None
            if depth is not None and trained is not None and default != trained
            else Severity.WARNING,
            hint=f'write "eagle_aux_hidden_state_layer_ids": {[k + 1 for k in trained]} on the top level'
            if trained
            else None,
        )


def _dflash_on_v1(ctx: Context) -> Iterator[Hit]:
    """Ids of a DFlash draft that vLLM's older runner doesn't find: beside dflash_config, or with an eagle_config that holds none."""
    assert ctx.engine is not None and ctx.draft is not None
    config = ctx.checkpoint.config or {}
    ids, path = layer_ids(ctx)
    if family(ctx.engine.name) != "vllm" or ids is None or ctx.draft.format == "speculators":
        return
    eagle = config.get("eagle_config")
    hidden = isinstance(eagle, dict) and bool(eagle) and pointer(config, NESTED) is None
    if written_ids(ctx)[1] is not None or (path == "dflash_config/target_layer_ids" and not hidden):
        return
    v2 = holds("runner.v2_default", ctx.engine) is not False
    yield Hit(
        f"{path} {list(ids)}"
        + (" beside an eagle_config without ids" if hidden else "")
        + ": vLLM's V1 runner doesn't find them and captures the target's default layers"
        + ("; its default runner (V2) does" if v2 else ""),
        pointer="/" + path,
        severity=Severity.INFO if v2 else None,
        hint="write them in dflash_config, and leave eagle_config out",
    )


def _trtllm(ctx: Context) -> Iterator[Hit]:
    """What has to be said to TensorRT-LLM, whose API alone names the layers."""
    assert ctx.draft is not None
    trained = ctx.draft.facts.capture_layers
    depth = ctx.target.num_hidden_layers if ctx.target else None
    default = trtllm.default_layers(depth) if depth else None
    if default is not None and trained in (None, default):
        return
    to_pass = list(trained) if trained and -1 not in trained else None
    hint = f"build the engine with {trtllm.FIELD}={to_pass}" if to_pass else None
    at = _path(ctx) if written_ids(ctx) != (None, None) else None
    if depth is not None and default is None:
        yield Hit(
            f"TensorRT-LLM has no default layers for a target of {depth} and raises ({trtllm.TOO_FEW}) unless "
            f"{trtllm.FIELD} names them",
            pointer=at,
            severity=Severity.WARNING,
            hint=hint,
        )
    elif trained is not None:
        takes = f"the outputs of {list(default)}" if default else "the outputs of 1, N//2-1 and N-4"
        yield Hit(
            f"TensorRT-LLM reads no ids from a draft's config: it captures {takes} unless {trtllm.FIELD} names others"
            f"{_trained(trained)}",
            pointer=at,
            severity=Severity.INFO if default is None else Severity.WARNING,
            hint=hint,
        )


def _trained(layers: tuple[int, ...] | None) -> str:
    return f", and the draft was trained on the outputs of {list(layers)}" if layers is not None else ""


@check(
    "CAP008",
    "capture-off-by-one",
    Severity.WARNING,
    needs=("draft", "engine"),
    after=("CAP005", "CAP006", "CAP007", "CFG002"),
)
def off_by_one(ctx: Context) -> Iterator[Hit]:
    """The engine reads the ids as other layers than the draft was trained on.

    Checks: the layers that the engine captures for this target's class equal the draft's.
    Why: nested ids count outputs for most SGLang targets and are taken as written for DeepSeek, Kimi and GLM unless the first is
        1; vLLM's ids count states entering a layer. One layer off costs acceptance and nothing is logged.
    Example: SGLang adds 1 to [2, 4, 5] for this target and captures the outputs of layers 2, 4, 5; the same list in vLLM's
        convention means 1, 3, 4
    Fix: ckpt fix-keys IN OUT --target TARGET writes ids that the class reads as the draft was trained.
    References: sglang 0.5.23 srt/models/llama.py:929-941, deepseek_v2.py:3458-3473, gpt_oss.py:1337-1352; sglang#25454. Where both
        fields are written, SGLang reads the nested one and vLLM the top-level one: they must name the same layers.
    """
    assert ctx.draft is not None and ctx.engine is not None
    capture = engine_capture(ctx)
    trained = ctx.draft.facts.capture_layers
    if capture is None or capture.layers is None or capture.source in ("default", "off"):
        return
    ids = list(capture.configured or ())
    if trained is None:
        return  # CAP003 says that nothing decides it
    if family(ctx.engine.name) == "vllm":
        yield from _spellings_disagree(ctx, capture)
    if capture.layers != trained:
        yield Hit(
            f"{ctx.engine} reads the ids {ids} for {target_class(ctx) or 'this target'} as outputs of layers {list(capture.layers)}; "
            f"the list looks like outputs of {list(trained)}",
            pointer=_path(ctx),
            hint="ckpt fix-keys IN OUT --target TARGET writes ids that this class reads as the draft was trained",
        )


def _spellings_disagree(ctx: Context, capture: Capture) -> Iterator[Hit]:
    """Nested and top-level ids that name different layers, however the nested ones count."""
    nested, top = written_ids(ctx)
    if nested is None or top is None or capture.source != "top-level":
        return
    named = target_class(ctx)
    outputs, inputs = tuple(sorted(set(nested))), tuple(sorted({k - 1 for k in nested}))
    policy = id_policy(resolve("sglang", "default"), named)[0] if named is not None else None
    # Classes that take ids as written let both fields hold the same list; the others add one to the nested ones.
    readings = (outputs,) if policy == "plus1" else (outputs, inputs)
    if capture.layers not in readings:
        yield Hit(
            f"the ids {list(top)} on the top level are outputs of layers {list(capture.layers or ())}, and those in eagle_config "
            f"{list(nested)} of {list(readings[0])}: vLLM reads the first, SGLang the second, and the draft was trained on one of them",
            pointer="/" + TOP,
            hint="top-level ids are the nested ones plus one",
        )


@check("CAP009", "capture-ids-absent", Severity.INFO, needs=("draft", "engine"), after=("CFG002",))
def absent(ctx: Context) -> Iterator[Hit]:
    """No ids: the engine takes its default layers.

    Checks: the config states which layers the draft captures.
    Why: without ids both engines capture the states entering layers 2, N//2 and N-3, which is what EAGLE's own code and most
        trainers use. A draft trained on others accepts little, and nothing is logged.
    Example: no capture ids: vLLM captures the outputs of layers [1, 3, 4] by default
    Fix: Write the ids that the draft was trained with.
    References: sglang 0.5.23 srt/models/llama.py:933-941; vllm 0.33.0 model_executor/models/interfaces.py:1772; vLLM#50170.
    """
    assert ctx.draft is not None and ctx.engine is not None
    if ctx.draft.algorithm not in EAGLE3 or _refused_config(ctx) or ctx.checkpoint.config is None:
        return
    nested, top = written_ids(ctx)
    if nested is not None or top is not None:
        return
    depth = ctx.target.num_hidden_layers if ctx.target else None
    capture = engine_capture(ctx)
    takes = capture.layers if capture is not None else None
    layers = (
        f"the outputs of layers {list(takes)}"
        if takes is not None
        else "the states entering layers 2, N//2 and N-3"
    )
    if depth is not None and takes is not None and takes != default_layers(depth):
        yield Hit(
            f"config.json states no capture ids (eagle_aux_hidden_state_layer_ids): {target_class(ctx)} captures {layers} by default, one "
            f"later than every other class ({list(default_layers(depth))})",
            file="config.json",
            severity=Severity.WARNING,
            hint="write the ids that the draft was trained with",
        )
        return
    own_default = ctx.draft.format in ("safeailab", "angelslim", "sglang", "specforge")
    # A speculators or vLLM config states its ids as a rule, so their absence there is a loss, not a habit.
    yield Hit(
        f"config.json states no capture ids (eagle_aux_hidden_state_layer_ids): {ctx.engine} captures {layers} by default",
        file="config.json",
        severity=Severity.WARNING
        if family(ctx.engine.name) == "vllm" and not _trained_with_defaults(ctx, own_default)
        else None,
        hint="write the ids that the draft was trained with, if they aren't the default ones",
    )


def _trained_with_defaults(ctx: Context, own_default: bool) -> bool:
    """Whether the draft's framework knows no other layers (EAGLE's own code, AngelSlim)."""
    return own_default and ctx.draft is not None and ctx.draft.format in ("safeailab", "angelslim")


@check(
    "CAP010",
    "capture-count",
    Severity.ERROR,
    needs=("draft", "engine"),
    after=("CAP006", "SHP001", "CFG002", "FIL"),
)
def count(ctx: Context) -> Iterator[Hit]:
    """fc takes another number of layers than the engine captures.

    Checks: fc's input width is target_hidden_size times the number of captured layers.
    Why: the first prefill fails with a shape error, after minutes of loading; SGLang and vLLM build fc by the number of ids
        that their class counts, which isn't always the number that is captured.
    Example: fc.weight takes 4 x 64 inputs and the config states no ids: 3 layers are captured by default
    Fix: Write the ids that the draft was trained with, and num_aux_hidden_states.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:151-170; vllm 0.33.0 model_executor/models/llama_eagle3.py:209-221.
    """
    assert ctx.draft is not None
    capture = engine_capture(ctx)
    fc = ctx.draft.tensors.get("fc.weight")
    facts = ctx.draft.facts
    width = facts.target_hidden_size or facts.hidden_size
    if capture is None or capture.layers is None or fc is None or not width or capture.problem is not None:
        return
    shape = ctx.checkpoint.tensors[fc].shape
    if len(shape) != 2 or shape[1] % width or not capture.layers:
        return
    takes = shape[1] // width
    if takes != len(capture.layers):
        yield Hit(
            f"{fc} takes {takes} x {width} inputs and {ctx.engine} captures {len(capture.layers)} layers "
            f"({'by default' if capture.source == 'default' else 'as the config says'})",
            tensor=fc,
            hint="write the ids that the draft was trained with, and num_aux_hidden_states",
        )


@check("CAP011", "capture-ids-unsorted", Severity.WARNING, needs=("draft",), after=("CAP006",))
def unsorted(ctx: Context) -> Iterator[Hit]:
    """The ids don't ascend, and engines concatenate in ascending order.

    Checks: capture ids are in ascending order.
    Why: every engine concatenates the states by layer, whatever the order of the list. If training concatenated in the order of the
        list, fc's blocks meet the wrong layers, without a word.
    Example: the ids [58, 30, 2] don't ascend: engines concatenate the states by layer
    Fix: Sort the ids, and permute fc's column blocks (and fc_norm) if training kept the list's order.
    References: sglang 0.5.23 srt/models/llama.py:485-494 (DFlash ids the same way; Qwen3.5's text class raises ValueError); vllm 0.33.0
        model_executor/models/interfaces.py:1616-1617.
    """
    assert ctx.draft is not None
    found = [*zip((NESTED, TOP), written_ids(ctx), strict=True)]
    if ctx.draft.algorithm in FAMILY:
        ids, at = layer_ids(ctx)
        found = [(at, ids)]
    for path, ids in found:
        if ids is not None and list(ids) != sorted(ids):
            yield Hit(
                f"{path} {list(ids)} doesn't ascend: engines concatenate the states by layer, and fc's blocks must be in that order",
                pointer="/" + path,
            )
            return


@check("CAP012", "capture-legacy-generation", Severity.WARNING, needs=("draft",))
def legacy_generation(ctx: Context) -> Iterator[Hit]:
    """A draft trained by speculators 0.3 or 0.4, whose own data generation counted layers one higher.

    Checks: speculators_version is not 0.3.x or 0.4.x with no ids in the config.
    Why: those releases captured the output of layer k for id k, with nominal ids 2, N//2, N-3, and wrote no ids; engines take the
        states entering those layers, one earlier. The files don't tell which data generation was used.
    Example: speculators_version is 0.4.0 and no ids are stated: its own data generation captured one layer later
    Fix: If the draft was trained on states that speculators generated itself, write ids one higher.
    References: speculators v0.4.0 src/speculators/data_generation/custom_worker.py; removed in 0.5.
    """
    assert ctx.draft is not None
    config = ctx.checkpoint.config or {}
    version = config.get("speculators_version")
    if (
        ctx.draft.format != "speculators"
        or not isinstance(version, str)
        or not version.startswith(("0.3.", "0.4."))
    ):
        return
    if version.startswith("0.4.0.1") or written_ids(ctx)[1] is not None:
        return
    yield Hit(
        f"speculators_version is {version} and no ids are stated: that release's own data generation captured one layer later than "
        "engines do by default, and the files don't tell which was used",
        pointer="/speculators_version",
        hint="if speculators generated the training states itself, the ids are [3, N//2+1, N-2] in vLLM's convention",
    )


@check("CAP003", "capture-convention-undecided", Severity.WARNING, needs=("draft", "engine"))
def undecided(ctx: Context) -> Iterator[Hit]:
    """Nothing decides how the ids count.

    Checks: the ids show their convention, or stand in a field whose convention is fixed.
    Why: files with nested ids follow both conventions. Read one layer off, the draft gets features it wasn't trained on.
    Example: nothing decides how [4, 20, 40] counts
    Fix: --layer-convention with fix-keys; for verify, write the top-level ids too.
    References: sglang 0.5.23 srt/models/llama.py:929-941; nvidia/gpt-oss-120b-Eagle3-v3 ([24, 30, 36] with 36 layers).
    """
    assert ctx.draft is not None
    ids = ctx.draft.ambiguous_capture
    if ids is None:
        return
    capture = engine_capture(ctx)
    reads = (
        f"; {ctx.engine} reads them as outputs of layers {list(capture.layers)}"
        if capture is not None and capture.layers is not None
        else ""
    )
    yield Hit(
        f"nothing decides how the ids {list(ids)} count (outputs of those layers, or states entering them){reads}",
        pointer="/" + NESTED,
        severity=Severity.INFO,
        hint="compare with the training config; ckpt fix-keys --layer-convention rewrites them for the engine",
    )


@check("CAP014", "capture-graphs-default", Severity.ERROR, needs=("draft", "engine"), engines=("sglang",))
def graphs(ctx: Context) -> Iterator[Hit]:
    """This release captures CUDA graphs with the default layers.

    Checks: on SGLang 0.4.9 to 0.5.10.post1 the captured layers are the default ones.
    Why: prefill takes the configured layers and decoding in CUDA graphs the default ones.
    Example: CUDA graphs capture the default layers before 0.5.11, and the draft was trained on [1, 5, 6]
    Fix: SGLang 0.5.11 or later, or --disable-cuda-graph.
    References: sglang 0.5.9 srt/model_executor/cuda_graph_runner.py:365, model_runner.py:604-624; fixed in 0.5.11.
    """
    capture = engine_capture(ctx)
    if capture is None or capture.problem is None or not _is_graph_problem(capture.problem):
        return
    if ctx.launch is not None and ctx.launch.given("--disable-cuda-graph"):
        return
    decided = ctx.target is not None and ctx.target.num_hidden_layers is not None
    yield Hit(
        f"ids {list(capture.configured or ())}: {capture.problem}",
        pointer=_path(ctx),
        severity=None if decided else Severity.WARNING,
        hint="serve with sglang >= 0.5.11, or with --disable-cuda-graph",
    )


@check("CAP013", "captured-layers-declined", Severity.ERROR, needs=("draft", "engine"))
def declined(ctx: Context) -> Iterator[Hit]:
    """use_aux_hidden_state is false, and fc was trained on captured layers.

    Checks: with eagle_config.use_aux_hidden_state false there is no fc over several captured layers.
    Why: the engines then hand over the target's last hidden state alone. Its width is the draft's, so fc is skipped (SGLang) or dropped
        (vLLM) without a word, and the head sees states that it was never trained on.
    Example: eagle_config.use_aux_hidden_state is false and fc.weight takes 3 x 64 inputs: fc is skipped without a word
    Fix: Set it to true, or remove it.
    References: sglang 0.5.23 srt/model_executor/model_runner_components/spec_aux_hidden_state.py:189, srt/models/llama_eagle3.py:237-247
        (from 0.5.8 on); vllm 0.33.0 model_executor/models/llama_eagle3.py:180 (run: fc dropped).
    """
    assert ctx.draft is not None and ctx.engine is not None
    capture = engine_capture(ctx)
    if not aux_declined(ctx) or capture is None or capture.source != "off":
        return
    fc = ctx.draft.tensors["fc.weight"]
    yield Hit(
        f"eagle_config.use_aux_hidden_state is false and {fc} takes {ctx.checkpoint.tensors[fc].shape[1]} inputs, more than one hidden "
        f"state: {ctx.engine} hands over the target's last one alone, and fc is skipped without a word",
        pointer="/eagle_config/use_aux_hidden_state",
        hint="set it to true, or remove it",
    )


@check(
    "CAP016",
    "target-depth-differs",
    Severity.WARNING,
    needs=("draft", "config", "target.num_hidden_layers"),
    after=("CAP005",),
)
def depth_differs(ctx: Context) -> Iterator[Hit]:
    """The draft was made for a target of another depth.

    Checks: num_target_layers is the target's number of layers.
    Why: the captured layers were chosen for another target. SGLang says so in a warning and goes on.
    Example: num_target_layers is 36 and the target has 8 layers
    Fix: Use the draft that was trained for this target.
    References: sglang 0.5.23 srt/model_executor/model_runner_components/spec_aux_hidden_state.py:236-245.
    """
    assert ctx.draft is not None and ctx.target is not None
    config = ctx.checkpoint.config or {}
    for path in ("dflash_config/num_target_layers", "num_target_layers"):
        stated = pointer(config, path)
        if isinstance(stated, int) and not isinstance(stated, bool):
            if stated != ctx.target.num_hidden_layers:
                yield Hit(
                    f"{path} is {stated} and {ctx.target.id} has {ctx.target.num_hidden_layers} layers: the draft was made for another "
                    "target",
                    pointer="/" + path,
                    hint="use the draft that was trained for this target",
                )
            return
