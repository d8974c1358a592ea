"""What a check is: a small function with a code, over facts; its docstring is its page.

A check yields :class:`Hit`; the runner turns them into findings. It states what it needs, and is skipped with a
reason where that isn't there; it states which other codes explain it away, so that one cause gives one finding.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from ckpt_tools.container.codes import CODES as CONTAINER_CODES
from ckpt_tools.engines.sglang_ext.head import ARCHITECTURE
from ckpt_tools.model import Finding, Fix, Location, Severity

if TYPE_CHECKING:
    from ckpt_tools.container.codes import Code
    from ckpt_tools.container.screen import Screened
    from ckpt_tools.model import Checkpoint, Draft, Engine, LoadMap, Target, TensorInfo


@dataclass(frozen=True)
class Hit:
    """One thing that a check found; what is ``None`` comes from the check's own declaration.

    Attributes:
        file: Defaults to ``config.json`` when a pointer is given.
        severity: Overrides the check's.
    """

    message: str
    file: str | None = None
    pointer: str | None = None
    tensor: str | None = None
    line: int | None = None
    hint: str | None = None
    fix: Fix | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Context:
    """Everything that checks look at. What isn't there is ``None``.

    Attributes:
        load: What ``engine`` does with the draft.
        tensors: A reader of small tables: name in the files -> integers (d2t, t2d).
        values: What a floating-point tensor's values are like (``--deep``).
        rows: Whether rows of a tensor, first to last (exclusive), hold anything but zeros (``--deep``).
        target_tensors: Headers of the target's shards, when they are at hand.
        same: Whether a draft tensor's bytes equal a target tensor's; ``None`` when they can't be compared.
        launch: The launch command as parsed, launch_problems: what is wrong with it, log: the log as read, rate_note: what its accept rate means.
        context_length: The served length that the user states; standing_length: the one that the policy states.
    """

    checkpoint: Checkpoint
    draft: Draft | None = None
    target: Target | None = None
    engine: Engine | None = None
    load: LoadMap | None = None
    table: Callable[[str], tuple[int, ...] | None] | None = None
    values: Mapping[str, Screened] | None = None
    rows: Callable[[str, int, int], bool] | None = None
    target_tensors: Mapping[str, TensorInfo] | None = None
    same: Callable[[str, str], bool | None] | None = None
    launch: LaunchFacts | None = None
    launch_problems: tuple[Problem, ...] | None = None
    log: Any = None
    rate_note: str | None = None
    tp: int | None = None
    context_length: int | None = None
    standing_length: int | None = None

    @property
    def served(self) -> tuple[int, str] | None:
        """(positions that are served, what says so): a flag, the launch command, the policy, else the target."""
        from ckpt_tools.targets import context_length  # the registry comes along, and most commands don't ask

        flag = self.launch.context_length if self.launch is not None else None
        target = context_length(self.target) if self.target is not None else None
        said = (
            (self.context_length, "--context-length"),
            (flag, "the launch command"),
            (self.standing_length, "the policy"),
            (target, f"the target {self.target.id if self.target is not None else ''}"),
        )
        return next(((length, what) for length, what in said if length is not None), None)

    @property
    def own_class(self) -> bool:
        """Whether ckpt's model package serves the draft, with its own class, rather than SGLang's."""
        named = self.engine is not None and self.engine.name == "sglang-ext"
        return named and self.load is not None and self.load.architecture == ARCHITECTURE


class LaunchFacts(Protocol):
    """A launch command as checks read it; :class:`ckpt_tools.serving.args.launch.Launch` is one."""

    @property
    def engine(self) -> str: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def tp(self) -> int | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def context_length(self) -> int | None: ...
    def given(self, name: str) -> bool:
        """Whether a flag is there."""
        ...

    def value(self, name: str) -> str | None:
        """A flag's value."""
        ...


class Problem(Protocol):
    """One thing that is wrong with a launch command, as ``serving`` finds it."""

    @property
    def id(self) -> str: ...
    @property
    def severity(self) -> Any: ...
    @property
    def message(self) -> str: ...
    @property
    def hint(self) -> str | None: ...
    @property
    def line(self) -> int | None: ...


CheckFunction = Callable[[Context], Iterator[Hit]]


@dataclass(frozen=True)
class Check:
    """A registered check.

    Attributes:
        needs: Names of :class:`Context` fields, or ``target.<fact>`` and ``draft.<fact>``.
        after: Codes that explain this one away when they are found at error level.
        engines: Engines that it is about; empty for all, and then it runs once, not once per engine.
    """

    code: str
    name: str
    severity: Severity
    function: CheckFunction
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """The docstring: what it checks, why it breaks serving, example, how to fix, references."""
        return (self.function.__doc__ or "").strip()


_REGISTRY: dict[str, Check] = {}


def check(
    code: str,
    name: str,
    severity: Severity,
    *,
    needs: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    engines: tuple[str, ...] = (),
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check. Raises ``ValueError`` for a code that is taken."""

    def register(function: CheckFunction) -> CheckFunction:
        if code in _REGISTRY:
            raise ValueError(f"{code} is taken by {_REGISTRY[code].name}")
        _REGISTRY[code] = Check(code, name, severity, function, needs, after, engines)
        return function

    return register


@lru_cache(maxsize=1)
def checks() -> Mapping[str, Check]:
    """All checks by code: every module of this package is looked into."""
    import ckpt_tools.checks as package

    for info in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{info.name}")
    return dict(sorted(_REGISTRY.items()))


@lru_cache(maxsize=1)
def emitted() -> Mapping[str, Code]:
    """Codes that no check function yields: the container's, and what conversions say."""
    from ckpt_tools.checks.emitted import CODES

    return {**CONTAINER_CODES, **CODES}


def names_of_codes() -> Mapping[str, tuple[str, Severity]]:
    """Every code with its name and usual severity."""
    own = {c.code: (c.name, c.severity) for c in checks().values()}
    return dict(sorted({**own, **{c.code: (c.name, c.severity) for c in emitted().values()}}.items()))


def finding(code: str, message: str, **hit: Any) -> Finding:
    """A finding of a known code, for callers outside the runner (conversions refuse with them)."""
    known = emitted().get(code) or checks()[code]  # the checks themselves are only loaded for their own
    return _finding(code, known.name, known.severity, Hit(message, **hit), None)


def as_finding(registered: Check, hit: Hit, engine: Engine | None) -> Finding:
    """A hit with its check's name, severity and engine filled in."""
    return _finding(registered.code, registered.name, registered.severity, hit, engine)


def _finding(code: str, name: str, severity: Severity, hit: Hit, engine: Engine | None) -> Finding:
    file = hit.file or ("config.json" if hit.pointer is not None else None)
    return Finding(
        code=code,
        name=name,
        severity=hit.severity or severity,
        message=hit.message,
        location=Location(file, hit.pointer, hit.tensor, hit.line),
        hint=hit.hint,
        fix=hit.fix,
        engine=str(engine) if engine is not None else None,
    )
