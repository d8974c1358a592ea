"""Which SGLang release a draft and a target need as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.capture import target_class
from ckpt_tools.engines.history import family, first_release, releases_read
from ckpt_tools.engines.hooks import serves
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.checks.base import Context

#: Algorithm of a draft -> the name under which hooks are kept.
HOOK_ALGORITHM: Mapping[str, str] = {
    "eagle3": "eagle3",
    "eagle": "eagle",
    "peagle": "eagle3",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
}
#: Algorithm -> the fact of the history that tells from which release it is there.
ALGORITHM_FACT: Mapping[str, str] = {
    "dflash": "algo.DFLASH",
    "dflash2": "dflash.DFlash2",
    "domino": "dflash.domino",
    "dspark": "algo.DSPARK",
}


def needed_release(ctx: Context) -> tuple[str | None, list[tuple[str, str]]]:
    """(the first SGLang release that serves this pair as it is, what asks for it).

    The names alone decide most: ``layers.0.*`` is taken from 0.5.12 on, and loads as nothing in 0.4.9 to 0.5.11.
    """
    assert ctx.draft is not None
    needs: list[tuple[str, str]] = []
    facts = ctx.draft.facts
    if ctx.draft.algorithm == "eagle3":
        kind = "mla" if facts.layer_type == "mla" else "llama"
        if kind == "mla":
            needs.append((first_release("draft.Eagle3DeepseekV2ForCausalLM") or "", "the MLA draft class"))
        elif any(
            native.removeprefix(ctx.draft.wrapper).startswith("layers.0.")
            for native in ctx.draft.tensors.values()
        ):
            needs.append(
                (
                    first_release("eagle3.names.layers0") or "",
                    "layers.0.* names (they load as nothing before)",
                )
            )
        for flag in ("norm_before_fc", "fc_norm", "norm_output"):
            fact = f"eagle3.{flag}.{kind}"
            if getattr(facts, flag) and not (flag == "norm_before_fc" and kind == "mla"):
                needs.append((first_release(fact) or "", flag))
        if (facts.num_layers or 1) > 1 and kind != "mla":
            needs.append((first_release("eagle3.multilayer") or "", f"{facts.num_layers} draft layers"))
        if facts.num_aux not in (None, 3):
            needs.append((first_release("eagle3.num_aux") or "", f"{facts.num_aux} captured layers"))
    algorithm_fact = ALGORITHM_FACT.get(ctx.draft.algorithm)
    if algorithm_fact is not None:
        needs.append((first_release(algorithm_fact) or "", f"{ctx.draft.algorithm} drafts"))
    target = target_class(ctx)
    algorithm = HOOK_ALGORITHM.get(ctx.draft.algorithm)
    if target is not None and algorithm is not None:
        oldest = releases_read("sglang")[0]
        served = serves(Engine("sglang", oldest, oldest), target, algorithm)
        if served.needs:
            needs.append((served.needs, f"{target}'s hooks"))
    needs = [n for n in needs if n[0]]
    return (max((v for v, _ in needs), key=parse) if needs else None), needs


def newer_release(ctx: Context) -> str | None:
    """What to type where an older SGLang than the pair needs is asked for; ``None`` where the release isn't it."""
    if ctx.draft is None or ctx.engine is None or family(ctx.engine.name) != "sglang" or ctx.own_class:
        return None
    first, needs = needed_release(ctx)
    if first is None or parse(ctx.engine.version) >= parse(first):
        return None
    what = next(what for version, what in needs if version == first)
    return f"serve with sglang >= {first} ({what})"
