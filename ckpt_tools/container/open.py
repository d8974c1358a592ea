"""Open a checkpoint: find its files, read their headers, and say what is wrong with them."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.codes import finding
from ckpt_tools.container.config import CONFIG, MAX_CONFIG, QUANT_CONFIG, parse_config
from ckpt_tools.container.header import Header, read_header
from ckpt_tools.container.index import (
    MAX_INDEX,
    PICKLE_INDEX,
    SAFETENSORS_INDEX,
    Index,
    is_numbered,
    missing_parts,
    parse_index,
    same_set,
)
from ckpt_tools.container.source import ByteSource, LocalSource
from ckpt_tools.container.weights import Choice, choose, kind_of
from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.model import Checkpoint, FileInfo, Finding, Location, Severity, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_CONSOLIDATED = "consolidated"
_REMOTE_READERS = 16


def open_checkpoint(path: str | Path, source: ByteSource | None = None) -> Checkpoint:
    """Open a folder, a single weight file, or what a source serves.

    Reads headers, index and config, never tensor data (a pickle is mapped, not read). Defects become
    findings.

    Args:
        path: What the user gave; with ``source``, only a label.
        source: Where the bytes are, when not in a local folder.

    Raises:
        InputError: There is nothing at the path, or it is no checkpoint at all.
        Unavailable: The weights are a pickle and torch isn't installed.
    """
    with _collector_paused():
        return _open(path, source)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A target's headers make 100,000 objects and no cycle; collecting meanwhile doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open(path: str | Path, source: ByteSource | None) -> Checkpoint:
    if source is not None:
        return _Opening(str(path), source, single=None).run()
    local = Path(path)
    if local.is_file():
        if kind_of(local.name) == "other":
            raise InputError(
                f"{path}: not a weight file (expected .safetensors, .bin or .pt)",
                f"give the folder: {local.parent}" if local.name.endswith(".json") else None,
            )
        return _Opening(str(path), LocalSource(local), single=local.name).run()
    if not local.is_dir():
        raise InputError(
            f"{path}: no such file or folder",
            "give a checkpoint folder, a .safetensors, .bin or .pt file, or a Hub id (owner/name)",
        )
    return _Opening(str(path), LocalSource(local), single=None).run()


class _Opening:
    """One opening; collects findings on the way."""

    def __init__(self, path: str, source: ByteSource, single: str | None) -> None:
        self.path = path
        self.source = source
        self.single = single
        self.sizes = source.list()
        self.findings: list[Finding] = []
        self.extra: dict[str, Any] = {}

    def run(self) -> Checkpoint:
        choice = self.choice()
        self.require_checkpoint(choice)
        config, config_text = self.config()
        if not choice.names and SAFETENSORS_INDEX not in self.sizes:
            self.add(
                "FIL001",
                f"{self.path}: config.json is there, but no *.safetensors, *.bin or *.pt file with weights",
                Location(CONFIG),
                "copy the weight files beside config.json, or give the folder that holds both",
            )
        if choice.kind == "pickle":
            tensors, infos, metadata = self.pickles(choice)
        else:
            tensors, infos, metadata = self.safetensors(choice)
        self.leftovers(choice)
        self.remote_code(config)
        loaded = {info.name for info in infos}
        others = (FileInfo(name, size, "other") for name, size in self.sizes.items() if name not in loaded)
        return Checkpoint(
            path=self.path,
            root=self.source.root,
            config=config,
            config_text=config_text,
            tensors=tensors,
            files=(*infos, *(() if self.single else others)),
            metadata=metadata,
            findings=tuple(self.findings),
            extra=self.extra,
        )

    def add(
        self,
        code: str,
        message: str,
        location: Location,
        hint: str | None = None,
        severity: Severity | None = None,
    ) -> None:
        self.findings.append(finding(code, message, location, hint, severity=severity))

    # -- what is there

    def choice(self) -> Choice:
        if self.single is not None:
            return Choice(kind_of(self.single), (self.single,))
        return choose(self.sizes)

    def require_checkpoint(self, choice: Choice) -> None:
        """Tell a damaged checkpoint from a folder that is none."""
        if CONFIG in self.sizes:
            return
        if self.path == "." or not (choice.names or SAFETENSORS_INDEX in self.sizes):
            self.refuse_training_output()
            raise InputError(
                f"{self.path}: no checkpoint (no config.json and no weights)"
                if not choice.names
                else f"{self.path}: no config.json in the current folder",
                self.nearby(),
            )

    def refuse_training_output(self) -> None:
        if self.source.local(CONFIG) is None:
            return
        from ckpt_tools.container.training import training_output

        run = training_output(self.path)
        if run is not None:
            raise InputError(
                f"{self.path}: the output folder of a {run.framework} training run, with "
                f"{len(run.epochs)} checkpoint{'s' if len(run.epochs) != 1 else ''} inside; none was chosen",
                run.line(),
            )

    def nearby(self) -> str:
        """What to open instead of a folder that is no checkpoint."""
        names = sorted({name.split("/")[0] for name in self.sizes if "/" in name})
        folder = self.source.local("config.json")
        if folder is not None and folder.parent.is_dir():
            names = sorted(
                entry.name
                for entry in folder.parent.iterdir()
                if entry.is_dir() and (entry / CONFIG).is_file()
            )
        if names:
            return "open one of its folders: " + ", ".join(f"{self.path}/{name}" for name in names[:3])
        return "give the folder that holds config.json and the weights"

    def config(self) -> tuple[Mapping[str, Any] | None, str]:
        if QUANT_CONFIG in self.sizes and self.single is None:
            quant, _, findings = parse_config(QUANT_CONFIG, self.source.read(QUANT_CONFIG, 0, MAX_CONFIG + 1))
            self.findings.extend(findings)
            self.extra["hf_quant_config"] = quant
        if CONFIG not in self.sizes:
            what = self.single or self.path
            self.add(
                "FIL020",
                f"{what}: no config.json beside the weights",
                Location(CONFIG),
                "copy the draft's config.json beside the weights",
                # A file that was asked for by itself may well be looked at by itself.
                Severity.WARNING if self.single else None,
            )
            return None, ""
        config, text, findings = parse_config(CONFIG, self.source.read(CONFIG, 0, MAX_CONFIG + 1))
        self.findings.extend(findings)
        return config, text

    def leftovers(self, choice: Choice) -> None:
        if choice.leftovers:
            listed = _listed(choice.leftovers)
            plural = len(choice.leftovers) > 1
            self.add(
                "FIL023",
                f"{listed} {'are training files' if plural else 'is a training file'}, not weights; left out",
                Location(choice.leftovers[0]),
                "don't publish them or copy them to the server",
            )
        if choice.unread and choice.kind == "safetensors":
            self.add(
                "FIL018",
                f"{_listed(choice.unread)} {'are' if len(choice.unread) > 1 else 'is'} not read, because "
                f"{choice.names[0]} is there",
                Location(choice.unread[0]),
                "remove the copy that is out of date",
            )

    def remote_code(self, config: Mapping[str, Any] | None) -> None:
        modules = [name for name in self.sizes if name.endswith(".py") and "/" not in name]
        auto_map = bool(config and config.get("auto_map"))
        if self.single or not (modules or auto_map):
            return
        facts = ["config.json has auto_map"] if auto_map else []
        if modules:
            facts.append(f"the folder holds {_listed(modules)}")
        self.add(
            "SEC004",
            " and ".join(facts),
            Location(CONFIG, "/auto_map") if auto_map else Location(modules[0]),
            "leave --trust-remote-code off: drafts don't need the code",
        )

    # -- safetensors

    def safetensors(
        self, choice: Choice
    ) -> tuple[dict[str, TensorInfo], tuple[FileInfo, ...], Mapping[str, str]]:
        index = None if self.single else self.index(SAFETENSORS_INDEX)
        names = self.members(choice.names, index)
        headers = dict(zip(names, self.headers(names), strict=True))
        tensors: dict[str, TensorInfo] = {}
        twice: list[tuple[str, str, str]] = []
        for name, header in headers.items():
            if not tensors.keys().isdisjoint(header.tensors):
                twice.extend(
                    (tensor, tensors[tensor].file, name) for tensor in header.tensors if tensor in tensors
                )
            tensors.update(header.tensors)
            self.judge(name, header)
        if twice:
            tensor, first, second = twice[0]
            more = f" (and {len(twice) - 1} more tensors)" if len(twice) > 1 else ""
            self.add(
                "FIL017",
                f"{tensor} is in both {first} and {second}{more}; engines load both and one wins",
                Location(second, tensor=tensor),
                f"remove the file that should not be served ({first} or {second})",
            )
        if index is not None:
            self.extra["index"] = index
            self.compare_index(index, headers, tensors)
            self.strays(index, choice.names, tensors)
        elif not self.single:
            self.without_index(choice.names, bool(twice))
        sound = [header for header in headers.values() if not header.damage]
        self.format_metadata(headers)
        infos = tuple(
            FileInfo(name, self.sizes[name], "safetensors", header.raw) for name, header in headers.items()
        )
        metadata = next((header.metadata for header in sound if header.metadata), {})
        return tensors, infos, metadata

    def index(self, name: str) -> Index | None:
        if name not in self.sizes:
            return None
        index, findings = parse_index(name, self.source.read(name, 0, min(self.sizes[name], MAX_INDEX + 1)))
        self.findings.extend(findings)
        if index is None:
            self.extra["index"] = None
        return index

    def members(self, names: Sequence[str], index: Index | None) -> tuple[str, ...]:
        """The files that an engine reads: those of the index that are there, else all."""
        if index is None:
            return tuple(names)
        self.missing(index, (shard for shard in index.shards if shard not in names))
        return tuple(shard for shard in index.shards if shard in self.sizes and shard in names)

    def missing(self, index: Index, shards: Iterable[str]) -> None:
        absent = tuple(shards)
        if not absent:
            return
        gone = set(absent)
        counts = sum(1 for shard in index.weight_map.values() if shard in gone)
        verb = "are" if len(absent) > 1 else "is"
        deeper = " (engines don't look into subfolders)" if any("/" in shard for shard in absent) else ""
        self.add(
            "FIL008",
            f"{index.name} names {_listed(absent)}, which {verb} missing from the folder: "
            f"{counts} of {len(index.weight_map)} tensors{deeper}",
            Location(index.name, "/weight_map"),
            "finish the download or the copy, then compare sizes",
        )

    def headers(self, names: Sequence[str]) -> list[Header]:
        def read_one(name: str) -> Header:
            return read_header(
                lambda start, stop: self.source.read(name, start, stop), self.sizes[name], name
            )

        if len(names) > 1 and self.source.local(names[0]) is None:
            # Over the network, one header after the other would cost a round trip each.
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(_REMOTE_READERS) as pool:
                return list(pool.map(read_one, names))
        return [read_one(name) for name in names]

    def judge(self, name: str, header: Header) -> None:
        if damage := header.damage:
            message, hint = damage.message, damage.hint
            local = self.source.local(name) if damage.code == "FIL007" else None
            if local is not None and local.is_symlink() and not local.exists():
                message = f"{name} is a link to {local.readlink()}, which isn't there"
            self.add(damage.code, message, Location(name, tensor=damage.tensor), hint)
        if header.duplicates:
            self.add(
                "FIL028",
                f"{name} names {_listed(header.duplicates)} twice in its header; the last one counts",
                Location(name, tensor=header.duplicates[0]),
                "write the file again with the safetensors library",
            )

    def format_metadata(self, headers: Mapping[str, Header]) -> None:
        for name, header in headers.items():
            if header.damage:
                continue
            found = (header.metadata or {}).get("format")
            if found == "pt":
                continue
            what = "no __metadata__" if header.metadata is None else f"format {found!r:.40} in __metadata__"
            self.add(
                "FIL019",
                f"{name} has {what}, expected 'pt'",
                Location(name, "/__metadata__/format"),
                "engines don't ask for it; `ckpt fix-keys` writes it",
            )
            return

    def compare_index(
        self, index: Index, headers: Mapping[str, Header], tensors: Mapping[str, TensorInfo]
    ) -> None:
        """Whether each tensor is where the index says; shards that are missing or damaged say nothing."""
        found: dict[str, str] = {}
        for shard, header in headers.items():
            found.update(dict.fromkeys(header.tensors, shard))
        if found == index.weight_map:
            return
        readable = {name for name, header in headers.items() if not header.damage}
        complete = readable == set(index.shards)
        wrong: list[str] = []
        absent: list[str] = []
        for name, shard in index.weight_map.items():
            tensor = tensors.get(name)
            if tensor is None:
                if shard in readable:
                    absent.append(name)
            elif tensor.file != shard and shard in readable:
                wrong.append(name)
        if absent:
            first = absent[0]
            elsewhere = "" if complete else " (nor does any other shard that can be read)"
            self.add(
                "FIL012",
                f"{index.name} names {_listed(absent)} in {index.weight_map[first]}, which doesn't hold "
                f"{'it' if len(absent) == 1 else 'them'}{elsewhere}",
                Location(index.name, "/weight_map", first),
                "index and shards come from different exports: take both from the same one",
            )
        if wrong:
            first = wrong[0]
            self.add(
                "FIL011",
                f"{index.name} says that {first} is in {index.weight_map[first]}, but it is in "
                f"{tensors[first].file}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
                Location(index.name, "/weight_map", first),
                "write the index again from the shards",
            )
        if len(tensors) > len(index.weight_map) - len(absent) or absent:
            unnamed = [name for name in tensors if name not in index.weight_map]
            if unnamed:
                self.add(
                    "FIL014",
                    f"{len(unnamed)} tensor{'s' if len(unnamed) > 1 else ''} of the shards "
                    f"{'are' if len(unnamed) > 1 else 'is'} not in {index.name}: {_listed(unnamed)}",
                    Location(tensors[unnamed[0]].file, tensor=unnamed[0]),
                    "write the index again from the shards",
                )

    def strays(self, index: Index, names: Sequence[str], tensors: Mapping[str, TensorInfo]) -> None:
        """Safetensors files that the index doesn't name."""
        known = set(index.shards)
        for name in names:
            if name in known:
                continue
            if name.startswith(_CONSOLIDATED):
                self.consolidated(name, index.shards[0] if index.shards else index.name)
                continue
            (header,) = self.headers([name])
            hidden = [tensor for tensor in header.tensors if tensor not in tensors]
            if hidden and same_set(name, known):
                self.add(
                    "FIL013",
                    f"{name} is not in {index.name}, and neither are {len(hidden)} of its tensors "
                    f"({_listed(hidden)}): engines never load them",
                    Location(name, tensor=hidden[0]),
                    "write the index again from the shards, or remove it",
                )
                continue
            shared = len(header.tensors) - len(hidden)
            contents = (
                "it can't be read"
                if header.damage and not header.tensors
                else f"{shared} of its {len(header.tensors)} tensors are also in the shards"
            )
            self.add(
                "FIL009",
                f"{name} is not in {index.name} ({contents}); SGLang and vLLM leave it out, tools that glob "
                "load it over the shards",
                Location(name),
                f"remove {name}, or remove the index if this file is the one to serve",
            )

    def consolidated(self, name: str, beside: str) -> None:
        self.add(
            "FIL015",
            f"{name} lies beside {beside}; vLLM switches to it and to Mistral's names, others may load both",
            Location(name),
            f"move {name} out of the folder",
        )

    def without_index(self, names: Sequence[str], twice: bool) -> None:
        """What a folder without an index makes engines do: load every file."""
        if self.extra.get("index", True) is None:
            return  # the index is there, but damaged: one cause, one finding
        plain = [name for name in names if not name.startswith(_CONSOLIDATED)]
        if plain:
            for name in names:
                if name not in plain:
                    self.consolidated(name, plain[0])
        missing = missing_parts(plain)
        numbered = [name for name in plain if is_numbered(name)]
        if missing:
            self.add(
                "FIL008",
                f"{_listed(missing)} {'are' if len(missing) > 1 else 'is'} missing: the folder has "
                f"{len(numbered)} of {len(numbered) + len(missing)} shards and no {SAFETENSORS_INDEX}",
                Location(numbered[0] if numbered else plain[0]),
                "finish the download or the copy",
            )
        elif len(numbered) > 1:
            self.add(
                "FIL026",
                f"{len(numbered)} shards ({numbered[0]} …) without {SAFETENSORS_INDEX}",
                Location(numbered[0]),
                "engines read every *.safetensors; `ckpt fix-keys` writes an index",
            )
        others = len(plain) - len(numbered)
        if (others > 1 or (others and numbered)) and not twice:
            self.add(
                "FIL016",
                f"{_listed(plain)} lie side by side without an index; engines load and merge them all",
                Location(plain[1]),
                "keep the draft's own file, or write an index",
            )

    # -- pickles

    def pickles(
        self, choice: Choice
    ) -> tuple[dict[str, TensorInfo], tuple[FileInfo, ...], Mapping[str, str]]:
        from ckpt_tools.container import pickle

        tensors: dict[str, TensorInfo] = {}
        names = choice.names
        index = None if self.single else self.index(PICKLE_INDEX)
        if index is not None:
            self.extra["index"] = index
            self.missing(index, (shard for shard in index.shards if shard not in names))
        elif not self.single and (missing := missing_parts(names)):
            self.add(
                "FIL008",
                f"{_listed(missing)} {'are' if len(missing) > 1 else 'is'} missing from the folder",
                Location(names[0]),
                "finish the download or the copy",
            )
        self.add(
            "SEC001",
            f"{_listed(names)} {'are pickle files' if len(names) > 1 else 'is a pickle file'}; "
            "convert to safetensors (read here with weights_only)",
            Location(names[0]),
            f"ckpt fix-keys {self.path} OUT",
        )
        for name in names:
            local = self.source.local(name)
            if local is None:
                raise Unavailable(
                    f"{self.path}: {name} is a pickle, which can't be read over byte ranges",
                    "download the checkpoint with `hf download`, then give its folder",
                )
            content = pickle.read_pickle(local, name, self.sizes[name])
            self.findings.extend(content.findings)
            for tensor in content.tensors:
                if tensor.name in tensors:
                    first = tensors[tensor.name].file
                    self.add(
                        "FIL017",
                        f"{tensor.name} is in both {first} and {name}; engines load both and one wins",
                        Location(name, tensor=tensor.name),
                        f"remove the file that should not be served ({first} or {name})",
                    )
                tensors[tensor.name] = tensor
            if content.key is not None:
                self.extra.setdefault("state_dict_key", content.key)
                self.extra.setdefault("training_state", content.scalars)
        infos = tuple(FileInfo(name, self.sizes[name], "pickle") for name in names)
        return tensors, infos, {}


def _listed(names: Sequence[str]) -> str:
    """Up to three names of files or tensors, and how many more there are."""
    shown = ", ".join(
        name if name.isprintable() and len(name) <= 160 else f"{name!r:.160}" for name in names[:3]
    )
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
