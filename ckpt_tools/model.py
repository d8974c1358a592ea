"""The data that flows between the parts: frozen dataclasses and nothing else (stdlib only).

Four words mean the same everywhere. A *draft* is a checkpoint folder of a speculative-decoding head, a
*target* is the model that it drafts for, a *format* is how a framework writes a draft to disk, an *engine*
is a server that loads it, at a version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EMPTY: Mapping[str, Any] = MappingProxyType({})

# Bits per element of every dtype that safetensors knows (safetensors 0.8 `Dtype`); the F4 and F6 kinds are packed.
DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
        "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
        "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    }
)  # fmt: skip
#: What a conversion leaves beside its output: how it came about.
RECORD = "conversion.json"
FLOAT_DTYPES = frozenset({"F16", "BF16", "F32", "F64"})


class Severity(str, Enum):
    """How bad a finding is. *error*: refused, or drafts wrongly, when served as asked."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """Higher is worse."""
        return {"info": 1, "warning": 2, "error": 3}[self.value]


@dataclass(frozen=True)
class Location:
    """Where a finding points: a file, a JSON pointer or a tensor in it, and the 1-based line if known."""

    file: str | None = None
    pointer: str | None = None
    tensor: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Fix:
    """A command that repairs the finding; *safe* when it can't lose anything."""

    command: str
    safe: bool = False


@dataclass(frozen=True)
class Finding:
    """One defect or fact about a checkpoint, with everything a reader needs to act on it."""

    code: str
    name: str
    severity: Severity
    message: str
    location: Location = Location()
    hint: str | None = None
    fix: Fix | None = None
    engine: str | None = None


@dataclass(frozen=True)
class Skipped:
    """A check that did not run, and why."""

    code: str
    reason: str


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a header states it.

    Attributes:
        name: The name in the file, untouched.
        dtype: A key of :data:`DTYPE_BITS`.
        shape: Dimensions in elements.
        file: The file's name relative to the checkpoint folder.
        start: First byte of the data, absolute in the file.
        stop: One past the last byte. For a pickled tensor, whose bytes have no place in the file of their
            own, ``start`` is 0 and ``stop`` the number of bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self.stop - self.start

    @property
    def numel(self) -> int:
        """Number of elements."""
        n = 1
        for dim in self.shape:
            n *= dim
        return n


FileKind = Literal["safetensors", "pickle", "other"]


@dataclass(frozen=True)
class FileInfo:
    """One file of a checkpoint; ``header`` is the raw safetensors header (fingerprints are made of it)."""

    name: str
    size: int
    kind: FileKind
    header: bytes = b""


@dataclass(frozen=True)
class Checkpoint:
    """What a folder or a file holds, read from headers alone.

    Attributes:
        path: As the user gave it.
        root: The folder that ``file`` names are relative to (for a single file, its parent); for the Hub,
            ``hf://owner/name@revision``.
        config: Parsed ``config.json``; ``None`` when absent or unreadable (a finding says which).
        config_text: The text that ``config`` was parsed from, for line numbers.
        tensors: By name as in the files, in file and offset order.
        files: Weight files first, in load order, then the rest by name.
        metadata: ``__metadata__`` of the first weight file.
        findings: Defects of the container (family FIL and SEC).
        extra: Facts of special containers: ``training_state`` keys of a pickle, ``index`` as parsed, ….
    """

    path: str
    root: str
    config: Mapping[str, Any] | None
    config_text: str
    tensors: Mapping[str, TensorInfo]
    files: tuple[FileInfo, ...]
    metadata: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    findings: tuple[Finding, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    @property
    def weight_files(self) -> tuple[FileInfo, ...]:
        """The files that hold tensors, in load order."""
        return tuple(f for f in self.files if f.kind != "other")

    @property
    def total_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def num_parameters(self) -> int:
        """Elements of the floating-point tensors (a d2t table is no parameter)."""
        return sum(t.numel for t in self.tensors.values() if t.dtype[0] in "FB" and t.dtype != "BOOL")


@dataclass(frozen=True)
class Evidence:
    """Why a format was recognised: a config field or a tensor name, and what it says."""

    kind: Literal["config", "tensor"]
    key: str
    says: str


@dataclass(frozen=True)
class Verifier:
    """The target that a draft names as its own."""

    name: str | None
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rope:
    """Rotary settings in one spelling.

    Attributes:
        theta: Base; ``None`` when the files state none.
        scaling: ``None`` for the default rope, else a dict with ``rope_type`` and its parameters.
        partial_rotary_factor: ``None`` when not stated.
    """

    theta: float | None = None
    scaling: Mapping[str, Any] | None = None
    partial_rotary_factor: float | None = None


# How a format counts captured target layers. `layer_output`: id k is the output of 0-based decoder layer k.
# `layer_input`: id k is the state that enters layer k, i.e. the output of layer k-1 (0 is the embedding).
CaptureConvention = Literal["layer_output", "layer_input"]


@dataclass(frozen=True)
class DraftFacts:
    """The canonical facts of a draft; a field that the files don't state is ``None``, never a guess.

    ``capture_layers`` are always outputs of 0-based target layers, ascending; -1 is the embedding output.
    """

    num_layers: int | None = None
    hidden_size: int | None = None
    target_hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    capture_layers: tuple[int, ...] | None = None
    capture_convention: CaptureConvention | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    rope: Rope | None = None
    max_position_embeddings: int | None = None
    sliding_window: int | None = None
    verifier: Verifier | None = None
    # beyond the interface's list: what conversions and heads also need
    layer_type: str | None = None  # llama, qwen3, mla
    hidden_act: str | None = None
    rms_norm_eps: float | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    fc_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    dtype: str | None = None
    layer_types: tuple[str, ...] | None = None
    num_aux: int | None = None  # captured layers that fc takes
    block_size: int | None = None
    mask_token_id: int | None = None
    embed_requires_grad: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # algorithm-specific facts


@dataclass(frozen=True)
class Draft:
    """A draft in the one canonical form that all conversions pass through.

    Attributes:
        format: Name of the format that it was read from.
        algorithm: eagle, eagle3, peagle, dflash, dflash2, dspark, xpress, mtp.
        evidence: Why that format.
        facts: Canonical config facts.
        tensors: Canonical name -> name in the files (after which wrapper prefixes are still on).
        unknown: Names in the files that the format has no row for.
        dropped: Names in the files that the format never carries over, with the reason.
        wrapper: Prefix that every tensor carries and that belongs to no format (``module.`` …), or "".
        ambiguous_capture: The ids as written when the files can't decide their convention.
        findings: What reading noticed.
    """

    format: str
    algorithm: str
    evidence: tuple[Evidence, ...]
    facts: DraftFacts
    tensors: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    wrapper: str = ""
    ambiguous_capture: tuple[int, ...] | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Target:
    """Facts of a target model; a fact that its source lacks is ``None``.

    Attributes:
        id: Registry id, or the path or Hub id that was given.
        origin: Where the facts come from.
        architectures: Of the outermost class (the one the engine builds).
        text_architectures: Of the language model inside a wrapper; equal to ``architectures`` when there is none.
        embed_tensor: Full name of the embedding tensor in the target's files.
        sources: Per field, where the value comes from.
    """

    id: str
    origin: Literal["registry", "local", "hub"]
    architectures: tuple[str, ...] = ()
    text_architectures: tuple[str, ...] = ()
    model_type: str | None = None
    text_model_type: str | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool | None = None
    dtype: str | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    rms_norm_eps: float | None = None
    rope: Rope | None = None
    quantization: Mapping[str, Any] | None = None
    num_nextn_predict_layers: int | None = None
    embed_tensor: str | None = None
    lm_head_tensor: str | None = None
    hf_repo: str | None = None
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None  # of a local target, as parsed


@dataclass(frozen=True)
class Engine:
    """An engine at a version, and the contract that is used for it.

    Attributes:
        name: ``sglang``, ``sglang-ext``, ``vllm`` or ``trtllm``.
        version: As asked for.
        contract: The version whose contract answers (equal, or the nearest older one).
        why: What chose it: ``--engine``, ``launch``, ``log``, ``policy``, ``default``.
    """

    name: str
    version: str
    contract: str
    why: str = "default"

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


FilledBy = Literal["checkpoint", "target", "default", "partly", "nothing"]


@dataclass(frozen=True)
class Fill:
    """How one parameter that the engine builds gets its value.

    Attributes:
        sources: Tensors (names as in the files) whose data reach it.
        filled_by: ``default`` is a defined value (norms of ones, zero biases); ``nothing`` is
            uninitialised or random memory; ``partly`` is a fused parameter with parts missing.
        cut: Why values were lost on the way (a too big tensor is narrowed without a word), or ``None``.
    """

    sources: tuple[str, ...]
    filled_by: FilledBy
    cut: str | None = None


@dataclass(frozen=True)
class LoadMap:
    """What an engine's loader does with a draft: the answer that the checks read.

    Attributes:
        parameters: The engine's own parameter names -> how each is filled. Empty when refused before building.
        unused: Tensors that reach no parameter (names as in the files).
        refused: The engine's own message when it raises, else ``None``.
        architecture: The class that the engine builds, ``None`` when it builds none.
        stage: Where it is refused: ``config``, ``class`` or ``load``.
    """

    parameters: Mapping[str, Fill]
    unused: tuple[str, ...]
    refused: str | None = None
    architecture: str | None = None
    stage: Literal["config", "class", "load"] | None = None


@dataclass(frozen=True)
class Subject:
    """What a report is about."""

    path: str
    format: str | None = None
    algorithm: str | None = None
    fingerprint: str | None = None
    content: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Failure:
    """Why a command could not do its work (verdict ``error``)."""

    kind: str
    message: str
    hint: str | None = None


Verdict = Literal["pass", "fail", "error"]


@dataclass(frozen=True)
class Report:
    """What every command returns and every renderer takes; the JSON twin is ``schemas/report.v1.json``."""

    command: str
    subject: Subject
    verdict: Verdict
    target: Target | None = None
    engines: tuple[Engine, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    error: Failure | None = None

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Findings of this severity or worse."""
        return tuple(f for f in self.findings if f.severity.rank >= severity.rank)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by severity, worst first, then by code; stable otherwise."""
    return tuple(sorted(findings, key=lambda f: (-f.severity.rank, f.code)))
