"""Which TensorRT-LLM answers, and where it was read.

No release was read whole and none was run: single files of NVIDIA/TensorRT-LLM's main branch were, each at a commit of its own.
They lie between 1.3.0rc9, whose two-model EAGLE-3 they call deprecated "until 1.4", and whatever 1.4.0 becomes, so the contract is
called 1.4.0.dev0: PEP 440 sorts it after every 1.3 and before 1.4.0rc0, and any release that is asked for is told that it has
no contract of its own. References in this package name a file of :data:`SOURCES`, below ``tensorrt_llm/``, and the function in it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTRACTS = ("1.4.0.dev0",)

#: File below ``tensorrt_llm/`` -> the commit at which it was read; "" where the copy names none.
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "_torch/model_config.py": "008e0af8980fc560003631ba4ac37828836a91c8",
        "_torch/models/modeling_speculative.py": "00679c66c3e38f6d2651ad0a5bef0f94d862e36c",
        "_torch/models/modeling_auto.py": "01bffee125e24ebe5b4a63437840a9422eb70868",
        "_torch/models/modeling_utils.py": "",
        "_torch/models/checkpoints/base_weight_mapper.py": "0c8de69a1ca6213eebb20a51873890ff128666c2",
        "_torch/models/checkpoints/hf/weight_mapper.py": "088aa36b002777f37d26241bcba56c86b132e5ee",
        "_torch/models/checkpoints/hf/weight_loader.py": "02086d89ee95f725414743a33a436473604202e9",
        "_torch/modules/attention.py": "00547a25ac61d28d1dabb2e47383a1af605ebb59",
        "_torch/modules/gated_mlp.py": "01503f5535c0379da60bfd282d225626813781ab",
        "_torch/modules/embedding.py": "06d0733f493698c0855bfed9c3fc00dd198e279c",
        "_torch/modules/linear.py": "",
        "_torch/modules/rms_norm.py": "0419019a946b80e497981fd0e79fae5506c8d1c5",
        "_torch/pyexecutor/config_utils.py": "",
        "_torch/speculative/eagle3.py": "001e67005b4f64b69b0045456870be48ab7b2cf0",
        "_torch/speculative/utils.py": "011d0933dcb5e592f5fa2626beaf42a96324c578",
        "llmapi/llm_args.py": "",
    }
)

#: The class of a one-model EAGLE-3 draft, whatever ``architectures`` says (modeling_speculative.py
#: ``_build_eagle3_one_model_draft``). Its registered names are EAGLE3LlamaForCausalLM and Eagle3DeepSeekV3ForCausalLM.
ARCHITECTURE = "Eagle3ForCausalLM"

#: 1.4.0rc0's package metadata pins it (``Requires-Dist: transformers==5.5.4``).
TRANSFORMERS = "5.5.4"

#: ``model_type``s that aren't read by transformers' own class alone (config_utils.py ``load_pretrained_config``).
OWN_CONFIGS = frozenset(
    {"deepseek_v32", "kimi_k2", "glm_moe_dsa", "laguna", "exaone4"}
    | {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}
)
