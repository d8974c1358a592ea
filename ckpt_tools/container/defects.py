"""What is wrong with a checkpoint's files as a whole: pure functions over what was read, one finding per cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.container.codes import finding, listed, shown
from ckpt_tools.container.config import CONFIG
from ckpt_tools.container.index import SAFETENSORS_INDEX, is_numbered, missing_parts, same_set
from ckpt_tools.model import Finding, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ckpt_tools.container.header import Header
    from ckpt_tools.container.index import Index
    from ckpt_tools.container.weights import Choice
    from ckpt_tools.model import TensorInfo

_CONSOLIDATED = "consolidated"


def header_defects(name: str, header: Header, broken_link: str | None = None) -> Iterator[Finding]:
    """What is wrong with one safetensors file.

    Args:
        name: The file.
        header: As read.
        broken_link: Where the file leads to, when it is a symbolic link to nothing.
    """
    if damage := header.damage:
        message = damage.message
        if broken_link is not None:
            message = f"{shown(name)} is a link to {shown(broken_link)}, which isn't there"
        yield finding(damage.code, message, Location(name, tensor=damage.tensor), damage.hint)
    if header.duplicates:
        yield finding(
            "FIL028",
            f"{shown(name)} names {listed(header.duplicates)} twice in its header; the last one counts",
            Location(name, tensor=header.duplicates[0]),
            "write the file again with the safetensors library",
        )


def format_metadata(headers: Mapping[str, Header]) -> Iterator[Finding]:
    """The first file whose metadata doesn't say ``format: pt``."""
    for name, header in headers.items():
        if header.damage:
            continue
        found = (header.metadata or {}).get("format")
        if found == "pt":
            continue
        what = "no __metadata__" if header.metadata is None else f"format {found!r:.40} in __metadata__"
        yield finding(
            "FIL019",
            f"{shown(name)} has {what}, expected 'pt'",
            Location(name, "/__metadata__/format"),
            "engines don't ask for it; `ckpt fix-keys` writes it",
        )
        return


def in_two_files(twice: Sequence[tuple[str, str, str]]) -> Iterator[Finding]:
    """Tensors that two loaded files hold: (tensor, first file, second file)."""
    if not twice:
        return
    tensor, first, second = twice[0]
    files = f"{shown(first)} and {shown(second)}"
    more = f" (and {len(twice) - 1} more tensors)" if len(twice) > 1 else ""
    yield finding(
        "FIL017",
        f"{shown(tensor)} is in both {files}{more}; engines load both and one wins",
        Location(second, tensor=tensor),
        f"remove the one that should not be served of {files}",
    )


def missing_shards(index: Index, absent: Sequence[str]) -> Iterator[Finding]:
    """Shards that the index names and the folder lacks."""
    if not absent:
        return
    gone = set(absent)
    count = sum(1 for shard in index.weight_map.values() if shard in gone)
    deeper = " (engines don't look into subfolders)" if any("/" in shard for shard in absent) else ""
    yield finding(
        "FIL008",
        f"{index.name} names {listed(absent)}, which {'are' if len(absent) > 1 else 'is'} missing from the "
        f"folder: {count} of {len(index.weight_map)} tensors{deeper}",
        Location(index.name, "/weight_map"),
        "finish the download or the copy, then compare sizes",
    )


def index_mismatches(
    index: Index, headers: Mapping[str, Header], tensors: Mapping[str, TensorInfo]
) -> Iterator[Finding]:
    """Tensors that aren't where the index says. Shards that are missing or damaged say nothing."""
    found: dict[str, str] = {}
    for shard, header in headers.items():
        found.update(dict.fromkeys(header.tensors, shard))
    if found == index.weight_map:
        return
    readable = {name for name, header in headers.items() if not header.damage}
    absent = [name for name, shard in index.weight_map.items() if shard in readable and name not in tensors]
    wrong = [
        name
        for name, shard in index.weight_map.items()
        if shard in readable and name in tensors and tensors[name].file != shard
    ]
    unnamed = [name for name in tensors if name not in index.weight_map]
    if absent:
        first = absent[0]
        yield finding(
            "FIL012",
            f"{index.name} names {listed(absent)} in {shown(index.weight_map[first])}, "
            f"which doesn't hold {'it' if len(absent) == 1 else 'them'}; no other shard does",
            Location(index.name, "/weight_map", first),
            "index and shards come from different exports: take both from the same one",
        )
    if wrong:
        first = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield finding(
            "FIL011",
            f"{index.name} says that {shown(first)} is in {shown(index.weight_map[first])}, "
            f"but it is in {shown(tensors[first].file)}{more}",
            Location(index.name, "/weight_map", first),
            "write the index again from the shards",
        )
    if unnamed:
        yield finding(
            "FIL014",
            f"the shards hold {len(unnamed)} tensor{'s' if len(unnamed) > 1 else ''} that {index.name} doesn't "
            f"name: {listed(unnamed)}",
            Location(tensors[unnamed[0]].file, tensor=unnamed[0]),
            "write the index again from the shards",
        )


def stray_files(
    index: Index, strays: Mapping[str, Header], tensors: Mapping[str, TensorInfo]
) -> Iterator[Finding]:
    """Safetensors files that the index doesn't name; ``tensors`` are those of the files that it names."""
    shards = index.shards
    for name, header in strays.items():
        if name.startswith(_CONSOLIDATED):
            yield _consolidated(name, shards[0] if shards else index.name)
            continue
        hidden = [tensor for tensor in header.tensors if tensor not in tensors]
        if hidden and same_set(name, shards):
            yield finding(
                "FIL013",
                f"{shown(name)} is not in {index.name}, and neither are {len(hidden)} of its tensors "
                f"({listed(hidden)}): engines never load them",
                Location(name, tensor=hidden[0]),
                "write the index again from the shards, or remove it",
            )
            continue
        contents = (
            f"{len(header.tensors) - len(hidden)} of its {len(header.tensors)} tensors are in the shards, too"
        )
        if header.damage:
            contents = "it is damaged, too"
        yield finding(
            "FIL009",
            f"{shown(name)} is not in {index.name} ({contents}); SGLang and vLLM leave it out, tools that glob "
            "load it over the shards",
            Location(name),
            f"remove {shown(name)}, or remove the index if this file is the one to serve",
        )


def without_index(names: Sequence[str], twice: bool) -> Iterator[Finding]:
    """What engines do to safetensors files without an index: load them all.

    Args:
        names: The files.
        twice: Whether some tensor is in two of them, which is reported by itself.
    """
    plain = [name for name in names if not name.startswith(_CONSOLIDATED)]
    if not plain:
        return
    for name in names:
        if name.startswith(_CONSOLIDATED):
            yield _consolidated(name, plain[0])
    numbered = [name for name in plain if is_numbered(name)]
    missing = missing_parts(plain)
    yield from missing_numbers(plain)
    if len(numbered) > 1 and not missing:
        yield finding(
            "FIL026",
            f"{len(numbered)} shards ({shown(numbered[0])} …) without {SAFETENSORS_INDEX}",
            Location(numbered[0]),
            "engines read every *.safetensors; `ckpt fix-keys` writes an index",
        )
    others = len(plain) - len(numbered)
    if (others > 1 or (others and numbered)) and not twice:
        yield finding(
            "FIL016",
            f"{listed(plain)} lie side by side without an index; engines load and merge them all",
            Location(plain[1]),
            "keep the draft's own file, or write an index",
        )


def missing_numbers(names: Sequence[str]) -> Iterator[Finding]:
    """Shards that the numbers in the names of the others ask for."""
    missing = missing_parts(names)
    if missing:
        there = sum(map(is_numbered, names))
        yield finding(
            "FIL008",
            f"{listed(missing)} {'are' if len(missing) > 1 else 'is'} missing: "
            f"{there} of {there + len(missing)} shards are there, and no index",
            Location(names[0]),
            "finish the download or the copy",
        )


def beside_weights(choice: Choice) -> Iterator[Finding]:
    """Files beside the weights that look like weights and aren't read."""
    if choice.leftovers:
        several = len(choice.leftovers) > 1
        yield finding(
            "FIL023",
            f"{listed(choice.leftovers)} {'are training files' if several else 'is a training file'}, "
            "not weights; left out",
            Location(choice.leftovers[0]),
            "don't publish them or copy them to the server",
        )
    if choice.unread and choice.kind == "safetensors":
        yield finding(
            "FIL018",
            f"{listed(choice.unread)} {'are' if len(choice.unread) > 1 else 'is'} not read, "
            f"because {shown(choice.names[0])} is there",
            Location(choice.unread[0]),
            "remove the copy that is out of date",
        )


def remote_code(names: Iterable[str], config: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Python code that an engine would run when it is told to trust it."""
    modules = [name for name in names if name.endswith(".py") and "/" not in name]
    auto_map = bool(config and config.get("auto_map"))
    facts = ["config.json has auto_map"] if auto_map else []
    if modules:
        facts.append(f"the folder holds {listed(modules)}")
    if facts:
        yield finding(
            "SEC004",
            " and ".join(facts),
            Location(CONFIG, "/auto_map") if auto_map else Location(modules[0]),
            "leave --trust-remote-code off: drafts don't need the code",
        )


def _consolidated(name: str, beside: str) -> Finding:
    return finding(
        "FIL015",
        f"{shown(name)} lies beside {shown(beside)}; vLLM switches to it and to Mistral's names, "
        "others may load both",
        Location(name),
        f"move {shown(name)} out of the folder",
    )
