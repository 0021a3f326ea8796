"""What a program that runs on says of itself: one line an event on standard error, for people or as JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import structlog

from journal.settings import LogConfig, LogFormat


class _ToStructlog(logging.Handler):
    """Takes what a library says through the standard library, which it knows alone."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger("journal").log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def configure_log(config: LogConfig, libraries: Sequence[str] = ("journal",)) -> None:
    """Set the process's log up.

    Args:
        config: What is shown, and how.
        libraries: Names of the loggers in the standard library whose messages go there too.
    """
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if config.format is LogFormat.JSON
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[config.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    for name in libraries:
        library = logging.getLogger(name)
        library.handlers[:] = [_ToStructlog()]
        library.setLevel(logging.DEBUG)
        library.propagate = False
