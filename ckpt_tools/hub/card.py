"""The model card: a generated part between two markers, the user's own text around it, metadata merged.

Whatever the user wrote stays: text outside the markers, and every metadata key that is already there. Lists
(tags, base_model) are added to.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from ckpt_tools.hub import remote
from ckpt_tools.hub.codes import finding
from ckpt_tools.hub.files import CARD, REPORT
from ckpt_tools.model import EMPTY, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckpt_tools.model import Finding, Report

BEGIN = "<!-- ckpt: begin of the generated part; text outside it is kept -->"
END = "<!-- ckpt: end of the generated part -->"
_BEGIN = re.compile(r"<!-- ckpt: begin[^>]*-->")
_END = re.compile(r"<!-- ckpt: end[^>]*-->")
_FRONT = re.compile(r"\A\s*---[ \t]*\r?\n(?P<yaml>.*?)(?:\r?\n)?---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LABELS = {
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "target_hidden_size": "hidden size of the target",
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key/value heads",
    "head_dim": "head dimension",
    "intermediate_size": "MLP width",
    "vocab_size": "vocabulary of the target",
    "draft_vocab_size": "vocabulary of the draft",
    "capture_layers": "captured target layers (outputs, 0-based)",
    "norm_before_residual": "norm before the residual",
    "norm_before_fc": "norm before fc",
    "fc_norm": "norm per captured layer",
    "norm_output": "final norm on the output",
    "max_position_embeddings": "longest context",
    "sliding_window": "sliding window",
    "block_size": "block size",
}
_ENGINES = {"sglang": "SGLang", "sglang-ext": "SGLang with the ckpt model package", "vllm": "vLLM"}
_ENGINES["trtllm"] = "TensorRT-LLM"


@dataclass(frozen=True)
class Acceptance:
    """Measured acceptance, which means nothing without its conditions.

    Attributes:
        facts: As ``ckpt accept`` reports them: ``per_position``, ``expected_length`` by depth, ….
        conditions: What it was measured on: data, engine, sampling, hardware.
    """

    facts: Mapping[str, Any]
    conditions: Mapping[str, str]


@dataclass(frozen=True)
class CardInput:
    """What the generated part says.

    Attributes:
        repo_id: Where the draft goes.
        verify: The report that lets the push through.
        license: As given by the user; ``None`` takes the card's own.
        base_model: The target's Hub id.
        serve: Engine -> the launch command, as text.
        acceptance: Measured acceptance, if there is one.
        smoke: The report of a smoke test of these files, if there is one.
        tags: Further tags.
    """

    repo_id: str
    verify: Report
    license: str | None = None
    base_model: str | None = None
    serve: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    acceptance: Acceptance | None = None
    smoke: Report | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """A whole README.md, its metadata, and what is wrong with it."""

    text: str
    metadata: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()


def make_card(existing: str | None, given: CardInput) -> Card:
    """The card to push.

    Args:
        existing: The README.md that is there already; ``None`` when there is none.
        given: What the generated part says.
    """
    metadata, body, findings = split_card(existing or "")
    if findings:
        return Card(existing or "", metadata, tuple(findings))
    merged, problems = _merge(metadata, given)
    findings += problems
    begins, ends = list(_BEGIN.finditer(body)), list(_END.finditer(body))
    generated = f"{BEGIN}\n\n{_generated(merged, given)}\n{END}"
    if not begins and not ends:
        own = body.strip() or f"# {given.repo_id.split('/')[-1]}"
        body = f"{own}\n\n{generated}\n"
    elif len(begins) == len(ends) == 1 and begins[0].end() <= ends[0].start():
        body = body[: begins[0].start()] + generated + body[ends[0].end() :]
    else:
        message = f"{CARD} has {len(begins)} begin and {len(ends)} end markers, or the end comes first"
        return Card(existing or "", merged, (*findings, finding("HUB004", message, Location(CARD))))
    front = yaml.safe_dump(merged, sort_keys=False, allow_unicode=True, width=1000)
    return Card(f"---\n{front}---\n\n{body.lstrip()}", merged, tuple(findings))


def split_card(text: str) -> tuple[dict[str, Any], str, list[Finding]]:
    """Metadata and body of a README.md, and findings where the metadata can't be what the Hub accepts."""
    match = _FRONT.match(text)
    if match is None:
        return {}, text, []
    body = text[match.end() :]
    try:
        data = yaml.safe_load(match["yaml"])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 2
        problem = getattr(error, "problem", None) or "it isn't YAML"
        return {}, body, [_invalid(f"{problem}", line)]
    if data is None:
        return {}, body, []
    if not isinstance(data, dict):
        return {}, body, [_invalid(f"it must be a mapping, not {_kind(data)}", 2)]
    return data, body, _structure(data)


def own_text(text: str) -> str:
    """What of a README.md the user wrote: the body without the generated part."""
    _, body, _ = split_card(text)
    return re.sub(rf"{_BEGIN.pattern}.*?{_END.pattern}", "", body, flags=re.DOTALL).strip()


def validate_card(text: str, notify: remote.Notify | None = None) -> tuple[Finding, ...]:
    """What the client's own ``ModelCard`` and the Hub have against a card; the Hub is asked.

    ``ModelCard.validate`` isn't used: clients below 2.0 send the card to huggingface.co whatever
    ``HF_ENDPOINT`` says.

    Raises:
        Exception: One of :func:`~ckpt_tools.hub.remote.transport_errors` when the Hub can't be asked.
    """
    from huggingface_hub import ModelCard
    from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

    try:
        ModelCard(text)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        return (_invalid(remote.redact(" ".join(str(error).split()))),)
    session: Any = get_session()

    def ask() -> tuple[Finding, ...]:
        response = session.post(
            f"{remote.endpoint()}/api/validate-yaml",
            json={"content": text, "repoType": "model"},
            headers=remote.request_headers(),
            timeout=30,
        )
        if response.status_code == 400:
            return tuple(_invalid(message) for message in _messages(response.text))
        hf_raise_for_status(response)
        return ()

    return remote.retrying(ask, f"validating {CARD}", notify)


def _messages(answer: str) -> list[str]:
    """The sentences in the Hub's answer to an invalid card."""
    try:
        errors = json.loads(answer)["errors"]
        return [remote.redact(str(error["message"])) for error in errors]
    except (ValueError, KeyError, TypeError):
        return [remote.redact(" ".join(answer.split()))]


def _invalid(message: str, line: int | None = None) -> Finding:
    return finding(
        "HUB001", f"{CARD} metadata is invalid: {message}; nothing was uploaded", Location(CARD, line=line)
    )


def _kind(value: Any) -> str:
    return {"dict": "a mapping", "list": "a list", "str": "text"}.get(name := type(value).__name__, name)


def _structure(data: Mapping[str, Any]) -> list[Finding]:
    """What the Hub refuses whatever the values are."""
    problems = []
    if "model-index" in data and not isinstance(data["model-index"], list):
        problems.append(f"model-index must be a list, not {_kind(data['model-index'])}")
    tags = data.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        problems.append("tags must be a list of texts")
    for model in _list(data.get("base_model")):
        if not (isinstance(model, str) and _HUB_ID.fullmatch(model)):
            problems.append(f"base_model must be a Hub id (owner/name), not {model!r}")
    if not all(isinstance(item, str) for item in _list(data.get("license"))):
        problems.append("license must be text")
    return [_invalid(problem) for problem in problems]


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _merge(metadata: Mapping[str, Any], given: CardInput) -> tuple[dict[str, Any], list[Finding]]:
    """The user's metadata with what a draft's card needs."""
    out = dict(metadata)
    findings = []
    own = _list(out.get("license"))
    if given.license is None and not own:
        findings.append(finding("HUB002", f"neither {CARD} nor --license names a license", Location(CARD)))
    elif given.license is not None and own and own != [given.license]:
        message = f"{CARD} says license: {', '.join(own)}, --license says {given.license}"
        findings.append(finding("HUB003", message, Location(CARD)))
    elif given.license is not None:
        out["license"] = given.license
    models = _list(out.get("base_model"))
    if given.base_model is not None and given.base_model not in models:
        models.append(given.base_model)
    if models:
        out["base_model"] = models[0] if len(models) == 1 else models
    else:
        message = f"the target has no Hub id, so {CARD} has no base_model"
        findings.append(finding("HUB020", message, Location(CARD)))
    engines = [engine.name for engine in given.verify.engines]
    format_ = given.verify.subject.format
    out.setdefault("library_name", "speculators" if format_ == "speculators" else _first(engines, "sglang"))
    out.setdefault("pipeline_tag", "text-generation")
    wanted = ["speculative-decoding", given.verify.subject.algorithm, *engines, *given.serve, *given.tags]
    tags = _list(out.get("tags"))
    for tag in wanted:
        tag = "sglang" if tag == "sglang-ext" else tag
        if tag and tag not in tags:
            tags.append(tag)
    out["tags"] = tags
    return out, findings


def _first(values: Sequence[str], instead: str) -> str:
    return "sglang" if values[:1] == ["sglang-ext"] else (values[0] if values else instead)


def _generated(metadata: Mapping[str, Any], given: CardInput) -> str:
    parts = [_intro(metadata, given), _facts(given.verify), _serve(given.serve)]
    parts += [_acceptance(given.acceptance), _verified(given.verify, given.smoke)]
    return "\n".join(part for part in parts if part)


def _intro(metadata: Mapping[str, Any], given: CardInput) -> str:
    algorithm = given.verify.subject.algorithm or "speculative-decoding"
    base = _list(metadata.get("base_model"))
    target = f" for [{base[0]}](https://huggingface.co/{base[0]})" if base else ""
    return (
        f"This is {_article(algorithm)} {algorithm} draft{target}: a small head that proposes tokens, which the "
        "target then checks. It is no model of its own and changes no output.\n"
    )


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeiou" else "a"


def _facts(report: Report) -> str:
    draft: Mapping[str, Any] = report.facts.get("draft") or {}
    rows: list[tuple[str, Any]] = [("format", report.subject.format)]
    if (parameters := report.facts.get("num_parameters")) is not None:
        rows.append(("parameters", f"{parameters:,}"))
    if dtypes := report.facts.get("dtypes"):
        rows.append(("dtypes", ", ".join(sorted(dtypes))))
    rows += [(label, draft.get(key)) for key, label in _LABELS.items()]
    lines = [f"| {label} | {_cell(value)} |" for label, value in rows if value is not None]
    return "\n".join(["## The draft", "", "| | |", "| --- | --- |", *lines, ""])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def _serve(commands: Mapping[str, str]) -> str:
    if not commands:
        return ""
    lines = ["## Serving it", ""]
    for engine, command in commands.items():
        lines += [f"{_ENGINES.get(engine, engine)}:", "", "```bash", command.strip(), "```", ""]
    return "\n".join(lines)


def _acceptance(acceptance: Acceptance | None) -> str:
    if acceptance is None:
        return ""
    lines = ["## Acceptance", ""]
    positions = acceptance.facts.get("per_position") or []
    lengths = acceptance.facts.get("expected_length") or {}
    if positions:
        lines += ["| drafted token | accepted, given that those before were |", "| --- | --- |"]
        lines += [f"| {i} | {_number(value)} |" for i, value in enumerate(positions, 1)] + [""]
    if lengths:
        lines += ["| depth | expected length |", "| --- | --- |"]
        lines += [f"| {depth} | {_number(value)} |" for depth, value in lengths.items()] + [""]
    conditions = [f"{name}: {value}" for name, value in acceptance.conditions.items()]
    return "\n".join([*lines, f"Measured with {'; '.join(conditions)}.", ""])


def _number(value: Any) -> str:
    if isinstance(value, dict):
        low, high = value.get("low"), value.get("high")
        spread = "" if low is None or high is None else f" ({_number(low)} to {_number(high)})"
        return f"{_number(value.get('value'))}{spread}"
    if isinstance(value, (list, tuple)):
        return " … ".join(_number(item) for item in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _verified(report: Report, smoke: Report | None) -> str:
    engines = ", ".join(str(engine) for engine in report.engines) or "no engine"
    target = f" with the target {report.target.id}" if report.target is not None else ""
    counts = {s: sum(f.severity is s for f in report.findings) for s in Severity}
    lines = ["## Verified", "", f"`ckpt verify` for {engines}{target}: **{report.verdict}**, with"]
    said = [_count(counts[Severity.WARNING], "warning"), _count(counts[Severity.INFO], "remark")]
    lines += [f"{' and '.join(said)}. The whole report is in [{REPORT}]({REPORT}).", ""]
    for found in report.at_least(Severity.WARNING):
        lines.append(f"- {found.code} {found.name}: {_cell(found.message)}")
    if smoke is not None:
        device = smoke.facts.get("device", "a device")
        lines += ["", f"`ckpt smoke` ran these very files on {device}: **{smoke.verdict}**."]
    return "\n".join(lines) + "\n"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
