"""The JSON Schemas: shipped in the wheel beside the code, or in the repository for an editable install."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "_schemas", _PACKAGE.parent / "schemas")


@cache
def load_schema(name: str) -> dict[str, Any]:
    """A schema by file name (a missing one is a packaging error: FileNotFoundError)."""
    for folder in _FOLDERS:
        file = folder / name
        if file.is_file():
            schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
            return schema
    raise FileNotFoundError(f"schema {name} is not in {' or '.join(map(str, _FOLDERS))}")


def violations(name: str, document: Any) -> Iterator[tuple[str, str]]:
    """(JSON pointer, message) of every place where a document doesn't fit a schema, in document order.

    jsonschema is imported here: reading headers doesn't need it.
    """
    import jsonschema

    validator = jsonschema.Draft202012Validator(load_schema(name))
    for error in sorted(validator.iter_errors(document), key=lambda e: list(map(str, e.absolute_path))):
        best = jsonschema.exceptions.best_match([error]) or error
        path = "".join(f"/{str(p).replace('~', '~0').replace('/', '~1')}" for p in best.absolute_path)
        yield path, best.message
