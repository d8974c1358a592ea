"""vLLM's contracts by release: what differs between them, as data with references.

References are ``file:line`` in the release's own ``vllm/`` folder. Six releases were read; one that is not listed
is answered by the nearest older one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Contract:
    """What one release does where releases differ.

    Attributes:
        version: The release that was read.
        unknown_name: The exception for a tensor that the draft has no place for.
        layers: Draft layers that EAGLE-3 builds; ``None`` is ``num_hidden_layers``.
        num_aux_from_config: ``fc`` takes the number of captured layers from the config, else 3.
        norm_before_fc, fc_norm, norm_output: The EAGLE-3 classes know the flag.
        attention_bias: The EAGLE-3 layers build q/k/v biases: ``none``, ``attention_bias``.
        full_vocab_d2t: ``raises`` or ``tolerated``: a ``d2t`` in a draft of the target's whole vocabulary.
        draft_vocab_required: A config without ``draft_vocab_size`` raises.
        own_embed_kept: The draft's own embedding survives when it differs from the target's.
        lm_head_shared: A missing head is taken from the target.
        parallel_drafting: P-EAGLE and ``mask_hidden``.
        speculators_types: ``speculators_model_type`` values that are read.
        speculators_layers: ``transformer_layer_config.model_type`` values for EAGLE-3; ``None`` takes any as llama.
        speculators_aux: Captured layer ids of a speculators config reach the engine.
        top_level_ids: ``eagle_aux_hidden_state_layer_ids`` at the top level is read.
        quantisation: The refusals of quantisation settings are this release's; another's are not known, and what
            would be refused here is not modelled there.
        missing_architectures, extra_architectures: Against the newest registry.
        runners: Runners that a default start may use.
        references: Field -> where it was read.
    """

    version: str
    unknown_name: str = "ValueError"
    layers: int | None = None
    num_aux_from_config: bool = True
    norm_before_fc: bool = True
    fc_norm: bool = True
    norm_output: bool = True
    attention_bias: bool = True
    full_vocab_d2t: str = "raises"
    draft_vocab_required: bool = False
    own_embed_kept: bool = True
    lm_head_shared: bool = True
    parallel_drafting: bool = True
    speculators_types: frozenset[str] = frozenset({"eagle3", "peagle", "dflash", "dflash2", "dspark"})
    speculators_layers: frozenset[str] | None = frozenset({"llama", "qwen3"})
    speculators_aux: bool = True
    top_level_ids: bool = True
    quantisation: bool = False
    missing_architectures: frozenset[str] = frozenset()
    extra_architectures: frozenset[str] = frozenset()
    runners: tuple[str, ...] = ("V2", "V1")
    references: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


_EAGLE3_NEWER = frozenset(
    {"Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM", "PeagleLlamaForCausalLM", "PEagleDraftModel",
     "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM", "Eagle3MiniMaxM2ForCausalLM"}
)  # fmt: skip
_DFLASH = frozenset(
    {"DFlashDraftModel", "DFlash2DraftModel", "DFlash2BeamDraftModel", "LiLiCorrDraftModel", "DFlashLagunaForCausalLM",
     "Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel", "K3DSparkModel", "DSparkDraftModel",
     "DSparkV41DraftModel", "MuseGlimmerAssistantModel", "DFlashMuseGlimmerAssistantModel"}
)  # fmt: skip

# Files that the references below name often.
_EAGLE3 = "model_executor/models/llama_eagle3.py"
_ALGOS = "transformers_utils/configs/speculators/algos.py"
_RUNNER = "v1/worker/gpu_model_runner.py"
_PROPOSER = "v1/spec_decode/eagle.py"
_SHARE = "v1/worker/gpu/spec_decode/eagle/utils.py"

_READ = (
    Contract(
        "0.10.1",
        unknown_name="KeyError",
        layers=1,
        num_aux_from_config=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        attention_bias=False,
        full_vocab_d2t="tolerated",
        draft_vocab_required=True,
        own_embed_kept=False,
        lm_head_shared=False,
        parallel_drafting=False,
        speculators_types=frozenset({"eagle3"}),
        speculators_layers=None,
        speculators_aux=False,
        top_level_ids=False,
        runners=("V1",),
        missing_architectures=_EAGLE3_NEWER | _DFLASH | {"LlamaForCausalLMEagle3"},
        references=MappingProxyType(
            {
                "unknown_name": f"{_EAGLE3}:175",
                "layers": f"{_EAGLE3}:123",
                "draft_vocab_required": f"{_EAGLE3}:208",
                "own_embed_kept": f"{_PROPOSER}:616",
                "lm_head_shared": f"{_PROPOSER}:636",
                "speculators_layers": f"{_ALGOS}:32",
            }
        ),
    ),
    Contract(
        "0.12.0",
        unknown_name="KeyError",
        num_aux_from_config=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        attention_bias=False,
        full_vocab_d2t="tolerated",
        parallel_drafting=False,
        speculators_types=frozenset({"eagle3"}),
        speculators_layers=None,
        runners=("V1",),
        missing_architectures=_EAGLE3_NEWER | _DFLASH,
        references=MappingProxyType(
            {
                "unknown_name": f"{_EAGLE3}:226",
                "layers": f"{_EAGLE3}:167",
                "num_aux_from_config": f"{_EAGLE3}:172",
                "attention_bias": f"{_EAGLE3}:61",
                "own_embed_kept": f"{_PROPOSER}:1043",
                "lm_head_shared": f"{_PROPOSER}:1091",
                "top_level_ids": f"{_RUNNER}:3632",
                "speculators_layers": f"{_ALGOS}:34",
                "speculators_aux": f"{_ALGOS}:35",
            }
        ),
    ),
    Contract(
        "0.17.0",
        unknown_name="KeyError",
        num_aux_from_config=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        full_vocab_d2t="tolerated",
        speculators_types=frozenset({"eagle3"}),
        speculators_layers=None,
        runners=("V1",),
        missing_architectures=_EAGLE3_NEWER | _DFLASH,
        references=MappingProxyType(
            {
                "unknown_name": f"{_EAGLE3}:229",
                "num_aux_from_config": f"{_EAGLE3}:175",
                "attention_bias": f"{_EAGLE3}:55",
                "parallel_drafting": f"{_EAGLE3}:299",
                "top_level_ids": f"{_RUNNER}:4419",
                "speculators_layers": f"{_ALGOS}:37",
                "runners": "envs.py:237",
            }
        ),
    ),
    Contract(
        "0.25.0",
        full_vocab_d2t="tolerated",
        speculators_types=frozenset({"eagle3", "peagle", "dflash", "dspark"}),
        missing_architectures=frozenset({"DFlash2DraftModel", "DFlash2BeamDraftModel"}),
        references=MappingProxyType(
            {
                "full_vocab_d2t": f"{_EAGLE3}:305",
                "num_aux_from_config": f"{_EAGLE3}:175-187",
                "speculators_layers": f"{_ALGOS}:41-48",
                "top_level_ids": f"{_RUNNER}:5420",
                "runners": "config/vllm.py:68-74,519-574",
            }
        ),
    ),
    Contract(
        "0.32.0",
        quantisation=True,
        references=MappingProxyType(
            {
                "extra_architectures": "model_executor/models/registry.py:655-745",
                "quantisation": "model_executor/layers/quantization/__init__.py:15-54",
                "speculators_types": f"{_ALGOS}:15-209",
            }
        ),
    ),
    Contract(
        "0.33.0",
        quantisation=True,
        missing_architectures=frozenset({"MedusaModel"}),
        extra_architectures=frozenset(
            {
                "Qwen3XPressModel",
                "DFlashQwen3XPressModel",
                "DFlash2BeamDraftModel",
                "MuseSparkDSparkModel",
                "ParseAuxMTPModel",
                "Step5MTP",
                "TransformersForMTP",
                "TransformersMoEForMTP",
            }
        ),
        references=MappingProxyType(
            {
                "unknown_name": "model_executor/models/utils.py:458-480",
                "full_vocab_d2t": f"{_EAGLE3}:339",
                "num_aux_from_config": f"{_EAGLE3}:209-221",
                "norm_before_fc": f"{_EAGLE3}:183-187",
                "fc_norm": f"{_EAGLE3}:231-240",
                "norm_output": f"{_EAGLE3}:283-288",
                "attention_bias": f"{_EAGLE3}:84",
                "own_embed_kept": f"{_SHARE}:18-34",
                "lm_head_shared": f"{_SHARE}:107-119",
                "parallel_drafting": f"{_EAGLE3}:346",
                "speculators_types": f"{_ALGOS}:15-209",
                "speculators_aux": f"{_ALGOS}:47",
                "top_level_ids": "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:119",
                "quantisation": "model_executor/layers/quantization/__init__.py:15-54",
                "runners": "config/vllm.py:731-767",
            }
        ),
    ),
)

CONTRACTS: Mapping[str, Contract] = MappingProxyType({contract.version: contract for contract in _READ})
