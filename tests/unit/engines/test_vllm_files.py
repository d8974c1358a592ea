"""Which files vLLM reads of a folder, and in which order."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_tools.container.index import Index
from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm.files import tensors
from ckpt_tools.engines.vllm.loadmap import load_map
from ckpt_tools.engines.vllm.refusal import Refused
from ckpt_tools.model import FileInfo, TensorInfo
from tests.unit.engines.vllm_drafts import H, checkpoint, config, eagle3, target

if TYPE_CHECKING:
    from ckpt_tools.model import Checkpoint


def file(name: str, **names: tuple[int, ...]) -> FileInfo:
    """A safetensors file with a header, or a pickle without."""
    header = {n: {"dtype": "BF16", "shape": list(s), "data_offsets": [0, 0]} for n, s in names.items()}
    kind: Any = "safetensors" if name.endswith(".safetensors") else "pickle"
    return FileInfo(
        name, 0, kind, json.dumps({"__metadata__": {}, **header}).encode() if kind == "safetensors" else b""
    )


def folder(*files: FileInfo, index: Index | None = None) -> Checkpoint:
    return replace(checkpoint(config(), {}), files=files, extra={} if index is None else {"index": index})


def index(**weight_map: str) -> Index:
    return Index("model.safetensors.index.json", weight_map, {})


def test_files_come_in_natural_order_and_names_sorted() -> None:
    found = tensors(folder(file("model-10.safetensors", a=(1,)), file("model-2.safetensors", z=(2,), b=(3,))))
    assert found == [("b", (3,)), ("z", (2,)), ("a", (1,))]


def test_a_consolidated_file_is_read_alone() -> None:
    found = tensors(
        folder(file("consolidated.safetensors", a=(1,)), file("model.safetensors", a=(2,), b=(3,)))
    )
    assert found == [("a", (1,))]


def test_without_an_index_a_leftover_file_is_read_too() -> None:
    files = (file("model-00001-of-00001.safetensors", a=(1,)), file("old.safetensors", a=(2,)))
    assert tensors(folder(*files)) == [("a", (1,)), ("a", (2,))]
    assert tensors(folder(*files, index=index(a="model-00001-of-00001.safetensors"))) == [("a", (1,))]


def test_a_shard_that_the_index_names_must_be_there() -> None:
    with pytest.raises(Refused, match="FileNotFoundError: Weight files referenced in index but missing"):
        tensors(
            folder(
                file("model-1.safetensors", a=(1,)),
                index=index(a="model-1.safetensors", b="model-2.safetensors"),
            )
        )


def test_an_index_of_another_kind_limits_nothing() -> None:
    other = Index("pytorch_model.bin.index.json", {"a": "x.bin"}, {})
    assert tensors(folder(file("model.safetensors", a=(1,)), index=other)) == [("a", (1,))]


def test_pickles_are_read_when_there_is_nothing_else() -> None:
    rows = {n: TensorInfo(n, "BF16", (1,), "pytorch_model.bin", 0, 0) for n in ("z", "a")}
    draft = replace(folder(file("pytorch_model.bin"), file("optimizer.bin"), file("x.pt")), tensors=rows)
    assert tensors(draft) == [("z", (1,)), ("a", (1,))]


def test_a_folder_without_weights_is_refused() -> None:
    for files in ((), (file("sub/model.safetensors"),), (file("training_args.bin"),)):
        with pytest.raises(Refused, match="RuntimeError: Cannot find any model weights with"):
            tensors(folder(*files))
    found = load_map(resolve("vllm", "--engine"), folder(), target())
    assert (found.stage, found.architecture) == ("load", "Eagle3LlamaForCausalLM")


def test_a_tensor_in_two_files_is_written_twice() -> None:
    first, second = ({"fc.weight": (H, 3 * H)}, {"fc.weight": (H, 2 * H)})
    both = (file("a.safetensors", **first), file("b.safetensors", **second))
    draft = replace(checkpoint(config(), first), files=both)
    assert "Tried to load weights of size torch.Size([64, 128])" in str(
        load_map(resolve("vllm", "--engine"), draft, target()).refused
    )


def test_modelopts_side_file_is_the_quantisation() -> None:
    side = {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": "NVFP4",
            "group_size": 16,
            "kv_cache_quant_algo": None,
            "exclude_modules": ["lm_head"],
        },
    }
    draft = replace(checkpoint(config(), eagle3()), extra={"hf_quant_config": side})
    assert "model.fc.weight_scale_2" in load_map(resolve("vllm", "--engine"), draft, target()).parameters
