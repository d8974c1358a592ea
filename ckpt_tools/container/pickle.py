"""Read pickled weights through ``torch.load(weights_only=True)`` and nothing else.

The only module of the core that imports torch, and only inside functions.
"""

from __future__ import annotations

import functools
import pickle
import re
import struct
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.codes import finding, shown
from ckpt_tools.container.header import LFS_MAGIC, lfs_damage
from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.model import Finding, Location, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Where trainers put the draft's state dict, most specific first (SpecForge, then the usual names).
STATE_DICT_KEYS = ("draft_state_dict", "model_state_dict", "state_dict", "module", "model")
# What a tensor that is pickled by itself is called (Model-Optimizer's d2t.pt).
BARE = "tensor"
_MAX_NESTING = 4
_ZIP = b"PK\x03\x04"
# torch reports a damaged container, and damage inside the pickle, by any of these.
_DAMAGE = (
    RuntimeError,
    ValueError,
    EOFError,
    OSError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    struct.error,
)
_OPERAND = re.compile(r"Unsupported operand (\d+)")
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")

# torch's dtype names -> safetensors'.
_DTYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}


@dataclass(frozen=True)
class PickleContent:
    """What a pickled file holds.

    Attributes:
        tensors: Of the state dict, in its order; ``stop`` is the number of bytes when stored contiguously.
        key: Where the state dict lies (``draft_state_dict``, ``module.model``); ``None`` at the top.
        scalars: The plain values beside the state dict: steps, flags, ids.
        findings: Why there are no tensors, or fewer.
    """

    tensors: tuple[TensorInfo, ...] = ()
    key: str | None = None
    scalars: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()


def read_pickle(path: Path, name: str, size: int) -> PickleContent:
    """What a pickle holds; damage and danger are findings.

    Args:
        path: The file.
        name: Its name in the checkpoint, for messages.
        size: Its size in bytes.

    Raises:
        Unavailable: torch isn't installed.
    """
    if size == 0:
        return _failed("FIL007", name, f"{shown(name)} is empty (0 bytes)", "download or copy it again")
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise InputError(
            f"{path}: the file can't be read ({error.strerror})", "check with `ls -la`"
        ) from error
    if head.startswith(LFS_MAGIC):
        pointer = lfs_damage(head, name)
        return _failed(pointer.code, name, pointer.message, pointer.hint)
    try:
        loaded = _load(path)
    except _Unsafe as unsafe:
        return _failed(
            "SEC002",
            name,
            f"{shown(name)} should hold tensors and {unsafe}; nothing was run",
            "don't load it with weights_only=False; get the weights as safetensors from their author",
        )
    except _Damaged as damaged:
        return _failed(
            "FIL024", name, f"{shown(name)} can't be read ({damaged})", "download or copy it again"
        )
    state, key, scalars = _state_dict(loaded)
    if state is None:
        what = f"a {type(loaded).__name__}" + (" without tensors" if isinstance(loaded, dict) else "")
        return _failed(
            "FIL025",
            name,
            f"{shown(name)} holds {what}, expected a state dict",
            "give the file with the weights",
        )
    return _describe(state, key, scalars, name)


def read_pickled_tensor(path: Path, name: str) -> bytes:
    """The bytes of one tensor, contiguous and little-endian, whatever its strides.

    Args:
        path: The pickle.
        name: The tensor's name in its state dict.

    Raises:
        Unavailable: torch isn't installed.
        InputError: The file changed since it was opened.
    """
    try:
        state, _, _ = _state_dict(_load(path))
    except (_Unsafe, _Damaged) as error:
        raise InputError(f"{path}: {error}", "open the checkpoint again") from error
    if state is None or name not in state:
        raise InputError(f"{path}: no tensor {name!r}", "the file changed while it was read; open it again")
    torch = _torch()
    flat = state[name].detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data)


def read_tables(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Integer and boolean tensors of a small pickle, by name; one that is pickled by itself under :data:`BARE`.

    Raises:
        Unavailable: torch isn't installed.
        InputError: The file can't be read, or asks for more than tensors.
    """
    try:
        loaded = _load(path)
    except (_Unsafe, _Damaged) as error:
        raise InputError(
            f"{path}: {error}", "get the table as a plain tensor file from its author"
        ) from error
    named = {BARE: loaded} if _is_tensor(loaded) else loaded if isinstance(loaded, dict) else {}
    return {
        str(name): tuple(int(v) for v in value.reshape(-1).tolist())
        for name, value in named.items()
        if _is_tensor(value) and not value.dtype.is_floating_point
    }


class _Unsafe(Exception):
    """The pickle needs something that weights_only doesn't allow."""


class _Damaged(Exception):
    """torch can't read the file."""


def _torch() -> Any:
    try:
        import torch  # noqa: TID251  # pickled weights can't be read without it
    except ImportError:
        raise Unavailable(
            "reading pickled weights (.bin, .pt) needs torch, which isn't installed",
            "pip install 'ckpt-tools[torch]'",
        ) from None
    return torch


def _load(path: Path) -> Any:
    try:
        status = path.stat()
    except OSError as error:
        raise _Damaged(error.strerror or str(error)) from error
    return _load_cached(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _load_cached(path: Path, size: int, mtime_ns: int) -> Any:  # noqa: ARG001  # the key of the cache
    """Load a pickle, mapped when its container allows; the last stay, so that tensors are read one by one."""
    torch = _torch()
    try:
        with path.open("rb") as file:
            zipped = file.read(len(_ZIP)) == _ZIP
        with warnings.catch_warnings():
            # Old pickles name storage classes that torch announces to drop.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        # torch wraps its reason in advice to turn weights_only off, which is not passed on.
        reason = str(error).rpartition("WeightsUnpickler error:")[2].strip()
        if match := _OPERAND.search(reason):
            raise _Damaged(f"no pickle of tensors: unexpected byte {match[1]}") from None
        match = _GLOBAL.search(reason)
        raise _Unsafe(f"asks for {match[1]}" if match else f"is more: {_first_line(reason)}") from None
    except _DAMAGE as error:
        # The bare key of a lookup that failed, or torch's own bookkeeping, says nothing to a reader.
        said = (
            "" if isinstance(error, (LookupError, AssertionError, struct.error)) else _first_line(str(error))
        )
        raise _Damaged(said or "no pickle of tensors") from None


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:200]


def _failed(code: str, name: str, message: str, hint: str | None) -> PickleContent:
    return PickleContent(findings=(finding(code, message, Location(name), hint),))


def _is_tensor(value: object) -> bool:
    return isinstance(value, _torch().Tensor)


def _state_dict(loaded: Any) -> tuple[dict[str, Any] | None, str | None, dict[str, Any]]:
    """The state dict in what was loaded, the key that it lies under, and the plain values beside it."""
    path: list[str] = []
    scalars: dict[str, Any] = {}
    for _ in range(_MAX_NESTING):
        if not isinstance(loaded, dict):
            break
        key = next((key for key in STATE_DICT_KEYS if isinstance(loaded.get(key), dict)), None)
        if key is None:
            if any(_is_tensor(value) for value in loaded.values()):
                return {str(name): value for name, value in loaded.items()}, ".".join(path) or None, scalars
            break
        scalars.update(
            {str(name): value for name, value in loaded.items() if name != key and _is_plain(value)}
        )
        path.append(key)
        loaded = loaded[key]
    return None, None, {}


def _is_plain(value: object) -> bool:
    """Whether a value can be reported as it is: numbers, strings and short lists of them."""
    if isinstance(value, (list, tuple)):
        return len(value) <= 256 and all(isinstance(item, (bool, int, float, str)) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _describe(
    state: Mapping[str, Any], key: str | None, scalars: Mapping[str, Any], name: str
) -> PickleContent:
    torch = _torch()
    tensors: list[TensorInfo] = []
    left_out: list[tuple[str, str]] = []
    for tensor_name, value in state.items():
        if not _is_tensor(value):
            left_out.append((tensor_name, f"a {type(value).__name__}"))
            continue
        dtype = _DTYPES.get(str(value.dtype).removeprefix("torch."))
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            left_out.append(
                (tensor_name, f"a {str(value.layout).removeprefix('torch.')} tensor on {value.device}")
            )
        elif dtype is None:
            left_out.append((tensor_name, f"of dtype {value.dtype}, which safetensors doesn't know"))
        else:
            nbytes = value.numel() * value.element_size()
            tensors.append(TensorInfo(tensor_name, dtype, tuple(value.shape), name, 0, nbytes))
    findings: tuple[Finding, ...] = ()
    if left_out:
        first, why = left_out[0]
        more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
        findings = (
            finding(
                "FIL027",
                f"{shown(name)}: {first!r:.160} is {why}, and is left out{more}",
                Location(name, tensor=first),
                "export the state dict with plain tensors",
            ),
        )
    return PickleContent(tuple(tensors), key, scalars, findings)
