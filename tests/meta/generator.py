"""docs/generate.py as a module (docs/ is no package)."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from types import ModuleType

from tests.conftest import ROOT


@lru_cache(maxsize=1)
def generator() -> ModuleType:
    """The generator of the pages."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
