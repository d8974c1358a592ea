"""Conversions over every sample: what the real loaders took, round trips, refusals."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.read import read_tensor
from ckpt_tools.formats import formats, read_draft
from ckpt_tools.formats.facts import facts_json
from ckpt_tools.model import Checkpoint, Draft, Report
from ckpt_tools.schemas import violations
from tests.conftest import FIXTURES

SPECULATORS = FIXTURES / "formats" / "speculators"
EAGLE3 = sorted(p.name for p in SPECULATORS.iterdir() if "eagle3" in p.name)
RECORDED: dict[str, Any] = json.loads((FIXTURES / "converted" / "loaders.json").read_text())
#: What SGLang can't carry, by sample.
REFUSED = {
    "eagle3_bias_tiny": "KEY005",
    "eagle3_nbr_tiny": "NRM001",
    "eagle3_qwen3_tiny": "NRM002",
    "eagle3_traindefaults_tiny": "NRM001",
}


def convert(source: Path, out: Path, **options: Any) -> Report:
    return fix_keys(Request(str(source), str(out), **options))


def digest(checkpoint: Checkpoint) -> str:
    data = {
        "config": checkpoint.config,
        "tensors": {n: [t.dtype, list(t.shape)] for n, t in sorted(checkpoint.tensors.items())},
    }
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def values(folder: Path) -> dict[str, bytes]:
    checkpoint = open_checkpoint(folder)
    return {n: read_tensor(checkpoint, n) for n in checkpoint.tensors}


#: Formats whose folders a program that was at hand loads.
LOADED = ("sglang", "vllm", "dual", "speculators", "z-lab")
SAMPLES = sorted(p.parent for p in (FIXTURES / "formats").glob("*/*/config.json"))


def _target_for(draft: Draft, to: str) -> str | None:
    """speculators' library opens the target that a draft names; drafts that name none get the tiny one."""
    named = draft.facts.verifier is not None and draft.facts.verifier.name is not None
    return "models/llama_tiny" if to == "speculators" and not named else None


def _cases() -> list[tuple[str, Path, str, str | None]]:
    """(case, source, format, target) of every conversion that a format's writer takes on."""
    found = []
    for source in SAMPLES:
        draft = read_draft(open_checkpoint(source))
        assert draft is not None
        for to in LOADED:
            written = {v.algorithm for v in formats()[to].variants if not v.read_only}
            if draft.algorithm in written:
                case = f"{to}--{source.parent.name}--{source.name}"
                found.append((case, source, to, _target_for(draft, to)))
    return found


def test_the_recording_covers_every_sample_that_converts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FIXTURES)
    converts = {
        case
        for case, source, to, target in _cases()
        if convert(source, tmp_path / case, to=to, target=target, dry_run=True).verdict == "pass"
    }
    assert set(RECORDED) == converts


@pytest.mark.parametrize("case", sorted(RECORDED))
def test_what_the_real_loaders_took(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    to, form, name = case.split("--")
    source = FIXTURES / "formats" / form / name
    if any(source.glob("*.bin")) or any(source.glob("*.pt")):
        pytest.importorskip("torch", reason="torch is absent: this sample holds a pickle")
    given = read_draft(open_checkpoint(source))
    assert given is not None
    report = convert(source, tmp_path / "out", to=to, target=_target_for(given, to))
    assert report.verdict == "pass"
    made = open_checkpoint(tmp_path / "out")
    assert digest(made) == RECORDED[case]["digest"], "record the loaders again"
    for engine, answer in RECORDED[case]["loaders"].items():
        if engine == "speculators":
            _library_took(made, answer)
        elif to == "speculators" and any(
            "markov_head.gate_proj" in n or "joint_proj" in n for n in made.tensors
        ):
            assert "no module or parameter named 'markov_head" in answer["error"]
        else:
            _engine_took(made, answer, to)


def _library_took(made: Checkpoint, answer: dict[str, Any]) -> None:
    """speculators' own library: every tensor is used, bit for bit, and what it fills in is the target's."""
    assert answer["error"] is None
    assert (answer["unused"], answer["differ"]) == ([], [])
    theirs = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    assert set(answer["missing"]) <= theirs - set(made.tensors)


def _engine_took(made: Checkpoint, answer: dict[str, Any], to: str) -> None:
    """An engine's loader: nothing unfilled but what is the target's, nothing ignored but tables that it doesn't read."""
    assert answer["error"] is None
    unfilled = {n for n, p in answer["params"].items() if p["unfilled"]}
    # A side file may hold the mask's embedding; without it the target's row is taken.
    allowed = {"model.mask_embedding"}
    if "embed_tokens.weight" not in made.tensors:
        allowed.add("model.embed_tokens.weight")
    if "lm_head.weight" not in made.tensors:
        allowed.add("lm_head.weight")
    if to == "speculators":
        # vLLM builds a norm in later layers that it never applies, and speculators doesn't write one.
        allowed |= {n for n in unfilled if n.endswith("layers.1.hidden_norm.weight")}
    assert unfilled <= allowed
    # SGLang's default verify mode takes no confidence head.
    assert {n for n in answer["ignored"] if n != "t2d" and not n.startswith("confidence_head.")} == set()


@pytest.mark.parametrize(("name", "code"), sorted(REFUSED.items()))
@pytest.mark.parametrize("to", ["sglang", "dual"])
def test_what_sglang_cannot_carry_is_refused_and_nothing_is_written(
    name: str, code: str, to: str, tmp_path: Path
) -> None:
    report = convert(SPECULATORS / name, tmp_path / "out", to=to)
    assert report.verdict == "fail"
    assert code in [f.code for f in report.findings if f.severity.value == "error"]
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "code"), sorted(REFUSED.items()))
def test_a_named_loss_is_let_through_and_stays_visible(name: str, code: str, tmp_path: Path) -> None:
    report = convert(SPECULATORS / name, tmp_path / "out", allow=(code,))
    assert report.verdict == "pass"
    (kept,) = [f for f in report.findings if f.code == code]
    assert kept.severity.value == "warning"
    assert kept.message.startswith("allowed: ")
    assert report.facts["plan"]["allowed"] == [code]
    assert (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("name", [n for n in EAGLE3 if n not in REFUSED])
@pytest.mark.parametrize("to", ["sglang", "vllm", "dual"])
def test_there_and_back_gives_the_same_tensors_and_facts(name: str, to: str, tmp_path: Path) -> None:
    convert(SPECULATORS / name, tmp_path / "there", to=to)
    target = FIXTURES / "models" / "llama_tiny"
    back = convert(tmp_path / "there", tmp_path / "back", to="speculators", target=str(target))
    assert back.verdict == "pass", [f.message for f in back.findings]
    assert values(tmp_path / "back") == values(SPECULATORS / name)
    first, second = (read_draft(open_checkpoint(p)) for p in (SPECULATORS / name, tmp_path / "back"))
    assert first is not None
    assert second is not None
    one, two = facts_json(first.facts), facts_json(second.facts)
    for ours in ("verifier", "extra", "layer_types", "fc_bias", "capture_convention"):
        one.pop(ours), two.pop(ours)
    # Absent is false for flags that a release didn't have yet.
    assert {k: v or None for k, v in one.items()} == {k: v or None for k, v in two.items()}


@pytest.mark.parametrize("to", ["sglang", "vllm", "dual", "speculators"])
def test_every_output_fits_its_schema_and_holds_no_null_that_engines_choke_on(
    to: str, tmp_path: Path
) -> None:
    for name in EAGLE3:
        out = tmp_path / name
        if convert(SPECULATORS / name, out, to=to).verdict == "fail":
            continue
        config = json.loads((out / "config.json").read_text())
        assert list(violations(formats()[to].schema, config)) == []
        assert list(violations("conversion.v1.json", json.loads((out / "conversion.json").read_text()))) == []
        if to != "speculators":
            assert None not in config.values()
            assert config["tie_word_embeddings"] is False
            assert config["dtype"] == config["torch_dtype"]


def test_the_plan_says_everything_and_dry_run_writes_nothing(tmp_path: Path) -> None:
    source = SPECULATORS / "eagle3_2layer_tiny"
    report = convert(source, tmp_path / "out", dry_run=True)
    plan = report.facts["plan"]
    assert list(violations("plan.v1.json", plan)) == []
    assert not (tmp_path / "out").exists()
    assert {r["to"] for r in plan["copies"]} == {"layers.1.input_layernorm.weight"}
    assert plan["bytes_copied"] > 0
    checkpoint = open_checkpoint(source)
    moved = {r["from"] for r in plan["renames"]} | {d["tensor"] for d in plan["drops"]}
    assert moved == set(checkpoint.tensors)
    pointers = {e["pointer"] for e in plan["config"]["edits"]}
    assert "/speculators_version" in pointers
    assert all(e["reason"] for e in plan["config"]["edits"] if e["action"] == "dropped")


def test_the_window_goes_into_the_launch_flag(tmp_path: Path) -> None:
    report = convert(SPECULATORS / "eagle3_traindefaults_tiny", tmp_path / "out", allow=("NRM001",))
    assert report.facts["plan"]["launch_flags"] == ["--speculative-draft-window-size", "2048"]
    assert "LAY001" in [f.code for f in report.findings]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "sliding_window" not in config
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert record["plan"]["launch_flags"] == ["--speculative-draft-window-size", "2048"]


def test_first_releases_are_said(tmp_path: Path) -> None:
    report = convert(SPECULATORS / "eagle3_nbf_normout_tiny", tmp_path / "out")
    (needs,) = [f for f in report.findings if f.code == "ENG002"]
    assert needs.message.startswith("needs sglang >= 0.5.17")


def _edited(tmp_path: Path, name: str = "eagle3_tiny", **changes: Any) -> Path:
    import shutil

    copy = tmp_path / "in"
    shutil.copytree(SPECULATORS / name, copy)
    config = json.loads((copy / "config.json").read_text())
    config.update(changes)
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def _codes(report: Report, severity: str = "error") -> list[str]:
    return [f.code for f in report.findings if f.severity.value == severity]


UNKNOWN_VERIFIER = {
    "algorithm": "eagle3",
    "proposal_methods": [{"proposal_type": "greedy"}],
    "default_proposal_method": "greedy",
    "verifier": {"name_or_path": "nobody/knows", "architectures": []},
}


@pytest.mark.parametrize(
    ("ids", "target", "code", "nested"),
    [
        ([2, 4, 5], None, None, [1, 3, 4]),
        ([3, 5, 6], None, "CAP001", None),
        ([3, 5, 6], "llama_tiny", None, [2, 4, 5]),
        ([0, 4, 5], "llama_tiny", "CAP002", None),
        ([2, 4, 8], "llama_tiny", "CAP002", None),
        (None, None, None, None),
    ],
)
def test_capture_ids(
    ids: list[int] | None, target: str | None, code: str | None, nested: list[int] | None, tmp_path: Path
) -> None:
    source = _edited(tmp_path, eagle_aux_hidden_state_layer_ids=ids, speculators_config=UNKNOWN_VERIFIER)
    named = str(FIXTURES / "models" / target) if target else None
    report = convert(source, tmp_path / "out", target=named)
    if code is not None:
        assert _codes(report) == [code]
        assert "--target" in (report.findings[0].hint or "") or code == "CAP002"
        return
    assert report.verdict == "pass"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_config"].get("eagle_aux_hidden_state_layer_ids") == nested
    assert config.get("eagle_aux_hidden_state_layer_ids") == ids


def test_deepseek_like_targets_get_ids_that_they_take_as_written(tmp_path: Path) -> None:
    source = _edited(
        tmp_path, eagle_aux_hidden_state_layer_ids=[3, 30, 57], speculators_config=UNKNOWN_VERIFIER
    )
    report = convert(source, tmp_path / "out", target="kimi-k2.5")
    assert report.verdict == "pass"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 30, 57]
    assert "CAP004" in _codes(report, "warning")


def test_an_undecided_list_asks_for_its_convention(tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "in"
    shutil.copytree(FIXTURES / "formats" / "tiny" / "draft-midlayer", copy)
    config = json.loads((copy / "config.json").read_text())
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 5, 6]}
    (copy / "config.json").write_text(json.dumps(config))
    refused = convert(copy, tmp_path / "out", to="vllm")
    assert _codes(refused) == ["CAP003"]
    assert "--layer-convention" in (refused.findings[0].hint or "")
    for said, top in (("layer_output", [3, 6, 7]), ("layer_input", [2, 5, 6])):
        out = tmp_path / said
        assert convert(copy, out, to="vllm", convention=said).verdict == "pass"
        assert json.loads((out / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == top


def test_speculators_needs_a_target_and_takes_its_name(tmp_path: Path) -> None:
    source = FIXTURES / "formats" / "tiny" / "draft-midlayer"
    assert "CFG009" in _codes(convert(source, tmp_path / "none", to="speculators"))
    report = convert(source, tmp_path / "out", to="speculators", target="kimi-k2.5")
    assert report.verdict == "pass"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_config"]["verifier"] == {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "name_or_path": "moonshotai/Kimi-K2.5",
    }


def test_another_target_than_the_recorded_one_is_said(tmp_path: Path) -> None:
    report = convert(SPECULATORS / "eagle3_tiny", tmp_path / "out", target="kimi-k2.5")
    assert "CFG008" in _codes(report, "warning")


def test_a_trained_embedding_is_refused_where_the_target_shows_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    source = _edited(tmp_path)
    tensors = load_file(source / "model.safetensors")
    target = FIXTURES / "models" / "llama_tiny"
    theirs = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    tensors["embed_tokens.weight"] = theirs.astype(tensors["embed_tokens.weight"].dtype)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    equal = convert(source, tmp_path / "equal", target=str(target))
    assert "HED003" not in _codes(equal)
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"] + 1
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    other = convert(source, tmp_path / "other", target=str(target))
    if equal.findings and "HED004" in [f.code for f in equal.findings]:
        assert "HED004" in [f.code for f in other.findings]  # other dtypes can't be compared
    else:
        assert _codes(other) == ["HED003"]
    assert _codes(convert(_edited(tmp_path / "t", embed_requires_grad=True), tmp_path / "trained")) == [
        "HED003"
    ]
