"""Reading records: states, failures, prefixes, growing and rotated logs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.serving.logs import FAILURES, LogReader, rate_formula, read_log
from ckpt_tools.serving.logs.failures import OUT_OF_MEMORY, classify, remedy_for
from ckpt_tools.serving.logs.reader import parse_dict, parse_repr
from ckpt_tools.serving.logs.text import decode, parse_bar, parse_record, seconds, segments

T = "[2026-11-20 10:00:00"


def read(*lines: str):
    return read_log("\n".join(lines).encode())


# ---- records and bars


def test_prefixes_of_every_logger() -> None:
    cases = {
        f"{T} DP0 TP1] hi": ("sglang", "hi", "DP0 TP1"),
        f"{T}.123] hi": ("sglang", "hi", ""),
        f"{T} TP0] INFO:     Uvicorn running": ("uvicorn", "Uvicorn running", "TP0"),
        "INFO 11-20 10:00:00 [core.py:93] hi": ("vllm", "hi", ""),
        "(Worker_TP1 pid=9) ERROR 11-20 10:00:00 [core.py:93] hi": ("vllm", "hi", "Worker_TP1"),
        "INFO 12-20 00:49:35 config.py:887] hi": ("vllm", "hi", ""),
        "[11/20/2026-10:00:00] [TRT-LLM] [E] [RANK 3] hi": ("trtllm", "hi", "RANK 3"),
        "[TensorRT-LLM][WARNING] hi": ("trtllm", "hi", ""),
        "INFO:     hi": ("uvicorn", "hi", ""),
        "web-1  | INFO:     hi": ("uvicorn", "hi", ""),
        "Nov 20 10:00:00 host sglang[12]: INFO:     hi": ("uvicorn", "hi", ""),
        "2026-11-20T10:00:00Z [rank0]: ValueError: hi": ("plain", "ValueError: hi", ""),
        "INFO something else": ("plain", "INFO something else", ""),
        "[not a record] hi": ("plain", "[not a record] hi", ""),
    }
    for line, (kind, text, rank) in cases.items():
        record = parse_record(1, line)
        assert (record.kind, record.text, record.rank) == (kind, text, rank), line


def test_bars() -> None:
    bar = parse_bar("Loading shards:  50% Completed | 2/4 [01:02<1:00:02,  3.1s/it]")
    assert bar is not None
    assert (bar.description, bar.percent, bar.done, bar.total) == ("Loading shards", 50.0, 2, 4)
    assert (bar.elapsed_s, bar.remaining_s) == (62.0, 3602.0)
    assert parse_bar("  0%|          | 0/8 [00:00<?, ?it/s]").remaining_s is None  # type: ignore[union-attr]
    assert parse_bar("token usage: 50%") is None
    assert parse_bar("nothing") is None
    assert seconds("1:00:01") == 3601.0


def test_segments_of_a_line() -> None:
    assert segments("a\rb\r\r") == ["a", "b"]
    glued = f"x:  0%|  | 0/1 [00:00<?, ?it/s]{T}] Load weight end."
    assert segments(glued)[1].startswith(T)
    assert decode(b"\x1b[1;33mhot\x1b[0m \xff") == "hot �"


# ---- states


def test_nothing_yet() -> None:
    state = read_log(b"")
    assert (state.state, state.starts, state.lines, state.engine) == ("starting", 0, 0, None)


def test_statistics_without_a_start_show_a_working_server() -> None:
    state = read(
        "Decode batch, #running-req: 1, accept len: 1.00, accept rate: 0.00, gen throughput (token/s): 1.0"
    )
    assert state.state == "ready"
    assert state.acceptance is not None
    assert (state.acceptance.n, state.acceptance.mean_accept_len) == (1, 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: 'Qwen3VLMoeForConditionalGeneration' object has no attribute 'set_eagle3_layers_to_capture'",
        "ValueError: Eagle3 is only supported for Llama models. Got model_type='qwen3'",
    ],
)
def test_a_bare_exception_at_the_end_is_a_failure(line: str) -> None:
    state = read(line)
    assert (state.state, state.cause, state.decisive_lines) == ("failed", "missing-hook", (1,))


def test_out_of_memory_names_the_stage() -> None:
    state = read(
        "KV Cache is allocated. #tokens: 22095, K size: 5.23 GB, V size: 5.23 GB",
        "Memory pool end. avail mem=1.02 GB",
        "Load weight begin. avail mem=1.00 GB",
        "torch.OutOfMemoryError: CUDA out of memory.",
    )
    assert (state.state, state.cause) == ("failed", "out-of-memory")
    assert "while loading the draft" in (state.remedy or "")
    assert "--mem-fraction-static" in (state.remedy or "")


def test_a_context_notice_is_no_failure() -> None:
    notice = "Warning: Target model's context_length (1024) is greater than the derived context_length (512)."
    state = read(notice, "The server is fired up and ready to roll!")
    assert state.state == "ready"
    assert [note.id for note in state.notes] == ["context-override"]


def test_notes_are_counted() -> None:
    state = read(*[f"{T}] Parameter model.x{i} not found in params_dict" for i in range(500)])
    (note,) = state.notes
    assert (note.id, note.count, note.line, note.severity) == ("tensor-dropped", 500, 1, "warning")


def test_unknown_exception() -> None:
    state = read(
        f"{T}] Scheduler hit an exception: Traceback (most recent call last):", "  File x", "FooError: bar"
    )
    assert (state.cause, state.message, state.decisive_lines) == ("exception", "FooError: bar", (1, 3))
    assert "FooError" in (state.remedy or "")


def test_a_class_without_error_in_its_name_behind_a_traceback() -> None:
    state = read("Traceback (most recent call last):", '  File "x"', "torch._dynamo.exc.Unsupported: no")
    assert (state.state, state.message) == ("failed", "torch._dynamo.exc.Unsupported: no")


def test_interrupts_stop_a_server() -> None:
    state = read(
        f"{T}] server_args=ServerArgs(port=1)", "Traceback (most recent call last):", "KeyboardInterrupt"
    )
    assert state.state == "stopped"


def test_failures_after_a_stop_are_its_consequence() -> None:
    state = read(
        f"{T}] The server is fired up and ready to roll!",
        f"{T}] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        f"{T}] Scheduler hit an exception: Traceback (most recent call last):",
        "RuntimeError: x",
    )
    assert state.state == "stopped"


def test_a_traceback_waits_while_the_log_grows() -> None:
    reader = LogReader()
    reader.feed(b"Traceback (most recent call last):\n  File x\nValueError: bad\n")
    assert reader.snapshot(ended=False).state == "starting"
    assert reader.snapshot(ended=False, settled=True).state == "failed"
    reader.feed(f"{T}] Load weight begin. avail mem=1 GB\n".encode())
    assert reader.snapshot().state == "loading"


@pytest.mark.parametrize("line", ["Killed", "Segmentation fault", "x: error: unrecognized arguments: y"])
def test_a_client_s_words_in_the_log_are_taken_back(line: str) -> None:
    ready = f"{T}] The server is fired up and ready to roll!"
    access = f'{T}] INFO:     127.0.0.1:5 - "POST /generate HTTP/1.1" 200 OK'
    assert read(ready, line).state == "failed" or "error" in line
    if "error" not in line:
        assert read(ready, line, access).state == "ready"


def test_nccl_s_watchdog() -> None:
    state = read(
        "[rank1]:[E1120 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout"
    )
    assert (state.state, state.cause) == ("failed", "watchdog")


def test_another_rank_may_go_on_while_one_dies() -> None:
    state = read(
        f"{T} TP0] Scheduler hit an exception: Traceback (most recent call last):",
        f"{T} TP1] Load weight begin. avail mem=1 GB",
        '  File "x"',
        "ModuleNotFoundError: No module named 'deep_gemm'",
        f"{T} TP1] Load weight end. type=LlamaForCausalLM, avail mem=1 GB",
    )
    assert (state.state, state.cause, state.ranks) == ("failed", "missing-module", ("TP0", "TP1"))


def test_the_engine_that_is_named_decides() -> None:
    data = b"INFO:     Application startup complete.\n"
    assert read_log(data).state == "starting"
    assert read_log(data, "vllm").state == "ready"
    assert read_log(data, "sglang-ext").engine == "sglang"


def test_startup_failure_of_the_web_server() -> None:
    state = read(
        f"{T}] server_args=ServerArgs(port=1)", f"{T}] ERROR:    Application startup failed. Exiting."
    )
    assert state.state == "failed"


# ---- growing, cut, rotated


def test_progress_of_a_line_that_isn_t_finished() -> None:
    reader = LogReader(weight_bytes=1000)
    reader.feed(b"[2026-11-20 10:00:00] Load weight begin. avail mem=1 GB\n")
    reader.feed(b"Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]\r")
    reader.feed(b"Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:10<00:99,  1.1s/it]")
    state = reader.snapshot(ended=False)
    assert state.progress is not None
    assert (state.progress.percent, state.progress.bytes_per_s, state.progress.remaining_s) == (
        25.0,
        25.0,
        30.0,
    )
    assert (state.state, state.phase) == ("loading", "loading target weights")


def test_rotation_starts_line_numbers_anew() -> None:
    reader = LogReader()
    reader.feed(f"{T}] server_args=ServerArgs(port=1)\n{T}] half".encode())
    reader.rotate()
    reader.feed(b"bash: line 1: 77 Killed python\n")
    state = reader.snapshot()
    assert (state.cause, state.decisive_lines, state.starts) == ("killed", (1,), 1)


def test_a_line_without_end_takes_no_memory() -> None:
    reader = LogReader()
    for _ in range(12):
        reader.feed(b"x" * (1 << 20))
    assert len(reader._carry) <= 5 << 20
    reader.feed(f"\n{T}] The server is fired up and ready to roll!\n".encode())
    state = reader.snapshot()
    assert (state.state, state.ready_line) == ("ready", 2)


def test_long_line_then_end() -> None:
    reader = LogReader()
    reader.feed(b"y" * (6 << 20))
    assert reader.snapshot().state == "starting"
    reader.rotate()
    assert reader.snapshot().lines == 0


# ---- arguments


def test_arguments_are_parsed_whatever_they_hold() -> None:
    args = parse_repr("a=1, b='x, c=(2)', d=['q'], e=None, f=Foo(1), g=-1.5)")
    assert dict(args) == {"a": 1, "b": "x, c=(2)", "d": ["q"], "e": None, "f": "Foo(1)", "g": -1.5}
    loose = parse_repr("a=1, handle=<object at 0x1>, b='x', c=True)")
    assert loose["a"] == 1
    assert loose["b"] == "x"
    assert dict(parse_repr("")) == {}
    assert dict(parse_dict("{'a': 1, 'b': Foo.X}")) == {"a": 1, "b": "Foo.X"}
    assert dict(parse_dict("nonsense [")) == {}
    assert dict(parse_dict("[1]")) == {}


def test_arguments_over_several_lines_are_a_dump() -> None:
    state = read(
        f"{T}] server_args=ServerArgs(model_path='x',",
        "Traceback (most recent call last):",
        "ValueError: from a template",
        "port=1)",
    )
    assert state.state == "starting"


# ---- tables


def test_accept_rate_by_release() -> None:
    def of(version: str | None, engine: str = "sglang") -> str | None:
        formula = rate_formula(engine, version)
        return formula and formula.id

    assert of("0.5.3") is None
    assert of("0.5.4") == "len/(steps+1)"
    assert of("0.5.9") == "len/num_draft_tokens"
    assert of("0.5.23") == of(None) == "accepted/(num_draft_tokens-1)"
    assert of("0.33.0", "vllm") == "accepted/drafted"
    assert of("1.0", "trtllm") is None
    nine = rate_formula("sglang", "0.5.9")
    assert nine is not None
    assert nine.useless_rate(8, 3) == 0.125
    assert nine.useless_rate(None, 3) is None
    four = rate_formula("sglang", "0.5.4")
    assert four is not None
    assert four.useless_rate(8, 3) == 0.25
    assert four.useless_rate(8, None) is None
    new = rate_formula("sglang", "0.5.23")
    assert new is not None
    assert new.useless_rate(None, None) == 0.0


def test_failure_rows_are_whole() -> None:
    ids = [row.id for row in FAILURES]
    assert len(ids) == len(set(ids))
    for row in FAILURES:
        assert row.remedy
        assert row.reference
        for stage in OUT_OF_MEMORY:
            assert "{" not in remedy_for(row, stage)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("RuntimeError: NCCL error in: x", "nccl"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda-assert"),
        ("RuntimeError: No CUDA GPUs are available", "no-gpu"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("ValueError: trtllm_mla backend can only be used with MLA models.", "attention-backend"),
        ("OSError: Can't load tokenizer for 'x'.", "tokenizer"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "permission"),
        ("AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'", "config-field"),
        (
            "ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3).",
            "tensor-parallel",
        ),
        ("Segmentation fault (core dumped)", "crash"),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "weights-missing",
        ),
        ("ImportError: libcuda.so.1: cannot open shared object file", "kernel-missing"),
        ("ImportError: cannot import name 'x' from 'y'", "missing-module"),
        ("RuntimeError: no kernel image is available for execution on the device", "kernel-missing"),
        ("OSError: x does not appear to have a file named config.json", "model-not-found"),
    ],
)
def test_classification(text: str, cause: str) -> None:
    row = classify(text)
    assert row is not None
    assert row.id == cause


def test_nothing_known() -> None:
    assert classify("FooError: something new") is None


# ---- properties


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_read_alike_however_cut(data: bytes, size: int) -> None:
    reader = LogReader()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    assert reader.snapshot() == read_log(data)


@settings(max_examples=60, deadline=None)
@given(
    st.text(alphabet=st.characters(blacklist_characters="\n\r", blacklist_categories=("Cs",)), max_size=120)
)
def test_what_a_user_sends_never_fails_a_server(text: str) -> None:
    lines = [
        f"{T}] The server is fired up and ready to roll!",
        f"{T}] Receive: obj=GenerateReqInput(text={text!r})",
        f"{T}] Receive: obj=GenerateReqInput(text='",
        "Traceback (most recent call last):",
        "RuntimeError: " + text,
        "')",
        f"{T}] Finish: obj=GenerateReqInput(rid='1'), out={{'text': {text!r}}}",
    ]
    assert read(*lines).state == "ready"
