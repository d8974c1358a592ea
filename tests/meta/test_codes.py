"""Codes: each has a whole page, a family and a name, is never reused, and is known wherever it is used."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_tools.checks.base import checks
from ckpt_tools.formats import formats
from ckpt_tools.render._pages import SECTIONS, known_codes, page_of
from tests.conftest import ROOT
from tests.meta.generator import generator

CODE = re.compile(r"[A-Z]{3}\d{3}")
LOCK = ROOT / "tests" / "meta" / "codes.lock"
SOURCES = sorted((ROOT / "ckpt_tools").rglob("*.py"))


def lock(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines())


@pytest.mark.parametrize("code", known_codes())
def test_a_whole_page(code: str) -> None:
    page = page_of(code)
    assert page is not None
    assert page.title and not page.title.startswith(("Checks", "Why"))
    headings = [heading for heading, _ in page.sections]
    wanted = [heading for _, heading in SECTIONS]
    if code not in checks():  # what the container and a push say may rest on no source but itself
        wanted = [h for h in wanted if h in headings or h != "References"]
    assert headings == wanted
    assert all(len(text) > 3 for _, text in page.sections)


@pytest.mark.parametrize("code", known_codes())
def test_name_family_and_severity(code: str) -> None:
    page = page_of(code)
    assert page is not None
    assert CODE.fullmatch(code)
    assert code[:3] in generator().FAMILIES
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", page.name), page.name
    assert page.severity in ("error", "warning", "info")


def test_names_are_unique_in_a_family() -> None:
    names = [(code[:3], page.name) for code in known_codes() if (page := page_of(code)) is not None]
    twice = {n for n in names if names.count(n) > 1}
    assert twice == set()


def test_a_code_is_never_reused() -> None:
    locked = lock(LOCK.read_text("utf-8"))
    assert list(locked) == sorted(locked)
    for code in known_codes():
        page = page_of(code)
        assert page is not None
        assert locked.get(code) == page.name, f"{code}: run python docs/generate.py"


def test_the_lock_only_grows() -> None:
    shown = subprocess.run(
        ["git", "show", "HEAD:tests/meta/codes.lock"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shown.returncode:
        pytest.skip("the last commit holds no codes.lock, or this is no git checkout")
    assert lock(shown.stdout).items() <= lock(LOCK.read_text("utf-8")).items()


def test_the_generator_refuses_a_changed_name() -> None:
    add = generator().locked
    assert add("AAA001 old\n", {"AAA002": "new"}) == "AAA001 old\nAAA002 new\n"
    with pytest.raises(ValueError, match="AAA001 was old and is new"):
        add("AAA001 old\n", {"AAA001": "new"})


def test_limits_name_known_codes() -> None:
    for form in formats().values():
        for limit in form.limits:
            page = page_of(limit.code)
            assert page is not None, f"{form.name}: {limit.code}"
            assert page.name == limit.name, f"{form.name}: {limit.code} is {page.name}, not {limit.name}"
            assert limit.hint


def constants(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
            yield node.value


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_code_in_the_source_is_known(source: Path) -> None:
    families = generator().FAMILIES
    unknown = {c for c in constants(source) if c[:3] in families} - set(known_codes())
    assert unknown == set()


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_codes_that_texts_refer_to_are_known(source: Path) -> None:
    """A hint or a page that sends a reader to a code that isn't there."""
    families = "|".join(generator().FAMILIES)
    named = set(re.findall(rf"\b(?:{families})\d{{3}}\b", source.read_text("utf-8")))
    assert named <= {*known_codes(), *lock(LOCK.read_text("utf-8"))}


def test_findings_made_in_place_have_their_code_s_name() -> None:
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if not (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "Finding"
                and len(node.args) > 1
            ):
                continue
            code, name = (a.value if isinstance(a, ast.Constant) else None for a in node.args[:2])
            if isinstance(code, str) and isinstance(name, str):
                page = page_of(code)
                assert page is not None and page.name == name, f"{source.name}:{node.lineno}: {code} {name}"
