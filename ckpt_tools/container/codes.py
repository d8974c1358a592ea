"""The codes of the container's findings: one row each, from which findings and their pages are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.model import Finding, Fix, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Code:
    """One code: what its findings say, and its documentation page.

    Attributes:
        severity: What a finding has unless its circumstances say otherwise.
        title: One line, for lists.
        checks: What is looked at.
        why: What goes wrong in serving.
        example: A message as a reader meets it.
        fix: How to repair it.
        references: Where the claim comes from.
    """

    code: str
    name: str
    severity: Severity
    title: str
    checks: str
    why: str
    example: str
    fix: str
    references: tuple[str, ...] = ()


_SGLANG_FILES = "SGLang 0.5.23 model_loader/loader.py:490-553, weight_utils.py:757-808"
_VLLM_FILES = "vLLM 0.33.0 model_executor/model_loader/default_loader.py:147-263, weight_utils.py:590-616"
_SAFETENSORS = "safetensors 0.8 SafeTensors::read_metadata, Metadata::validate"
_TORCH = "torch.load(weights_only=True), https://pytorch.org/docs/stable/notes/serialization.html"
_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

_ROWS = (
    Code(
        "FIL001", "no-weights", _E, "The folder has a config.json and no weights",
        "A folder with config.json holds at least one `*.safetensors`, `*.bin` or `*.pt` file that an "
        "engine would load.",
        "Engines stop with `Cannot find any model weights`.",
        "draft: config.json is there, but no *.safetensors, *.bin or *.pt file",
        "Copy the weight files beside config.json, or point at the folder that holds both.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL002", "lfs-pointer", _E, "A file is a Git LFS pointer",
        "No weight file, index or config starts with the text of a Git LFS pointer.",
        "The repository was cloned without LFS: the file holds a hash instead of tensors, and the loader "
        "says `header too large`.",
        "model.safetensors is a Git LFS pointer to the file (of 123,456 bytes), not the file itself",
        "`git lfs pull`, or download the repository with `hf download`.",
        (_SAFETENSORS,),
    ),
    Code(
        "FIL003", "truncated", _E, "A weight file ends too early",
        "The size of every safetensors file is 8 bytes, its header and the data that the header describes.",
        "Loaders refuse the file (`incomplete metadata, file not fully covered`). A download or copy was "
        "cut short, or the disk was full.",
        "model.safetensors is truncated: 9,000 bytes, its header needs 10,000 (1,000 missing)",
        "Download or copy the file again.",
        (_SAFETENSORS,),
    ),
    Code(
        "FIL004", "trailing-bytes", _E, "A weight file goes on after its last tensor",
        "The size of every safetensors file is 8 bytes, its header and the data that the header describes.",
        "Loaders refuse the file (`incomplete metadata, file not fully covered`), although all tensors "
        "are there.",
        "model.safetensors has 16 trailing bytes after the last tensor",
        "Cut the bytes off with `truncate -s`, or write the file again.",
        (_SAFETENSORS,),
    ),
    Code(
        "FIL005", "damaged-header", _E, "A safetensors header can't be read",
        "The header is at most 100 MB of UTF-8 JSON: an object of tensors with dtype, shape and "
        "data_offsets, each once, and `__metadata__` of strings.",
        "Loaders refuse the file. Often it is no safetensors file at all: a renamed pickle, or a web page"
        " that a failed download left.",
        "model.safetensors has a damaged header: tensor 'fc.weight' has the unknown dtype 'f32'",
        "Write the file again with the safetensors library, or download it again.",
        (_SAFETENSORS,),
    ),
    Code(
        "FIL006", "damaged-layout", _E, "A header describes data that overlap, leave gaps or don't fit "
        "their shapes",
        "In offset order, every tensor starts where the one before it ends, and has as many bytes as "
        "dtype and shape need.",
        "Loaders refuse the file (`invalid offset`, `invalid shape, data type, or offset for tensor`).",
        "model.safetensors: tensor 'norm.weight' starts at data byte 512, leaving a gap after 256",
        "Export the checkpoint again with the safetensors library.",
        (_SAFETENSORS,),
    ),
    Code(
        "FIL007", "empty-file", _E, "A weight file is empty, or a link to nothing",
        "Every weight file has bytes, and every symbolic link leads to a file.",
        "Loaders refuse the file (`header too small`) or don't find it. Pruned caches leave such links.",
        "model.safetensors is empty (0 bytes)",
        "Download or copy the file again.",
        (_SAFETENSORS,),
    ),
    Code(
        "FIL008", "missing-shard", _E, "A shard is missing",
        "Every file that the index names is there; without an index, shards numbered `-0000i-of-0000N` "
        "are complete.",
        "SGLang from 0.5.17 and vLLM refuse to start. Older SGLang starts with uninitialised parameters.",
        "model.safetensors.index.json names model-00002-of-00002.safetensors, which is not in the folder",
        "Finish the download or the copy.",
        (_SGLANG_FILES, _VLLM_FILES, "https://github.com/sgl-project/sglang/issues/32279"),
    ),
    Code(
        "FIL009", "stray-weight-file", _W, "A weight file is not named by the index",
        "Every `*.safetensors` beside an index is named by it.",
        "SGLang and vLLM read only what the index names, so this file is dead weight; tools that glob "
        "load it over the shards.",
        "model.safetensors is not in model.safetensors.index.json; its 12 tensors are also in the shards",
        "Remove the file, or remove the index if the file is the one to serve.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL010", "index-damaged", _E, "The index can't be read",
        "`model.safetensors.index.json` is a JSON object whose `weight_map` maps tensor names to file "
        "names, and isn't empty.",
        "vLLM and SGLang stop with `JSONDecodeError`, `KeyError: 'weight_map'` or without any weights.",
        "model.safetensors.index.json is not JSON (Extra data: line 9 column 2)",
        "Write the index again, or remove it: engines then read every `*.safetensors`.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL011", "index-wrong-shard", _W, "The index names the wrong shard for a tensor",
        "Every tensor is in the shard that the index names for it.",
        "SGLang and vLLM read whole shards and don't notice; readers that look up one tensor fail.",
        "model.safetensors.index.json says that fc.weight is in model-00001-of-00002.safetensors, but it "
        "is in model-00002-of-00002.safetensors",
        "Write the index again from the shards.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL012", "index-tensor-absent", _E, "The index names a tensor that no shard holds",
        "Every tensor that the index names is in one of its shards.",
        "The parameter gets no data, and engines load drafts without looking for missing ones.",
        "model.safetensors.index.json names fc.weight in model-00001-of-00002.safetensors, which doesn't "
        "hold it",
        "Index and shards come from different exports: take both from the same one.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL013", "index-stale", _E, "The index leaves out shards that are there",
        "No numbered shard beside an index is unknown to it while it holds tensors that the index doesn't"
        " name.",
        "A stale index hides the new shards without a word: their tensors are never loaded.",
        "model-00003-of-00003.safetensors is not in model.safetensors.index.json, and neither are its 4 "
        "tensors",
        "Write the index again from the shards, or remove it.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL014", "tensor-not-in-index", _I, "A shard holds tensors that the index doesn't name",
        "Every tensor of an indexed shard is named by the index.",
        "Engines load them all the same; readers that go by the index don't see them.",
        "2 tensors of model-00001-of-00002.safetensors are not in model.safetensors.index.json (first: "
        "d2t)",
        "Write the index again from the shards.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL015", "consolidated-copy", _W, "A consolidated copy lies beside the weights",
        "No `consolidated*.safetensors` lies beside other safetensors files.",
        "vLLM switches to the consolidated file and its Mistral names, and raises; without an index, "
        "other engines load both.",
        "consolidated.safetensors lies beside model-00001-of-00002.safetensors",
        "Move the copy out of the folder.",
        (_VLLM_FILES, "https://github.com/vllm-project/vllm/issues/40765"),
    ),
    Code(
        "FIL016", "several-weight-files", _W, "Several weight files without an index",
        "Without an index there is one weight file, or one complete set of numbered shards.",
        "Engines load every file of the kind and merge them: a leftover backup or a second module "
        "overrides or breaks the draft.",
        "model.safetensors, model_1.safetensors lie side by side without an index; engines load them all",
        "Keep the draft's file only, or write an index.",
        (_SGLANG_FILES, _VLLM_FILES, "https://github.com/SafeAILab/EAGLE/issues/182"),
    ),
    Code(
        "FIL017", "tensor-in-two-files", _E, "The same tensor is in two files",
        "No tensor name occurs in two of the files that an engine loads.",
        "Engines load both, and the later one wins; which is later depends on the order of a directory "
        "listing.",
        "fc.weight is in both model.safetensors and backup.safetensors",
        "Remove the file that should not be served.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL018", "safetensors-and-pickle", _I, "Both safetensors and pickled weights",
        "`*.safetensors` and `pytorch_model*.bin` don't lie side by side.",
        "SGLang and vLLM read the safetensors files only; the EAGLE repository's own loader reads "
        "pytorch_model.bin first. If the two differ, so do the engines.",
        "pytorch_model.bin is not read, because model.safetensors is there",
        "Remove the copy that is out of date.",
        (_SGLANG_FILES, _VLLM_FILES, "SafeAILab/EAGLE eagle/model/ea_model.py"),
    ),
    Code(
        "FIL019", "no-format-metadata", _I, "The weights don't say `format: pt`",
        "`__metadata__` of the weight files has `format: pt`.",
        "Engines don't ask; older transformers refuse such a file when they load it by themselves.",
        "model.safetensors has no __metadata__ (expected {'format': 'pt'})",
        "Nothing needs doing for serving; `ckpt fix-keys` writes it.",
        ("transformers modeling_utils.load_state_dict",),
    ),
    Code(
        "FIL020", "config-missing", _E, "There are weights, but no config.json",
        "A config.json lies beside the weights.",
        "No engine starts without it: the architecture and every size come from there.",
        "draft: no config.json beside training_state.pt",
        "Copy the draft's config.json (for SpecForge, the JSON of the run under `configs/`) beside the "
        "weights.",
        (_SGLANG_FILES,),
    ),
    Code(
        "FIL021", "config-damaged", _E, "A JSON file of the checkpoint can't be read",
        "config.json (and hf_quant_config.json, when there is one) is a JSON object in UTF-8 without a "
        "byte order mark.",
        "Engines stop with `JSONDecodeError` or `It looks like the config file is not a valid JSON file`.",
        "config.json is not JSON (Expecting ',' delimiter: line 7 column 3)",
        "Repair the line that the message names.",
        ("transformers configuration_utils.PreTrainedConfig._dict_from_json_file",),
    ),
    Code(
        "FIL022", "config-duplicate-key", _W, "A key occurs twice in config.json",
        "No object in config.json holds a key twice.",
        "The last one wins without a word, and it is easy to edit the other.",
        "config.json holds /hidden_size twice (again at line 14); the last one counts",
        "Keep one of the two.",
    ),
    Code(
        "FIL023", "training-leftovers", _I, "Training files lie beside the weights",
        "Optimizer, scheduler, random state and similar files of a training dump.",
        "They are not loaded, but they make the folder large and, being pickles, a risk to whoever loads "
        "them.",
        "optimizer.bin, random_states_0.pkl are training files, not weights; they are left out",
        "Don't publish or copy them to the server.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL024", "pickle-damaged", _E, "A pickled weight file can't be read",
        "`torch.load` reads the file.",
        "Engines refuse it: the file is truncated, or no PyTorch file.",
        "pytorch_model.bin can't be read (PytorchStreamReader failed finding central directory)",
        "Download or copy the file again.",
        (_TORCH,),
    ),
    Code(
        "FIL025", "pickle-without-tensors", _E, "A pickled file holds no state dict",
        "The file holds a dict of tensors, at the top or under a key that trainers use (draft_state_dict,"
        " state_dict, model_state_dict, module, model).",
        "There is nothing to load.",
        "training_args.bin holds a dict without tensors, expected a state dict",
        "Point at the file with the weights.",
        (_TORCH,),
    ),
    Code(
        "FIL026", "shards-without-index", _I, "Numbered shards without an index",
        "A set of numbered shards has a `model.safetensors.index.json`.",
        "SGLang and vLLM read every `*.safetensors` and do well without; transformers doesn't find the "
        "shards.",
        "3 shards (model-00001-of-00003.safetensors …) without model.safetensors.index.json",
        "Nothing needs doing for serving; `ckpt fix-keys` writes an index.",
        (_SGLANG_FILES, _VLLM_FILES),
    ),
    Code(
        "FIL027", "unusable-value", _W, "A pickled state dict holds values that aren't plain tensors",
        "Every value of the state dict is a dense tensor whose dtype safetensors knows.",
        "What isn't can't be written to safetensors and is left out.",
        "pytorch_model.bin: 'scales' is a sparse tensor, which is left out",
        "Export the state dict with plain tensors.",
        (_TORCH,),
    ),
    Code(
        "FIL028", "duplicate-tensor-name", _W, "A header holds a tensor name twice",
        "No tensor name occurs twice in a safetensors header.",
        "The safetensors library takes the last one; other readers may take the first.",
        "model.safetensors names 'norm.weight' twice in its header; the last one counts",
        "Write the file again with the safetensors library.",
        (_SAFETENSORS,),
    ),
    Code(
        "SEC001", "pickled-weights", _W, "The weights are a pickle",
        "Weights come from safetensors files.",
        "A pickle can run code when it is loaded. ckpt and current engines load it with weights_only, "
        "older tools don't.",
        "pytorch_model.bin is a pickle file; convert it to safetensors",
        "`ckpt fix-keys` writes safetensors.",
        (_TORCH,),
    ),
    Code(
        "SEC002", "unsafe-pickle", _E, "A pickle asks for more than tensors",
        "The pickle needs nothing beyond what `torch.load(weights_only=True)` allows.",
        "Engines refuse it, and a loader that doesn't would run whatever the pickle names.",
        "pytorch_model.bin should hold tensors and asks for os.system; nothing was run",
        "Don't load this file. Get the weights as safetensors from their author.",
        (_TORCH,),
    ),
    Code(
        "SEC003", "index-leaves-folder", _E, "The index names a file outside the folder",
        "Every file name in the index stays inside the checkpoint's folder.",
        "A crafted index can make a tool read, and publish, any file of the machine.",
        "model.safetensors.index.json names '../../secrets/model.safetensors', which leaves the folder; "
        "it is not read",
        "Write the index again from the shards, and mistrust its source.",
    ),
    Code(
        "SEC004", "remote-code", _I, "The checkpoint carries Python code",
        "`auto_map` in config.json and `*.py` files beside it.",
        "With `--trust-remote-code` an engine runs this code. Drafts don't need it: speculators copies a "
        "config.py that nothing reads.",
        "config.json has auto_map, and the folder holds config.py",
        "Leave `--trust-remote-code` off, or read the code first.",
    ),
)  # fmt: skip

CODES: Mapping[str, Code] = {row.code: row for row in _ROWS}


def shown(name: str) -> str:
    """A name from a file as it may stand in a message: escaped when it isn't plain text, and never long."""
    if name and name.isprintable() and len(name) <= 160:
        return name
    text = repr(name)
    return text if len(text) <= 160 else text[:159] + "…"


def listed(names: Sequence[str]) -> str:
    """Up to three names, and how many more there are."""
    text = ", ".join(map(shown, names[:3]))
    return text if len(names) <= 3 else f"{text} and {len(names) - 3} more"


def finding(
    code: str,
    message: str,
    location: Location | None = None,
    hint: str | None = None,
    *,
    severity: Severity | None = None,
    fix: Fix | None = None,
) -> Finding:
    """A finding of this family, with name and severity from its row unless ``severity`` says otherwise."""
    row = CODES[code]
    return Finding(code, row.name, severity or row.severity, message, location or Location(), hint, fix)
