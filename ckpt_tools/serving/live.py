"""Acceptance as a running server counts it: SGLang's ``/server_info`` and ``/generate``, vLLM's ``/metrics``."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ckpt_tools.errors import Unavailable, UsageError

# Asked when a server has no statistics yet; plain text that any model continues.
PROMPTS = (
    "The capital of France is",
    "Count from one to twenty: one, two, three,",
    "def fibonacci(n):\n",
    "Once upon a time there was a small village where",
)
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True)
class Live:
    """What a server says of its drafts.

    Attributes:
        engine: ``sglang`` or ``vllm``.
        version: As the server states it.
        source: The route that the figures came from.
        depth: Drafted tokens per verification.
        draft_tokens: Tokens verified at a time (a tree has more than depth + 1).
        rounds: Verifications behind the figures; ``None`` where the server doesn't say.
        mean_accept_len: Tokens per verification, the target's own counted; 1.0 means nothing accepted.
        conditional: Acceptance per position, given that those before were accepted.
        reference: Where the engine reckons it.
    """

    engine: str
    version: str | None
    source: str
    depth: int | None
    draft_tokens: int | None
    rounds: int | None
    mean_accept_len: float
    conditional: tuple[float | None, ...] = ()
    reference: str = ""


def read_live(
    url: str, *, prompts: Sequence[str] = (), max_new_tokens: int = 128, timeout: float = 60.0
) -> Live:
    """Acceptance of the server at ``url``; with ``prompts``, of those requests alone (SGLang).

    Raises:
        UsageError: It is no http address.
        Unavailable: Nobody answers there, or the server counts no drafts.
    """
    base = _base(url)
    info = _get_json(base, ("/server_info", "/get_server_info"), timeout)
    if info is not None and "speculative_algorithm" in info:  # vLLM has a route of that name for developers
        return _sglang(base, info, tuple(prompts), max_new_tokens, timeout)
    metrics = _get(base + "/metrics", timeout)
    if metrics is not None:
        found = vllm_metrics(metrics)
        if found is not None:
            version = _get_json(base, ("/version",), timeout)
            stated = version.get("version") if version else None
            return Live(**{**vars(found), "version": stated if isinstance(stated, str) else None})
        raise Unavailable(
            f"{url}: the server counts no drafts yet",
            "send it some requests; is it started with --speculative-config?",
        )
    raise Unavailable(
        f"{url}: no SGLang or vLLM server answers there", "is it started, and is the port right?"
    )


def _base(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{url!r} is no http address", "write it as http://127.0.0.1:30000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _open(request: str | urllib.request.Request, timeout: float) -> bytes | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return None
    except (urllib.error.URLError, OSError, ValueError) as error:
        where = request if isinstance(request, str) else request.full_url
        raise Unavailable(
            f"{where}: no answer ({error})", "is the server started, and is the port right?"
        ) from error


def _get(url: str, timeout: float) -> str | None:
    data = _open(url, timeout)
    return data.decode("utf-8", "replace") if data is not None else None


def _get_json(base: str, routes: Sequence[str], timeout: float) -> Mapping[str, Any] | None:
    for route in routes:
        text = _get(base + route, timeout)
        if text is not None:
            try:
                value = json.loads(text)
            except ValueError:
                continue
            if isinstance(value, Mapping):
                return value
    return None


def _sglang(
    base: str, info: Mapping[str, Any], prompts: tuple[str, ...], max_new_tokens: int, timeout: float
) -> Live:
    depth, tokens = _int(info.get("speculative_num_steps")), _int(info.get("speculative_num_draft_tokens"))
    version = info.get("version")
    version = version if isinstance(version, str) else None
    if info.get("speculative_algorithm") is None:
        raise Unavailable(
            f"{base}: the server runs without a draft",
            "start it with --speculative-algorithm; see `ckpt launch`",
        )
    states = info.get("internal_states")
    places = [s for s in states if isinstance(s, Mapping)] if isinstance(states, list) else []
    means = [s["avg_spec_accept_length"] for s in (*places, info) if _number(s.get("avg_spec_accept_length"))]
    if means and not prompts:
        return Live(
            "sglang",
            version,
            "/server_info",
            depth,
            tokens,
            None,
            sum(means) / len(means),
            reference="sglang 0.5.23 srt/managers/scheduler_components/internal_state.py:243-253",
        )
    metas = [_generate(base, text, max_new_tokens, timeout) for text in prompts or PROMPTS]
    return sglang_meta(metas, version, depth, tokens)


def _generate(base: str, text: str, max_new_tokens: int, timeout: float) -> Mapping[str, Any]:
    body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens}}
    request = urllib.request.Request(
        base + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    data = _open(request, timeout)
    try:
        answer = json.loads(data or b"{}")
    except ValueError:
        answer = {}
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping) or not _int(meta.get("spec_verify_ct")):
        raise Unavailable(
            f"{base}/generate: the answer has no count of verifications (meta_info.spec_verify_ct)",
            "SGLang gives it when it serves with a draft",
        )
    return meta


def sglang_meta(
    metas: Sequence[Mapping[str, Any]], version: str | None, depth: int | None, draft_tokens: int | None
) -> Live:
    """Acceptance over the ``meta_info`` of several answers.

    A histogram of correct drafts per verification gives the positions where the release sends one (from 0.5.12).
    """
    rounds = sum(_int(m.get("spec_verify_ct")) or 0 for m in metas)
    correct, known = 0, True
    for meta in metas:
        count = next(
            (
                n
                for k in ("spec_num_correct_drafts", "spec_accept_token_num")
                if (n := _int(meta.get(k))) is not None
            ),
            None,
        )
        if count is None:
            known = False
            break
        correct += count
    # a release that gives neither: tokens per verification, the first token comes from the prefill
    made = sum((_int(m.get("completion_tokens")) or 1) - 1 for m in metas)
    mean = 1 + correct / rounds if known else made / rounds
    histogram: list[int] = []
    for meta in metas:
        row = meta.get("spec_correct_drafts_histogram")
        for i, count in enumerate(row if isinstance(row, list) else ()):
            histogram += [0] * (i + 1 - len(histogram))
            histogram[i] += _int(count) or 0
    return Live(
        "sglang",
        version,
        "/generate",
        depth,
        draft_tokens,
        rounds,
        mean,
        conditional_of(histogram),
        "sglang 0.5.23 srt/managers/tokenizer_manager.py:3138-3209",
    )


def conditional_of(histogram: Sequence[int]) -> tuple[float | None, ...]:
    """Acceptance per position from how often 0, 1, 2, … drafts were accepted."""
    at_least = [sum(histogram[i:]) for i in range(len(histogram))]
    return tuple(b / a if a else None for a, b in pairwise(at_least))


def vllm_metrics(text: str) -> Live | None:
    """Acceptance from vLLM's Prometheus counters, over all engines of the server; ``None`` without drafts."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for match in _SAMPLE.finditer(text):
        name = match["name"].removesuffix("_total")
        if not name.startswith("vllm:spec_decode_num_"):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        where = _POSITION.search(match["labels"] or "")
        if name.endswith("_per_pos") and where is not None:
            positions[int(where[1])] = positions.get(int(where[1]), 0.0) + value
        else:
            sums[name] = sums.get(name, 0.0) + value
    drafts, accepted = (
        sums.get("vllm:spec_decode_num_drafts", 0),
        sums.get("vllm:spec_decode_num_accepted_tokens", 0),
    )
    if not drafts:
        return None
    counts = [drafts, *(positions[i] for i in sorted(positions))]
    conditional = tuple(b / a if a else None for a, b in pairwise(counts))
    return Live(
        "vllm",
        None,
        "/metrics",
        len(positions) or None,
        len(positions) + 1 if positions else None,
        int(drafts),
        1 + accepted / drafts,
        conditional,
        "vllm 0.33.0 vllm/v1/spec_decode/metrics.py:228-258",
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _int(value: Any) -> int | None:
    return int(value) if _number(value) else None
