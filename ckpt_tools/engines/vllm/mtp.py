"""The rewrites that turn a *target's* config into its bundled next-token head (``config/speculative.py:710-1169``).

They run on every draft config before anything else, by ``model_type`` and by the first architecture: a draft that
carries a target's ``model_type`` becomes an MTP model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# model_type -> (new model_type, architecture)
BY_MODEL_TYPE: Mapping[str, tuple[str, str]] = {
    "dots3_note": ("dots3_note_mtp", "Dots3NoteMTPModel"),
    "deepseek_v3": ("deepseek_mtp", "DeepSeekMTPModel"),
    "deepseek_v32": ("deepseek_mtp", "DeepseekV32MTPModel"),
    "glm_moe_dsa": ("deepseek_mtp", "DeepseekV32MTPModel"),
    "deepseek_mtp": ("deepseek_mtp", "DeepSeekMTPModel"),
    "deepseek_v4": ("deepseek_mtp", "DeepSeekV4MTPModel"),
    "pangu_ultra_moe": ("pangu_ultra_moe_mtp", "OpenPanguMTPModel"),
    "pangu_ultra_moe_mtp": ("pangu_ultra_moe_mtp", "OpenPanguMTPModel"),
    "kimi_k3": ("kimi_k3_mtp", "KimiK3MTPModel"),
    "ernie4_5_moe": ("ernie_mtp", "ErnieMTPModel"),
    "ernie_mtp": ("ernie_mtp", "ErnieMTPModel"),
    "nemotron_h_mtp": ("nemotron_h_mtp", "NemotronHMTPModel"),
    "qwen3_next": ("qwen3_next_mtp", "Qwen3NextMTP"),
    "qwen3_next_mtp": ("qwen3_next_mtp", "Qwen3NextMTP"),
    "qwen4_exp": ("qwen4_exp_mtp", "Qwen4ExpMTP"),
    "qwen4_exp_text": ("qwen4_exp_mtp", "Qwen4ExpMTP"),
    "bailing_hybrid": ("bailing_hybrid_mtp", "BailingMoeV25MTPModel"),
    "bailing_hybrid_mtp": ("bailing_hybrid_mtp", "BailingMoeV25MTPModel"),
    "exaone_moe": ("exaone_moe_mtp", "ExaoneMoeMTP"),
    "exaone_moe_mtp": ("exaone_moe_mtp", "ExaoneMoeMTP"),
    "exaone4_5": ("exaone4_5_mtp", "Exaone4_5_MTP"),
    "qwen3_5": ("qwen3_5_mtp", "Qwen3_5MTP"),
    "qwen3_5_text": ("qwen3_5_mtp", "Qwen3_5MTP"),
    "qwen3_5_moe": ("qwen3_5_mtp", "Qwen3_5MoeMTP"),
    "qwen3_5_moe_text": ("qwen3_5_mtp", "Qwen3_5MoeMTP"),
    "longcat_flash": ("longcat_flash_mtp", "LongCatFlashMTPModel"),
    "step3p5": ("step3p5_mtp", "Step3p5MTP"),
    "step3p7": ("step3p5_mtp", "Step3p5MTP"),
    "hy_v3": ("hy_v3_mtp", "HYV3MTPModel"),
    "hy_v4": ("hy_v4_mtp", "HYV4MTPModel"),
    "gemma4_assistant": ("gemma4_mtp", "Gemma4MTPModel"),
    "gemma4_unified_assistant": ("gemma4_mtp", "Gemma4MTPModel"),
    "minimax_m3_vl": ("minimax_m3_mtp", "MiniMaxM3MTP"),
    "minimax_m3_mtp": ("minimax_m3_mtp", "MiniMaxM3MTP"),
    "glm5_next": ("glm5_next_mtp", "Glm5NextMTPModel"),
}
# first architecture -> (new model_type, architecture); None keeps the model_type
BY_ARCHITECTURE: Mapping[str, tuple[str | None, str]] = {
    "MiMoForCausalLM": ("mimo_mtp", "MiMoMTPModel"),
    "MiMoV2ForCausalLM": ("mimo_v2_mtp", "MiMoV2MTPModel"),
    "MiMoV2OmniForCausalLM": ("mimo_v2_mtp", "MiMoV2OmniMTPModel"),
    "MiMoV2FlashForCausalLM": ("mimo_v2_mtp", "MiMoV2MTPModel"),
    "Glm4MoeForCausalLM": ("glm4_moe_mtp", "Glm4MoeMTPModel"),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite_mtp", "Glm4MoeLiteMTPModel"),
    "GlmOcrForConditionalGeneration": ("glm_ocr_mtp", "GlmOcrMTPModel"),
    "BailingMoeV3ForCausalLM": ("bailing_hybrid_v3_mtp", "BailingMoeV3MTPModel"),
    "BailingMoeV2_5ForCausalLM": ("bailing_hybrid_mtp", "BailingMoeV25MTPModel"),
    "Step3p5ForCausalLM": ("step3p5_mtp", "Step3p5MTP"),
    "Step3p7ForConditionalGeneration": ("step3p5_mtp", "Step3p5MTP"),
    "MistralLarge3ForCausalLM": (None, "EagleMistralLarge3ForCausalLM"),
    "MiniMaxM3SparseForConditionalGeneration": ("minimax_m3_mtp", "MiniMaxM3MTP"),
    "MiniMaxM3MTP": ("minimax_m3_mtp", "MiniMaxM3MTP"),
}


def rewrite(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes after ``hf_config_override``.

    Raises:
        Refused: ``architectures`` is absent or empty where the engine indexes it.
    """
    out = dict(attributes)
    names: Any = out.get("architectures")
    first = names[0]
    kind = out.get("model_type")
    hit: tuple[str | None, str] | None = BY_MODEL_TYPE.get(kind) if isinstance(kind, str) else None
    hit = hit or (BY_ARCHITECTURE.get(first) if isinstance(first, str) else None)
    layers = out.get("num_nextn_predict_layers")
    if hit is None and kind in ("nemotron_h", "nemotron_h_puzzle") and isinstance(layers, int) and layers > 0:
        hit = BY_MODEL_TYPE["nemotron_h_mtp"]
    if hit is not None:
        out |= {"model_type": hit[0] or kind, "architectures": [hit[1]], "n_predict": layers}
    return out
