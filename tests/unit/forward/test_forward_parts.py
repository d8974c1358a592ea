"""Semantics, specs, loading, borrowed parts, recursion details and tensor parallelism."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.errors import InputError, Unavailable, UsageError
from ckpt_tools.forward import semantics
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.heads import BlockHead, EagleHead, PEagleHead, build
from ckpt_tools.forward.layers import Alone, MlaAttention, fused, kv_share, share, take
from ckpt_tools.forward.loading import load, load_tensors, shapes_of
from ckpt_tools.forward.parallel import torchrun
from ckpt_tools.forward.parts import Rows, Table, TargetParts
from ckpt_tools.forward.refine import Markov
from ckpt_tools.forward.spec import HeadSpec, Mla, resolve
from ckpt_tools.model import Checkpoint, Draft, DraftFacts, Rope, TensorInfo

from .drafts import FIXTURES, Recorded
from .pair import PAIR, TENSORS, pair_side

FACTS = DraftFacts(
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=50,
    draft_vocab_size=20,
    rope=Rope(theta=1e4),
    rms_norm_eps=1e-6,
    layer_type="llama",
)
H = 16


def shapes(layers: int = 1, aux: int = 3) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, aux * H),
        "norm.weight": (H,),
        "lm_head.weight": (20, H),
        "embed_tokens.weight": (50, H),
        "d2t": (20,),
        "layers.0.hidden_norm.weight": (H,),
    }
    for i in range(layers):
        p, wide = f"layers.{i}.", 2 * H if i == 0 else H
        out |= {
            p + "self_attn.q_proj.weight": (32, wide),
            p + "self_attn.k_proj.weight": (16, wide),
            p + "self_attn.v_proj.weight": (16, wide),
            p + "self_attn.o_proj.weight": (H, 32),
            p + "mlp.gate_proj.weight": (24, H),
            p + "mlp.up_proj.weight": (24, H),
            p + "mlp.down_proj.weight": (H, 24),
            p + "input_layernorm.weight": (H,),
            p + "post_attention_layernorm.weight": (H,),
        }
    return out


def fill(shapes_: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = {
        n: torch.randn(s, generator=generator) * s[-1] ** -0.5 if len(s) > 1 else torch.ones(s)
        for n, s in shapes_.items()
    }
    if "d2t" in out:
        out["d2t"] = torch.arange(20)
    return out


def draft(
    algorithm: str = "eagle3", names: dict[str, tuple[int, ...]] | None = None, **facts: object
) -> Draft:
    names = shapes() if names is None else names
    return Draft("test", algorithm, (), replace(FACTS, **facts), {n: n for n in names})  # type: ignore[arg-type]


def spec_of(
    algorithm: str = "eagle3", engine: str = "speculators", version: str | None = None, **facts: object
) -> HeadSpec:
    return resolve(draft(algorithm, **facts), shapes(), semantics.find(engine, version))


# ---- semantics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "version", "found"),
    [
        ("sglang", None, "0.5.17"),
        ("sglang", "0.5.23", "0.5.17"),
        ("sglang", "0.5.12.post1", "0.5.12"),
        ("sglang", "0.5.9", "0.4.9"),
        ("sglang", "0.4.6", "0.4.9"),
        ("vllm", "0.33.0", "0.25.0"),
        ("vllm", "0.9.0", "0.10.1"),
    ],
)
def test_versions(engine: str, version: str | None, found: str) -> None:
    assert semantics.find(engine, version).version == found


def test_an_unknown_engine() -> None:
    with pytest.raises(UsageError, match="trtllm"):
        semantics.find("trtllm")


@pytest.mark.parametrize("framework", sorted(semantics.FRAMEWORKS))
def test_every_difference_has_its_reference(framework: str) -> None:
    common = semantics.Semantics(engine=framework, version="")
    for known in semantics.FRAMEWORKS[framework]:
        for field in vars(common):
            if field in ("engine", "version", "references"):
                continue
            if getattr(known, field) != getattr(common, field):
                assert ".py" in known.references[field], (str(known), field)


def test_our_classes_for_sglang() -> None:
    ours, theirs = semantics.find("sglang-ext"), semantics.find("sglang")
    assert "llama" in ours.norm_before_residual
    assert "llama" not in theirs.norm_before_residual
    assert ours.embedding == theirs.embedding == "target"
    assert str(ours) == f"sglang-ext=={theirs.version}"


# ---- spec ------------------------------------------------------------------------------------------------------


def test_what_engines_make_of_flags() -> None:
    flags = {"norm_before_residual": True, "norm_output": True, "norm_before_fc": True}
    assert spec_of(**flags).norm_before_residual
    assert not spec_of("eagle3", "sglang", **flags).norm_before_residual
    assert spec_of("eagle3", "sglang", **flags).input_norm
    assert not spec_of("eagle3", "sglang", "0.5.12", **flags).input_norm
    assert spec_of("eagle3", "sglang", "0.5.12", **flags).norm_output
    assert not spec_of("eagle3", "sglang", "0.5.9", **flags).norm_output
    assert spec_of("eagle3", "vllm", **flags).norm_before_residual
    assert not spec_of("eagle3", "vllm", "0.17.0", **flags).norm_output


def test_positions_start_where_the_framework_does() -> None:
    assert spec_of().position_start == 1
    assert spec_of("eagle3", "vllm").position_start == 0


def test_one_layer_only() -> None:
    two = shapes(layers=2)
    old = resolve(draft(names=two), two, semantics.find("sglang", "0.5.9"))
    assert old.num_layers == 1
    assert "layers.1.mlp.up_proj.weight" in old.unused
    assert resolve(draft(names=two), two, semantics.sglang).num_layers == 2


def test_a_tied_head_is_the_embedding() -> None:
    assert spec_of("eagle3", "sglang", tie_word_embeddings=True).head == "embedding"
    assert spec_of("eagle3", "vllm", tie_word_embeddings=True).head == "own"


def test_whose_embedding() -> None:
    assert spec_of().embedding == "own"
    assert spec_of("eagle3", "sglang").embedding == "target"
    wide = {**shapes(), "fc.weight": (H, 3 * 24)}
    assert resolve(draft(target_hidden_size=24), wide, semantics.sglang).embedding == "own"


def test_windows_are_a_flag_on_sglang() -> None:
    facts = {"sliding_window": 8, "layer_types": ("sliding_attention",)}
    assert spec_of(**facts).windows == (8,)
    assert spec_of("eagle3", "sglang", **facts).windows == (None,)


def test_causality_of_blocks() -> None:
    facts = {"sliding_window": 8, "layer_types": ("sliding_attention",), "block_size": 4, "mask_token_id": 1}
    assert spec_of("dflash", **facts).causal == (True,)
    assert spec_of("dflash", **facts, extra={"sliding_window_non_causal": True}).causal == (False,)
    full = {**facts, "layer_types": ("full_attention",), "extra": {"sliding_window_non_causal": False}}
    assert spec_of("dflash", **full).causal == (False,)
    assert spec_of("dflash", "vllm", **full).causal == (True,)
    assert spec_of("dflash", "vllm", **{**full, "extra": {"is_causal": False}}).causal == (False,)


Q_PROJ, O_PROJ = "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.o_proj.weight"


@pytest.mark.parametrize(
    ("names", "facts", "says"),
    [
        ({n: s for n, s in shapes().items() if n != Q_PROJ}, {}, "q_proj"),
        ({n: s for n, s in shapes().items() if n != O_PROJ}, {}, "o_proj"),
        (shapes(), {"rms_norm_eps": None}, "rms_norm_eps"),
        (shapes(), {"head_dim": None, "num_attention_heads": None}, "head_dim"),
        (shapes(), {"head_dim": 5}, "multiple of head_dim"),
        ({n: s for n, s in shapes().items() if "layers" not in n}, {}, "layers.0"),
    ],
)
def test_a_head_that_cant_be_decided(
    names: dict[str, tuple[int, ...]], facts: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        resolve(draft(**facts), names, semantics.speculators)


def test_an_algorithm_without_a_head() -> None:
    with pytest.raises(Unavailable, match="medusa"):
        spec_of("medusa")
    with pytest.raises(Unavailable, match="gated"):
        resolve(draft(), {**shapes(), O_PROJ: (H, 16)}, semantics.speculators)


def test_head_dim_from_the_heads() -> None:
    assert spec_of(head_dim=None).head_dim == 8


# ---- MLA -------------------------------------------------------------------------------------------------------


def mla_shapes() -> dict[str, tuple[int, ...]]:
    out = {n: s for n, s in shapes().items() if "self_attn" not in n}
    p = "layers.0.self_attn."
    return out | {
        p + "q_a_proj.weight": (12, 2 * H),
        p + "q_a_layernorm.weight": (12,),
        p + "q_b_proj.weight": (4 * (8 + 4), 12),
        p + "kv_a_proj_with_mqa.weight": (10 + 4, 2 * H),
        p + "kv_a_layernorm.weight": (10,),
        p + "kv_b_proj.weight": (4 * (8 + 6), 10),
        p + "o_proj.weight": (H, 4 * 6),
    }


@torch.no_grad()
def test_an_mla_head() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}
    named = draft(names=mla_shapes(), fc_norm=True, norm_before_fc=True, rope=Rope(theta=1e4, scaling=yarn))
    spec = resolve(named, mla_shapes(), semantics.sglang)
    assert spec.mla == Mla(12, 10, 8, 4, 6)
    assert spec.layer_type == "mla"
    assert spec.fc_norm
    assert not spec.input_norm
    tensors = fill(mla_shapes())
    head = build(spec, tensors, TargetParts(Table(tensors["embed_tokens.weight"])))
    tokens, aux = torch.arange(6).unsqueeze(0), torch.randn(1, 6, 3 * H)
    drafted = head.draft(tokens, aux, 3)
    assert drafted.logits.shape == (1, 3, 20)
    rows = head.rows(torch.cat((tokens, drafted.ids[:, :2]), 1), torch.cat((aux, aux[:, :2]), 1), 3)
    torch.testing.assert_close(rows[0, 5], drafted.logits[0], rtol=1e-4, atol=1e-5)
    assert not resolve(named, mla_shapes(), semantics.find("sglang", "0.5.12")).fc_norm
    with pytest.raises(InputError, match="ranks"):
        MlaAttention(replace(spec, mla=None), tensors, "layers.0.", 0, Alone())


# ---- EAGLE-1, edges of the heads --------------------------------------------------------------------------------


@torch.no_grad()
def test_an_eagle1_head() -> None:
    names = {n: s for n, s in shapes(layers=2).items() if n not in ("norm.weight", "lm_head.weight", "d2t")}
    names |= {"fc.weight": (H, 2 * H), "fc.bias": (H,)}
    for part in "qkv":
        names[f"layers.0.self_attn.{part}_proj.weight"] = names[f"layers.1.self_attn.{part}_proj.weight"]
    tensors = fill(names)
    tensors["fc.bias"] = torch.randn(H)
    spec = resolve(draft("eagle", names=names), names, semantics.sglang)
    assert spec.head == "target"
    assert spec.fc_bias
    assert "layers.0.input_layernorm.weight" in spec.unused
    parts = TargetParts(Table(torch.randn(50, H)), torch.randn(50, H))
    head = build(spec, tensors, parts)
    tokens, aux = torch.arange(6).unsqueeze(0), torch.randn(1, 6, H)
    out = head.draft(tokens, aux, 3)
    assert out.logits.shape == (1, 3, 20)
    # by hand, one step over one row
    one = head.draft(tokens[:, :1], aux[:, :1], 1).logits
    assert parts.embed is not None
    x = torch.cat((parts.embed(tokens[:, :1]), aux[:, :1]), -1) @ tensors["fc.weight"].T + tensors["fc.bias"]

    def rms(t: torch.Tensor) -> torch.Tensor:
        return t / (t.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    for i in range(2):
        p = f"layers.{i}."
        entering = x if i == 0 else rms(x)
        v = (entering @ tensors[p + "self_attn.v_proj.weight"].T).view(1, 1, 2, 8)
        x = x + v.repeat_interleave(2, 2).flatten(2) @ tensors[p + "self_attn.o_proj.weight"].T
        n = rms(x)
        gate = torch.nn.functional.silu(n @ tensors[p + "mlp.gate_proj.weight"].T)
        x = x + (gate * (n @ tensors[p + "mlp.up_proj.weight"].T)) @ tensors[p + "mlp.down_proj.weight"].T
    assert parts.head is not None
    torch.testing.assert_close(one[0], (x[0] @ parts.head.T)[:, :20], rtol=1e-4, atol=1e-5)
    vllm = resolve(draft("eagle", names=names), names, semantics.vllm)
    assert not vllm.fc_bias


@torch.no_grad()
@pytest.mark.parametrize("engine", ["speculators", "vllm"])
def test_a_window_in_rows_is_a_window_in_drafting(engine: str) -> None:
    spec = spec_of("eagle3", engine, sliding_window=5, layer_types=("sliding_attention",))
    tensors = fill(shapes())
    head = build(spec, tensors)
    full = build(replace(spec, windows=(None,)), tensors)
    tokens, aux = torch.arange(20).unsqueeze(0), torch.randn(1, 20, 3 * H)
    rows = head.rows(tokens, aux, 3)
    drafted = head.draft(tokens[:, :15], aux[:, :15], 3, forced=tokens[:, 15:17])
    torch.testing.assert_close(rows[0, 14], drafted.logits[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(full.rows(tokens, aux, 3)[0, 14], rows[0, 14], atol=1e-4)


@torch.no_grad()
def test_fc_is_skipped_when_the_widths_are_equal() -> None:
    names = shapes(aux=1)
    tensors = fill(names)
    spec = resolve(draft(names=names), names, semantics.sglang)
    assert spec.skip_fc
    assert "fc.weight" in spec.unused
    head = build(spec, tensors, TargetParts(Table(tensors["embed_tokens.weight"])))
    assert isinstance(head, EagleHead)
    aux = torch.randn(1, 3, H)
    assert head.fuse(aux) is aux
    assert not resolve(draft(names=names), names, semantics.speculators).skip_fc


def test_states_of_the_wrong_width() -> None:
    head = build(spec_of(), fill(shapes()))
    with pytest.raises(InputError, match="3 captured layers of 16"):
        head.draft(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, H), 1)


def test_what_must_be_borrowed() -> None:
    tensors = fill(shapes())
    with pytest.raises(InputError, match="token embedding from the target"):
        build(spec_of("eagle3", "sglang"), tensors)
    borrowed = replace(spec_of(), head="target")
    with pytest.raises(InputError, match="lm_head from the target"):
        build(borrowed, tensors)
    tied = spec_of("eagle3", "sglang", tie_word_embeddings=True)
    lazy = Rows(lambda ids: torch.zeros(len(ids), H), 50, dtype=torch.float32)
    with pytest.raises(InputError, match="tie_word_embeddings"):
        build(tied, tensors, TargetParts(lazy))
    head = build(tied, tensors, TargetParts(Table(tensors["embed_tokens.weight"])))
    assert isinstance(head, EagleHead)
    assert head.head.shape == (20, H)
    with pytest.raises(InputError, match="missing"):
        take({}, "fc.weight")


def test_parallel_heads_state_what_they_need() -> None:
    names = {**shapes(), "mask_hidden": (1, 1, 3 * H)}
    spec = resolve(draft("peagle", names=names), names, semantics.speculators)
    with pytest.raises(InputError, match="mask_token_id"):
        build(spec, fill(names))
    with pytest.raises(InputError, match="block_size"):
        build(spec_of("dflash"), fill(shapes()))
    with pytest.raises(InputError, match="markov_head_type"):
        Markov(
            replace(spec_of(), markov="odd"),
            {
                "markov_head.markov_w1.weight": torch.zeros(1, 1),
                "markov_head.markov_w2.weight": torch.zeros(1, 1),
            },
        )


@torch.no_grad()
def test_peagle_drafts_what_its_rows_say() -> None:
    recorded = Recorded(FIXTURES / "forward" / "speculators" / "peagle_qwen3.safetensors")
    head = build(resolve(recorded.draft, recorded.shapes, semantics.speculators), recorded.tensors)
    assert isinstance(head, PEagleHead)
    tokens, aux = recorded.inputs["input_ids"], recorded.inputs["hidden_states"]
    rows = head.rows(tokens, aux, 4)
    drafted = head.draft(tokens[:, :9], aux[:, :9], 4)
    torch.testing.assert_close(rows[0, 8], drafted.logits[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["dflash", "dflash2", "dflash_noncausal"])
def test_a_block_drafts_what_its_rows_say(name: str) -> None:
    recorded = Recorded(FIXTURES / "forward" / "speculators" / f"{name}.safetensors")
    spec = resolve(recorded.draft, recorded.shapes, semantics.speculators)
    head = build(spec, recorded.tensors, recorded.target)
    assert isinstance(head, BlockHead)
    assert head.max_steps == 3
    tokens, aux = recorded.inputs["input_ids"], recorded.inputs["hidden_states"]
    drafted = head.draft(tokens[:, :9], aux[:, :9], 3)
    forced = torch.cat((tokens[:, :9], drafted.ids, tokens[:, 12:]), 1)
    rows = head.rows(forced, aux, 3)
    torch.testing.assert_close(rows[0, 8], drafted.logits[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="proposes 3 tokens"):
        head.draft(tokens, aux, 4)
    lone = head.draft(tokens[:, :1], aux[:, :1], 2, forced=tokens[:, :1])
    assert lone.ids.shape == (1, 2)


@torch.no_grad()
def test_mtp_drafts_what_its_rows_say() -> None:
    recorded = Recorded(FIXTURES / "forward" / "speculators" / "mtp_qwen3.safetensors")
    spec = resolve(recorded.draft, recorded.shapes, semantics.speculators)
    head = build(spec, recorded.tensors, recorded.target)
    tokens, hidden = recorded.inputs["input_ids"], recorded.inputs["hidden_states"]
    drafted = head.draft(tokens[:, :9], hidden[:, :9], 3)
    again = head.draft(tokens[:, :9], hidden[:, :9], 3, forced=drafted.ids[:, :2])
    assert torch.equal(drafted.logits, again.logits)
    continued = torch.cat((tokens[:, :9], drafted.ids), 1)
    rows = head.rows(continued[:, :9], hidden[:, :9], 1)
    torch.testing.assert_close(rows[0, 8, 0], drafted.logits[0, 0], rtol=1e-4, atol=1e-5)


# ---- parts -----------------------------------------------------------------------------------------------------


def test_rows_are_fetched_once() -> None:
    asked: list[list[int]] = []

    def fetch(ids: object) -> torch.Tensor:
        asked.append(list(ids))  # type: ignore[call-overload]
        return torch.tensor([[float(i)] for i in ids])  # type: ignore[attr-defined]

    rows = Rows(fetch, 10, dtype=torch.float32)
    assert rows(torch.tensor([[3, 1], [3, 3]])).tolist() == [[[3.0], [1.0]], [[3.0], [3.0]]]
    assert rows(torch.tensor([1, 2])).tolist() == [[1.0], [2.0]]
    assert asked == [[1, 3], [2]]
    assert rows.fetched == 3
    for outside in (-1, 10):
        with pytest.raises(InputError, match=f"id {outside} is outside"):
            rows(torch.tensor([outside]))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_fusing_neighbours_copies_nothing(a: int, b: int, width: int) -> None:
    both = torch.arange(float((a + b) * width)).view(a + b, width)
    joined = fused([both[:a], both[a:]])
    assert torch.equal(joined, both)
    assert joined.data_ptr() == both.data_ptr()
    apart = fused([both[:a].clone(), both[a:]])
    assert torch.equal(apart, both)
    assert apart.data_ptr() != both.data_ptr()


# ---- loading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    path: Path
    start: int
    stop: int


def checkpoint() -> tuple[Checkpoint, bytes]:
    raw = (PAIR / "draft" / "model.safetensors").read_bytes()
    import json

    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    infos = {
        n: TensorInfo(
            n,
            e["dtype"],
            tuple(e["shape"]),
            "model.safetensors",
            *(8 + length + o for o in e["data_offsets"]),
        )
        for n, e in header.items()
    }
    return Checkpoint("pair", str(PAIR / "draft"), None, "", infos, ()), raw


@pytest.mark.parametrize("by_range", [False, True])
def test_loading(by_range: bool) -> None:
    opened, raw = checkpoint()
    path = PAIR / "draft" / "model.safetensors"

    def reader(name: str) -> bytes | Where:
        info = opened.tensors[name]
        return Where(path, info.start, info.stop) if by_range else raw[info.start : info.stop]

    named = Draft("test", "eagle3", (), FACTS, {**{n: n for n in TENSORS}, "gone": "gone"})
    found = load_tensors(named, opened, reader, threads=2, skip=("embed_tokens.weight",))
    assert found.keys() == TENSORS.keys() - {"embed_tokens.weight"}
    for name, tensor in found.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])
    q, k = found["layers.0.self_attn.q_proj.weight"], found["layers.0.self_attn.k_proj.weight"]
    assert fused([q, k]).data_ptr() == q.data_ptr()
    wide = load_tensors(named, opened, reader, dtype=torch.float32)
    assert wide["fc.weight"].dtype == torch.float32
    assert wide["d2t"].dtype == torch.int64
    assert shapes_of(named, opened)["fc.weight"] == (64, 192)


def test_loading_what_doesnt_agree_with_its_header(tmp_path: Path) -> None:
    info = TensorInfo("x", "F32", (4,), "f", 0, 16)
    with pytest.raises(InputError, match="16 bytes, found 3"):
        load({"x": info}, lambda _: b"abc")
    short = tmp_path / "f"
    short.write_bytes(b"\0" * 10)
    with pytest.raises(InputError, match="6 bytes early"):
        load({"x": info}, lambda _: Where(short, 0, 16))
    with pytest.raises(InputError, match="F4"):
        load({"x": replace(info, dtype="F4")}, lambda _: b"")


# ---- tensor parallelism ----------------------------------------------------------------------------------------

RANKS = """
import sys
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.heads import build
from ckpt_tools.forward.parallel import torchrun
from ckpt_tools.forward.semantics import speculators
from ckpt_tools.forward.spec import resolve
from tests.unit.forward.drafts import FIXTURES, Recorded
from tests.unit.forward.test_forward_parts import draft, fill, mla_shapes
from pathlib import Path

worst = 0.0
with torchrun(2, "cpu") as group, torch.no_grad():
    for name in ("eagle3_bias", "eagle3_qwen3", "dflash2", "mtp_qwen3", "peagle_qwen3"):
        r = Recorded(FIXTURES / "forward" / "speculators" / f"{name}.safetensors")
        spec = resolve(r.draft, r.shapes, speculators)
        tokens, aux = r.inputs["input_ids"], r.inputs["hidden_states"]
        one = build(spec, r.tensors, r.target).draft(tokens, aux, 3)
        two = build(spec, r.tensors, r.target, group).draft(tokens, aux, 3)
        finite = one.logits.isfinite()
        worst = max(worst, float((one.logits - two.logits)[finite].abs().max()))
        assert torch.equal(one.ids, two.ids), name
    spec = resolve(draft(names=mla_shapes()), mla_shapes(), speculators)
    tensors, tokens = fill(mla_shapes()), torch.arange(6).unsqueeze(0)
    aux = torch.randn(1, 6, 48, generator=torch.Generator().manual_seed(0))
    one, two = (build(spec, tensors, comm=c).draft(tokens, aux, 3) for c in (None, group))
    worst = max(worst, float((one.logits - two.logits).abs().max()))
    Path(sys.argv[1], str(group.rank)).write_text(str(worst))
"""


def test_two_ranks_give_the_same_logits(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(script), str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [float((tmp_path / str(rank)).read_text()) for rank in range(2)] == pytest.approx([0, 0], abs=1e-5)


def test_ranks_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match="no torchrun"), torchrun(2, "cpu"):
        pass
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="found 4"), torchrun(2, "cpu"):
        pass


def test_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WORLD_SIZE": "1",
        "RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    with torchrun(1, "cpu") as group:
        x = torch.randn(2, 3)
        assert torch.equal(group.all_reduce(x.clone()), x)
        assert torch.equal(group.all_gather(x), x)
        assert (group.rank, group.size) == (0, 1)


@dataclass
class Ranks(Alone):
    rank: int = 0
    size: int = 1


def test_shares() -> None:
    spec = spec_of()
    assert share(8, Ranks(1, 4), "heads").start == 2
    with pytest.raises(InputError, match="3 equal parts"):
        share(8, Ranks(0, 3), "heads")
    repeated = [kv_share(spec, Ranks(r, 4)).start for r in range(4)]
    assert repeated == [0, 0, 1, 1]
    with pytest.raises(InputError, match="repeated over 3 ranks"):
        kv_share(spec, Ranks(0, 3))


def test_the_observer_sees_every_stage() -> None:
    side = pair_side()
    head = build(side.spec, side.tensors)
    seen: list[str] = []
    head.observer = lambda name, _: seen.append(name)
    with torch.no_grad():
        head.draft(torch.ones(1, 3, dtype=torch.long), torch.zeros(1, 3, 192), 2)
    assert seen == ["fc", "layers.0", "norm", "step.0", "layers.0", "norm", "step.1"]
