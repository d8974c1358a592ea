"""Drafts as the formats would read them, for the two layouts that the recorded heads are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from ckpt_tools.forward.parts import NOTHING, Table, TargetParts
from ckpt_tools.model import Draft, DraftFacts, Rope

if TYPE_CHECKING:
    from ckpt_tools.forward._torch import torch

FIXTURES = Path(__file__).parents[3] / "fixtures"


def _rope(config: dict[str, Any]) -> Rope:
    stated = config.get("rope_parameters") or {}
    theta = stated.get("rope_theta", config.get("rope_theta"))
    scaling = config.get("rope_scaling")
    if scaling is None and stated.get("rope_type", "default") != "default":
        scaling = {k: v for k, v in stated.items() if k != "rope_theta"}
    return Rope(theta=theta, scaling=scaling)


def facts_of(config: dict[str, Any]) -> DraftFacts:
    """Canonical facts of a speculators config or of a flat one."""
    layer = config.get("transformer_layer_config", config)
    nested = config.get("eagle_config") or config.get("dflash_config") or {}
    keys = (
        "sample_from_anchor",
        "sliding_window_non_causal",
        "markov_head_type",
        "selector_top_k",
        "num_jacobi_passes",
        "is_causal",
    )
    return DraftFacts(
        num_layers=layer.get("num_hidden_layers"),
        hidden_size=layer["hidden_size"],
        target_hidden_size=config.get("target_hidden_size"),
        num_attention_heads=layer["num_attention_heads"],
        num_key_value_heads=layer["num_key_value_heads"],
        head_dim=layer.get("head_dim"),
        vocab_size=layer["vocab_size"],
        draft_vocab_size=config.get("draft_vocab_size"),
        norm_before_residual=config.get("norm_before_residual"),
        norm_before_fc=config.get("norm_before_fc"),
        fc_norm=config.get("fc_norm"),
        norm_output=config.get("norm_output"),
        rope=_rope(layer),
        max_position_embeddings=layer.get("max_position_embeddings"),
        sliding_window=layer.get("sliding_window"),
        layer_type=layer.get("model_type"),
        rms_norm_eps=layer["rms_norm_eps"],
        tie_word_embeddings=config.get("tie_word_embeddings"),
        layer_types=tuple(layer.get("layer_types") or ()) or None,
        block_size=config.get("block_size"),
        mask_token_id=config.get("mask_token_id", nested.get("mask_token_id")),
        extra={k: config[k] for k in keys if k in config},
    )


def algorithm_of(config: dict[str, Any]) -> str:
    """The algorithm of a speculators config or of a flat one."""
    stated = config.get("speculators_model_type")
    if stated:
        return str(stated)
    name = config["architectures"][0].lower()
    return next(a for a in ("eagle3", "dflash", "eagle") if a in name)


def canonical(name: str) -> str:
    """Canonical name of a tensor of either layout; SGLang's layers ≥ 1 call their input norm hidden_norm."""
    name = name.replace("midlayer.", "layers.0.")
    parts = name.split(".")
    if len(parts) > 3 and parts[0] == "layers" and parts[1] != "0" and parts[2] == "hidden_norm":
        return ".".join((*parts[:2], "input_layernorm", *parts[3:]))
    return name


class Recorded:
    """One recorded head: its draft, its canonical tensors, inputs and outputs."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, "pt") as file:
            self.config = json.loads(file.metadata()["config"])
            data = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  # safe_open has no iterator
        names = {canonical(k[2:]): k[2:] for k in data if k.startswith("w.")}
        self.tensors = {c: data["w." + n] for c, n in names.items()}
        for c, t in self.tensors.items():
            if t.is_floating_point():
                self.tensors[c] = t.float()
        self.draft = Draft(
            format="recorded",
            algorithm=algorithm_of(self.config),
            evidence=(),
            facts=facts_of(self.config),
            tensors=names,
        )
        self.inputs = {k[3:]: v for k, v in data.items() if k.startswith("in.")}
        self.outputs = {k[4:]: v for k, v in data.items() if k.startswith("out.")}
        embed, head = data.get("target.embed"), data.get("target.head")
        self.target = (
            NOTHING
            if embed is None and head is None
            else TargetParts(
                None if embed is None else Table(embed.float()), None if head is None else head.float()
            )
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape."""
        return {k: tuple(v.shape) for k, v in self.tensors.items()}


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    return float((found.float() - wanted.float()).abs().max() / wanted.float().abs().max())
