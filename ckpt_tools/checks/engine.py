"""ENG: can this engine version serve this target with this draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.capture import target_class
from ckpt_tools.checks.needs import ALGORITHM_FACT, HOOK_ALGORITHM, needed_release
from ckpt_tools.engines import contract_note
from ckpt_tools.engines.history import family, first_release, holds
from ckpt_tools.engines.hooks import serves
from ckpt_tools.engines.sglang_ext.targets import wrapped
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("ENG001", "target-lacks-hooks", Severity.ERROR, needs=("draft", "engine"), after=("ENG003",))
def lacks_hooks(ctx: Context) -> Iterator[Hit]:
    """The target's class can't serve this algorithm in this release.

    Checks: the target's class has set_eagle3_layers_to_capture and get_embed_and_head (SGLang), or supports EAGLE-3 states (vLLM), at
        this release.
    Why: SGLang looks for the hook after all weights are loaded and the pools are allocated, so the start fails after minutes.
    Example: KimiK25ForConditionalGeneration has no set_eagle3_layers_to_capture in sglang==0.5.9; it has from 0.5.10 on
    Fix: Serve with a release that has the hooks.
    References: sglang 0.5.23 srt/model_executor/model_runner_components/attention_backend_setup.py:54-61; every release's classes by
        static scan; vllm 0.33.0 model_executor/models/interfaces.py:1713-1772.
    """
    assert ctx.engine is not None and ctx.draft is not None
    target = target_class(ctx)
    algorithm = HOOK_ALGORITHM.get(ctx.draft.algorithm)
    if target is None or algorithm is None or family(ctx.engine.name) not in ("sglang", "vllm"):
        return
    kind = ctx.target.text_model_type or ctx.target.model_type if ctx.target else None
    if ctx.engine.name == "sglang-ext" and algorithm == "eagle3" and wrapped(target, ctx.engine.version):
        return
    served = serves(ctx.engine, target, algorithm, text_model_type=kind)
    if served.ok is False:
        needs = f"; {ctx.engine.name} {served.needs} has them" if served.needs else ""
        yield Hit(
            f"{served.reason}{needs}: the start fails after all weights are loaded",
            hint=f"serve with {family(ctx.engine.name)} >= {served.needs}"
            if served.needs
            else "serve this target with another engine",
        )


@check(
    "ENG003",
    "algorithm-unknown-to-release",
    Severity.ERROR,
    needs=("draft", "engine"),
    engines=("sglang",),
)
def algorithm_unknown(ctx: Context) -> Iterator[Hit]:
    """This release doesn't know the draft's algorithm.

    Checks: the release has the draft's algorithm: DFLASH from 0.5.11, DSPARK from 0.5.16, DFlash2 from 0.5.19, Domino from 0.5.20.
    Why: the server refuses the flag or the architecture.
    Example: DFLASH: SGLang has it from 0.5.11 on, and this is 0.5.9
    Fix: Serve with a newer release.
    References: sglang srt/speculative/spec_info.py by release (engine history algo.DFLASH, algo.DSPARK).
    """
    assert ctx.draft is not None and ctx.engine is not None
    fact = ALGORITHM_FACT.get(ctx.draft.algorithm)
    if fact is not None and holds(fact, ctx.engine) is False:
        first = first_release(fact)
        yield Hit(
            f"{ctx.draft.algorithm}: SGLang has it from {first} on, and this is {ctx.engine.version}",
            pointer="/architectures",
            hint=f"serve with sglang >= {first}",
        )


@check("ENG004", "no-contract-of-this-version", Severity.INFO, needs=("engine",))
def no_contract(ctx: Context) -> Iterator[Hit]:
    """The version has no contract of its own.

    Checks: the engine's loader was recorded at this version.
    Why: the nearest older contract answers, with the facts whose release is known; something may have changed since.
    Example: sglang==0.5.24 has no contract of its own; the nearest older one, 0.5.23, answers
    Fix: verify --probe asks the installed engine itself.
    References: docs/engines.
    """
    assert ctx.engine is not None
    note = contract_note(ctx.engine)
    if note is not None:
        probed = family(ctx.engine.name) in ("sglang", "vllm")
        yield Hit(note, hint="ckpt verify --probe asks the installed engine itself" if probed else None)


@check("ENG006", "load-not-modelled", Severity.INFO, needs=("draft", "engine", "load"), after=("PAR002",))
def not_modelled(ctx: Context) -> Iterator[Hit]:
    """ckpt doesn't know what this engine's loader does with such a draft.

    Checks: there is a load map of the class that the engine builds for this draft.
    Why: without one, nothing is said of names, shapes and missing tensors; a clean report means less than it does elsewhere.
    Example: what trtllm==1.4.0.dev0 does with the tensors of a dflash draft isn't known to ckpt: only config and target were checked
    Fix: Start the engine and read its log with ckpt watch.
    References: docs/engines.
    """
    assert ctx.draft is not None and ctx.engine is not None and ctx.load is not None
    if ctx.load.parameters or ctx.load.refused or not ctx.checkpoint.tensors:
        return
    built = f" (it builds {ctx.load.architecture})" if ctx.load.architecture else ""
    yield Hit(
        f"what {ctx.engine} does with the tensors of this {ctx.draft.algorithm} draft{built} isn't known to ckpt: only its config "
        "and the target were checked",
        hint="start the engine and read its log with ckpt watch",
    )


@check(
    "ENG005",
    "needs-release",
    Severity.INFO,
    needs=("draft", "engine"),
    engines=("sglang",),
    after=("CFG", "KEY", "ENG001", "ENG003", "LAY005", "NRM"),
)
def needs_release(ctx: Context) -> Iterator[Hit]:
    """The first release that serves this draft as it is.

    Checks: whether older releases behave otherwise.
    Why: an older release drops names or flags without a word: layers.0.* loads as nothing on 0.4.9 to 0.5.11.
    Example: needs sglang >= 0.5.12: layers.0.* names (from 0.5.12)
    Fix: Serve with that release or a later one; ckpt fix-keys writes names that every release takes.
    References: every SGLang release from 0.4.6 to 0.5.23 was read.
    """
    first, needs = needed_release(ctx)
    if first is None or ctx.engine is None or ctx.own_class:
        return
    listed = ", ".join(
        f"{what} (from {version})" for version, what in sorted(needs, key=lambda n: parse(n[0]))
    )
    yield Hit(f"needs sglang >= {first}: {listed}", severity=Severity.INFO)
