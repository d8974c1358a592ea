"""From a raw line to a record: prefixes of containers, ranks and loggers, colours, progress bars."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# `docker compose logs`, `kubectl logs --timestamps`, journald, and the rank labels of torchrun's stderr
_WRAPPER = re.compile(
    r"(?:[\w.-]+ +\| |\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) |"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w.@/-]+\[\d+\]: |\[(?:rank|default)\d+\]: ?)"
)
_PROCESS = re.compile(r"\((?P<name>[\w-]+(?: [\w-]+)*) pid=\d+\) ?")

_SGLANG = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<rank>(?: [A-Z_]+\d+)*)\] (?P<text>.*)", re.S
)
_VLLM = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[?(?P<source>[\w./-]+:\d+)\] ?(?P<text>.*)",
    re.S,
)
_TRTLLM = re.compile(
    r"\[(?P<time>\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\] \[TRT-LLM\] \[(?P<level>[IWEVFD])\] (?:\[_\w+\])?"
    r"(?:\[(?P<rank>RANK \d+)\] ?)? ?(?P<text>.*)",
    re.S,
)
_TRTLLM_CPP = re.compile(r"\[TensorRT-LLM\]\[(?P<level>[A-Z]+)\] ?(?P<text>.*)", re.S)
_UVICORN = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): {2,}(?P<text>.*)", re.S)
_EMBEDDED = re.compile(r"(?:it/s|s/it)\](?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")

_BAR = re.compile(
    r"(?P<desc>[^|\r\n]*?):? *(?P<percent>\d{1,3})%(?:\|[^|]*\|| Completed \|) *"
    r"(?P<done>\d+)/(?P<total>\d+) \[(?P<elapsed>[\d:]+)<(?P<left>[\d:]+|\?), *(?:[\d.]+|\?)(?:it/s|s/it)"
)


@dataclass(frozen=True)
class Record:
    """One line of a log as its writer meant it.

    Attributes:
        line: 1-based.
        kind: ``sglang``, ``vllm``, ``trtllm`` or ``uvicorn`` for a logger's own record, ``plain`` otherwise.
        text: The message.
        time: Time stamp as spelled, or ``None``.
        rank: ``TP0``, ``Worker_TP1``, …, or "".
        source: vLLM's ``file.py:123``.
        level: Upper case where the logger states one.
    """

    line: int
    kind: str
    text: str
    time: str | None = None
    rank: str = ""
    source: str = ""
    level: str = ""


@dataclass(frozen=True)
class Bar:
    """A progress bar's last state."""

    description: str
    percent: float
    done: int
    total: int
    elapsed_s: float
    remaining_s: float | None


def decode(raw: bytes) -> str:
    """Text of a raw line: bytes that aren't UTF-8 replaced, colours removed."""
    text = raw.decode("utf-8", "replace")
    return _ANSI.sub("", text) if "\x1b" in text else text


def segments(text: str) -> list[str]:
    """The states that a line went through: parts between carriage returns, and what a bar runs into."""
    if "\r" not in text and "it]" not in text and "it/s]" not in text:
        return [text]
    parts = [part for part in text.split("\r") if part.strip()]
    out: list[str] = []
    for part in parts:
        hit = _EMBEDDED.search(part)
        out += [part[: hit.end()], part[hit.end() :]] if hit else [part]
    return out


def parse_record(line: int, text: str) -> Record:
    """Read one segment: strip what containers and launchers put before it, then the logger's own prefix."""
    while hit := _WRAPPER.match(text):
        text = text[hit.end() :]
    rank = ""
    if text.startswith("(") and (hit := _PROCESS.match(text)):
        rank, text = hit["name"], text[hit.end() :]
    if text.startswith("["):
        if hit := _SGLANG.match(text):
            message, rank = hit["text"], hit["rank"].strip() or rank
            if inner := _UVICORN.match(message):
                return Record(
                    line, "uvicorn", inner["text"], hit["time"], hit["rank"].strip(), "", inner["level"]
                )
            return Record(line, "sglang", message, hit["time"], hit["rank"].strip() or rank)
        if hit := _TRTLLM.match(text):
            level = {"E": "ERROR", "W": "WARNING"}.get(hit["level"], "INFO")
            return Record(line, "trtllm", hit["text"], hit["time"], hit["rank"] or "", "", level)
        if hit := _TRTLLM_CPP.match(text):
            return Record(line, "trtllm", hit["text"], None, "", "", hit["level"])
    elif text[:1] in ("D", "I", "W", "E", "C"):
        if hit := _VLLM.match(text):
            return Record(line, "vllm", hit["text"], hit["time"], rank, hit["source"], hit["level"])
        if hit := _UVICORN.match(text):
            return Record(line, "uvicorn", hit["text"], None, rank, "", hit["level"])
    return Record(line, "plain", text, None, rank)


def seconds(clock: str) -> float:
    """``1:02:03`` in seconds."""
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part or 0)
    return float(total)


def parse_bar(text: str) -> Bar | None:
    """The last progress bar state in a segment, or ``None``."""
    if "%" not in text:
        return None
    hits = list(_BAR.finditer(text))
    if not hits:
        return None
    hit = hits[-1]
    left = None if hit["left"] == "?" else seconds(hit["left"])
    description = hit["desc"].split("] ")[-1].strip()
    return Bar(
        description, float(hit["percent"]), int(hit["done"]), int(hit["total"]), seconds(hit["elapsed"]), left
    )
