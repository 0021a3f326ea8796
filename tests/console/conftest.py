"""A node, and a browser that looks at it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.console.browser import Browser, Chromium, chromium
from tests.server.serving import Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as served:
        yield served


@pytest.fixture(scope="session")
def browser_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests. Not a part of `browser`: what skips a test must come before all that runs beside it."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (make peers)")
    with chromium(program, tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started


@pytest.fixture
async def browser(browser_process: Chromium) -> AsyncIterator[Browser]:
    async with browser_process.connected() as browser:
        yield browser
