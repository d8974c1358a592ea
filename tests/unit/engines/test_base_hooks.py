"""Which target classes an engine serves, at which release."""

from __future__ import annotations

import pytest

from ckpt_tools import targets
from ckpt_tools.engines.history import releases_read
from ckpt_tools.engines.hooks import id_policy, serves, sglang_classes
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Engine

KIMI = "KimiK25ForConditionalGeneration"
NEWEST = Engine("sglang", "0.5.23", "0.5.23")


def sglang(version: str) -> Engine:
    return Engine("sglang", version, version)


def vllm(version: str) -> Engine:
    return Engine("vllm", version, version)


def test_every_class_with_the_eagle3_hook_has_a_policy() -> None:
    classes = sglang_classes()
    assert len(classes) == 290
    for name, row in classes.items():
        has = row.get("now", {}).get("eagle3", False)
        assert (id_policy(NEWEST, name)[0] is not None) == (has or "eagle3" in row.get("since", {})), name


def test_what_the_newest_release_says_agrees_with_the_history_of_releases() -> None:
    """A hook that is there in 0.5.23 never ended before it, and one that isn't there did end."""
    for name, row in sglang_classes().items():
        now, since = row.get("now", {}), row.get("since", {})
        for hook in ("eagle3", "dflash", "dspark"):
            if hook in since:
                assert bool(now.get(hook)) == (since[hook][1] is None), (name, hook)
        if "policy" in since and now.get("eagle3"):
            assert since["policy"][-1][1] == now["policy"], name


@pytest.mark.parametrize(
    ("architecture", "version", "ok", "needs"),
    [
        (KIMI, "0.5.23", True, None),
        (KIMI, "0.5.10", True, None),
        (KIMI, "0.5.9", False, "0.5.10"),
        (KIMI, "0.5.8", False, "0.5.10"),
        ("LlamaForCausalLM", "0.4.6", True, None),
        ("DeepseekV3ForCausalLM", "0.5.4.post1", False, "0.5.4.post2"),
        ("DeepseekV3ForCausalLM", "0.5.4.post2", True, None),
        ("Glm4vForConditionalGeneration", "0.5.1", False, "0.5.2"),
        ("Glm4vForConditionalGeneration", "0.5.4.post1", True, None),
        ("Glm4vForConditionalGeneration", "0.5.23", False, None),
        ("Qwen2MoeForCausalLM", "0.5.23", False, None),
        ("Qwen3_5ForConditionalGeneration", "0.5.21", False, "0.5.22"),
        ("DeepseekV4ForCausalLM", "0.5.23", False, None),
        ("BertModel", "0.5.9", False, None),
        ("NoSuchModel", "0.5.23", None, None),
        ("MiniMaxM2ForCausalLM", "0.5.5.post2", False, "0.5.5.post3"),
    ],
)
def test_eagle3_on_sglang(architecture: str, version: str, ok: bool | None, needs: str | None) -> None:
    found = serves(sglang(version), architecture, "eagle3")
    assert (found.ok, found.needs) == (ok, needs), found
    assert architecture in found.reason


def test_reasons_tell_the_cases_apart() -> None:
    assert "is unknown to" in serves(sglang("0.5.8"), KIMI, "EAGLE3").reason
    assert "has no set_eagle3_layers_to_capture" in serves(sglang("0.5.9"), KIMI, "EAGLE3").reason
    crash = serves(sglang("0.5.21"), "Qwen3_5ForConditionalGeneration", "EAGLE3").reason
    assert "capturing crashes" in crash
    before = serves(sglang("0.5.10"), "Qwen3_5ForConditionalGeneration", "EAGLE3").reason
    assert "capturing crashes" not in before
    assert "no get_embed_and_head" in serves(NEWEST, "Qwen2MoeForCausalLM", "EAGLE3").reason
    assert "lost" in serves(NEWEST, "Glm4vForConditionalGeneration", "EAGLE3").reason


@pytest.mark.parametrize(
    ("architecture", "version", "algorithm", "ok", "needs"),
    [
        (KIMI, "0.5.10.post1", "dflash", False, "0.5.11"),
        (KIMI, "0.5.11", "dflash", True, None),
        (KIMI, "0.5.15", "dspark", False, "0.5.16"),
        (KIMI, "0.5.16", "dspark", True, None),
        ("MellumForCausalLM", "0.5.9", "dflash", False, "0.5.16"),
        ("MellumForCausalLM", "0.5.12", "dflash", False, "0.5.16"),
        ("Qwen2ForCausalLM", "0.5.9", "dflash", False, None),
        ("Qwen2ForCausalLM", "0.5.23", "dflash", False, None),
        ("Qwen2ForCausalLM", "0.5.16", "dspark", False, None),
        ("DeepseekV4ForCausalLM", "0.5.16", "dspark", True, None),
        ("DeepseekV4ForCausalLM", "0.5.23", "dflash", False, None),
        ("KimiLinearForCausalLM", "0.5.16", "dspark", False, "0.5.17"),
        ("MiniCPMV", "0.5.23", "dflash", True, None),
        ("MiniCPMV", "0.5.22", "dflash", None, "0.5.23"),
        ("MiniCPMV", "0.5.22", "dspark", None, "0.5.23"),
        ("MiniCPMV", "0.5.9", "dspark", False, "0.5.23"),
        ("NoSuchModel", "0.5.9", "dflash", False, "0.5.11"),
        ("NoSuchModel", "0.5.23", "dspark", None, None),
        ("Qwen3ForCausalLM", "0.5.23", "dflash2", True, None),
        (KIMI, "0.5.23", "mtp", True, None),
        ("BertModel", "0.5.23", "eagle", False, None),
        ("BertModel", "0.5.9", "eagle", None, None),
        ("BailingMoeV2_5ForCausalLM", "0.5.9", "nextn", None, "0.5.23"),
        (KIMI, "0.5.23", "peagle", False, None),
        (KIMI, "0.5.23", "xpress", False, None),
    ],
)
def test_other_algorithms_on_sglang(
    architecture: str, version: str, algorithm: str, ok: bool | None, needs: str | None
) -> None:
    found = serves(sglang(version), architecture, algorithm)
    assert (found.ok, found.needs) == (ok, needs), found


def test_sglang_ext_serves_what_sglang_serves() -> None:
    assert serves(Engine("sglang-ext", "0.5.9", "0.5.9"), KIMI, "eagle3").needs == "0.5.10"


def test_first_releases_serve_and_the_ones_before_do_not() -> None:
    """Every first and last release of the history, from both sides."""
    releases = releases_read("sglang")
    for name, row in sglang_classes().items():
        span = row.get("since", {}).get("eagle3")
        if span is None:
            continue
        first, last = span
        assert serves(sglang(first), name, "EAGLE3").ok is True, name
        if releases.index(first) > 0:
            before = serves(sglang(releases[releases.index(first) - 1]), name, "EAGLE3")
            assert (before.ok, before.needs) == (False, first), name
        if last is not None:
            assert serves(sglang(releases[releases.index(last) + 1]), name, "EAGLE3").ok is False, name


def test_every_reference_names_a_release_and_a_place() -> None:
    for name in sglang_classes():
        for algorithm in ("EAGLE3", "EAGLE", "DFLASH", "DSPARK"):
            assert serves(NEWEST, name, algorithm).reference.startswith("sglang 0."), (name, algorithm)


def test_every_registry_target_with_a_class_that_is_known_is_decided() -> None:
    undecided = set()
    for target in targets.all_targets():
        for architecture in target.architectures[:1]:
            if serves(NEWEST, architecture, "EAGLE3").ok is None:
                undecided.add(architecture)
    # Classes that SGLang 0.5.23 doesn't register under this name.
    assert undecided == {"Step3p7FlashForCausalLM"}


@pytest.mark.parametrize(
    ("architecture", "version", "ok"),
    [
        (KIMI, "0.33.0", True),
        ("LlamaForCausalLM", "0.33.0", True),
        ("Glm4MoeForCausalLM", "0.33.0", False),
        ("MixtralForCausalLM", "0.33.0", False),
        ("OlmoForCausalLM", "0.33.0", True),
        ("NoSuchModel", "0.33.0", None),
        (KIMI, "0.25.0", True),
        (KIMI, "0.30.0", True),
        ("LlamaForCausalLM", "0.25.0", None),
        ("Glm4MoeForCausalLM", "0.25.0", None),
        (KIMI, "0.17.0", None),
    ],
)
def test_eagle3_on_vllm(architecture: str, version: str, ok: bool | None) -> None:
    assert serves(vllm(version), architecture, "eagle3").ok is ok


@pytest.mark.parametrize(
    ("version", "architecture", "model_type", "ok", "needs"),
    [
        ("0.10.1", "LlamaForCausalLM", "llama", True, None),
        ("0.10.1", "GptOssForCausalLM", "gpt_oss", False, "0.33.0"),
        ("0.12.0", "GptOssForCausalLM", "gpt_oss", True, None),
        ("0.17.0", KIMI, "kimi_k2", False, "0.25.0"),
        ("0.20.0", KIMI, "kimi_k2", False, "0.25.0"),  # answered as 0.17.0
        ("0.17.0", "QwenSomethingNew", "qwen_new", None, None),
        ("0.17.0", "Glm4MoeForCausalLM", "glm4_moe", False, None),
        ("0.25.0", "LlamaForCausalLM", "llama", True, None),
        ("0.25.0", "GraniteForCausalLM", "granite", None, "0.33.0"),
    ],
)
def test_older_vllm_decides_by_model_type(
    version: str, architecture: str, model_type: str, ok: bool | None, needs: str | None
) -> None:
    found = serves(vllm(version), architecture, "eagle3", text_model_type=model_type)
    assert (found.ok, found.needs) == (ok, needs), found


@pytest.mark.parametrize(
    ("version", "algorithm", "ok", "needs"),
    [
        ("0.33.0", "eagle", True, None),
        ("0.10.1", "mtp", True, None),
        ("0.33.0", "peagle", True, None),
        ("0.12.0", "peagle", False, "0.17.0"),
        ("0.17.0", "dflash", False, "0.25.0"),
        ("0.20.0", "dflash", None, "0.25.0"),
        ("0.33.0", "dflash2", True, None),
        ("0.33.0", "xpress", True, None),
        ("0.25.0", "xpress", False, "0.33.0"),
        ("0.33.0", "medusa", False, None),
    ],
)
def test_other_algorithms_on_vllm(version: str, algorithm: str, ok: bool | None, needs: str | None) -> None:
    found = serves(vllm(version), "Qwen3ForCausalLM", algorithm)
    assert (found.ok, found.needs) == (ok, needs), found


def test_an_engine_without_data_decides_nothing() -> None:
    assert serves(Engine("trtllm", "1.0", "1.0"), KIMI, "eagle3").ok is None
    assert id_policy(NEWEST, "NoSuchModel") == (None, "")


def test_policies_by_release() -> None:
    assert id_policy(sglang("0.5.12"), KIMI)[0] == "plus1"
    assert id_policy(sglang("0.5.13"), KIMI)[0] == "plus1_if_first_is_1"
    assert id_policy(sglang("0.5.9"), KIMI)[0] is None
    assert id_policy(sglang("0.5.16"), "GptOssForCausalLM")[0] == "plus1"
    assert id_policy(sglang("0.5.17"), "GptOssForCausalLM")[0] == "verbatim_if_max_is_n"
    assert id_policy(sglang("0.4.8"), "LlamaForCausalLM")[0] == "ids_ignored"
    assert id_policy(NEWEST, "Qwen2MoeForCausalLM")[0] == "plus1"
    assert id_policy(sglang("0.5.9"), "Qwen2MoeForCausalLM")[0] is None
    assert parse(NEWEST.version) == parse("0.5.23")
