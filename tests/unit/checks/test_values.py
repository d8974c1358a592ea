"""VAL: each fault of values is found in real files, with its code, and plain files have none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: TID251  # writes the files
from safetensors.torch import load_file, save_file

from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.model import Report, Severity

PAIR = Path(__file__).parents[3] / "fixtures" / "pair"


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAIR / "draft", tmp_path / "draft"))


def edited(folder: Path, config: dict[str, Any] | None = None, **tensors: Any) -> Path:
    """The folder with other values: a function of the old ones by canonical end of the name."""
    file = folder / "model.safetensors"
    there = load_file(file)
    for end, change in tensors.items():
        (name,) = [n for n in there if n.endswith(end.replace("__", "."))]
        there[name] = change(there[name].clone()).contiguous()
    save_file(there, file, {"format": "pt"})
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | config), "utf-8")
    return folder


def deep(folder: Path, engine: str = "vllm", **more: Any) -> Report:
    return verify(
        VerifyRequest(
            str(folder), str(PAIR / "target"), engines=(engine,), deep=True, select=("VAL",), **more
        )
    )


def said(report: Report) -> dict[str, str]:
    return {f.code: f.message for f in report.findings}


def put(place: tuple[int, ...], value: float) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[place] = value
        return tensor

    return change


def test_a_trained_draft_has_none(draft: Path) -> None:
    report = deep(draft)
    assert said(report) == {}
    assert {"VAL001", "VAL002", "VAL003", "VAL004", "VAL005"} <= set(report.facts["ran"])


def test_nan_and_infinity(draft: Path) -> None:
    edited(draft, fc__weight=put((1, 2), float("nan")), lm_head__weight=put((0, 0), float("-inf")))
    messages = [f.message for f in deep(draft).findings if f.code == "VAL001"]
    assert [m.split(" of ")[0] for m in messages] == [
        "fc.weight holds 1 NaN",
        "lm_head.weight holds 1 infinities",
    ]


@pytest.mark.parametrize(("value", "words"), [(0.0, "is all zero"), (0.5, "holds 0.5 alone")])
def test_constants(draft: Path, value: float, words: str) -> None:
    edited(draft, down_proj__weight=lambda t: torch.full_like(t, value))
    assert words in said(deep(draft))["VAL002"]


def test_scales_of_quantised_weights_may_be_constant(draft: Path) -> None:
    file = draft / "model.safetensors"
    save_file(load_file(file) | {"fc.weight_scale": torch.ones(4, 2)}, file, {"format": "pt"})
    assert "VAL002" not in said(deep(draft))


def test_norms_far_from_one(draft: Path) -> None:
    edited(draft, hidden_norm__weight=lambda t: t * 0, input_layernorm__weight=lambda t: t * 1000)
    found = [(f.severity, f.message) for f in deep(draft).findings if f.code == "VAL003"]
    assert [s for s, _ in sorted(found)] == [Severity.ERROR, Severity.WARNING]
    assert any("is all zero: what it norms is cut off" in m for _, m in found)
    assert any("far from 1" in m for _, m in found)


def test_norms_that_were_never_filled(draft: Path) -> None:
    ones = torch.ones_like
    edited(
        draft, hidden_norm__weight=ones, input_layernorm__weight=ones, post_attention_layernorm__weight=ones
    )
    assert said(deep(draft))["VAL004"].startswith("all 3 norms of layer 0 are exactly ones")


def test_values_beyond_float16(draft: Path) -> None:
    edited(draft, {"dtype": "float16"}, fc__weight=put((0, 0), 1e5))
    assert "fc.weight reaches 9.984e+04" in said(deep(draft))["VAL005"]
    edited(draft, {"dtype": "bfloat16"})
    assert "VAL005" not in said(deep(draft))


def test_statistics_are_drawn_where_they_are_asked_for(draft: Path) -> None:
    assert "stats" not in deep(draft).facts
    stats = deep(draft, stats=True).facts["stats"]
    assert set(stats) == set(load_file(draft / "model.safetensors"))
    assert stats["fc.weight"]["min"] < stats["fc.weight"]["mean"] < stats["fc.weight"]["max"]
    assert "stats" not in verify(VerifyRequest(str(draft), stats=True)).facts


# -- VAL006: a head with rows for ids that the target lacks


def whole_vocabulary(folder: Path, rows: int, beyond: float) -> Path:
    """The draft with a head of the target's vocabulary and more rows, without a map."""
    file = folder / "model.safetensors"
    there = {n: t for n, t in load_file(file).items() if n not in ("d2t", "t2d")}
    config = json.loads((folder / "config.json").read_text("utf-8"))
    vocab = config["transformer_layer_config"]["vocab_size"]
    width = there["lm_head.weight"].shape[1]
    head = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    head[vocab:] = beyond
    there["lm_head.weight"] = head
    embed = there["embed_tokens.weight"]
    there["embed_tokens.weight"] = torch.cat([embed, embed[: rows - vocab]])
    save_file(there, file, {"format": "pt"})
    config["draft_vocab_size"] = config["transformer_layer_config"]["vocab_size"] = rows
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def test_head_rows_for_ids_that_the_target_lacks(draft: Path) -> None:
    vocab = json.loads((PAIR / "target" / "config.json").read_text("utf-8"))["vocab_size"]
    more = whole_vocabulary(draft, vocab + 64, 0.25)
    assert said(deep(more))["VAL006"].startswith(f"rows {vocab}..{vocab + 63} of lm_head.weight hold values")


def test_head_rows_of_zeros_are_padding(draft: Path) -> None:
    vocab = json.loads((PAIR / "target" / "config.json").read_text("utf-8"))["vocab_size"]
    report = deep(whole_vocabulary(draft, vocab + 64, 0.0))
    assert "VAL006" not in said(report)
    assert "VAL006" in report.facts["ran"]
