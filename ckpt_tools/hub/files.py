"""Which files of a folder are the draft's own, what in them must not leave this machine, and their hashes."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.jsontext import line_of, parse
from ckpt_tools.errors import InputError
from ckpt_tools.hub.codes import finding
from ckpt_tools.model import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from ckpt_tools.model import Finding

CARD = "README.md"
REPORT = "ckpt_report.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
WEIGHTS = (".safetensors", *PICKLES)
_OWN = re.compile(
    r"config\.json|generation_config\.json|hf_quant_config\.json|quantiz\w*_config\.json"
    r"|.*\.safetensors|.*\.safetensors\.index\.json"
    r"|tokenizer.*\.(json|model)|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt"
    r"|chat_template\.(jinja|json)|spiece\.model|tiktoken\.model|.*\.tiktoken"
    r"|README\.md|LICENSE(\.\w+)?|LICENCE(\.\w+)?|NOTICE(\.\w+)?|USE_POLICY\.md"
)
# Never pushed, whatever --include says. The first row that matches gives the reason.
_NEVER: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\..*"), "hidden"),
    (re.compile(r".*(~|\.swp|\.tmp|\.bak|\.orig|\.lock|\.incomplete)"), "a temporary or backup file"),
    (
        re.compile(
            r".*(optimizer|optim_states|scheduler|rng_state|random_states|grad_scaler|scaler\.pt|training_state"
            r"|trainer_state|training_args|train_state|global_step|model_states|latest$|zero_to_fp32).*",
            re.IGNORECASE,
        ),
        "training state",
    ),
    (
        re.compile(r"events\.out\.tfevents.*|.*\.(log|out|err)|.*(wandb|tensorboard).*", re.IGNORECASE),
        "a log",
    ),
    (
        re.compile(
            r".*\.(pem|key|p12|pfx)|(stored_)?tokens?(\.(txt|json))?|credentials.*|secrets?\..*|id_(rsa|ed25519).*",
            re.IGNORECASE,
        ),
        "may hold a secret",
    ),
    (re.compile(r"ckpt_report\.json"), "written anew by each push"),
)
_SECRETS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a Hub token (hf_…)", re.compile(r"\bhf_[A-Za-z0-9]{20,}")),
    ("an AWS key (AKIA…)", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an AWS secret key", re.compile(r"(?i)aws_secret_access_key\W{1,5}[A-Za-z0-9/+=]{40}")),
    ("a private key", re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{50,})")),
    ("a GitLab token", re.compile(r"\bglpat-[\w-]{20,}")),
    ("a Slack token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{20,}")),
    ("a Google API key", re.compile(r"\bAIza[0-9A-Za-z_-]{35}")),
    ("an API key (sk-…)", re.compile(r"\bsk-(?:[a-z]+-)?[A-Za-z0-9_-]{40,}")),
    ("an address with a password", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"']+:[^\s/@\"']{3,}@")),
)
_PATH = re.compile(
    r"file://.+|~/.+|/(?:[^\s/<>|:*?\"]+/)+[^\s/<>|:*?\"]*|[A-Za-z]:[\\/](?![\\/])[^<>|*?\"\n]+|\\\\[^\s\\]+\\.+"
)
_RELATIVE = re.compile(r"\.{1,2}/.+")
# Keys that name the draft itself, and keys that name its target.
_OWN_NAME = frozenset({"/_name_or_path", "/name_or_path"})
_TARGET_NAME = re.compile(
    r"/(.*/)?(verifier/(name_or_path|name)|(target|base|verifier)_model(_name)?(_or)?(_path)?)"
    r"|/transformer_layer_config/_name_or_path|/(.*/)?base_model_name_or_path"
)
MAX_TEXT = 64 * 1024 * 1024
_CHUNK = 1 << 20


@dataclass(frozen=True)
class LeftOut:
    """A file that isn't pushed, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Rewrite:
    """A local path that is replaced in the pushed copy of a JSON file."""

    file: str
    pointer: str
    value: str | None


@dataclass(frozen=True)
class PushFile:
    """One file as it is to be on the Hub.

    Attributes:
        name: Path in the repository.
        size: Bytes.
        sha256: Hex digest of the bytes; the id of a large file on the Hub.
        blob_id: git's id of the bytes, the id of a small file on the Hub; "" over :data:`MAX_TEXT`, where
            the Hub keeps no file in git.
        source: The file on disk, or the bytes when they differ from it.
        state: What the Hub has: nothing, other bytes, or the same.
    """

    name: str
    size: int
    sha256: str
    blob_id: str
    source: Path | bytes
    state: str = "new"


def choose(names: Mapping[str, int], include: Collection[str] = ()) -> tuple[list[str], list[LeftOut]]:
    """Which files of a folder are the draft's own.

    Args:
        names: Name -> size of the files at the top of the folder.
        include: Names to add that aren't known to belong to a draft.

    Returns:
        The names that go, and the others with a reason each.
    """
    go: list[str] = []
    left: list[LeftOut] = []
    safetensors = any(name.endswith(".safetensors") for name in names)
    for name in sorted(names):
        never = next((reason for pattern, reason in _NEVER if pattern.fullmatch(name)), None)
        if never is not None:
            left.append(LeftOut(name, never))
        elif name.endswith((*PICKLES, ".bin.index.json")):
            if safetensors:
                left.append(LeftOut(name, "a pickle beside safetensors"))
            else:
                go.append(name)
        elif _OWN.fullmatch(name) or name in include:
            go.append(name)
        else:
            left.append(LeftOut(name, "code" if name.endswith(".py") else "not known to belong to a draft"))
    return go, left


def find_secrets(name: str, text: str) -> Iterator[Finding]:
    """Findings for what looks like a secret; the secret itself is in none of them."""
    for what, pattern in _SECRETS:
        match = pattern.search(text)
        if match:
            line = text.count("\n", 0, match.start()) + 1
            yield finding("HUB008", f"{name}:{line} holds {what}", Location(name, line=line))


def header_text(path: Path) -> str:
    """The header of a safetensors file as text; empty when it has none."""
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return ""
        (length,) = struct.unpack("<Q", start)
        return file.read(min(length, MAX_TEXT)).decode("utf-8", "replace")


def clean_config(
    name: str, text: str, base_model: str | None
) -> tuple[str, tuple[Rewrite, ...], tuple[Finding, ...]]:
    """A JSON file without paths of this machine.

    Args:
        name: The file's name.
        text: Its text.
        base_model: The target's Hub id, which replaces paths under keys that name the target.

    Returns:
        The text as it is to be pushed (the same object when nothing changes), what was replaced, and a
        finding for each path that nothing is known to replace.
    """
    try:
        value, _ = parse(text)
    except ValueError as error:
        message = f"{name} isn't JSON: {error}"
        raise InputError(message, f"repair it; `ckpt inspect` says more about {name}") from error
    rewrites: list[Rewrite] = []
    findings: list[Finding] = []

    def visit(node: Any, pointer: str) -> Any:
        if isinstance(node, dict):
            return {key: visit(item, f"{pointer}/{_escape(key)}") for key, item in node.items()}
        if isinstance(node, list):
            return [visit(item, f"{pointer}/{i}") for i, item in enumerate(node)]
        if not isinstance(node, str):
            return node
        names_target = _TARGET_NAME.fullmatch(pointer) is not None
        if not (
            _PATH.fullmatch(node) or ((names_target or pointer in _OWN_NAME) and _RELATIVE.fullmatch(node))
        ):
            return node
        if names_target and base_model is not None:
            rewrites.append(Rewrite(name, pointer, base_model))
            return base_model
        if pointer in _OWN_NAME:
            rewrites.append(Rewrite(name, pointer, None))
            return None
        location = Location(name, pointer, line=line_of(text, pointer))
        hint = (
            "give the target's Hub id with --base-model: it goes there instead"
            if names_target
            else f"edit {name}: a name that means something elsewhere, or null"
        )
        findings.append(
            finding("HUB009", f"{name} {pointer} is {node}, a path of this machine", location, hint)
        )
        return node

    cleaned = visit(value, "")
    if not rewrites:
        return text, (), tuple(findings)
    return json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n", tuple(rewrites), tuple(findings)


def hash_file(name: str, source: Path | bytes, advance: Callable[[int], None] | None = None) -> PushFile:
    """The file with its hashes; a file is read once, in chunks.

    Raises:
        InputError: It can't be read.
    """
    if isinstance(source, bytes):
        sha256, sha1 = hashlib.sha256(source), hashlib.sha1(b"blob %d\0" % len(source) + source)
        return PushFile(name, len(source), sha256.hexdigest(), sha1.hexdigest(), source)
    try:
        size = source.stat().st_size
        sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK):
                sha256.update(chunk)
                if size <= MAX_TEXT:
                    sha1.update(chunk)
                if advance is not None:
                    advance(len(chunk))
    except OSError as error:
        raise InputError(f"{source} can't be read ({error.strerror})", "check its permissions") from error
    return PushFile(name, size, sha256.hexdigest(), sha1.hexdigest() if size <= MAX_TEXT else "", source)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
