"""Fuzz what opens checkpoints: headers, indexes and configs.

    python -m tests.fuzz.headers --count 1000000 --seed 1
    python -m tests.fuzz.headers --atheris CORPUS -max_total_time=600      # coverage-guided, needs atheris

Inputs are valid files changed in their structure, in their text, or in their bytes; an input whose outcome is new is
kept and changed further. For every input: nothing but a finding or a documented error, no more than a second of
processor time, no more than 500 MB, and the same verdict on a header as the safetensors library's.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from ckpt_tools.container import jsontext
from ckpt_tools.container.fingerprint import fingerprint
from ckpt_tools.container.header import read_header
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.wrappers import unwrap
from ckpt_tools.errors import CkptError
from ckpt_tools.model import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SECONDS = 1.0
MAX_MEGABYTES = 500
_CORPUS = 400  # kept inputs per kind
_LIBRARY_WRAPS = 2**63  # offsets from here on may wrap around in the library


class MemorySource:
    """Files in memory, as a :class:`~ckpt_tools.container.source.ByteSource`."""

    root = "memory"

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def list(self) -> dict[str, int]:
        """Name -> size."""
        return {name: len(data) for name, data in self.files.items()}

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop``."""
        return self.files[name][start:stop]

    def local(self, name: str) -> Path | None:  # the protocol's signature
        """Nothing lies on a disk."""
        return None


@dataclass
class Outcome:
    """What a run found."""

    inputs: int = 0
    accepted: int = 0
    kept: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)


# -- valid inputs


def safetensors_bytes(document: Any, data: int) -> bytes:
    """A file with that header and that many zero bytes of data."""
    raw = json.dumps(document, separators=(",", ":")).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


def valid_header(rng: random.Random) -> tuple[dict[str, Any], int]:
    """A header as writers make it, and the size of its data."""
    document: dict[str, Any] = {}
    if rng.random() < 0.7:
        document["__metadata__"] = {"format": "pt"}
    offset = 0
    for index in range(rng.randrange(6)):
        dtype = rng.choice(list(DTYPE_BITS))
        shape = [rng.choice((0, 1, 2, 3, 8)) for _ in range(rng.randrange(4))]
        bits = DTYPE_BITS[dtype]
        for dim in shape:
            bits *= dim
        if bits % 8:
            shape, bits = [8], 8 * DTYPE_BITS[dtype]
        document[rng.choice(("fc.weight", "d2t", "é", f"layers.{index}.x"))] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + bits // 8],
        }
        offset += bits // 8
    return document, offset


_INDEX: dict[str, Any] = {
    "metadata": {"total_size": 8},
    "weight_map": {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors",
    },
}
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "auto_map": {"": "config.X"},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
}


# -- changes

_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, 10**30, 0.5, 1e308, "", "F32", "f32",
    "../x", "/etc/passwd", "a/b.safetensors", "model-00001-of-00002.safetensors", "\\\\host\\x", "C:x", "\0", "é",
    "x" * 300, [], {}, [0], [[[]]], {"a": {}}, [1, 2], [2**40, 2**40, 0], [2**64 - 1] * 40,
)  # fmt: skip
_TEXTS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\ud800", b"\\u0000", b"null", b"NaN", b"-0", b"1e999",
    b"Infinity", b"0x10", b'"a":', b'"__metadata__":{},', b'"dtype":"F32",', b"\xef\xbb\xbf", b"\xff", b"\0", b" ",
    b"\n", b"9" * 400, b"[" * 200, b'{"a":' * 130, b"version https://git-lfs.github.com/spec/v1\n", b"PK\x03\x04",
)  # fmt: skip


def change_structure(document: Any, rng: random.Random) -> Any:
    """Replace, drop, add or duplicate something somewhere in a JSON document."""
    if isinstance(document, dict) and document and rng.random() < 0.85:
        changed = dict(document)
        key = rng.choice(list(changed))
        roll = rng.random()
        if roll < 0.55:
            changed[key] = change_structure(changed[key], rng)
        elif roll < 0.7:
            del changed[key]
        elif roll < 0.85:
            changed[str(rng.choice(_ODD))] = changed[key]
        else:
            changed[key] = rng.choice(_ODD)
        return changed
    if isinstance(document, list) and document and rng.random() < 0.85:
        items = list(document)
        at = rng.randrange(len(items))
        roll = rng.random()
        if roll < 0.6:
            items[at] = change_structure(items[at], rng)
        elif roll < 0.75:
            del items[at]
        elif roll < 0.9:
            items.insert(at, rng.choice(_ODD))
        else:
            items.reverse()
        return items
    if isinstance(document, int) and not isinstance(document, bool) and rng.random() < 0.6:
        return document + rng.choice((-8, -1, 1, 8))
    return rng.choice(_ODD)


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, insert, remove, repeat or cut some bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        roll = rng.random()
        if roll < 0.3 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif roll < 0.55:
            out[at:at] = rng.choice(_TEXTS)
        elif roll < 0.7:
            del out[at : at + rng.choice((1, 2, 8, 64))]
        elif roll < 0.85:
            out[at:at] = out[max(0, at - rng.choice((4, 16, 64))) : at]
        elif roll < 0.95:
            del out[at:]
        else:
            out[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(out[:200_000])


def frame(raw: bytes, data: int, rng: random.Random) -> bytes:
    """A header's bytes as a file; its length is usually the true one."""
    length = len(raw)
    if rng.random() < 0.05:
        length = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1, 100_000_001)) % 2**64
    return length.to_bytes(8, "little") + raw + bytes(max(0, data))


# -- one input of each kind

Files = dict[str, bytes]


def header_input(rng: random.Random, kept: list[Files]) -> Files:
    """A safetensors file beside a config."""
    if kept and rng.random() < 0.5:
        data = change_bytes(rng.choice(kept)["model.safetensors"], rng)
    else:
        document: Any
        document, size = valid_header(rng)
        for _ in range(rng.randrange(4)):
            document = change_structure(document, rng)
        raw = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        if rng.random() < 0.4:
            raw = change_bytes(raw, rng)
        data = frame(raw, size + rng.choice((0, 0, 0, 0, -1, 1, 16)), rng)
    return {"config.json": b"{}", "model.safetensors": data}


def index_input(rng: random.Random, kept: list[Files]) -> Files:
    """An index beside its shards."""
    name = "model.safetensors.index.json"
    if kept and rng.random() < 0.5:
        index = change_bytes(rng.choice(kept)[name], rng)
    else:
        document: Any = _INDEX
        for _ in range(rng.randrange(1, 5)):
            document = change_structure(document, rng)
        index = json.dumps(document, indent=rng.choice((None, 2))).encode()
        if rng.random() < 0.4:
            index = change_bytes(index, rng)
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    shards = {
        "model-00001-of-00002.safetensors": safetensors_bytes({"a": entry}, 4),
        "model-00002-of-00002.safetensors": safetensors_bytes(
            {"b": entry, "c": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, 8
        ),
        "consolidated.safetensors": safetensors_bytes({"a": entry}, 4),
        "model.safetensors": safetensors_bytes({"z": entry}, 4),
    }
    files = {"config.json": b"{}", name: index}
    files.update({shard: data for shard, data in shards.items() if rng.random() < 0.8})
    return files


def config_input(rng: random.Random, kept: list[Files]) -> Files:
    """A config beside weights."""
    if kept and rng.random() < 0.5:
        config = change_bytes(rng.choice(kept)["config.json"], rng)
    else:
        document: Any = _CONFIG
        for _ in range(rng.randrange(1, 5)):
            document = change_structure(document, rng)
        config = json.dumps(document, indent=rng.choice((None, 2))).encode()
        if rng.random() < 0.6:
            config = change_bytes(config, rng)
    return {
        "config.json": config,
        "hf_quant_config.json": config,
        "model.safetensors": safetensors_bytes({}, 0),
    }


_KINDS: tuple[tuple[str, Callable[[random.Random, list[Files]], Files]], ...] = (
    ("header", header_input),
    ("index", index_input),
    ("config", config_input),
)


# -- the checks


def check(files: Files) -> str:
    """Open the files; return what came of it with numbers and names taken out.

    Raises:
        AssertionError: The library judges a header otherwise.
        Exception: Whatever the reader didn't handle.
    """
    outcome: list[str] = []
    try:
        checkpoint = open_checkpoint("fuzzed", MemorySource(files))
        fingerprint(checkpoint)
        unwrap(checkpoint.tensors)
        for finding in checkpoint.findings:
            finding.message.encode()
            outcome.append(f"{finding.code} {finding.message}")
    except CkptError as error:
        outcome.append(error.message)
    config = files["config.json"].decode("utf-8", "replace")
    jsontext.duplicate_keys(config)
    jsontext.line_of(config, "/hidden_size")
    if "model.safetensors.index.json" not in files:
        compare_with_library(files["model.safetensors"])
    return re.sub(r"'[^']*'|[0-9,]+", "#", " | ".join(outcome))[:400]


def compare_with_library(data: bytes) -> None:
    """The library and the reader accept the same headers, with the same tensors.

    Raises:
        AssertionError: They differ.
    """
    header = read_header(lambda start, stop: data[start:stop], len(data), "f")
    refused = None
    theirs = {}
    try:
        theirs = {name: (info["dtype"], list(info["shape"])) for name, info in safetensors.deserialize(data)}
    except safetensors.SafetensorError as error:
        refused = str(error)
    if refused is not None:
        assert header.damage, f"the library refuses it ({refused}), the reader doesn't"
        return
    if header.damage and any(tensor.stop >= _LIBRARY_WRAPS for tensor in header.tensors.values()):
        return
    assert not header.damage, f"the reader refuses it ({header.damage.message}), the library doesn't"
    ours = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in header.tensors.items()}
    assert ours == theirs, f"{ours} != {theirs}"


def run(count: int, seed: int, progress: Callable[[str], None] | None = None) -> Outcome:
    """Check ``count`` inputs; stops at the tenth failure."""
    before = megabytes()
    rng = random.Random(seed)
    result = Outcome()
    seen: set[str] = set()
    corpus: dict[str, list[Files]] = {name: [] for name, _ in _KINDS}
    for number in range(count):
        kind, make = _KINDS[number % len(_KINDS)]
        files = make(rng, corpus[kind])
        started = time.process_time()
        try:
            outcome = check(files)
        except Exception as error:  # noqa: BLE001  # any exception is what is looked for
            result.failures.append(
                f"seed {seed} input {number}: {type(error).__name__}: {error}: {files!r:.2000}"
            )
            if len(result.failures) >= 10:
                break
            continue
        seconds = time.process_time() - started
        result.slowest = max(result.slowest, seconds)
        if seconds > MAX_SECONDS:
            result.failures.append(f"seed {seed} input {number}: {seconds:.2f} s: {files!r:.2000}")
        result.inputs += 1
        result.accepted += not outcome.strip()
        if outcome not in seen and len(seen) < 100_000:
            seen.add(outcome)
            result.kept += 1
            kept = corpus[kind]
            kept.append(files)
            if len(kept) > _CORPUS:
                kept.pop(rng.randrange(_CORPUS))
        if progress and number % 20_000 == 19_999:
            progress(f"{number + 1:,} inputs, {result.kept} outcomes, {megabytes()} MB")
    # a process that has done other things before has its peak behind it
    grown = megabytes() - before
    if grown > MAX_MEGABYTES:
        result.failures.append(f"{grown} MB of memory, at most {MAX_MEGABYTES} allowed")
    return result


def megabytes() -> int:
    """Peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (1024 * 1024 if sys.platform == "darwin" else 1024)


def run_atheris(corpus: Path, arguments: list[str]) -> None:
    """Coverage-guided: the engine chooses bytes, the first of which says what kind of file the others are."""
    import atheris  # an optional tool of the fuzzer alone

    atheris.instrument_all()
    rng = random.Random(0)
    shards = index_input(rng, [])
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        document, size = valid_header(rng)
        raw = json.dumps(document, separators=(",", ":")).encode()
        (corpus / f"header-{number}").write_bytes(bytes([size % 64]) + raw)
    (corpus / "index").write_bytes(b"\x80" + json.dumps(_INDEX).encode())
    (corpus / "config").write_bytes(b"\xc0" + json.dumps(_CONFIG).encode())

    def one(data: bytes) -> None:
        if not data:
            return
        kind, rest = data[0], data[1:]
        if kind < 64:
            check(
                {
                    "config.json": b"{}",
                    "model.safetensors": len(rest).to_bytes(8, "little") + rest + bytes(kind),
                }
            )
        elif kind < 128:
            check({"config.json": b"{}", "model.safetensors": rest})
        elif kind < 192:
            check({**shards, "config.json": b"{}", "model.safetensors.index.json": rest})
        else:
            check({"config.json": rest, "model.safetensors": safetensors_bytes({}, 0)})

    atheris.Setup([sys.argv[0], *arguments, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000, help="inputs to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--atheris",
        type=Path,
        metavar="CORPUS",
        help="coverage-guided, with inputs kept in this folder; further options go to libFuzzer",
    )
    options, rest = parser.parse_known_args()
    if options.atheris:
        run_atheris(options.atheris, rest)
        return 0
    started = time.monotonic()
    result = run(options.count, options.seed, lambda line: print(line, file=sys.stderr))
    print(
        f"{result.inputs:,} inputs in {time.monotonic() - started:.0f} s: {result.accepted:,} without a finding, "
        f"{result.kept} different outcomes, slowest {result.slowest:.3f} s, {megabytes()} MB, "
        f"{len(result.failures)} failures"
    )
    for failure in result.failures:
        print(failure)
    return 1 if result.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
