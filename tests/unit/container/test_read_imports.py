"""Opening a local folder must stay cheap: none of the heavy libraries is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ckpt_tools.container as container
from tests.unit.container.folders import sharded

HEAVY = ("torch", "numpy", "jsonschema", "huggingface_hub", "yaml", "safetensors", "concurrent.futures")


def test_opening_a_folder_loads_nothing_heavy(tmp_path):
    sharded(tmp_path)
    script = (
        "import sys; from ckpt_tools.container import open_checkpoint, read_tensor, unwrap\n"
        "from ckpt_tools.container.fingerprint import fingerprint\n"
        f"c = open_checkpoint({str(tmp_path)!r}); read_tensor(c, 'a'); fingerprint(c); unwrap(c.tensors)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves():
    for name in container.__all__:
        assert getattr(container, name) is not None


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError, match="nothing_such"):
        container.nothing_such  # noqa: B018  # the access is the test
