"""Hooks found in parsed model files: inheritance, imports, delegation."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ckpt_tools.errors import InputError
from ckpt_tools.serving.static_hooks import (
    CAPTURE,
    EMBED_HEAD,
    answer,
    sglang_classes,
    supports_eagle3,
    vllm_classes,
)

E3, DF, DS = CAPTURE["eagle3"], CAPTURE["dflash"], CAPTURE["dspark"]


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture
def sglang(tmp_path: Path) -> Path:
    models = tmp_path / "sglang" / "srt" / "models"
    write(
        models,
        llama=f"""
            from torch import nn
            class LlamaForCausalLM(nn.Module):
                def {E3}(self, layer_ids=None): ...
                def {DF}(self, layer_ids): ...
                def {EMBED_HEAD}(self): ...
                def {EMBED_HEAD}(self, again): ...
                def set_embed_and_head(self, e, h): ...
            EntryClass = [LlamaForCausalLM]
        """,
        phi="""
            from sglang.srt.models.llama import LlamaForCausalLM as Base
            class PhiForCausalLM(Base): ...
            EntryClass = PhiForCausalLM
        """,
        shadow="""
            from .llama import LlamaForCausalLM
            class LlamaForCausalLM(LlamaForCausalLM): ...
            class Other(LlamaForCausalLM["x"]): ...
            Alias = Other
            EntryClass = [Other, Alias, Missing]
        """,
        wrapper="""
            try:
                import sglang.srt.models.llama as llama
            except ImportError:
                llama = None
            class Wrapper:
                def __init__(self, config):
                    if config:
                        self.vision = Unknown()
                        self.language_model = llama.LlamaForCausalLM(config)
                def forward(self): ...
            EntryClass = [Wrapper]
        """,
        attribute=f"""
            from .llama import LlamaForCausalLM
            class Half:
                {DS} = LlamaForCausalLM.{DF}
            EntryClass = Half
        """,
        dynamic=f"""
            class Inner:
                def {DF}(self, ids): ...
            class Dynamic:
                def __getattr__(self, name): ...
            EntryClass = [Dynamic]
        """,
        loop="""
            from .loop2 import B
            class A(B): ...
            EntryClass = A
        """,
        loop2="""
            from .loop import A
            class B(A): ...
        """,
        broken="def (",
        **{
            "sub/__init__": "from .inner import Inner",
            "sub/inner": f"class Inner:\n    def {E3}(self): ...\nEntryClass = Inner",
        },
        reexport="""
            from .sub import Inner
            if True:
                class Through(Inner): ...
            EntryClass = Through
        """,
    )
    return tmp_path / "sglang"


def test_classes_and_hooks(sglang: Path) -> None:
    classes = sglang_classes(sglang)
    assert set(classes) == {
        "LlamaForCausalLM",
        "PhiForCausalLM",
        "Other",
        "Wrapper",
        "Half",
        "Dynamic",
        "A",
        "Through",
    }
    assert classes["LlamaForCausalLM"].eagle3
    assert classes["LlamaForCausalLM"].hooks[EMBED_HEAD].line == 7  # the later definition is Python's
    assert classes["PhiForCausalLM"].hooks[E3].owner == "LlamaForCausalLM"
    assert classes["PhiForCausalLM"].hooks[E3].file == "llama.py"
    assert classes["Other"].eagle3
    assert E3 in classes["Through"].hooks
    assert not classes["Through"].eagle3
    assert classes["Half"].dspark
    assert classes["Dynamic"].hooks[DF].how == "__getattr__"
    assert classes["A"].hooks == {}


def test_answers(sglang: Path) -> None:
    classes = sglang_classes(sglang)
    assert answer(classes, "PhiForCausalLM", "eagle3").ok
    assert answer(classes, "Nowhere", "eagle3").ok is None
    lacking = answer(classes, "Half", "eagle3")
    assert (lacking.ok, lacking.missing, lacking.patch) == (False, (E3, EMBED_HEAD), None)
    assert answer(classes, "Half", "dspark").ok
    assert answer(classes, "Half", "dflash2").missing == (DF,)
    assert answer(classes, "Half", "mtp").missing == (EMBED_HEAD,)


def test_a_wrapper_that_only_lacks_delegation(sglang: Path) -> None:
    classes = sglang_classes(sglang)
    patch = answer(classes, "Wrapper", "eagle3").patch
    assert patch is not None
    source = (sglang / "srt" / "models" / patch.file).read_text().splitlines()
    assert source[patch.after_line - 1].strip() == "def forward(self): ..."
    added = [*source[: patch.after_line], *patch.lines, *source[patch.after_line :]]
    (sglang / "srt" / "models" / patch.file).write_text("\n".join(added))
    assert answer(sglang_classes(sglang), "Wrapper", "eagle3").ok
    only = answer(classes, "Wrapper", "dflash").patch
    assert only is not None
    assert [line.strip() for line in only.lines if line] == [
        f"def {DF}(self, layer_ids):",
        f"self.language_model.{DF}(layer_ids)",
    ]


def test_no_engine_there(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        sglang_classes(tmp_path)
    with pytest.raises(InputError):
        vllm_classes(tmp_path)


def test_vllm(tmp_path: Path) -> None:
    models = tmp_path / "vllm" / "model_executor" / "models"
    write(
        models,
        interfaces="class SupportsEagle3: ...",
        llama="""
            from .interfaces import SupportsEagle3
            class LlamaForCausalLM(SupportsEagle3): ...
        """,
        structural="""
            class Structural:
                def set_aux_hidden_state_layers(self, layers): ...
        """,
        plain="class Plain: ...",
        registry="""
            _TEXT: dict = {
                "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
                "Structural": ("structural", "Structural"),
                "Plain": ("plain", "Plain"),
                "New": ("vllm.models.new", "New"),
                "Gone": ("gone", "Gone"),
                **OTHERS,
                "Odd": ("a", "b", "c"),
                "Call": (f(), "x"),
            }
            SIZE = 3
        """,
    )
    write(
        tmp_path / "vllm" / "models",
        new="from vllm.model_executor.models.llama import LlamaForCausalLM\nclass New(LlamaForCausalLM): ...",
    )
    classes = vllm_classes(tmp_path / "vllm")
    assert set(classes) == {"LlamaForCausalLM", "Structural", "Plain", "New"}
    assert [name for name, found in classes.items() if supports_eagle3(found)] == [
        "LlamaForCausalLM",
        "Structural",
        "New",
    ]


def test_vllm_without_the_newer_folder(tmp_path: Path) -> None:
    write(
        tmp_path / "vllm" / "model_executor" / "models",
        registry='A = {"X": ("x", "X")}',
        x="class X: ...",
    )
    assert set(vllm_classes(tmp_path / "vllm")) == {"X"}
