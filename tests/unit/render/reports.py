"""Reports for the renderers' tests: one of each kind, and one whose every text is hostile."""

from __future__ import annotations

from typing import Any

from ckpt_tools.model import (
    Engine,
    Failure,
    Finding,
    Fix,
    Location,
    Report,
    Rope,
    Severity,
    Skipped,
    Subject,
    Target,
)

SGLANG = Engine("sglang", "0.5.23", "0.5.23", "--engine")
VLLM = Engine("vllm", "0.33.1", "0.33.0", "--engine")
TARGET = Target(
    id="kimi-k2.5",
    origin="registry",
    architectures=("KimiK25ForConditionalGeneration",),
    hidden_size=7168,
    num_hidden_layers=61,
    vocab_size=163840,
    max_position_embeddings=262144,
    rope=Rope(50000.0, {"rope_type": "yarn", "factor": 64.0}),
)
DRAFT = {
    "num_layers": 1,
    "hidden_size": 7168,
    "target_hidden_size": 4096,
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "capture_layers": [-1, 29, 57],
    "capture_convention": "layer_output",
    "norm_before_residual": False,
    "rope": {"theta": 10000.0, "scaling": None, "partial_rotary_factor": None},
    "max_position_embeddings": 131072,
}
LOAD = {
    "architecture": "LlamaForCausalLMEagle3",
    "parameters": {
        "model.embed_tokens.weight": {"from": [], "filled_by": "target"},
        "model.midlayer.self_attn.qkv_proj.weight": {
            "from": [f"midlayer.self_attn.{x}_proj.weight" for x in "qkv"],
            "filled_by": "checkpoint",
        },
        "model.fc.weight": {"from": ["fc.weight"], "filled_by": "partly", "cut": "21504 narrowed to 12288"},
        "model.norm.weight": {"from": [], "filled_by": "nothing"},
    },
    "unused": ["layers.0.input_layernorm.weight", "t2d"],
    "refused": None,
}
STATS: dict[str, Any] = {
    "fc.weight": {
        "numel": 100,
        "min": -0.5,
        "max": 0.5,
        "mean": 0.0,
        "rms": 0.1,
        "nan": 0,
        "inf": 0,
        "zero": 3,
    },
    "norm.weight": {
        "numel": 10,
        "min": 1.0,
        "max": 1.0,
        "mean": 1.0,
        "rms": 1.0,
        "nan": 1,
        "inf": 2,
        "zero": 0,
    },
    "lost.weight": {
        "numel": 4,
        "min": None,
        "max": None,
        "mean": None,
        "rms": None,
        "nan": 4,
        "inf": 0,
        "zero": 0,
    },
    "none.weight": {
        "numel": 0,
        "min": None,
        "max": None,
        "mean": None,
        "rms": None,
        "nan": 0,
        "inf": 0,
        "zero": 0,
    },
    "d2t": {"numel": 9, "min": 0, "max": 9000, "mean": 5.0, "rms": 6.0, "nan": 0, "inf": 0, "zero": 1},
    "packed.weight": None,
}
FACTS: dict[str, Any] = {
    "format": "sglang",
    "algorithm": "eagle3",
    "evidence": [{"kind": "tensor", "key": "midlayer.**", "says": "layer 0 is named midlayer"}],
    "num_tensors": 15,
    "num_parameters": 1_234_567,
    "total_bytes": 2_469_134,
    "dtypes": {"BF16": 14, "I64": 1},
    "wrapper": "module.",
    "draft": DRAFT,
    "load": LOAD,
}


def finding(code: str = "CTX001", severity: Severity = Severity.ERROR, **over: Any) -> Finding:
    """A finding of a known code."""
    given: dict[str, Any] = {
        "name": "draft-context-shorter",
        "message": "the draft's context is 131072 and 262144 is served",
        "location": Location("config.json", "/max_position_embeddings", None, 17),
        "hint": "serve with --context-length 131072",
        "engine": "sglang==0.5.23",
    }
    return Finding(code=code, severity=severity, **{**given, **over})


def verify_report(**over: Any) -> Report:
    """A failed verify with a finding of every severity."""
    given: dict[str, Any] = {
        "command": "verify",
        "subject": Subject("drafts/k25", "sglang", "eagle3", "sha256:" + "0" * 64),
        "verdict": "fail",
        "target": TARGET,
        "engines": (SGLANG,),
        "facts": {**FACTS, "ran": ["CTX001", "DTY001", "KEY001"]},
        "findings": (
            finding(),
            finding(
                "KEY001",
                Severity.WARNING,
                name="tensor-ignored-by-engine",
                message="t2d is ignored",
                location=Location("model.safetensors", None, "t2d"),
                hint=None,
                fix=Fix("ckpt fix-keys IN OUT", safe=True),
            ),
            finding(
                "LCH001",
                Severity.INFO,
                name="launch-problem",
                message="a flag twice",
                location=Location("launch", None, None, 3),
                engine=None,
            ),
        ),
        "skipped": (
            Skipped("VAL001", "values are read with --deep"),
            Skipped("VAL002", "values are read with --deep"),
        ),
    }
    return Report(**{**given, **over})


def clean_report() -> Report:
    """Nothing found."""
    return verify_report(verdict="pass", findings=(), skipped=(), target=None)


def error_report() -> Report:
    """A command that couldn't do its work."""
    return Report(
        command="verify",
        subject=Subject("drafts/gone"),
        verdict="error",
        error=Failure("input", "drafts/gone: no such file or folder", "check the path"),
    )


def inspect_report(**facts: Any) -> Report:
    """An inspect with two load maps, values and a list of tensors."""
    tensors = [
        {
            "name": "midlayer.hidden_norm.weight",
            "canonical": "layers.0.hidden_norm.weight",
            "dtype": "BF16",
            "shape": [7168],
            "file": "model.safetensors",
            "bytes": 14336,
        },
        {
            "name": "odd.weight",
            "canonical": None,
            "dtype": "BF16",
            "shape": [2, 3],
            "file": "model.safetensors",
            "bytes": 12,
        },
    ]
    refused = {"architecture": None, "parameters": {}, "unused": [], "refused": "ValueError: no\nsuch class"}
    loads = {str(SGLANG): LOAD, str(VLLM): refused}
    return Report(
        command="inspect",
        subject=Subject("model.safetensors", "sglang", "eagle3", "sha256:" + "1" * 64),
        verdict="pass",
        target=TARGET,
        engines=(SGLANG, VLLM),
        facts={**FACTS, "tensors": tensors, "stats": STATS, "loads": loads, **facts},
    )


def plan_report() -> Report:
    """A conversion."""
    plan = {
        "from": "speculators",
        "to": "sglang",
        "algorithm": "eagle3",
        "renames": [{"from": "layers.0.mlp.up", "to": "midlayer.mlp.up"}, {"from": "d2t", "to": "d2t"}],
        "copies": [{"from": "a", "to": "b"}],
        "drops": [{"tensor": "verifier_norm.weight", "reason": "the target's own norm"}],
        "synthesised": [{"tensor": "t2d", "dtype": "BOOL", "shape": [8], "how": "from d2t"}],
        "casts": [{"tensor": "fc.weight", "from": "F32", "to": "BF16"}],
        "config": {
            "result": {},
            "edits": [{"pointer": "/model_type", "action": "set", "value": "llama", "reason": None}],
        },
        "refusals": [],
        "allowed": [],
        "repairs": [],
        "launch_flags": ["--context-length", "131072"],
        "files": {"carried": [], "left": {}},
        "bytes_shared": 0,
        "bytes_copied": 345_678,
    }
    return Report(
        command="fix-keys",
        subject=Subject("in", "speculators", "eagle3"),
        verdict="pass",
        facts={**FACTS, "load": None, "plan": plan, "written": "out"},
    )


def training_report() -> Report:
    """An inspected training output."""
    epochs = [
        {"path": "out/0", "metrics": {"loss": 2.5, "note": "x"}, "number": 0},
        {"path": "out/1", "metrics": {"loss": 1.25}, "number": 1},
    ]
    output = {"framework": "speculators", "epochs": epochs, "best": "1", "next": "ckpt fix-keys out/1 OUT"}
    return Report(
        "inspect", Subject("out", "speculators training output"), "pass", facts={"training_output": output}
    )


def accept_report() -> Report:
    """Measured acceptance, with intervals."""
    return Report(
        "accept",
        Subject("drafts/k25", "sglang", "eagle3"),
        "pass",
        facts={
            "per_position": [0.8, {"value": 0.7, "low": 0.6, "high": 0.8}, None],
            "expected_length": {"1": {"mean": 1.8, "low": 1.7, "high": 1.9}, "2": 2.36},
            "speedup": {"1": 1.4, "2": 1.6},
            "best_depth": 2,
            "tables": {"by depth": [{"depth": 1, "length": 1.8}, {"depth": 2, "length": 2.36}], "empty": []},
        },
    )


#: Escape sequences, a forged line, markup of every output, a mark that turns text, a lone surrogate.
HOSTILE = (
    "x\x1b[31m\x07\r\n::error::forged\n\u2028\u202e<script>alert(1)</script>&\"'|`*_[a](javascript:b)@all"
    "%0A]]>--><!--[bold]\udcff\x00\x9b"
)


def hostile_report() -> Report:
    """Whatever a checkpoint can say, it says with :data:`HOSTILE` in it."""
    load = {
        "architecture": HOSTILE,
        "parameters": {HOSTILE: {"from": [HOSTILE, HOSTILE + "2"], "filled_by": "partly", "cut": HOSTILE}},
        "unused": [HOSTILE],
        "refused": HOSTILE,
    }
    plan = plan_report().facts["plan"]
    evil = {
        **plan,
        "renames": [{"from": HOSTILE, "to": HOSTILE + "2"}],
        "drops": [{"tensor": HOSTILE, "reason": HOSTILE}],
        "synthesised": [{"tensor": HOSTILE, "how": HOSTILE}],
        "launch_flags": [HOSTILE],
    }
    tensor = {"name": HOSTILE, "canonical": None, "dtype": "BF16", "shape": [1], "bytes": 2}
    return Report(
        command="inspect",
        subject=Subject("drafts/" + HOSTILE.replace("\x00", ""), "sglang", "eagle3"),
        verdict="fail",
        target=Target(id=HOSTILE, origin="local", architectures=(HOSTILE,)),
        engines=(SGLANG,),
        facts={
            **FACTS,
            "evidence": [{"kind": "tensor", "key": HOSTILE, "says": HOSTILE}],
            "wrapper": HOSTILE,
            "draft": {"verifier": {"name": HOSTILE}, "layer_type": HOSTILE},
            "load": load,
            "plan": evil,
            "written": HOSTILE,
            "tensors": [tensor],
            "stats": {HOSTILE: STATS["fc.weight"]},
            "tables": {HOSTILE: [{HOSTILE: HOSTILE}]},
        },
        findings=(
            finding(
                message=HOSTILE,
                hint=HOSTILE,
                location=Location(HOSTILE, "/" + HOSTILE, HOSTILE, 2),
                fix=Fix(HOSTILE),
            ),
        ),
        skipped=(Skipped("VAL001", HOSTILE),),
    )


def all_reports() -> list[Report]:
    """One of each."""
    return [
        verify_report(),
        clean_report(),
        error_report(),
        inspect_report(),
        plan_report(),
        training_report(),
        accept_report(),
        hostile_report(),
    ]
