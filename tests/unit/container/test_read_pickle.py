"""Pickled weights: read with weights_only or not at all."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import sys
import zipfile

import pytest
import torch  # noqa: TID251  # writes the files under test

from ckpt_tools.container import iter_tensor, open_checkpoint, read_ints, read_tensor
from ckpt_tools.container.pickle import read_pickle, read_pickled_tensor, read_tables
from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.model import Severity
from tests.unit.container.folders import LFS, codes, draft
from tests.unit.container.test_read_open import Remote

STATE = {
    "fc.weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    "d2t": torch.tensor([0, 2, 5]),
    "t2d": torch.tensor([True, False, True]),
}


def saved(folder, value, name="pytorch_model.bin", **options):
    draft(folder, {"README.md": ""})
    torch.save(value, folder / name, **options)
    return folder


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_state_dict(zipped, tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, STATE, _use_new_zipfile_serialization=zipped))
    (finding,) = checkpoint.findings
    assert (finding.code, finding.severity) == ("SEC001", Severity.WARNING)
    assert [(t.name, t.dtype, t.shape, t.nbytes) for t in checkpoint.tensors.values()] == [
        ("fc.weight", "BF16", (3, 4), 24),
        ("d2t", "I64", (3,), 24),
        ("t2d", "BOOL", (3,), 3),
    ]
    assert checkpoint.weight_files[0].kind == "pickle"
    for name, tensor in STATE.items():
        assert read_tensor(checkpoint, name) == raw(tensor)
    assert list(read_ints(checkpoint, "d2t")) == [0, 2, 5]
    assert list(iter_tensor(checkpoint, "d2t", chunk=8)) == [raw(STATE["d2t"])[i : i + 8] for i in (0, 8, 16)]


def test_shared_and_strided_tensors_give_their_own_bytes(tmp_path):
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = {
        "whole": base,
        "part": base[1:3],
        "turned": base.t(),
        "every other": base[:, ::2],
        "scalar": base[2, 3],
    }
    checkpoint = open_checkpoint(saved(tmp_path, state))
    assert checkpoint.tensors["turned"].shape == (6, 4)
    assert checkpoint.tensors["scalar"].shape == ()
    for name, tensor in state.items():
        assert read_tensor(checkpoint, name) == raw(tensor), name


def test_specforge_training_state(tmp_path):
    state = {
        "draft_state_dict": STATE,
        "global_step": 700,
        "strategy": "eagle3",
        "eagle3_target_layer_ids": [1, 9, 18],
        "norm_before_residual": False,
        "run_id": None,
        "optimizer": {"lr": 1},
    }
    checkpoint = open_checkpoint(saved(tmp_path, state, "training_state.pt"))
    assert list(checkpoint.tensors) == list(STATE)
    assert checkpoint.extra["state_dict_key"] == "draft_state_dict"
    assert checkpoint.extra["training_state"] == {
        "global_step": 700,
        "strategy": "eagle3",
        "eagle3_target_layer_ids": [1, 9, 18],
        "norm_before_residual": False,
        "run_id": None,
    }
    assert read_tensor(checkpoint, "d2t") == raw(STATE["d2t"])


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "module", "model"])
def test_state_dicts_under_other_keys(key, tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {key: STATE, "step": 1}))
    assert checkpoint.extra["state_dict_key"] == key
    assert list(checkpoint.tensors) == list(STATE)


def test_a_state_dict_two_levels_down(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {"module": {"model": collections.OrderedDict(STATE)}}))
    assert checkpoint.extra["state_dict_key"] == "module.model"


def test_parameters_are_tensors(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {"w": torch.nn.Parameter(torch.ones(2))}))
    assert read_tensor(checkpoint, "w") == raw(torch.ones(2))


def test_the_files_of_a_set_are_merged_and_missing_ones_named(tmp_path):
    saved(tmp_path, {"a": torch.ones(1)}, "pytorch_model-00001-of-00003.bin")
    torch.save({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "pytorch_model-00003-of-00003.bin")
    checkpoint = open_checkpoint(tmp_path)
    assert codes(checkpoint) == ["FIL008", "FIL017", "SEC001"]
    assert list(checkpoint.tensors) == ["a", "b"]


def test_an_index_of_pickles(tmp_path):
    saved(tmp_path, {"a": torch.ones(1)}, "pytorch_model-00001-of-00002.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        '{"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}'
    )
    checkpoint = open_checkpoint(tmp_path)
    assert codes(checkpoint) == ["FIL008", "SEC001"]
    assert checkpoint.extra["index"].shards[0] == "pytorch_model-00001-of-00002.bin"


def test_optimizer_states_are_left_out(tmp_path):
    saved(tmp_path, STATE)
    torch.save({"x": torch.ones(1)}, tmp_path / "optimizer.bin")
    checkpoint = open_checkpoint(tmp_path)
    assert codes(checkpoint) == ["FIL023", "SEC001"]
    assert list(checkpoint.tensors) == list(STATE)


class Runs:
    """Its pickle calls a shell."""

    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_pickle_that_runs_code_is_refused_and_not_run(zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, {"w": torch.ones(1), "x": Runs()}, _use_new_zipfile_serialization=zipped)
    checkpoint = open_checkpoint(tmp_path)
    assert codes(checkpoint) == ["SEC001", "SEC002"]
    finding = checkpoint.findings[1]
    assert finding.severity is Severity.ERROR
    assert "asks for posix.system; nothing was run" in finding.message
    assert not (tmp_path / "ran").exists()
    assert not checkpoint.tensors


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "SEC002", "asks for eval"),
        (b"\x80\x02K\x01(tR.", "SEC002", "is more: Trying to call reduce for unrecognized function"),
        (b"\x80\x02ccollections\nOrderedDict\nq\x00)\x81K\x01b.", "FIL024", "can't be read"),
    ],
)
def test_pickles_made_to_deceive(content, code, says, tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"pytorch_model.bin": content}))
    assert codes(checkpoint) == sorted([code, "SEC001"])
    assert says in checkpoint.findings[-1].message


def test_advice_to_trust_the_file_is_not_passed_on(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"pytorch_model.bin": b"not a pickle"}))
    assert "(no pickle of tensors: unexpected byte 110)" in checkpoint.findings[-1].message
    assert "weights_only" not in checkpoint.findings[-1].message


def test_an_argparse_namespace_is_refused_by_name(tmp_path):
    state = {"draft_state_dict": STATE, "args": argparse.Namespace(lr=1)}
    checkpoint = open_checkpoint(saved(tmp_path, state, "training_state.pt"))
    assert "asks for argparse.Namespace" in checkpoint.findings[-1].message


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "FIL007"),
        (LFS, "FIL002"),
        (b"not a pickle", "FIL024"),
        (b"PK\x03\x04 not a zip", "FIL024"),
        (b"\x80\x02.", "FIL024"),
    ],
)
def test_damaged_files(content, code, tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"pytorch_model.bin": content}))
    assert codes(checkpoint) == sorted([code, "SEC001"])
    assert "pytorch_model.bin" in checkpoint.findings[-1].message


def test_a_truncated_pickle(tmp_path):
    path = saved(tmp_path, STATE) / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:-200])
    assert codes(open_checkpoint(tmp_path)) == ["FIL024", "SEC001"]


def test_a_zip_that_torch_did_not_write(tmp_path):
    draft(tmp_path, {"README.md": ""})
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as file:
        file.writestr("a", "b")
    assert codes(open_checkpoint(tmp_path)) == ["FIL024", "SEC001"]


@pytest.mark.parametrize(
    "value", [torch.ones(3), {"lr": 0.1}, [1, 2], {"module": {"lr": 1}}, {"a": {"w": torch.ones(1)}}]
)
def test_pickles_without_a_state_dict(value, tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, value))
    assert codes(checkpoint) == ["FIL025", "SEC001"]
    assert not checkpoint.tensors


def test_values_that_are_no_plain_tensors_are_left_out(tmp_path):
    state = {
        "w": torch.ones(2),
        "s": torch.eye(3).to_sparse(),
        "n": 3,
        "c": torch.zeros(1, dtype=torch.complex128),
    }
    checkpoint = open_checkpoint(saved(tmp_path, state))
    assert list(checkpoint.tensors) == ["w"]
    finding = checkpoint.findings[-1]
    assert (finding.code, finding.severity) == ("FIL027", Severity.WARNING)
    assert "'s' is a sparse_coo tensor" in finding.message
    assert "(and 2 more)" in finding.message
    only_complex = open_checkpoint(saved(tmp_path / "c", {"c": torch.zeros(1, dtype=torch.complex128)}))
    assert "complex128, which safetensors doesn't know" in only_complex.findings[-1].message


def test_without_torch_the_message_says_what_to_install(tmp_path, monkeypatch):
    saved(tmp_path, STATE, "absent_torch.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="needs torch") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.hint == "pip install 'ckpt-tools[torch]'"


def test_a_remote_pickle_is_unavailable(tmp_path):
    saved(tmp_path, STATE)
    with pytest.raises(Unavailable, match="pickle"):
        open_checkpoint("owner/name", Remote(tmp_path))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(Unavailable, match="pickle"):
        read_tensor(checkpoint, "d2t", Remote(tmp_path))


def test_a_file_that_changes_between_opening_and_reading(tmp_path):
    path = saved(tmp_path, STATE) / "pytorch_model.bin"
    checkpoint = open_checkpoint(tmp_path)
    torch.save({"other": torch.ones(7)}, path)
    with pytest.raises(InputError, match="no tensor 'd2t'"):
        read_tensor(checkpoint, "d2t")
    path.write_bytes(b"damaged")
    with pytest.raises(InputError, match="pytorch_model"):
        read_pickled_tensor(path, "d2t")
    path.unlink()
    with pytest.raises(InputError, match="pytorch_model"):
        read_pickled_tensor(path, "d2t")
    with pytest.raises(InputError, match="can't be read"):
        read_pickle(path, path.name, 10)


def test_a_single_pickle(tmp_path):
    saved(tmp_path, STATE)
    checkpoint = open_checkpoint(tmp_path / "pytorch_model.bin")
    assert codes(checkpoint) == ["SEC001"]
    assert checkpoint.config == {"hidden_size": 4}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_whatever_becomes_of_the_bytes_is_a_finding(zipped, tmp_path):
    """torch's restricted loader fails in many ways on damaged bytes; none of them is a bug of ours."""
    whole = saved(tmp_path, STATE, _use_new_zipfile_serialization=zipped) / "pytorch_model.bin"
    data = whole.read_bytes()
    draw = random.Random(20261129)
    for _ in range(400):
        bad = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            bad[draw.randrange(min(len(bad), 600))] = draw.randrange(256)
        whole.write_bytes(bytes(bad[: draw.choice((len(bad), draw.randrange(len(bad))))]))
        found = read_pickle(whole, "pytorch_model.bin", whole.stat().st_size)
        assert found.tensors or found.findings
        with contextlib.suppress(InputError):
            read_tables(whole)


@pytest.mark.parametrize("content", [b"junk", b"hello"])
def test_a_file_that_is_no_pickle_is_said_so_in_words(content, tmp_path):
    (tmp_path / "d2t.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"d2t\.pt: no pickle of tensors"):
        read_tables(tmp_path / "d2t.pt")
