"""What an engine captures: compared with SGLang's own hooks, and each rule on its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools import targets
from ckpt_tools.engines.capture import (
    LAST_LAYER_SINCE,
    MARKS_LAYERS,
    PACKS,
    captured,
    decide_convention,
    default_layers,
)
from ckpt_tools.engines.hooks import serves, sglang_classes
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Engine

FIXTURES = Path(__file__).parents[3] / "fixtures"
RECORDED: dict[str, Any] = json.loads((FIXTURES / "engines" / "base" / "sglang_hooks.json").read_text())
KIMI = "KimiK25ForConditionalGeneration"
LLAMA = "LlamaForCausalLM"
GPT_OSS = "GptOssForCausalLM"


def sglang(version: str = "0.5.23") -> Engine:
    return Engine("sglang", version, version)


def vllm(version: str = "0.33.0") -> Engine:
    return Engine("vllm", version, version)


def on_sglang(
    architecture: str | None, n: int | None, nested: list[int] | None, version: str = "0.5.23", **more: Any
) -> tuple[tuple[int, ...] | None, str | None]:
    found = captured(sglang(version), architecture, n, nested_ids=nested, top_level_ids=None, **more)
    return found.layers, found.problem


@pytest.mark.parametrize("release", list(RECORDED["releases"]))
def test_agrees_with_the_hooks_of_every_class(release: str) -> None:
    """Every target class that the history says is served, on every recorded list of ids."""
    n = RECORDED["num_layers"]
    compared = 0
    for group in RECORDED["releases"][release]:
        for name in group["classes"]:
            if "since" not in sglang_classes()[name] or not serves(sglang(release), name, "EAGLE3").ok:
                continue  # a draft class that inherits the hook, or a hook that crashes
            for ids, answer in zip(RECORDED["ids"], group["boundaries"], strict=True):
                found = captured(sglang(release), name, n, nested_ids=ids, top_level_ids=None)
                if answer == "IndexError":
                    assert found.layers is None, (name, ids)
                    assert "IndexError" in (found.problem or ""), (name, ids)
                else:
                    _compare(release, name, n, ids, answer, found.layers, found.problem)
                compared += 1
    assert compared >= 500


def _compare(
    release: str,
    name: str,
    n: int,
    ids: list[int] | None,
    boundaries: list[int],
    layers: tuple[int, ...] | None,
    problem: str | None,
) -> None:
    since = LAST_LAYER_SINCE.get(name)
    end = n if since and parse(release) >= parse(since) else n - 1
    reached = sorted({k - 1 for k in boundaries if 0 <= k <= end})
    short = len(reached) < len(boundaries)
    if short and name in PACKS and parse(release) >= parse("0.5.18"):
        assert layers is None, (name, ids)
    else:
        assert layers == tuple(reached), (name, ids)
    if short:
        assert problem, (name, ids)
    elif 0 in boundaries:
        assert "embedding" in (problem or ""), (name, ids)
    elif parse(release) >= parse("0.5.11"):
        assert problem is None, (name, ids)


def test_the_marking_classes_are_those_that_raise_index_errors() -> None:
    newest = RECORDED["releases"]["0.5.23"]
    raising = {name for group in newest if "IndexError" in group["boundaries"] for name in group["classes"]}
    assert {name for name in raising if "MTP" not in name} == MARKS_LAYERS


def test_every_registry_target_captures_what_both_engines_do_by_default() -> None:
    fixture = json.loads((FIXTURES / "targets" / "capture_defaults.json").read_text())
    compared = 0
    for target_id, row in fixture.items():
        target = targets.find(target_id)
        assert target is not None
        n = target.num_hidden_layers
        assert n is not None
        by_default = captured(vllm(), None, n, nested_ids=None, top_level_ids=None)
        assert by_default.layers == tuple(k - 1 for k in row["vllm_default"])
        architecture = target.architectures[0] if target.architectures else None
        found = captured(sglang(), architecture, n, nested_ids=None, top_level_ids=None)
        shift = 0 if row["handling"].startswith("+1 always, also on the default") else 1
        assert found.layers == tuple(k - shift for k in row["sglang_default"])
        compared += 1
    assert compared == 90


@pytest.mark.parametrize(
    ("architecture", "n", "ids", "version", "layers"),
    [
        # one list, three meanings
        (LLAMA, 61, [2, 30, 58], "0.5.23", (2, 30, 58)),
        (KIMI, 61, [2, 30, 58], "0.5.23", (1, 29, 57)),
        (KIMI, 61, [1, 29, 57], "0.5.23", (1, 29, 57)),
        (GPT_OSS, 36, [24, 30, 36], "0.5.23", (23, 29, 35)),
        (GPT_OSS, 36, [1, 17, 32], "0.5.23", (1, 17, 32)),
        ("Glm4MoeForCausalLM", 46, [1, 22, 42], "0.5.23", (1, 22, 42)),
        # order counts for the first id alone, and never for what is captured
        (KIMI, 61, [30, 1, 58], "0.5.23", (0, 29, 57)),
        (LLAMA, 32, [28, 1, 15], "0.5.23", (1, 15, 28)),
        # without ids
        (LLAMA, 32, None, "0.5.23", (1, 15, 28)),
        ("MiniMaxM3SparseForConditionalGeneration", 60, None, "0.5.23", (2, 30, 57)),
        ("MiniMaxM3SparseForCausalLM", 60, None, "0.5.23", (1, 29, 56)),
        # the last layer, where the class has the branch
        ("Gemma3ForCausalLM", 26, [1, 12, 25], "0.5.23", (1, 12, 25)),
        (GPT_OSS, 36, [1, 17, 35], "0.5.23", (1, 17, 35)),
        # ids that start with 1 need no class; nor do any before 0.5.13
        (None, 32, [1, 15, 28], "0.5.23", (1, 15, 28)),
        ("NoSuchModel", 32, [1, 15, 28], "0.5.23", (1, 15, 28)),
        ("MindSporeForCausalLM", 32, [1, 15, 28], "0.5.23", (1, 15, 28)),
        (None, 32, [3, 15, 28], "0.5.12", (3, 15, 28)),
        (None, None, [1, 15, 28], "0.5.23", (1, 15, 28)),
        (GPT_OSS, None, [1, 15, 28], "0.5.12", (1, 15, 28)),
    ],
)
def test_sglang_captures(
    architecture: str | None, n: int | None, ids: list[int] | None, version: str, layers: tuple[int, ...]
) -> None:
    assert on_sglang(architecture, n, ids, version) == (layers, None)


@pytest.mark.parametrize(
    ("architecture", "n", "ids", "layers", "said"),
    [
        (LLAMA, 8, [1, 4, 7], (1, 4), "output of layer 7 of 8 is never captured: 2 states"),
        ("Qwen3MoeForCausalLM", 8, [1, 4, 7], None, "IndexError"),
        ("Qwen3MoeForCausalLM", 8, [-3, 1, 4], None, "counts from the last layer"),
        ("DeepseekV3ForCausalLM", 8, [1, 4, 7], None, "captured 2 of 3"),
        ("DeepseekV3ForCausalLM", 8, [1, 1, 4], None, "captured 2 of 3"),
        (LLAMA, 8, [1, 1, 4], (1, 4), "duplicate ids collapse: 2 states come back where 3"),
        (LLAMA, 8, [-1, 1, 4], (-1, 1, 4), "embedding"),
        (LLAMA, 8, [-5, 1, 4], (1, 4), "boundary -4"),
        (LLAMA, 8, [], (), "empty list"),
        (LLAMA, 4, None, (0, 1), "duplicate ids collapse"),
        (None, 8, [2, 4, 5], None, "target's class"),
        ("NoSuchModel", 8, [2, 4, 5], None, "how NoSuchModel counts ids isn't known"),
        ("MindSporeForCausalLM", 8, [2, 4, 5], None, "isn't known"),
        (GPT_OSS, None, [2, 4, 5], None, "number of layers"),
        (LLAMA, None, None, None, "number of layers"),
    ],
)
def test_sglang_problems(
    architecture: str | None, n: int | None, ids: list[int] | None, layers: tuple[int, ...] | None, said: str
) -> None:
    found, problem = on_sglang(architecture, n, ids)
    assert found == layers
    assert said in (problem or "")


def test_the_last_layer_by_release() -> None:
    assert on_sglang(GPT_OSS, 36, [1, 17, 35], "0.5.17")[0] == (1, 17, 35)
    assert on_sglang(GPT_OSS, 36, [1, 17, 35], "0.5.16")[0] == (1, 17)
    m3 = "MiniMaxM3SparseForCausalLM"
    assert on_sglang(m3, 60, [1, 29, 59], "0.5.22")[0] == (1, 29)
    assert on_sglang(m3, 60, [1, 29, 59], "0.5.23")[0] == (1, 29, 59)


def test_a_draft_may_decline_the_layers() -> None:
    assert on_sglang(LLAMA, 8, [1, 3, 4], use_aux=False) == ((), None)
    found = captured(sglang(), LLAMA, 8, nested_ids=None, top_level_ids=None, use_aux=False)
    assert found.source == "off"
    # before 0.5.8 the flag isn't read
    assert on_sglang(LLAMA, 8, [1, 3, 4], "0.5.7", use_aux=False)[0] == (1, 3, 4)


def test_top_level_ids_are_nothing_to_sglang() -> None:
    found = captured(sglang(), LLAMA, 32, nested_ids=None, top_level_ids=[3, 10, 20])
    assert (found.layers, found.source) == ((1, 15, 28), "default")


def test_before_0_4_9_ids_are_not_read() -> None:
    layers, problem = on_sglang(LLAMA, 32, [3, 10, 20], "0.4.8")
    assert layers == (1, 15, 28)
    assert "read from 0.4.9 on" in (problem or "")
    assert on_sglang(LLAMA, 32, [1, 15, 28], "0.4.8") == ((1, 15, 28), None)
    assert on_sglang(LLAMA, 32, None, "0.4.8") == ((1, 15, 28), None)


@pytest.mark.parametrize("version", ["0.4.9", "0.5.9", "0.5.10.post1"])
def test_cuda_graphs_hold_the_default_layers_before_0_5_11(version: str) -> None:
    assert on_sglang(LLAMA, 32, [1, 15, 28], version) == ((1, 15, 28), None)
    layers, problem = on_sglang(LLAMA, 32, [1, 14, 28], version)
    assert layers == (1, 14, 28)
    assert "CUDA graphs capture the default layers [1, 15, 28] before 0.5.11" in (problem or "")
    assert "--disable-cuda-graph" in (problem or "")
    assert "for some targets" in (on_sglang(LLAMA, None, [1, 14, 28], version)[1] or "")


def test_cuda_graphs_add_up_on_qwen_moe_before_0_5_11() -> None:
    problem = on_sglang("Qwen3MoeForCausalLM", 48, [1, 20, 44], "0.5.9")[1]
    assert "too many states" in (problem or "")
    assert on_sglang("Qwen3MoeForCausalLM", 48, [1, 20, 44], "0.5.11") == ((1, 20, 44), None)


def test_references_name_the_method() -> None:
    found = captured(sglang(), KIMI, 61, nested_ids=[1, 29, 57], top_level_ids=None)
    assert found.reference == "sglang 0.5.23 models/kimi_k25.py:928(KimiK25ForConditionalGeneration)"
    assert found.configured == (1, 29, 57)
    found = captured(sglang(), None, 61, nested_ids=[1, 29, 57], top_level_ids=None)
    assert "spec_aux_hidden_state.py" in found.reference


# The table that the model runners of vLLM 0.33.0 gave when they were run.
@pytest.mark.parametrize(
    ("nested", "top", "v2", "v1"),
    [
        (None, [2, 18, 33], (1, 17, 32), (1, 17, 32)),
        ([1, 17, 32], None, (1, 17, 32), (0, 16, 31)),
        ([1, 17, 32], [2, 18, 33], (1, 17, 32), (1, 17, 32)),
        (None, None, (1, 17, 32), (1, 17, 32)),
        ([3, 10, 20], None, (1, 17, 32), (2, 9, 19)),
    ],
)
def test_vllm_runners(
    nested: list[int] | None, top: list[int] | None, v2: tuple[int, ...], v1: tuple[int, ...]
) -> None:
    for runner, expected in (("V2", v2), ("V1", v1)):
        found = captured(
            vllm(),
            "Qwen3ForCausalLM",
            36,
            nested_ids=nested,
            top_level_ids=top,
            runner=runner,  # type: ignore[arg-type]
        )
        assert (found.layers, found.runner) == (expected, runner)


def test_vllm_says_when_ids_are_not_what_they_seem() -> None:
    def problem(nested: list[int] | None, runner: str, n: int = 36) -> str | None:
        return captured(
            vllm(),
            LLAMA,
            n,
            nested_ids=nested,
            top_level_ids=None,
            runner=runner,  # type: ignore[arg-type]
        ).problem

    assert "V2 ignores them" in (problem([1, 17, 32], "V1") or "")
    assert problem([2, 18, 33], "V1") is None  # boundaries as they are
    assert problem([1, 17, 32], "V2") is None  # ignored, and the default all the same
    assert problem([2, 18, 33], "V2") is None
    assert "doesn't read the ids under eagle_config" in (problem([3, 10, 20], "V2") or "")


@pytest.mark.parametrize(
    ("version", "draft", "runner"),
    [
        ("0.33.0", None, "V2"),
        ("0.33.0", "PeagleLlamaForCausalLM", "V1"),
        ("0.25.0", None, "V2"),
        ("0.17.0", None, "V1"),
        ("0.20.0", None, "V1"),
    ],
)
def test_vllm_default_runner(version: str, draft: str | None, runner: str) -> None:
    found = captured(vllm(version), LLAMA, 36, nested_ids=None, top_level_ids=None, draft_architecture=draft)
    assert found.runner == runner


def test_vllm_takes_the_embedding_and_the_last_layer() -> None:
    found = captured(vllm(), LLAMA, 36, nested_ids=None, top_level_ids=[0, 18, 36])
    assert (found.layers, found.problem) == ((-1, 17, 35), None)


@pytest.mark.parametrize(
    ("top", "layers", "said"),
    [
        ([2, 18, 40], (1, 17), "ids [40] are never captured on a target of 36 layers"),
        ([2, 2, 18], (1, 17), "duplicate ids collapse"),
        ([33, 18, 2], (1, 17, 32), ""),
    ],
)
def test_vllm_top_level_ids(top: list[int], layers: tuple[int, ...], said: str) -> None:
    found = captured(vllm(), LLAMA, 36, nested_ids=None, top_level_ids=top)
    assert found.layers == layers
    assert said in (found.problem or "")


def test_older_vllm() -> None:
    def layers(version: str, nested: list[int] | None, top: list[int] | None) -> Any:
        found = captured(vllm(version), LLAMA, 36, nested_ids=nested, top_level_ids=top)
        return found.layers, found.source, found.problem is None

    assert layers("0.10.1", None, [3, 10, 20]) == ((1, 17, 32), "default", False)
    assert layers("0.10.1", None, [2, 18, 33]) == ((1, 17, 32), "default", True)
    assert layers("0.12.0", None, [3, 10, 20]) == ((2, 9, 19), "top-level", True)
    assert layers("0.17.0", [3, 10, 20], None) == ((1, 17, 32), "default", False)


def test_vllm_without_aux_states_or_layers() -> None:
    off = captured(vllm(), LLAMA, 36, nested_ids=None, top_level_ids=[2], use_aux=False)
    assert (off.layers, off.source) == ((), "off")
    old = captured(vllm("0.10.1"), LLAMA, 36, nested_ids=None, top_level_ids=None, use_aux=False)
    assert old.source == "default"
    unknown = captured(vllm(), LLAMA, None, nested_ids=None, top_level_ids=None)
    assert (unknown.layers, unknown.problem is None) == (None, False)


def test_tensorrt_llm_reads_no_ids() -> None:
    engine = Engine("trtllm", "1.2", "1.2")
    found = captured(engine, LLAMA, 36, nested_ids=[1, 2, 3], top_level_ids=None)
    assert (found.layers, found.source) == ((1, 17, 32), "default")
    assert "reads no ids" in (found.problem or "")
    assert captured(engine, LLAMA, None, nested_ids=None, top_level_ids=None).layers is None


@pytest.mark.parametrize(("n", "layers"), [(32, (1, 15, 28)), (61, (1, 29, 57)), (6, (1, 2)), (5, (1,))])
def test_default_layers(n: int, layers: tuple[int, ...]) -> None:
    assert default_layers(n) == layers


@pytest.mark.parametrize(
    ("ids", "n", "declared", "expected"),
    [
        ([1, 29, 57], 61, None, "layer_output"),
        ([1, 29, 57], None, "layer_input", "layer_output"),
        ([0, 5, 9], 32, None, "layer_output"),
        ([2, 30, 58], 61, None, "layer_input"),
        ([2, 30, 58], 61, "layer_output", "layer_input"),
        ([2, 30, 58], None, None, "layer_input"),  # 58 + 3 layers, (58 + 3) // 2 = 30
        ([2, 31, 58], None, None, None),
        ([24, 30, 36], 36, None, "layer_input"),
        ([24, 30, 36], 40, None, None),
        ([24, 30, 36], 40, "layer_output", "layer_output"),
        ([1, 21, 43], 43, None, "layer_input"),  # no layer 43 has an output
        ([], 32, "layer_input", "layer_input"),
        ([2, 2, 1], None, None, None),
        ([2, 18, 33, 35], None, None, None),
    ],
)
def test_decide_convention(ids: list[int], n: int | None, declared: Any, expected: str | None) -> None:
    assert decide_convention(ids, n, declared) == expected
