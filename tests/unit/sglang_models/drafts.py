"""Drafts that speculators wrote, with its own outputs, converted for ckpt's SGLang class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ckpt_tools.api.converting import Request, fix_keys
from tests.conftest import FIXTURES

if TYPE_CHECKING:
    import torch  # noqa: TID251

HEADS = FIXTURES / "forward" / "speculators"
NAMES = ("2layer", "4aux", "bias", "fcnorm", "nbr", "qwen3", "traindefaults")


def converted(name: str, folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A head as a folder for ckpt's class, and what speculators computed with it (``in.*``, ``out.*``)."""
    recorded = HEADS / f"eagle3_{name}.safetensors"
    with safe_open(recorded, "pt") as file:
        config = json.loads(file.metadata()["config"])
    data = load_file(recorded)
    source = folder / f"{name}-source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({k[2:]: v for k, v in data.items() if k.startswith("w.")}, source / "model.safetensors")
    report = fix_keys(Request(str(source), str(folder / name), to="sglang-ext", offline=True))
    assert report.verdict == "pass", report.findings
    return folder / name, {k: v for k, v in data.items() if not k.startswith("w.")}
