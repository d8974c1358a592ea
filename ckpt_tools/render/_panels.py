"""The sections of the page that show facts: draft beside target, load map, values, acceptance, plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ckpt_tools.model import Rope
from ckpt_tools.render._charts import Point, Scale, bars, captured_layers, points, scale_of, value_range
from ckpt_tools.render._html import Html, el, join, name
from ckpt_tools.render._text import fact, line, short, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckpt_tools.model import Report, Target

#: What is compared: label, the draft's fact, the target's field.
_PAIRS = (
    ("layers", "num_layers", "num_hidden_layers"),
    ("hidden size", "hidden_size", "hidden_size"),
    ("target's hidden size, as fc takes it", "target_hidden_size", "hidden_size"),
    ("attention heads", "num_attention_heads", "num_attention_heads"),
    ("key-value heads", "num_key_value_heads", "num_key_value_heads"),
    ("head dimension", "head_dim", "head_dim"),
    ("MLP width", "intermediate_size", "intermediate_size"),
    ("vocabulary", "vocab_size", "vocab_size"),
    ("draft's vocabulary", "draft_vocab_size", None),
    ("context", "max_position_embeddings", "max_position_embeddings"),
    ("sliding window", "sliding_window", None),
    ("rope", "rope", "rope"),
    ("norm before residual", "norm_before_residual", None),
    ("norm before fc", "norm_before_fc", None),
    ("norm per captured layer", "fc_norm", None),
    ("output norm", "norm_output", None),
    ("captured layers", "capture_layers", None),
    ("ids counted as", "capture_convention", None),
    ("trained for", "verifier", "id"),
)
#: Facts of the draft that have no row when it doesn't state them.
_IF_STATED = ("target_hidden_size", "verifier")
#: Rows in which the two must be the same number.
_EQUAL = ("target's hidden size, as fc takes it", "vocabulary")


def panels(report: Report) -> Html:
    """Every section that this report has facts for."""
    facts = report.facts
    return join(
        _training(facts.get("training_output")),
        _pair(report),
        _plan(facts.get("plan")),
        *_loads(report),
        _stats(facts.get("stats")),
        _acceptance(facts),
        _tensors(facts.get("tensors")),
        *(_grid(title, rows) for title, rows in (facts.get("tables") or {}).items()),
    )


def section(title: str, *inner: str | None) -> Html:
    """A section with a heading."""
    return el("section", el("h2", title), *inner)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> Html:
    """A table that scrolls sideways where it is too wide."""
    body = [el("tr", *(el("td", cell) for cell in row)) for row in rows]
    top = el("thead", el("tr", *(el("th", h, scope="col") for h in head)))
    return el("div", el("table", top, el("tbody", *body), cls="numbers" if numbers else None), cls="scroll")


def _pair(report: Report) -> Html | None:
    draft: Mapping[str, Any] | None = report.facts.get("draft")
    if draft is None:
        return None
    target = report.target
    rows = []
    for label, ours, theirs in _PAIRS:
        mine = draft.get(ours)
        other = _field(target, theirs) if theirs is not None else None
        if mine is not None or (other is not None and ours not in _IF_STATED):
            differs = label in _EQUAL and None not in (mine, other) and mine != other
            mark = el("span", "differs", cls="fill nothing") if differs else ""
            rows.append((label, fact(ours, mine), fact(ours, other) if theirs else "", mark))
    named = "target" if target is None else f"target {target.id}"
    return section(
        "Draft and target", table(("", "draft", named, ""), rows, numbers=True), _captured(draft, target)
    )


def _field(target: Target | None, field: str) -> Any:
    value = getattr(target, field) if target is not None else None
    return asdict(value) if isinstance(value, Rope) else value


def _captured(draft: Mapping[str, Any], target: Target | None) -> Html | None:
    layers = draft.get("capture_layers")
    depth = target.num_hidden_layers if target is not None else None
    if not layers or not depth or depth > 512:
        return None
    return el("figure", captured_layers(layers, depth), el("figcaption", "captured layers of the target"))


def _loads(report: Report) -> Iterable[Html]:
    loads = report.facts.get("loads")
    if loads is None and report.facts.get("load") is not None:
        loads = {str(report.engines[0]) if report.engines else "the engine": report.facts["load"]}
    for engine, load in (loads or {}).items():
        yield section(f"What {engine} loads", *_load(load))


def _load(load: Mapping[str, Any]) -> Iterable[Html]:
    if load["refused"]:
        yield el("p", f"Refused: {line(load['refused'])}", cls="message")
    if load["parameters"]:
        yield _fills(load["parameters"])
        yield table(
            ("parameter", "filled by", "from"),
            (
                (
                    name(parameter),
                    el("span", fill["filled_by"], cls=f"fill {fill['filled_by']}"),
                    join(*(el("span", name(s), cls="name") for s in fill["from"]), _cut(fill)),
                )
                for parameter, fill in load["parameters"].items()
            ),
        )
    if load["unused"]:
        yield el(
            "p",
            "Tensors that reach no parameter: ",
            *(el("span", name(n), cls="name") for n in load["unused"]),
        )


def _cut(fill: Mapping[str, Any]) -> Html | None:
    return el("span", f" {line(fill['cut'])}", cls="muted") if fill.get("cut") else None


def _fills(parameters: Mapping[str, Any]) -> Html:
    kinds = [fill["filled_by"] for fill in parameters.values()]
    said = [f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds)]
    return el("p", f"{len(kinds)} parameters are filled by: {', '.join(said)}", cls="muted")


def _stats(stats: Mapping[str, Any] | None) -> Html | None:
    if not stats:
        return None
    scale = scale_of([s for tensor, s in stats.items() if s is not None and not _is_table(tensor)])
    rows = [(name(tensor), *_numbers(s), _drawn(tensor, s, scale)) for tensor, s in stats.items()]
    note = el(
        "p",
        "The line runs from the smallest value to the largest, the bar is the mean plus and minus the standard "
        f"deviation. All rows have one scale, up to ±{short(scale.largest)}, logarithmic beyond ±{short(scale.knee)}.",
        cls="muted",
    )
    head = ("tensor", "min", "mean", "max", "rms", "zeros", "NaN", "Inf", "values")
    return section("Values", note, table(head, rows, numbers=True))


def _is_table(tensor: str) -> bool:
    """Whether a tensor holds ids (d2t, t2d), whose size says nothing."""
    return tensor.rsplit(".", 1)[-1] in ("d2t", "t2d")


def _drawn(tensor: str, s: Mapping[str, Any] | None, scale: Scale) -> Html:
    if s is None:
        return el("span", "not read", cls="muted")
    return el("span", "a table of ids", cls="muted") if _is_table(tensor) else value_range(s, scale)


def _numbers(s: Mapping[str, Any] | None) -> tuple[str, ...]:
    if s is None:
        return ("",) * 7
    share = f"{s['zero'] / s['numel']:.1%}" if s["numel"] else "–"
    bad = [el("strong", f"{s[k]:,}", cls="fill nothing") if s[k] else "0" for k in ("nan", "inf")]
    figures = [f"{s[k]:.3g}" if s[k] is not None else "–" for k in ("min", "mean", "max", "rms")]
    return (*figures, share, *bad)


def _acceptance(facts: Mapping[str, Any]) -> Html | None:
    rates, lengths = points(facts.get("per_position")), points(facts.get("expected_length"))
    speedups = points(facts.get("speedup"))
    best = facts.get("best_depth")
    charts = [
        el("figure", bars(data, label, top, best if marked else None))
        for data, label, top, marked in (
            (rates, "accepted, by position, given those before", 1.0, False),
            (lengths, "tokens per verification, by depth", _top(lengths), True),
            (speedups, "speed-up, by depth", _top(speedups), True),
        )
        if data
    ]
    if not charts:
        return None
    said = f"Best depth: {best}." if best is not None else None
    return section("Acceptance", el("p", said) if said else None, el("div", *charts, cls="charts"))


def _top(data: Sequence[Point]) -> float:
    return max((p.high or p.value for p in data), default=1.0) or 1.0


def _plan(plan: Mapping[str, Any] | None) -> Html | None:
    if plan is None:
        return None
    rows: list[tuple[str, str, str]] = [
        (name(r["from"]), "renamed", name(r["to"])) for r in plan["renames"] if r["from"] != r["to"]
    ]
    rows += [(name(r["from"]), "also as", name(r["to"])) for r in plan["copies"]]
    rows += [(name(d["tensor"]), "dropped", d["reason"]) for d in plan["drops"]]
    rows += [(name(s["tensor"]), "derived", s["how"]) for s in plan["synthesised"]]
    rows += [(name(c["tensor"]), "cast", f"{c['from']} to {c['to']}") for c in plan["casts"]]
    edits = [
        (name(e["pointer"]), e["action"], e["reason"] or short(e["value"])) for e in plan["config"]["edits"]
    ]
    title = f"Plan: {plan['from']} to {plan['to']}, {len(plan['renames'])} tensors"
    flags = (
        el("p", "Serve with ", el("code", " ".join(plan["launch_flags"]))) if plan["launch_flags"] else None
    )
    return section(
        title,
        flags,
        table(("tensor", "", "becomes"), rows) if rows else el("p", "All names stay."),
        el("details", el("summary", f"edits of config.json: {len(edits)}"), table(("key", "", ""), edits)),
    )


def _training(output: Mapping[str, Any] | None) -> Html | None:
    if output is None:
        return None
    rows = (
        (name(e["path"]), ", ".join(f"{k} {short(v)}" for k, v in e["metrics"].items()))
        for e in output["epochs"]
    )
    return section(
        f"A training output of {output['framework']}",
        table(("checkpoint", "metrics"), rows),
        el("p", "Next: ", el("code", output["next"])),
    )


def _tensors(tensors: Sequence[Mapping[str, Any]] | None) -> Html | None:
    if not tensors:
        return None
    rows = (
        (
            name(t["name"]),
            name(t["canonical"]) if t["canonical"] not in (None, t["name"]) else "",
            t["dtype"],
            " × ".join(map(str, t["shape"])),
            size(t["bytes"]),
        )
        for t in tensors
    )
    return section("Tensors", table(("name", "canonical", "dtype", "shape", "size"), rows))


def _grid(title: str, rows: Sequence[Mapping[str, Any]]) -> Html | None:
    if not rows:
        return None
    return section(title, table(tuple(rows[0]), ([short(v) for v in row.values()] for row in rows)))
