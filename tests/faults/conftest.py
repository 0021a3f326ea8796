"""What the tests of faults share."""

from __future__ import annotations

import pytest


@pytest.fixture
def any_directory_may_be_a_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of its own stands for what befalls one directory alone: a quota, or sectors that fail."""
    monkeypatch.setattr("journal.engine.opening.check_mounts", lambda _: None)
