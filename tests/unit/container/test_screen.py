"""What a screen says of values is what a full reading says, wherever the values and the pieces lie."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch  # noqa: TID251  # the reference
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ckpt_tools.container import open_checkpoint
from ckpt_tools.container import values as values_module
from ckpt_tools.container import windows as windows_module
from ckpt_tools.container.screen import ROUGH, screen
from ckpt_tools.errors import InputError
from tests.unit.container.folders import framed
from tests.unit.container.test_read_open import Remote

KINDS = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NORMAL = torch.randn(64, 129, generator=torch.Generator().manual_seed(0))


def agrees(found, tensor):
    wide = tensor.to(torch.float64)
    finite = wide[torch.isfinite(wide)].abs()
    top = float(finite.max()) if finite.numel() else 0.0
    assert (found.numel, found.nan, found.inf) == (
        wide.numel(),
        int(wide.isnan().sum()),
        int(wide.isinf().sum()),
    )
    same = bool((wide == wide.flatten()[0]).all()) and bool(wide.isfinite().all())
    assert found.constant == (float(wide.flatten()[0]) if same else None)
    assert found.reach >= top
    if found.reach > ROUGH:
        assert found.reach == top


def screened(tensor, folder, **options):
    save_file({"w": tensor.contiguous()}, folder / "x.safetensors")
    return screen(open_checkpoint(folder / "x.safetensors"), **options)["w"]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    "edit",
    [
        {},
        {7: math.nan},
        {7: math.inf, 8: -math.inf, 9: -math.nan},
        {0: 3.0, -1: -3.5},
        {5000: -448.0},
        {5000: 448.0},
    ],
)
def test_awkward_values_among_plain_ones(kind, edit, tmp_path):
    data = NORMAL.clone().clamp(-1.9, 1.9).flatten()
    for place, value in edit.items():
        data[place] = value
    tensor = data.view(64, 129).to(KINDS[kind])
    agrees(screened(tensor, tmp_path), tensor)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.0, 416.0])
def test_constants(kind, value, tmp_path):
    data = torch.full((30, 7), value)
    agrees(screened(data.to(KINDS[kind]), tmp_path), data.to(KINDS[kind]))
    data[29, 6] = 0.5
    agrees(screened(data.to(KINDS[kind]), tmp_path), data.to(KINDS[kind]))


def test_zeros_of_both_signs_are_one_value(tmp_path):
    tensor = torch.zeros(8, 8, dtype=torch.bfloat16)
    tensor[3] = -0.0
    assert screened(tensor, tmp_path).constant == 0.0


@pytest.mark.parametrize("kind", list(KINDS))
def test_nothing_finite(kind, tmp_path):
    tensor = torch.full((4, 4), math.nan).to(KINDS[kind])
    found = screened(tensor, tmp_path)
    assert (found.nan, found.constant, found.reach) == (16, None, 0.0)


def test_a_constant_may_change_at_a_window(tmp_path, monkeypatch):
    monkeypatch.setattr(windows_module, "WINDOW", 64)
    tensor = torch.ones(2, 32, dtype=torch.bfloat16)
    assert screened(tensor, tmp_path).constant == 1.0
    tensor[1] = 0.5
    found = screened(tensor, tmp_path)
    assert (found.constant, found.numel) == (None, 64)


@settings(deadline=None)
@given(
    st.integers(1, 90),
    st.sampled_from([16, 64, 1 << 20]),
    st.dictionaries(st.integers(0, 89), st.sampled_from([0.0, 2.0, -5.0, 1e30, math.nan, math.inf])),
    st.sampled_from(["BF16", "F16", "F32", "F64"]),
    st.integers(0, 9),
)
def test_sizes_borders_and_values(tmp_path_factory, size, window, edit, kind, shift):
    folder = tmp_path_factory.mktemp("screen")
    data = torch.linspace(-1, 1, size)
    for place, value in edit.items():
        data[place % size] = value
    tensor = data.view(1, -1).to(KINDS[kind])
    raw = tensor.view(torch.uint8).numpy().tobytes()
    header = json.dumps({"w": {"dtype": kind, "shape": [1, size], "data_offsets": [0, len(raw)]}})
    # A header of any length puts the data on any border.
    (folder / "x.safetensors").write_bytes(framed((header + " " * shift).encode(), raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_module, "WINDOW", window)
        patch.setattr(values_module, "BLOCK", 8)
        agrees(screen(open_checkpoint(folder / "x.safetensors"))["w"], tensor)


def test_vectors_have_an_rms_and_matrices_do_not(tmp_path):
    save_file({"m": NORMAL, "v": torch.tensor([3.0, 4.0]), "i": torch.arange(4)}, tmp_path / "x.safetensors")
    found = screen(open_checkpoint(tmp_path / "x.safetensors"))
    assert list(found) == ["m", "v"]
    assert found["m"].rms is None
    assert found["v"].rms == pytest.approx(math.sqrt(12.5))
    assert found["v"].reach == 4.0


def test_empty_tensors(tmp_path):
    save_file({"m": torch.zeros(0, 4), "v": torch.zeros(0)}, tmp_path / "x.safetensors")
    found = screen(open_checkpoint(tmp_path / "x.safetensors"))
    assert [(s.numel, s.constant, s.reach) for s in found.values()] == [(0, None, 0.0)] * 2


def test_pickles_and_remote_files(tmp_path):
    torch.save({"w": NORMAL.to(torch.bfloat16).t()}, tmp_path / "x.bin")
    agrees(screen(open_checkpoint(tmp_path / "x.bin"))["w"], NORMAL.to(torch.bfloat16))
    save_file({"w": NORMAL}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    source = Remote(tmp_path)
    agrees(screen(open_checkpoint("owner/name", source), source=source)["w"], NORMAL)


def test_some_names_only_and_one_thread(tmp_path):
    save_file({"a": NORMAL, "b": NORMAL + 1}, tmp_path / "x.safetensors")
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    assert list(screen(checkpoint, ["b"], threads=1)) == ["b"]
    with pytest.raises(InputError, match="no tensor 'c'"):
        screen(checkpoint, ["c"])


def test_plain_weights_are_read_once(tmp_path, monkeypatch):
    """The second look is for windows that need it: plain ones never get there."""
    import ckpt_tools.container.screen as module

    monkeypatch.setattr(module, "_block", lambda *_: pytest.fail("a plain window was looked at twice"))
    save_file({"w": NORMAL.clamp(-1.9, 1.9).to(torch.bfloat16)}, tmp_path / "x.safetensors")
    found = screen(open_checkpoint(tmp_path / "x.safetensors"))["w"]
    assert np.isclose(found.reach, 2.0, rtol=0.01)
