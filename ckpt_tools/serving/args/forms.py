"""A serving command in the forms that people run: a shell line, a docker compose service, a Kubernetes pod."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckpt_tools.serving.args.command import Argument

if TYPE_CHECKING:
    from ckpt_tools.serving.args.command import LaunchPlan


def exposed(plan: LaunchPlan) -> LaunchPlan:
    """The plan for a container: SGLang listens on the loopback unless told otherwise, and nobody is in there."""
    if plan.engine.name == "vllm" or any(a.flag == "--host" for a in plan.arguments):
        return plan
    host = Argument("--host", ("0.0.0.0",), "the loopback of a container can't be reached from outside it")
    return replace(plan, arguments=(*plan.arguments, host))


def _gpus(plan: LaunchPlan) -> int:
    """GPUs of one node, as the whole command has it, the words after ``--`` included."""
    launch = plan.launch()
    if launch.engine == "vllm":
        sizes = ["--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"]
    else:
        sizes = ["--tp-size", "--pp-size"]
        if not launch.given("--enable-dp-attention"):  # with it, the ranks of tp are shared out
            sizes.append("--dp-size")
    total = 1
    for flag in sizes:
        total *= launch.number(flag) or 1
    return -(-total // (launch.number("--nnodes") or 1))


def as_shell(plan: LaunchPlan) -> str:
    """A shell command, a flag a line, with the reasons as comments before it."""
    lines = [f"# {plan.engine}"]
    lines += [f"# {name}: {reason}" for name, reason in plan.reasons.items()]
    lines += [f"# note: {note}" for note in plan.notes]
    parts = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
    parts.append(shlex.join(plan.program))
    parts += ["  " + shlex.join([a.flag, *a.values] if a.flag else a.values) for a in plan.arguments]
    return "\n".join(lines) + "\n" + " \\\n".join(parts) + "\n"


def _image(plan: LaunchPlan) -> str:
    name = "vllm/vllm-openai" if plan.engine.name == "vllm" else "lmsysorg/sglang"
    return f"{name}:v{plan.engine.version}"


def _listed(plan: LaunchPlan, indent: str) -> list[str]:
    """The arguments as a YAML list with their reasons as comments."""
    out: list[str] = []
    for argument in plan.arguments:
        words = [argument.flag, *argument.values] if argument.flag else [*argument.values]
        out.append(f"{indent}- {json.dumps(words[0])}  # {argument.reason}")
        out += [f"{indent}- {json.dumps(word)}" for word in words[1:]]
    return out


def as_compose(plan: LaunchPlan) -> str:
    """A docker compose service."""
    plan = exposed(plan)
    lines = ["services:", f"  {plan.engine.name}:", f"    image: {_image(plan)}", "    ipc: host"]
    lines += [f"    # {note}" for note in plan.notes]
    if plan.env:
        lines.append("    environment:")
        lines += [f"      {k}: {json.dumps(v)}  # {plan.env_reasons[k]}" for k, v in plan.env.items()]
    lines.append(f"    ports: [{json.dumps(f'{plan.port}:{plan.port}')}]")
    lines.append(f"    entrypoint: {json.dumps(list(plan.program))}")
    lines += ["    command:", *_listed(plan, "      ")]
    if plan.mounts:
        lines.append("    volumes:")
        lines += [
            f"      - {{type: bind, source: {json.dumps(m)}, target: {json.dumps(m)}, read_only: true}}"
            for m in plan.mounts
        ]
    lines += [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices: [{driver: nvidia, count: all, capabilities: [gpu]}]",
    ]
    return "\n".join(lines) + "\n"


def as_k8s(plan: LaunchPlan) -> str:
    """A Kubernetes pod with a readiness probe on the health endpoint."""
    plan = exposed(plan)
    lines = [
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        f"  name: {plan.engine.name}",
        "spec:",
        "  containers:",
    ]
    lines += [f"    - name: {plan.engine.name}", f"      image: {_image(plan)}"]
    lines += [f"      # {note}" for note in plan.notes]
    lines.append(f"      command: {json.dumps(list(plan.program))}")
    lines += ["      args:", *_listed(plan, "        ")]
    if plan.env:
        lines.append("      env:")
        for name, value in plan.env.items():
            lines += [
                f"        - name: {name}  # {plan.env_reasons[name]}",
                f"          value: {json.dumps(value)}",
            ]
    lines += [
        f"      ports: [{{containerPort: {plan.port}}}]",
        f"      resources: {{limits: {{nvidia.com/gpu: {_gpus(plan)}}}}}",
        f"      readinessProbe: {{httpGet: {{path: /health, port: {plan.port}}}, failureThreshold: 180, periodSeconds: 10}}",
        "      volumeMounts:",
        "        - {name: shm, mountPath: /dev/shm}",
        *(
            f"        - {{name: model-{i}, mountPath: {json.dumps(m)}, readOnly: true}}"
            for i, m in enumerate(plan.mounts)
        ),
        "  volumes:",
        "    - {name: shm, emptyDir: {medium: Memory}}",
        *(
            f"    - {{name: model-{i}, hostPath: {{path: {json.dumps(m)}, type: Directory}}}}"
            for i, m in enumerate(plan.mounts)
        ),
    ]
    return "\n".join(lines) + "\n"


RENDERERS = MappingProxyType({"shell": as_shell, "k8s": as_k8s, "compose": as_compose})
