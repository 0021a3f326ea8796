"""Links between pages lead somewhere: the file exists, and so does the heading. docs/README.md lists every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.pages import PAGES, REPOSITORY, anchors_of, prose_of

LINKING = [
    *PAGES,
    REPOSITORY / "CHANGELOG.md",
    REPOSITORY / "tests" / "README.md",
    *sorted((REPOSITORY / "docs" / "adr").glob("*.md")),
]
_LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in _LINK.findall(prose_of(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_of_a_page_lead_to_files_and_headings_that_exist(page: Path) -> None:
    assert broken_links(page) == []


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# First `words`\n[a](#first-words) [b](#second) [c](other.md)\n```\n[d](none.md)\n```\n")
    assert broken_links(page) == ["#second", "other.md"]


def test_the_list_of_pages_names_every_page() -> None:
    listed = set(_LINK.findall((REPOSITORY / "docs" / "README.md").read_text()))
    pages = {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert {*pages, "adr/README.md"} <= listed
