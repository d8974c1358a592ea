"""The real container over the Hub: a checkpoint there is what it is in a folder, for its headers' bytes."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest

from ckpt_tools.container.fingerprint import fingerprint
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.read import read_tensor
from ckpt_tools.errors import Unavailable
from ckpt_tools.hub.source import open_hub
from ckpt_tools.model import Severity
from tests.hubserver import HubServer, Sparse
from tests.hubserver.drafts import make_draft

if TYPE_CHECKING:
    from pathlib import Path


def sharded(
    shards: int, shard_bytes: int, tensors: int, first: dict[str, tuple[int, int]]
) -> dict[str, bytes | Sparse]:
    """A sparse BF16 checkpoint of equal shards; ``first`` are (rows, width) of tensors in the first shard."""
    files: dict[str, bytes | Sparse] = {"config.json": json.dumps({"hidden_size": 64}).encode()}
    weight_map = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        shapes = dict(first) if number == 1 else {}
        left = shard_bytes - sum(2 * rows * width for rows, width in shapes.values())
        each = left // tensors // 2
        shapes |= {f"layers.{number}.{i}.weight": (each, 1) for i in range(tensors)}
        head, at = {}, 0
        for tensor, (rows, width) in shapes.items():
            size = 2 * rows * width
            head[tensor] = {"dtype": "BF16", "shape": [rows, width], "data_offsets": [at, at + size]}
            at += size
            weight_map[tensor] = name
        text = json.dumps(head).encode()
        files[name] = Sparse(8 + len(text) + at, {0: struct.pack("<Q", len(text)) + text})
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return files


def test_the_hub_and_the_folder_give_the_same_checkpoint(hub: HubServer, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft")
    hub.store.seed("me/draft", {p.name: p.read_bytes() for p in folder.iterdir()})
    source, _ = open_hub("me/draft")
    there, here = open_checkpoint("me/draft", source), open_checkpoint(folder)
    assert there.root == source.root
    assert there.tensors == here.tensors
    assert there.config == here.config
    assert fingerprint(there) == fingerprint(here)
    for name in here.tensors:
        assert read_tensor(there, name, source) == read_tensor(here, name)


def test_five_gigabytes_are_described_for_under_a_megabyte(hub: HubServer) -> None:
    hub.store.seed("me/big", sharded(5, 1_000_000_000, 12, {}))
    source, _ = open_hub("me/big")
    checkpoint = open_checkpoint("me/big", source)
    assert {f.severity for f in checkpoint.findings} <= {Severity.INFO}
    assert checkpoint.total_bytes > 4_999_000_000
    assert hub.log.sent() < 1_000_000


def test_a_head_of_a_half_terabyte_target_costs_its_bytes(hub: HubServer) -> None:
    embed, head = (20_000, 1024), (3_000, 1024)
    first = {"model.embed_tokens.weight": embed, "lm_head.weight": head}
    hub.store.seed("big/target", sharded(61, 547_000_000_000 // 61, 1000, first))
    source, _ = open_hub("big/target")
    checkpoint = open_checkpoint("big/target", source)
    assert checkpoint.total_bytes > 546_900_000_000
    got = len(read_tensor(checkpoint, "lm_head.weight", source))
    rows = checkpoint.tensors["model.embed_tokens.weight"]
    got += len(source.read(rows.file, rows.start + 2048 * 7, rows.start + 2048 * 71))
    headers = sum(len(f.header) for f in checkpoint.weight_files)
    index = source.list()["model.safetensors.index.json"]
    assert headers > 61 * 64 * 1024, "as big as those of real shards, of which 64 KiB are read at once"
    assert got == 2 * 3_000 * 1024 + 64 * 2048
    assert hub.log.sent() < (got + headers + index) * 1.1


def test_a_pickle_on_the_hub_is_not_fetched_unasked(hub: HubServer) -> None:
    hub.store.seed("me/old", {"config.json": b"{}", "pytorch_model.bin": b"PK" * 100_000})
    source, _ = open_hub("me/old")
    with pytest.raises(Unavailable):
        open_checkpoint("me/old", source)
    assert hub.log.sent("/__cdn__/") < 20_000
