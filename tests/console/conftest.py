"""A node with a browser that looks at it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.console.browser import Browser, chromium
from tests.server.serving import Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as served:
        yield served


@pytest.fixture
def program() -> str:
    """Where the browser is. Not a part of `browser`: what skips a test must come before all that runs beside it."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed (make peers)")
    return found


@pytest.fixture
async def browser(program: str, tmp_path: Path) -> AsyncIterator[Browser]:
    async with chromium(program, tmp_path / "profile") as browser:
        yield browser
