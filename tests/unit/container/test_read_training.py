from __future__ import annotations

import json
import os

import pytest

from ckpt_tools.container import open_checkpoint, training_output
from ckpt_tools.errors import InputError
from tests.unit.container.folders import draft


def epoch(root, name, loss=None, state=None):
    folder = draft(root / name)
    if loss is not None:
        (folder / "val_metrics.json").write_text(json.dumps({"loss_epoch": loss}))
    if state is not None:
        (folder / "training_state.json").write_text(
            json.dumps({"epoch": state, "local_step": 0, "global_step": 2})
        )
    return folder


@pytest.fixture
def run(tmp_path):
    root = tmp_path / "out"
    epoch(root, "0", 0.5, 0)
    epoch(root, "1", 0.4, 1)
    epoch(root, "10", None, 10)
    (root / "checkpoint_best").symlink_to("1")
    (root / "epoch10_end").symlink_to("10")
    (root / "run.yaml").write_text("train:\n  draft:\n    draft_vocab_size: 128\n")
    return root


def test_a_speculators_run(run):
    output = training_output(run)
    assert output is not None
    assert output.framework == "speculators"
    assert [e.number for e in output.epochs] == [0, 1, 10]
    assert [e.name for e in output.epochs] == ["0", "1", "10"]
    assert output.epochs[0].metrics == {"loss_epoch": 0.5}
    assert output.epochs[2].metrics == {}
    assert output.epochs[1].training_state["global_step"] == 2
    assert output.best == output.epochs[1]
    assert output.newest == output.epochs[2]
    assert output.links == {"checkpoint_best": "1", "epoch10_end": "10"}
    assert output.run_config == {"train": {"draft": {"draft_vocab_size": 128}}}
    assert output.line() == f"ckpt verify {run}/1  # the best of 3"
    assert output.line("ckpt fix-keys", "my out") == f"ckpt fix-keys {run}/1 'my out'  # the best of 3"
    assert (output.best_lost, output.damaged) == (None, ())


def test_opening_a_run_prints_the_line(run):
    with pytest.raises(InputError, match="speculators training run, with 3 checkpoints") as caught:
        open_checkpoint(run)
    assert caught.value.hint == f"ckpt verify {run}/1  # the best of 3"
    assert len(open_checkpoint(run / "checkpoint_best").tensors) == 2


def test_a_run_without_validation_has_a_newest(run):
    (run / "checkpoint_best").unlink()
    output = training_output(run)
    assert output.best is None
    assert output.take == f"{run}/10"
    assert output.line() == f"ckpt verify {run}/10  # the newest; the run marks no best one"


def test_a_run_that_kept_only_its_best(tmp_path):
    epoch(tmp_path, "3", 0.1)
    (tmp_path / "checkpoint_best").symlink_to("3")
    output = training_output(tmp_path)
    assert output.run_config == {}
    assert output.line() == f"ckpt verify {tmp_path}/3  # the best"


@pytest.mark.parametrize("content", ["1", "1\n", "./1"])
def test_links_unpacked_as_files(content, run):
    (run / "checkpoint_best").unlink()
    (run / "checkpoint_best").write_text(content)
    assert training_output(run).best.number == 1


@pytest.mark.parametrize("content", ["", "nowhere", "..", "1\n2", "\0", "x" * 300])
def test_files_that_are_no_links(content, run):
    (run / "checkpoint_best").unlink()
    (run / "checkpoint_best").write_text(content)
    assert training_output(run).best is None
    (run / "checkpoint_best").write_bytes(b"\xff\xfe")
    assert training_output(run).best is None


def test_a_download_leaves_a_copy_for_the_link(run):
    (run / "checkpoint_best").unlink()
    epoch(run, "checkpoint_best", 0.4, 1)
    output = training_output(run)
    assert (output.best.name, output.best.number) == ("checkpoint_best", 1)
    (run / "checkpoint_best" / "training_state.json").write_text("{}")
    assert training_output(run).best.number == -1


def test_an_interrupted_run(tmp_path):
    epoch(tmp_path, "interrupted")
    assert training_output(tmp_path) is None  # nothing else says that this is a run
    (tmp_path / "run.yaml").write_text("train: {}")
    output = training_output(tmp_path)
    assert output.epochs == ()
    assert output.line() == f"ckpt verify {tmp_path}/interrupted  # interrupted"
    epoch(tmp_path, "0")
    output = training_output(tmp_path)
    assert output.interrupted == f"{tmp_path}/interrupted"
    assert output.take == f"{tmp_path}/0"


@pytest.mark.parametrize(
    ("names", "framework", "newest"),
    [
        (["run7-step100", "run7-step20"], "specforge", "run7-step100"),
        (["epoch_0_step_10", "epoch_1_step_20"], "specforge", "epoch_1_step_20"),
        (["epoch_2", "epoch_10"], "specforge", "epoch_10"),
        (["state_0", "state_10"], "eagle", "state_10"),
        (["checkpoint-500", "checkpoint-1000"], "transformers", "checkpoint-1000"),
    ],
)
def test_runs_of_other_frameworks(names, framework, newest, tmp_path):
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "training_state.pt").write_bytes(b"x")
    output = training_output(tmp_path)
    assert output.framework == framework
    assert output.newest.name == newest


def test_specforge_marks_its_best_by_a_link(tmp_path):
    for name in ("run7-step100", "run7-step20"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "training_state.pt").write_bytes(b"x")
    (tmp_path / "run7-latest").symlink_to("run7-step100")
    (tmp_path / "run7-best").symlink_to("run7-step20")
    output = training_output(tmp_path)
    assert output.best.name == "run7-step20"
    assert output.links["run7-latest"] == "run7-step100"


def test_epochs_without_weights_are_not_taken(run):
    (run / "10" / "model.safetensors").unlink()
    output = training_output(run)
    assert output.newest.number == 1
    assert not output.epochs[2].has_weights
    for name in ("0", "1"):
        (run / name / "model.safetensors").unlink()
    assert training_output(run) is None


def test_a_best_epoch_without_weights_is_none(run):
    (run / "1" / "model.safetensors").unlink()
    assert training_output(run).best is None


def test_damaged_side_files_count_as_absent(run):
    (run / "0" / "val_metrics.json").write_text("{")
    (run / "1" / "val_metrics.json").write_text("[]")
    (run / "1" / "training_state.json").write_bytes(b"\xff")
    (run / "run.yaml").write_text("a: [")
    output = training_output(run)
    assert [e.metrics for e in output.epochs] == [{}, {}, {}]
    assert output.epochs[1].training_state == {}
    assert output.run_config == {}
    (run / "run.yaml").write_text("just text")
    assert training_output(run).run_config == {}
    (run / "run.yaml").write_bytes(b"#" * (2 * 1024 * 1024))
    assert training_output(run).run_config == {}


def test_no_run(tmp_path):
    assert training_output(tmp_path) is None
    assert training_output(tmp_path / "absent") is None
    (tmp_path / "0").mkdir()
    assert training_output(tmp_path) is None
    assert training_output(draft(tmp_path / "draft")) is None


def test_paths_are_quoted_for_the_shell(tmp_path):
    root = tmp_path / "my run"
    epoch(root, "0")
    assert training_output(root).line().startswith(f"ckpt verify '{root}{os.sep}0'")


def test_a_best_that_is_gone_is_said(run):
    (run / "checkpoint_best").unlink()
    (run / "checkpoint_best").symlink_to("7")
    output = training_output(run)
    assert output.best is None
    assert (
        output.line() == f"ckpt verify {run}/10  # the newest; checkpoint_best leads to 7, which isn't there"
    )


def test_a_best_without_weights_is_said(run):
    (run / "1" / "model.safetensors").unlink()
    output = training_output(run)
    assert output.best is None
    assert output.best_lost == "1, marked as the best, holds no weights"
    assert output.take == f"{run}/10"


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff"])
def test_metrics_that_cannot_be_read_are_named(run, text):
    (run / "1" / "val_metrics.json").write_bytes(text)
    output = training_output(run)
    assert output.epochs[1].metrics == {}
    assert output.damaged == (f"{run}/1/val_metrics.json",)


@pytest.mark.parametrize("text", ["a: [1", "- 1", "x" * (1024 * 1024 + 1)])
def test_a_run_config_that_cannot_be_read_is_named(run, text):
    (run / "run.yaml").write_text(text)
    output = training_output(run)
    assert output.run_config == {}
    assert output.damaged == (f"{run}/run.yaml",)


def test_an_empty_run_config_is_empty(run):
    (run / "run.yaml").write_text("")
    assert training_output(run).damaged == ()
