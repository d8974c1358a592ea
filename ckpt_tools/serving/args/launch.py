"""A launch command as facts: engine, flags, environment, from whatever form it is written in."""

from __future__ import annotations

import json
import os.path
import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import UsageError
from ckpt_tools.model import EMPTY
from ckpt_tools.serving.args.manifests import containers
from ckpt_tools.serving.args.shell import Command, Word, commands
from ckpt_tools.serving.args.tables import ArgTable, Lookup, Option, has_table, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Flag:
    """A flag as given.

    Attributes:
        name: The row's own spelling (``--tp-size``), or the given one when no row fits.
        spelled: As written.
        values: What follows it.
        line: 1-based line in the text.
        option: The parser's row; ``None`` for an unknown or ambiguous flag.
        abbreviated: argparse completed it.
        candidates: What it could mean, when it is ambiguous.
    """

    name: str
    spelled: str
    values: tuple[str, ...]
    line: int
    option: Option | None = None
    abbreviated: bool = False
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """A launch command.

    Attributes:
        engine: ``sglang``, ``vllm`` or ``trtllm``.
        program: How it is started, e.g. ``python -m sglang.launch_server``.
        argv: The words after the program.
        version: The release that the image's tag names, or ``None``.
        table_version: The release whose parser was used.
        flags: Every flag in order; a repeated one is there twice.
        positional: Words that belong to no flag.
        env: Environment that the text sets for it.
        speculative: vLLM's speculative config, put together from JSON, dotted keys and ``--spec-…``.
        speculative_error: Why that JSON can't be read.
        line: 1-based line of the program.
        text: The text that it was read from.
        words: ``argv`` with its lines.
    """

    engine: str
    program: str
    argv: tuple[str, ...]
    version: str | None
    table_version: str | None
    flags: tuple[Flag, ...] = ()
    positional: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    speculative: Mapping[str, Any] | None = None
    speculative_error: str | None = None
    line: int = 1
    text: str = ""
    words: tuple[Word, ...] = ()

    def at(self, version: str) -> Launch:
        """The same command as the parser of another release reads it."""
        if not has_table(self.engine) or table(self.engine, version).version == self.table_version:
            return self
        used = table(self.engine, version)
        return replace(self, table_version=used.version, **_read(self.words, used))

    @property
    def unknown(self) -> tuple[Flag, ...]:
        """Flags that the parser has no row for."""
        return tuple(flag for flag in self.flags if flag.option is None)

    def flag(self, name: str) -> Flag | None:
        """The last flag with this spelling, an alias of it, or an abbreviation."""
        for flag in reversed(self.flags):
            if flag.name == name or (flag.option is not None and name in flag.option.flags):
                return flag
        return None

    def value(self, name: str) -> str | None:
        """The flag's only value, or ``None``."""
        flag = self.flag(name)
        return flag.values[0] if flag and flag.values else None

    def number(self, name: str) -> int | None:
        """The flag's value as an integer; ``None`` when absent or not one."""
        value = self.value(name)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            return None

    def given(self, name: str) -> bool:
        """Whether the flag is there."""
        return self.flag(name) is not None

    @property
    def model(self) -> str | None:
        """Path or id of the target."""
        if self.engine == "sglang":
            return self.value("--model-path")
        return self.value("--model") or (self.positional[0] if self.positional else None)

    @property
    def draft(self) -> str | None:
        """Path or id of the draft."""
        if self.engine == "sglang":
            return self.value("--speculative-draft-model-path")
        model = (self.speculative or {}).get("model")
        return model if isinstance(model, str) else None

    @property
    def tp(self) -> int | None:
        """Tensor-parallel size as given."""
        return self.number("--tp-size" if self.engine == "sglang" else "--tensor-parallel-size")

    @property
    def context_length(self) -> int | None:
        """Served length as given; vLLM's ``32k`` is understood."""
        if self.engine == "sglang":
            return self.number("--context-length")
        value = self.value("--max-model-len")
        return None if value is None else human_int(value)


_TAG = re.compile(r"(?:sglang|vllm)[\w./-]*:v?(?P<version>\d+\.\d+\.\d+(?:\.?post\d+|rc\d+)?)")
_VLLM_IMAGE = re.compile(r"(^|/)vllm-openai(:|@|$)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELLS = frozenset({"sh", "bash", "zsh", "dash"})
_SUFFIX = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1024, "M": 1024**2, "G": 1024**3}


def human_int(text: str) -> int | None:
    """vLLM's numbers: ``32768``, ``32k`` (decimal), ``32K`` (binary), ``1.5k``."""
    hit = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", text.strip())
    if hit is None or ("." in hit[1] and hit[2] not in ("k", "m", "g")):
        return None
    return int(float(hit[1]) * _SUFFIX.get(hit[2], 1))


def parse_launch(text: str, version: str | None = None) -> Launch:
    """The launch command in *text*: a shell line or script, compose or Kubernetes YAML, or a JSON list.

    Where several are found, the one that drafts is taken, else the first.

    Args:
        version: Release whose parser is meant; else the image's tag decides, else the newest known.

    Raises:
        UsageError: No server is launched in *text*.
    """
    found = parse_launches(text, version)
    if not found:
        raise UsageError(
            "no launch command of SGLang, vLLM or TensorRT-LLM in this text",
            "give the line with `python -m sglang.launch_server`, `sglang serve`, `vllm serve` or `trtllm-serve`",
        )
    drafting = [launch for launch in found if any("spec" in flag.name for flag in launch.flags)]
    return (drafting or found)[0]


def parse_launches(text: str, version: str | None = None) -> tuple[Launch, ...]:
    """Every launch command in *text*, in order."""
    stripped = text.lstrip()
    candidates: list[tuple[tuple[Word, ...], dict[str, str]]] = []
    if stripped.startswith("["):
        candidates = _from_json(text)
    if not candidates and re.search(r"^\s*-?\s*(command|args|entrypoint)\s*:", text, re.M):
        for container in containers(text):
            words = container.words
            if container.image:
                words = (Word(container.image, words[0].line if words else 1), *words)
            candidates.append((words, container.env))
    if not candidates:
        candidates = [(_words(command), dict(command.exported)) for command in commands(text)]
    out: list[Launch] = []
    for words, env in candidates:
        out += _launches(words, env, text, version)
    return tuple(out)


def _from_json(text: str) -> list[tuple[tuple[Word, ...], dict[str, str]]]:
    try:
        items = json.loads(text)
    except ValueError:
        return []
    if not isinstance(items, list):
        return []
    return [(tuple(Word(str(item), 1) for item in items), {})]


def _words(command: Command) -> tuple[Word, ...]:
    line = command.words[0].line if command.words else 1
    return (*(Word(f"{k}={v}", line) for k, v in command.assignments.items()), *command.words)


def _launches(words: Sequence[Word], env: dict[str, str], text: str, version: str | None) -> list[Launch]:
    for at, word in enumerate(words[:-1]):
        if word.text in ("-c", "-lc", "-ec") and at and os.path.basename(words[at - 1].text) in _SHELLS:
            script = words[at + 1]
            inner = commands(script.text, script.line)
            before = env | _environment(words[:at])
            tag = _tag(words[:at])
            return [
                replace(launch, version=launch.version or tag)
                for command in inner
                for launch in _launches(_words(command), before | command.exported, text, version or tag)
            ]
    program = _program(words)
    if program is None:
        return []
    engine, name, end = program
    prefix = words[:end]
    env = env | _environment(prefix)
    tag = _tag(prefix)
    wanted = version or tag
    rest = list(words[end:])
    line = words[end - 1].line if end else 1
    if not has_table(engine):
        return [
            Launch(engine, name, tuple(w.text for w in rest), tag, None, *_untabled(rest),
                   env=MappingProxyType(env), line=line, text=text)
        ]  # fmt: skip
    used = table(engine, wanted)
    return [
        Launch(
            engine=engine,
            program=name,
            argv=tuple(word.text for word in rest),
            version=tag,
            table_version=used.version,
            env=MappingProxyType(env),
            line=line,
            text=text,
            words=tuple(rest),
            **_read(rest, used),
        )
    ]


def _read(words: Sequence[Word], used: ArgTable) -> dict[str, Any]:
    """What a release's parser makes of the words."""
    flags, positional = _resolve(words, used)
    speculative, error = _speculative(flags) if used.engine == "vllm" else (None, None)
    return {
        "flags": flags,
        "positional": positional,
        "speculative": speculative,
        "speculative_error": error,
    }


def _program(words: Sequence[Word]) -> tuple[str, str, int] | None:
    """Engine, program, and the index of the first word after it."""
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        base = os.path.basename(text)
        following = texts[at + 1] if at + 1 < len(texts) else ""
        if text == "-m" and following in ("sglang.launch_server", "sglang"):
            end = at + 2 + (following == "sglang" and texts[at + 2 : at + 3] == ["serve"])
            return "sglang", f"python -m {following}", end
        if text == "sglang.launch_server" or (base == "launch_server.py" and "vllm" not in text):
            return "sglang", text, at + 1
        if base == "sglang" and following == "serve":
            return "sglang", "sglang serve", at + 2
        if text == "-m" and following.startswith("vllm.entrypoints"):
            end = at + 2 + (texts[at + 2 : at + 3] == ["serve"])
            return "vllm", f"python -m {following}", end
        if base == "vllm" and following == "serve":
            return "vllm", "vllm serve", at + 2
        if base == "trtllm-serve":
            return "trtllm", "trtllm-serve", at + 1 + (following == "serve")
    for at, text in enumerate(texts):
        if _VLLM_IMAGE.search(text) and any(t.startswith("-") for t in texts[at + 1 :]):
            return "vllm", "vllm serve", at + 1  # the image's entrypoint
    return None


def _tag(words: Sequence[Word]) -> str | None:
    for word in words:
        if hit := _TAG.search(word.text):
            return hit["version"].replace("-post", ".post")
    return None


def _environment(words: Sequence[Word]) -> dict[str, str]:
    """``K=V`` before the program, ``env K=V``, ``-e K=V`` and ``--env=K=V`` of docker."""
    out: dict[str, str] = {}
    for word in words:
        text = re.sub(r"^(--env=|-e(?=[A-Za-z_]\w*=))", "", word.text)
        if _ASSIGNMENT.match(text):
            name, _, value = text.partition("=")
            out[name] = value
    return out


def _untabled(words: Sequence[Word]) -> tuple[tuple[Flag, ...], tuple[str, ...]]:
    """Flags of an engine whose parser isn't known: what follows a flag and is none is its value."""
    flags: list[Flag] = []
    positional: list[str] = []
    for word in words:
        if word.text.startswith("-") and not re.fullmatch(r"-\d.*", word.text):
            name, equals, value = word.text.partition("=")
            flags.append(Flag(name, name, (value,) if equals else (), word.line))
        elif flags and not flags[-1].values:
            last = flags.pop()
            flags.append(Flag(last.name, last.spelled, (word.text,), last.line))
        else:
            positional.append(word.text)
    return tuple(flags), tuple(positional)


def _resolve(words: Sequence[Word], used: ArgTable) -> tuple[tuple[Flag, ...], tuple[str, ...]]:
    """Give every word its place, as argparse does."""
    flags: list[Flag] = []
    positional: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word.text):
            positional.append(word.text)
            continue
        spelled, equals, attached = word.text.partition("=")
        if used.engine == "vllm" and (level := re.fullmatch(r"-O=?(\d)", word.text)):
            spelled, equals, attached = "-O", "=", level[1]
        name, lookup = spelled, _look(used, spelled)
        option = lookup.option
        if option is not None:
            name = option.name if "." not in spelled else option.name + spelled[spelled.index(".") :]
        values: list[str] = [attached] if equals else []
        if not equals and (option is None or option.kind != "flag"):
            many = option is not None and option.nargs in ("*", "+") and "." not in spelled
            limit = (
                option.nargs
                if option is not None and isinstance(option.nargs, int)
                else (None if many else 1)
            )
            while at < len(words) and not _is_flag(words[at].text) and (limit is None or len(values) < limit):
                values.append(words[at].text)
                at += 1
        flags.append(
            Flag(name, spelled, tuple(values), word.line, option, lookup.abbreviated, lookup.candidates)
        )
    return tuple(flags), tuple(positional)


def _look(used: ArgTable, spelled: str) -> Lookup:
    if used.engine == "vllm":
        if spelled.startswith("--") and "." in spelled:
            return used.lookup(spelled.split(".", 1)[0])
        if spelled == "-O":
            return used.lookup("--optimization-level" if "--optimization-level" in used.options else "-O")
    return used.lookup(spelled)


def _is_flag(text: str) -> bool:
    """argparse takes a word for a flag when it begins with a dash and is no negative number and has no space."""
    return (
        text.startswith("-")
        and len(text) > 1
        and not re.fullmatch(r"-\d+(\.\d*)?|-\.\d+", text)
        and " " not in text.split("=")[0]
    )


def _speculative(flags: Sequence[Flag]) -> tuple[Mapping[str, Any] | None, str | None]:
    """vLLM's speculative config from everything that sets it; dashes in keys become underscores."""
    out: dict[str, Any] = {}
    given, error = False, None
    for flag in flags:
        if flag.option is None:
            continue
        if flag.option.dest == "speculative_config":
            given = True
            if "." in flag.name:
                _dotted(out, flag.name.split(".")[1:], flag.values[0] if flag.values else "")
                continue
            try:
                value = json.loads(flag.values[0]) if flag.values else None
            except ValueError as problem:
                error = f"{problem}"
                continue
            if not isinstance(value, dict):
                error = "not a JSON object"
                continue
            out |= {str(key).replace("-", "_"): item for key, item in value.items()}
        elif flag.option.dest in ("spec_method", "spec_model", "spec_tokens") and flag.values:
            given = True
            key = {"spec_method": "method", "spec_model": "model"}.get(
                flag.option.dest, "num_speculative_tokens"
            )
            value = flag.values[0]
            out[key] = int(value) if key == "num_speculative_tokens" and value.isdigit() else value
    return (MappingProxyType(out) if given else None), error


def _dotted(out: dict[str, Any], keys: list[str], text: str) -> None:
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text
    for key in keys[:-1]:
        out = out.setdefault(key.replace("-", "_"), {})
    out[keys[-1].rstrip("+").replace("-", "_")] = value
