"""Statistics agree with torch's, for every dtype and awkward value."""

from __future__ import annotations

import json
import math
import mmap

import pytest
import torch  # noqa: TID251  # the reference
from safetensors.torch import save_file

from ckpt_tools.container import open_checkpoint, scan, windows
from ckpt_tools.container.values import TensorStats, table
from ckpt_tools.errors import InputError
from tests.unit.container.folders import framed
from tests.unit.container.test_read_open import Remote

EIGHT_BIT = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def reference(tensor):
    wide = tensor.to(torch.float64)
    finite = wide[torch.isfinite(wide)]
    counts = [int(wide.isnan().sum()), int(wide.isinf().sum()), int((wide == 0).sum())]
    if not finite.numel():
        return TensorStats(wide.numel(), None, None, None, None, *counts)
    return TensorStats(
        wide.numel(),
        float(finite.min()),
        float(finite.max()),
        float(finite.mean()),
        float(finite.pow(2).mean().sqrt()),
        *counts,
    )


def same(found, expected, scale=1e-6):
    assert found is not None
    for name in ("numel", "min", "max", "nan", "inf", "zero"):
        assert getattr(found, name) == getattr(expected, name), name
    if expected.rms is None:
        assert found.mean is None
        assert found.rms is None
    else:
        assert found.mean == pytest.approx(expected.mean, abs=scale * max(expected.rms, 1e-300))
        assert found.rms == pytest.approx(expected.rms, rel=scale)


def compare(tensors, folder, scale=1e-6, **options):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "x.safetensors")
    checkpoint = open_checkpoint(folder / "x.safetensors")
    found = scan(checkpoint, **options)
    assert list(found) == list(checkpoint.tensors)
    for name, tensor in tensors.items():
        same(found[name], reference(tensor), scale)


NORMAL = torch.randn(300, 1001, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, *EIGHT_BIT.values()]
)
def test_normal_values(dtype, tmp_path):
    source = NORMAL.abs() if dtype == torch.float8_e8m0fnu else NORMAL
    compare({"w": source.to(dtype)}, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_awkward_values(dtype, tmp_path):
    nan, inf = math.nan, math.inf
    spoilt = NORMAL.clone()
    spoilt[0, :5], spoilt[5, :7], spoilt[7, :9], spoilt[9, :4] = nan, inf, -inf, -nan
    compare(
        {
            "spoilt": spoilt.to(dtype),
            "negative": (-NORMAL.abs() - 1).to(dtype),
            "positive": (NORMAL.abs() + 1).to(dtype),
            "zeros": torch.zeros(70_000, dtype=dtype),
            "minus zeros": -torch.zeros(9, dtype=dtype),
            "signed zeros": torch.tensor([0.0, -0.0, 1.0], dtype=dtype),
            "one": torch.tensor(3.5, dtype=dtype),
            "all nan": torch.full((9,), nan, dtype=dtype),
            "all inf": torch.tensor([inf, -inf], dtype=dtype),
            "empty": torch.zeros(0, dtype=dtype),
            "only negative inf": torch.tensor([-inf, -1.0], dtype=dtype),
            "negative nan": torch.tensor([-1.0, -nan], dtype=dtype),
        },
        tmp_path,
    )


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 1e30), (torch.float32, 1e-30), (torch.bfloat16, 1e30)]
)
def test_values_whose_squares_leave_float32(dtype, factor, tmp_path):
    compare({"w": (NORMAL * factor).to(dtype)}, tmp_path)


def test_a_constant_is_one(tmp_path):
    save_file(
        {
            "c": torch.full((70_001,), 3.3),
            "n": torch.tensor([1.0, math.nan]),
            "v": NORMAL,
            "e": torch.zeros(0),
        },
        tmp_path / "x.safetensors",
    )
    found = scan(open_checkpoint(tmp_path / "x.safetensors"))
    assert {name: stats.constant for name, stats in found.items()} == {
        "c": True,
        "n": False,
        "v": False,
        "e": False,
    }
    assert found["c"].mean == found["c"].min == found["c"].max


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_integers(dtype, tmp_path):
    values = torch.randint(
        -100 if dtype.is_signed else 0, 100, (200_003,), generator=torch.Generator().manual_seed(1)
    )
    compare({"t": values.to(dtype)}, tmp_path)


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_tables_are_torch_s(name):
    expected = torch.arange(256, dtype=torch.uint8).view(EIGHT_BIT[name]).to(torch.float64).tolist()
    assert [repr(value) for value in table(name)] == [repr(value) for value in expected]


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_all_patterns_of_an_eight_bit_float(name, tmp_path):
    compare({"w": torch.arange(255, dtype=torch.uint8).view(EIGHT_BIT[name])}, tmp_path)
    compare(
        {"w": torch.full((3,), 255 if "NUZ" not in name else 128, dtype=torch.uint8).view(EIGHT_BIT[name])},
        tmp_path,
    )


def write(folder, dtype, shape, data):
    header = {"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}
    (folder / "x.safetensors").write_bytes(framed(json.dumps(header).encode(), data))
    return open_checkpoint(folder / "x.safetensors")


def test_four_bit_floats(tmp_path):
    stats = scan(write(tmp_path, "F4", [4], bytes([0x7F, 0x01])))["w"]  # -6, 6, 0.5, 0
    assert stats == TensorStats(4, -6.0, 6.0, 0.125, pytest.approx(math.sqrt(72.25 / 4)), 0, 0, 1)


@pytest.mark.parametrize(("dtype", "size"), [("F6_E2M3", 3), ("F6_E3M2", 3), ("C64", 32)])
def test_dtypes_without_plain_values(dtype, size, tmp_path):
    assert scan(write(tmp_path, dtype, [4], bytes(size))) == {"w": None}


def test_windows_and_threads_make_no_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "WINDOW", 8192)
    tensors = {"a": NORMAL.to(torch.bfloat16), "b": NORMAL.to(torch.float8_e4m3fn), "c": torch.arange(5000)}
    for threads in (1, 3):
        compare(tensors, tmp_path, threads=threads)


def test_data_at_an_odd_offset(tmp_path):
    data = NORMAL[:2].to(torch.bfloat16)
    raw = data.contiguous().view(torch.uint8).numpy().tobytes()
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2, 1001], "data_offsets": [0, len(raw)]}})
    header += " " * (1 - len(header) % 2)
    assert len(header) % 2
    (tmp_path / "x.safetensors").write_bytes(framed(header.encode(), raw))
    same(scan(open_checkpoint(tmp_path / "x.safetensors"))["w"], reference(data))


def test_some_names_only(tmp_path):
    save_file({"a": NORMAL, "b": NORMAL + 1}, tmp_path / "x.safetensors")
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    assert list(scan(checkpoint, ["b"])) == ["b"]
    with pytest.raises(InputError, match="no tensor 'c'"):
        scan(checkpoint, ["c"])


def test_pickles_and_remote_files_are_read_in_pieces(tmp_path):
    torch.save({"w": NORMAL.to(torch.bfloat16).t()}, tmp_path / "x.bin")
    same(scan(open_checkpoint(tmp_path / "x.bin"))["w"], reference(NORMAL.to(torch.bfloat16)))
    save_file({"w": NORMAL}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    source = Remote(tmp_path)
    same(scan(open_checkpoint("owner/name", source), source=source)["w"], reference(NORMAL))


def test_a_truncated_file(tmp_path):
    save_file({"w": NORMAL}, tmp_path / "x.safetensors")
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(data[:-5])
    with pytest.raises(InputError, match="ends inside tensor 'w'"):
        scan(checkpoint)
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="can't be mapped"):
        scan(checkpoint)


def test_systems_without_madvise(tmp_path, monkeypatch):
    monkeypatch.delattr(mmap, "MADV_DONTNEED")
    compare({"w": NORMAL}, tmp_path)
