"""The installed engines themselves, where they are: hooks, parsers, and the probe against their own loaders.

``CKPT_SGLANG_PYTHON`` and ``CKPT_VLLM_PYTHON`` name interpreters that have them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ckpt_tools.engines.hooks import sglang_classes as known_classes
from ckpt_tools.serving.installed import find_engine
from ckpt_tools.serving.probe import probe
from ckpt_tools.serving.static_hooks import CAPTURE, EMBED_HEAD, sglang_classes, supports_eagle3, vllm_classes
from tests.conftest import FIXTURES
from tests.unit.serving.pairs import PAIRS, plan

TINY = FIXTURES / "formats" / "tiny"


def interpreter(engine: str) -> str:
    """The interpreter with this engine, or a skip that says what is missing."""
    named = os.environ.get(f"CKPT_{engine.upper()}_PYTHON")
    if not named:
        pytest.skip(f"no interpreter with {engine}: CKPT_{engine.upper()}_PYTHON names none")
    if find_engine(engine, named) is None:
        pytest.skip(f"{named} has no {engine}")
    return named


def installed(engine: str):
    found = find_engine(engine, interpreter(engine))
    assert found is not None
    assert found.package is not None
    return found


def test_sglang_s_hooks_are_the_known_ones() -> None:
    found = installed("sglang")
    if found.version != "0.5.23":
        pytest.skip(f"the hooks are recorded for 0.5.23, {found.version} is installed")
    began = time.process_time()
    classes = sglang_classes(found.package)
    spent = time.process_time() - began
    assert len(classes) == 290
    for name, row in known_classes().items():
        now = row.get("now")
        if now is None:
            continue
        hooks = classes[name].hooks
        assert (CAPTURE["eagle3"] in hooks) is bool(now.get("eagle3")), name
        assert (CAPTURE["dflash"] in hooks) is bool(now.get("dflash")), name
        assert (CAPTURE["dspark"] in hooks) is bool(now.get("dspark")), name
        assert (EMBED_HEAD in hooks) is bool(now.get("embed_head")), name
    assert spent < 20  # seconds of CPU; a guard against reading everything twice, no measurement


def test_vllm_s_interface() -> None:
    classes = vllm_classes(installed("vllm").package)
    assert supports_eagle3(classes["LlamaForCausalLM"])
    assert supports_eagle3(classes["Qwen3MoeForCausalLM"])
    assert not supports_eagle3(classes["MixtralForCausalLM"])
    assert not supports_eagle3(classes["Glm4MoeForCausalLM"])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_parser_takes_what_is_written(engine: str) -> None:
    found = installed(engine)
    mine = [plan(pair) for pair in PAIRS if pair["engine"] == f"{engine}=={found.version}"]
    if not mine:
        pytest.skip(f"no pair for {engine} {found.version}")
    commands = json.dumps([list(made.argv[len(made.program) :]) for made in mine])
    extract = FIXTURES / "args" / "extract.py"
    done = subprocess.run(
        [found.python, str(extract), engine, "--parse"],
        input=commands, capture_output=True, text=True, check=True, timeout=280,
        env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"accepted')]
    assert [answer["accepted"] for answer in answers] == [True] * len(mine)


@pytest.mark.parametrize(
    ("engine", "name", "drop", "missing"),
    [
        ("sglang", "draft-midlayer", None, ()),
        ("sglang", "draft-midlayer", "fc.weight", ("model.fc.weight",)),
        ("vllm", "draft-layers0", None, ()),
    ],
)
def test_the_probe_says_what_the_loader_does(
    engine: str, name: str, drop: str | None, missing: tuple[str, ...], tmp_path: Path
) -> None:
    tensors = pytest.importorskip("safetensors.torch", reason="torch is not installed")
    python = interpreter(engine)
    draft = tmp_path / "draft"
    shutil.copytree(TINY / name, draft)
    if drop:
        (file,) = draft.glob("*.safetensors")
        tensors.save_file({key: value for key, value in tensors.load_file(file).items() if key != drop}, file)
    load = probe(engine, draft, algorithm="eagle3", engine_python=python, time_limit=280).load
    assert load.refused is None
    assert (
        tuple(n for n, fill in load.parameters.items() if fill.filled_by in ("nothing", "partly")) == missing
    )
    assert load.parameters
