"""What a format is: data, plus small pure functions where data can't say it.

A format module holds one ``FORMAT``; the package finds it by looking (nothing lists the formats). Facts are of
two kinds, config fields and tensor names, and every clue says what it saw, so that a verdict can be shown with
its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckpt_tools.formats.names import NameMap, any_fits, literal_part
from ckpt_tools.model import EMPTY, CaptureConvention, DraftFacts, Evidence

if TYPE_CHECKING:
    from ckpt_tools.model import Target, TensorInfo


@dataclass(frozen=True)
class Seen:
    """What recognition looks at: the parsed config and the tensors with wrapper prefixes off.

    ``config`` is ``None`` for weights without a config, ``tensors`` empty for a config without weights: a clue
    about the absent half is neither for nor against.
    """

    config: Mapping[str, Any] | None
    tensors: Mapping[str, TensorInfo]
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    files: tuple[str, ...] = ()
    wrapper: str = ""

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        """The beginnings of all names, cut at each of their dots; parents of parents are ever fewer."""
        found: set[str] = set()
        level = {name.rpartition(".")[0] for name in self.tensors}
        while level := level - found:
            found |= level
            level = {name.rpartition(".")[0] for name in level}
        return frozenset(found)

    @cached_property
    def _verdicts(self) -> dict[str, bool]:
        return {}

    def holds(self, pattern: str) -> bool:
        """Whether a tensor fits the pattern; a target's 100,000 names are walked only when one can, and once."""
        if pattern not in self._verdicts:
            self._verdicts[pattern] = self._holds(pattern)
        return self._verdicts[pattern]

    def _holds(self, pattern: str) -> bool:
        literal = literal_part(pattern)
        if literal == pattern:
            return pattern in self.tensors
        head = literal.rpartition(".")[0]
        return head in self._prefixes and any_fits(pattern, self.tensors)

    @property
    def whole(self) -> bool:
        """Whether both halves are there."""
        return self.config is not None and bool(self.tensors)


def pointer(config: Mapping[str, Any], path: str) -> Any:
    """Value at a ``/``-separated path of a config, or ``None``."""
    value: Any = config
    for part in path.strip("/").split("/"):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


@dataclass(frozen=True)
class Clue:
    """One piece of evidence.

    Attributes:
        kind: Which half it looks at.
        key: The config path or the tensor pattern.
        says: What it means when it holds.
        holds: The test; defaults to presence.
        absent: Turns the test round.
        weight: How much it counts when matches are ranked.
        parts: Clues of which one is enough; undecided only when all of them are.
    """

    kind: str
    key: str
    says: str
    holds: Callable[[Seen], bool] | None = None
    absent: bool = False
    weight: int = 1
    parts: tuple[Clue, ...] = ()

    def test(self, seen: Seen) -> bool | None:
        """True or False; ``None`` when that half isn't there."""
        if self.parts:
            verdicts = [part.test(seen) for part in self.parts]
            return True if any(verdicts) else False if False in verdicts else None
        if self.kind == "any":
            return bool(self.holds and self.holds(seen))
        if self.kind == "config":
            if seen.config is None:
                return None
            found = self.holds(seen) if self.holds else pointer(seen.config, self.key) is not None
        else:
            if not seen.tensors:
                return None
            found = self.holds(seen) if self.holds else seen.holds(self.key)
        return found is not self.absent

    def evidence(self) -> Evidence:
        """The clue as evidence to show."""
        return Evidence("config" if self.kind == "config" else "tensor", self.key, self.says)


def has_tensor(pattern: str, says: str, weight: int = 1) -> Clue:
    """A tensor that fits the pattern is there."""
    return Clue("tensor", pattern, says, weight=weight)


def no_tensor(pattern: str, says: str) -> Clue:
    """No tensor fits the pattern."""
    return Clue("tensor", pattern, says, absent=True)


def has_field(path: str, says: str, weight: int = 1) -> Clue:
    """The config states the field and it isn't null."""
    return Clue("config", path, says, weight=weight)


def no_field(path: str, says: str) -> Clue:
    """The config doesn't state the field."""
    return Clue("config", path, says, absent=True)


def field_is(path: str, *values: object) -> Clue:
    """The config's field has one of these values."""
    return Clue(
        "config",
        path,
        f"{path} is {' or '.join(map(str, values))}",
        lambda seen: pointer(seen.config or {}, path) in values,
        weight=3,
    )


def field_differs(path: str, other: str) -> Clue:
    """The config states both fields, and they differ."""

    def holds(seen: Seen) -> bool:
        first, second = (pointer(seen.config or {}, p) for p in (path, other))
        return first is not None and second is not None and first != second

    return Clue("config", path, f"{path} differs from {other}", holds)


def architecture_is(*names: str) -> Clue:
    """The first entry of ``architectures`` is one of these."""

    def holds(seen: Seen) -> bool:
        listed = (seen.config or {}).get("architectures")
        return isinstance(listed, list) and bool(listed) and listed[0] in names

    return Clue("config", "architectures", f"architectures names {' or '.join(names)}", holds, weight=3)


def architecture_not(*names: str) -> Clue:
    """The first entry of ``architectures`` is none of these."""
    return replace(architecture_is(*names), absent=True, says="architectures names no other format's class")


def has_file(name: str, says: str, weight: int = 1) -> Clue:
    """A file of this name lies beside the weights."""
    return Clue("any", name, says, lambda seen: name in seen.files, weight=weight)


def any_of(says: str, *clues: Clue, weight: int = 1) -> Clue:
    """At least one of the clues holds; undecided only when all of them are."""
    return Clue("any", " | ".join(c.key for c in clues), says, weight=weight, parts=clues)


def width_is(name: str, factor: int, of: str, says: str) -> Clue:
    """The input width of a matrix is ``factor`` times a dimension of another tensor (its last); both by their names."""

    def holds(seen: Seen) -> bool:
        first, second = seen.tensors.get(name), seen.tensors.get(of)
        if first is None or second is None or not first.shape or not second.shape:
            return False
        return first.shape[-1] == factor * second.shape[-1]

    return Clue("tensor", name, says, holds)


@dataclass(frozen=True)
class Variant:
    """A format's way of writing one algorithm with one kind of layer.

    Attributes:
        algorithm: eagle3, peagle, dflash, ….
        layer_type: ``llama``, ``qwen3``, ``mla``; ``None`` when the config says.
        must: Clues of which none may fail.
        hints: Clues that rank one match above another.
        names: Tensor naming.
        drops: Patterns of tensors that are never carried over, with the reason.
        architecture: Written as ``architectures[0]``; ``None`` when the writer decides.
        inside: Patterns of the tensors that are the draft's own, for a draft inside a target's files; the others are the
            target's and are left alone. ``None`` when all of them are the draft's.
        read_only: Recognised and read; nothing is written this way.
        omits: Patterns of canonical tensors that the format has no room for, with the reason; they are left behind.
        needs: Canonical tensors that the format's readers can't do without: derived or refused.
        experts: How it holds a layer's experts: ``fused`` (one tensor for all) or ``split`` (one each).
    """

    algorithm: str
    must: tuple[Clue, ...]
    names: NameMap
    hints: tuple[Clue, ...] = ()
    layer_type: str | None = None
    drops: tuple[tuple[str, str], ...] = ()
    architecture: str | None = None
    inside: Callable[[Seen], tuple[str, ...]] | None = None
    read_only: bool = False
    omits: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    experts: str | None = None


@dataclass(frozen=True)
class CaptureIds:
    """Where a format writes the captured layers and how it counts them.

    Attributes:
        paths: Config paths, the one that its readers prefer first.
        convention: How ids at that path count, per path.
        certain: False when files in the wild use both conventions at that path, so that the ids themselves
            have to decide (see :func:`ckpt_tools.formats.capture.read_capture`).
    """

    paths: tuple[str, ...]
    convention: tuple[CaptureConvention, ...]
    certain: tuple[bool, ...]


Reader = Callable[[Mapping[str, Any], Seen, Variant], DraftFacts]


@dataclass(frozen=True)
class Limit:
    """A fact that a format, or the engine it is for, can't carry.

    Attributes:
        code: Finding code, also what ``--allow`` takes.
        name: Finding name.
        lost: Says what of this draft would be lost, or ``None`` when nothing would.
        hint: The way out.
        severity: ``error`` refuses; ``warning`` and ``info`` let through.
        algorithms: The algorithms that it is about; empty for all.
    """

    code: str
    name: str
    lost: Callable[[DraftFacts, Mapping[str, str]], str | None]
    hint: str
    severity: str = "error"
    algorithms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caution:
    """What a format's files leave open or get wrong, said when a draft in it is converted.

    Attributes:
        code: Finding code.
        says: What is open in this draft, or ``None`` when nothing is.
        hint: The way out.
        pointer: The config field that it is about.
        severity: ``error`` where it is certain, ``warning`` where the files can't tell.
        repair: The repair that settles it; with it asked for, the caution isn't said.
        algorithms: The algorithms that it is about; empty for all.
    """

    code: str
    says: Callable[[DraftFacts, Mapping[str, Any]], str | None]
    hint: str
    pointer: str | None = None
    severity: str = "warning"
    repair: str | None = None
    algorithms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Implied:
    """What every reader of a format takes where its config is silent; a conversion states it.

    Attributes:
        facts: The facts with the silent ones filled in (only those).
        reason: Why, with the reference.
    """

    facts: Callable[[DraftFacts, str], DraftFacts]
    reason: str


Writer = Callable[["WriteRequest"], dict[str, Any]]


@dataclass(frozen=True)
class WriteRequest:
    """What a format's config writer gets: canonical facts, the ids to write, and the target if there is one."""

    facts: DraftFacts
    algorithm: str
    variant: Variant
    target: Target | None
    source_config: Mapping[str, Any]
    nested_ids: tuple[int, ...] | None
    top_level_ids: tuple[int, ...] | None
    tensors: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Format:
    """A framework's way of writing drafts.

    Attributes:
        name: As ``--to`` takes it and reports show it.
        title: For people.
        variants: One per algorithm and kind of layer.
        read: Config to canonical facts.
        capture: Where the captured layers stand.
        references: Where each convention was read (project, version, file:line).
        schema: Name of the config's JSON Schema in ``schemas/``.
        write: Canonical facts to config; ``None`` for a format that is only read.
        engine: The engine that its folders are for, whose rules decide capture ids and first releases; ``None`` for a
            framework's own layout, where its own convention does.
        limits: What it can't carry.
        cautions: What its own files leave open.
        implied: What its readers take where a config is silent.
        sorted_rows: Its readers take the head's rows in the order of ``t2d``, so ``d2t`` has to ascend.
        fixed_capture: Its readers capture the default layers whatever a config says.
        usual: What a draft is read as when nothing decides between formats that share a layout.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    read: Reader
    capture: CaptureIds
    references: tuple[str, ...]
    schema: str
    write: Writer | None = None
    engine: str | None = None
    limits: tuple[Limit, ...] = ()
    cautions: tuple[Caution, ...] = ()
    implied: Implied | None = None
    sorted_rows: bool = False
    fixed_capture: bool = False
    usual: bool = False
