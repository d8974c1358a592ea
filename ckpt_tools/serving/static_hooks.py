"""A look into an installed engine without importing it: does a target's class have the hooks that a draft needs.

The engine's model files are parsed; classes are resolved through imports and inheritance as Python would; what
a wrapper holds is followed one step, so that a wrapper which only lacks delegation can be told from a model
that has no hooks at all.
"""

from __future__ import annotations

import ast
import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt_tools.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CAPTURE = {
    "eagle3": "set_eagle3_layers_to_capture",
    "dflash": "set_dflash_layers_to_capture",
    "dspark": "set_dspark_layers_to_capture",
}
EMBED_HEAD = "get_embed_and_head"
_SGLANG_HOOKS = (*CAPTURE.values(), EMBED_HEAD, "set_embed_and_head")
_VLLM_HOOKS = ("set_aux_hidden_state_layers",)
_VLLM_INTERFACE = "SupportsEagle3"
# The lines that hand a hook on; written for an inner attribute.
_DELEGATION = {
    "set_eagle3_layers_to_capture": (
        "def set_eagle3_layers_to_capture(self, layer_ids=None):",
        "    self.{attribute}.set_eagle3_layers_to_capture(layer_ids)",
    ),
    "set_dflash_layers_to_capture": (
        "def set_dflash_layers_to_capture(self, layer_ids):",
        "    self.{attribute}.set_dflash_layers_to_capture(layer_ids)",
    ),
    "set_dspark_layers_to_capture": (
        "def set_dspark_layers_to_capture(self, layer_ids):",
        "    self.{attribute}.set_dspark_layers_to_capture(layer_ids)",
    ),
    "get_embed_and_head": (
        "def get_embed_and_head(self):",
        "    return self.{attribute}.get_embed_and_head()",
    ),
    "set_embed_and_head": (
        "def set_embed_and_head(self, embed, head):",
        "    self.{attribute}.set_embed_and_head(embed, head)",
    ),
}


@dataclass(frozen=True)
class Where:
    """Where a hook is: file, line and the class that defines it; ``how`` is ``__getattr__`` for run-time delegation."""

    file: str
    line: int
    owner: str
    how: str = "method"


@dataclass(frozen=True)
class TargetClass:
    """A class that the engine registers.

    Attributes:
        module: Dotted name.
        file: Relative to the engine's model folder.
        line, last_line: Of the class statement.
        hooks: Hook -> where it is.
        interfaces: Names of all bases that were resolved or named.
        inner: Attribute that ``__init__`` fills -> hooks of the class that it makes.
    """

    name: str
    module: str
    file: str
    line: int
    last_line: int
    hooks: Mapping[str, Where]
    interfaces: frozenset[str]
    inner: Mapping[str, tuple[str, Mapping[str, Where]]]

    @property
    def eagle3(self) -> bool:
        """Whether EAGLE-3 drafts can be served: capture hook and embedding with head."""
        return CAPTURE["eagle3"] in self.hooks and EMBED_HEAD in self.hooks

    @property
    def dspark(self) -> bool:
        """Whether DSpark drafts can be served: its own hook, or DFlash's."""
        return CAPTURE["dspark"] in self.hooks or CAPTURE["dflash"] in self.hooks


@dataclass(frozen=True)
class Patch:
    """Lines that make a wrapper hand its inner model's hooks on.

    Attributes:
        file: Relative to the engine's model folder.
        after_line: The class ends here; the lines go below it.
        lines: Indented for the class body.
    """

    file: str
    after_line: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """Whether a class serves an algorithm, by its hooks.

    Attributes:
        ok: ``None`` when the engine doesn't register the class.
        missing: Hooks that it lacks.
        patch: Lines to add, when only delegation is missing.
        where: Hook -> place, of those that are there.
    """

    ok: bool | None
    missing: tuple[str, ...]
    patch: Patch | None
    where: Mapping[str, Where]


def needed(algorithm: str) -> tuple[tuple[str, ...], ...]:
    """Hooks that SGLang needs of the target, each group satisfied by one of its members.

    Args:
        algorithm: eagle, eagle3, dflash, dflash2, dspark or mtp.
    """
    if algorithm == "eagle3":
        return ((CAPTURE["eagle3"],), (EMBED_HEAD,))
    if algorithm in ("dflash", "dflash2"):
        return ((CAPTURE["dflash"],),)
    if algorithm == "dspark":
        return ((CAPTURE["dspark"], CAPTURE["dflash"]),)
    return ((EMBED_HEAD,),)


def answer(classes: Mapping[str, TargetClass], architecture: str, algorithm: str) -> Answer:
    """Whether the installed SGLang serves drafts of *algorithm* on targets of this class."""
    found = classes.get(architecture)
    if found is None:
        return Answer(None, (), None, {})
    missing = tuple(group[0] for group in needed(algorithm) if not any(hook in found.hooks for hook in group))
    return Answer(not missing, missing, _patch(found, missing), found.hooks)


def _patch(found: TargetClass, missing: tuple[str, ...]) -> Patch | None:
    for attribute, (_, hooks) in found.inner.items():
        if missing and all(hook in hooks for hook in missing):
            wanted = list(missing)
            both = EMBED_HEAD in missing and "set_embed_and_head" in hooks
            if both and "set_embed_and_head" not in found.hooks:
                wanted.append("set_embed_and_head")
            lines: list[str] = []
            for hook in wanted:
                lines += ["", *(f"    {line.format(attribute=attribute)}" for line in _DELEGATION[hook])]
            return Patch(found.file, found.last_line, tuple(lines))
    return None


# ---- reading classes


@dataclass
class _Class:
    name: str
    module: str
    line: int
    last_line: int
    bases: list[tuple[str, str]]  # (module, name) as they stood when the class was made
    base_names: list[str]
    members: dict[str, int]
    made: dict[str, tuple[str, str]]  # self.attribute -> (module, name) of the class that it is made of
    before: _Class | None = None  # an earlier class of this name in the module


@dataclass
class _Module:
    name: str
    file: str
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    classes: dict[str, _Class] = field(default_factory=dict)
    entry: list[str] = field(default_factory=list)


class _Reader:
    def __init__(self, root: Path, package: str, hooks: tuple[str, ...]) -> None:
        self.root, self.package = root, package
        self.hooks = frozenset((*hooks, "__getattr__"))
        self.modules: dict[str, _Module] = {}

    def read_all(self) -> None:
        """Parse every file; the collector would walk the growing trees again and again, so it rests meanwhile."""
        resting = gc.isenabled()
        gc.disable()
        try:
            for path in sorted(self.root.rglob("*.py")):
                relative = path.relative_to(self.root)
                parts = [*self.package.split("."), *relative.with_suffix("").parts]
                if parts[-1] == "__init__":
                    parts.pop()
                name = ".".join(parts)
                self.modules[name] = self._module(name, relative.as_posix(), path.read_bytes())
        finally:
            if resting:
                gc.enable()

    def _module(self, name: str, file: str, source: bytes) -> _Module:
        module = _Module(name, file)
        try:
            tree = ast.parse(source, file)
        except (SyntaxError, ValueError):
            return module
        for node in _top_level(tree.body):
            if isinstance(node, ast.ImportFrom):
                base = self._relative(name, file, node)
                for alias in node.names:
                    module.names[alias.asname or alias.name] = (base, alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    module.names[alias.asname or alias.name.split(".")[0]] = (alias.name, "")
            elif isinstance(node, ast.ClassDef):
                self._class(module, node)
            elif isinstance(node, ast.Assign):
                self._assign(module, node)
        return module

    @staticmethod
    def _relative(name: str, file: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = name.split(".")
        keep = len(parts) - node.level + file.endswith("__init__.py")
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])

    def _class(self, module: _Module, node: ast.ClassDef) -> None:
        bases, names = [], []
        for base in node.bases:
            expression = base.value if isinstance(base, ast.Subscript) else base
            if (reference := self._refer(module, expression)) is not None:
                bases.append(reference)
                names.append(reference[1])
        members: dict[str, int] = {}
        made: dict[str, tuple[str, str]] = {}
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if statement.name in self.hooks:
                    members[statement.name] = statement.lineno
                if statement.name == "__init__":
                    made = self._made(module, statement)
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name) and target.id in self.hooks:
                        members[target.id] = statement.lineno
        last = node.end_lineno or node.lineno
        before = module.classes.get(node.name)
        module.classes[node.name] = _Class(
            node.name, module.name, node.lineno, last, bases, names, members, made, before
        )
        module.names[node.name] = (module.name, node.name)

    def _made(
        self, module: _Module, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> dict[str, tuple[str, str]]:
        out: dict[str, tuple[str, str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                for target in node.targets:
                    own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
                    if own and (reference := self._refer(module, node.value.func)) is not None:
                        assert isinstance(target, ast.Attribute)
                        out.setdefault(target.attr, reference)
        return out

    @staticmethod
    def _refer(module: _Module, node: ast.expr) -> tuple[str, str] | None:
        if isinstance(node, ast.Name):
            return module.names.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            holder = module.names.get(node.value.id)
            if holder is not None:
                return (".".join(part for part in holder if part), node.attr)
        return None

    @staticmethod
    def _assign(module: _Module, node: ast.Assign) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                continue
            if target.id == "EntryClass":
                items = node.value.elts if isinstance(node.value, ast.List) else [node.value]
                module.entry += [item.id for item in items if isinstance(item, ast.Name)]
            elif isinstance(node.value, ast.Name) and node.value.id in module.names:
                module.names[target.id] = module.names[node.value.id]

    # ---- resolving

    def find(self, module: str, name: str, depth: int = 0) -> _Class | None:
        """The class that a name means, through re-exports."""
        holder = self.modules.get(module)
        if holder is None or depth > 8:
            return None
        if name in holder.classes:
            return holder.classes[name]
        following = holder.names.get(name)
        return self.find(*following, depth + 1) if following and following != (module, name) else None

    def mro(self, start: _Class) -> list[_Class]:
        """Depth first, left to right, each once: enough to find who defines a method."""
        out: list[_Class] = []
        seen: set[int] = set()

        def visit(current: _Class) -> None:
            if id(current) in seen:
                return
            seen.add(id(current))
            out.append(current)
            for module, name in current.bases:
                base = self.find(module, name)
                if base is current:  # class X(X): the name meant another class when this one was made
                    base = current.before
                if base is not None:
                    visit(base)

        visit(start)
        return out

    def hooks_of(self, start: _Class) -> dict[str, Where]:
        out: dict[str, Where] = {}
        chain = self.mro(start)
        for owner in chain:
            file = self.modules[owner.module].file
            for hook, line in owner.members.items():
                out.setdefault(hook, Where(file, line, owner.name))
        delegating = out.pop("__getattr__", None)
        if delegating is not None:
            for hook, where in self._through_getattr(start).items():
                out.setdefault(hook, where)
        return out

    def _through_getattr(self, start: _Class) -> dict[str, Where]:
        """Hooks of the classes beside a wrapper that hands every unknown attribute to one of them."""
        out: dict[str, Where] = {}
        module = self.modules[start.module]
        for other in module.classes.values():
            for owner in self.mro(other):
                for hook, line in owner.members.items():
                    if hook != "__getattr__":
                        where = Where(self.modules[owner.module].file, line, owner.name, "__getattr__")
                        out.setdefault(hook, where)
        return out

    def target(self, name: str, found: _Class) -> TargetClass:
        inner: dict[str, tuple[str, Mapping[str, Where]]] = {}
        chain = self.mro(found)
        for owner in chain:
            for attribute, reference in owner.made.items():
                made = self.find(*reference)
                if made is not None and attribute not in inner:
                    inner[attribute] = (made.name, self.hooks_of(made))
        return TargetClass(
            name=name,
            module=found.module,
            file=self.modules[found.module].file,
            line=found.line,
            last_line=found.last_line,
            hooks=self.hooks_of(found),
            interfaces=frozenset(base for owner in chain for base in (owner.name, *owner.base_names)),
            inner=inner,
        )


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those inside ``if`` and ``try`` too."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _top_level([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _top_level(
                [*node.body, *(s for handler in node.handlers for s in handler.body), *node.orelse]
            )
        else:
            yield node


def sglang_classes(package: Path) -> dict[str, TargetClass]:
    """Every class that the SGLang in *package* (the folder ``sglang``) registers, by name.

    The registry holds what ``EntryClass`` names in the top-level modules of ``srt/models``.

    Raises:
        InputError: There are no model files.
    """
    root = package / "srt" / "models"
    if not root.is_dir():
        raise InputError(f"{root}: no model files", "give the folder of the installed package `sglang`")
    reader = _Reader(root, "sglang.srt.models", _SGLANG_HOOKS)
    reader.read_all()
    out: dict[str, TargetClass] = {}
    for module in reader.modules.values():
        if "/" in module.file:
            continue
        for name in module.entry:
            found = reader.find(module.name, name)
            if found is not None:
                out[found.name] = reader.target(found.name, found)
    return out


def vllm_classes(package: Path) -> dict[str, TargetClass]:
    """Every architecture that the vLLM in *package* (the folder ``vllm``) registers.

    Whether one takes EAGLE-3 drafts: ``supports_eagle3`` of its ``interfaces`` and hooks.

    Raises:
        InputError: There is no registry.
    """
    root = package / "model_executor" / "models"
    registry = root / "registry.py"
    if not registry.is_file():
        raise InputError(f"{registry}: no registry", "give the folder of the installed package `vllm`")
    reader = _Reader(root, "vllm.model_executor.models", _VLLM_HOOKS)
    reader.read_all()
    newer = package / "models"
    if newer.is_dir():
        more = _Reader(newer, "vllm.models", _VLLM_HOOKS)
        more.read_all()
        reader.modules |= {
            name: _Module(m.name, f"../../models/{m.file}", m.names, m.classes, m.entry)
            for name, m in more.modules.items()
        }
    out: dict[str, TargetClass] = {}
    for architecture, module, name in _registered(registry):
        dotted = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
        found = reader.find(dotted, name)
        if found is not None:
            out[architecture] = reader.target(architecture, found)
    return out


def supports_eagle3(found: TargetClass) -> bool:
    """Whether a vLLM class implements the interface that EAGLE-3, DFlash and DSpark drafts need."""
    return _VLLM_INTERFACE in found.interfaces or _VLLM_HOOKS[0] in found.hooks


def _registered(registry: Path) -> Iterator[tuple[str, str, str]]:
    """(architecture, module, class) of every dictionary of the registry."""
    tree = ast.parse(registry.read_bytes())
    for node in ast.walk(tree):
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if not isinstance(value, ast.Dict):
            continue
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(item, ast.Tuple) and len(item.elts) == 2:
                first, second = item.elts
                if isinstance(first, ast.Constant) and isinstance(second, ast.Constant):
                    yield str(key.value), str(first.value), str(second.value)
