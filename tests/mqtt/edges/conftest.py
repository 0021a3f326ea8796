"""What all tests of the edges need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def default_log() -> Iterator[None]:
    """The log as it is before a program sets it up, whatever other tests have set up."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)
