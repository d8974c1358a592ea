"""Which algorithm an engine wants for a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines.history import holds
from ckpt_tools.engines.versions import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Engine

# Algorithm of a draft -> --speculative-algorithm; NEXTN is EAGLE's other name (speculative/spec_info.py).
SGLANG: Mapping[str, str] = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "dflash": "DFLASH",
    "dflash2": "DFLASH",
    "dspark": "DSPARK",
    "mtp": "NEXTN",
}
# Algorithm of a draft -> "method" of vLLM's speculative config (config/speculative.py).
VLLM: Mapping[str, str] = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "dflash": "dflash",
    "dflash2": "dflash",
    "xpress": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
# Where each SGLang algorithm came in, as facts of the engine's history.
_SINCE: Mapping[str, str] = {
    "STANDALONE": "algo.STANDALONE",
    "NGRAM": "algo.NGRAM",
    "DFLASH": "algo.DFLASH",
    "FROZEN_KV_MTP": "algo.FROZEN_KV_MTP",
    "DSPARK": "algo.DSPARK",
    "UNO": "algo.UNO",
}
_ALWAYS = ("EAGLE", "EAGLE3", "NEXTN")

# What happens when a draft of one kind is started with another algorithm (contract of 0.5.23, section 7.4).
MISMATCH: Mapping[tuple[str, str], str] = {
    (
        "eagle3",
        "EAGLE",
    ): "starts without a word and accepts nothing: fc is skipped, the target's head replaces the "
    "draft's, and d2t is not applied",
    ("eagle", "EAGLE3"): "dies after loading: AttributeError 'hot_token_id'",
    ("mtp", "EAGLE3"): "dies after loading: AttributeError 'set_embed'",
    ("dflash", "EAGLE3"): "dies after loading: AttributeError 'set_embed'",
    ("dflash2", "EAGLE3"): "dies after loading: AttributeError 'set_embed'",
    ("eagle3", "DFLASH"): "dies after loading: AttributeError 'candidate_selector'",
}


def sglang_algorithms(engine: Engine) -> tuple[str, ...]:
    """The algorithms that this release knows."""
    return (*_ALWAYS, *(name for name, fact in _SINCE.items() if holds(fact, engine)))


def takes_any_case(engine: Engine) -> bool:
    """Whether the release upper-cases the algorithm (before, argparse compares it as written)."""
    return parse(engine.version) >= parse("0.5.12")
