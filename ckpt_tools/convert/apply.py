"""Carrying out a plan: byte ranges and produced tensors to a folder that is there as a whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.layout import FileRange, OutFile, OutTensor, OutWeights, Produced
from ckpt_tools.container.read import iter_tensor
from ckpt_tools.convert.casts import cast_chunks
from ckpt_tools.convert.plan import plan_json
from ckpt_tools.convert.shards import INDEX, nbytes
from ckpt_tools.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.convert.plan import Plan, Tensor
    from ckpt_tools.model import Checkpoint

RECORD = "conversion.json"
SCHEMA = "ckpt-tools/conversion.v1"


def config_bytes(config: Mapping[str, Any]) -> bytes:
    """config.json as transformers writes it: two spaces, a final newline."""
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def record_bytes(plan: Plan, version: str) -> bytes:
    """``conversion.json``: what was converted, how, and by which version; enough to check and to reverse it."""
    verifier = plan.draft.facts.verifier
    record = {
        "schema": SCHEMA,
        "version": version,
        "source": {"path": plan.source.rstrip("/").rsplit("/", 1)[-1], "fingerprint": plan.fingerprint},
        "verifier": {"name_or_path": verifier.name, "architectures": list(verifier.architectures)}
        if verifier
        else None,
        "plan": {k: v for k, v in plan_json(plan).items() if k not in ("bytes_shared", "bytes_copied")},
    }
    return config_bytes(record)


def output_files(
    plan: Plan, checkpoint: Checkpoint, source: ByteSource, version: str
) -> tuple[OutWeights | OutFile, ...]:
    """Everything that the output folder will hold, weights first and config.json last.

    Raises:
        Unavailable: The input isn't on a local disk.
    """
    shards: dict[str, list[OutTensor]] = {}
    for tensor in plan.tensors:
        shards.setdefault(tensor.shard, []).append(_out(tensor, checkpoint, source))
    metadata = {**checkpoint.metadata, "format": "pt"}
    files: list[OutWeights | OutFile] = [OutWeights(name, tuple(ts), metadata) for name, ts in shards.items()]
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(nbytes(t) for t in plan.tensors)},
            "weight_map": {t.name: t.shard for t in sorted(plan.tensors, key=lambda t: t.name)},
        }
        files.append(OutFile(INDEX, config_bytes(index)))
    sizes = {f.name: f.size for f in checkpoint.files}
    for name in plan.carried:
        files.append(OutFile(name, FileRange(_local(source, name), 0, sizes[name])))
    files.append(OutFile(RECORD, record_bytes(plan, version)))
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


def _out(tensor: Tensor, checkpoint: Checkpoint, source: ByteSource) -> OutTensor:
    if tensor.data is not None:
        data = tensor.data
        return OutTensor(tensor.name, tensor.dtype, tensor.shape, Produced(len(data), lambda: iter((data,))))
    assert tensor.source is not None and tensor.source_dtype is not None
    info = checkpoint.tensors[tensor.source]
    path = _local(source, info.file)
    pickled = any(f.name == info.file and f.kind == "pickle" for f in checkpoint.files)
    if tensor.dtype == tensor.source_dtype and not pickled:
        return OutTensor(tensor.name, tensor.dtype, tensor.shape, FileRange(path, info.start, info.stop))
    native, before, after = tensor.source, tensor.source_dtype, tensor.dtype

    def chunks() -> Iterator[bytes]:
        raw = iter_tensor(checkpoint, native, source)
        return raw if before == after else cast_chunks(raw, before, after, native)

    return OutTensor(tensor.name, tensor.dtype, tensor.shape, Produced(nbytes(tensor), chunks))
