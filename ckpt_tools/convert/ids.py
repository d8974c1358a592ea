"""Captured layers, first releases and launch flags: what a conversion decides with the engines' rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import finding
from ckpt_tools.engines.capture import default_layers, ids_for
from ckpt_tools.engines.history import family, first_release, releases_read
from ckpt_tools.engines.versions import parse
from ckpt_tools.formats.dflash import FAMILY
from ckpt_tools.model import Engine, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.formats.base import Format
    from ckpt_tools.model import Draft, DraftFacts, Finding, Target


@dataclass(frozen=True)
class WrittenIds:
    """The ids that the output's config states, and what is to be said of them."""

    nested: tuple[int, ...] | None = None
    top_level: tuple[int, ...] | None = None
    needs: str | None = None
    findings: tuple[Finding, ...] = ()


def newest(engine: str) -> Engine:
    """The engine at the newest release that was read."""
    version = releases_read(engine)[-1]
    return Engine(engine, version, version)


def names_target(name: str, target: Target) -> bool:
    """Whether a recorded verifier name means this target: equal tails of a path or a Hub id, or an alias."""
    known = {target.id, target.hf_repo or target.id, *target.aliases}

    def tail(text: str) -> str:
        return text.rstrip("/").rsplit("/", 1)[-1].lower()

    return name.lower() in {k.lower() for k in known} or tail(name) in {tail(k) for k in known}


def target_class(draft: Draft, target: Target | None) -> str | None:
    """The class of the target: the target's own, else the one that the draft records."""
    if target is not None and target.architectures:
        return target.architectures[0]
    verifier = draft.facts.verifier
    return verifier.architectures[0] if verifier is not None and verifier.architectures else None


def is_default(layers: tuple[int, ...], num_layers: int | None) -> bool:
    """Whether these are the layers that engines capture unasked; without N, whether they are for some N."""
    if num_layers is not None:
        return layers == default_layers(num_layers)
    return len(layers) == 3 and layers == default_layers(layers[-1] + 4)


def _at(draft: Draft) -> str:
    return (
        "/eagle_aux_hidden_state_layer_ids"
        if draft.format in ("speculators", "vllm")
        else "/eagle_config/eagle_aux_hidden_state_layer_ids"
    )


def decide(draft: Draft, to: Format, target: Target | None) -> WrittenIds:
    """The ids to write for a format's engine, or why there are none."""
    facts = draft.facts
    if draft.algorithm in ("eagle", "mtp"):
        return WrittenIds()
    served_by_sglang = to.engine is not None and family(to.engine) == "sglang"
    if draft.ambiguous_capture is not None:
        written = list(draft.ambiguous_capture)
        return WrittenIds(
            findings=(
                finding(
                    "CAP003",
                    f"nothing decides how the ids {written} count: SGLang reads them as outputs of those layers for most targets "
                    f"(and as written for DeepSeek and Kimi), vLLM and speculators as states entering them, one layer earlier",
                    pointer=_at(draft),
                    severity=Severity.ERROR,
                    hint="say it with --layer-convention layer_output (SpecForge, Model-Optimizer) or layer_input (speculators, vLLM)",
                ),
            )
        )
    layers = facts.capture_layers
    if layers is None:
        return WrittenIds(findings=tuple(_without_ids(draft)))
    depth = target.num_hidden_layers if target else None
    if to.fixed_capture:
        return WrittenIds(findings=tuple(_fixed(layers, depth, to, _at(draft))))
    if draft.algorithm in FAMILY:
        return _family(draft, layers, depth, to)
    if depth is not None and layers[-1] >= depth:
        beyond = finding(
            "CAP002",
            f"the draft captures the output of layer {layers[-1]} (counted from 0) and the target has {depth} layers",
            pointer=_at(draft),
            severity=Severity.ERROR,
            hint="name the target that the draft was trained for, or correct the ids",
        )
        return WrittenIds(findings=(beyond,))
    if layers[0] < 0 or (depth is not None and layers[-1] == depth - 1):
        what = (
            "the embedding's output (id 0)"
            if layers[0] < 0
            else f"the output of layer {layers[-1]} of {depth}, the last one"
        )
        if served_by_sglang:
            return WrittenIds(
                findings=(
                    finding(
                        "CAP002",
                        f"the draft captures {what}, which SGLang has no id for that this target's class would honour",
                        pointer=_at(draft),
                        severity=Severity.ERROR,
                        hint="vLLM captures it (--to vllm)",
                    ),
                )
            )
    top = tuple(k + 1 for k in layers)
    if not served_by_sglang:
        outputs = to.engine is None and to.capture.convention[:1] == ("layer_output",)
        if outputs and layers[0] < 0:
            return WrittenIds(findings=(_embedding_id(to, _at(draft)),))
        return WrittenIds(nested=layers if outputs else None, top_level=top)
    architecture = target_class(draft, target)
    if layers[0] != 1 and architecture is None:
        return WrittenIds(
            findings=(
                finding(
                    "CAP001",
                    f"how SGLang counts the ids for layers {list(layers)} depends on the target's class, and the target isn't known",
                    pointer=_at(draft),
                    severity=Severity.ERROR,
                    hint="name it: --target ID (ckpt targets list), a folder with config.json, or a config.json",
                ),
            )
        )
    ids = ids_for(newest("sglang"), architecture, depth, layers)
    if ids.problem is not None or ids.nested is None:
        return WrittenIds(
            findings=(
                finding(
                    "CAP002",
                    f"SGLang has no ids for layers {list(layers)} on {architecture}: {ids.problem}",
                    pointer=_at(draft),
                    severity=Severity.ERROR,
                    hint="vLLM captures them (--to vllm)",
                ),
            )
        )
    notes: list[Finding] = []
    if not is_default(layers, depth):
        notes.append(
            finding(
                "CAP004",
                f"layers {list(layers)} aren't the default ones: SGLang before 0.5.11 captures CUDA graphs with the "
                "defaults whatever the config says, and decodes with other features than it was given in prefill",
                pointer=_at(draft),
                hint="serve with SGLang 0.5.11 or later, or with --disable-cuda-graph",
            )
        )
    return WrittenIds(ids.nested, top, ids.needs, tuple(notes))


def _embedding_id(to: Format, at: str) -> Finding:
    return finding(
        "CAP002",
        f"the draft captures the embedding's output (id 0), and {to.title} counts outputs of layers from 0",
        pointer=at,
        severity=Severity.ERROR,
        hint="vLLM captures it (--to vllm)",
    )


def _fixed(layers: tuple[int, ...], depth: int | None, to: Format, at: str) -> Iterator[Finding]:
    """A format without ids, whose readers capture the default layers."""
    if not is_default(layers, depth):
        yield finding(
            "CAP002",
            f"layers {list(layers)} aren't the default ones, and {to.title} captures those whatever a config says",
            pointer=at,
            severity=Severity.ERROR,
            hint="--to sglang and --to vllm write the ids",
        )
    else:
        depths = (
            f"a target of {depth} layers"
            if depth
            else f"a target of {layers[-1] + 4} layers, if that is its depth"
        )
        yield finding(
            "CAP009",
            f"the ids are left out: {to.title} has no field for them, and layers {list(layers)} are its defaults on {depths}",
            pointer=at,
            severity=Severity.INFO,
        )


def _family(draft: Draft, layers: tuple[int, ...], depth: int | None, to: Format) -> WrittenIds:
    """Ids of the DFlash family: outputs of layers everywhere but in speculators' format, which counts inputs."""
    top = tuple(k + 1 for k in layers)
    found: list[Finding] = []
    at = "/aux_hidden_state_layer_ids" if draft.format == "speculators" else "/dflash_config/target_layer_ids"
    counts_outputs = to.name != "speculators"
    if depth is not None and layers[-1] >= depth:
        found.append(
            finding(
                "CAP002",
                f"the draft captures the output of layer {layers[-1]} of a target of {depth}",
                pointer=at,
                severity=Severity.ERROR,
                hint="name the target that the draft was trained for",
            )
        )
    elif counts_outputs and layers[0] < 0:
        found.append(_embedding_id(to, at))
    elif to.engine != "vllm" and counts_outputs and depth is not None and layers[-1] == depth - 1:
        found.append(
            finding(
                "CAP002",
                f"the draft captures the output of the last layer ({layers[-1]} of {depth}), which most of SGLang's target classes never "
                "reach, and which other readers take behind the final norm",
                pointer=at,
                severity=Severity.ERROR if to.engine == "sglang" else Severity.WARNING,
                hint="vLLM captures it (--to vllm)",
            )
        )
    return WrittenIds(top_level=top, findings=tuple(found))


def _without_ids(draft: Draft) -> list[Finding]:
    """No ids: engines take their defaults, which suits a head that takes three layers."""
    config = draft.facts
    found: list[Finding] = []
    if draft.algorithm not in FAMILY and config.num_aux not in (None, 3):
        found.append(
            finding(
                "CAP010",
                f"fc takes {config.num_aux} captured layers and the config doesn't say which; engines capture three by default",
                tensor=draft.tensors.get("fc.weight"),
                severity=Severity.ERROR,
                hint="add eagle_aux_hidden_state_layer_ids as the draft was trained",
            )
        )
    return found


def _needs(facts: DraftFacts, algorithm: str, written: WrittenIds) -> list[tuple[str, str]]:
    """(first SGLang release, what needs it)."""
    if algorithm != "eagle3":
        return []
    kind = "mla" if facts.layer_type == "mla" else "llama"
    needs: list[tuple[str | None, str]] = []
    if kind == "mla":
        needs.append((first_release("draft.Eagle3DeepseekV2ForCausalLM"), "the MLA draft class"))
    if facts.norm_before_fc:
        needs.append((first_release("eagle3.norm_before_fc.llama"), "norm_before_fc"))
    if facts.fc_norm:
        needs.append((first_release(f"eagle3.fc_norm.{kind}"), "fc_norm"))
    if facts.norm_output:
        needs.append((first_release(f"eagle3.norm_output.{kind}"), "norm_output"))
    if (facts.num_layers or 1) > 1:
        needs.append((first_release("eagle3.multilayer"), f"{facts.num_layers} draft layers"))
    if facts.num_aux not in (None, 3):
        needs.append((first_release("eagle3.num_aux"), f"{facts.num_aux} captured layers"))
    if facts.sliding_window is not None and not some_layers_slide(facts):
        needs.append((first_release("flag.speculative_draft_window_size"), "the window flag"))
    if written.needs is not None:
        needs.append((written.needs, f"the capture ids {list(written.nested or ())}"))
    return [(version, what) for version, what in needs if version is not None]


def first_releases(facts: DraftFacts, algorithm: str, to: Format, written: WrittenIds) -> list[Finding]:
    """The first SGLang release that serves what is written, when it isn't every release."""
    if to.engine != "sglang":
        return []
    needs = _needs(facts, algorithm, written)
    if not needs:
        return []
    newest_need = max((version for version, _ in needs), key=parse)
    listed = ", ".join(
        f"{what} (from {version})" for version, what in sorted(needs, key=lambda n: parse(n[0]))
    )
    return [finding("ENG002", f"needs sglang >= {newest_need}: {listed}")]


def some_layers_slide(facts: DraftFacts) -> bool:
    """Whether a window is that of some layers only: the server's flag is for all of them (sglang 0.5.23 llama_eagle3.py:288-299)."""
    return facts.sliding_window is not None and len(set(facts.layer_types or ())) > 1


def launch_flags(facts: DraftFacts, algorithm: str, to: Format) -> tuple[str, ...]:
    """Flags that carry what the config can't say."""
    windowed = facts.sliding_window is not None and not some_layers_slide(facts)
    if to.engine == "sglang" and algorithm not in FAMILY and windowed:
        return ("--speculative-draft-window-size", str(facts.sliding_window))
    return ()
