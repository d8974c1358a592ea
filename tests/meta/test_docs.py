"""The pages: current, whole, and every link in them leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_tools.checks.base import checks
from ckpt_tools.cli.root import main as ckpt
from ckpt_tools.formats import formats
from ckpt_tools.render._pages import known_codes
from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run python docs/generate.py\n{done.stdout}{done.stderr}"


def test_a_stale_page_is_noticed(tmp_path: Path) -> None:
    from tests.meta.generator import generator

    module = generator()
    before = module.DOCS, module.ROOT, module.LOCK
    module.DOCS, module.ROOT, module.LOCK = tmp_path / "docs", tmp_path, tmp_path / "codes.lock"
    try:
        assert module.main(["--check"]) == 1
        assert not (tmp_path / "docs").exists()
        (tmp_path / "tests").mkdir()
        assert module.main([]) == 0
        (tmp_path / "docs" / "checks" / "OLD001.md").write_text("left over", "utf-8")
        assert module.main(["--check"]) == 1
        assert module.main([]) == 0
        assert not (tmp_path / "docs" / "checks" / "OLD001.md").exists()
        assert module.main(["--check"]) == 0
    finally:
        module.DOCS, module.ROOT, module.LOCK = before


def test_every_code_and_format_has_a_page() -> None:
    assert {p.stem for p in (DOCS / "checks").glob("[A-Z][A-Z][A-Z]*.md")} - {"README"} == set(known_codes())
    assert {p.stem for p in (DOCS / "formats").glob("*.md")} - {"README"} == set(formats())
    assert set(checks()) <= set(known_codes())


def test_every_command_is_in_the_page_of_the_command_line() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    for name in ckpt.list_commands(None):  # type: ignore[attr-defined]
        assert f"\n## ckpt {name}\n" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {link}"
        if anchor and there.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", there.read_text("utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_blocks_are_closed(page: Path) -> None:
    assert page.read_text("utf-8").count("```") % 2 == 0
