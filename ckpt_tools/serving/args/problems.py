"""What is wrong with a launch command, as the engine itself would treat it.

Pure: facts in, problems out. ``error`` where the engine refuses or drafts wrongly, ``warning`` where it goes on
in another way than was asked, ``info`` for what is worth knowing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.history import fact, family, holds
from ckpt_tools.model import EMPTY, Severity
from ckpt_tools.serving.args import sglang_rules, tables, vllm_rules
from ckpt_tools.serving.args.launch import human_int
from ckpt_tools.serving.args.problem import Pair, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ckpt_tools.model import Draft, Engine, Target
    from ckpt_tools.serving.args.launch import Flag, Launch


def launch_problems(
    launch: Launch,
    engine: Engine,
    draft: Draft | None = None,
    target: Target | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    exists: Callable[[str], bool | None] | None = None,
) -> tuple[Problem, ...]:
    """Everything that is wrong with *launch* on *engine* for this draft and target, worst first.

    Args:
        config: The draft's ``config.json``.
        exists: Tells whether a local path is there.
    """
    if family(engine.name) == launch.engine:
        launch = launch.at(engine.version)
    pair = Pair(launch, engine, draft, target, config or EMPTY, exists)
    found = list(_parser(pair))
    if launch.engine == "sglang":
        found += sglang_rules.problems(pair)
    elif launch.engine == "vllm":
        found += vllm_rules.problems(pair)
    found += _shared(pair)
    return tuple(sorted(found, key=lambda problem: -problem.severity.rank))


# ---- what the parser itself says

_SPELLINGS = {
    "--num-speculative-tokens": (
        "SGLang writes a chain of k tokens as --speculative-num-steps k --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens k+1"
    ),
    "--max-model-len": "SGLang's flag is --context-length",
    "--gpu-memory-utilization": "SGLang's flag is --mem-fraction-static",
    "--speculative-config": "SGLang takes --speculative-algorithm, --speculative-draft-model-path and three numbers",
}
_VLLM_SPELLINGS = {
    "--context-length": "vLLM's flag is --max-model-len",
    "--mem-fraction-static": "vLLM's flag is --gpu-memory-utilization",
}


def _parser(pair: Pair) -> Iterator[Problem]:
    launch, engine = pair.launch, pair.engine
    if not tables.has_table(launch.engine):
        return
    seen: dict[str, Flag] = {}
    for flag in launch.flags:
        if flag.candidates:
            yield Problem(
                "ambiguous-flag",
                Severity.ERROR,
                f"{flag.spelled} could be any of {', '.join(flag.candidates[:6])}: the parser refuses it",
                "write the flag out",
                flag.spelled,
                flag.line,
                "argparse, exit status 2",
            )
        elif flag.option is None:
            yield _unknown(pair, flag)
        else:
            yield from _value(flag, engine)
            if flag.abbreviated:
                yield Problem(
                    "abbreviated-flag",
                    Severity.INFO,
                    f"{flag.spelled} is taken for {flag.name}; a later release may add another flag that begins so",
                    f"write {flag.name}",
                    flag.spelled,
                    flag.line,
                    "argparse",
                )
            if flag.name in seen and flag.option.kind == "store" and "." not in flag.name:
                yield Problem(
                    "repeated-flag",
                    Severity.WARNING,
                    f"{flag.name} is given twice; the last value, {' '.join(flag.values)}, counts",
                    "remove one of them",
                    flag.name,
                    flag.line,
                    "argparse",
                )
            seen[flag.name] = flag
    allowed = 1 if launch.program == "vllm serve" else 0
    for word in launch.positional[allowed:]:
        yield Problem(
            "stray-word",
            Severity.ERROR,
            f"{word!r} belongs to no flag: error: unrecognized arguments",
            "a flag before it takes no value, or fewer; quote what belongs together",
            word,
            launch.line,
            "argparse, exit status 2",
        )
    if launch.engine == "sglang" and "--model-path" not in seen and "--config" not in seen:
        yield Problem(
            "no-model",
            Severity.ERROR,
            "--model-path is missing: the parser requires it",
            "add --model-path TARGET",
            "--model-path",
            launch.line,
            "argparse, exit status 2",
        )


def _unknown(pair: Pair, flag: Flag) -> Problem:
    engine, name = pair.engine, pair.launch.engine
    elsewhere = tables.known_in(name, flag.name)
    history = fact_of(flag.name) if name == "sglang" else None
    hint = (_SPELLINGS if name == "sglang" else _VLLM_SPELLINGS).get(flag.name)
    certain = tables.certain(name, engine.version, flag.name)
    text = f"{engine} has no flag {flag.spelled}: error: unrecognized arguments, exit status 2"
    if history is not None:
        known = holds(history, engine)
        certain = certain or known is not None
        row = fact(history)
        if known:
            certain = False
        elif row.first:
            hint = f"it came in {row.first}" + (f" and went after {row.last}" if row.last else "")
    elif elsewhere and not hint:
        hint = f"the releases whose parser has it, of those known: {', '.join(elsewhere)}"
    if not hint and name == "vllm" and "spec" in flag.name:
        hint = 'vLLM takes --speculative-config \'{"method": …, "model": …, "num_speculative_tokens": …}\''
    if not hint and (near := tables.table(name, engine.version).closest(flag.name)):
        hint = f"did you mean {near}?"
    if not certain:
        text = f"{flag.spelled} isn't in the parser of {name} {pair.launch.table_version}, the nearest release known"
    return Problem(
        "unknown-flag",
        Severity.ERROR if certain else Severity.WARNING,
        text,
        hint,
        flag.spelled,
        flag.line,
        "argparse, exit status 2",
    )


def fact_of(flag: str) -> str | None:
    """The id of the history's fact about a SGLang flag, if there is one."""
    if "_" in flag:
        return None  # SGLang's parser doesn't take underscores for dashes
    name = "flag." + flag.lstrip("-").replace("-", "_")
    try:
        fact(name)
    except KeyError:
        return None
    return name


def _value(flag: Flag, engine: Engine) -> Iterator[Problem]:
    option = flag.option
    if option is None or "." in flag.name:
        return
    if option.kind == "flag":
        if flag.values:
            yield _bad(flag, f"{flag.name} takes no value")
        return
    if not flag.values and option.nargs not in ("?", "*"):
        yield _bad(flag, f"{flag.name} needs a value: error: expected one argument")
    for value in flag.values:
        if option.choices is not None and value not in option.choices:
            if any(mark in value for mark in "${`"):
                continue  # set where the command runs
            shown = ", ".join(option.choices[:12]) + ("…" if len(option.choices) > 12 else "")
            yield _bad(flag, f"{flag.name} {value}: {engine} takes only {shown}", "bad-choice")
        elif not _fits(value, option.type):
            yield _bad(flag, f"{flag.name} {value}: invalid {option.type.replace('_', ' ')} value")


def _bad(flag: Flag, message: str, id: str = "bad-flag-value") -> Problem:
    return Problem(id, Severity.ERROR, message, None, flag.name, flag.line, "argparse, exit status 2")


def _fits(text: str, kind: str) -> bool:
    """Whether the parser's own conversion takes *text*; what a shell fills in later is taken."""
    if any(mark in text for mark in "${`"):
        return True
    if kind.startswith("human_int"):
        return human_int(text) is not None or (kind.endswith("auto") and text in ("auto", "-1"))
    try:
        if kind == "int":
            int(text)
        elif kind == "float":
            float(text)
    except ValueError:
        return False
    return True


# ---- what both engines do

_SIMULATED = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")


def _shared(pair: Pair) -> Iterator[Problem]:
    launch = pair.launch
    tp = launch.tp
    if tp is not None and tp > 0:
        yield from _heads(pair, tp)
    for name in _SIMULATED:
        value = launch.env.get(name, "")
        if value not in ("", "0", "-1"):
            yield Problem(
                "simulated-acceptance",
                Severity.WARNING,
                f"{name}={value} makes the server pretend acceptance: its figures mean nothing",
                f"unset {name}",
                name,
                launch.line,
                "sglang 0.5.23 srt/environ.py",
            )
    draft = launch.draft
    if draft and pair.exists and draft.startswith(("/", "./", "../", "~")) and pair.exists(draft) is False:
        yield Problem(
            "draft-path-missing",
            Severity.WARNING,
            f"the draft path {draft} isn't here",
            "give the path as the server sees it",
            "--speculative-draft-model-path" if launch.engine == "sglang" else "model",
            launch.line,
        )


def _attention_tp(launch: Launch, tp: int) -> int:
    """Ranks that share the target's attention: data-parallel attention divides them."""
    if launch.engine == "sglang" and launch.given("--enable-dp-attention"):
        return max(1, tp // (launch.number("--dp-size") or 1))
    return tp


def _heads(pair: Pair, tp: int) -> Iterator[Problem]:
    draft, target = pair.draft, pair.target
    sizes: list[tuple[str, int | None, int | None, int | None]] = []
    if draft is not None:
        facts = draft.facts
        sizes.append(("draft", facts.num_attention_heads, facts.num_key_value_heads, facts.intermediate_size))
    if target is not None:
        sizes.append(("target", target.num_attention_heads, target.num_key_value_heads, None))
    flag = pair.launch.flag("--tp-size" if pair.launch.engine == "sglang" else "--tensor-parallel-size")
    line = flag.line if flag else pair.launch.line
    attention = _attention_tp(pair.launch, tp)
    reference = (
        "sglang 0.5.23 srt/models/llama.py:183"
        if pair.launch.engine == "sglang"
        else "vllm 0.33.0 config/model.py:1559"
    )
    for what, heads, kv_heads, inner in sizes:
        ranks = attention if what == "target" else tp
        both = (
            "draft and target each have"
            if len(sizes) == 2 and sizes[0][1:3] == sizes[1][1:3]
            else f"the {what} has"
        )
        if heads and heads % ranks:
            yield Problem(
                "tp-heads",
                Severity.ERROR,
                f"{both} {heads} attention heads, which --tp {ranks} doesn't divide "
                f"(num_attention_heads % tp = {heads % ranks})",
                f"tensor-parallel sizes that fit: {_divisors(sizes)}",
                "--tp",
                line,
                reference,
            )
            return
        if kv_heads and kv_heads % ranks and ranks % kv_heads:
            yield Problem(
                "tp-kv-heads",
                Severity.ERROR,
                f"{both} {kv_heads} key-value heads: --tp {ranks} neither divides them nor is a multiple",
                f"tensor-parallel sizes that fit: {_divisors(sizes)}",
                "--tp",
                line,
                reference,
            )
            return
        if inner and inner % tp:
            yield Problem(
                "tp-intermediate",
                Severity.ERROR,
                f"the {what}'s intermediate_size {inner} isn't divisible by --tp {tp}",
                f"tensor-parallel sizes that fit: {_divisors(sizes)}",
                "--tp",
                line,
                reference,
            )


def _divisors(sizes: list[tuple[str, int | None, int | None, int | None]]) -> str:
    fitting = []
    for tp in range(1, 65):
        fits = all(
            (not heads or heads % tp == 0)
            and (not kv or kv % tp == 0 or tp % kv == 0)
            and (not inner or inner % tp == 0)
            for _, heads, kv, inner in sizes
        )
        if fits:
            fitting.append(tp)
    return ", ".join(map(str, fitting)) or "1"
