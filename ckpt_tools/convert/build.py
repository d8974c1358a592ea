"""Making the plan: canonical draft in, output tensors and config out, every loss named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding, names_of_codes
from ckpt_tools.convert import ids
from ckpt_tools.convert.edits import config_edits
from ckpt_tools.convert.plan import Cast, Plan, Rename, Synthesised, Tensor
from ckpt_tools.convert.shards import assign_shards
from ckpt_tools.formats import tables
from ckpt_tools.formats.base import Format, Variant, WriteRequest
from ckpt_tools.formats.canonical import slot_of
from ckpt_tools.model import FLOAT_DTYPES, Finding, Severity, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.model import Checkpoint, Draft, DraftFacts, Target

DTYPE_NAMES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
TABLES = ("d2t", "t2d")

#: Files beside the weights that belong to the draft and are carried along.
CARRIED = (
    "README.md",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "generation_config.json",
    "chat_template.jinja",
)
CARRIED_PREFIXES = ("tokenizer", "special_tokens_map", "vocab.", "merges.", "added_tokens")
LEFT: Mapping[str, str] = {
    "conversion.json": "of an earlier conversion; this one writes its own",
    "optimizer_state_dict.pt": "optimizer state",
    "optimizer.pt": "optimizer state",
    "optimizer.bin": "optimizer state",
    "scheduler_state_dict.pt": "scheduler state",
    "scheduler.pt": "scheduler state",
    "training_state.json": "training state",
    "training_state.pt": "training state",
    "training_args.bin": "training arguments",
    "trainer_state.json": "training state",
    "val_metrics.json": "training metrics",
    "train_command.txt": "names the machine that trained the draft",
    "config.py": "Python code that speculators copies in; nothing needs it",
}


@dataclass(frozen=True)
class Options:
    """How the user asked for the conversion.

    Attributes:
        allow: Codes whose loss is accepted (or family prefixes).
        repairs: Names of documented repairs.
        dtype: ``BF16``, ``F16`` or ``F32`` to cast floating-point tensors to, or ``None``.
        max_shard_size: In bytes; ``None`` keeps the input's sharding.
    """

    allow: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    dtype: str | None = None
    max_shard_size: int | None = None


@dataclass
class _Sorted:
    """Findings on their way into refusals and notes."""

    allow: tuple[str, ...]
    refusals: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def add(self, found: Finding, *, allowable: bool = True) -> None:
        """An error refuses unless it is allowed, then it stays as a warning."""
        if found.severity is not Severity.ERROR:
            self.notes.append(found)
        elif allowable and any(found.code.startswith(a) for a in self.allow):
            self.allowed.append(found.code)
            self.notes.append(
                replace(found, severity=Severity.WARNING, message=f"allowed: {found.message}", hint=None)
            )
        else:
            hint = found.hint
            if allowable:
                hint = f"{hint + '; ' if hint else ''}--allow {found.code} writes it anyway"
            self.refusals.append(replace(found, hint=hint))


def choose_variant(to: Format, draft: Draft) -> Variant | None:
    """The way in which a format writes this draft's algorithm and layers."""
    fitting = [v for v in to.variants if v.algorithm == draft.algorithm]
    kind = draft.facts.layer_type
    exact = [v for v in fitting if v.layer_type == kind]
    loose = [v for v in fitting if v.layer_type is None or (v.layer_type == "llama" and kind != "mla")]
    return next(iter((*exact, *loose)), None)


def plan_conversion(
    checkpoint: Checkpoint,
    draft: Draft,
    to: Format,
    fingerprint: str,
    read: Callable[[str], tuple[int, ...]],
    *,
    target: Target | None = None,
    same: Callable[[str, str], bool | None] | None = None,
    options: Options | None = None,
    derived_before: frozenset[str] = frozenset(),
) -> Plan:
    """Plan the conversion of a draft into a format.

    Args:
        checkpoint: The input, headers alone.
        draft: Its canonical form.
        to: The format to write.
        fingerprint: Of the input.
        read: Integers of a small table of the input, by name in its files.
        target: Facts of the target, if known.
        same: Whether a draft tensor's bytes equal a target tensor's, ``None`` when it can't be told.
        options: What the user asked for.
        derived_before: Tensors that an earlier conversion derived (its ``conversion.json``); they go again.
    """
    asked = options or Options()
    found = _Sorted(asked.allow)
    for f in draft.findings:
        found.add(f)
    base = Plan(checkpoint.path, fingerprint, draft, to.name, repairs=asked.repairs)
    variant = choose_variant(to, draft)
    if variant is None or to.write is None:
        found.add(_no_home(draft, to), allowable=False)
        return replace(base, refusals=tuple(found.refusals), notes=tuple(found.notes))

    facts = _with_written_dtype(draft.facts, checkpoint, asked)
    facts = _tensor_flags(facts, draft)
    if target is not None:
        facts = replace(facts, verifier=Verifier(target.hf_repo or target.id, target.architectures))
    for limit in to.limits:
        lost = limit.lost(facts, draft.tensors)
        if lost is not None:
            found.add(
                finding(
                    limit.code, lost, severity=Severity(limit.severity), hint=limit.hint, **_place(limit.code)
                )
            )
    written = ids.decide(draft, to, target)
    for f in written.findings:
        found.add(f)
    for f in _window(facts, to):
        found.add(f)
    for f in ids.first_releases(facts, to, written):
        found.add(f)
    for f in _embedding(draft, target, to, same):
        found.add(f)
    for f in _verifier(draft, target):
        found.add(f)

    drops = dict(draft.dropped)
    for name in draft.unknown:
        found.add(
            finding(
                "KEY004",
                f"{name} has no place in {draft.format}'s {draft.algorithm} drafts; it would be left out",
                tensor=name,
                file=checkpoint.tensors[name].file,
            )
        )
        drops[name] = "no place in this algorithm (allowed)"
    vocabulary = _tables(checkpoint, draft, facts, to, read, asked, derived_before)
    for f in vocabulary.findings:
        found.add(f)
    drops.update(vocabulary.drops)
    facts = replace(facts, draft_vocab_size=vocabulary.draft_vocab_size or facts.draft_vocab_size)

    tensors, renames, copies, casts = _tensors(checkpoint, draft, variant, drops, vocabulary, asked)
    request = WriteRequest(
        facts=_geometry(facts, draft, checkpoint),
        algorithm=draft.algorithm,
        variant=variant,
        target=target,
        source_config=checkpoint.config or {},
        nested_ids=written.nested,
        top_level_ids=written.top_level,
    )
    for f in _required(request.facts):
        found.add(f, allowable=False)
    config = to.write(request)
    carried, left = _other_files(checkpoint)
    return replace(
        base,
        tensors=assign_shards(tensors, asked.max_shard_size),
        renames=renames,
        copies=copies,
        drops=drops,
        synthesised=tuple(
            Synthesised(t.name, t.dtype, t.shape, vocabulary.how[t.name])
            for t in tensors
            if t.data is not None
        ),
        casts=casts,
        config=config,
        edits=config_edits(checkpoint.config or {}, config),
        refusals=tuple(found.refusals),
        notes=tuple(found.notes),
        launch_flags=ids.launch_flags(facts, to),
        carried=carried,
        left=left,
        allowed=tuple(dict.fromkeys(found.allowed)),
    )


def _place(code: str) -> dict[str, Any]:
    """Where a format's limit points in config.json, for those that are about one field."""
    field_of = {"NRM001": "/norm_before_residual", "HED003": "/embed_requires_grad", "CFG006": "/hidden_act"}
    return {"pointer": field_of[code]} if code in field_of else {}


def _no_home(draft: Draft, to: Format) -> Finding:
    code = "PAR001" if draft.algorithm != "eagle3" else "LAY004"
    listed = ", ".join(sorted({v.algorithm for v in to.variants}))
    return finding(
        code,
        f"{to.title} has no way of writing a {draft.algorithm} draft with {draft.facts.layer_type or 'these'} layers "
        f"(it writes {listed})",
        hint=f"ckpt inspect shows which formats carry {draft.algorithm}",
        severity=Severity.ERROR,
    )


def _with_written_dtype(facts: DraftFacts, checkpoint: Checkpoint, asked: Options) -> DraftFacts:
    """The dtype that the tensors will have, whatever the config says."""
    if asked.dtype is not None:
        return replace(facts, dtype=DTYPE_NAMES[asked.dtype])
    sizes: dict[str, int] = {}
    for t in checkpoint.tensors.values():
        if t.dtype in FLOAT_DTYPES:
            sizes[t.dtype] = sizes.get(t.dtype, 0) + t.nbytes
    return replace(facts, dtype=DTYPE_NAMES[max(sizes, key=lambda k: sizes[k])]) if sizes else facts


def _tensor_flags(facts: DraftFacts, draft: Draft) -> DraftFacts:
    """Flags that only some frameworks write, from the tensors that they go with."""
    if facts.fc_bias is None and "fc.bias" in draft.tensors:
        facts = replace(facts, fc_bias=True)
    if facts.fc_norm is None and "fc_norm.0.weight" in draft.tensors:
        facts = replace(facts, fc_norm=True)
    if facts.norm_before_fc is None and "input_norm.weight" in draft.tensors:
        facts = replace(facts, norm_before_fc=True)
    if facts.attention_bias is None and "layers.0.self_attn.q_proj.bias" in draft.tensors:
        facts = replace(facts, attention_bias=True)
    return facts


def _geometry(facts: DraftFacts, draft: Draft, checkpoint: Checkpoint) -> DraftFacts:
    """Heads' width and number as the tensors have them, where the config leaves them to a default."""
    shapes = {n: checkpoint.tensors[native].shape for n, native in draft.tensors.items()}
    q, k = (shapes.get(f"layers.0.self_attn.{p}_proj.weight") for p in "qk")
    heads = facts.num_attention_heads
    head_dim = facts.head_dim
    if head_dim is None and heads and q and q[0] % heads == 0:
        head_dim = q[0] // heads
    kv = facts.num_key_value_heads
    if kv is None and head_dim and k and k[0] % head_dim == 0:
        kv = k[0] // head_dim
    rope = facts.rope
    return replace(facts, head_dim=head_dim, num_key_value_heads=kv, rope=rope)


def _required(facts: DraftFacts) -> list[Finding]:
    needed = (
        ("hidden_size", facts.hidden_size),
        ("num_attention_heads", facts.num_attention_heads),
        ("intermediate_size", facts.intermediate_size),
        ("vocab_size", facts.vocab_size),
        ("draft_vocab_size", facts.draft_vocab_size),
        ("num_hidden_layers", facts.num_layers),
    )
    missing = [name for name, value in needed if value is None]
    if not missing:
        return []
    return [
        finding(
            "CFG010",
            f"config.json doesn't state {', '.join(missing)} and the tensors' shapes don't either; nothing is guessed",
            file="config.json",
            hint=f"add {', '.join(missing)} to config.json"
            + ("" if "vocab_size" not in missing else ", or give --target"),
        )
    ]


def _window(facts: DraftFacts, to: Format) -> list[Finding]:
    if to.engine != "sglang" or to.name == "dual" or facts.sliding_window is None:
        return []
    return [
        finding(
            "LAY001",
            f"the draft was trained with a sliding window of {facts.sliding_window}; SGLang doesn't read it from the "
            "config, so the field is dropped and the server must get the flag instead",
            pointer="/sliding_window",
            hint=f"serve with {' '.join(ids.launch_flags(facts, to))} (SGLang 0.5.12 and later)",
        )
    ]


def _embedding(
    draft: Draft, target: Target | None, to: Format, same: Callable[[str, str], bool | None] | None
) -> list[Finding]:
    """A trained embedding that SGLang will overwrite, as far as the files can tell."""
    native = draft.tensors.get("embed_tokens.weight")
    facts = draft.facts
    if to.engine != "sglang" or native is None or facts.target_hidden_size not in (None, facts.hidden_size):
        return []
    if facts.embed_requires_grad:
        return []  # the format's own limit says so
    theirs = target.embed_tensor if target else None
    equal = same(native, theirs) if same is not None and theirs is not None else None
    if equal is False:
        return [
            finding(
                "HED003",
                f"{native} differs from the target's {theirs}: the embedding was trained, and SGLang replaces it by the "
                "target's",
                tensor=native,
                severity=Severity.ERROR,
                hint="vLLM keeps a draft's own embedding (--to vllm)",
            )
        ]
    if equal is None:
        return [
            finding(
                "HED004",
                f"{native} was not compared with the target's embedding, which SGLang puts in its place",
                tensor=native,
            )
        ]
    return []


def _verifier(draft: Draft, target: Target | None) -> list[Finding]:
    named = draft.facts.verifier.name if draft.facts.verifier else None
    if target is None or named is None or ids.names_target(named, target):
        return []
    return [
        finding(
            "CFG008",
            f"the draft names {named} as its target, and --target is {target.hf_repo or target.id}",
            pointer="/speculators_config/verifier/name_or_path",
        )
    ]


@dataclass(frozen=True)
class _Vocabulary:
    d2t: bytes | None = None
    t2d: bytes | None = None
    how: dict[str, str] = field(default_factory=dict)
    drops: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    draft_vocab_size: int | None = None
    vocab_size: int | None = None
    rows: int = 0


_TABLE_CODES = {
    "absolute": "VOC001",
    "range": "VOC002",
    "duplicate": "VOC003",
    "length": "VOC004",
    "mask": "VOC005",
}


def _tables(
    checkpoint: Checkpoint,
    draft: Draft,
    facts: DraftFacts,
    to: Format,
    read: Callable[[str], tuple[int, ...]],
    asked: Options,
    derived_before: frozenset[str],
) -> _Vocabulary:
    """Both vocabulary tables as the output needs them."""
    names = {n: draft.tensors[n] for n in TABLES if n in draft.tensors}
    values = {n: read(native) for n, native in names.items()}
    d2t, t2d = values.get("d2t"), values.get("t2d")
    vocab, small = facts.vocab_size, facts.draft_vocab_size
    drops: dict[str, str] = {}
    findings: list[Finding] = []
    how: dict[str, str] = {}
    new_d2t: bytes | None = None
    new_t2d: bytes | None = None
    if vocab is not None and small == vocab and (d2t is None or tables.is_identity(d2t)):
        for native in names.values():
            drops[native] = "the draft has the target's whole vocabulary; the table is the identity"
        return _Vocabulary(drops=drops, vocab_size=vocab)
    if d2t is None and t2d is not None and small not in (None, len(t2d)):
        d2t = tables.d2t_from_mask(t2d)
        new_d2t = tables.int64_bytes(d2t)
        how["d2t"] = "the ids that t2d selects, as offsets"
    if d2t is None:
        if small is not None and vocab is not None and small < vocab:
            findings.append(
                finding(
                    "VOC006",
                    f"the draft has {small} of the target's {vocab} ids and neither d2t nor t2d says which",
                    file=checkpoint.weight_files[0].name if checkpoint.weight_files else None,
                    hint="take d2t from the training run's vocabulary mapping",
                )
            )
        return _Vocabulary(findings=tuple(findings), vocab_size=vocab)
    for problem in tables.problems(d2t, vocab, small, t2d):
        if problem.kind == "absolute" and "d2t-absolute" in asked.repairs:
            d2t = tables.offsets(d2t)
            new_d2t = tables.int64_bytes(d2t)
            how["d2t"] = "offsets of the absolute ids (--repair d2t-absolute)"
            if "d2t" in names:
                drops[names["d2t"]] = "absolute ids, rewritten as offsets"
            continue
        findings.append(
            finding(
                _TABLE_CODES[problem.kind],
                problem.message,
                tensor=names.get("d2t") or names.get("t2d"),
                severity=Severity.WARNING
                if problem.kind == "mask" and to.name != "speculators"
                else Severity.ERROR,
                hint="--repair d2t-absolute rewrites it" if problem.kind == "absolute" else None,
            )
        )
    if "t2d" in derived_before and t2d is not None:
        drops[names["t2d"]] = "derived from d2t by the conversion that made this folder"
    needs_mask = to.name in ("speculators", "specforge", "safeailab")
    if needs_mask and not tables.is_ascending(d2t):
        findings.append(
            finding(
                "VOC007",
                f"d2t isn't in ascending order of target id; {to.title} takes the head's rows in the order of t2d",
                tensor=names.get("d2t"),
                hint="--to sglang and --to vllm keep the order",
            )
        )
    elif needs_mask and t2d is None and vocab is not None and not findings:
        new_t2d = tables.mask_from_d2t(d2t, vocab)
        how["t2d"] = "the ids that d2t maps to"
    return _Vocabulary(new_d2t, new_t2d, how, drops, tuple(findings), small, vocab, len(d2t))


def _tensors(
    checkpoint: Checkpoint,
    draft: Draft,
    variant: Variant,
    drops: Mapping[str, str],
    vocabulary: _Vocabulary,
    asked: Options,
) -> tuple[tuple[Tensor, ...], tuple[Rename, ...], tuple[Rename, ...], tuple[Cast, ...]]:
    """Output tensors in the order of the input's files, then the synthesised ones."""
    canonical = {native: name for name, native in draft.tensors.items()}
    out: list[Tensor] = []
    renames: list[Rename] = []
    copies: list[Rename] = []
    casts: list[Cast] = []
    for native, info in checkpoint.tensors.items():
        name = canonical.get(native)
        if name is None or native in drops:
            continue
        first, *more = variant.names.natives(name) or (name,)
        dtype = asked.dtype if asked.dtype and info.dtype in FLOAT_DTYPES else info.dtype
        if dtype != info.dtype:
            casts.append(Cast(first, info.dtype, dtype))
        renames.append(Rename(native, first))
        copies += [Rename(native, extra) for extra in more]
        out += [Tensor(n, dtype, info.shape, info.file, native, info.dtype) for n in (first, *more)]
    shard = out[-1].shard if out else "model.safetensors"
    # Readers map values in place: 8-byte elements first, single bytes last.
    if vocabulary.d2t is not None and slot_of(variant.algorithm, "d2t") is not None:
        first = out[0].shard if out else shard
        out.insert(0, Tensor("d2t", "I64", (vocabulary.rows,), first, data=vocabulary.d2t))
    if vocabulary.t2d is not None and slot_of(variant.algorithm, "t2d") is not None:
        out.append(Tensor("t2d", "BOOL", (vocabulary.vocab_size or 0,), shard, data=vocabulary.t2d))
    return tuple(out), tuple(renames), tuple(copies), tuple(casts)


def _other_files(checkpoint: Checkpoint) -> tuple[tuple[str, ...], dict[str, str]]:
    carried, left = [], {}
    for info in checkpoint.files:
        name = info.name
        if info.kind != "other" or name == "config.json" or name.endswith(".index.json"):
            continue
        if name in CARRIED or name.startswith(CARRIED_PREFIXES):
            carried.append(name)
        else:
            left[name] = LEFT.get(name, "not part of a draft as far as is known")
    return tuple(carried), left


def allowable(codes: tuple[str, ...]) -> tuple[str, ...]:
    """The given codes and prefixes, checked. Raises ``ValueError`` naming those that no code begins with."""
    known = names_of_codes()
    wrong = [c for c in codes if not any(k.startswith(c) for k in known)]
    if wrong:
        raise ValueError(", ".join(wrong))
    return codes
