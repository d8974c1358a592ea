"""Variants of the trained pair's draft and target, as folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from ckpt_tools.forward._torch import torch
from ckpt_tools.model import Report, Severity
from tests.conftest import FIXTURES

PAIR = FIXTURES / "pair"
DRAFT, TARGET, STATES = str(PAIR / "draft"), str(PAIR / "target"), str(PAIR / "states.safetensors")
Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]


def variant(source: Path, out: Path, edit: Callable[[Tensors, Config], None]) -> str:
    """A folder with changed tensors and config."""
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text("utf-8"))
    edit(tensors, config)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / "model.safetensors", {"format": "pt"})
    return str(out)


def draft(out: Path, edit: Callable[[Tensors, Config], None]) -> str:
    """A variant of the draft."""
    return variant(PAIR / "draft", out, edit)


def target(out: Path, edit: Callable[[Tensors, Config], None]) -> str:
    """A variant of the target."""
    return variant(PAIR / "target", out, edit)


def codes(report: Report) -> list[str]:
    """Codes of its errors and warnings."""
    return sorted({f.code for f in report.findings if f.severity is not Severity.INFO})


def messages(report: Report, code: str) -> list[str]:
    """What findings of a code say."""
    return [f.message for f in report.findings if f.code == code]
