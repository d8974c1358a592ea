"""The command that is written: refusals, reasons, forms; every one read back is without an error."""

from __future__ import annotations

import pytest
import yaml

from ckpt_tools.errors import UsageError
from ckpt_tools.serving.args import RENDERERS, Wish, launch_command, launch_problems, one_line, parse_launch

from .pairs import PAIRS, draft, engine, plan, target


def make(on: str, d=None, t=None, wish=None, same: bool = False, config=None):
    path = "/t" if same else "/d"
    return launch_command(
        d or draft(), t, engine(on), draft_path=path, target_path="/t", wish=wish, config=config
    )


@pytest.mark.parametrize("form", RENDERERS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["name"])
def test_every_form_is_read_back_as_the_same_command(pair: dict, form: str) -> None:
    made = plan(pair)
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
    assert one_line(made).startswith("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 sglang serve --model-path")


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
    made = launch_command(draft(), None, engine("sglang-ext==0.5.23"), draft_path="/d", target_path="/t")
    assert made.env["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "ckpt_tools.sglang_models"


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
