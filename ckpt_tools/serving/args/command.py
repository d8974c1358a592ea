"""The serving command for a draft and its target, with a reason per flag, right for the engine's release."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.history import holds
from ckpt_tools.engines.sglang_ext.head import ARCHITECTURE
from ckpt_tools.engines.versions import parse
from ckpt_tools.errors import UsageError
from ckpt_tools.model import EMPTY
from ckpt_tools.serving.args import tables
from ckpt_tools.serving.args.algorithms import SGLANG, VLLM, sglang_algorithms
from ckpt_tools.serving.args.launch import Launch, parse_launch
from ckpt_tools.serving.args.vllm_rules import methods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckpt_tools.model import Draft, Engine, Target

_STEPS = 3  # what both engines' own examples use for a chain
_OVERRIDE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_WINDOW = "--speculative-draft-window-size"
_DRAFT_REVISION = "--speculative-draft-model-revision"
_FRACTION = 0.88  # SGLang's own static fraction on a large GPU, before a draft is counted


@dataclass(frozen=True)
class Argument:
    """A flag with its values and why it is there; a positional word has an empty ``flag``."""

    flag: str
    values: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class LaunchPlan:
    """A command to start a server.

    Attributes:
        engine: For which release.
        program: The words before the arguments.
        arguments: In order, each with its reason.
        env: Variables with their values; ``env_reasons`` says why.
        notes: What the command can't say.
        port: Where the server will listen.
        mounts: Folders of this machine that a container needs at the same place.
    """

    engine: Engine
    program: tuple[str, ...]
    arguments: tuple[Argument, ...]
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    env_reasons: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    notes: tuple[str, ...] = ()
    port: int = 30000
    mounts: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command."""
        words = [word for a in self.arguments for word in ((a.flag, *a.values) if a.flag else a.values)]
        return (*self.program, *words)

    @property
    def line(self) -> str:
        """The command on one line, quoted for a shell."""
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.env.items()), shlex.join(self.argv)])

    @property
    def reasons(self) -> Mapping[str, str]:
        """Flag or variable -> why."""
        out = {argument.flag or argument.values[0]: argument.reason for argument in self.arguments}
        return MappingProxyType(out | dict(self.env_reasons))

    def launch(self) -> Launch:
        """The same command as :func:`~ckpt_tools.serving.args.launch.parse_launch` reads it."""
        return parse_launch(self.line, self.engine.version)


@dataclass(frozen=True)
class Place:
    """Where a server finds a model: a folder as the server sees it, or a Hub id and its revision."""

    path: str
    revision: str | None = None


@dataclass(frozen=True)
class Wish:
    """What the user asks of the command; ``None`` leaves it to the draft and the engine.

    Attributes:
        steps: Draft tokens in a chain, or depth of the tree.
        topk: Branches per step; SGLang only.
        draft_tokens: Tokens verified at once, for a tree.
        context_length: Served length.
        gpu_bytes, draft_bytes: Memory of one GPU and size of the draft's weights: for the memory fraction.
        extra: Words to add as they are; a flag given here replaces the same flag of ours.
    """

    tp: int | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    context_length: int | None = None
    port: int | None = None
    gpu_bytes: int | None = None
    draft_bytes: int | None = None
    extra: tuple[str, ...] = ()


def launch_command(
    draft: Draft,
    target: Target | None,
    engine: Engine,
    *,
    draft_at: Place,
    target_at: Place,
    config: Mapping[str, Any] | None = None,
    wish: Wish | None = None,
) -> LaunchPlan:
    """The command that serves *target* with *draft* on *engine*.

    Args:
        draft_at: The draft as the server sees it; the target's own place for bundled layers.
        target_at: The target as the server sees it.
        config: The draft's ``config.json``.

    Raises:
        UsageError: The engine has no algorithm for this draft in this release, or what is asked can't be.
    """
    wish = wish or Wish()
    config = config or EMPTY
    if engine.name in ("sglang", "sglang-ext"):
        return _sglang(draft, target, engine, draft_at, target_at, config, wish)
    if engine.name == "vllm":
        return _vllm(draft, target, engine, draft_at, target_at, wish)
    raise UsageError(f"no launch command for {engine.name}", "use --engine sglang or --engine vllm")


def _revision(at: Place) -> list[Argument]:
    """Both engines' flag for the target's revision."""
    return [Argument("--revision", (at.revision,), "the revision that was verified")] if at.revision else []


# ---- SGLang


def _sglang(
    draft: Draft,
    target: Target | None,
    engine: Engine,
    draft_at: Place,
    target_at: Place,
    config: Mapping[str, Any],
    wish: Wish,
) -> LaunchPlan:
    algorithm = SGLANG.get(draft.algorithm)
    if algorithm is None:
        raise UsageError(f"SGLang has no algorithm for a {draft.algorithm} draft", "use --engine vllm")
    if algorithm not in sglang_algorithms(engine):
        raise UsageError(
            f"{engine} has no {algorithm}",
            "use a newer release: `ckpt verify` says from which one on it is served",
        )
    parser = tables.table("sglang", engine.version)
    out: list[Argument] = [Argument("--model-path", (target_at.path,), "the target"), *_revision(target_at)]
    out.append(
        Argument("--speculative-algorithm", (algorithm,), f"the algorithm of this draft ({draft.algorithm})")
    )
    if draft_at != target_at:
        out.append(Argument("--speculative-draft-model-path", (draft_at.path,), "the draft"))
        if draft_at.revision:
            if parser.lookup(_DRAFT_REVISION).option is None:
                raise UsageError(
                    f"{engine} can't be told a revision of the draft, and takes the default branch",
                    f"`hf download {draft_at.path} --revision {draft_at.revision} --local-dir DIR`, then give DIR",
                )
            out.append(Argument(_DRAFT_REVISION, (draft_at.revision,), "the revision that was verified"))
    out += _sglang_numbers(draft, algorithm, wish)
    if wish.tp:
        spelled = parser.lookup("--tp-size").option
        name = "--tp-size" if spelled is None or "--tp-size" in spelled.flags else spelled.name
        out.append(Argument(name, (str(wish.tp),), "ranks that share target and draft"))
    env: dict[str, str] = {}
    env_reasons: dict[str, str] = {}
    if wish.context_length:
        out.append(
            Argument("--context-length", (str(wish.context_length),), "the served length that was asked for")
        )
    if override := _override(draft, target, engine, wish):
        env[_OVERRIDE], env_reasons[_OVERRIDE] = "1", override
    if engine.name == "sglang-ext":
        env["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "ckpt_tools.sglang_models"
        env_reasons["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "the model classes that this draft was written for"
    out += _sglang_kinds(draft, target, engine, config)
    out += _sglang_window(draft, engine, config, parser)
    if (fraction := _fraction(engine, wish)) is not None:
        out.append(
            Argument(
                "--mem-fraction-static",
                (f"{fraction:.2f}",),
                "in this release the draft is loaded after the target's pool: its size is left free",
            )
        )
    if wish.port:
        out.append(Argument("--port", (str(wish.port),), "where the server listens"))
    recent = parse(engine.version) >= parse("0.5.16")
    program = ("sglang", "serve") if recent else ("python3", "-m", "sglang.launch_server")
    notes = []
    if engine.name == "sglang-ext":
        notes.append("ckpt-tools has to be installed where SGLang runs: `pip install ckpt-tools`")
    if draft.algorithm == "mtp":
        notes.append("the draft layers are the target's own: no draft path is given")
    return LaunchPlan(
        engine,
        program,
        _with_extra(out, wish.extra, "sglang", engine.version),
        MappingProxyType(env),
        MappingProxyType(env_reasons),
        tuple(notes),
        wish.port or 30000,
    )


def _sglang_numbers(draft: Draft, algorithm: str, wish: Wish) -> list[Argument]:
    tokens_flag = "--speculative-num-draft-tokens"
    if algorithm == "DFLASH":
        block = wish.draft_tokens or (wish.steps + 1 if wish.steps else None) or draft.facts.block_size
        if block is None:
            return []
        why = (
            "the block that the draft was trained with"
            if block == draft.facts.block_size
            else "the block asked for"
        )
        return [Argument(tokens_flag, (str(block),), why)]
    if algorithm == "DSPARK":
        return []  # gamma comes from the draft's config
    steps, topk = wish.steps or _STEPS, wish.topk or 1
    most = 1 + topk + (steps - 1) * topk * topk
    tokens = wish.draft_tokens or (steps + 1 if topk == 1 else min(most, max(8, steps + 1)))
    if topk == 1 and tokens != steps + 1:
        raise UsageError(
            f"{steps} steps with topk 1 verify {steps + 1} tokens, not {tokens}",
            "leave the number of draft tokens out",
        )
    if tokens > most:
        raise UsageError(
            f"{steps} steps with topk {topk} make at most {most} tokens, not {tokens}",
            f"ask for at most {most}",
        )
    shape = f"a chain of {steps} tokens" if topk == 1 else f"a tree {steps} deep, {topk} branches a step"
    return [
        Argument("--speculative-num-steps", (str(steps),), shape),
        Argument(
            "--speculative-eagle-topk", (str(topk),), "given with the other two: half a triple is refused"
        ),
        Argument(
            tokens_flag, (str(tokens),), "steps + 1" if topk == 1 else "tokens of the tree that are verified"
        ),
    ]


def _override(draft: Draft, target: Target | None, engine: Engine, wish: Wish) -> str | None:
    """Why the context-length override is needed, or ``None`` when it isn't."""
    length = draft.facts.max_position_embeddings
    served = wish.context_length or (target.max_position_embeddings if target else None)
    if not length or not served or served <= length or holds("ctx.error", engine) is False:
        return None
    return (
        f"the server runs {served} positions, the draft's max_position_embeddings is {length}: without it the start "
        f"is refused. The alternative is --context-length {length}"
    )


def _sglang_kinds(
    draft: Draft, target: Target | None, engine: Engine, config: Mapping[str, Any]
) -> list[Argument]:
    """Flags that keep the target's dtype, quantisation and attention back end off a draft of another kind."""
    out: list[Argument] = []
    if target is None:
        return out
    halves = {"float16", "bfloat16"}
    stated = draft.facts.dtype or config.get("torch_dtype") or config.get("dtype")
    if stated in halves and target.dtype in halves and stated != target.dtype:
        out.append(
            Argument("--dtype", (str(target.dtype),), f"the draft is stored as {stated}: one dtype for both")
        )
    if target.quantization and not config.get("quantization_config") and holds("quant.flag", engine):
        out.append(
            Argument(
                "--speculative-draft-model-quantization",
                ("unquant",),
                "the target is quantised, the draft is not",
            )
        )
    mla = draft.facts.layer_type == "mla" or bool(config.get("kv_lora_rank"))
    target_mla = bool((target.config or EMPTY).get("kv_lora_rank")) or any(
        name.startswith(("Deepseek", "Kimi")) for name in target.text_architectures or target.architectures
    )
    eagle = draft.algorithm in ("eagle", "eagle3")
    if target_mla and not mla and eagle and holds("flag.speculative_draft_attention_backend", engine):
        out.append(
            Argument(
                "--speculative-draft-attention-backend",
                ("flashinfer",),
                "the target is an MLA model, the draft is not: an MLA back end would be refused for it",
            )
        )
    return out


def _sglang_window(
    draft: Draft, engine: Engine, config: Mapping[str, Any], parser: tables.ArgTable
) -> list[Argument]:
    """The window that an EAGLE-3 draft was trained with: SGLang's own class reads none from its config."""
    window, kinds = draft.facts.sliding_window, set(draft.facts.layer_types or ())
    own_class = engine.name == "sglang-ext" and ARCHITECTURE in (config.get("architectures") or ())
    if window is None or len(kinds) > 1 or draft.algorithm != "eagle3" or own_class:
        return []
    if parser.lookup(_WINDOW).option is None:
        return []  # what this release can't be told, verify tells
    return [
        Argument(
            _WINDOW, (str(window),), "the window of the draft's training, which its config can't state here"
        )
    ]


def _fraction(engine: Engine, wish: Wish) -> float | None:
    """Up to 0.5.12 the draft is loaded after the target's pool; later it is counted by the server itself."""
    if not wish.gpu_bytes or not wish.draft_bytes or parse(engine.version) >= parse("0.5.13"):
        return None
    share = wish.draft_bytes / (wish.tp or 1) / wish.gpu_bytes
    return max(0.1, round(_FRACTION - share - 0.005, 2))


# ---- vLLM


def _vllm(
    draft: Draft, target: Target | None, engine: Engine, draft_at: Place, target_at: Place, wish: Wish
) -> LaunchPlan:
    method = VLLM.get(draft.algorithm)
    if method is None or method not in methods(engine.version):
        raise UsageError(
            f"{engine} has no method for a {draft.algorithm} draft",
            f"methods: {', '.join(methods(engine.version))}",
        )
    if wish.topk and wish.topk != 1:
        raise UsageError(f"vLLM drafts a chain: topk {wish.topk} isn't possible", "leave --topk out")
    block = draft.facts.block_size
    tokens = wish.steps or (block - 1 if block and method == "dflash" else _STEPS)
    speculative: dict[str, Any] = {"method": method}
    if draft_at != target_at:
        speculative["model"] = draft_at.path
        if draft_at.revision:
            speculative["revision"] = draft_at.revision
    speculative["num_speculative_tokens"] = tokens
    why = f"method {method}, stated: else vLLM guesses it from the path"
    if draft.algorithm == "peagle":
        speculative["parallel_drafting"] = True
        why += "; parallel_drafting, else P-EAGLE runs as a sequential head"
    out = [Argument("", (target_at.path,), "the target"), *_revision(target_at)]
    out.append(Argument("--speculative-config", (json.dumps(speculative),), why))
    if wish.tp:
        out.append(Argument("--tensor-parallel-size", (str(wish.tp),), "ranks that share target and draft"))
    length = draft.facts.max_position_embeddings
    notes = []
    if wish.context_length:
        out.append(
            Argument("--max-model-len", (str(wish.context_length),), "the served length that was asked for")
        )
    served = wish.context_length or (target.max_position_embeddings if target else None)
    if length and served and served > length:
        notes.append(
            f"the draft's max_position_embeddings is {length}, the server runs {served}: for plain ropes vLLM raises "
            "the draft's, else it lowers the server's; acceptance beyond it is untested"
        )
    if target and target.dtype and draft.facts.dtype and target.dtype != draft.facts.dtype:
        notes.append(f"vLLM runs the draft in the target's dtype ({target.dtype}), whatever its config says")
    if wish.port:
        out.append(Argument("--port", (str(wish.port),), "where the server listens"))
    arguments = _with_extra(out, wish.extra, "vllm", engine.version)
    return LaunchPlan(engine, ("vllm", "serve"), arguments, notes=tuple(notes), port=wish.port or 8000)


def _with_extra(
    arguments: Sequence[Argument], extra: Sequence[str], engine: str, version: str
) -> tuple[Argument, ...]:
    """Add words as given; a flag among them replaces ours."""
    if not extra:
        return tuple(arguments)
    parser = tables.table(engine, version)
    words: list[tuple[str, list[str]]] = []
    for word in extra:
        if word.startswith("-") and not word[1:2].isdigit():
            words.append((word, []))
        elif words:
            words[-1][1].append(word)
        else:
            words.append(("", [word]))
    replaced: set[str] = set()
    for flag, _ in words:
        option = parser.lookup(flag.partition("=")[0]).option
        replaced.update(option.flags if option else (flag,))
    kept = [argument for argument in arguments if argument.flag not in replaced or not argument.flag]
    return (*kept, *(Argument(flag, tuple(values), "as given after --") for flag, values in words))
