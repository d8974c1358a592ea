"""What a SGLang release's loader can and does: the contract, with where each answer is seen.

Everything is a fact of the releases' history (``engines/data/history.json``, whose evidence gives file and line per release) except what
loading 0.5.9, 0.5.12 and 0.5.23 for real showed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ckpt_tools.engines.history import holds, transformers_pin
from ckpt_tools.engines.versions import parse

if TYPE_CHECKING:
    from ckpt_tools.model import Engine


@dataclass(frozen=True)
class Features:
    """The switches of one release.

    Attributes:
        transformers: The version that the release pins.
        layers: EAGLE-3 layers are a list under ``layers.``, and ``midlayer`` in a name is renamed to it (0.5.12,
            models/llama_eagle3.py:307); before, one layer under ``midlayer.``.
        aux_count: ``num_aux_hidden_states`` and the length of the configured ids size fc (0.5.12, :154); before, 3.
        fc_norm: A norm per captured layer, and the ``aux_norm_*`` names (0.5.12, :171 and :308).
        norm_before_fc: One norm before fc (0.5.17, :165).
        mla_fc_norm: The same norms in the MLA head (0.5.13, models/kimi_k25_eagle3.py:222).
        null_draft_vocab: ``draft_vocab_size: null`` shares the target's head (0.5.2, models/llama_eagle3.py:205).
        rope_parameters: ``rope_parameters`` is read (0.5.10, models/llama.py:255).
        prefix: ``model.`` before a name is tolerated, and unknown names are dropped (0.4.9, models/llama_eagle3.py:203).
        fc_bias_from_config: fc has a bias only if ``bias`` says so (0.4.9, :127); before, always.
        modelopt_from_config: ``quant_method: modelopt`` is told apart by its algorithm (0.5.10, configs/model_config.py
            ``_parse_quant_hf_config``); before, it is FP8.
        modelopt_exact: Its FP8 is ``FP8`` alone (0.5.18, layers/quantization/modelopt_quant.py); before, any algorithm that holds the word.
        skips_whole_names: Layers that a config leaves alone are compared by whole dotted names (0.5.11,
            layers/quantization/utils.py ``_module_path_match``); before, by any piece of a name.
        ignores_suffixes: The same for compressed-tensors, by the end of a path (0.5.17, compressed_tensors/utils.py).
        quantized_head: ModelOpt's methods take the head too (0.5.15, modelopt_quant.py).
        tensors_head: compressed-tensors takes a head that a target names, and the KV cache's scales (0.5.19, compressed_tensors.py).
        packed_activations: ``pack-quantized`` may have activations (0.5.16, compressed_tensors/utils.py).
        group_formats: A group's own format wins (0.5.17, compressed_tensors.py).
        asymmetric: Packed integers may have zero points (0.5.13, compressed_tensors.py ``_is_wNa16_group_channel``).
        mla_parallel_fc: The MLA head's fc is a column-parallel linear (0.5.15, models/kimi_k25_eagle3.py:211); before, an ``nn.Linear``.
        eager_head_dim: hidden_size // num_attention_heads is computed even when head_dim is given (to 0.5.13.post1,
            configs/model_config.py ``_derive_model_shapes``).
        nested_configs: A nested config that is a dict becomes one of its own (0.5.10, utils/hf_transformers/common.py:566-580).
        rope_proportional: The rope type of Gemma 4 (0.5.11, layers/rotary_embedding/factory.py).
        flat_quantization: A ``hf_quant_config.json`` needs no ``quantization`` around its fields (0.5.20, configs/model_config.py:116-125).
        remote_code_raises: A module that ``auto_map`` names and that can't be had raises (0.5.9, model_loader/utils.py); from 0.5.10
            it is logged.
        dflash_rope_theta: The rope base is read from ``rope_parameters`` (0.5.13, models/dflash.py:98); before, from an attribute
            that transformers 5 no longer sets, so it is 1000000 whatever the config says (0.5.11:93).
        dflash_layer_types: ``layer_types`` and sliding windows are read (0.5.14, models/dflash.py).
        dflash_encoder_names: ``encoder.*`` names are accepted (0.5.18, models/dflash.py).
        dflash_quantized: DFlash layers go through the quantisation method (0.5.15, models/dflash.py).
        dflash_top_level: A top-level mask token counts, and without ``num_target_layers`` the captured ids bound
            themselves (0.5.18, speculative/dflash_utils.py, models/dflash.py).
        dflash2: Candidate selector, convolutions and sinks (0.5.19).
        domino: The Domino projector (0.5.20).
    """

    transformers: str
    layers: bool
    aux_count: bool
    fc_norm: bool
    norm_before_fc: bool
    mla_fc_norm: bool
    null_draft_vocab: bool
    rope_parameters: bool
    prefix: bool
    fc_bias_from_config: bool
    modelopt_from_config: bool
    modelopt_exact: bool
    skips_whole_names: bool
    ignores_suffixes: bool
    quantized_head: bool
    tensors_head: bool
    packed_activations: bool
    group_formats: bool
    asymmetric: bool
    mla_parallel_fc: bool
    eager_head_dim: bool
    nested_configs: bool
    rope_proportional: bool
    flat_quantization: bool
    remote_code_raises: bool
    dflash_rope_theta: bool
    dflash_layer_types: bool
    dflash_encoder_names: bool
    dflash_quantized: bool
    dflash_top_level: bool
    dflash2: bool
    domino: bool


@lru_cache(maxsize=64)
def features(engine: Engine) -> Features:
    """The switches of *engine*'s version."""

    def fact(name: str) -> bool:
        return bool(holds(name, engine))

    version = parse(engine.version)
    return Features(
        transformers=transformers_pin(engine) or "5.19.0",
        layers=fact("eagle3.names.layers0"),
        aux_count=fact("eagle3.num_aux"),
        fc_norm=fact("eagle3.fc_norm.llama"),
        norm_before_fc=fact("eagle3.norm_before_fc.llama"),
        mla_fc_norm=fact("eagle3.fc_norm.mla"),
        null_draft_vocab=fact("vocab.draft_vocab_null"),
        rope_parameters=fact("eagle3.rope_parameters"),
        prefix=fact("eagle3.names.model_prefix"),
        fc_bias_from_config=fact("eagle3.fc_bias_from_config"),
        modelopt_from_config=version >= parse("0.5.10"),
        modelopt_exact=version >= parse("0.5.18"),
        skips_whole_names=version >= parse("0.5.11"),
        ignores_suffixes=version >= parse("0.5.17"),
        quantized_head=version >= parse("0.5.15"),
        tensors_head=version >= parse("0.5.19"),
        packed_activations=version >= parse("0.5.16"),
        group_formats=version >= parse("0.5.17"),
        asymmetric=version >= parse("0.5.13"),
        mla_parallel_fc=version >= parse("0.5.15"),
        eager_head_dim=version < parse("0.5.14"),
        nested_configs=version >= parse("0.5.10"),
        rope_proportional=version >= parse("0.5.11"),
        flat_quantization=version >= parse("0.5.20"),
        remote_code_raises=version < parse("0.5.10"),
        dflash_rope_theta=version >= parse("0.5.13"),
        dflash_layer_types=fact("dflash.sliding_window"),
        dflash_encoder_names=fact("dflash.encoder_aliases"),
        dflash_quantized=version >= parse("0.5.15"),
        dflash_top_level=version >= parse("0.5.18"),
        dflash2=fact("dflash.DFlash2"),
        domino=fact("dflash.domino"),
    )
