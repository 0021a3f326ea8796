"""What a program that runs on says of itself: one line an event on standard error, for people or as JSON.

An event that comes again and again is told a few times and then counted: a storm of refused connections must not fill
the disk, nor hide what else happens. Who a line is about (`peer`, `connection`) comes from the context variables of the
task that logs it.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import structlog
import trio
from structlog.typing import EventDict, Processor, WrappedLogger

from journal.settings.values import LogConfig, LogFormat

PERIOD_S: Final = 10.0
LINES_PER_PERIOD: Final = 20
"""Lines of one event that are shown in one period."""

_EVENTS_KEPT_APART: Final = 1_000
_KEY: Final = "_kind"
_UNLIMITED: Final = "_unlimited"
_FRAMES_SHOWN: Final = 6
_NOT_IN_A_LINE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@attrs.define(slots=True)
class _Window:
    """One period of one event."""

    ends_at: float
    shown: int = 0
    left_out: int = 0


class RateLimit:
    """Shows `LINES_PER_PERIOD` lines of each event in `PERIOD_S`, and counts the others.

    Threads may log; what counts as the same event has the same level and text. The first line of the next period says
    how many were left out as ``left_out``; if none comes, `keep_telling` says it.

    Args:
        now_s: A clock that only runs forward.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._windows: dict[tuple[str, str], _Window] = {}
        self._lock = threading.Lock()

    def __call__(self, logger: WrappedLogger, method: str, event_dict: EventDict) -> EventDict:
        """Let a line pass or drop it: a processor of structlog."""
        kind = str(event_dict.pop(_KEY, event_dict.get("event", "")))
        if event_dict.pop(_UNLIMITED, False):
            return event_dict
        with self._lock:
            window, left_out = self._window((str(event_dict.get("level", method)), kind))
            if window.shown >= LINES_PER_PERIOD:
                window.left_out += 1
                raise structlog.DropEvent
            window.shown += 1
        if left_out:
            event_dict["left_out"] = left_out
        return event_dict

    def _window(self, key: tuple[str, str]) -> tuple[_Window, int]:
        """The present period of an event, and how many lines the one that just ended left out."""
        now = self._now_s()
        if key not in self._windows and len(self._windows) >= _EVENTS_KEPT_APART:
            # Texts that differ each time: they share a period rather than fill the memory.
            key = (key[0], "(other events)")
        window = self._windows.get(key)
        if window is not None and now < window.ends_at:
            return window, 0
        fresh = self._windows[key] = _Window(now + PERIOD_S)
        return fresh, 0 if window is None else window.left_out

    def tell(self, *, also_unfinished: bool = False) -> None:
        """Log how many lines were left out of each period that has ended, or of all."""
        with self._lock:
            now = self._now_s()
            ended = {key: window for key, window in self._windows.items() if also_unfinished or now >= window.ends_at}
            for key in ended:
                del self._windows[key]
        log = structlog.get_logger("journal")
        for (level, kind), window in ended.items():
            if window.left_out:
                getattr(log, level)("lines were left out", of=kind, left_out=window.left_out, **{_UNLIMITED: True})

    async def keep_telling(self) -> None:
        """Do so until cancelled."""
        while True:
            await trio.sleep(PERIOD_S)
            self.tell()


class _ToStructlog(logging.Handler):
    """Takes what a library says through the standard library, which it knows alone."""

    def emit(self, record: logging.LogRecord) -> None:
        # The text before its values are filled in says which event it is.
        kind = {_KEY: str(record.msg)}
        structlog.get_logger("journal").log(record.levelno, record.getMessage(), exc_info=record.exc_info, **kind)


def configure_log(config: LogConfig, libraries: Sequence[str] = ("journal",)) -> RateLimit:
    """Set the process's log up.

    Args:
        config: What is shown, and how.
        libraries: Names of the loggers in the standard library whose messages go there too.

    Returns:
        What bounds the log. The program runs its `keep_telling` and, at its end, `tell`.
    """
    limit = RateLimit()
    form: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if config.format is LogFormat.JSON
        else [condense_exception, in_one_line, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            limit,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *form,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[config.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    for name in libraries:
        library = logging.getLogger(name)
        library.handlers[:] = [_ToStructlog()]
        library.setLevel(logging.DEBUG)
        library.propagate = False
    return limit


def condense_exception(logger: WrappedLogger, method: str, event_dict: EventDict) -> EventDict:
    """Put an exception into the line: what it is, what it came from, and where, innermost first."""
    exc_info = event_dict.pop("exc_info", None)
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        # Under the name "exception" the renderer would begin a new line.
        event_dict["raised"] = _condensed(error)
    return event_dict


def _condensed(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_SHOWN:]
    where = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    text = f"{type(error).__name__}: {error}" + (f" at {where}" if where else "")
    if isinstance(error, BaseExceptionGroup):
        text += "".join(f" | {_condensed(each)}" for each in error.exceptions)
    if error.__cause__ is not None:
        text += f" caused by {_condensed(error.__cause__)}"
    return text


def in_one_line(logger: WrappedLogger, method: str, event_dict: EventDict) -> EventDict:
    """Write control characters as escapes: what a client calls itself must not make a line of its own."""
    for key, value in event_dict.items():
        if isinstance(value, str) and _NOT_IN_A_LINE.search(value):
            event_dict[key] = _NOT_IN_A_LINE.sub(lambda found: repr(found[0])[1:-1], value)
    return event_dict
