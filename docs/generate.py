"""Write the pages of docs/ that are made from the code: checks, formats, engines, targets, the command line.

python docs/generate.py            # write
python docs/generate.py --check    # exit status 1 when a page is missing, stale or left over
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli import commands
from ckpt_tools.cli.failures import EPILOG
from ckpt_tools.convert.repairs import REPAIRS
from ckpt_tools.engines import engines
from ckpt_tools.engines.history import facts, release_date, releases_read, transformers_pin
from ckpt_tools.formats import formats
from ckpt_tools.model import Engine
from ckpt_tools.render._pages import Page, known_codes, page_of
from ckpt_tools.targets import all_targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ckpt_tools.engines import EngineContract
    from ckpt_tools.engines.history import Fact
    from ckpt_tools.formats.base import Clue, Format, Variant
    from ckpt_tools.model import Target

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
MARK = "<!-- Made by docs/generate.py from the code. -->"
FOLDERS = ("checks", "formats")
LOCK = ROOT / "tests" / "meta" / "codes.lock"

#: The letters of a code, and what its family is about.
FAMILIES: Mapping[str, str] = {
    "FIL": "The container: truncated files, trailing bytes, pointers, index, shards, metadata",
    "SEC": "Pickles, remote code, paths, secrets",
    "CFG": "Fields of the config, architectures, model_type",
    "KEY": "Tensor names, prefixes, biases that the engine drops",
    "SHP": "Shapes and the geometry of attention",
    "HED": "embed_tokens, lm_head, tying",
    "VOC": "d2t, t2d, the draft's vocabulary",
    "CAP": "Captured layers and how they are counted",
    "NRM": "Norm flags and norm tensors",
    "ROP": "Rotary settings",
    "CTX": "Context length",
    "DTY": "Dtypes",
    "QNT": "Quantised targets and drafts",
    "LAY": "Number of layers, their types, windows",
    "ENG": "Whether this engine, at this version, serves this target with this draft",
    "TPX": "Tensor parallelism",
    "LCH": "The launch command",
    "LOG": "Start-up and decode logs",
    "PAR": "Parallel drafting: P-EAGLE, DFlash, DSpark",
    "MTP": "Bundled next-token weights",
    "VAL": "Values: NaN, zeros, dead inputs, untrained weights",
    "EQV": "Conversions that change the function",
    "ACC": "Acceptance",
    "HUB": "Pushing to the Hub",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 when a page isn't current"
    )
    check = parser.parse_args(arguments).check
    os.environ["CKPT_TARGETS"] = str(
        DOCS / "no-additions.json"
    )  # the registry's targets, not the reader's own
    pages = {DOCS / name: f"{text.rstrip()}\n" for name, text in made()}
    try:
        pages[LOCK] = locked(_text(LOCK) or "", {code: _page(code).name for code in known_codes()})
    except ValueError as error:
        sys.stderr.write(f"{LOCK.relative_to(ROOT)}: {error}\n")
        return 1
    stale = [path for path, text in pages.items() if _text(path) != text]
    left = [path for folder in FOLDERS for path in sorted((DOCS / folder).glob("*.md")) if path not in pages]
    for path in (*stale, *left):
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    if check:
        if stale or left:
            sys.stderr.write("these pages aren't current; run: python docs/generate.py\n")
        return int(bool(stale or left))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], "utf-8")
    for path in left:
        path.unlink()
    return 0


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


def locked(before: str, names: Mapping[str, str]) -> str:
    """The lock's text with new codes added; lines never go, so that a number is never used again.

    Raises:
        ValueError: A code has another name than the lock says.
    """
    known = dict(line.split(" ", 1) for line in before.splitlines())
    for number, name in names.items():
        if known.setdefault(number, name) != name:
            raise ValueError(
                f"{number} was {known[number]} and is {name}; a code is never reused: take a free number"
            )
    return "".join(f"{number} {name}\n" for number, name in sorted(known.items()))


def _page(code: str) -> Page:
    page = page_of(code)
    assert page is not None
    return page


def made() -> Iterator[tuple[str, str]]:
    """Every page: its name below docs/ and its text."""
    pages = [_page(code) for code in known_codes()]
    yield "checks/README.md", "\n".join(checks_index(pages))
    for page in pages:
        yield f"checks/{page.code}.md", "\n".join(check_page(page))
    yield "formats/README.md", "\n".join(formats_index())
    for name, form in formats().items():
        yield f"formats/{name}.md", "\n".join(format_page(form))
    yield "engines.md", "\n".join(engines_page())
    yield "repairs.md", "\n".join(repairs_page())
    yield "targets.md", "\n".join(targets_page())
    yield "cli.md", "\n".join(cli_page())


def plain(text: object) -> str:
    """Text that Markdown shows as it is, in a table's cell too."""
    shown = str(text).replace("\\", "\\\\").replace("\n", " ")
    shown = re.sub(r"[*<>|\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", lambda m: f"\\{m.group()}", shown)
    # What stands between backticks is code already and shown as it is.
    return re.sub(r"`[^`]*`", lambda m: re.sub(r"\\([*_<>\[\]~\\])", r"\1", m.group()), shown)


def code(text: object) -> str:
    """Text as code, in a table's cell too."""
    return "`" + str(text).replace("|", "\\|") + "`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table."""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


# -- checks ------------------------------------------------------------------------------------------------


def checks_index(pages: Sequence[Page]) -> Iterator[str]:
    """All codes, by family."""
    yield from (MARK, "", "# Checks", "")
    yield from (
        "Every finding has a code. A code is never reused: its meaning stays, and a check that goes leaves its number free. "
        "**error**: refused, or drafts wrongly, when served as asked; **warning**: works, but is likely not what you want, "
        "or depends on what the files don't say; **info**: worth knowing. `ckpt explain CODE` shows a page in the terminal.",
        "",
    )
    for letters, about in FAMILIES.items():
        inside = [p for p in pages if p.code.startswith(letters)]
        if inside:
            yield from (f"## {letters}: {about}", "")
            yield from table(
                ("code", "severity", "name", ""),
                ((f"[{p.code}]({p.code}.md)", p.severity, code(p.name), plain(p.title)) for p in inside),
            )


def check_page(page: Page) -> Iterator[str]:
    """One code."""
    yield from (MARK, "", f"# {page.code}: {plain(page.title)}", "")
    yield from (f"{code(page.name)} · {page.severity} · [all checks](README.md)", "")
    for heading, body in page.sections:
        yield from (f"## {heading}", "", f"> {plain(body)}" if heading == "Example" else plain(body), "")


# -- formats -----------------------------------------------------------------------------------------------


def formats_index() -> Iterator[str]:
    """All formats."""
    yield from (MARK, "", "# Formats", "")
    yield from (
        "How each framework writes a draft to disk. `ckpt inspect` says which one a folder is, and why.",
        "",
    )
    yield from table(
        ("format", "", "algorithms", "`fix-keys --to`"),
        (
            (
                f"[{name}]({name}.md)",
                plain(form.title),
                ", ".join(dict.fromkeys(v.algorithm for v in form.variants)) or "–",
                "yes" if form.write is not None else "no",
            )
            for name, form in formats().items()
        ),
    )


def format_page(form: Format) -> Iterator[str]:
    """One format: how it is recognised, named, counted, and what it can't carry."""
    yield from (MARK, "", f"# {plain(form.title)}", "")
    yield from (_about(form), "")
    for variant in form.variants:
        yield from _variant(variant)
    drops = {pattern: why for variant in form.variants for pattern, why in variant.drops}
    if drops:
        yield from ("## Never carried over", "")
        yield from table(("tensor", "why"), ((code(pattern), plain(why)) for pattern, why in drops.items()))
    yield from ("## Captured layers", "")
    if form.capture.paths:
        yield from table(
            ("field", "ids are", "certain"),
            (
                (code(path), _CONVENTIONS[convention], "yes" if sure else "no: the ids or the target decide")
                for path, convention, sure in zip(
                    form.capture.paths, form.capture.convention, form.capture.certain, strict=True
                )
            ),
        )
    else:
        yield from ("The format states none.", "")
    if form.limits:
        yield from ("## What it can't carry", "")
        yield from table(
            ("code", "severity", "what", "the way out"),
            (
                (
                    f"[{limit.code}](../checks/{limit.code}.md)",
                    limit.severity,
                    code(limit.name),
                    plain(limit.hint),
                )
                for limit in form.limits
            ),
        )
    yield from ("## References", "")
    yield from (f"- {plain(reference)}" for reference in form.references)


_CONVENTIONS = {
    "layer_output": "outputs of 0-based layers (id k: what leaves layer k)",
    "layer_input": "states that enter layers (id k: what leaves layer k-1; 0 is the embedding)",
}


def _about(form: Format) -> str:
    written = (
        f"`ckpt fix-keys --to {form.name}` writes it" if form.write is not None else "It is read, not written"
    )
    served = f"; its folders are for {form.engine}" if form.engine else ""
    schema = form.schema
    return f"{written}{served}. Its config: [{schema}](../../schemas/{schema}). [All formats](README.md)."


def _variant(variant: Variant) -> Iterator[str]:
    kind = f", {variant.layer_type} layers" if variant.layer_type else ""
    yield from (f"## {variant.algorithm}{kind}", "")
    yield from table(
        ("evidence", "what it says", "weight"),
        (
            *((_key(clue), plain(clue.says), "must") for clue in variant.must),
            *((_key(clue), plain(clue.says), str(clue.weight)) for clue in variant.hints),
        ),
    )
    rows = [r for r in variant.names.rows if r.native != r.canonical or r.also]
    if rows:
        yield from table(
            ("tensor", "canonical", ""),
            (
                (
                    code(row.native),
                    code(row.canonical),
                    "read only"
                    if row.read_only
                    else f"also written as {', '.join(map(code, row.also))}"
                    if row.also
                    else "",
                )
                for row in rows
            ),
        )
        yield from ("All other names are the canonical ones.", "")
    else:
        yield from ("All names are the canonical ones.", "")


def _key(clue: Clue) -> str:
    keys = " or ".join(code(k) for k in dict.fromkeys(clue.key.split(" | ")))
    half = "" if clue.kind == "any" else f"{clue.kind} "
    return f"{'no ' if clue.absent else ''}{half}{keys}"


# -- engines -----------------------------------------------------------------------------------------------


def engines_page() -> Iterator[str]:
    """Engines: contracts, recorded answers, and what came with which release."""
    yield from (MARK, "", "# Engines", "")
    yield from (
        "An engine's *contract* is what its draft loaders do, as data, at a version. A version without its own is answered by the "
        "nearest older one, and the report says so. Each contract is compared with the recorded answers of the engine's own loader, "
        "parameter by parameter; `fixtures/recorded/README.md` says how they were recorded. vLLM's are of the CPU build of 0.32.0, whose "
        "EAGLE-3 files equal 0.33.0's.",
        "",
    )
    recorded = _recorded()
    yield from table(
        ("engine", "contracts", "without a version", "recorded loads compared"),
        (
            (
                name,
                _versions(engine.contracts),
                engine.default,
                ", ".join(f"{count:,} of {version}" for version, count in recorded.get(name, {}).items())
                or "–",
            )
            for name, engine in engines().items()
        ),
    )
    for name, engine in engines().items():
        own = facts(name)
        if own and name == own[0].engine:
            yield from _history(name, engine, own)


def repairs_page() -> Iterator[str]:
    """What ``fix-keys --repair`` takes, and what each repair costs."""
    yield from (MARK, "", "# Repairs", "")
    yield from (
        "`ckpt fix-keys IN OUT --repair NAME` changes what a framework wrote or trained wrongly. None is made unless it is asked for, since "
        "the files can't tell whether they need it; `conversion.json` records it.",
        "",
    )
    rows = ((f"`{repair.name}`", plain(repair.help), plain(repair.error)) for repair in REPAIRS.values())
    yield from table(("repair", "does", "how exact"), rows)


def _versions(versions: Sequence[str]) -> str:
    return (
        ", ".join(versions)
        if len(versions) < 9
        else f"{versions[0]} to {versions[-1]} ({len(versions)} releases)"
    )


def _recorded() -> dict[str, dict[str, int]]:
    """Engine -> version -> number of recorded loads under fixtures/."""
    counts: dict[str, dict[str, int]] = {}
    for file in sorted((ROOT / "fixtures").glob("recorded*/**/*-*.json.gz")):
        data = json.loads(gzip.decompress(file.read_bytes()))
        if data["engine"] in engines():
            by_version = counts.setdefault(data["engine"], {})
            by_version[data["version"]] = by_version.get(data["version"], 0) + len(data["cases"])
    return counts


def _history(name: str, engine: EngineContract, own: Sequence[Fact]) -> Iterator[str]:
    releases = releases_read(name)
    newest = Engine(name, releases[-1], engine.default)
    yield from (f"## {name}: what came with which release", "")
    dates = ", ".join(f"{r} ({release_date(Engine(name, r, r)) or '?'})" for r in (releases[0], releases[-1]))
    pin = transformers_pin(newest)
    tail = f" {releases[-1]} pins transformers {pin}." if pin else ""
    yield from (f"{len(releases)} releases were read, {dates}.{tail}", "")
    yield from table(
        ("fact", "from", "to", "what"),
        (
            (code(fact.id), _first(fact, releases), fact.last or "newest", plain(fact.note))
            for fact in sorted(own, key=lambda f: f.id)
        ),
    )


def _first(fact: Fact, releases: Sequence[str]) -> str:
    if fact.first is None:
        return "no release"
    if fact.first == releases[0]:
        return f"{fact.first} or before"
    return fact.first if fact.exact else f"{fact.first} at the latest"


# -- targets -----------------------------------------------------------------------------------------------


def targets_page() -> Iterator[str]:
    """The registry."""
    known = all_targets()
    yield from (MARK, "", "# Targets", "")
    yield from (
        f"{len(known)} target models. `ckpt targets show ID` prints every value with its source; `ckpt targets add CONFIG` adds your "
        "own. A value that no source states is a dash, and checks that need it are skipped and say so.",
        "",
    )
    yield from table(
        ("id", "aliases", "class", "hidden", "layers", "vocabulary", "context", "repository"),
        (_target(t) for t in sorted(known, key=lambda t: t.id)),
    )


def _target(target: Target) -> tuple[str, ...]:
    numbers = (
        target.hidden_size,
        target.num_hidden_layers,
        target.vocab_size,
        target.max_position_embeddings,
    )
    return (
        code(target.id),
        ", ".join(map(code, target.aliases)) or "–",
        code(target.architectures[0]) if target.architectures else "–",
        *("–" if n is None else str(n) for n in numbers),
        plain(target.hf_repo or "–"),
    )


# -- the command line --------------------------------------------------------------------------------------


def cli_page() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield from (MARK, "", "# The command line", "")
    found = [_command(m.name) for m in pkgutil.iter_modules(commands.__path__)]
    listed = [pair for command in found for pair in _with_inner(f"ckpt {command.name}", command)]
    yield from table(
        ("command", ""),
        ((f"[{code(name)}](#{_anchor(name)})", plain(_first_sentence(command))) for name, command in listed),
    )
    yield from (plain(EPILOG), "")
    for name, command in listed:
        yield from _command_section(name, command)


def _command(module: str) -> click.Command:
    command: click.Command = importlib.import_module(f"{commands.__name__}.{module}").command
    return command


def _with_inner(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner, child in sorted(command.commands.items()):
            yield from _with_inner(f"{name} {inner}", child)


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _first_sentence(command: click.Command) -> str:
    return _help(command).partition("\n\n")[0]


def _help(command: click.Command) -> str:
    paragraphs = re.split(r"\n\s*\n", (command.help or "").replace("\b", "").strip())
    return "\n\n".join(" ".join(p.split()) for p in paragraphs)


def _command_section(name: str, command: click.Command) -> Iterator[str]:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    words = [_argument(a) for a in arguments]
    if isinstance(command, click.Group):
        words.append("COMMAND")
    yield from (f"## {name}", "", code(" ".join([name, *(["[OPTIONS]"] if options else []), *words])), "")
    for paragraph in _help(command).split("\n\n"):
        yield from (plain(paragraph), "")
    if options:
        yield from table(("option", ""), ((_spelled(o), _said(o)) for o in options))


def _argument(argument: click.Argument) -> str:
    if argument.metavar:
        return argument.metavar
    shown = "|".join(_choices(argument)) or str(argument.name).upper()
    return shown if argument.required else f"[{shown}]"


def _choices(parameter: click.Parameter) -> list[str]:
    kind = parameter.type
    return [str(c) for c in kind.choices] if isinstance(kind, click.Choice) else []


def _spelled(option: click.Option) -> str:
    shown = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return code(shown)
    value = option.metavar or "|".join(_choices(option)) or option.type.name.split()[0].upper()
    return code(f"{shown} {value}")


def _said(option: click.Option) -> str:
    text = plain(" ".join((option.help or "").split()))
    default = _default(option)
    marks = [
        m
        for m in ("repeatable" if option.multiple else "", f"default {code(default)}" if default else "")
        if m
    ]
    return f"{text} ({', '.join(marks)})" if marks else text


def _default(option: click.Option) -> Any:
    """The value shown as default; an option without one has ``None`` (click before 8.3) or a sentinel."""
    value = option.default
    return value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None


if __name__ == "__main__":
    sys.exit(main())
