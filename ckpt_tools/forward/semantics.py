"""What a framework computes with a draft's weights, as data: one value per place where they differ.

A :class:`Semantics` is one framework at one version. ``references`` holds, beside every value that is not
the common one, where it is read: file and line of that release's own source. ``SPECULATORS``, ``SGLANG`` and
``VLLM`` list the versions at which something changed, oldest first; :func:`find` takes the newest that is not
newer than the version asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_TYPES: frozenset[str] = frozenset({"llama", "qwen3", "mla"})
NO_TYPES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Semantics:
    """How one framework runs a draft head; sets of layer types say for which layers a feature exists.

    Attributes:
        engine: `speculators`, `sglang` or `vllm`.
        version: First release that behaves so.
        norm_before_residual: Layer types whose first layer can take the normed hidden state as the residual.
        norm_before_residual_default: What a file that doesn't state the flag gets.
        upper_norm: Which tensor layers ≥ 1 norm their input with.
        norm_before_fc: Layer types with one norm over the concatenated captured layers.
        fc_norm: Layer types with a norm per captured layer.
        norm_output: Layer types that can feed the normed state back.
        peagle_norm_output: Whether P-EAGLE reads that flag (it has no feedback to norm).
        qkv_bias, o_bias, mlp_bias: Layer types whose biases are used.
        fc_bias: `never`, or `config` (used when the draft states it), for EAGLE-3.
        eagle1_fc_bias: The same for EAGLE-1; `always` takes it from the file or makes it up.
        qk_norm: Layer types whose per-head norms are used.
        embedding: Whose embedding the served draft looks tokens up in: its `own` when the file has one, or the
            `target`'s unless the hidden widths differ.
        dflash_head: Whose head the DFlash family scores with: its `own` when the file has one, or the `target`'s.
        skip_equal_fc: fc is skipped when the captured states are as wide as the embedding.
        max_layers: Most draft layers that the class builds; `None` is any number.
        aux_count: Number of captured layers that fc is built for; `None` is any number.
        window: Whether EAGLE-3 layers honour `sliding_window` (`config`) or take it from a server flag (`flag`).
        dflash_causal: How a DFlash block attends within itself: `per_layer` (full layers both ways, sliding layers
            causal unless told otherwise) or `flag` (one flag for all layers; a stated
            `sliding_window_non_causal: false` makes all of them causal).
        window_from: What a sliding window counts back from: the row that drafting starts at (`anchor`), or each
            drafted row (`query`).
        tied_head: `tie_word_embeddings` makes the head the embedding.
        position_start: Position of the first row that the draft sees.
        default_theta: Rope base of a file that states none.
        references: Field -> file:line in that release.
    """

    engine: str
    version: str
    norm_before_residual: frozenset[str] = ALL_TYPES
    norm_before_residual_default: bool = False
    upper_norm: Literal["input_layernorm", "hidden_norm"] = "input_layernorm"
    norm_before_fc: frozenset[str] = ALL_TYPES
    fc_norm: frozenset[str] = ALL_TYPES
    norm_output: frozenset[str] = ALL_TYPES
    peagle_norm_output: bool = False
    qkv_bias: frozenset[str] = ALL_TYPES
    o_bias: frozenset[str] = ALL_TYPES
    mlp_bias: frozenset[str] = ALL_TYPES
    fc_bias: Literal["never", "config"] = "never"
    eagle1_fc_bias: Literal["never", "config", "always"] = "config"
    qk_norm: frozenset[str] = frozenset({"qwen3"})
    embedding: Literal["own", "target"] = "own"
    dflash_head: Literal["own", "target"] = "own"
    skip_equal_fc: bool = False
    max_layers: int | None = None
    aux_count: int | None = None
    window: Literal["config", "flag"] = "config"
    dflash_causal: Literal["per_layer", "flag"] = "per_layer"
    window_from: Literal["anchor", "query"] = "query"
    tied_head: bool = False
    position_start: int = 0
    default_theta: float = 10000.0
    references: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        return f"{self.engine}=={self.version}"


def _with(base: Semantics, version: str, **changes: tuple[Any, str]) -> Semantics:
    """`base` from `version` on, with changed fields, each as (value, reference)."""
    values = {name: value for name, (value, _) in changes.items()}
    references = {**base.references, **{name: ref for name, (_, ref) in changes.items()}}
    return replace(base, version=version, references=MappingProxyType(references), **values)


SPECULATORS = (
    _with(
        Semantics(engine="speculators", version="0.9.0"),
        "0.9.0",
        norm_before_residual=(frozenset({"llama", "qwen3"}), "models/eagle3/model_definitions.py:54-110"),
        norm_before_fc=(frozenset({"llama", "qwen3"}), "models/eagle3/core.py:192-365"),
        fc_norm=(frozenset({"llama", "qwen3"}), "models/eagle3/core.py:192-365"),
        norm_output=(frozenset({"llama", "qwen3"}), "models/eagle3/core.py:192-365"),
        qkv_bias=(frozenset({"llama", "qwen3"}), "models/eagle3/model_definitions.py:135-142"),
        position_start=(1, "models/eagle3/core.py:192-365"),
        window_from=("anchor", "models/eagle3/attention.py:115-143; models/dflash/core.py:377-486"),
    ),
)

_SGLANG_0_4_9 = _with(
    Semantics(engine="sglang", version="0.4.9"),
    "0.4.9",
    norm_before_residual=(
        NO_TYPES,
        "models/llama_eagle3.py:97-102; no occurrence of the name in any release",
    ),
    upper_norm=("hidden_norm", "models/llama_eagle3.py:103-105"),
    norm_before_fc=(NO_TYPES, "models/llama_eagle3.py: no such module before 0.5.17"),
    fc_norm=(NO_TYPES, "models/llama_eagle3.py: no such module before 0.5.12"),
    norm_output=(NO_TYPES, "models/llama_eagle3.py: not read before 0.5.12"),
    qkv_bias=(NO_TYPES, "models/llama_eagle3.py:67-75 (bias=False)"),
    o_bias=(frozenset({"llama"}), "models/llama.py:339"),
    mlp_bias=(NO_TYPES, "models/llama.py: LlamaMLP has no bias"),
    fc_bias=("config", "models/llama_eagle3.py:163-167"),
    eagle1_fc_bias=("always", "models/llama_eagle.py:91"),
    qk_norm=(NO_TYPES, "models/llama_eagle3.py: LlamaAttention has no q_norm/k_norm"),
    embedding=("target", "speculative/eagle_worker_v2.py:353-363; models/llama.py:910-918"),
    dflash_head=("target", "speculative/dflash_worker_v2.py:222-230"),
    skip_equal_fc=(True, "models/llama_eagle3.py: forward compares the two last dimensions"),
    max_layers=(1, "models/llama_eagle3.py 0.5.11:213 (EAGLE3 currently only supports 1 layer)"),
    aux_count=(3, "models/llama_eagle3.py 0.5.9:135-138"),
    window=("flag", "models/llama_eagle3.py:288-299 (--speculative-draft-window-size)"),
    window_from=("query", "speculative/dflash_utils.py:400-417"),
    tied_head=(True, "models/llama_eagle3.py:303"),
)
_SGLANG_0_5_12 = _with(
    _SGLANG_0_4_9,
    "0.5.12",
    fc_norm=(frozenset({"llama"}), "models/llama_eagle3.py 0.5.12:171"),
    norm_output=(frozenset({"llama"}), "models/llama_eagle3.py 0.5.12:188"),
    max_layers=(None, "models/llama_eagle3.py 0.5.12:180"),
    aux_count=(None, "models/llama_eagle3.py 0.5.12:154-159"),
)
_SGLANG_0_5_13 = _with(
    _SGLANG_0_5_12,
    "0.5.13",
    fc_norm=(frozenset({"llama", "mla"}), "models/kimi_k25_eagle3.py 0.5.13:222"),
    norm_output=(frozenset({"llama", "mla"}), "models/kimi_k25_eagle3.py 0.5.13:243"),
)
_SGLANG_0_5_17 = _with(
    _SGLANG_0_5_13,
    "0.5.17",
    norm_before_fc=(frozenset({"llama"}), "models/llama_eagle3.py 0.5.17:165; not in kimi_k25_eagle3.py"),
)
SGLANG = (_SGLANG_0_4_9, _SGLANG_0_5_12, _SGLANG_0_5_13, _SGLANG_0_5_17)

_VLLM_0_10 = _with(
    Semantics(engine="vllm", version="0.10.1"),
    "0.10.1",
    norm_before_fc=(NO_TYPES, "models/llama_eagle3.py 0.10.1: no such module"),
    fc_norm=(NO_TYPES, "models/llama_eagle3.py 0.10.1: no such module"),
    norm_output=(NO_TYPES, "models/llama_eagle3.py 0.10.1: not read"),
    qkv_bias=(NO_TYPES, "models/llama_eagle3.py 0.10.1"),
    mlp_bias=(frozenset({"llama"}), "models/llama.py 0.32.0:300-305 (the draft layer's base builds its MLP)"),
    qk_norm=(NO_TYPES, "models/llama_eagle3.py 0.10.1"),
    embedding=("target", "v1/spec_decode/eagle.py 0.10.1:616"),
    max_layers=(1, "models/llama_eagle3.py 0.10.1:123"),
    aux_count=(3, "models/llama_eagle3.py 0.10.1"),
    eagle1_fc_bias=("never", "models/llama_eagle.py: fc without bias"),
    dflash_causal=("flag", "models/qwen3_dflash.py:62-73"),
    window_from=("query", "models/qwen3_dflash.py:62-73"),
)
_VLLM_0_12 = _with(
    _VLLM_0_10,
    "0.12.0",
    embedding=("own", "v1/spec_decode/eagle.py 0.12.0:1043"),
    max_layers=(None, "models/llama_eagle3.py 0.12.0:167"),
)
_VLLM_0_17 = _with(
    _VLLM_0_12,
    "0.17.0",
    qkv_bias=(frozenset({"llama"}), "models/llama_eagle3.py 0.17.0:55"),
)
_VLLM_0_25 = _with(
    _VLLM_0_17,
    "0.25.0",
    norm_before_fc=(
        frozenset({"llama", "qwen3"}),
        "models/llama_eagle3.py 0.25.0; not in deepseek_eagle3.py",
    ),
    fc_norm=(ALL_TYPES, "models/llama_eagle3.py, deepseek_eagle3.py:188-220"),
    norm_output=(ALL_TYPES, "models/llama_eagle3.py:283-288"),
    qkv_bias=(frozenset({"llama", "qwen3"}), "models/llama_eagle3.py, qwen3_eagle3.py"),
    o_bias=(frozenset({"llama"}), "models/qwen3_eagle3.py: o_proj has no bias"),
    qk_norm=(frozenset({"qwen3"}), "models/qwen3_eagle3.py"),
    aux_count=(None, "models/llama_eagle3.py 0.25.0:175-187"),
)
VLLM = (_VLLM_0_10, _VLLM_0_12, _VLLM_0_17, _VLLM_0_25)

FRAMEWORKS: Mapping[str, tuple[Semantics, ...]] = MappingProxyType(
    {"speculators": SPECULATORS, "sglang": SGLANG, "vllm": VLLM}
)
speculators, sglang, vllm = SPECULATORS[-1], SGLANG[-1], VLLM[-1]


def _key(version: str) -> tuple[int, ...]:
    """A release as numbers; `0.5.10.post1` is (0, 5, 10, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def find(engine: str, version: str | None = None) -> Semantics:
    """The semantics of `engine` at `version` (the newest without one).

    `sglang-ext` is SGLang with the model classes of this package, which implement the draft as it was trained:
    speculators' semantics with the target's embedding where SGLang shares it.

    Raises:
        UsageError: An engine that has no reference semantics.
    """
    if engine == "sglang-ext":
        base = find("sglang", version)
        return replace(
            find("speculators"),
            engine="sglang-ext",
            version=base.version,
            embedding=base.embedding,
            position_start=base.position_start,
            window=base.window,
        )
    if engine not in FRAMEWORKS:
        raise UsageError(
            f"no reference semantics for engine {engine!r}",
            hint=f"known are {', '.join([*FRAMEWORKS, 'sglang-ext'])}",
        )
    known = FRAMEWORKS[engine]
    if version is None:
        return known[-1]
    wanted = _key(version)
    older = [s for s in known if _key(s.version) <= wanted]
    return older[-1] if older else known[0]
