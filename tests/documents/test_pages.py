"""No block of a page goes unseen: each is run, or its source says what it is or what tests it."""

from __future__ import annotations

import pytest

from tests.documents.pages import PAGES, REPOSITORY, SHOWN_ONLY, Block, blocks_of
from tests.documents.test_settings import PARSED

RUN = {"console", *PARSED}
"""Languages whose blocks are run where nothing else is said; the pages about Spark have programs in Python as well."""

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    mark, why = block.mark
    if block.language == "text":
        assert block.kind in SHOWN_ONLY, f"text is one of {', '.join(SHOWN_ONLY)}: ```text {block.kind}"
    elif mark == "tested by":
        assert block.page.rpartition("/")[2] in (REPOSITORY / why).read_text(), f"{why} does not speak of the page"
    elif mark == "not run":
        for word in why.replace(",", " ").replace(";", " ").split():
            assert not word.startswith("tests/") or (REPOSITORY / word).exists(), word
    else:
        python = block.language == "python" and (block.page.startswith("docs/spark") or block.page == "README.md")
        assert python or block.language in RUN, f"nothing runs {block.language!r}; say so in the line above the block"


def test_no_page_installs_from_an_index_that_does_not_have_it() -> None:
    """`pip install journal-engine` does not work before the first release."""
    for page in PAGES:
        assert "pip install 'journal-engine" not in page.read_text(), page
        assert "pip install journal-engine" not in page.read_text(), page
