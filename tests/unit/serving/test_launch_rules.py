"""Each rule about a launch command, at the release where it holds."""

from __future__ import annotations

import pytest

from ckpt_tools.serving.args import launch_problems, parse_launch
from ckpt_tools.serving.args.algorithms import sglang_algorithms
from ckpt_tools.serving.args.vllm_rules import detect_method, methods

from .pairs import draft, engine, target

BASE = "sglang serve --model-path /t"
FULL = (
    f"{BASE} --speculative-algorithm EAGLE3 --speculative-draft-model-path /d --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)
ANY = object()


def found(text: str, on: str = "sglang==0.5.23", d=ANY, t=None, config=None, **options) -> dict[str, str]:
    side = draft() if d is ANY else d
    asked = engine(on)
    launch = parse_launch(text, asked.version)
    return {p.id: p.severity.value for p in launch_problems(launch, asked, side, t, config=config, **options)}


def spec(**fields) -> str:
    import json

    return f"vllm serve /t --speculative-config '{json.dumps(fields)}'"


EAGLE3 = {"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}


def test_a_sound_command_has_no_problem() -> None:
    assert found(FULL) == {}
    assert found(spec(**EAGLE3), "vllm==0.33.0") == {}
    assert found("trtllm-serve /t --backend pytorch", "sglang==0.5.23") == {}


# ---- the parser


@pytest.mark.parametrize(
    ("flags", "on", "id", "severity"),
    [
        ("--num-speculative-tokens 3", "sglang==0.5.23", "unknown-flag", "error"),
        ("--speculative-dspark-block-size 7", "sglang==0.5.12", "unknown-flag", "error"),
        ("--speculative-dspark-block-size 7", "sglang==0.5.14", "unknown-flag", "error"),
        ("--speculative-draft-window-size 7", "sglang==0.5.11", "unknown-flag", "error"),
        ("--speculative-draft-model-quantization unquant", "sglang==0.5.8", "unknown-flag", "warning"),
        ("--speculative-ngram-branch-length 3", "sglang==0.5.23", "unknown-flag", "error"),
        ("--zzz 3", "sglang==0.5.23", "unknown-flag", "error"),
        ("--speculative-num 3", "sglang==0.5.23", "ambiguous-flag", "error"),
        ("--log-leve info", "sglang==0.5.23", "ambiguous-flag", "error"),
        ("--tp 2", "sglang==0.5.23", "abbreviated-flag", "info"),
        ("--dtype bf16", "sglang==0.5.23", "bad-choice", "error"),
        ("--port x", "sglang==0.5.23", "bad-flag-value", "error"),
        ("--port", "sglang==0.5.23", "bad-flag-value", "error"),
        ("--port 1 --port 2", "sglang==0.5.23", "repeated-flag", "warning"),
        ("--skip-server-warmup=1", "sglang==0.5.23", "bad-flag-value", "error"),
        ("stray", "sglang==0.5.23", "stray-word", "error"),
    ],
)
def test_parser(flags: str, on: str, id: str, severity: str) -> None:
    assert found(f"{BASE} {flags}", on, d=None).get(id) == severity


def test_what_a_shell_fills_in_is_no_bad_value() -> None:
    assert found(f"{BASE} --port $PORT --dtype ${{D}}", d=None) == {}


def test_no_model() -> None:
    assert found("sglang serve --port 1", d=None) == {"no-model": "error"}


def test_hints_of_other_spellings() -> None:
    def hint(text: str, on: str) -> str:
        asked = engine(on)
        (problem,) = [
            p for p in launch_problems(parse_launch(text, asked.version), asked) if p.id == "unknown-flag"
        ]
        return problem.hint or ""

    assert "--speculative-eagle-topk 1" in hint(f"{BASE} --num-speculative-tokens 3", "sglang==0.5.23")
    assert "0.5.16" in hint(f"{BASE} --speculative-dspark-block-size 3", "sglang==0.5.9")
    assert "--context-length" in hint(f"{BASE} --max-model-len 3", "sglang==0.5.9")
    assert "--max-model-len" in hint("vllm serve /t --context-length 3", "vllm==0.32.0")
    assert "--speculative-config" in hint("vllm serve /t --speculative-model /d", "vllm==0.32.0")
    assert "--speculative-num-steps" in hint(f"{BASE} --speculative-nun-steps 3", "sglang==0.5.23")
    assert "0.4.9" in hint(f"{BASE} --enable-ep-moe", "sglang==0.5.23")


def test_the_release_that_is_asked_about_decides() -> None:
    asked = engine("sglang==0.5.9")
    newest = parse_launch(f"{BASE} --uno-lora-path /l")  # read with the newest parser
    assert [p.id for p in launch_problems(newest, asked)] == ["unknown-flag"]
    assert newest.at("0.5.23") is newest
    assert parse_launch("trtllm-serve /t").at("1.0").flags == ()


# ---- SGLang


@pytest.mark.parametrize(
    ("kind", "algorithm", "on", "id"),
    [
        ("eagle3", "EAGLE", "sglang==0.5.23", "wrong-algorithm"),
        ("eagle3", "NEXTN", "sglang==0.5.23", "wrong-algorithm"),
        ("eagle3", "DFLASH", "sglang==0.5.23", "wrong-algorithm"),
        ("eagle", "EAGLE3", "sglang==0.5.23", "wrong-algorithm"),
        ("dflash", "EAGLE3", "sglang==0.5.23", "wrong-algorithm"),
        ("mtp", "EAGLE3", "sglang==0.5.23", "wrong-algorithm"),
        ("eagle3", "STANDALONE", "sglang==0.5.23", "wrong-algorithm"),
        ("peagle", "EAGLE3", "sglang==0.5.23", "unserved-draft"),
        ("eagle3", "PEAGLE", "sglang==0.5.23", "unknown-algorithm"),
        ("dflash", "DFLASH", "sglang==0.5.9", "unknown-algorithm"),
        ("dspark", "DSPARK", "sglang==0.5.12", "unknown-algorithm"),
        ("eagle3", "eagle3", "sglang==0.5.9", "unknown-algorithm"),
    ],
)
def test_algorithms(kind: str, algorithm: str, on: str, id: str) -> None:
    text = f"{BASE} --speculative-algorithm {algorithm} --speculative-draft-model-path /d"
    assert found(text, on, d=draft(kind)).get(id) == "error"


@pytest.mark.parametrize(
    ("kind", "algorithm", "on"),
    [("eagle3", "eagle3", "sglang==0.5.23"), ("eagle", "NEXTN", "sglang==0.5.9"), ("mtp", "EAGLE", "sglang==0.5.23"),
     ("dflash2", "DFLASH", "sglang==0.5.23"), ("dspark", "DSPARK", "sglang==0.5.16")],
)  # fmt: skip
def test_right_algorithms(kind: str, algorithm: str, on: str) -> None:
    text = f"{BASE} --speculative-algorithm {algorithm} --speculative-draft-model-path /d"
    assert "error" not in found(text, on, d=draft(kind)).values()


def test_algorithms_of_a_release() -> None:
    assert sglang_algorithms(engine("sglang==0.5.1")) == ("EAGLE", "EAGLE3", "NEXTN")
    assert "DSPARK" in sglang_algorithms(engine("sglang==0.5.23"))


def test_flags_without_an_algorithm() -> None:
    assert found(f"{BASE} --speculative-draft-model-path /d") == {"no-algorithm": "error"}
    assert found(BASE) == {}


def test_no_draft_path() -> None:
    text = f"{BASE} --speculative-algorithm {{}}"
    assert found(text.format("EAGLE3"))["no-draft-path"] == "error"
    assert found(text.format("DFLASH"), d=draft("dflash"))["no-draft-path"] == "error"
    assert "no-draft-path" not in found(text.format("NEXTN"), d=draft("mtp"))
    assert "no-draft-path" not in found(text.format("NGRAM"), d=None)
    assert "no-draft-path" not in found(text.format("DSPARK"), d=draft("dspark"))
    glm = target(architectures=("Glm4MoeForCausalLM",))
    assert "no-draft-path" not in found(text.format("EAGLE"), d=draft("eagle"), t=glm)
    assert found(text.format("EAGLE"), d=draft("eagle"), t=target(architectures=("LlamaForCausalLM",)))[
        "no-draft-path"
    ]


@pytest.mark.parametrize(
    ("flags", "id", "severity"),
    [
        ("--speculative-num-steps 3", "half-given-triple", "error"),
        ("--speculative-eagle-topk 1", "half-given-triple", "error"),
        ("--speculative-num-draft-tokens 4", "half-given-triple", "error"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 4", "half-given-triple", "error"),
        ("--speculative-num-steps 3 --speculative-num-draft-tokens 4", "half-given-triple", "error"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 1", "draft-tokens-adjusted", "info"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8",
         "draft-tokens-adjusted", "warning"),
        ("--speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens 64",
         "draft-tokens-too-many", "error"),
        ("--speculative-num-steps 5 --speculative-eagle-topk 2 --speculative-num-draft-tokens 4",
         "draft-tokens-few", "warning"),
        ("--speculative-num-steps 0 --speculative-eagle-topk 1 --speculative-num-draft-tokens 1", "bad-triple", "error"),
        ("", "auto-triple", "info"),
    ],
)  # fmt: skip
def test_triple(flags: str, id: str, severity: str) -> None:
    text = f"{BASE} --speculative-algorithm EAGLE3 --speculative-draft-model-path /d {flags}"
    assert found(text) == {id: severity}


def test_triple_that_needs_no_word() -> None:
    base = f"{BASE} --speculative-algorithm EAGLE3 --speculative-draft-model-path /d"
    assert found(f"{base} --speculative-adaptive") == {}
    tree = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
    assert found(f"{base} {tree}") == {}
    assert set(found(f"{base} --speculative-num-steps x --speculative-eagle-topk 1")) == {"bad-flag-value"}


TREE = (
    f"{BASE} --speculative-algorithm EAGLE3 --speculative-draft-model-path /d --speculative-num-steps 3 "
    "--speculative-eagle-topk 2 --speculative-num-draft-tokens 8"
)


@pytest.mark.parametrize(
    ("flags", "on", "severity"),
    [
        ("--attention-backend trtllm_mha", "sglang==0.5.23", "error"),
        ("--decode-attention-backend trtllm_mha", "sglang==0.5.9", "error"),
        ("--attention-backend flashmla --page-size 64", "sglang==0.5.23", "error"),
        ("--attention-backend triton --page-size 64", "sglang==0.5.23", None),
        ("--attention-backend triton --page-size 64", "sglang==0.5.9", "error"),
        ("--attention-backend fa3", "sglang==0.5.23", None),
        ("--attention-backend fa3", "sglang==0.4.6.post5", "warning"),
        ("--page-size 64", "sglang==0.5.23", None),
    ],
)
def test_trees_and_back_ends(flags: str, on: str, severity: str | None) -> None:
    text = TREE.replace("sglang serve", "python -m sglang.launch_server")
    assert found(f"{text} {flags}", on, d=draft(layer_type="mla")).get("topk-backend") == severity


def test_a_back_end_of_another_kind_of_model() -> None:
    text = f"{FULL} --attention-backend trtllm_mla"
    assert found(text)["draft-attention-backend"] == "error"
    assert found(text, "sglang==0.5.4")["draft-attention-backend"] == "error"
    assert found(f"{text} --speculative-draft-attention-backend flashinfer") == {}
    assert found(text, d=draft(layer_type="mla")) == {}
    assert found(text, d=None) == {}
    assert found(text, d=None, config={"hidden_size": 1})["draft-attention-backend"] == "error"


def test_copied_quantisation() -> None:
    text = f"{FULL} --quantization fp8"
    assert found(text)["draft-quantization-copied"] == "warning"
    assert found(text, "sglang==0.5.4")["draft-quantization-copied"] == "warning"
    assert found(f"{text} --speculative-draft-model-quantization unquant") == {}
    assert found(text, config={"quantization_config": {"quant_method": "fp8"}}) == {}
    assert found(f"{FULL} --quantization unquant") == {}
    assert found(text, d=None) == {}


def test_mixed_dtypes() -> None:
    bf16, fp16 = target(dtype="bfloat16"), draft(dtype="float16")
    assert found(FULL, d=fp16, t=bf16) == {"dtype-mixed": "warning"}
    assert found(f"{FULL} --dtype bfloat16", d=fp16, t=bf16) == {}
    assert found(FULL, d=draft(), t=bf16, config={"torch_dtype": "float16"}) == {"dtype-mixed": "warning"}
    assert found(FULL, d=draft(dtype="float32"), t=bf16) == {}


def test_context_override() -> None:
    short, long = draft(max_position_embeddings=128), target(max_position_embeddings=512)
    name = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    assert found(f"{name}=1 {FULL}", d=short, t=long) == {"context-override": "warning"}
    assert found(f"{name}=1 {FULL} --context-length 128", d=short, t=long) == {"override-unneeded": "info"}
    assert found(f"{name}=0 {FULL}", d=short, t=long) == {}
    assert found(FULL, d=short, t=long) == {}
    assert found(f"{name}=true {FULL}") == {}


def test_rejection_sampling() -> None:
    flag = "--speculative-use-rejection-sampling"
    assert found(f"{FULL} {flag}") == {}
    reduced = draft(vocab_size=256, draft_vocab_size=96)
    assert found(f"{FULL} {flag}", d=reduced) == {"rejection-sampling": "error"}
    assert found(f"{TREE} {flag}") == {"rejection-sampling": "error"}
    assert found(f"{FULL} {flag} --speculative-accept-threshold-acc 0.5") == {"rejection-sampling": "error"}
    text = f"{BASE} --speculative-algorithm DFLASH --speculative-draft-model-path /d {flag}"
    assert found(text, d=draft("dflash")) == {"rejection-sampling": "error"}
    assert found(f"{FULL} --speculative-accept-threshold-single 0.5") == {"lossy-threshold": "info"}
    assert found(f"{FULL} --speculative-accept-threshold-single 1.0") == {}


def test_flags_that_do_nothing_or_clash() -> None:
    assert found(f"{FULL} --speculative-token-map x.pt") == {"token-map-ignored": "warning"}
    assert found(f"{FULL} --pp-size 2") == {"pipeline-parallel": "warning"}
    assert found(f"{FULL} --pp-size 1") == {}
    assert found(f"SGLANG_SIMULATE_ACC_LEN=3 {FULL}") == {"simulated-acceptance": "warning"}


def test_dflash_numbers() -> None:
    base = f"{BASE} --speculative-algorithm DFLASH --speculative-draft-model-path /d"
    block = draft("dflash", block_size=16)
    assert found(f"{base} --speculative-num-draft-tokens 16", d=block) == {}
    assert found(f"{base} --speculative-num-draft-tokens 8", d=block) == {"block-size": "warning"}
    assert found(f"{base} --speculative-num-steps 3 --speculative-eagle-topk 1", d=block) == {
        "dflash-forced": "warning"
    }
    assert found(f"{base} --speculative-dflash-block-size 16 --speculative-num-draft-tokens 8", d=block) == {
        "dflash-block": "error"
    }
    assert found(f"{base} --speculative-num-draft-tokens 16 --speculative-draft-window-size 8", d=block) == {
        "dflash-window": "error"
    }
    assert found(f"{base} --pp-size 2", d=block) == {"pipeline-parallel": "error"}


def test_dspark_numbers() -> None:
    base = f"{BASE} --speculative-algorithm DSPARK --speculative-draft-model-path /d"
    block = draft("dspark", block_size=7)
    assert found(base, d=block) == {}
    assert found(f"{base} --speculative-num-draft-tokens 8", d=block) == {}
    assert found(f"{base} --speculative-num-draft-tokens 7", d=block) == {"dspark-block": "error"}
    assert found(f"{base} --speculative-dspark-block-size 4 --speculative-num-draft-tokens 5", d=block) == {}


# ---- tensor parallelism


def test_heads_and_ranks() -> None:
    heads = draft(num_attention_heads=4, num_key_value_heads=2, intermediate_size=128)
    assert found(f"{FULL} --tp-size 4", d=heads) == {}
    assert found(f"{FULL} --tp-size 3", d=heads) == {"tp-heads": "error"}
    assert found(f"{FULL} --tp-size 3", d=draft(num_attention_heads=6, num_key_value_heads=2)) == {
        "tp-kv-heads": "error"
    }
    assert found(f"{FULL} --tp-size 4", d=draft(num_attention_heads=4, intermediate_size=130)) == {
        "tp-intermediate": "error"
    }
    big = target(num_attention_heads=64, num_key_value_heads=8)
    assert found(f"{FULL} --tp-size 8", d=draft(num_attention_heads=32), t=big) == {}
    assert found(f"{spec(**EAGLE3)} --tensor-parallel-size 3", "vllm==0.33.0", d=heads) == {
        "tp-heads": "error"
    }


def test_data_parallel_attention_divides_the_target_s_ranks() -> None:
    odd = target(num_attention_heads=4)
    text = FULL.replace("sglang serve", "python -m sglang.launch_server")
    assert found(f"{text} --tp-size 8", "sglang==0.5.9", t=odd)["tp-heads"] == "error"
    assert found(f"{text} --tp-size 8 --dp-size 2 --enable-dp-attention", "sglang==0.5.9", t=odd) == {}


def test_a_draft_path_that_isn_t_here() -> None:
    assert found(FULL, exists=lambda path: path != "/d") == {"draft-path-missing": "warning"}
    assert found(FULL, exists=lambda path: None) == {}


# ---- vLLM


@pytest.mark.parametrize(
    ("fields", "id", "severity"),
    [
        ({"method": "eagle3", "model": "/d"}, "no-num-speculative-tokens", "error"),
        (EAGLE3 | {"num_speculative_tokens": 0}, "bad-num-speculative-tokens", "error"),
        (EAGLE3 | {"num_speculative_tokens": None}, "bad-num-speculative-tokens", "error"),
        (EAGLE3 | {"tensor_parallel_size": 2}, "speculative-key", "error"),
        (EAGLE3 | {"num_spec_tokens": 2}, "speculative-key", "error"),
        (EAGLE3 | {"qqq": 2}, "speculative-key", "error"),
        ({"method": "eagle3", "num_speculative_tokens": 3}, "no-draft-path", "error"),
        (EAGLE3 | {"method": "peagle"}, "unknown-method", "error"),
        (EAGLE3 | {"method": "medusa"}, "unknown-method", "error"),
        (EAGLE3 | {"method": "eagle"}, "wrong-method", "error"),
        (EAGLE3 | {"draft_tensor_parallel_size": 3}, "draft-tp", "error"),
    ],
)
def test_speculative_config(fields: dict, id: str, severity: str) -> None:
    assert found(spec(**fields), "vllm==0.33.0")[id] == severity


@pytest.mark.parametrize(
    ("path", "given", "found_method", "expected"),
    [
        ("/m/qwen", None, "draft_model", "error"),
        ("/m/qwen_eagle3", None, "eagle3", "warning"),
        ("/m/eagle-drafts/qwen_eagle3", None, "eagle", "error"),
        ("/m/qwen", "draft_model", "draft_model", "error"),
        ("/m/Qwen-EAGLE-3", "mtp", "eagle", "error"),
        ("/m/qwen_eagle3", "mtp", "eagle3", None),
        ("/m/qwen", "eagle3", "eagle3", None),
    ],
)
def test_method_from_the_path(path: str, given: str | None, found_method: str, expected: str | None) -> None:
    fields = {"model": path, "num_speculative_tokens": 3} | ({"method": given} if given else {})
    assert detect_method(path, given, "0.33.0") == found_method
    assert found(spec(**fields), "vllm==0.33.0").get("method-from-path") == expected


def test_methods_of_releases() -> None:
    assert "dflash" not in methods("0.12.0")
    assert "dflash" in methods("0.33.0")
    assert "medusa" in methods("0.12.0")
    assert "medusa" not in methods("0.33.0")
    assert detect_method("/x/eagle3-y", None, "0.10.1") == "eagle"
    assert detect_method("/x/dflash", None, "0.33.0") == "dflash"
    assert detect_method("/x/dspark", None, "0.33.0") == "dspark"
    assert detect_method("/x", None, "0.33.0", "qwen3_next_mtp") == "mtp"
    assert detect_method("/x", "ngram", "0.33.0") == "ngram"


def test_guess_without_a_known_draft() -> None:
    assert found(spec(model="/x/eagle3", num_speculative_tokens=3), "vllm==0.33.0", d=None) == {
        "method-from-path": "warning"
    }
    assert found(spec(method="ngram", num_speculative_tokens=3), "vllm==0.33.0", d=None) == {}


def test_broken_json() -> None:
    assert found("vllm serve /t --speculative-config {x", "vllm==0.33.0") == {"speculative-json": "error"}


def test_draft_tp_without_effect() -> None:
    text = f"{spec(**EAGLE3, draft_tensor_parallel_size=1)} --tensor-parallel-size 4"
    assert found(text, "vllm==0.33.0") == {"draft-tp": "info"}


def test_parallel_drafts() -> None:
    p = draft("peagle")
    assert found(spec(**EAGLE3), "vllm==0.33.0", d=p) == {"sequential-peagle": "error"}
    ok = spec(**EAGLE3, parallel_drafting=True)
    assert found(ok, "vllm==0.33.0", d=p) == {}
    assert found(f"VLLM_USE_V2_MODEL_RUNNER=1 {ok}", "vllm==0.33.0", d=p) == {"runner": "error"}
    dspark = spec(method="dspark", model="/d", num_speculative_tokens=3)
    assert found(f"VLLM_USE_V2_MODEL_RUNNER=0 {dspark}", "vllm==0.33.0", d=draft("dspark")) == {
        "runner": "error"
    }
    dflash = spec(method="dflash", model="/d", num_speculative_tokens=16)
    assert found(dflash, "vllm==0.33.0", d=draft("dflash", block_size=16)) == {"block-size": "warning"}


def test_lengths() -> None:
    short, long = draft(max_position_embeddings=128), target(max_position_embeddings=512)
    assert found(spec(**EAGLE3), "vllm==0.33.0", d=short, t=long) == {"draft-context": "warning"}
    assert found(f"{spec(**EAGLE3)} --max-model-len 128", "vllm==0.33.0", d=short, t=long) == {}
    assert found(spec(**EAGLE3, max_model_len=256), "vllm==0.33.0", d=short) == {
        "speculative-max-model-len": "error"
    }
