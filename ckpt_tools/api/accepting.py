"""``ckpt accept``: how much of a draft is accepted, and whether that pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.choosing import choose_engine
from ckpt_tools.api.reports import draft_facts, report
from ckpt_tools.api.subjects import find_target, open_draft
from ckpt_tools.checks.base import finding
from ckpt_tools.errors import InputError, UsageError
from ckpt_tools.model import Report, Severity, Subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckpt_tools.api.subjects import Opened
    from ckpt_tools.model import CaptureConvention, Draft, Engine, Finding, Target

# A length below which nothing but chance is accepted.
NOTHING = 1.05
BAR = 24


@dataclass(frozen=True)
class AcceptRequest:
    """What the user asked ``accept`` for; see the command's help."""

    states: str | None = None
    draft: str | None = None
    target: str | None = None
    url: str | None = None
    log: str | None = None
    engine: str | None = None
    depth: int = 7
    topk: int = 1
    cost_ratio: float | None = None
    prompts: tuple[str, ...] = ()
    convention: CaptureConvention | None = None
    offline: bool = False


def accept(request: AcceptRequest) -> Report:
    """Measure acceptance from recorded states, from a log or from a live server.

    Raises:
        UsageError: Not exactly one of the three, or a draft is missing.
        InputError: A file can't be read.
        Unavailable: torch or the server isn't there.
    """
    given = [n for n in ("states", "url", "log") if getattr(request, n) is not None]
    if len(given) != 1:
        raise UsageError(
            f"accept takes one of --states, --url and --log, found {', '.join(f'--{g}' for g in given) or 'none'}",
            "`ckpt accept --states FILE --draft PATH --target TARGET`, `--url URL` or `--log FILE`",
        )
    if request.states is not None:
        return _from_states(request, request.states)
    target = find_target(request.target, offline=request.offline) if request.target else None
    facts, subject = _from_server(request) if request.url is not None else _from_log(request)
    return _finish(facts, request, target, Subject(subject))


def _from_states(request: AcceptRequest, states: str) -> Report:
    if request.draft is None or request.target is None:
        raise UsageError(
            "--states needs --draft and --target",
            "`ckpt accept --states FILE --draft PATH --target TARGET`",
        )
    from ckpt_tools.api import sides
    from ckpt_tools.api.smoking import read_states_for
    from ckpt_tools.formats import read_draft
    from ckpt_tools.forward import devices
    from ckpt_tools.forward.accept import evaluate
    from ckpt_tools.forward.heads import build
    from ckpt_tools.forward.semantics import find

    engine = choose_engine(request.engine or "sglang", "--engine" if request.engine else "default")
    opened = open_draft(request.draft, offline=request.offline)
    target = find_target(request.target, offline=request.offline)
    draft = read_draft(opened.checkpoint, target, request.convention)
    if draft is None or not opened.checkpoint.tensors:
        raise InputError(
            f"{request.draft}: no draft with weights that a format fits", "`ckpt inspect` shows what is there"
        )
    recorded = read_states_for(states, draft)
    semantics = find(engine.name, engine.version)
    made = sides.ready(opened, draft, target, semantics, dtype="float32", offline=request.offline)
    about = draft_facts(opened.checkpoint, draft)
    if not isinstance(made, sides.Ready):
        nothing = {**about, "source": "states", "per_position": None, "expected_length": {}}
        nothing |= {"best_depth": None, "speedup": None, "pays": None}
        return _about(opened, draft, target, engine, [made], nothing)
    side = made.side
    with devices.threads_for(made.parameters):
        head = build(side.spec, side.tensors, side.target)
        found = evaluate(head, recorded, _depth(request, head), topk=request.topk)
    conditional = [p.conditional for p in found.per_position]
    facts = {
        **about,
        "source": "states",
        "texts": found.texts,
        "tokens": found.tokens,
        "topk": found.topk,
        "per_position": conditional,
        "reached": [p.reached for p in found.per_position],
        "top1": [p.top1 for p in found.per_position],
        f"top{found.topk}": [p.topk for p in found.per_position],
        "expected_length": {
            str(n.depth): {"mean": n.mean, "low": n.low, "high": n.high, "rounds": n.rounds}
            for n in found.expected_length
        },
        "parallel": side.spec.block_size is not None or draft.algorithm == "peagle",
    }
    finished = _finish(facts, request, target, Subject(request.draft))
    return _about(opened, draft, target, engine, finished.findings, finished.facts)


def _about(
    opened: Opened,
    draft: Draft,
    target: Target,
    engine: Engine,
    findings: Iterable[Finding],
    facts: Mapping[str, Any],
) -> Report:
    """The report on a draft of which the container's own defects are told, too."""
    broken = [f for f in opened.checkpoint.findings if f.severity is Severity.ERROR]
    return report(
        "accept",
        opened.checkpoint,
        draft,
        findings=(*broken, *findings),
        facts=facts,
        target=target,
        engines=(engine,),
    )


def _depth(request: AcceptRequest, head: Any) -> int:
    most = getattr(head, "max_steps", None)
    return min(request.depth, most) if isinstance(most, int) else request.depth


def _from_server(request: AcceptRequest) -> tuple[dict[str, Any], str]:
    from ckpt_tools.serving.live import read_live

    assert request.url is not None
    live = read_live(request.url, prompts=request.prompts)
    facts = {
        "source": live.source,
        "engine": live.engine,
        "version": live.version,
        "rounds": live.rounds,
        "depth": live.depth,
        "draft_tokens": live.draft_tokens,
        "per_position": list(live.conditional) or None,
        "expected_length": _one_depth(live.depth, live.mean_accept_len),
        "mean_accept_len": live.mean_accept_len,
        "reference": live.reference,
    }
    return facts, request.url


def _from_log(request: AcceptRequest) -> tuple[dict[str, Any], str]:
    from ckpt_tools.api.inputs import read_log_text
    from ckpt_tools.serving.logs.acceptance import rate_formula

    assert request.log is not None
    log = read_log_text(request.log)
    if log.acceptance is None:
        raise InputError(
            f"{request.log}: no line of it tells an acceptance",
            "SGLang prints one every 40 decode steps, vLLM every 10 s with statistics on; send requests and read it again",
        )
    depth = _depth_of(log.args)
    version = log.version
    if version is None and request.engine is not None:
        version = choose_engine(request.engine, "--engine").version
    formula = rate_formula(log.engine, version)
    facts = {
        "source": "log",
        "engine": log.engine,
        "version": version,
        "lines": log.acceptance.n,
        "depth": depth,
        "per_position": None,
        "expected_length": _one_depth(depth, log.acceptance.mean_accept_len),
        "mean_accept_len": log.acceptance.mean_accept_len,
        "mean_accept_rate": log.acceptance.mean_accept_rate,
        "rate_means": formula.text if formula is not None else None,
        "reference": formula.reference if formula is not None else None,
    }
    return facts, request.log


def _one_depth(depth: int | None, length: float) -> dict[str, Any]:
    """The depth that the server runs; the depths that it doesn't run aren't guessed."""
    return {str(depth): {"mean": length, "low": None, "high": None}} if depth is not None else {}


def _depth_of(args: Mapping[str, Any]) -> int | None:
    """Drafted tokens per verification: SGLang's own argument, or a field of vLLM's."""
    config = args.get("speculative_config")
    nested = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    return next((n for n in (args.get("speculative_num_steps"), nested) if isinstance(n, int)), None)


def _finish(facts: dict[str, Any], request: AcceptRequest, target: Target | None, subject: Subject) -> Report:
    """Adds whether it pays, figures of known drafters, tables to show, and findings."""
    lengths = [(int(d), row["mean"]) for d, row in facts["expected_length"].items()]
    found: list[Finding] = []
    mean = facts.get("mean_accept_len") or max((n for _, n in lengths), default=None)
    if mean is not None and mean <= NOTHING:
        found.append(
            finding(
                "ACC003",
                f"accepted length {mean:.2f}: nothing is accepted"
                if mean < 1.005
                else f"accepted length {mean:.2f}: next to nothing is accepted",
                hint="`ckpt verify --target TARGET` names the usual causes",
            )
        )
    facts |= {"best_depth": None, "speedup": None, "pays": None}
    if request.cost_ratio is None:
        found.append(finding("ACC002", "no --cost-ratio: the speedup isn't computed"))
    elif lengths:
        found += _pays(facts, lengths, request.cost_ratio)
    else:
        found.append(
            finding("ACC002", "the depth that the server drafts isn't stated: the speedup isn't computed")
        )
    facts["known"] = known_figures(target)
    facts["tables"] = _tables(facts)
    serious = any(f.severity is Severity.ERROR for f in found)
    return Report(
        command="accept",
        subject=subject,
        verdict="fail" if serious else "pass",
        target=target,
        facts=facts,
        findings=tuple(found),
    )


def _pays(facts: dict[str, Any], lengths: Sequence[tuple[int, float]], cost_ratio: float) -> list[Finding]:
    from ckpt_tools.forward.payoff import payoff

    made = payoff(lengths, cost_ratio, parallel=bool(facts.get("parallel")))
    facts |= {
        "cost_ratio": cost_ratio,
        "best_depth": made.best_depth,
        "speedup": {str(s.depth): s.speedup for s in made.by_depth},
        "pays": made.pays,
    }
    if made.pays:
        return []
    best = max(made.by_depth, key=lambda s: s.speedup)
    return [
        finding(
            "ACC001",
            f"no speedup: no depth pays at a cost ratio of {cost_ratio:g}; "
            f"the best is depth {best.depth} with {best.speedup:.2f} times",
        )
    ]


def known_figures(target: Target | None) -> list[dict[str, Any]]:
    """Published accepted lengths of drafters for the same target, each with its source."""
    if target is None:
        return []
    from ckpt_tools.targets.figures import figures

    return [dict(row) for row in figures() if row["target"] == target.id]


def _bar(value: float | None, top: float) -> str:
    return "█" * max(0, round(BAR * value / top)) if value is not None and top > 0 else ""


def _tables(facts: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = {}
    rates = facts.get("per_position") or []
    if rates:
        out["acceptance by position, given those before"] = [
            {"position": i + 1, "accepted": "-" if r is None else f"{r:.3f}", "chart": _bar(r, 1.0)}
            for i, r in enumerate(rates)
        ]
    lengths, speedups = facts["expected_length"], facts.get("speedup") or {}
    top = max((row["mean"] for row in lengths.values()), default=0.0)
    rows = []
    for depth, row in lengths.items():
        interval = f"{row['low']:.2f}–{row['high']:.2f}" if row.get("low") is not None else ""
        rows.append(
            {
                "depth": int(depth),
                "tokens per verification": f"{row['mean']:.3f}",
                "95 %": interval,
                "speedup": f"{speedups[depth]:.2f}" if depth in speedups else "",
                "chart": _bar(row["mean"], top),
            }
        )
    if rows:
        out["expected length by depth (1.00 means nothing accepted)"] = rows
    if facts["known"]:
        out["published figures for this target"] = [
            {
                "draft": k["draft"],
                "benchmark": k["benchmark"],
                "setting": k["setting"],
                "length": k["accept_length"],
            }
            for k in facts["known"][:8]
        ]
    return out


__all__ = ["AcceptRequest", "accept"]
