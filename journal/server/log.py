"""What the server says of itself: one line an event on standard error, for people or as JSON."""

from __future__ import annotations

import logging
import sys

import structlog

from journal.config import LogConfig, LogFormat


class _ToStructlog(logging.Handler):
    """Takes what the engine says through the standard library, which it knows alone."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger("journal").log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def configure_log(config: LogConfig) -> None:
    """Set the process's log up."""
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
    engine = logging.getLogger("journal")
    engine.handlers[:] = [_ToStructlog()]
    engine.setLevel(logging.DEBUG)
    engine.propagate = False
