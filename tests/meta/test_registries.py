"""What the command line offers is what the registries hold; nothing is listed twice."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ckpt_tools.api.converting import writable_formats
from ckpt_tools.cli.root import main as ckpt
from ckpt_tools.engines import engines
from ckpt_tools.formats import formats
from ckpt_tools.render import renderers
from tests.conftest import ROOT

COMMANDS = sorted(
    p.stem.replace("_", "-")
    for p in (ROOT / "ckpt_tools" / "cli" / "commands").glob("*.py")
    if p.stem != "__init__"
)


def command(name: str) -> click.Command:
    found = ckpt.get_command(click.Context(ckpt), name)  # type: ignore[attr-defined]
    assert isinstance(found, click.Command)
    return found


def option(name: str, flag: str) -> click.Option | None:
    options = [p for p in command(name).params if isinstance(p, click.Option)]
    return next((p for p in options if flag in p.opts), None)


def test_every_module_is_a_command() -> None:
    assert ckpt.list_commands(click.Context(ckpt)) == COMMANDS  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_option(name: str) -> None:
    assert command(name).help
    bare = [p.opts for p in command(name).params if isinstance(p, click.Option) and not p.help]
    assert bare == []


@pytest.mark.parametrize("name", COMMANDS)
def test_formats_of_reports_are_the_renderers(name: str) -> None:
    output = option(name, "--format")
    if output is not None:
        assert isinstance(output.type, click.Choice)
        assert tuple(output.type.choices) == renderers()


def test_every_renderer_is_a_module() -> None:
    files = {p.stem for p in (ROOT / "ckpt_tools" / "render").glob("[!_]*.py")}
    assert set(renderers()) == files


def test_formats_to_write_are_the_registry_s() -> None:
    to = option("fix-keys", "--to")
    assert to is not None
    for name in formats():
        if name in writable_formats():
            assert to.type.convert(name, to, None) == name
        else:
            with pytest.raises(click.BadParameter):
                to.type.convert(name, to, None)
    assert to.default in writable_formats()


@pytest.mark.parametrize("name", engines())
def test_an_engine_s_default_is_its_newest_contract(name: str) -> None:
    engine = engines()[name]
    assert engine.name == name
    assert engine.default == engine.contracts[-1]


def test_every_data_file_is_in_a_package() -> None:
    """A wheel holds what lies in packages; a data file elsewhere would be missing from it."""
    for file in (ROOT / "ckpt_tools").rglob("*.json"):
        assert any((parent / "__init__.py").exists() for parent in (file.parent, file.parent.parent)), file


def test_folders_of_code_are_packages() -> None:
    package = ROOT / "ckpt_tools"
    folders = {p.parent for p in package.rglob("*.py")}
    bare = sorted(str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists())
    assert bare == [], "import-linter and type checkers don't see these"


def test_tests_are_unique_by_name() -> None:
    names = [p.name for p in Path(ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
