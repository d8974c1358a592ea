"""Which files beside the weights go along."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Checkpoint

#: Files beside the weights that belong to the draft and are carried along.
CARRIED = (
    "README.md",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "generation_config.json",
    "chat_template.jinja",
    "mask_embedding.pt",
)
CARRIED_PREFIXES = ("tokenizer", "special_tokens_map", "vocab.", "merges.", "added_tokens")
LEFT: Mapping[str, str] = {
    "conversion.json": "of an earlier conversion; this one writes its own",
    "optimizer_state_dict.pt": "optimizer state",
    "optimizer.pt": "optimizer state",
    "optimizer.bin": "optimizer state",
    "scheduler_state_dict.pt": "scheduler state",
    "scheduler.pt": "scheduler state",
    "training_state.json": "training state",
    "training_state.pt": "training state",
    "training_args.bin": "training arguments",
    "trainer_state.json": "training state",
    "val_metrics.json": "training metrics",
    "train_command.txt": "names the machine that trained the draft",
    "config.py": "Python code that speculators copies in; nothing needs it",
    "dflash.py": "Python code that SpecForge copies in; nothing needs it",
    "hf_quant_config.json": "names modules of the source; plain tensors need none",
    "modelopt_state.pth": "Model-Optimizer's training state",
    "eagle_meta.pt": "the vocabulary table, which is written as d2t",
    "vocab_mapping.pt": "the vocabulary tables, which are written as d2t and t2d",
    "vocab_mapping_cache.pt": "the vocabulary tables, which are written as d2t and t2d",
    "cache.pt": "the vocabulary tables, which are written as d2t and t2d",
    "d2t.pt": "the vocabulary table, which is written as d2t",
}


def other_files(checkpoint: Checkpoint) -> tuple[tuple[str, ...], dict[str, str]]:
    """(files that go along, files that stay with the reason)."""
    carried, left = [], {}
    for info in checkpoint.files:
        name = info.name
        if info.kind != "other" or name == "config.json" or name.endswith(".index.json"):
            continue
        if name in CARRIED or name.startswith(CARRIED_PREFIXES):
            carried.append(name)
        else:
            left[name] = LEFT.get(name, "not part of a draft as far as is known")
    return tuple(carried), left
