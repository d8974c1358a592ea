"""The pair in the libraries it is laid out for: transformers' Llama and speculators' own EAGLE-3 class.

Needs an interpreter with speculators (which brings transformers) in CKPT_SPECULATORS_PYTHON; skipped without.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file

from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.heads import build
from tests.unit.forward.drafts import relative_error
from tests.unit.forward.pair import CONFIG, PAIR, STATES, pair_side

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = os.environ.get("CKPT_SPECULATORS_PYTHON")

SCRIPT = """
import sys, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from speculators.models.eagle3 import Eagle3DraftModel

folder, out = sys.argv[1:]
states = load_file(folder + "/states.safetensors")
tokens = states["token_ids"][:2]
target = AutoModelForCausalLM.from_pretrained(folder + "/target", dtype=torch.float32)
with torch.no_grad():
    got = target(tokens, output_hidden_states=True)
aux = torch.cat([got.hidden_states[i] for i in (2, 4, 5)], -1)
config = Eagle3DraftModel.config_class.from_pretrained(folder + "/draft")
config.transformer_layer_config._attn_implementation = "eager"
draft = Eagle3DraftModel.from_pretrained(folder + "/draft", config=config, dtype=torch.float32)
logits = []
draft.lm_head.register_forward_hook(lambda module, given, made: logits.append(made.detach().clone()))
with torch.no_grad():
    draft(
        hidden_states=aux[:1, :-1], input_ids=tokens[:1, 1:],
        document_ids=torch.zeros(1, tokens.shape[1] - 1, dtype=torch.long), ttt_steps=3,
    )
save_file({"greedy": got.logits.argmax(-1), "aux": aux.contiguous(),
           **{f"logits.{i}": x.contiguous() for i, x in enumerate(logits[:3])}}, out)
"""


@pytest.mark.skipif(PYTHON is None, reason="CKPT_SPECULATORS_PYTHON names no interpreter with speculators")
def test_transformers_and_speculators_load_the_pair(tmp_path: Path) -> None:
    assert PYTHON is not None
    pair = tmp_path / "pair"
    shutil.copytree(PAIR, pair)
    config = {**CONFIG, "speculators_config": {**CONFIG["speculators_config"]}}
    config["speculators_config"]["verifier"] = {
        **config["speculators_config"]["verifier"],
        "name_or_path": str(pair / "target"),
    }
    (pair / "draft" / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out.safetensors"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT, str(pair), str(out)],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    got = load_file(out)
    for i in range(2):
        text = STATES.texts[i]
        # the target's own greedy continuation, and its states as bfloat16 keeps them
        assert torch.equal(got["greedy"][i, text.start - 1 : -1], text.tokens[text.start :])
        assert relative_error(text.aux, got["aux"][i]) < 5e-3
    side = pair_side()
    with torch.no_grad():
        rows = build(side.spec, side.tensors).rows(STATES.texts[0].tokens[None, 1:], got["aux"][:1, :-1], 3)
    for step in range(3):
        assert relative_error(rows[:, :, step], got[f"logits.{step}"]) < 1e-5
