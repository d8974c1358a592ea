"""Which target classes an engine can serve a draft on: it must hand out hidden states, embedding and head.

SGLang: a scan of all 58 releases from 0.4.6 to 0.5.23 (first and last release of each hook) and of every
class that 0.5.23 registers. vLLM: the classes of 0.33.0 and the model types that older releases let in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.history import fact, family, holds, reference, releases_read
from ckpt_tools.engines.versions import nearest, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Engine

# Algorithms of drafts -> the hook that the target needs. EAGLE-1/2 and bundled MTP heads only borrow the
# embedding and the head. SGLang serves neither P-EAGLE nor XPress.
_SGLANG_HOOKS: Mapping[str, str] = {
    "EAGLE3": "eagle3",
    "EAGLE": "embed_head",
    "NEXTN": "embed_head",
    "MTP": "embed_head",
    "DFLASH": "dflash",
    "DFLASH2": "dflash",
    "DSPARK": "dspark",
}
_HOOK_NAMES: Mapping[str, str] = {
    "eagle3": "set_eagle3_layers_to_capture and get_embed_and_head",
    "embed_head": "get_embed_and_head",
    "dflash": "set_dflash_layers_to_capture",
    "dspark": "set_dspark_layers_to_capture or set_dflash_layers_to_capture",
}
_HOOK_FLAGS: Mapping[str, tuple[str, ...]] = {
    "eagle3": ("eagle3", "embed_head"),
    "embed_head": ("embed_head",),
    "dflash": ("dflash",),
}
_SGLANG_ALGORITHM_FACTS: Mapping[str, str] = {"DFLASH": "algo.DFLASH", "DSPARK": "algo.DSPARK"}
# The algorithms of vLLM that need the target's SupportsEagle3 interface, and those that don't.
_VLLM_INTERFACE = frozenset({"EAGLE3", "PEAGLE", "DFLASH", "DFLASH2", "DSPARK", "XPRESS"})
_VLLM_PLAIN = frozenset({"EAGLE", "MTP", "NEXTN"})
_VLLM_ALGORITHM_FACTS: Mapping[str, str] = {
    "PEAGLE": "parallel_drafting",
    "DFLASH": "method.dflash",
    "DFLASH2": "dflash2",
    "XPRESS": "dflash2",  # registered beside DFlash2 in the one release that was read for it
    "DSPARK": "method.dspark",
}


@dataclass(frozen=True)
class Served:
    """Whether an engine serves a target class with drafts of an algorithm.

    Attributes:
        ok: ``None`` when the data doesn't decide it.
        reason: One sentence.
        needs: The first release known to serve it, when this one doesn't.
        reference: Engine, release, file:line.
    """

    ok: bool | None
    reason: str
    needs: str | None
    reference: str


def serves(
    engine: Engine, target_architecture: str, algorithm: str, *, text_model_type: str | None = None
) -> Served:
    """Whether *engine* serves drafts of *algorithm* on targets of this class.

    Args:
        engine: Engine and version.
        target_architecture: The class that the engine builds for the target (the outermost).
        algorithm: EAGLE, EAGLE3, PEAGLE, DFLASH, DFLASH2, DSPARK, XPRESS, MTP or NEXTN, in any case.
        text_model_type: The language model's ``model_type``; vLLM up to 0.17 decides by it.
    """
    name = family(engine.name)
    wanted = algorithm.upper()
    if name == "sglang":
        return _sglang(engine, target_architecture, wanted)
    if name == "vllm":
        return _vllm(engine, target_architecture, wanted, text_model_type)
    return Served(None, f"which targets {engine.name} serves isn't known", None, "")


def id_policy(engine: Engine, architecture: str) -> tuple[str | None, str]:
    """How SGLang's class counts the ids of a draft at *engine*'s version, and where that is seen.

    One of ``plus1``, ``plus1_and_default``, ``plus1_if_first_is_1``, ``verbatim_if_max_is_n``,
    ``ids_ignored`` and ``delegates``; ``None`` when the class has no such hook or isn't known.
    """
    row = _sglang_data()["classes"].get(architecture)
    if row is None:
        return None, ""
    version = _release(engine)
    policy = None
    for since, name in row.get("since", {}).get("policy", ()):
        if parse(version) >= parse(since):
            policy = name
    now = row.get("now", {})
    newest = _sglang_data()["release"]
    if policy is None and parse(version) >= parse(newest):
        policy = now.get("policy")
    return policy, _source(row, "eagle3", version)


def sglang_classes() -> Mapping[str, Mapping[str, Any]]:
    """The data itself: every class that SGLang 0.5.23 registers, and those that once served a draft."""
    classes: Mapping[str, Mapping[str, Any]] = _sglang_data()["classes"]
    return classes


def _sglang(engine: Engine, architecture: str, algorithm: str) -> Served:
    hook = _SGLANG_HOOKS.get(algorithm)
    if hook is None:
        where = reference("absent.p_eagle_pard_medusa", engine)
        return Served(False, f"SGLang has no algorithm for {algorithm} drafts", None, where)
    row = _sglang_data()["classes"].get(architecture)
    needed = _SGLANG_ALGORITHM_FACTS.get(algorithm)
    if needed is not None and holds(needed, engine) is False:
        needs = _first_with(needed, row, hook)
        return Served(False, f"{engine} has no {algorithm}", needs, reference(needed, engine))
    if row is None:
        return Served(None, f"{architecture} isn't among the classes that SGLang was read for", None, "")
    if hook == "dspark":
        own, fallback = (_sglang_hook(engine, architecture, row, name) for name in ("dspark", "dflash"))
        return _either(own, fallback)
    return _sglang_hook(engine, architecture, row, hook)


def _first_with(algorithm_fact: str, row: Mapping[str, Any] | None, hook: str) -> str | None:
    """The first release with both the algorithm and the class's hook for it; the algorithm's own for a class
    that isn't known."""
    first = fact(algorithm_fact).first
    if row is None or first is None:
        return first
    hooks = ("dspark", "dflash") if hook == "dspark" else (hook,)
    firsts: list[str] = [row["since"][name][0] for name in hooks if name in row.get("since", {})]
    if not firsts:
        now = row.get("now", {})
        newest: str = _sglang_data()["release"]
        return newest if any(now.get(name) for name in hooks) else None
    return max(first, min(firsts, key=parse), key=parse)


def _either(own: Served, fallback: Served) -> Served:
    """DSPARK takes its own hook, else DFlash's (model_runner_components/attention_backend_setup.py:62-72)."""
    if own.ok or fallback.ok is False:
        return own if own.ok or own.needs or not fallback.needs else fallback
    return fallback


def _sglang_hook(engine: Engine, architecture: str, row: Mapping[str, Any], hook: str) -> Served:
    version = _release(engine)
    newest = _sglang_data()["release"]
    since, now = row.get("since", {}), row.get("now")
    where = _source(row, hook, version)
    names = _HOOK_NAMES[hook]
    span = since.get(hook)
    if span is not None:
        first, last = span
        if parse(version) < parse(first):
            registered = since.get("registered")
            if registered and parse(version) < parse(registered[0]):
                reason = f"{architecture} is unknown to {engine}"
            elif hook == "eagle3" and _hook_present(since, version):
                reason = f"{architecture} has the hook in {engine}, but capturing crashes: {since['note']}"
            else:
                reason = f"{architecture} has no {names} in {engine}"
            return Served(False, reason, first, where)
        if last is not None and parse(version) > parse(last):
            return Served(False, f"{architecture} lost {names} after {last}", None, where)
        return Served(True, f"{architecture} has {names}", None, where)
    flags = _HOOK_FLAGS.get(hook, (hook,))
    if now is not None and parse(version) >= parse(newest):
        missing = [flag for flag in flags if not now.get(flag)]
        if not missing:
            return Served(True, f"{architecture} has {names}", None, where)
        if hook == "eagle3" and missing == ["embed_head"]:
            reason = f"{architecture} has set_eagle3_layers_to_capture but no get_embed_and_head in {engine}"
            return Served(False, reason, None, where)
        return Served(False, f"{architecture} has no {names} in {engine}", None, where)
    has_now = now is not None and all(now.get(flag) for flag in flags)
    if hook in ("eagle3", "dflash", "dspark") and not has_now:
        return Served(False, f"{architecture} has no {names} in any release read", None, where)
    reason = f"whether {architecture} has {names} was read in {newest} only"
    return Served(None, reason, newest if has_now else None, where)


def _hook_present(since: Mapping[str, Any], version: str) -> bool:
    """Whether the class has the hook although capturing doesn't work yet."""
    present = since.get("hook_present")
    return present is not None and parse(version) >= parse(present[0])


def _source(row: Mapping[str, Any], hook: str, version: str) -> str:
    """Where the hook is defined: in the newest release when that is asked for, else in its first."""
    newest = _sglang_data()["release"]
    now = row.get("now", {}).get("source", {}).get(hook)
    since = row.get("since", {})
    first = since.get("source", {}).get(hook)
    if now and (first is None or parse(version) >= parse(newest)):
        return f"sglang {newest} models/{now}"
    if first:
        return f"sglang {since[hook][0]} models/{first}"
    return f"sglang {newest} models/, no {_HOOK_NAMES[hook]}"


def _vllm(engine: Engine, architecture: str, algorithm: str, text_model_type: str | None) -> Served:
    data = _vllm_data()
    if algorithm not in _VLLM_INTERFACE | _VLLM_PLAIN:
        return Served(False, f"vLLM has no method for {algorithm} drafts", None, "vllm config/speculative.py")
    needed = _VLLM_ALGORITHM_FACTS.get(algorithm)
    if needed is not None and not (ok := holds(needed, engine)):
        reason = f"{engine} isn't known to have {algorithm}"
        return Served(ok, reason, fact(needed).first, reference(needed, engine))
    if algorithm in _VLLM_PLAIN:
        reason = f"{algorithm} drafts need no interface of the target in vLLM"
        return Served(True, reason, None, data["reference"])
    newest = data["release"]
    release = _release(engine)
    listed = architecture in data["eagle3"]
    if release == newest:
        return _vllm_interface(architecture, data)
    allowlist_last = fact("target_allowlist").last
    if allowlist_last is not None and parse(release) <= parse(allowlist_last):
        return _vllm_allowlist(engine, architecture, release, listed, text_model_type)
    since = data["eagle3_since"].get(architecture)
    if since is not None and parse(release) >= parse(since):
        reason = f"the model file of {architecture} implements SupportsEagle3 in {since}"
        return Served(True, reason, None, reference("target.deepseek_kimi", engine))
    if listed and text_model_type is not None and _let_in(text_model_type, allowlist_last or ""):
        reason = f"{architecture} was served before (model_type {text_model_type}) and is in {newest}"
        return Served(True, reason, None, reference("target_interface_only", engine))
    reason = f"whether {architecture} supports EAGLE-3 states was read in vLLM {newest} only"
    return Served(None, reason, newest if listed else None, data["reference"])


def _vllm_interface(architecture: str, data: Mapping[str, Any]) -> Served:
    """The newest release: the class implements SupportsEagle3 or not."""
    where = data["reference"]
    if architecture in data["eagle3"]:
        return Served(True, f"{architecture} supports EAGLE-3 states", None, where)
    if architecture in data["transformers_backend"]:
        reason = f"{architecture} supports EAGLE-3 states through the Transformers backend"
        return Served(True, reason, None, where)
    if architecture in data["not"]:
        return Served(False, f"{architecture} doesn't support EAGLE-3 states", None, where)
    return Served(None, f"{architecture} isn't among the classes that vLLM was read for", None, where)


def _vllm_allowlist(
    engine: Engine, architecture: str, release: str, listed: bool, text_model_type: str | None
) -> Served:
    """Up to 0.17.0 the model_type of the target's language model must contain one of a few words."""
    data = _vllm_data()
    where = reference("target_allowlist", engine)
    if text_model_type is None:
        return Served(None, f"{engine} decides by the target's model_type, which isn't known", None, where)
    words = ", ".join(_allowlist(release))
    if _let_in(text_model_type, release):
        reason = f"model_type {text_model_type} is one that {engine} lets in ({words})"
        return Served(True if listed else None, reason, None, where)
    needs = data["eagle3_since"].get(architecture) or (data["release"] if listed else None)
    reason = f"{engine} refuses model_type {text_model_type}: it takes only those with {words}"
    return Served(False, reason, needs, where)


def _let_in(text_model_type: str, release: str) -> bool:
    return any(word in text_model_type for word in _allowlist(release))


def _allowlist(release: str) -> tuple[str, ...]:
    lists = _vllm_data()["allowlist"]
    return tuple(lists[nearest(tuple(lists), release)])


def _release(engine: Engine) -> str:
    """The release read that answers for *engine*: the nearest older one."""
    return nearest(releases_read(engine.name), engine.version)


@lru_cache(maxsize=1)
def _sglang_data() -> Mapping[str, Any]:
    return _data("sglang_targets.json")


@lru_cache(maxsize=1)
def _vllm_data() -> Mapping[str, Any]:
    return _data("vllm_targets.json")


def _data(name: str) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads((Path(__file__).parent / "data" / name).read_text("utf-8"))
    return data
