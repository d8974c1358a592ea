"""The command that is written: refusals, reasons, forms; every one read back is without an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from ckpt_tools.errors import UsageError
from ckpt_tools.serving.args import (
    RENDERERS,
    LaunchPlan,
    Place,
    Wish,
    launch_command,
    launch_problems,
    parse_launch,
)
from ckpt_tools.serving.args.forms import exposed

from .pairs import PAIRS, draft, engine, plan, target


def make(on: str, d=None, t=None, wish=None, same: bool = False, config=None):
    path = Place("/t" if same else "/d")
    return launch_command(
        d or draft(), t, engine(on), draft_at=path, target_at=Place("/t"), wish=wish, config=config
    )


@pytest.mark.parametrize("form", RENDERERS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["name"])
def test_every_form_is_read_back_as_the_same_command(pair: dict, form: str) -> None:
    made = plan(pair) if form == "shell" else exposed(plan(pair))
    back = parse_launch(RENDERERS[form](made))
    assert back.argv == made.launch().argv == made.argv[len(made.program) :]
    assert dict(back.env) == dict(made.env)
    if form != "shell":
        yaml.safe_load(RENDERERS[form](made))
        assert back.version == made.engine.version


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["name"])
def test_what_is_written_has_no_error(pair: dict) -> None:
    made = plan(pair)
    problems = launch_problems(made.launch(), made.engine, draft(**pair["draft"]), target(**pair["target"]))
    assert [p for p in problems if p.severity.value == "error"] == []


def test_every_flag_has_a_reason() -> None:
    made = plan(PAIRS[3])
    assert set(made.reasons) >= {argument.flag for argument in made.arguments if argument.flag} | set(
        made.env
    )
    text = RENDERERS["shell"](made)
    assert "# --speculative-draft-model-quantization: the target is quantised" in text
    assert made.line.startswith("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 sglang serve --model-path")


@pytest.mark.parametrize(
    ("on", "kind", "wish", "match"),
    [
        ("sglang==0.5.23", "peagle", None, "no algorithm"),
        ("sglang==0.5.9", "dflash", None, "has no DFLASH"),
        ("vllm==0.12.0", "dflash", None, "no method"),
        ("vllm==0.33.0", "unknown", None, "no method"),
        ("vllm==0.33.0", "eagle3", Wish(topk=4), "chain"),
        ("trtllm==1.0", "eagle3", None, "no launch command"),
        ("sglang==0.5.23", "eagle3", Wish(steps=3, draft_tokens=9), "verify 4 tokens"),
        ("sglang==0.5.23", "eagle3", Wish(steps=2, topk=2, draft_tokens=90), "at most 7"),
    ],
)
def test_what_can_t_be(on: str, kind: str, wish: Wish | None, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make(on, draft(kind), wish=wish)


def test_a_deep_chain_and_a_tree() -> None:
    assert make("sglang==0.5.23", wish=Wish(steps=16)).argv[-6:] == (
        "--speculative-num-steps", "16", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "17",
    )  # fmt: skip
    assert make("sglang==0.5.23", wish=Wish(steps=5, topk=8)).argv[-1] == "8"
    assert make("sglang==0.5.23", wish=Wish(steps=1, topk=2)).argv[-1] == "3"


def test_the_override_only_when_the_lengths_require_it() -> None:
    short, long = draft(max_position_embeddings=128), target(max_position_embeddings=512)
    assert make("sglang==0.5.23", short, long).env
    assert not make("sglang==0.5.23", short, long, Wish(context_length=128)).env
    assert not make("sglang==0.4.9", short, long).env  # only a warning there
    assert not make("sglang==0.5.23", draft(), long).env
    assert make("vllm==0.33.0", short, long).notes


def test_program_by_release() -> None:
    assert make("sglang==0.5.12").program == ("python3", "-m", "sglang.launch_server")
    assert make("sglang==0.5.16").program == ("sglang", "serve")
    made = make("sglang-ext==0.5.23")
    assert made.env["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "ckpt_tools.sglang_models"
    assert any("pip install ckpt-tools" in note for note in made.notes)


def revised(on: str, draft_at: Place, target_at: Place, kind: str = "eagle3") -> LaunchPlan:
    return launch_command(draft(kind), None, engine(on), draft_at=draft_at, target_at=target_at)


@pytest.mark.parametrize("on", ["sglang==0.5.4", "sglang==0.5.23", "vllm==0.33.0"])
def test_the_revisions_that_were_verified_are_served(on: str) -> None:
    made = revised(on, Place("me/draft", "v2"), Place("acme/target", "abc"))
    argv, read = made.argv, made.launch()
    assert argv[argv.index("--revision") + 1] == "abc"
    if read.engine == "sglang":
        assert argv[argv.index("--speculative-draft-model-revision") + 1] == "v2"
        assert argv[argv.index("--speculative-draft-model-path") + 1] == "me/draft"
    else:
        assert read.speculative is not None
        assert (read.speculative["model"], read.speculative["revision"]) == ("me/draft", "v2")
    assert [p for p in launch_problems(read, made.engine) if p.severity.value == "error"] == []


def test_bundled_layers_are_of_the_target_s_revision() -> None:
    made = revised("sglang==0.5.23", Place("acme/target", "abc"), Place("acme/target", "abc"), "mtp")
    assert "--revision" in made.argv
    assert "--speculative-draft-model-revision" not in made.argv


def test_a_release_that_takes_no_revision_of_the_draft() -> None:
    with pytest.raises(UsageError, match="default branch") as caught:
        revised("sglang==0.4.9", Place("me/draft", "v2"), Place("/t"))
    assert caught.value.hint is not None
    assert "hf download me/draft --revision v2" in caught.value.hint


@pytest.mark.parametrize(
    ("on", "extra", "gpus"),
    [
        ("sglang==0.5.23", (), 1),
        ("sglang==0.5.23", ("--tp", "8"), 8),
        ("sglang==0.5.23", ("--tp=8", "--dp-size", "8", "--enable-dp-attention"), 8),
        ("sglang==0.5.23", ("--tp", "2", "--dp", "4"), 8),
        ("sglang==0.5.23", ("--tp", "16", "--nnodes", "2"), 8),
        ("vllm==0.33.0", ("--tensor-parallel-size", "4", "--pipeline-parallel-size=2"), 8),
    ],
)
def test_a_pod_asks_for_the_gpus_of_the_whole_command(on: str, extra: tuple[str, ...], gpus: int) -> None:
    pod = yaml.safe_load(RENDERERS["k8s"](make(on, wish=Wish(extra=extra))))
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == gpus


def test_containers_mount_the_folders() -> None:
    made = replace(make("sglang==0.5.23"), mounts=("/models/a b", "/t"))
    pod = yaml.safe_load(RENDERERS["k8s"](made))
    named = {v["name"]: v["hostPath"]["path"] for v in pod["spec"]["volumes"] if "hostPath" in v}
    inside = pod["spec"]["containers"][0]["volumeMounts"]
    assert {m["mountPath"] for m in inside if m.get("readOnly")} == set(named.values()) == set(made.mounts)
    assert all(named[m["name"]] == m["mountPath"] for m in inside if m.get("readOnly"))
    service = yaml.safe_load(RENDERERS["compose"](made))["services"]["sglang"]
    assert [(v["source"], v["target"], v["read_only"]) for v in service["volumes"]] == [
        (m, m, True) for m in made.mounts
    ]


def test_kinds_that_differ() -> None:
    quantised = target(
        dtype="bfloat16", quantization={"quant_method": "fp8"}, architectures=("DeepseekV3ForCausalLM",)
    )
    argv = make("sglang==0.5.23", draft(dtype="float16"), quantised).argv
    assert argv[argv.index("--dtype") + 1] == "bfloat16"
    assert argv[argv.index("--speculative-draft-model-quantization") + 1] == "unquant"
    assert argv[argv.index("--speculative-draft-attention-backend") + 1] == "flashinfer"
    own = make(
        "sglang==0.5.23",
        draft(layer_type="mla"),
        quantised,
        config={"quantization_config": {}, "kv_lora_rank": 1},
    )
    assert "--speculative-draft-attention-backend" not in own.argv
    assert "--speculative-draft-model-quantization" not in make("sglang==0.5.4", draft(), quantised).argv


def test_the_draft_s_size_is_left_free_where_it_isn_t_counted() -> None:
    wish = Wish(tp=1, gpu_bytes=80 << 30, draft_bytes=8 << 30)
    argv = make("sglang==0.5.9", wish=wish).argv
    assert float(argv[argv.index("--mem-fraction-static") + 1]) == pytest.approx(0.78, abs=0.011)
    assert "--mem-fraction-static" not in make("sglang==0.5.23", wish=wish).argv


def test_dflash_block() -> None:
    block = draft("dflash", block_size=16)
    assert make("sglang==0.5.23", block).argv[-1] == "16"
    assert make("sglang==0.5.23", block, wish=Wish(steps=7)).argv[-1] == "8"
    assert "--speculative-num-draft-tokens" not in make("sglang==0.5.23", draft("dflash")).argv


def test_the_window_of_the_training_is_a_flag_where_the_class_reads_none() -> None:
    windowed = draft(sliding_window=64, layer_types=("sliding_attention",))
    argv = make("sglang==0.5.23", windowed).argv
    assert argv[argv.index("--speculative-draft-window-size") + 1] == "64"
    without = [
        make("sglang==0.5.9", windowed),  # has no such flag
        make("sglang==0.5.23", draft(sliding_window=64, layer_types=("sliding_attention", "full_attention"))),
        make("sglang-ext==0.5.23", windowed, config={"architectures": ["CkptLlamaForCausalLMEagle3"]}),
        make("vllm==0.33.0", windowed),
        make("sglang==0.5.23"),
    ]
    assert not any("--speculative-draft-window-size" in plan.argv for plan in without)


def test_bundled_layers_have_no_path() -> None:
    made = make("sglang==0.5.23", draft("mtp"), same=True)
    assert "--speculative-draft-model-path" not in made.argv
    assert made.notes
    assert "model" not in (make("vllm==0.33.0", draft("mtp"), same=True).launch().speculative or {})


def test_extra_words_replace_ours() -> None:
    extra = ("word", "--tensor-parallel-size", "4", "--mystery", "-1", "--port=5")
    made = make("sglang==0.5.23", wish=Wish(tp=2, port=30001, extra=extra))
    assert made.argv.count("--tp-size") == 0
    assert made.argv[-7:] == ("4", "word", "--tensor-parallel-size", "4", "--mystery", "-1", "--port=5") or (
        "--port=5" in made.argv
    )
    assert "--port" not in made.argv
    assert made.launch().tp == 4


def test_dtype_note_for_vllm() -> None:
    assert any(
        "dtype" in note
        for note in make("vllm==0.33.0", draft(dtype="float16"), target(dtype="bfloat16")).notes
    )
