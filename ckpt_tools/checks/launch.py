"""LCH: the launch command, against the engine release's real argument table and rules.

The rules themselves are the engine's and live with its argument tables; each problem that they name belongs to one code here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import CheckFunction, Context, Hit, check
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class _Row:
    """One code and the problems that belong to it."""

    code: str
    name: str
    severity: Severity
    ids: tuple[str, ...]
    page: str


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

ROWS = (
    _Row(
        "LCH001",
        "unknown-flag",
        _E,
        (
            "unknown-flag",
            "ambiguous-flag",
            "bad-choice",
            "bad-flag-value",
            "no-model",
            "speculative-key",
            "speculative-json",
            "stray-word",
        ),
        """A flag or value that the engine's parser refuses.

    Checks: every flag, value and JSON key is one that the release's own parser takes.
    Why: the server exits with status 2 before it loads anything.
    Example: --num-speculative-tokens is unknown to SGLang: unrecognized arguments, exit 2
    Fix: Use the spelling that the message names.
    References: sglang ServerArgs.add_cli_args and vllm serve by release, as extracted argument tables.
    """,
    ),
    _Row(
        "LCH002",
        "wrong-algorithm",
        _E,
        ("wrong-algorithm", "wrong-method", "unknown-algorithm", "unknown-method"),
        """The flag names another algorithm than the draft's.

    Checks: --speculative-algorithm (SGLang) or method (vLLM) is the one that the draft was trained for, and the release knows it.
    Why: EAGLE with an EAGLE-3 head gives no error: fc is skipped, the target's head replaces the draft's, the map isn't applied, and
        nothing is accepted.
    Example: the draft is EAGLE-3 and the command says EAGLE
    Fix: --speculative-algorithm EAGLE3
    References: sglang 0.5.23 srt/models/llama_eagle3.py:237-247, srt/speculative/eagle_worker_v2.py:371-379; sglang#21272.
    """,
    ),
    _Row(
        "LCH003",
        "half-given-triple",
        _E,
        ("half-given-triple", "bad-triple"),
        """Only some of steps, topk and draft tokens are given.

    Checks: --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens are given together, or none of them.
    Why: SGLang stops with TypeError ('>' not supported between NoneType and int) or an assertion without a text.
    Example: --speculative-num-steps is given without --speculative-eagle-topk
    Fix: Give all three: steps k, topk 1, draft tokens k + 1 for a chain.
    References: sglang 0.5.23 srt/arg_groups/speculative_hook.py:1072-1282 (run).
    """,
    ),
    _Row(
        "LCH004",
        "draft-tokens-adjusted",
        _W,
        ("draft-tokens-adjusted", "draft-tokens-too-many", "draft-tokens-few", "auto-triple"),
        """The numbers don't belong together, and the engine changes or wastes some.

    Checks: with topk 1 draft tokens are steps + 1; with more they fit the tree.
    Why: SGLang adjusts draft tokens to steps + 1 with a warning, so the depth isn't what was asked for.
    Example: topk 1 with 3 steps: num_draft_tokens should be 4, got 8
    Fix: Write steps + 1.
    References: sglang 0.5.23 srt/arg_groups/speculative_hook.py:1072-1282 (run).
    """,
    ),
    _Row(
        "LCH005",
        "draft-path",
        _E,
        ("no-draft-path", "draft-path-missing", "no-algorithm"),
        """The command names no draft, or one that isn't there, or no algorithm to use it with.

    Checks: the draft's path is given where the algorithm needs one, and is there.
    Why: SGLang takes the target as its own draft only for the MTP families; else the start fails or the target is loaded twice.
    Example: EAGLE3 needs --speculative-draft-model-path
    Fix: Give the path.
    References: sglang 0.5.23 srt/arg_groups/speculative_hook.py:1120-1148; sglang#36528.
    """,
    ),
    _Row(
        "LCH006",
        "draft-attention-backend",
        _E,
        ("draft-attention-backend", "topk-backend"),
        """The attention backend can't serve this draft or tree.

    Checks: a draft that isn't MLA doesn't inherit an MLA backend; topk above 1 has a backend that takes it.
    Why: SGLang raises: 'trtllm_mla backend can only be used with MLA models'; trtllm_mha takes topk 1 alone.
    Example: the draft is not MLA and would inherit trtllm_mla
    Fix: --speculative-draft-attention-backend flashinfer (SGLang 0.5.7 and later).
    References: sglang 0.5.23 srt/arg_groups/speculative_hook.py; sglang#23490.
    """,
    ),
    _Row(
        "LCH007",
        "method-from-path",
        _W,
        ("method-from-path", "sequential-peagle"),
        """vLLM takes the method from the words in the draft's path.

    Checks: method is given in vLLM's speculative config, and parallel_drafting for P-EAGLE.
    Why: vLLM looks for substrings in the whole path: 'eagle-' anywhere makes it EAGLE-1, and a path without a word makes the draft an
        independent model.
    Example: the path holds 'eagle-', so vLLM takes method eagle
    Fix: Write "method": "eagle3".
    References: vllm 0.33.0 config/speculative.py:1236-1501 (run).
    """,
    ),
    _Row(
        "LCH008",
        "num-speculative-tokens",
        _E,
        ("no-num-speculative-tokens", "bad-num-speculative-tokens", "draft-tp", "speculative-max-model-len"),
        """vLLM refuses the speculative config.

    Checks: num_speculative_tokens is given and positive; draft_tensor_parallel_size is 1 or the target's.
    Why: the server refuses to start.
    Example: num_speculative_tokens isn't given
    Fix: As the message says.
    References: vllm 0.33.0 config/speculative.py (run).
    """,
    ),
    _Row(
        "LCH009",
        "block-size",
        _W,
        ("block-size", "dflash-block", "dflash-forced", "dflash-window", "dspark-block"),
        """The block size of a parallel draft and the command's numbers differ.

    Checks: draft tokens and block size are the draft's own.
    Why: SGLang refuses two different numbers, forces steps and topk to 1, and only warns when the checkpoint's block size differs.
    Example: --speculative-num-draft-tokens 8 and the draft's block_size is 16
    Fix: Give the draft's block size.
    References: sglang 0.5.23 srt/arg_groups/speculative_hook.py:287-446, 666-883.
    """,
    ),
    _Row(
        "LCH010",
        "flag-without-effect",
        _W,
        ("token-map-ignored", "override-unneeded", "repeated-flag", "abbreviated-flag"),
        """A flag that has no effect, or an unclear one.

    Checks: no flag is ignored for this draft, given twice, or abbreviated.
    Why: what is read isn't what runs; an abbreviation breaks when a release adds a flag.
    Example: --speculative-token-map is ignored for EAGLE3
    Fix: Remove or write out the flag.
    References: sglang 0.5.23 srt/speculative/eagle_worker_v2.py:325-330.
    """,
    ),
    _Row(
        "LCH011",
        "refused-combination",
        _E,
        ("rejection-sampling", "pipeline-parallel", "runner"),
        """A combination that the engine refuses.

    Checks: rejection sampling has a draft of the target's whole vocabulary; pipeline parallelism an algorithm that takes it.
    Why: the server refuses to start.
    Example: --speculative-use-rejection-sampling needs the target's whole vocabulary and the draft has 32000 of 163840 ids
    Fix: Remove one of the two.
    References: sglang 0.5.23 srt/speculative/eagle_worker_v2.py:260-274.
    """,
    ),
    _Row(
        "LCH012",
        "output-not-exact",
        _W,
        ("lossy-threshold", "simulated-acceptance"),
        """The command changes what is accepted.

    Checks: acceptance thresholds are 1, and SGLANG_SIMULATE_ACC_LEN isn't set.
    Why: the output is no longer the target's, or the acceptance in the logs is made up.
    Example: SGLANG_SIMULATE_ACC_LEN=3 fakes the accept length
    Fix: Remove it for a real measurement.
    References: sglang 0.5.23 srt/environ.py.
    """,
    ),
)


def _function(row: _Row) -> CheckFunction:
    def found(ctx: Context) -> Iterator[Hit]:
        for problem in ctx.launch_problems or ():
            if problem.id in row.ids:
                yield Hit(
                    problem.message,
                    file="launch",
                    line=problem.line,
                    hint=problem.hint,
                    severity=problem.severity,
                )

    found.__doc__ = row.page
    return found


for _row in ROWS:
    check(_row.code, _row.name, _row.severity, needs=("launch_problems",))(_function(_row))
