"""Which target layers an engine feeds to a draft, given the ids that the draft's config writes.

A *boundary* k is the state that enters layer k: the output of layer k-1, the embedding for k = 0, and the
last layer's output for k = N. Engines count boundaries inside; configs write boundaries (vLLM, speculators)
or layer outputs (SpecForge, ModelOpt, most of SGLang). Here captured layers are always outputs of 0-based
layers, ascending, with -1 for the embedding.

Read in SGLang 0.5.12, 0.5.16, 0.5.18, 0.5.21, 0.5.22 and 0.5.23 (``set_eagle3_layers_to_capture`` of every
class, and the loops that capture) and in vLLM 0.10.1, 0.12.0, 0.17.0, 0.25.0 and 0.33.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ckpt_tools.engines.history import family, first_release, holds, reference
from ckpt_tools.engines.hooks import id_policy
from ckpt_tools.engines.versions import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckpt_tools.model import CaptureConvention, Engine

Source = Literal["eagle_config", "top-level", "default", "off"]
Runner = Literal["V1", "V2"]

# Classes whose loop also captures boundary N, and from which release (gemma3_causal.py, gemma4_causal.py,
# gpt_oss.py, minimax_m3.py: the branch after the layer loop). All others stop at boundary N-1.
LAST_LAYER_SINCE: Mapping[str, str] = {
    "Gemma3ForCausalLM": "0.5.12",
    "Gemma3ForConditionalGeneration": "0.5.12",
    "Gemma4ForCausalLM": "0.5.12",
    "Gemma4ForConditionalGeneration": "0.5.12",
    "Gemma4UnifiedForConditionalGeneration": "0.5.13",
    "GptOssForCausalLM": "0.5.17",
    "MiniMaxM3SparseForCausalLM": "0.5.23",
    "MiniMaxM3SparseForConditionalGeneration": "0.5.23",
}
# Classes that mark the layer object (`setattr(self.layers[k], …)`): a boundary N or beyond is an IndexError.
MARKS_LAYERS = frozenset(
    {
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "MellumForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    }
)
# Classes that pack into one buffer and raise when the count differs (deepseek_v2.py:3175, from 0.5.18 at the
# latest; layers/aux_hidden_states.py:84-90). Those with the DeepSeek model inside.
PACKS = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)
PACKS_SINCE = "0.5.18"
# Drafts that vLLM runs on the V1 runner unless told otherwise: parallel EAGLE.
V1_DRAFTS = frozenset({"PEagleDraftModel", "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM"})


@dataclass(frozen=True)
class Capture:
    """What an engine captures for a draft.

    Attributes:
        layers: Outputs of these 0-based layers, ascending; -1 is the embedding; () when nothing is captured;
            ``None`` when the facts don't decide it.
        source: The config field that decided, ``default``, or ``off`` (the draft declines the layers).
        problem: What goes wrong, or ``None``.
        reference: Engine, release, file:line.
        configured: The ids that decided, as written.
        runner: vLLM's model runner that was assumed.
    """

    layers: tuple[int, ...] | None
    source: Source
    problem: str | None
    reference: str
    configured: tuple[int, ...] | None = None
    runner: Runner | None = None


@dataclass(frozen=True)
class Ids:
    """The ids to write so that an engine captures given layers.

    Attributes:
        nested: For ``eagle_config.eagle_aux_hidden_state_layer_ids``; ``None`` when the engine reads none
            there or there is a problem.
        top_level: For the top-level ``eagle_aux_hidden_state_layer_ids`` (vLLM, speculators): boundaries.
        problem: Why it can't be written; then it must not be.
        warning: What to know about it.
        needs: The first release of the engine that reads these ids so, when older ones read them otherwise.
    """

    nested: tuple[int, ...] | None
    top_level: tuple[int, ...] | None
    problem: str | None = None
    warning: str | None = None
    needs: str | None = None


def captured(
    engine: Engine,
    target_architecture: str | None,
    num_layers: int | None,
    *,
    nested_ids: Sequence[int] | None,
    top_level_ids: Sequence[int] | None,
    use_aux: bool = True,
    draft_architecture: str | None = None,
    runner: Runner | None = None,
) -> Capture:
    """The layers that *engine* captures for an EAGLE-3 draft on this target.

    Args:
        engine: Engine and version.
        target_architecture: The class that the engine builds for the target; ``None`` when unknown.
        num_layers: N, the target's layers; ``None`` when unknown.
        nested_ids: ``eagle_config.eagle_aux_hidden_state_layer_ids``.
        top_level_ids: ``eagle_aux_hidden_state_layer_ids`` at the top level.
        use_aux: ``eagle_config.use_aux_hidden_state`` (true when not stated).
        draft_architecture: The draft's class (vLLM runs P-EAGLE on its V1 runner).
        runner: vLLM's runner; by default the one that the release takes for such a draft.
    """
    nested = None if nested_ids is None else tuple(nested_ids)
    top = None if top_level_ids is None else tuple(top_level_ids)
    name = family(engine.name)
    if name == "vllm":
        chosen = runner or _default_runner(engine, draft_architecture)
        return _vllm(engine, num_layers, nested, top, use_aux, chosen)
    if name == "sglang":
        return _sglang(engine, target_architecture, num_layers, nested, use_aux)
    from ckpt_tools.engines.trtllm import capture as trtllm  # its whole engine comes along

    return Capture(
        trtllm.default_layers(num_layers) if num_layers else None,
        "default",
        f"{engine.name} reads no ids from a draft's config; {trtllm.FIELD} names them when the engine is built",
        trtllm.REFERENCE,
        top if nested is None else nested,
    )


def ids_for(
    engine: Engine,
    target_architecture: str | None,
    num_layers: int | None,
    layers: Sequence[int],
) -> Ids:
    """The inverse of :func:`captured`: ids that make *engine* capture the outputs of *layers*.

    *layers* are ascending outputs of 0-based layers. For SGLang the nested ids depend on the target's class
    and the release, except when the first layer is 1: every class reads ids that start with 1 alike.
    """
    wanted = tuple(layers)
    if not wanted or list(wanted) != sorted(set(wanted)):
        return Ids(None, None, f"captured layers must ascend without duplicates, found {list(wanted)}")
    outside = [k for k in wanted if k < -1 or (num_layers is not None and k >= num_layers)]
    if outside:
        return Ids(None, None, f"no layer {outside[0]} in a target of {num_layers or '?'} layers")
    top = tuple(k + 1 for k in wanted)
    name = family(engine.name)
    if name == "vllm":
        return _vllm_ids(engine, num_layers, top)
    if name == "sglang":
        return _sglang_ids(engine, target_architecture, num_layers, wanted, top)
    return Ids(None, None, f"{engine.name} reads no ids from a draft's config")


def default_boundaries(num_layers: int) -> tuple[int, int, int]:
    """The boundaries that both engines capture when a draft states no ids: 2, N//2, N-3."""
    return (2, num_layers // 2, num_layers - 3)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The same as outputs of 0-based layers: 1, N//2-1, N-4, ascending, without duplicates."""
    return _outputs(default_boundaries(num_layers))


def decide_convention(
    ids: Sequence[int], num_layers: int | None, declared: CaptureConvention | None = None
) -> CaptureConvention | None:
    """Which convention *ids* follow, as far as they show it themselves; *declared* is the field's usual one.

    Ids that start with 1 (as the default outputs do) or hold 0 are outputs; ids that equal the default
    boundaries or reach N are boundaries. Without N, three ids ``[2, (x+3)//2, x]`` are the default boundaries
    of a target of x+3 layers. Anything else leaves *declared* standing, which may be ``None``.
    """
    if not ids:
        return declared
    if num_layers is not None and max(ids) == num_layers:
        return "layer_input"
    if ids[0] == 1 or 0 in ids:
        return "layer_output"
    if num_layers is not None:
        return "layer_input" if tuple(ids) == default_boundaries(num_layers) else declared
    if len(ids) == 3 and ids[0] == 2 and ids[1] == (ids[2] + 3) // 2 and ids[2] > 2:
        return "layer_input"
    return declared


# --- SGLang ------------------------------------------------------------------------------------------------


def _plus1(ids: tuple[int, ...], _n: int | None) -> tuple[int, ...] | None:
    return tuple(k + 1 for k in ids)


def _plus1_if_first_is_1(ids: tuple[int, ...], n: int | None) -> tuple[int, ...] | None:
    return _plus1(ids, n) if ids and ids[0] == 1 else ids


def _verbatim_if_max_is_n(ids: tuple[int, ...], n: int | None) -> tuple[int, ...] | None:
    if n is None:
        return None
    return ids if ids and max(ids) == n else _plus1(ids, n)


# Policy of the class's hook -> boundaries for ids as written; `None` when N is needed and unknown.
_BOUNDARIES: Mapping[str, Callable[[tuple[int, ...], int | None], tuple[int, ...] | None]] = {
    "plus1": _plus1,
    "plus1_and_default": _plus1,
    "plus1_if_first_is_1": _plus1_if_first_is_1,
    "verbatim_if_max_is_n": _verbatim_if_max_is_n,
}


def _sglang(
    engine: Engine,
    architecture: str | None,
    n: int | None,
    nested: tuple[int, ...] | None,
    use_aux: bool,
) -> Capture:
    if not use_aux and holds("capture.use_aux_hidden_state", engine):
        return Capture((), "off", None, reference("capture.use_aux_hidden_state", engine))
    seen = nested if holds("capture.config_ids", engine) else None
    policy, where = _policy(engine, architecture)
    where = where or reference("capture.config_ids", engine)
    if seen is None:
        return _sglang_default(engine, architecture, n, nested, policy, where)
    if not seen:
        return Capture((), "eagle_config", "an empty list of ids captures nothing", where, seen)
    read = _BOUNDARIES.get(policy or "")
    boundaries = _read_alike(seen) if read is None else read(seen, n)
    if boundaries is None:
        why = (
            f"how {architecture} counts ids isn't known"
            if architecture and read is None
            else "how ids are read depends on the target's class and its number of layers"
        )
        return Capture(None, "eagle_config", f"{why}: {list(seen)} may count outputs or inputs", where, seen)
    layers, problem = _reached(engine, architecture, n, boundaries)
    if problem is None:
        problem = _graphs_differ(engine, architecture, n, layers)
    return Capture(layers, "eagle_config", problem, where, seen)


def _sglang_default(
    engine: Engine,
    architecture: str | None,
    n: int | None,
    nested: tuple[int, ...] | None,
    policy: str | None,
    where: str,
) -> Capture:
    if n is None:
        return Capture(None, "default", "the default layers depend on the target's number of layers", where)
    boundaries: tuple[int, ...] = default_boundaries(n)
    if policy == "plus1_and_default":
        boundaries = tuple(k + 1 for k in boundaries)
    layers, problem = _reached(engine, architecture, n, boundaries)
    if nested is not None and problem is None:
        expected = _read_alike(nested)
        if expected is None or _outputs(expected) != layers:
            first = first_release("capture.config_ids")
            problem = f"{engine} reads no ids from a draft; they are read from {first} on"
    return Capture(layers, "default", problem, where, nested)


def _policy(engine: Engine, architecture: str | None) -> tuple[str | None, str]:
    """How ids are counted, and where that is seen. Before 0.5.13 every class that reads ids adds 1."""
    policy, where = id_policy(engine, architecture) if architecture else (None, "")
    if policy not in _BOUNDARIES and holds("capture.policy.deepseek_ids0", engine) is False:
        policy = "plus1"
    return policy, where


def _read_alike(ids: tuple[int, ...]) -> tuple[int, ...] | None:
    """Boundaries of ids that every class reads alike: those that start with 1 are outputs everywhere."""
    return _plus1(ids, None) if ids and ids[0] == 1 else None


def _reached(
    engine: Engine, architecture: str | None, n: int | None, boundaries: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, str | None]:
    """The layers that the class's loop really captures, and what goes wrong when they aren't all."""
    unique = tuple(sorted(set(boundaries)))
    end = n if n is None or _captures_last(engine, architecture) else n - 1
    reached = tuple(k for k in unique if k >= 0 and (end is None or k <= end))
    layers = _outputs(reached)
    lost = [k for k in unique if k not in reached]
    wanted = len(boundaries)
    packs = architecture in PACKS and parse(engine.version) >= parse(PACKS_SINCE)
    if lost:
        what = f"the output of layer {lost[-1] - 1} of {n}" if lost[-1] >= 0 else f"boundary {lost[0]}"
        if architecture in MARKS_LAYERS:
            how = "IndexError when the hook is called" if lost[-1] >= 0 else "it counts from the last layer"
            return None, f"{architecture} can't capture {what}: {how}"
        if packs:
            return None, f"{architecture} can't capture {what}: {_packs_error(len(reached), wanted)}"
        return layers, f"{what} is never captured: {_too_few(len(reached), wanted)}"
    if len(unique) < wanted:
        if packs:
            return None, f"duplicate ids: {_packs_error(len(unique), wanted)}"
        return layers, f"duplicate ids collapse: {_too_few(len(unique), wanted)}"
    if -1 in layers:
        return layers, "the embedding is captured, which hardly any target class supports"
    return layers, None


def _packs_error(found: int, wanted: int) -> str:
    return f"RuntimeError 'captured {found} of {wanted} aux hidden states' at the first forward"


def _too_few(found: int, wanted: int) -> str:
    return f"{found} states come back where {wanted} are asked for"


def _captures_last(engine: Engine, architecture: str | None) -> bool:
    since = LAST_LAYER_SINCE.get(architecture or "")
    return since is not None and parse(engine.version) >= parse(since)


def _graphs_differ(
    engine: Engine, architecture: str | None, n: int | None, layers: tuple[int, ...] | None
) -> str | None:
    """CUDA graphs of 0.4.9 to 0.5.10.post1 hold the default layers, whatever the config says."""
    if not holds("capture.cudagraph_forces_default", engine):
        return None
    if n is not None and layers == default_layers(n):
        return None
    if n is None:
        return (
            "CUDA graphs capture the default layers before 0.5.11, which these are only for some targets; "
            "--disable-cuda-graph avoids it"
        )
    effect = "decoding sees other layers than prefill"
    if architecture in ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"):
        effect = "the flags add up and fc gets too many states"
    return (
        f"CUDA graphs capture the default layers {list(default_layers(n))} before 0.5.11, so {effect}; "
        "--disable-cuda-graph avoids it"
    )


def _sglang_ids(
    engine: Engine,
    architecture: str | None,
    n: int | None,
    layers: tuple[int, ...],
    top: tuple[int, ...],
) -> Ids:
    if layers[0] == -1:
        return Ids(None, None, "SGLang has no id for the embedding that its target classes read alike")
    if n is not None and layers[-1] == n - 1 and not _captures_last(engine, architecture):
        since = LAST_LAYER_SINCE.get(architecture or "")
        hint = f"; {architecture} does from {since} on" if since else ""
        who = architecture or "a target class that isn't known"
        return Ids(None, None, f"{who} can't capture the last layer's output (layer {n - 1}){hint}")
    needs = LAST_LAYER_SINCE[architecture] if architecture and n is not None and layers[-1] == n - 1 else None
    if not holds("capture.config_ids", engine):
        if n is None or layers != default_layers(n):
            first = first_release("capture.config_ids")
            problem = f"{engine} always captures the default layers; ids are read from {first} on"
            return Ids(None, None, problem)
        return Ids(layers, top)
    warning = _graphs_differ(engine, architecture, n, layers)
    if warning is None and (n is None or layers != default_layers(n)):
        warning = "SGLang before 0.5.11 captures its CUDA graphs with the default layers, not with these"
    if layers[0] == 1:
        return Ids(layers, top, warning=warning, needs=needs)
    policy, _ = _policy(engine, architecture)
    if policy not in _BOUNDARIES:
        who = f"how {architecture} counts ids isn't known" if architecture else "the target's class decides"
        problem = f"layers {list(layers)} can't be written for SGLang: {who} when ids don't start with 1"
        return Ids(None, None, problem)
    if policy != "plus1_if_first_is_1":
        return Ids(layers, top, warning=warning, needs=needs)
    if layers[0] == 0:
        problem = (
            f"{architecture} counts outputs when the ids start with 1 and inputs otherwise: "
            "the output of layer 0 as the first has no id"
        )
        return Ids(None, None, problem)
    return Ids(top, top, warning=warning, needs=first_release("capture.policy.deepseek_ids0"))


# --- vLLM --------------------------------------------------------------------------------------------------


def _default_runner(engine: Engine, draft_architecture: str | None) -> Runner:
    if draft_architecture in V1_DRAFTS or not holds("runner.v2_default", engine):
        return "V1"
    return "V2"


def _vllm(
    engine: Engine,
    n: int | None,
    nested: tuple[int, ...] | None,
    top: tuple[int, ...] | None,
    use_aux: bool,
    runner: Runner,
) -> Capture:
    if not use_aux and holds("use_aux_hidden_state", engine):
        return Capture((), "off", None, reference("use_aux_hidden_state", engine), runner=runner)
    if top is not None and holds("aux_ids.top_level", engine):
        layers, problem = _vllm_reached(n, top)
        return Capture(layers, "top-level", problem, reference("aux_ids.top_level", engine), top, runner)
    if nested is not None and runner == "V1" and holds("aux_ids.nested_v1", engine):
        layers, problem = _vllm_reached(n, nested)
        if problem is None and decide_convention(nested, n) != "layer_input":
            problem = "the V1 runner takes the ids under eagle_config as inputs of layers; V2 ignores them"
        where = reference("aux_ids.nested_v1", engine)
        return Capture(layers, "eagle_config", problem, where, nested, runner)
    where = reference("aux_ids.top_level", engine)
    if n is None:
        problem = "the default layers depend on the target's number of layers"
        return Capture(None, "default", problem, where, runner=runner)
    layers, problem = _vllm_reached(n, default_boundaries(n))
    ignored = top if top is not None else nested
    if ignored is not None and problem is None and not _is_default(n, ignored, nested=top is None):
        at = "the top-level ids" if top is not None else "the ids under eagle_config"
        problem = f"{engine} doesn't read {at} {list(ignored)}: it captures its default layers"
    return Capture(layers, "default", problem, where, ignored, runner)


def _vllm_reached(n: int | None, boundaries: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
    unique = tuple(sorted(set(boundaries)))
    reached = tuple(k for k in unique if k >= 0 and (n is None or k <= n))
    problem = None
    if len(reached) < len(unique):
        lost = [k for k in unique if k not in reached]
        problem = f"ids {lost} are never captured on a target of {n} layers"
    elif len(unique) < len(boundaries):
        problem = f"duplicate ids collapse: {_too_few(len(unique), len(boundaries))}"
    return _outputs(reached), problem


def _is_default(n: int, ids: tuple[int, ...], *, nested: bool) -> bool:
    """Whether *ids* mean the default layers anyway; nested ones may count outputs or boundaries."""
    readings = [_outputs(ids), tuple(sorted(set(ids)))] if nested else [_outputs(ids)]
    return default_layers(n) in readings


def _vllm_ids(engine: Engine, n: int | None, top: tuple[int, ...]) -> Ids:
    if not holds("aux_ids.top_level", engine) and (n is None or _outputs(top) != default_layers(n)):
        first = first_release("aux_ids.top_level")
        return Ids(None, None, f"{engine} always captures its default layers; {first} reads ids")
    return Ids(None, top)


def _outputs(boundaries: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({k - 1 for k in boundaries}))
