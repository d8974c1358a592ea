"""Read the JSON files beside the weights: config.json and what quantisers leave."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from ckpt_tools.container import jsontext
from ckpt_tools.container.codes import finding, shown
from ckpt_tools.container.header import LFS_MAGIC, lfs_damage
from ckpt_tools.model import Finding, Location

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = "config.json"
QUANT_CONFIG = "hf_quant_config.json"  # written by Model-Optimizer; both engines read it
MAX_CONFIG = 16 * 1024 * 1024


def parse_config(name: str, data: bytes) -> tuple[Mapping[str, Any] | None, str, tuple[Finding, ...]]:
    """A JSON object, the text that it was parsed from, and what is wrong with it.

    The object is also given when the text has a byte order mark or a key twice: its meaning is clear then.
    """

    def damaged(why: str, hint: str, line: int | None = None) -> Finding:
        return finding("FIL021", f"{name} {why}", Location(name, line=line), hint)

    if data.startswith(LFS_MAGIC):
        pointer = lfs_damage(data, name)
        return None, "", (finding(pointer.code, pointer.message, Location(name), pointer.hint),)
    if not data:
        return None, "", (damaged("is empty (0 bytes)", f"download or copy {name} again"),)
    if len(data) > MAX_CONFIG:
        return None, "", (damaged(f"is larger than {MAX_CONFIG:,} bytes", "this can be no model's config"),)
    findings: list[Finding] = []
    if data.startswith(codecs.BOM_UTF8):
        hint = f"remove it with `sed -i '1s/^\\xEF\\xBB\\xBF//' {name}`"
        findings.append(damaged("starts with a byte order mark, which JSON readers refuse", hint, 1))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "not UTF-8"
        line = data.count(b"\n", 0, error.start) + 1
        why = f"is {encoding} (byte {error.start}), expected UTF-8"
        return None, "", (damaged(why, f"save {name} as UTF-8", line),)
    try:
        document, repeated = jsontext.parse(text)
    except ValueError as error:
        at: int | None = getattr(error, "lineno", None)
        hint = f"open {name} at line {at}" if at else f"write {name} again"
        return None, text, (damaged(f"is not JSON ({error})", hint, at),)
    if not isinstance(document, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(document), "a bare value")
        return None, text, (damaged(f"is {kind}, expected a JSON object", f"write {name} again"),)
    if repeated:
        findings.extend(
            finding(
                "FIL022",
                f"{name} holds {shown(pointer)} twice (again at line {line}); the last one counts",
                Location(name, pointer, line=line),
                "keep one of the two",
            )
            for pointer, line in jsontext.duplicate_keys(text)[:8]
        )
    return document, text, tuple(findings)
