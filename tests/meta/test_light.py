"""What must stay light: help and structural reading import none of the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import FIXTURES

HEAVY = ("torch", "huggingface_hub", "jsonschema", "numpy", "transformers")
DRAFT = FIXTURES / "formats" / "tiny" / "draft-midlayer"
TARGET = FIXTURES / "models" / "llama_tiny"


def heavy_after(code: str) -> list[str]:
    """Heavy modules that a fresh interpreter holds after running *code*."""
    script = f"import sys\n{code}\nsys.stderr.write('LOADED ' + ' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "LOADED" in done.stderr, done.stderr
    return done.stderr.rpartition("LOADED")[2].split()


def cli(*args: str) -> str:
    return (
        f"sys.argv = ['ckpt', *{list(args)!r}]\n"
        "from ckpt_tools.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code in (0, None), end.code"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import ckpt_tools",
        "import ckpt_tools.api, ckpt_tools.model, ckpt_tools.formats",
        cli("--help"),
        cli("--version"),
        cli("inspect", str(DRAFT)),
        cli("inspect", str(DRAFT), "--engine", "sglang", "--format", "json"),
        cli("inspect", str(TARGET)),
        cli("explain", "CTX001"),
    ],
    ids=["import", "api", "help", "version", "inspect", "load-map", "target", "explain"],
)
def test_imports_nothing_heavy(code: str) -> None:
    assert heavy_after(code) == []


def test_the_test_would_notice() -> None:
    assert heavy_after("import jsonschema") == ["jsonschema"]
