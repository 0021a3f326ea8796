"""What commands print is looked at here, beside servers that run in the same process."""

from __future__ import annotations

import sys

import pytest
import structlog


def _log_to_stderr(*_names: object) -> structlog.PrintLogger:
    return structlog.PrintLogger(sys.stderr)


@pytest.fixture(autouse=True)
def servers_log_to_stderr(log_as_before: None) -> None:
    """A line of the log, as that the event loop stalled, is nothing that a command printed."""
    structlog.configure(logger_factory=_log_to_stderr)
