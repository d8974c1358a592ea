"""Start-up and decode logs of SGLang, vLLM and TensorRT-LLM, read as the engines' own records."""

from __future__ import annotations

from ckpt_tools.serving.logs.acceptance import RateFormula, rate_formula
from ckpt_tools.serving.logs.failures import FAILURES, NOTES, Failure
from ckpt_tools.serving.logs.reader import LogReader
from ckpt_tools.serving.logs.state import Acceptance, LogState, Note, Progress, State

__all__ = [
    "FAILURES",
    "NOTES",
    "Acceptance",
    "Failure",
    "LogReader",
    "LogState",
    "Note",
    "Progress",
    "RateFormula",
    "State",
    "rate_formula",
    "read_log",
]


def read_log(data: bytes, engine: str | None = None) -> LogState:
    """What a whole log means."""
    reader = LogReader(engine)
    reader.feed(data)
    return reader.snapshot()
