"""SHP: shapes and attention geometry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.formats.canonical import expected_shape, slot_of, symbols
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def _expected(ctx: Context, canonical: str) -> tuple[int | None, ...] | None:
    assert ctx.draft is not None
    slot = slot_of(ctx.draft.algorithm, canonical)
    if slot is None:
        return None
    values = symbols(ctx.draft.facts)
    if _stated(ctx, "head_dim") is None and values.get("H") and values.get("A"):
        values["D"] = values["H"] // values["A"]  # what engines compute when head_dim is absent
    if "K" not in values and "A" in values:
        values["K"] = values["A"]
    if ctx.draft.facts.layer_type == "mla" and "self_attn" in canonical:
        return None
    return expected_shape(slot, values)


def _rank(canonical: str) -> int:
    """q before k, v and o: its rows show head_dim best."""
    return next((i for i, p in enumerate(ATTENTION) if f".{p}." in canonical), len(ATTENTION))


def _stated(ctx: Context, field: str) -> int | None:
    """A field as the config states it, whatever the tensors say."""
    config = ctx.checkpoint.config or {}
    inner = config.get("transformer_layer_config")
    value = (inner if isinstance(inner, dict) else config).get(field)
    return value if isinstance(value, int) else None


def _misfits(ctx: Context) -> Iterator[tuple[str, str, tuple[int, ...], tuple[int | None, ...]]]:
    """(canonical, native, shape, expected) of every tensor whose shape isn't the config's."""
    assert ctx.draft is not None
    for name, native in ctx.draft.tensors.items():
        wanted = _expected(ctx, name)
        shape = ctx.checkpoint.tensors[native].shape
        if wanted is None:
            continue
        if len(wanted) != len(shape) or any(
            w is not None and w != s for w, s in zip(wanted, shape, strict=False)
        ):
            yield name, native, shape, wanted


@check("SHP001", "fc-width", Severity.ERROR, needs=("draft",), after=("FIL",))
def fc_width(ctx: Context) -> Iterator[Hit]:
    """fc's input width isn't target_hidden_size times the captured layers.

    Checks: fc.weight is [hidden_size, target_hidden_size x captured layers]; against the target's hidden size, if it is known.
    Why: the engine refuses the tensor (assertion, or ValueError for DFlash), or the first prefill fails.
    Example: fc.weight takes 21504 inputs, which isn't a multiple of the target's 4096: 21504 = 3 x 7168 belongs to another model
    Fix: Use the draft that was trained for this target; state target_hidden_size when the widths differ.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:151-170; vllm 0.33.0 model_executor/models/llama_eagle3.py:209-221 (both run).
    """
    assert ctx.draft is not None
    facts = ctx.draft.facts
    native = ctx.draft.tensors.get("fc.weight")
    if native is None or facts.hidden_size is None or ctx.draft.algorithm == "mtp":
        return
    shape = ctx.checkpoint.tensors[native].shape
    theirs = ctx.target.hidden_size if ctx.target is not None else None
    factor = 2 if ctx.draft.algorithm == "eagle" else None
    if len(shape) != 2:
        yield Hit(f"{native} is {list(shape)}, not a matrix", tensor=native)
        return
    if factor == 2:
        if shape != (facts.hidden_size, 2 * facts.hidden_size):
            yield Hit(
                f"{native} is {list(shape)}, expected {[facts.hidden_size, 2 * facts.hidden_size]}",
                tensor=native,
            )
        return
    width = facts.target_hidden_size or facts.hidden_size
    stated = facts.num_aux if facts.num_aux else None
    if theirs is not None and width != theirs:
        layers = f"{shape[1] // theirs} x {theirs}" if shape[1] % theirs == 0 else None
        if facts.target_hidden_size is None and layers is not None and shape[0] == facts.hidden_size:
            yield Hit(
                f"{native} takes {shape[1]} = {layers} inputs, and the config computes {stated or 3} x {width}: hidden_size {width} differs "
                f"from the target's {theirs} and target_hidden_size is missing",
                tensor=native,
                hint=f'write "target_hidden_size": {theirs}',
            )
        else:
            yield Hit(
                f"{native} takes {shape[1]} inputs, expected {stated or 3} x {theirs} = {(stated or 3) * theirs} for the target "
                f"{ctx.target.id if ctx.target else ''}: the draft belongs to a target of another width",
                tensor=native,
                hint="use the draft that was trained for this target",
            )
        return
    if shape[0] != facts.hidden_size:
        yield Hit(f"{native} has {shape[0]} rows, hidden_size is {facts.hidden_size}", tensor=native)
    elif shape[1] % width:
        yield Hit(f"{native} takes {shape[1]} inputs, which isn't a multiple of {width}", tensor=native)
    elif stated is not None and shape[1] != stated * width:
        yield Hit(
            f"{native} takes {shape[1]} = {shape[1] // width} x {width} inputs, and the config states {stated} captured layers "
            f"({stated} x {width} = {stated * width})",
            tensor=native,
            hint="write the ids of all captured layers, as the draft was trained",
        )
    elif _built_width(ctx) not in (None, shape[1]):
        yield Hit(
            f"{native} takes {shape[1]} = {shape[1] // width} x {width} inputs, and {ctx.engine} builds fc for {_built_width(ctx)}",
            tensor=native,
            hint="write num_aux_hidden_states and the ids of all captured layers",
        )


def _built_width(ctx: Context) -> int | None:
    """fc's input width as the engine says when it refuses the tensor."""
    if ctx.load is None or ctx.load.refused is None or ctx.load.stage != "load" or ctx.draft is None:
        return None
    facts = ctx.draft.facts
    width = facts.target_hidden_size or facts.hidden_size
    shape = ctx.checkpoint.tensors[ctx.draft.tensors["fc.weight"]].shape
    if width is None or f"[{', '.join(map(str, shape))}]" not in ctx.load.refused:
        return None
    return 3 * width if shape[1] != 3 * width else None


@check("SHP002", "attention-geometry", Severity.ERROR, needs=("draft",), after=("FIL", "SHP006", "LAY010"))
def attention(ctx: Context) -> Iterator[Hit]:
    """Attention projections don't have the shape that heads and head_dim give.

    Checks: q/k/v/o are [heads x head_dim, input] and its transpose, with the config's heads and head_dim (hidden_size / heads when
        absent).
    Why: engines narrow a tensor that is too big without a word, and raise on one that is too small: attention over cut heads.
    Example: midlayer.self_attn.q_proj.weight has 96 rows = 4 heads x 24; the config gives 4 x 16: head_dim 24 is missing
    Fix: Write head_dim (and num_key_value_heads) as the tensors have them; ckpt fix-keys does.
    References: sglang 0.5.23 srt/layers/linear.py:1519-1525 (narrow); vllm 0.33.0 (run: cut silently).
    """
    assert ctx.draft is not None
    facts = ctx.draft.facts
    if facts.layer_type == "mla":
        return
    for name, native, shape, wanted in sorted(_misfits(ctx), key=lambda m: _rank(m[0])):
        part = next((p for p in ATTENTION if f".{p}." in name), None)
        if part is None or not name.endswith(".weight") or len(shape) != 2:
            continue
        axis = 1 if part == "o_proj" else 0
        heads = facts.num_attention_heads if part in ("q_proj", "o_proj") else facts.num_key_value_heads
        if shape[axis] == wanted[axis]:
            yield Hit(
                f"{native} is {list(shape)}, expected {list(wanted)}: its input isn't {wanted[1 - axis]} wide",
                tensor=native,
            )
            return
        side = "columns" if axis else "rows"
        # A q_proj of gated attention has twice the rows: that is another architecture, not this one.
        implied = shape[axis] // heads if heads and shape[axis] % heads == 0 else None
        stated = _stated(ctx, "head_dim")
        at = "/transformer_layer_config/head_dim" if ctx.draft.format == "speculators" else "/head_dim"
        yield Hit(
            f"{native} has {shape[axis]} {side}"
            + (f" = {heads} x {implied}" if implied else "")
            + f"; the config gives {wanted[axis]} (head_dim {stated if stated is not None else 'absent, so hidden_size / heads'}): "
            + (
                "the engine cuts it without a word"
                if shape[axis] > (wanted[axis] or 0)
                else "the engine refuses or pads it"
            ),
            tensor=native,
            pointer=at if stated is not None else None,
            hint=f'write "head_dim": {implied}'
            if implied and part == "q_proj"
            else "write the heads as the tensors have them",
        )
        return


@check("SHP003", "tensor-shape", Severity.ERROR, needs=("draft",), after=("FIL", "SHP001", "SHP006"))
def tensor_shape(ctx: Context) -> Iterator[Hit]:
    """A tensor doesn't have the shape that the config gives.

    Checks: MLP, norms, embedding, head and tables have the sizes that the config states.
    Why: sharded dimensions that are too big are cut and those that are too small are padded with zeros or refused; others are
        refused. A cut MLP drafts badly and nothing is logged.
    Example: midlayer.mlp.gate_proj.weight is [96, 64], expected [128, 64] (intermediate_size 128)
    Fix: Correct the config; ckpt inspect --tensors shows the shapes.
    References: sglang 0.5.23 srt/layers/linear.py:857-870, 1690-1700; vllm 0.33.0 (run).
    """
    groups: dict[str, list[tuple[str, tuple[int, ...], tuple[int | None, ...]]]] = {}
    for name, native, shape, wanted in _misfits(ctx):
        if name in ("fc.weight", "d2t", "t2d") or any(f".{p}." in name for p in ATTENTION):
            continue
        rows_only = name == "lm_head.weight" and len(shape) == 2 and shape[1] == wanted[1]
        if rows_only and (ctx.checkpoint.config or {}).get("draft_vocab_size") is None:
            continue  # HED008 says it
        groups.setdefault(_part(name), []).append((native, shape, wanted))
    for misfits in groups.values():
        native, shape, wanted = misfits[0]
        more = f" (and {len(misfits) - 1} more like it)" if len(misfits) > 1 else ""
        yield Hit(
            f"{native} is {list(shape)}, expected {[w if w is not None else '?' for w in wanted]} by the config{more}",
            tensor=native,
            hint="correct the config; ckpt inspect --tensors shows the shapes",
        )


def _part(canonical: str) -> str:
    """What a tensor's size depends on: the MLP's width, the norms' …, so that one wrong number is one finding."""
    if ".mlp." in canonical:
        return "mlp"
    return "norm" if "norm" in canonical else canonical


@check(
    "SHP008",
    "tensor-cut-by-engine",
    Severity.ERROR,
    needs=("load", "draft"),
    after=("FIL", "SHP001", "SHP002", "SHP003", "SHP006"),
)
def cut(ctx: Context) -> Iterator[Hit]:
    """The engine takes a part of a tensor, or fills it up with zeros.

    Checks: no parameter is made from a tensor that its loader cuts or pads.
    Why: loaders narrow what is too big and pad what is too small in sharded dimensions, without a word: the weights are another
        matrix's.
    Example: midlayer.self_attn.q_b_proj.weight is [512, 32], and the engine takes 256 rows of it
    Fix: Correct the config's sizes (q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim …).
    References: sglang 0.5.23 srt/layers/linear.py:569-572, 857-870, 1519-1525, 1690-1700; vllm 0.33.0
        model_executor/layers/linear.py (both run).
    """
    assert ctx.load is not None and ctx.draft is not None
    if ctx.load.refused:
        return
    found = [
        (n, f) for n, f in ctx.load.parameters.items() if f.cut and f.sources and f.filled_by != "target"
    ]
    if not found:
        return
    name, fill = found[0]
    sources = ", ".join(f"{s} {list(ctx.checkpoint.tensors[s].shape)}" for s in fill.sources)
    more = f"; so are {len(found) - 1} more parameters" if len(found) > 1 else ""
    yield Hit(
        f"{name} is made from {sources}, and {ctx.engine} changes it without a word ({fill.cut}){more}",
        tensor=fill.sources[0],
        hint="correct the config's sizes; ckpt inspect --tensors shows the shapes",
    )


@check("SHP006", "heads-inconsistent", Severity.ERROR, needs=("draft",))
def heads(ctx: Context) -> Iterator[Hit]:
    """Numbers of heads that no engine can build.

    Checks: num_key_value_heads divides num_attention_heads; without head_dim, num_attention_heads divides hidden_size.
    Why: the engine refuses the config, or computes a head_dim that the tensors don't have.
    Example: num_attention_heads 5 isn't a multiple of num_key_value_heads 2
    Fix: Correct the config.
    References: sglang 0.5.23 srt/models/llama.py:183-196; vllm 0.33.0 model_executor/models/llama.py.
    """
    assert ctx.draft is not None
    facts = ctx.draft.facts
    a, k = facts.num_attention_heads, facts.num_key_value_heads
    if a and k and facts.layer_type != "mla" and a % k:
        yield Hit(
            f"num_attention_heads {a} isn't a multiple of num_key_value_heads {k}",
            pointer="/num_key_value_heads",
        )
    if (
        a
        and facts.head_dim is None
        and facts.hidden_size
        and facts.hidden_size % a
        and facts.layer_type != "mla"
    ):
        yield Hit(
            f"head_dim is absent and hidden_size {facts.hidden_size} isn't a multiple of num_attention_heads {a}",
            pointer="/num_attention_heads",
        )


@check(
    "SHP007",
    "hidden-size-differs",
    Severity.ERROR,
    needs=("draft", "target.hidden_size"),
    after=("SHP001", "FIL"),
)
def hidden_size(ctx: Context) -> Iterator[Hit]:
    """The draft's width differs from the target's and nothing says so.

    Checks: hidden_size (or target_hidden_size) equals the target's hidden_size.
    Why: fc and the shared embedding don't fit.
    Example: hidden_size is 4096 and the target's is 7168
    Fix: Use the draft that was trained for this target.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:151-154; vllm 0.33.0 v1/worker/gpu/spec_decode/eagle/utils.py:18-77.
    """
    assert ctx.draft is not None and ctx.target is not None
    facts = ctx.draft.facts
    width = facts.target_hidden_size or facts.hidden_size
    if width is not None and width != ctx.target.hidden_size and ctx.draft.algorithm != "mtp":
        yield Hit(
            f"{'target_hidden_size' if facts.target_hidden_size else 'hidden_size'} is {width} and {ctx.target.id} has "
            f"{ctx.target.hidden_size}",
            pointer="/target_hidden_size" if facts.target_hidden_size else "/hidden_size",
            hint="use the draft that was trained for this target",
        )
