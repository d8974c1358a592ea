"""What identifies a checkpoint: its structure, cheaply, or its content, byte for byte."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from ckpt_tools.container.read import CHUNK, local_source

if TYPE_CHECKING:
    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.model import Checkpoint

_PIECE = 1024 * 1024  # bytes of a local file; they stay in a core's cache between the copy and the hash


def fingerprint(checkpoint: Checkpoint) -> str:
    """``sha256:…`` of the canonical config.json and, per weight file, its name, size and header bytes.

    Structure only: equal for two checkpoints whose values differ. White space and key order of config.json
    don't count, nor does the order of the files. A pickle has no header to count.
    """
    digest = hashlib.sha256()
    if checkpoint.config is None:
        config = checkpoint.config_text  # absent or unreadable: as it is
    else:
        config = json.dumps(checkpoint.config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    _add(digest, config.encode("utf-8", "surrogatepass"))
    for info in sorted(checkpoint.weight_files, key=lambda info: info.name):
        _add(digest, info.name.encode("utf-8", "surrogateescape"))
        _add(digest, str(info.size).encode())
        _add(digest, info.header)
    return f"sha256:{digest.hexdigest()}"


def content_hashes(checkpoint: Checkpoint, source: ByteSource | None = None) -> dict[str, str]:
    """``sha256:…`` of every weight file and config.json by name, as the Hub computes it for LFS files.

    Raises:
        InputError: A file can't be read.
    """
    from ckpt_tools.container.windows import workers

    source = source or local_source(checkpoint)
    names = [info.name for info in checkpoint.weight_files]
    sizes = {info.name: info.size for info in checkpoint.files}
    listed = source.list()
    if "config.json" in listed:
        names.append("config.json")
        sizes["config.json"] = listed["config.json"]
    # One file's hash is one chain of blocks, so only files can be hashed side by side.
    with workers() as pool:
        return dict(zip(names, pool.map(lambda name: _hash(source, name, sizes[name]), names), strict=True))


def _hash(source: ByteSource, name: str, size: int) -> str:
    digest = hashlib.sha256()
    step = CHUNK if source.local(name) is None else _PIECE
    for start in range(0, size, step):
        digest.update(source.read(name, start, min(start + step, size)))
    return f"sha256:{digest.hexdigest()}"


def _add(digest: hashlib._Hash, part: bytes) -> None:
    # Each part with its length, so that no two different lists of parts give the same bytes.
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
