"""Open a checkpoint: find its files, read their headers, and say what is wrong with them."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.container import defects
from ckpt_tools.container.codes import finding, listed
from ckpt_tools.container.config import CONFIG, MAX_CONFIG, QUANT_CONFIG, parse_config
from ckpt_tools.container.header import Header, read_header
from ckpt_tools.container.index import MAX_INDEX, PICKLE_INDEX, SAFETENSORS_INDEX, Index, parse_index
from ckpt_tools.container.source import ByteSource, LocalSource
from ckpt_tools.container.weights import Choice, choose, how_to_merge, kind_of
from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.model import Checkpoint, FileInfo, Finding, Location, Severity, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_REMOTE_READERS = 16


def open_checkpoint(path: str | Path, source: ByteSource | None = None) -> Checkpoint:
    """Open a folder, a single weight file, or what a source serves.

    Reads headers, index and config, never tensor data (a pickle is mapped, not read). Defects become
    findings. ``extra`` may hold ``index`` (:class:`~ckpt_tools.container.index.Index`), ``hf_quant_config``,
    and, of a pickle whose state dict lies under a key, ``state_dict_key`` and ``training_state``.

    Args:
        path: What the user gave; with ``source``, only a label.
        source: Where the bytes are, when not in a local folder.

    Raises:
        InputError: There is nothing at the path, or it is no checkpoint at all.
        Unavailable: The weights are a pickle, and torch isn't installed or the source is remote.
    """
    with _collector_paused():
        if source is not None:
            return _Opening(str(path), source, single=None).run()
        local = Path(path)
        if local.is_file():
            if kind_of(local.name) == "other":
                raise InputError(
                    f"{path}: not a weight file (expected .safetensors, .bin or .pt)",
                    f"give the folder: {local.parent}" if local.name == CONFIG else None,
                )
            return _Opening(str(path), LocalSource(local), single=local.name).run()
        if not local.is_dir():
            raise InputError(
                f"{path}: no such file or folder",
                "give a checkpoint folder, a .safetensors, .bin or .pt file, or a Hub id (owner/name)",
            )
        return _Opening(str(path), LocalSource(local), single=None).run()


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
        choice = Choice(kind_of(self.single), (self.single,)) if self.single else choose(self.sizes)
        if CONFIG not in self.sizes:
            self.require_checkpoint(choice)
        config, config_text = self.config()
        metadata: Mapping[str, str] = {}
        if choice.kind == "pickle":
            tensors, infos = self.pickles(choice.names)
        elif choice.names or SAFETENSORS_INDEX in self.sizes:
            tensors, infos, metadata = self.safetensors(choice.names)
        else:
            tensors, infos = {}, ()
            self.add(
                "FIL001",
                f"{self.path}: config.json is there, but no *.safetensors, *.bin or *.pt file with weights",
                Location(CONFIG),
                "copy the weight files beside config.json, or give the folder that holds both",
            )
        if not self.single:
            self.findings.extend(defects.beside_weights(choice))
            self.findings.extend(defects.remote_code(self.sizes, config))
            loaded = {info.name for info in infos}
            others = [name for name in self.sizes if name not in loaded]
            infos = (*infos, *(FileInfo(name, self.sizes[name], "other") for name in others))
        return Checkpoint(
            path=self.path,
            root=self.source.root,
            config=config,
            config_text=config_text,
            tensors=tensors,
            files=infos,
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

    def whole(self, name: str, limit: int) -> bytes:
        """All bytes of a file, or one more than the limit; none of a link to nothing."""
        size = min(self.sizes[name], limit + 1)
        return self.source.read(name, 0, size) if size else b""

    def require_checkpoint(self, choice: Choice) -> None:
        """Tell a checkpoint that lacks its config.json from a folder that is no checkpoint."""
        weights = bool(choice.names) or SAFETENSORS_INDEX in self.sizes
        if weights and self.path != ".":
            return
        folder = self.source.local(CONFIG)
        if folder is not None and not weights:
            from ckpt_tools.container.training import training_output

            run = training_output(self.path)
            if run is not None:
                raise InputError(
                    f"{self.path}: the output folder of a {run.framework} training run, with "
                    f"{len(run.epochs)} checkpoint{'' if len(run.epochs) == 1 else 's'} inside; none was chosen",
                    run.line(),
                )
        what = (
            "no config.json in the current folder"
            if weights
            else "no checkpoint (no config.json, no weights)"
        )
        raise InputError(f"{self.path}: {what}", self.nearby(folder.parent if folder else None))

    def nearby(self, folder: Path | None) -> str:
        """What to open instead of a folder that is no checkpoint."""
        inner: list[str] = []
        if folder is not None:
            inner = sorted(entry.parent.name for entry in folder.glob(f"*/{CONFIG}"))
        if (merge := how_to_merge(self.sizes)) is not None:
            return merge
        if inner:
            return "open one of its folders: " + ", ".join(str(Path(self.path) / name) for name in inner[:3])
        return "give the folder that holds config.json and the weights"

    def config(self) -> tuple[Mapping[str, Any] | None, str]:
        if QUANT_CONFIG in self.sizes:
            quant, _, findings = parse_config(QUANT_CONFIG, self.whole(QUANT_CONFIG, MAX_CONFIG))
            self.findings.extend(findings)
            self.extra["hf_quant_config"] = quant
        if CONFIG not in self.sizes:
            self.add(
                "FIL020",
                f"{self.path}: no config.json beside the weights",
                Location(CONFIG),
                "copy the draft's config.json beside the weights",
                # A file that was asked for by itself may well be looked at by itself.
                Severity.WARNING if self.single else None,
            )
            return None, ""
        config, text, findings = parse_config(CONFIG, self.whole(CONFIG, MAX_CONFIG))
        self.findings.extend(findings)
        return config, text

    def index(self, name: str) -> Index | None:
        """The index of that name when there is one that can be read."""
        if self.single or name not in self.sizes:
            return None
        index, findings = parse_index(name, self.whole(name, MAX_INDEX))
        self.findings.extend(findings)
        self.extra["index"] = index
        return index

    def safetensors(
        self, names: Sequence[str]
    ) -> tuple[dict[str, TensorInfo], tuple[FileInfo, ...], Mapping[str, str]]:
        index = self.index(SAFETENSORS_INDEX)
        loaded: tuple[str, ...] = tuple(names)
        strays: tuple[str, ...] = ()
        if index is not None:
            # Engines read the files that the index names, among those that lie at the top of the folder.
            shards = index.shards
            loaded = tuple(shard for shard in shards if shard in names)
            strays = tuple(name for name in names if name not in set(shards))
            self.findings.extend(
                defects.missing_shards(index, [shard for shard in shards if shard not in names])
            )
        headers = self.headers(loaded)
        tensors: dict[str, TensorInfo] = {}
        twice: list[tuple[str, str, str]] = []
        for name, header in headers.items():
            if not tensors.keys().isdisjoint(header.tensors):
                twice.extend((key, tensors[key].file, name) for key in header.tensors if key in tensors)
            tensors.update(header.tensors)
            self.findings.extend(defects.header_defects(name, header, self.broken_link(name)))
        self.findings.extend(defects.in_two_files(twice))
        if index is not None:
            self.findings.extend(defects.index_mismatches(index, headers, tensors))
            self.findings.extend(defects.stray_files(index, self.headers(strays), tensors))
        elif not self.single and "index" not in self.extra:  # of a damaged index, only the damage is said
            self.findings.extend(defects.without_index(loaded, bool(twice)))
        self.findings.extend(defects.format_metadata(headers))
        infos = tuple(
            FileInfo(name, self.sizes[name], "safetensors", header.raw) for name, header in headers.items()
        )
        metadata = next((header.metadata for header in headers.values() if header.metadata), {})
        return tensors, infos, metadata

    def headers(self, names: Sequence[str]) -> dict[str, Header]:
        def read_one(name: str) -> Header:
            return read_header(
                lambda start, stop: self.source.read(name, start, stop), self.sizes[name], name
            )

        if len(names) > 1 and self.source.local(names[0]) is None:
            # Over the network, one header after the other would cost a round trip each.
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(_REMOTE_READERS) as pool:
                return dict(zip(names, pool.map(read_one, names), strict=True))
        return {name: read_one(name) for name in names}

    def broken_link(self, name: str) -> str | None:
        """Where a file leads to when it is a symbolic link to nothing."""
        local = self.source.local(name) if self.sizes[name] == 0 else None
        return (
            str(local.readlink()) if local is not None and local.is_symlink() and not local.exists() else None
        )

    def pickles(self, names: Sequence[str]) -> tuple[dict[str, TensorInfo], tuple[FileInfo, ...]]:
        from ckpt_tools.container import pickle

        index = self.index(PICKLE_INDEX)
        if index is not None:
            self.findings.extend(
                defects.missing_shards(index, [shard for shard in index.shards if shard not in names])
            )
        elif not self.single:
            self.findings.extend(defects.missing_numbers(names))
        self.add(
            "SEC001",
            f"{listed(names)} {'are pickle files' if len(names) > 1 else 'is a pickle file'}; "
            "convert to safetensors (read here with weights_only)",
            Location(names[0]),
            f"ckpt fix-keys {self.path} OUT",
        )
        tensors: dict[str, TensorInfo] = {}
        twice: list[tuple[str, str, str]] = []
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
                    twice.append((tensor.name, tensors[tensor.name].file, name))
                tensors[tensor.name] = tensor
            if content.key is not None:
                self.extra.setdefault("state_dict_key", content.key)
                self.extra.setdefault("training_state", content.scalars)
        self.findings.extend(defects.in_two_files(twice))
        return tensors, tuple(FileInfo(name, self.sizes[name], "pickle") for name in names)
