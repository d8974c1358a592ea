"""What ``accept len`` and ``accept rate`` mean in each release."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt_tools.engines.versions import parse


@dataclass(frozen=True)
class RateFormula:
    """How a release reckons the rate that it prints.

    Attributes:
        id: ``len/(steps+1)``, ``len/num_draft_tokens`` or ``accepted/(num_draft_tokens-1)``.
        since: First release with it.
        useless: The rate that a draft shows of which nothing is accepted.
        text: In words.
        reference: Where the engine reckons it.
    """

    id: str
    since: str
    useless: str
    text: str
    reference: str

    def useless_rate(self, num_draft_tokens: int | None, steps: int | None) -> float | None:
        """The rate of a useless draft in numbers, ``None`` where its parts aren't known."""
        if self.useless == "0":
            return 0.0
        if self.useless == "1/(steps+1)":
            return None if steps is None else 1 / (steps + 1)
        return None if not num_draft_tokens else 1 / num_draft_tokens


_SGLANG = (
    RateFormula("len/(steps+1)", "0.5.3.post2", "1/(steps+1)",
                "accept rate is accept len divided by steps + 1",
                "sglang 0.5.4 srt/managers/scheduler_metrics_mixin.py:259"),
    RateFormula("len/num_draft_tokens", "0.5.5.post3", "1/num_draft_tokens",
                "accept rate is accept len divided by the number of draft tokens, so a useless draft shows "
                "1/num_draft_tokens and not 0",
                "sglang 0.5.9 srt/managers/scheduler_metrics_mixin.py:376"),
    RateFormula("accepted/(num_draft_tokens-1)", "0.5.11", "0",
                "accept rate is accepted draft tokens divided by verify steps times (num_draft_tokens - 1)",
                "sglang 0.5.23 srt/managers/scheduler_components/metrics_reporter.py:981"),
)  # fmt: skip
_VLLM = RateFormula(
    "accepted/drafted", "0.10.1", "0",
    "acceptance rate is accepted divided by drafted tokens; mean acceptance length is 1 + accepted / drafts",
    "vllm 0.32.0 vllm/v1/spec_decode/metrics.py:120",
)  # fmt: skip


def rate_formula(engine: str | None, version: str | None) -> RateFormula | None:
    """The formula of a release; ``None`` where the engine isn't known or the release prints no rate.

    Without a version, the newest formula of that engine.
    """
    if engine == "vllm":
        return _VLLM
    if engine not in ("sglang", "sglang-ext"):
        return None
    if version is None:
        return _SGLANG[-1]
    fitting = [f for f in _SGLANG if parse(f.since) <= parse(version)]
    return fitting[-1] if fitting else None
