"""SGLang's own rules for its speculative arguments (``srt/arg_groups/speculative_hook.py`` and before it
``ServerArgs.__post_init__``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.engines.history import holds
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Severity
from ckpt_tools.serving.args.algorithms import MISMATCH, SGLANG, sglang_algorithms, takes_any_case
from ckpt_tools.serving.args.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.serving.args.problem import Pair

_HOOK = "sglang 0.5.23 srt/arg_groups/speculative_hook.py"
_ALGORITHM, _DRAFT = "--speculative-algorithm", "--speculative-draft-model-path"
_STEPS, _TOPK = "--speculative-num-steps", "--speculative-eagle-topk"
_TOKENS = "--speculative-num-draft-tokens"
_EAGLES = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
# Targets whose checkpoint carries its own draft layers: without a draft path SGLang takes the target's.
_BUNDLED = frozenset(
    {
        "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM", "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM",
        "BailingMoeV2_5ForCausalLM", "MistralLarge3ForCausalLM", "PixtralForConditionalGeneration",
        "HYV3ForCausalLM", "HYV4ForCausalLM", "Qwen4ExpForConditionalGeneration",
    }
)  # fmt: skip
_MLA_ONLY = frozenset({"trtllm_mla", "cutlass_mla", "flashmla", "cutedsl_mla", "tokenspeed_mla"})
_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
_OVERRIDE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def problems(pair: Pair) -> Iterator[Problem]:
    """Everything that SGLang would refuse, change or do otherwise than meant."""
    launch = pair.launch
    algorithm = launch.value(_ALGORITHM)
    if algorithm is None:
        yield from _without_algorithm(pair)
        return
    upper = algorithm.upper()
    yield from _algorithm(pair, algorithm)
    yield from _draft_path(pair, upper)
    if upper in _EAGLES:
        yield from _triple(pair)
        yield from _backend(pair)
    elif upper == "DFLASH":
        yield from _dflash(pair)
    elif upper == "DSPARK":
        yield from _dspark(pair)
    yield from _inherited_backend(pair)
    yield from _quantization(pair)
    yield from _dtype(pair)
    yield from _context(pair)
    yield from _sampling(pair, upper)
    yield from _pipeline(pair, upper)
    if upper == "EAGLE3" and (flag := launch.flag("--speculative-token-map")):
        yield Problem(
            "token-map-ignored",
            Severity.WARNING,
            "--speculative-token-map is ignored with EAGLE3: the draft's own d2t is the map",
            "remove the flag",
            flag.name,
            flag.line,
            "sglang 0.5.23 srt/speculative/eagle_worker_v2.py:328",
        )


def _without_algorithm(pair: Pair) -> Iterator[Problem]:
    given = [flag for flag in pair.launch.flags if flag.option and flag.name.startswith("--speculative-")]
    if given:
        wanted = SGLANG.get(pair.algorithm or "", "EAGLE3")
        yield Problem(
            "no-algorithm",
            Severity.ERROR,
            f"{given[0].name} is given without --speculative-algorithm: the server starts without any draft",
            f"add --speculative-algorithm {wanted}",
            _ALGORITHM,
            given[0].line,
            _HOOK,
        )


def _algorithm(pair: Pair, algorithm: str) -> Iterator[Problem]:
    launch, engine = pair.launch, pair.engine
    flag = launch.flag(_ALGORITHM)
    line = flag.line if flag else launch.line
    known = sglang_algorithms(engine)
    upper = algorithm.upper() if takes_any_case(engine) else algorithm
    wanted = SGLANG.get(pair.algorithm or "")
    if upper not in known:
        late = algorithm.upper() in ("STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")
        already = flag is not None and flag.option is not None and flag.option.choices is not None
        reason = "ValueError: Unknown speculative algorithm name" if not already else "the parser refuses it"
        hint = f"this release knows {', '.join(known)}"
        if algorithm.upper() in known:
            hint = f"write {algorithm.upper()}: this release compares it as written"
        elif late:
            hint += "; a newer one has it"
        elif wanted:
            hint = f"this draft wants {wanted}"
        yield Problem(
            "unknown-algorithm", Severity.ERROR, f"{engine} has no speculative algorithm {algorithm}: {reason}",
            hint, _ALGORITHM, line, "sglang 0.5.23 srt/speculative/spec_info.py:65",
        )  # fmt: skip
        return
    kind = pair.algorithm
    if kind is None:
        return
    if wanted is None:
        yield Problem(
            "unserved-draft",
            Severity.ERROR,
            f"SGLang has no algorithm for a {kind} draft; {algorithm} would load it as something else",
            "serve it with vLLM",
            _ALGORITHM,
            line,
            "sglang 0.5.23: no such worker",
        )
        return
    same = {wanted, "EAGLE" if wanted == "NEXTN" else wanted, "NEXTN" if wanted == "EAGLE" else wanted}
    if upper in ("STANDALONE", "NGRAM") or upper not in same:
        effect = MISMATCH.get(
            (kind, "EAGLE" if upper == "NEXTN" else upper), "loads it as another kind of model"
        )
        name = {"eagle3": "an EAGLE-3 head", "eagle": "an EAGLE-1/2 head"}.get(kind, f"a {kind} draft")
        yield Problem(
            "wrong-algorithm",
            Severity.ERROR,
            f"the draft is {name}, but the launch says --speculative-algorithm {algorithm}, which {effect}",
            f"use --speculative-algorithm {wanted}",
            _ALGORITHM,
            line,
            "sglang 0.5.23 srt/models/llama_eagle3.py:237, srt/speculative/eagle_worker_v2.py:371",
        )


def _draft_path(pair: Pair, algorithm: str) -> Iterator[Problem]:
    launch = pair.launch
    if launch.given(_DRAFT) or algorithm in ("NGRAM", "UNO"):
        return
    architectures = pair.target.architectures if pair.target else ()
    bundled = pair.algorithm in (None, "mtp") or bool(architectures and architectures[0] in _BUNDLED)
    if algorithm in ("EAGLE", "NEXTN") and bundled:
        return  # the target's own layers are the draft
    if algorithm == "DSPARK":
        return  # may be bundled, or a subfolder of the target
    yield Problem(
        "no-draft-path",
        Severity.ERROR,
        f"--speculative-algorithm {algorithm} without --speculative-draft-model-path: there is no draft to load, "
        "and the target's own weights are taken for it",
        "add --speculative-draft-model-path DRAFT",
        _DRAFT,
        launch.line,
        f"{_HOOK}:1120",
    )


def _triple(pair: Pair) -> Iterator[Problem]:
    launch = pair.launch
    steps, topk, tokens = launch.number(_STEPS), launch.number(_TOPK), launch.number(_TOKENS)
    given = [name for name in (_STEPS, _TOPK, _TOKENS) if launch.given(name)]
    line = next((flag.line for name in given if (flag := launch.flag(name))), launch.line)
    if not given or launch.given("--speculative-adaptive"):
        if not given and not launch.given("--speculative-adaptive"):
            yield Problem(
                "auto-triple", Severity.INFO,
                "steps, topk and draft tokens are left to the server: (5, 4, 8) for LlamaForCausalLM targets, else (3, 1, 4)",
                f"state all three: {_STEPS}, {_TOPK}, {_TOKENS}", _STEPS, launch.line, f"{_HOOK}:1430",
            )  # fmt: skip
        return
    missing = [name for name in (_STEPS, _TOPK, _TOKENS) if name not in given]
    if _STEPS in missing:
        yield Problem(
            "half-given-triple", Severity.ERROR,
            f"{', '.join(given)} without {_STEPS}: AssertionError, with an empty message",
            f"give all three of {_STEPS}, {_TOPK} and {_TOKENS}, or none", missing[0], line, f"{_HOOK}:1150",
        )  # fmt: skip
        return
    if _TOPK in missing:
        yield Problem(
            "half-given-triple", Severity.ERROR,
            f"{_STEPS} {steps} without {_TOPK}: TypeError: '>' not supported between NoneType and int",
            f"give all three of {_STEPS}, {_TOPK} and {_TOKENS}, or none", _TOPK, line, f"{_HOOK}:1177",
        )  # fmt: skip
        return
    if steps is None or topk is None:
        return  # the parser's own complaint says it
    for name, number in ((_STEPS, steps), (_TOPK, topk)):
        if number < 1:
            yield Problem(
                "bad-triple",
                Severity.ERROR,
                f"{name} {number}: it must be at least 1",
                None,
                name,
                line,
                _HOOK,
            )
            return
    if topk == 1:
        if tokens is None or tokens != steps + 1:
            got = "is not given" if tokens is None else f"should be {steps + 1}, got {tokens}"
            yield Problem(
                "draft-tokens-adjusted",
                Severity.INFO if tokens is None else Severity.WARNING,
                f"topk 1 with {steps} steps: num_draft_tokens {got}; the server sets it to {steps + 1} and says so",
                f"{_TOKENS} {steps + 1}",
                _TOKENS,
                line,
                f"{_HOOK}:1256",
            )
        return
    if tokens is None:
        yield Problem(
            "half-given-triple", Severity.ERROR, f"topk {topk} without {_TOKENS}: nothing says how large the tree is",
            f"give all three of {_STEPS}, {_TOPK} and {_TOKENS}, or none", _TOKENS, line, _HOOK,
        )  # fmt: skip
        return
    most = 1 + topk + (steps - 1) * topk * topk
    if tokens > most:
        yield Problem(
            "draft-tokens-too-many", Severity.ERROR,
            f"{_TOKENS} {tokens}: {steps} steps with topk {topk} make a tree of at most {most} tokens",
            f"at most {_TOKENS} {most}", _TOKENS, line, "sglang 0.5.23 srt/speculative/eagle_utils.py",
        )  # fmt: skip
    elif tokens <= steps:
        yield Problem(
            "draft-tokens-few", Severity.WARNING,
            f"{_TOKENS} {tokens} with {steps} steps: the deepest branch doesn't fit into the verified tokens",
            f"at least {_TOKENS} {steps + 1}", _TOKENS, line, "sglang 0.5.23 srt/speculative/eagle_utils.py",
        )  # fmt: skip


def _backends(pair: Pair) -> dict[str, str]:
    """The target's attention back ends by the flag that sets them."""
    names = ("--attention-backend", "--decode-attention-backend", "--prefill-attention-backend")
    return {name: value for name in names if (value := pair.launch.value(name))}


def _backend(pair: Pair) -> Iterator[Problem]:
    launch = pair.launch
    topk, page = launch.number(_TOPK), launch.number("--page-size")
    if topk is None or topk <= 1:
        return
    flag = launch.flag(_TOPK)
    line = flag.line if flag else launch.line
    backends = _backends(pair)
    main = backends.get("--attention-backend")
    if "trtllm_mha" in backends.values() and parse(pair.engine.version) >= parse("0.5.4"):
        yield Problem(
            "topk-backend", Severity.ERROR,
            f"topk {topk} with trtllm_mha: trtllm_mha backend only supports topk = 1 for speculative decoding",
            f"{_TOPK} 1, or --attention-backend fa3, flashinfer or triton", _TOPK, line, f"{_HOOK}:1177",
        )  # fmt: skip
    elif page is not None and page > 1 and main is not None and main not in _tree_backends(pair):
        yield Problem(
            "topk-backend", Severity.ERROR,
            f"topk {topk} with --page-size {page} is only supported on {', '.join(_tree_backends(pair))}, not {main}",
            "--page-size 1, or another --attention-backend", "--page-size", line, f"{_HOOK}:1268",
        )  # fmt: skip
    elif main == "fa3" and parse(pair.engine.version) < parse("0.4.9"):
        yield Problem(
            "topk-backend", Severity.WARNING, f"topk {topk} with fa3: this release is known to crash under load there",
            f"{_TOPK} 1, or --attention-backend flashinfer", _TOPK, line, "sglang issue 5491",
        )  # fmt: skip


def _tree_backends(pair: Pair) -> tuple[str, ...]:
    """Back ends that serve a tree over pages; up to 0.5.9 only flashinfer."""
    return ("flashinfer",) if parse(pair.engine.version) <= parse("0.5.9") else _TREE_BACKENDS


def _inherited_backend(pair: Pair) -> Iterator[Problem]:
    if not pair.known or pair.launch.given("--speculative-draft-attention-backend"):
        return
    if (pair.draft and pair.draft.facts.layer_type == "mla") or pair.config.get("kv_lora_rank"):
        return
    for name, backend in _backends(pair).items():
        if backend in _MLA_ONLY:
            flag = pair.launch.flag(name)
            has = holds("flag.speculative_draft_attention_backend", pair.engine) is not False
            yield Problem(
                "draft-attention-backend",
                Severity.ERROR,
                f"the draft is no MLA model but inherits {name} {backend}: "
                f"ValueError: {backend} backend can only be used with MLA models",
                "add --speculative-draft-attention-backend trtllm_mha (or flashinfer)"
                if has
                else "use another --attention-backend: this release has no flag for the draft's (0.5.7 has)",
                "--speculative-draft-attention-backend",
                flag.line if flag else None,
                "sglang 0.5.23 srt/model_executor/model_runner_components/attention_backend_setup.py",
            )
            return


def _quantization(pair: Pair) -> Iterator[Problem]:
    flag = pair.launch.flag("--quantization")
    own = "--speculative-draft-model-quantization"
    if flag is None or not flag.values or flag.values[0] == "unquant" or not pair.known:
        return
    if pair.launch.given(own) or pair.config.get("quantization_config") or pair.launch.draft is None:
        return
    method = flag.values[0]
    dtype = f" {pair.dtype}" if pair.dtype else ""
    has = holds("quant.flag", pair.engine) is not False
    yield Problem(
        "draft-quantization-copied",
        Severity.WARNING,
        f"--quantization {method} is copied to the draft, which is unquantised{dtype}: it is quantised while loading",
        f"add {own} unquant"
        if has
        else "drop --quantization when the target's own config names it (0.5.7 has a flag)",
        own,
        flag.line,
        "sglang 0.5.23 srt/arg_groups/serving_hook.py:675",
    )


_HALF = {
    "float16": "float16",
    "half": "float16",
    "F16": "float16",
    "bfloat16": "bfloat16",
    "BF16": "bfloat16",
}


def _dtype(pair: Pair) -> Iterator[Problem]:
    if pair.target is None or pair.launch.value("--dtype") not in (None, "auto"):
        return
    draft, target = (_HALF.get(str(side)) for side in (pair.dtype, pair.target.dtype))
    if draft and target and draft != target:
        yield Problem(
            "dtype-mixed",
            Severity.WARNING,
            f"the draft is {draft}, the target {target}, and without --dtype each keeps its own: the first product "
            "that mixes them raises",
            f"add --dtype {target}",
            "--dtype",
            pair.launch.line,
            "sglang 0.5.23 srt/configs/model_config.py",
        )


def _context(pair: Pair) -> Iterator[Problem]:
    launch = pair.launch
    length = pair.draft.facts.max_position_embeddings if pair.draft else None
    served = launch.context_length or (pair.target.max_position_embeddings if pair.target else None)
    if launch.env.get(_OVERRIDE, "").lower() not in ("1", "true", "yes", "on"):
        return
    if length and served and served > length:
        yield Problem(
            "context-override",
            Severity.WARNING,
            f"{_OVERRIDE} lets the server run {served} positions with a draft of max_position_embeddings {length}: "
            "beyond that its positions are out of range or untrained",
            f"drop the variable and add --context-length {length}, unless the draft's rope really covers {served}",
            _OVERRIDE,
            launch.line,
            "sglang 0.5.23 srt/configs/model_config.py:1297",
        )
    elif length and served:
        yield Problem(
            "override-unneeded",
            Severity.INFO,
            f"{_OVERRIDE} isn't needed: the served length {served} is within the draft's {length}",
            "drop the variable, so that a later mismatch is refused",
            _OVERRIDE,
            launch.line,
            "sglang 0.5.23 srt/configs/model_config.py:1297",
        )


def _sampling(pair: Pair, algorithm: str) -> Iterator[Problem]:
    launch = pair.launch
    thresholds = [
        name
        for name in ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc")
        if (value := launch.value(name)) is not None and value not in ("1", "1.0")
    ]
    flag = launch.flag("--speculative-use-rejection-sampling")
    if flag is None:
        for name in thresholds:
            yield Problem(
                "lossy-threshold", Severity.INFO,
                f"{name} {launch.value(name)} accepts tokens that the target would not have sampled",
                None, name, launch.line, _HOOK,
            )  # fmt: skip
        return
    refused = None
    if algorithm not in ("EAGLE", "EAGLE3", "NEXTN"):
        refused = f"is only supported for EAGLE, EAGLE3 and NEXTN, not {algorithm}"
    elif (launch.number(_TOPK) or 1) != 1:
        refused = "requires --speculative-eagle-topk 1"
    elif thresholds:
        refused = f"is incompatible with {thresholds[0]}"
    elif pair.draft is not None:
        facts = pair.draft.facts
        reduced = facts.draft_vocab_size and facts.vocab_size and facts.draft_vocab_size != facts.vocab_size
        if reduced and algorithm != "EAGLE":
            refused = f"needs proposals over the target's vocabulary; the draft has {facts.draft_vocab_size} of {facts.vocab_size}"
    if refused:
        yield Problem(
            "rejection-sampling", Severity.ERROR, f"{flag.name} {refused}", "remove the flag",
            flag.name, flag.line, f"{_HOOK}:1200",
        )  # fmt: skip


def _pipeline(pair: Pair, algorithm: str) -> Iterator[Problem]:
    flag = pair.launch.flag("--pp-size")
    size = pair.launch.number("--pp-size")
    if flag is None or size is None or size <= 1 or algorithm == "NGRAM":
        return
    yield Problem(
        "pipeline-parallel",
        Severity.ERROR if algorithm == "DFLASH" else Severity.WARNING,
        f"--pp-size {size} with {algorithm}: pipeline parallelism needs EAGLE and a disaggregated prefill server",
        "--pp-size 1",
        flag.name,
        flag.line,
        f"{_HOOK}:323",
    )


def _dflash(pair: Pair) -> Iterator[Problem]:
    launch = pair.launch
    block, tokens = launch.number("--speculative-dflash-block-size"), launch.number(_TOKENS)
    for name in (_STEPS, _TOPK):
        flag, number = launch.flag(name), launch.number(name)
        if flag and number not in (None, 1):
            yield Problem(
                "dflash-forced", Severity.WARNING, f"{name} {number} is set to 1: DFLASH drafts one block per step",
                f"drop {name}; {_TOKENS} is the block", name, flag.line, f"{_HOOK}:340",
            )  # fmt: skip
    if block is not None and tokens is not None and block != tokens:
        yield Problem(
            "dflash-block", Severity.ERROR,
            f"--speculative-dflash-block-size {block} and {_TOKENS} {tokens} differ: ValueError",
            "give one of them", _TOKENS, launch.line, f"{_HOOK}:371",
        )  # fmt: skip
    asked = block if block is not None else tokens
    trained = pair.draft.facts.block_size if pair.draft else None
    if asked is not None and trained and asked != trained:
        yield Problem(
            "block-size", Severity.WARNING,
            f"a block of {asked} tokens is asked of a draft trained with block_size {trained}: the server only warns",
            f"{_TOKENS} {trained}", _TOKENS, launch.line, "sglang 0.5.23 srt/speculative/dflash_worker_v2.py:515",
        )  # fmt: skip
    window = launch.number("--speculative-draft-window-size")
    if window is not None and asked is not None and window < asked:
        yield Problem(
            "dflash-window", Severity.ERROR,
            f"--speculative-draft-window-size {window} is below the block of {asked}: ValueError",
            f"at least {asked}", "--speculative-draft-window-size", launch.line, f"{_HOOK}:432",
        )  # fmt: skip


def _dspark(pair: Pair) -> Iterator[Problem]:
    launch = pair.launch
    gamma = launch.number("--speculative-dspark-block-size")
    if gamma is None and pair.draft is not None:
        gamma = pair.draft.facts.block_size
    tokens = launch.number(_TOKENS)
    if gamma and tokens is not None and tokens != gamma + 1:
        yield Problem(
            "dspark-block", Severity.ERROR,
            f"{_TOKENS} {tokens}: DSPARK verifies gamma + 1 = {gamma + 1} tokens, ValueError",
            f"drop {_TOKENS}, or {_TOKENS} {gamma + 1}", _TOKENS, launch.line, f"{_HOOK}:800",
        )  # fmt: skip
