"""vLLM's own rules for its speculative config (``vllm/config/speculative.py``)."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ckpt_tools.engines.versions import parse
from ckpt_tools.model import Severity
from ckpt_tools.serving.args.algorithms import VLLM
from ckpt_tools.serving.args.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.serving.args.problem import Pair

_CONFIG = "vllm 0.33.0 vllm/config/speculative.py"
_FLAG = "--speculative-config"
# Fields of SpeculativeConfig (0.12.0 and 0.32.0 together).
_FIELDS = frozenset(
    [
        "enforce_eager",
        "num_speculative_tokens",
        "model",
        "method",
        "draft_tensor_parallel_size",
        "tensor_parallel_size",
        "quantization",
        "moe_backend",
        "attention_backend",
        "kv_cache_dtype",
        "max_model_len",
        "revision",
        "code_revision",
        "index_share_for_mtp_iteration",
        "disable_padded_drafter_batch",
        "disable_eagle_block_drop",
        "use_local_argmax_reduction",
        "use_heterogeneous_vocab",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "parallel_drafting",
        "num_speculative_tokens_per_batch_size",
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
        "draft_load_config",
        "rejection_sample_method",
        "synthetic_acceptance_rates",
        "synthetic_acceptance_length",
        "enable_adaptive_verification",
        "draft_sample_method",
        "dspark_draft_topk",
        "disable_by_batch_size",
        "speculative_token_tree",
    ]
)
_DRAFTLESS = ("ngram", "ngram_gpu", "suffix", "custom_class")
# Methods by the release that brought them (upper bounds: not every release was read).
_METHODS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("0.10.1", None, ("ngram", "eagle", "eagle3", "draft_model", "deepseek_mtp")),
    ("0.10.1", "0.32.0", ("medusa", "mlp_speculator")),
    ("0.12.0", None, ("suffix", "mtp")),
    ("0.17.0", None, ("extract_hidden_states",)),
    ("0.25.0", None, ("dflash", "dspark", "ngram_gpu", "custom_class")),
)


def methods(version: str) -> tuple[str, ...]:
    """Methods that a release takes; the model-specific ``…_mtp`` names are ``mtp``'s older spellings."""
    out: list[str] = []
    for first, last, names in _METHODS:
        if parse(first) <= parse(version) and (last is None or parse(version) <= parse(last)):
            out += names
    return tuple(out)


def detect_method(path: str, method: str | None, version: str, model_type: str | None = None) -> str:
    """The method that vLLM ends up with: substrings of the whole lower-cased path decide, parent folders included.

    Only an explicit eagle, eagle3, dflash or dspark is kept; ``mtp`` and ``draft_model`` give way to the path.
    """
    fixed = ("eagle", "eagle3", "dflash", "dspark", *_DRAFTLESS, "extract_hidden_states")
    if method in fixed:
        return str(method)
    text = path.lower()
    if "eagle-" in text:
        return "eagle"
    if parse(version) >= parse("0.12.0") and "eagle3" in text:
        return "eagle3"
    if parse(version) < parse("0.12.0") and "eagle3-" in text:
        return "eagle"
    if parse(version) >= parse("0.25.0"):
        if "dflash" in text:
            return "dflash"
        if "dspark" in text:
            return "dspark"
    if method == "mtp" or (model_type and model_type.endswith("_mtp")):
        return "mtp"
    return method or "draft_model"


def problems(pair: Pair) -> Iterator[Problem]:
    """Everything that vLLM would refuse or do otherwise than meant."""
    launch = pair.launch
    flag = launch.flag(_FLAG) or launch.flag("--spec-method") or launch.flag("--spec-model")
    line = flag.line if flag else launch.line
    if launch.speculative_error:
        yield Problem(
            "speculative-json",
            Severity.ERROR,
            f"{_FLAG} is no JSON object: {launch.speculative_error}",
            'quote it for the shell: --speculative-config \'{"method": "eagle3", …}\'',
            _FLAG,
            line,
            "vllm 0.33.0 vllm/engine/arg_utils.py",
        )
        return
    config = launch.speculative
    if config is None:
        return
    yield from _fields(pair, line)
    yield from _method(pair, line)
    yield from _draft_tp(pair, line)
    yield from _parallel(pair, line)
    yield from _lengths(pair, line)


def _fields(pair: Pair, line: int) -> Iterator[Problem]:
    config = pair.launch.speculative or {}
    for key in config:
        if key not in _FIELDS:
            near = difflib.get_close_matches(key, _FIELDS, n=1, cutoff=0.6)
            yield Problem(
                "speculative-key", Severity.ERROR, f"{_FLAG} has an unknown key {key!r}: Unexpected keyword argument",
                f"did you mean {near[0]}?" if near else None, key, line, _CONFIG,
            )  # fmt: skip
    if "tensor_parallel_size" in config:
        yield Problem(
            "speculative-key", Severity.ERROR,
            "'tensor_parallel_size' is not a valid argument in the speculative_config",
            "its name there is draft_tensor_parallel_size", "tensor_parallel_size", line, _CONFIG,
        )  # fmt: skip
    tokens = config.get("num_speculative_tokens")
    method = config.get("method")
    if isinstance(config.get("model"), str) and "num_speculative_tokens" not in config and method != "mtp":
        yield Problem(
            "no-num-speculative-tokens", Severity.ERROR,
            "A speculative model was provided, but num_speculative_tokens was not",
            'add "num_speculative_tokens": 3', "num_speculative_tokens", line, _CONFIG,
        )  # fmt: skip
    elif "num_speculative_tokens" in config and (
        not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1
    ):
        yield Problem(
            "bad-num-speculative-tokens", Severity.ERROR,
            f"num_speculative_tokens is {tokens!r}: it must be an integer greater than 0",
            None, "num_speculative_tokens", line, _CONFIG,
        )  # fmt: skip
    if "model" not in config and method in ("eagle", "eagle3", "dflash", "draft_model"):
        yield Problem(
            "no-draft-path", Severity.ERROR, f"method {method} without a model: there is no draft to load",
            'add "model": DRAFT', "model", line, _CONFIG,
        )  # fmt: skip


def _method(pair: Pair, line: int) -> Iterator[Problem]:
    config, engine = pair.launch.speculative or {}, pair.engine
    given = config.get("method")
    given = given if isinstance(given, str) else None
    known = methods(engine.version)
    if given is not None and given not in known and not given.endswith("_mtp"):
        hint = {
            "peagle": 'a P-EAGLE draft is "method": "eagle3" with "parallel_drafting": true',
            "dflash2": 'a DFlash2 draft is "method": "dflash"',
            "speculators": "name the algorithm: eagle3, dflash, dspark",
        }.get(given, f"this release takes {', '.join(known)}")
        yield Problem(
            "unknown-method",
            Severity.ERROR,
            f"{engine} has no speculative method {given!r}",
            hint,
            "method",
            line,
            _CONFIG,
        )
        return
    path = config.get("model")
    wanted = VLLM.get(pair.algorithm or "")
    if not isinstance(path, str):
        return
    model_type = pair.config.get("model_type")
    found = detect_method(path, given, engine.version, model_type if isinstance(model_type, str) else None)
    if wanted is None or given in _DRAFTLESS:
        if given is None:
            yield _guessed(found, path, None, line)
        return
    if found == wanted:
        if given is None:
            yield _guessed(found, path, wanted, line)
        return
    if given is None or given in ("mtp", "draft_model"):
        said = "no method is given" if given is None else f"method {given!r} gives way to the path"
        effect = (
            "the draft would run as an independent language model"
            if found == "draft_model"
            else f"a {pair.algorithm} draft is loaded as {found}"
        )
        yield Problem(
            "method-from-path", Severity.ERROR,
            f"{said}: vLLM reads {found!r} from the path {path!r} (substrings of the whole path count), so {effect}",
            f'"method": "{wanted}"', "method", line, f"{_CONFIG}:1236",
        )  # fmt: skip
        return
    yield Problem(
        "wrong-method",
        Severity.ERROR,
        f"the draft is {pair.algorithm}, but the launch says method {given!r}",
        f'"method": "{wanted}"',
        "method",
        line,
        "vllm 0.33.0 vllm/transformers_utils/configs/eagle.py:42",
    )


def _guessed(found: str, path: str, wanted: str | None, line: int) -> Problem:
    right = ", which is right here" if wanted else ""
    return Problem(
        "method-from-path",
        Severity.WARNING,
        f"no method is given: vLLM takes {found!r} from the path {path!r}{right}; another folder name changes it",
        f'add "method": "{wanted or found}"',
        "method",
        line,
        f"{_CONFIG}:1236",
    )


def _draft_tp(pair: Pair, line: int) -> Iterator[Problem]:
    config = pair.launch.speculative or {}
    draft, tp = config.get("draft_tensor_parallel_size"), pair.launch.tp or 1
    if not isinstance(draft, int):
        return
    if draft not in (1, tp):
        yield Problem(
            "draft-tp", Severity.ERROR,
            f"draft_tensor_parallel_size {draft} cannot be other than 1 or the target's {tp}",
            f"use {tp}", "draft_tensor_parallel_size", line, _CONFIG,
        )  # fmt: skip
    elif draft != tp and config.get("method") in ("eagle", "eagle3", "dflash"):
        yield Problem(
            "draft-tp", Severity.INFO,
            f"draft_tensor_parallel_size {draft} has no effect: this kind of draft runs on the target's {tp} ranks",
            "drop it", "draft_tensor_parallel_size", line, _CONFIG,
        )  # fmt: skip


def _parallel(pair: Pair, line: int) -> Iterator[Problem]:
    launch, config = pair.launch, pair.launch.speculative or {}
    if pair.algorithm == "peagle":
        if config.get("parallel_drafting") is not True:
            yield Problem(
                "sequential-peagle", Severity.ERROR,
                "a P-EAGLE draft without parallel_drafting runs as a sequential EAGLE-3 head, with only a warning",
                'add "parallel_drafting": true', "parallel_drafting", line, _CONFIG,
            )  # fmt: skip
        if launch.env.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
            yield Problem(
                "runner", Severity.ERROR, "VLLM_USE_V2_MODEL_RUNNER=1 with P-EAGLE is refused at start-up",
                "unset it: the V1 runner serves P-EAGLE", "VLLM_USE_V2_MODEL_RUNNER", line,
                "vllm 0.33.0 vllm/config/vllm.py:2092",
            )  # fmt: skip
    elif pair.algorithm in ("dspark", "xpress") and launch.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        yield Problem(
            "runner", Severity.ERROR, f"the V1 runner does not support {pair.algorithm}",
            "unset VLLM_USE_V2_MODEL_RUNNER", "VLLM_USE_V2_MODEL_RUNNER", line, "vllm 0.33.0 vllm/config/vllm.py:3089",
        )  # fmt: skip
    block = pair.draft.facts.block_size if pair.draft else None
    tokens = config.get("num_speculative_tokens")
    if pair.algorithm in ("dflash", "dflash2") and block and isinstance(tokens, int) and tokens > block - 1:
        yield Problem(
            "block-size", Severity.WARNING,
            f"num_speculative_tokens {tokens} exceeds block_size - 1 = {block - 1}, which the draft was trained for; "
            "vLLM doesn't check it",
            f'"num_speculative_tokens": {block - 1}', "num_speculative_tokens", line, _CONFIG,
        )  # fmt: skip


def _lengths(pair: Pair, line: int) -> Iterator[Problem]:
    config = pair.launch.speculative or {}
    own, length = (
        config.get("max_model_len"),
        pair.draft.facts.max_position_embeddings if pair.draft else None,
    )
    if isinstance(own, int) and length and own > length:
        yield Problem(
            "speculative-max-model-len", Severity.ERROR,
            f"max_model_len {own} in {_FLAG} cannot be larger than the draft's {length}",
            f"at most {length}", "max_model_len", line, _CONFIG,
        )  # fmt: skip
    served = pair.launch.context_length or (pair.target.max_position_embeddings if pair.target else None)
    if length and served and served > length:
        yield Problem(
            "draft-context", Severity.WARNING,
            f"the server runs {served} positions, the draft's max_position_embeddings is {length}: vLLM raises the "
            "draft's length for plain ropes, else lowers the server's; beyond it drafting stops or is untrained",
            f"--max-model-len {length}, or a draft config that states what its rope covers",
            "--max-model-len", line, f"{_CONFIG}:1806",
        )  # fmt: skip
