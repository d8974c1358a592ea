"""Smoke through the API: what it borrows of its target, what it refuses, what it reports."""
# an edit is given tensors and config, and most change one of them

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_tools import targets
from ckpt_tools.api import sides
from ckpt_tools.api.demo import write_pair
from ckpt_tools.api.smoking import SmokeRequest, choose_device, is_first_rank, smoke
from ckpt_tools.errors import InputError, Unavailable, UsageError
from ckpt_tools.forward import bench, devices, parallel
from ckpt_tools.forward._torch import torch
from ckpt_tools.model import Report
from ckpt_tools.render.json import report_json
from tests.hubserver.fixture import hub
from tests.hubserver.server import HubServer

from .pairs import DRAFT, PAIR, STATES, TARGET, Config, Tensors, codes, draft, messages, target

__all__ = ["hub"]

ROW = 64 * 2  # bytes of a row of the target's matrices


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measured_bandwidth", lambda *_: 1e9)


def run(path: str = DRAFT, model: str = TARGET, **more: object) -> Report:
    return smoke(SmokeRequest(path, model, **{"device": "cpu", **more}))  # type: ignore[arg-type]


def without_head(out: Path) -> str:
    """The draft over the whole vocabulary, with the target's head."""

    def edit(tensors: Tensors, config: Config) -> None:
        for name in ("lm_head.weight", "d2t", "t2d"):
            del tensors[name]
        config["draft_vocab_size"] = 320

    return draft(out, edit)


def test_what_is_reported() -> None:
    report = run(steps=3, tokens=16, batch=4)
    assert report.verdict == "pass"
    facts = report.facts
    assert (facts["device"], facts["steps"], facts["tokens"], facts["batch"]) == ("cpu", 3, 16, 4)
    assert facts["semantics"].startswith("sglang==")
    assert facts["step_ms"] > 0 and facts["floor_ms"] > 0 and facts["peak_bytes"] > 0
    assert all(c["ok"] for c in facts["checks"])
    assert {"finite-float32", "alive-captured-2", "steps-stable", "precision", "batch-equals-single"} <= {
        c["name"] for c in facts["checks"]
    }
    assert facts["damage"] is None
    assert report.subject.content is not None and "model.safetensors" in report.subject.content


def test_only_rows_of_the_target_are_read() -> None:
    report = run()
    read = report.facts["target_bytes_read"]
    assert 0 < read < 160 * ROW
    assert read % ROW == 0
    whole = run(tokens=500, batch=4).facts["target_bytes_read"]
    assert read < whole <= 320 * ROW


def test_nothing_is_read_of_the_target_when_nothing_is_borrowed() -> None:
    assert run(engine="vllm").facts["target_bytes_read"] == 0


def test_a_head_of_the_targets(tmp_path: Path) -> None:
    report = run(without_head(tmp_path / "d"), states=STATES)
    assert codes(report) == []
    assert report.facts["target_bytes_read"] > 320 * ROW


def test_a_tied_target(tmp_path: Path) -> None:
    def tie(tensors: Tensors, config: Config) -> None:
        tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
        config["tie_word_embeddings"] = True

    model = target(tmp_path / "t", tie)
    bare = without_head(tmp_path / "d")
    # looked up in its own embedding and scored with the target's head, which is the target's embedding
    report = run(bare, model, engine="vllm", states=STATES)
    assert codes(report) == []
    assert report.facts["target_bytes_read"] == 320 * ROW


def test_a_tied_draft_takes_the_whole_embedding(tmp_path: Path) -> None:
    def tie(tensors: Tensors, config: Config) -> None:
        for name in ("lm_head.weight", "d2t", "t2d"):
            del tensors[name]
        config["draft_vocab_size"] = 320
        config["tie_word_embeddings"] = config["transformer_layer_config"]["tie_word_embeddings"] = True

    report = run(draft(tmp_path / "d", tie))
    assert report.facts["target_bytes_read"] == 320 * ROW
    assert "VAL020" not in codes(report)


def test_wrapper_prefixes_are_looked_through(tmp_path: Path) -> None:
    def wrap(tensors: Tensors, config: Config) -> None:
        inner = dict(config)
        config.clear()
        config |= {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "text_config": inner,
        }
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)
        tensors["vision_tower.embed_tokens.weight"] = torch.zeros(4, 64)

    model = target(tmp_path / "t", wrap)
    report = run(without_head(tmp_path / "d"), model, states=STATES)
    assert codes(report) == []


def test_a_quantised_target_whose_head_is_not(tmp_path: Path) -> None:
    def quantise(tensors: Tensors, config: Config) -> None:
        for name in list(tensors):
            if "layers." in name and name.endswith("proj.weight"):
                whole = tensors.pop(name)
                tensors[name.replace(".weight", ".weight_packed")] = torch.zeros(
                    len(whole), 8, dtype=torch.int32
                )
        config["quantization_config"] = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}

    report = run(without_head(tmp_path / "d"), target(tmp_path / "t", quantise), states=STATES)
    assert codes(report) == []


@pytest.mark.parametrize(
    ("packed", "dtype", "says"),
    [
        ("lm_head.weight_packed", torch.int32, "its lm_head is quantised (lm_head.weight_packed)"),
        ("lm_head.qweight", torch.int32, "its lm_head is quantised (lm_head.qweight)"),
        ("lm_head.weight", torch.uint8, "lm_head.weight is U8 [320, 8], expected a matrix of floats"),
    ],
)
def test_a_packed_head_is_refused(tmp_path: Path, packed: str, dtype: torch.dtype, says: str) -> None:
    def pack(tensors: Tensors, config: Config) -> None:
        del tensors["lm_head.weight"]
        tensors[packed] = torch.zeros(320, 8, dtype=dtype)
        config["quantization_config"] = {"quant_method": "compressed-tensors"}

    model = target(tmp_path / "t", pack)
    with pytest.raises(InputError) as error:
        run(without_head(tmp_path / "d"), model)
    assert says in error.value.message
    assert "not quantised" in (error.value.hint or "")
    # a draft with its own head doesn't care
    assert codes(run(DRAFT, model)) == []


def test_a_target_that_is_not_whole(tmp_path: Path) -> None:
    def cut(tensors: Tensors, config: Config) -> None:
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            del tensors[name]

    with pytest.raises(InputError, match="no embed_tokens among its"):
        run(DRAFT, target(tmp_path / "t", cut))


def test_a_target_of_another_width(tmp_path: Path) -> None:
    def widen(tensors: Tensors, config: Config) -> None:
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            tensors[name] = torch.zeros(320, 96, dtype=torch.bfloat16)
        config["hidden_size"] = 96

    with pytest.raises(InputError, match="96 wide, the draft's hidden states are 64"):
        run(DRAFT, target(tmp_path / "t", widen))


def test_a_target_without_weights(tmp_path: Path) -> None:
    shutil.copy(PAIR / "target" / "config.json", tmp_path)
    with pytest.raises(InputError, match="no weights there, and the head needs rows") as error:
        run(DRAFT, str(tmp_path))
    assert "folder with the target's weights" in (error.value.hint or "")
    assert codes(run(DRAFT, str(tmp_path), engine="vllm")) == [], "nothing is borrowed, so nothing is missed"


def test_registry_targets_need_the_hub() -> None:
    with pytest.raises(Unavailable, match="--offline keeps ckpt from asking the Hub"):
        run(DRAFT, "kimi-k2.5", offline=True)
    known = targets.find("kimi-k2.5")
    assert known is not None
    with pytest.raises(InputError, match="the registry knows no repository of it"):
        sides.open_target(replace(known, hf_repo=None))


def test_a_target_on_the_hub(hub: HubServer) -> None:
    hub.store.seed("me/target", {p.name: p.read_bytes() for p in Path(TARGET).iterdir()})
    report = run(DRAFT, "me/target")
    assert codes(report) == []
    assert report.target is not None and report.target.origin == "hub"
    assert 0 < report.facts["target_bytes_read"] < 160 * ROW
    assert report.facts["target_bytes_read"] == run().facts["target_bytes_read"]
    hub.store.seed("me/bare", {"config.json": (Path(TARGET) / "config.json").read_bytes()})
    with pytest.raises(InputError, match="no weights there"):
        run(DRAFT, "me/bare")


def with_a_flat_config(out: Path) -> str:
    """The draft's own names under a config that SGLang reads: what people do who only edit config.json."""

    def flatten(tensors: Tensors, config: Config) -> None:
        inner = config.pop("transformer_layer_config")
        kept = {
            k: config[k]
            for k in ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "norm_before_residual")
        }
        config.clear()
        config |= {**inner, **kept, "architectures": ["LlamaForCausalLMEagle3"]}

    return draft(out, flatten)


def test_an_engine_that_leaves_parameters_unfilled(tmp_path: Path) -> None:
    path = with_a_flat_config(tmp_path / "d")
    report = run(path, engine="sglang==0.5.9", convention="layer_input")
    (said,) = messages(report, "VAL030")
    assert "that sglang==0.5.9 leaves unfilled (layers.0.mlp.down_proj.weight" in said
    assert "stay as they were" in said
    assert report.verdict == "fail"
    found = next(f for f in report.findings if f.code == "VAL030")
    assert found.engine == "sglang==0.5.9"
    damage = report.facts["damage"]
    assert len(damage["parameters"]) == 7
    assert damage["top1_agreement"][0] < 0.5
    assert damage["kl"] > 0
    # the newest release reads these names
    assert run(path, convention="layer_input").facts["damage"] is None


def test_a_folder_that_the_engine_refuses() -> None:
    report = run(engine="sglang==0.5.9")
    assert report.verdict == "pass"
    (said,) = messages(report, "VAL032")
    assert said.startswith("sglang==0.5.9 refuses this folder (ValueError: Unrecognized model")
    assert messages(run(engine="vllm"), "VAL032") == []


def test_a_head_that_cant_be_run(tmp_path: Path) -> None:
    def cut(tensors: Tensors, config: Config) -> None:
        del tensors["layers.0.mlp.down_proj.weight"]

    report = run(draft(tmp_path / "d", cut))
    assert codes(report) == ["VAL020"]
    assert report.facts["checks"] == []
    assert "layers.0.mlp.down_proj.weight" in messages(report, "VAL020")[0]


def test_a_dead_input_is_named(tmp_path: Path) -> None:
    def kill(tensors: Tensors, config: Config) -> None:
        tensors["fc.weight"][:, 64:128] = 0

    report = run(draft(tmp_path / "d", kill))
    assert codes(report) == ["VAL024"]
    assert "captured layer 3" in messages(report, "VAL024")[0]


def test_one_unusual_sign_of_training_is_a_warning_and_several_are_an_error(tmp_path: Path) -> None:
    def ones(tensors: Tensors, config: Config) -> None:
        for name in [n for n in tensors if "norm" in n]:
            tensors[name] = torch.ones_like(tensors[name])

    def fresh(tensors: Tensors, config: Config) -> None:
        ones(tensors, config)
        generator = torch.Generator().manual_seed(0)
        for name in [n for n in tensors if "proj" in n or n == "fc.weight"]:
            tensors[name] = torch.randn(tensors[name].shape, generator=generator).mul(0.02).to(torch.bfloat16)

    def said(out: Path, edit: Callable[[Tensors, Config], None]) -> list[str]:
        return [f.severity.value for f in run(draft(out, edit)).findings if f.code == "VAL028"]

    assert said(tmp_path / "ones", ones) == ["warning"]
    assert said(tmp_path / "fresh", fresh) == ["error"] * 3


def test_numbers_that_are_none_are_null_in_json(tmp_path: Path) -> None:
    def poison(tensors: Tensors, config: Config) -> None:
        tensors["lm_head.weight"][:] = float("inf")

    report = run(draft(tmp_path / "d", poison), states=STATES)
    (said,) = messages(report, "VAL021")[:1]
    assert said.startswith("float32: not finite from stage")
    json.dumps(report_json(report), allow_nan=False, default=list)


def test_states(tmp_path: Path) -> None:
    report = run(states=STATES)
    assert report.facts["states"] == "2 recorded texts"
    assert "learned-on-states" in {c["name"] for c in report.facts["checks"]}

    def shift(tensors: Tensors, config: Config) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [3, 5, 6]

    with pytest.raises(InputError, match=r"states of layers \[1, 3, 4\], the draft captures \[2, 4, 5\]"):
        run(draft(tmp_path / "d", shift), states=STATES)


def test_broken_files_are_told_and_nothing_is_run(tmp_path: Path) -> None:
    shutil.copytree(DRAFT, tmp_path / "d")
    weights = tmp_path / "d" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    report = run(str(tmp_path / "d"))
    assert report.verdict == "fail"
    assert all(c.startswith("FIL") for c in codes(report))
    assert "checks" not in report.facts
    assert report.subject.content is None


def test_no_draft(tmp_path: Path) -> None:
    shutil.copy(PAIR / "draft" / "config.json", tmp_path)
    with pytest.raises(InputError, match="no draft with weights"):
        run(str(tmp_path))


def test_an_engine_without_reference_semantics() -> None:
    with pytest.raises(UsageError, match="no reference semantics for engine 'trtllm'"):
        run(engine="trtllm")


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_dtypes(dtype: str, name: str) -> None:
    report = run(dtype=dtype)
    assert report.facts["dtype"] == name
    assert codes(report) == []


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == "cpu"
    with pytest.raises(Unavailable, match="no GPU is here"):
        choose_device("cuda")
    with pytest.raises(UsageError, match="no such device"):
        choose_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == "cuda:0"
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(Unavailable, match="only 2 GPUs are here"):
        choose_device("cuda:2")


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with devices.threads_for(100):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with devices.threads_for(1 << 30):
        assert torch.get_num_threads() == before
    assert devices.dtype("bfloat16") is torch.bfloat16


def test_ranks_need_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match="runs under torchrun with 2 processes"):
        run(tp=2)
    assert is_first_rank()
    monkeypatch.setenv("RANK", "1")
    assert not is_first_rank()


def test_a_group_of_one_is_the_whole_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The comparison itself, with a group that hands back what it is given."""

    class Same:
        rank, size, device = 0, 1, torch.device("cpu")

        def __enter__(self) -> Same:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            return x

        all_gather = all_reduce

    monkeypatch.setattr(parallel, "torchrun", lambda *_: Same())
    report = run(tp=2)
    (check,) = [c for c in report.facts["checks"] if c["name"] == "ranks-equal-one"]
    assert check["ok"] and check["value"] < 1e-4
    monkeypatch.setattr(Same, "all_reduce", lambda _, x: 2 * x)
    assert codes(run(tp=2)) == ["VAL031"]

    def outside(tensors: Tensors, config: Config) -> None:
        tensors["d2t"] += torch.arange(160)

    assert codes(run(draft(tmp_path / "d", outside), tp=2)) == ["VAL023"]

    def poison(tensors: Tensors, config: Config) -> None:
        tensors["norm.weight"][0] = float("nan")

    assert "VAL031" not in codes(run(draft(tmp_path / "d", poison), tp=2))


def test_the_demo_pair_is_the_fixture(tmp_path: Path) -> None:
    write_pair(str(tmp_path / "p"))
    assert run(str(tmp_path / "p" / "draft"), str(tmp_path / "p" / "target")).verdict == "pass"
