"""Launch commands in every form they are written in."""

from __future__ import annotations

import json

import pytest

from ckpt_tools.errors import UsageError
from ckpt_tools.serving.args import parse_launch, parse_launches
from ckpt_tools.serving.args.launch import human_int
from ckpt_tools.serving.args.manifests import containers
from ckpt_tools.serving.args.shell import commands

SGLANG = "--model-path /t --speculative-algorithm EAGLE3 --speculative-draft-model-path /d"


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in commands(text)]


# ---- shell


def test_words_quotes_and_escapes() -> None:
    assert words('a \'b c\' "d \\" $ e" f\\ g h\\\ni') == [["a", "b c", 'd " $ e', "f g", "hi"]]
    assert words("a # comment\nb#c # x") == [["a"], ["b#c"]]
    assert words("a;b&&c||d|e&f") == [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]
    assert words('a "x\\\ny" `date`') == [["a", "xy", "`date`"]]
    assert words("a 'open") == [["a", "open"]]
    assert words("") == []


def test_redirections_are_left_out() -> None:
    assert words("a > log 2>&1 b < in &> all >> more 2>/dev/null") == [["a", "b"]]
    assert words("a >&2 c") == [["a", "c"]]


def test_variables() -> None:
    assert words("M=/m; N=${M}/n\nrun $M ${N} ${K:-dflt} ${K} $K $(ls | wc) $") == [
        ["run", "/m", "/m/n", "dflt", "${K}", "$K", "$(ls | wc)", "$"]
    ]
    assert words("A=1\nA+=2\nrun ${A}") == [["run", "12"]]
    assert words('run "${X[@]}" ${broken') == [["run", "${X[@]}", "${broken"]]


def test_environment_of_a_command() -> None:
    (command,) = commands("export A=1 B\nB=2\nexport B\nA=3\nC=4 exec run")
    assert command.exported == {"A": "3", "B": "2"}
    assert command.assignments == {"C": "4"} or command.words[0].text == "run"


def test_lines_are_those_of_the_text() -> None:
    (command,) = commands("\n\nrun a \\\n  b \\\n  'c\nd' e")
    assert [(word.text, word.line) for word in command.words] == [
        ("run", 3),
        ("a", 3),
        ("b", 4),
        ("c\nd", 5),
        ("e", 6),
    ]


def test_keywords_are_stepped_over() -> None:
    assert words("if true; then nohup run a; fi") == [["true"], ["run", "a"], ["fi"]]


# ---- programs


@pytest.mark.parametrize(
    ("text", "engine", "program"),
    [
        (f"python -m sglang.launch_server {SGLANG}", "sglang", "python -m sglang.launch_server"),
        (f"sglang serve {SGLANG}", "sglang", "sglang serve"),
        (f"python3 -m sglang serve {SGLANG}", "sglang", "python -m sglang"),
        (f"python /opt/launch_server.py {SGLANG}", "sglang", "/opt/launch_server.py"),
        (f"torchrun --nproc 2 -m sglang.launch_server {SGLANG}", "sglang", "python -m sglang.launch_server"),
        (f"sudo env A=1 numactl -N 0 /venv/bin/sglang serve {SGLANG}", "sglang", "sglang serve"),
        (f"docker run --gpus all lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server {SGLANG}", "sglang",
         "python -m sglang.launch_server"),
        (f"bash -c 'cd /x && python -m sglang.launch_server {SGLANG}'", "sglang", "python -m sglang.launch_server"),
        ("vllm serve /t --spec-method eagle3", "vllm", "vllm serve"),
        ("python -m vllm.entrypoints.openai.api_server --model /t", "vllm", "python -m vllm.entrypoints.openai.api_server"),
        ("python -m vllm.entrypoints.cli.main serve /t", "vllm", "python -m vllm.entrypoints.cli.main"),
        ("docker run vllm/vllm-openai:latest --model /t", "vllm", "vllm serve"),
        ("trtllm-llmapi-launch trtllm-serve serve /t --backend pytorch --port=8000", "trtllm", "trtllm-serve"),
        ("trtllm-serve /t --max_batch_size 4", "trtllm", "trtllm-serve"),
    ],
)  # fmt: skip
def test_programs(text: str, engine: str, program: str) -> None:
    launch = parse_launch(text)
    assert (launch.engine, launch.program) == (engine, program)
    assert launch.model == "/t"


def test_nothing_is_launched() -> None:
    with pytest.raises(UsageError, match="no launch command"):
        parse_launch("ls -la; python train.py")
    assert parse_launches("") == ()
    assert parse_launches('["python", 3]') == ()
    assert parse_launches("[broken") == ()
    assert parse_launches('{"a": 1}') == ()


def test_the_drafting_command_is_taken() -> None:
    text = f"sglang serve --model-path /small --port 1\nsglang serve {SGLANG}\n"
    assert parse_launch(text).draft == "/d"
    assert [launch.model for launch in parse_launches(text)] == ["/small", "/t"]


def test_a_script() -> None:
    launch = parse_launch(
        "#!/bin/bash\nset -e\nexport SGLANG_X=1\nTARGET=/t\n\n# serve\nNCCL_DEBUG=INFO python -m sglang.launch_server \\\n"
        "  --model-path $TARGET \\\n  --tp 8 --port=30001 \\\n  --speculative-num-steps 3  > log 2>&1 &\nwait\n"
    )
    assert dict(launch.env) == {"SGLANG_X": "1", "NCCL_DEBUG": "INFO"}
    assert (launch.model, launch.tp, launch.value("--port"), launch.line) == ("/t", 8, "30001", 7)
    assert [(flag.name, flag.line) for flag in launch.flags] == [
        ("--model-path", 8), ("--tp-size", 9), ("--port", 9), ("--speculative-num-steps", 10),
    ]  # fmt: skip
    assert launch.number("--speculative-num-steps") == 3
    assert launch.number("--nothing") is None
    assert launch.number("--model-path") is None
    assert launch.flag("--tensor-parallel-size") is launch.flag("--tp-size")
    assert not launch.given("--context-length")
    assert launch.context_length is None


def test_docker_gives_environment_and_release() -> None:
    launch = parse_launch(
        f"docker run -e A=1 -eB=2 --env=C=3 --env D=4 --shm-size 16g lmsysorg/sglang:v0.5.12-cu129 sglang serve {SGLANG}"
    )
    assert dict(launch.env) == {"A": "1", "B": "2", "C": "3", "D": "4"}
    assert (launch.version, launch.table_version) == ("0.5.12", "0.5.12")
    assert (
        parse_launch("docker run x/sglang:v0.5.10.post1 sglang serve --model-path /t").version
        == "0.5.10.post1"
    )


def test_a_json_list() -> None:
    launch = parse_launch(json.dumps(["python3", "-m", "sglang.launch_server", *SGLANG.split()]))
    assert (launch.model, launch.draft) == ("/t", "/d")


# ---- manifests


COMPOSE = """
services:
  redis: {image: "redis:7", command: ["redis-server"]}
  sglang:
    image: lmsysorg/sglang:v0.5.9
    environment: {A: "1"}
    entrypoint: ["python3", "-m", "sglang.launch_server"]
    command:
      - --model-path
      - /t
      - --speculative-num-steps=3
"""
FOLDED = """
services:
  s:
    image: lmsysorg/sglang:v0.5.9
    environment:
      - A=1
      - B
    command: >
      python3 -m sglang.launch_server --model-path /t
      --speculative-num-steps 3
"""
K8S = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: s
          image: lmsysorg/sglang:v0.5.9
          env:
            - {name: A, value: "1"}
            - {name: B, valueFrom: {secretKeyRef: {name: x, key: y}}}
          command: [bash, -c]
          args:
            - |
              export C=2
              python3 -m sglang.launch_server \\
                --model-path /t \\
                --speculative-num-steps 3
---
kind: Service
"""


@pytest.mark.parametrize("text", [COMPOSE, FOLDED, K8S], ids=["list", "folded", "kubernetes"])
def test_manifests(text: str) -> None:
    launch = parse_launch(text)
    assert (launch.version, launch.model, launch.number("--speculative-num-steps")) == ("0.5.9", "/t", 3)
    assert launch.env["A"] == "1"
    flag = launch.flag("--speculative-num-steps")
    assert flag is not None
    shown = text.splitlines()[flag.line - 1]
    assert "speculative" in shown or text is FOLDED


def test_kubernetes_shell_keeps_what_it_exports() -> None:
    assert parse_launch(K8S).env["C"] == "2"


def test_manifests_that_aren_t() -> None:
    assert containers("a: [") == []
    assert containers("a: 1") == []
    assert containers("command: {x: 1}\nimage: y") != []
    assert parse_launches("command: nothing here") == ()


# ---- vLLM's speculative config


@pytest.mark.parametrize(
    "flags",
    [
        """--speculative-config '{"method": "eagle3", "model": "/d", "num-speculative-tokens": 3}'""",
        """--speculative_config='{"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}'""",
        "--speculative-config.method eagle3 --speculative-config.model=/d --speculative-config.num_speculative_tokens 3",
        "--spec-method eagle3 --spec-model /d --spec-tokens 3",
        """-sc '{"method": "eagle3", "model": "/d"}' --spec-tokens 3""",
    ],
)
def test_speculative_config_in_every_spelling(flags: str) -> None:
    launch = parse_launch(f"vllm serve /t {flags}")
    assert launch.speculative is not None
    assert dict(launch.speculative) == {"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}
    assert launch.draft == "/d"


def test_nested_and_broken_speculative_config() -> None:
    launch = parse_launch("vllm serve /t --speculative-config.a.b 1 --speculative-config.a.c x")
    assert launch.speculative is not None
    assert launch.speculative["a"] == {"b": 1, "c": "x"}
    assert "Expecting" in (parse_launch("vllm serve /t --speculative-config {method").speculative_error or "")
    assert parse_launch("vllm serve /t --speculative-config '[1]'").speculative_error == "not a JSON object"
    assert parse_launch("vllm serve /t --speculative-config").speculative == {}
    assert parse_launch("vllm serve /t").speculative is None
    assert parse_launch("vllm serve /t --speculative-config '{\"model\": 3}'").draft is None


def test_vllm_numbers() -> None:
    assert human_int("32k") == 32000
    assert human_int("32K") == 32768
    assert human_int("1.5k") == 1500
    assert human_int("1.5K") is None
    assert human_int("many") is None
    assert parse_launch("vllm serve /t --max-model-len 8k").context_length == 8000
    assert parse_launch("vllm serve /t -O3").flag("--optimization-level") is not None
