"""Every problem of a launch command reaches the report under one code."""

from __future__ import annotations

import ast
from pathlib import Path

from ckpt_tools.checks.launch import ROWS

ARGS = Path(__file__).parents[2] / "ckpt_tools" / "serving" / "args"
#: Problems that a check of another family finds from the same facts, and its code.
ELSEWHERE = {
    "draft-quantization-copied": "QNT003",
    "context-override": "CTX001",
    "draft-context": "CTX002",
    "dtype-mixed": "DTY001",
    "tp-heads": "TPX001",
    "tp-kv-heads": "TPX001",
    "tp-intermediate": "TPX001",
    "unserved-draft": "PAR002",
}


def written() -> set[str]:
    """The ids that the rules write: first arguments of ``Problem``, and defaults and arguments that become one."""
    found = set()
    for file in sorted(ARGS.glob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = {"Problem": node.args[:1], "_bad": node.args[2:3]}.get(node.func.id, [])
                found |= {c.value for a in place for c in ast.walk(a) if isinstance(c, ast.Constant)}
            if isinstance(node, ast.FunctionDef) and node.name == "_bad":
                found |= {d.value for d in node.args.defaults if isinstance(d, ast.Constant)}
    return {str(i) for i in found}


def test_every_problem_has_one_code() -> None:
    mapped = [i for row in ROWS for i in row.ids] + list(ELSEWHERE)
    assert len(mapped) == len(set(mapped))
    assert set(mapped) == written()
