"""The engine ``sglang-ext``: its load map against what SGLang's loader with the package said, and heads it can't build."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.engines import engines, load_map, resolve
from ckpt_tools.engines.sglang_ext.head import (
    ARCHITECTURE,
    Head,
    HeadError,
    is_skipped,
    parameter_of,
    read_head,
)
from ckpt_tools.engines.sglang_ext.releases import RELEASES, release
from ckpt_tools.model import Checkpoint, FileInfo, LoadMap, TensorInfo
from tests.conftest import FIXTURES


@lru_cache(maxsize=1)
def recorded() -> Any:
    return json.loads(gzip.decompress((FIXTURES / "sglang_ext" / "recorded.json.gz").read_bytes()))


VERSIONS = ("0.5.9", "0.5.12", "0.5.23")
CASES = sorted(recorded()["cases"])


def checkpoint(case: str) -> Checkpoint:
    stored = recorded()["cases"][case]
    tensors = {
        name: TensorInfo(name, dtype, tuple(shape), "model.safetensors", 0, 0)
        for name, (dtype, shape) in stored["tensors"].items()
    }
    files = (FileInfo("model.safetensors", 1, "safetensors"),)
    return Checkpoint(case, f"/cases/{case}", stored["config"], "{}", tensors, files)


def mapped(case: str, version: str, **options: Any) -> LoadMap:
    return load_map(resolve(f"sglang-ext=={version}", "--engine"), checkpoint(case), **options)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_the_load_map_is_what_the_loader_did(case: str, version: str) -> None:
    answer = recorded()["answers"][version][case]
    found = mapped(case, version)
    if found.stage == "config":  # in transformers' own words
        assert answer["refused"].partition(":")[0] == (found.refused or "").partition(":")[0]
    else:
        assert found.refused == answer["refused"]
    if answer["refused"]:
        assert answer["stage"] == ("load" if found.stage == "load" else "class")
        return
    assert found.architecture == answer["class"]
    assert set(found.parameters) == set(answer["parameters"])
    seen = {name: sorted(fill.sources) for name, fill in found.parameters.items()}
    assert seen == {name: sorted(sources) for name, (_, _, sources) in answer["parameters"].items()}
    if case == "other-class":
        return
    for name, (_, unfilled, _) in answer["parameters"].items():
        fill = found.parameters[name]
        assert fill.filled_by in ("checkpoint", "target")
        assert (unfilled == 0) or fill.filled_by == "target"
    consumed = {s for _, _, sources in answer["parameters"].values() for s in sources} | {"d2t"}
    assert set(found.unused) == set(checkpoint(case).tensors) - consumed


def test_every_head_of_speculators_is_filled_on_the_newest_release() -> None:
    for case in (
        "2layer",
        "4aux",
        "bias",
        "fcnorm",
        "fullvocab",
        "nbf_normout",
        "nbr",
        "plain",
        "qwen3",
        "traindefaults",
    ):
        found = mapped(case, "0.5.23")
        assert found.refused is None and found.architecture == ARCHITECTURE
        assert {f.filled_by for n, f in found.parameters.items() if n != "model.embed_tokens.weight"} == {
            "checkpoint"
        }


def test_a_kept_embedding_is_the_checkpoints_and_another_the_targets() -> None:
    name = "model.embed_tokens.weight"
    assert mapped("own-embedding", "0.5.23").parameters[name].filled_by == "checkpoint"
    assert mapped("nbr", "0.5.23").parameters[name].filled_by == "target"
    assert mapped("no-embedding", "0.5.23").parameters[name].sources == ()


def test_what_a_refused_folder_filled() -> None:
    found = mapped("missing-v", "0.5.23").parameters
    assert found["model.layers.0.self_attn.qkv_proj.weight"].filled_by == "partly"
    assert mapped("missing-fc", "0.5.23").parameters["model.fc.weight"].filled_by == "nothing"
    assert (
        mapped("missing-hidden-norm", "0.5.23").parameters["model.layers.0.hidden_norm.weight"].filled_by
        == "default"
    )


def test_without_cuda_graphs_old_releases_take_it() -> None:
    assert mapped("4aux", "0.5.9").stage == "class"
    assert mapped("4aux", "0.5.9", cuda_graphs=False).refused is None
    assert mapped("own-ids", "0.5.9", cuda_graphs=False).refused is None


def test_sglang_itself_refuses_the_folder_as_it_says() -> None:
    said = json.loads((FIXTURES / "sglang_ext" / "said.json").read_text("utf-8"))["without"]
    for version in VERSIONS:
        found = load_map(resolve(f"sglang=={version}", "--engine"), checkpoint("nbr"))
        assert (
            found.refused == said[version] and f"'{ARCHITECTURE}' is not a registered model" in said[version]
        )


def test_recorded_forwards_are_equal_to_speculators() -> None:
    said = json.loads((FIXTURES / "sglang_ext" / "said.json").read_text("utf-8"))
    assert set(said["forward"]) == {*VERSIONS, "0.5.16"} and set(said["forward_tp2"]) == set(VERSIONS)
    for heads in (*said["forward"].values(), *said["forward_tp2"].values()):
        assert len(heads) == 10 and all(d < 1e-5 for steps in heads.values() for d in steps)


@pytest.mark.parametrize(
    ("target", "lacks"), [("kimi_k25_tiny", []), ("qwen3_vl_tiny", ["set_embed_and_head"])]
)
def test_recorded_targets_get_their_hooks(target: str, lacks: list[str]) -> None:
    said = json.loads((FIXTURES / "sglang_ext" / "said.json").read_text("utf-8"))["target"][target]
    assert len(said["0.5.9"]["without"]["missing"]) == 3
    completed = said["0.5.9"]["with"]
    assert completed == {
        "missing": lacks, "shared": [[256, 64], [256, 64]], "default": [2, 4, 5], "captured": [2, 4, 5], "same": True,
    }  # fmt: skip
    assert completed == said["0.5.12"]["without"] == said["0.5.12"]["with"]  # as the release that has them


def test_it_is_found_and_takes_every_release() -> None:
    contract = engines()["sglang-ext"]
    assert contract.contracts == RELEASES and contract.default == "0.5.23"
    assert resolve("sglang-ext==0.5.10", "--engine").contract == "0.5.10"


def head(**changes: Any) -> Head:
    return read_head({**recorded()["cases"]["nbr"]["config"], **changes})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_size", None, "hidden_size is None"),
        ("num_hidden_layers", True, "num_hidden_layers is True"),
        ("max_position_embeddings", 0, "max_position_embeddings is 0"),
        ("hidden_act", "gelu", "silu alone"),
        ("model_type", "qwen3", "model_type llama"),
        ("tie_word_embeddings", True, "own lm_head"),
        ("num_aux_hidden_states", 1, "nothing tells them apart"),
        ("layer_types", ["full_attention"] * 3, "3 entries for 1 layers"),
        ("layer_types", ["chunked_attention"], "chunked_attention"),
    ],
)
def test_a_config_that_the_class_cant_build(field: str, value: Any, words: str) -> None:
    with pytest.raises(HeadError) as raised:
        head(**{field: value})
    assert words in str(raised.value)


def test_two_norms_before_fc_and_a_window_without_a_size() -> None:
    with pytest.raises(HeadError, match="one of them"):
        head(fc_norm=True, norm_before_fc=True)
    with pytest.raises(HeadError, match="sliding_window is missing"):
        head(layer_types=["sliding_attention"], sliding_window=None)


def test_windows_from_either_spelling() -> None:
    assert head(sliding_window=16, layer_types=None).windows == (16,)
    assert head(sliding_window=16, layer_types=None, use_sliding_window=False).windows == (None,)
    assert head(sliding_window=None, layer_types=None).windows == (None,)
    cut = head(sliding_window=16, layer_types=["sliding_attention"])
    assert [cut.window(n) for n in (None, 512, 17, 16)] == [16, 16, 16, None]


def test_another_targets_width_keeps_the_embedding() -> None:
    other = head(target_hidden_size=96)
    assert other.own_embedding and other.tensors()["fc.weight"] == (64, 288)
    assert head(num_key_value_heads=None, head_dim=None).tensors()["layers.0.self_attn.k_proj.weight"] == (
        64,
        128,
    )


def test_ids_that_old_graphs_ignore() -> None:
    old, new = release("0.5.10.post1"), release("0.5.11")
    block = {"eagle_aux_hidden_state_layer_ids": [0, 3, 5]}
    assert "whatever the config says" in (head(eagle_config=block).limit(old) or "")
    assert head(eagle_config=block).limit(new) is None
    assert head().limit(old) is None
    assert head(eagle_config=None).limit(old) is None


@given(
    st.integers(1, 3),
    st.integers(2, 5),
    st.sampled_from([None, "norm_before_fc", "fc_norm"]),
    st.lists(st.sampled_from(["attention_bias", "mlp_bias", "fc_bias", "qk_norm"]), unique=True),
)
def test_every_tensor_has_one_home_and_every_parameter_its_tensors(
    layers: int, aux: int, norm: str | None, flags: list[str]
) -> None:
    config = {"num_hidden_layers": layers, "num_aux_hidden_states": aux, "layer_types": None}
    built = head(**config, **dict.fromkeys(flags, True), **({norm: True} if norm else {}))
    tensors, parameters = built.tensors(), built.parameters()
    homes = [t for sources in parameters.values() for t in sources]
    assert sorted(homes) == sorted(set(tensors) - {"d2t", "t2d"})
    assert all(parameter_of(t)[0] == name for name, sources in parameters.items() for t in sources)
    assert built.disagreement(tensors) is None
    assert built.disagreement({n: s for n, s in tensors.items() if n not in built.optional()}) is None
    for name in set(tensors) - built.optional():
        said = built.disagreement({n: s for n, s in tensors.items() if n != name})
        assert said is not None and f"no tensor for {name}" in said
        wrong = built.disagreement({**tensors, name: (1, 2, 3)})
        assert wrong is not None and f"{name} is [1, 2, 3]" in wrong


def test_shards_of_fused_parameters() -> None:
    assert parameter_of("layers.1.self_attn.k_proj.bias") == ("model.layers.1.self_attn.qkv_proj.bias", "k")
    assert parameter_of("layers.0.mlp.up_proj.weight") == ("model.layers.0.mlp.gate_up_proj.weight", 1)
    assert parameter_of("lm_head.weight") == ("lm_head.weight", None)
    assert is_skipped("verifier_norm.weight") and not is_skipped("norm.weight")
