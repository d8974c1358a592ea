"""``ckpt inspect``: what this is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.reports import draft_facts, load_json, report, value_facts
from ckpt_tools.api.subjects import find_target, named_target, open_draft
from ckpt_tools.checks.base import finding
from ckpt_tools.container.codes import finding as container_finding
from ckpt_tools.formats import detect, read_draft
from ckpt_tools.model import Location, Report, Severity, Subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.container.training import TrainingOutput
    from ckpt_tools.model import CaptureConvention, Checkpoint, Draft, Engine, Finding, LoadMap, Target


def inspect(
    path: str,
    engines: tuple[Engine, ...] = (),
    *,
    target: str | None = None,
    tensors: bool = False,
    stats: bool = False,
    convention: CaptureConvention | None = None,
    offline: bool = False,
) -> Report:
    """Describe a checkpoint: format with evidence, algorithm, canonical facts, tensors, defects of the container.

    Args:
        path: Folder, file, Hub id, or a training output folder.
        engines: For each, the load map is added.
        target: Named target; without one, the draft's own.
        tensors: List every tensor.
        stats: Read values and add their statistics.
        convention: How uncertain captured-layer ids count.
        offline: Never ask the Hub.

    Raises:
        InputError: Nothing there, or no checkpoint.
    """
    training = _training(path)
    if training is not None:
        return training
    opened = open_draft(path, offline=offline)
    checkpoint = opened.checkpoint
    given = find_target(target, offline=offline) if target else None
    found = detect(checkpoint)
    draft = read_draft(checkpoint, given, convention, found)
    known = given or named_target(draft)
    if known is not given:
        draft = read_draft(checkpoint, known, convention, found)
    facts = draft_facts(checkpoint, draft)
    facts["files"] = [{"name": f.name, "size": f.size, "kind": f.kind} for f in checkpoint.files]
    if draft is not None and draft.unknown:
        facts["unknown_tensors"] = list(draft.unknown)
    if draft is None:
        facts["candidates"] = [m.format.name for m in found.matches]
    if tensors:
        facts["tensors"] = tensor_list(checkpoint, draft)
    if stats:
        facts["stats"] = value_facts(opened)
    findings = [*checkpoint.findings, *(draft.findings if draft else ())]
    findings += [replace(f, severity=Severity.WARNING) for f in unrecognised(checkpoint, draft)]
    if engines:
        maps = {str(e): load_map_of(e, checkpoint, known, draft) for e in engines}
        facts["load"] = load_json(next(iter(maps.values())))
        if len(maps) > 1:
            facts["loads"] = {name: load_json(m) for name, m in maps.items()}
    return report("inspect", checkpoint, draft, findings=findings, facts=facts, target=known, engines=engines)


def load_map_of(
    engine: Engine, checkpoint: Checkpoint, target: Target | None, draft: Draft | None
) -> LoadMap:
    """What an engine does with a draft, under the algorithm that the draft is for."""
    from ckpt_tools.engines import load_map

    return load_map(engine, checkpoint, target, algorithm=draft.algorithm if draft else None)


def tensor_list(checkpoint: Checkpoint, draft: Draft | None) -> list[dict[str, Any]]:
    """Every tensor with its place, and its canonical name where the format knows it."""
    canonical = {native: name for name, native in draft.tensors.items()} if draft else {}
    return [
        {
            "name": t.name,
            "canonical": canonical.get(t.name),
            "dtype": t.dtype,
            "shape": list(t.shape),
            "file": t.file,
            "bytes": t.nbytes,
        }
        for t in checkpoint.tensors.values()
    ]


def unrecognised(checkpoint: Checkpoint, draft: Draft | None) -> list[Finding]:
    """CFG011, where there are tensors and no draft format fits."""
    if draft is not None or not checkpoint.tensors:
        return []
    config = checkpoint.config or {}
    kind = config.get("speculators_model_type")
    return [
        finding(
            "CFG011",
            f"no draft format fits: {len(checkpoint.tensors)} tensors, architectures {config.get('architectures')}"
            + (f", speculators_model_type {kind!r}" if kind is not None else "")
            + _nearest(checkpoint),
            file="config.json" if checkpoint.config is not None else None,
            hint="if this is a draft, ckpt inspect --tensors shows its names; if it is a target, give it as --target",
        )
    ]


def _nearest(checkpoint: Checkpoint) -> str:
    """For a draft by its class's name: the format that one missing thing rules out, and that thing."""
    from ckpt_tools.checks.config import names_draft
    from ckpt_tools.formats import formats

    listed = (checkpoint.config or {}).get("architectures")
    if not isinstance(listed, list) or not any(isinstance(a, str) and names_draft(a) for a in listed):
        return ""
    seen = detect(checkpoint).seen
    near = []
    for form in formats().values():
        for variant in form.variants:
            verdicts = [(clue, clue.test(seen)) for clue in variant.must]
            wrong = [clue for clue, verdict in verdicts if verdict is False]
            held = sum(clue.weight for clue, verdict in verdicts if verdict and not clue.absent)
            if len(wrong) == 1 and not wrong[0].absent:
                near.append((held, form.name, variant.algorithm, wrong[0].key))
    if not near:
        return ""
    _, name, algorithm, key = max(near)
    return f"; nearest is {algorithm} as {name} writes it, but for {key}"


def _training(path: str) -> Report | None:
    """A training output folder is described, not refused."""
    folder = Path(path)
    if not folder.is_dir() or (folder / "config.json").exists():
        return None
    from ckpt_tools.container.training import training_output

    output = training_output(folder)
    if output is None:
        return None
    return Report(
        command="inspect",
        subject=Subject(path, format=f"{output.framework} training output"),
        verdict="pass",
        facts={"training_output": training_facts(output), "format": None, "algorithm": None},
        findings=tuple(
            container_finding(
                "FIL021",
                f"{name} can't be read; what it says of the run isn't known",
                Location(name),
                "copy it from the run again; the weights don't need it",
                severity=Severity.WARNING,
            )
            for name in output.damaged
        ),
    )


def training_facts(output: TrainingOutput) -> dict[str, Any]:
    """A training output as the report shows it: its epochs, the best, what it measured, the line to type."""
    return {
        "framework": output.framework,
        "epochs": [
            {
                "number": e.number,
                "path": e.path,
                "metrics": _deciding_first(e.metrics),
                "training_state": dict(e.training_state),
                "has_weights": e.has_weights,
            }
            for e in output.epochs
        ],
        "best": output.best.name if output.best else None,
        "best_lost": output.best_lost,
        "newest": output.newest.name if output.newest else None,
        "interrupted": output.interrupted,
        "links": dict(output.links),
        "run_config": dict(output.run_config),
        "take": output.take,
        "next": output.line(),
    }


def _deciding_first(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with the one first that decides which checkpoint is the best (speculators 0.9.0 train/trainer.py:709-731)."""
    return {k: metrics[k] for k in sorted(metrics, key=lambda k: k != "loss_epoch")}
