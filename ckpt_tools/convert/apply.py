"""Carrying out a plan: byte ranges and produced tensors to a folder that is there as a whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.layout import FileRange, OutFile, OutTensor, OutWeights, Produced
from ckpt_tools.container.read import is_pickled, iter_tensor, read_tensor
from ckpt_tools.convert.casts import cast_chunks
from ckpt_tools.convert.plan import Part
from ckpt_tools.convert.record import record
from ckpt_tools.convert.shards import INDEX, nbytes
from ckpt_tools.errors import Unavailable
from ckpt_tools.model import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.convert.plan import Plan, Tensor
    from ckpt_tools.model import Checkpoint


def config_bytes(config: Mapping[str, Any]) -> bytes:
    """config.json as transformers writes it: two spaces, a final newline."""
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True)
class Input:
    """A checkpoint that tensors of the output come from, and where its bytes are."""

    checkpoint: Checkpoint
    source: ByteSource


def output_files(
    plan: Plan, draft: Input, version: str, target: Input | None = None
) -> tuple[OutWeights | OutFile, ...]:
    """Everything that the output folder will hold, weights first and config.json last.

    Args:
        draft: The conversion's input.
        target: The target that the draft is put into, when the plan stitches.

    Raises:
        Unavailable: An input isn't on a local disk.
    """
    inputs = {"draft": draft, **({"target": target} if target is not None else {})}
    home = target if target is not None and any(t.origin == "target" for t in plan.tensors) else draft
    shards: dict[str, list[OutTensor]] = {}
    for tensor in plan.tensors:
        shards.setdefault(tensor.shard, []).append(_out(tensor, inputs[tensor.origin]))
    metadata = {**home.checkpoint.metadata, "format": "pt"}
    files: list[OutWeights | OutFile] = [OutWeights(name, tuple(ts), metadata) for name, ts in shards.items()]
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(nbytes(t) for t in plan.tensors)},
            "weight_map": {t.name: t.shard for t in sorted(plan.tensors, key=lambda t: t.name)},
        }
        files.append(OutFile(INDEX, config_bytes(index)))
    sizes = {f.name: f.size for f in home.checkpoint.files}
    for name in plan.carried:
        files.append(OutFile(name, FileRange(_local(home.source, name), 0, sizes[name])))
    files.append(OutFile(RECORD, config_bytes(record(plan, version))))
    files.append(OutFile("config.json", config_bytes(plan.config)))
    return tuple(files)


def _local(source: ByteSource, name: str) -> Path:
    path = source.local(name)
    if path is None:
        raise Unavailable(
            f"{source.root}/{name} isn't on this machine; a conversion reads every byte",
            "fetch it first: hf download, then give the folder",
        )
    return path


def _out(tensor: Tensor, given: Input) -> OutTensor:
    if tensor.data is not None:
        data = tensor.data
        return OutTensor(tensor.name, tensor.dtype, tensor.shape, Produced(len(data), lambda: iter((data,))))
    assert tensor.source is not None and tensor.source_dtype is not None
    checkpoint, source = given.checkpoint, given.source
    parts = tensor.parts or (Part(tensor.source, 0, checkpoint.tensors[tensor.source].nbytes),)
    infos = [checkpoint.tensors[part.source] for part in parts]
    paths = {info.file: _local(source, info.file) for info in infos}
    pickled = any(f.name in paths and f.kind == "pickle" for f in checkpoint.files)
    if tensor.dtype == tensor.source_dtype and not pickled and tensor.rows is None and len(parts) == 1:
        start = infos[0].start
        span = FileRange(paths[infos[0].file], start + parts[0].start, start + parts[0].stop)
        return OutTensor(tensor.name, tensor.dtype, tensor.shape, span)
    before, after, name = tensor.source_dtype, tensor.dtype, tensor.source

    def chunks() -> Iterator[bytes]:
        raw = (
            _rows(tensor, checkpoint, source)
            if tensor.rows is not None
            else _joined(parts, checkpoint, source)
        )
        return raw if before == after else cast_chunks(raw, before, after, name)

    return OutTensor(tensor.name, tensor.dtype, tensor.shape, Produced(nbytes(tensor), chunks))


def _joined(parts: Iterable[Part], checkpoint: Checkpoint, source: ByteSource) -> Iterator[bytes]:
    """The parts' bytes, one after the other."""
    for part in parts:
        info = checkpoint.tensors[part.source]
        if (part.start, part.stop) == (0, info.nbytes):
            yield from iter_tensor(checkpoint, part.source, source)
        elif is_pickled(checkpoint, info):
            yield read_tensor(checkpoint, part.source, source)[part.start : part.stop]
        else:
            yield source.read(info.file, info.start + part.start, info.start + part.stop)


def _rows(tensor: Tensor, checkpoint: Checkpoint, source: ByteSource) -> Iterator[bytes]:
    """The source's rows in another order; a row is read when it is its turn."""
    assert tensor.source is not None and tensor.rows is not None
    info = checkpoint.tensors[tensor.source]
    width = info.nbytes // info.shape[0]
    whole = read_tensor(checkpoint, tensor.source, source) if is_pickled(checkpoint, info) else None
    for row in tensor.rows:
        start = row * width
        if whole is not None:
            yield whole[start : start + width]
        else:
            yield source.read(info.file, info.start + start, info.start + start + width)
