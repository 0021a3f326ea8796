"""The log of a long-running program: one line for each event on standard error, for people or as JSON.

An event that is repeated often is shown a few times and then counted: a flood of refused connections must not fill the
disk, nor hide other events. Fields of a connection (`peer`, `connection`) come from the context variables of the task
that logs.
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
"""Number of lines of one event that are shown in one period."""

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

    Any thread may log; events are the same if they have the same level and text. The first line of the next period has
    the number of dropped lines as ``left_out``; if there is none, `keep_telling` logs it.

    Args:
        now_s: A monotonic clock in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._windows: dict[tuple[str, str], _Window] = {}
        self._lock = threading.Lock()

    def __call__(self, logger: WrappedLogger, method: str, event_dict: EventDict) -> EventDict:
        """Pass a line on or drop it: a processor of structlog."""
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
        """The present period of an event, and how many lines were dropped in the one that has just ended."""
        now = self._now_s()
        if key not in self._windows and len(self._windows) >= _EVENTS_KEPT_APART:
            # Events whose text differs each time share a period, so that they do not fill the memory.
            key = (key[0], "(other events)")
        window = self._windows.get(key)
        if window is not None and now < window.ends_at:
            return window, 0
        fresh = self._windows[key] = _Window(now + PERIOD_S)
        return fresh, 0 if window is None else window.left_out

    def tell(self, *, also_unfinished: bool = False) -> None:
        """Log the number of dropped lines of each period that has ended, or of all periods."""
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
    """Passes messages of libraries from the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        # The text before its values are filled in identifies the event.
        kind = {_KEY: str(record.msg)}
        structlog.get_logger("journal").log(record.levelno, record.getMessage(), exc_info=record.exc_info, **kind)


def configure_log(config: LogConfig, libraries: Sequence[str] = ("journal",)) -> RateLimit:
    """Configure the log of the process.

    Args:
        config: What is shown, and in which form.
        libraries: Names of the standard library's loggers whose messages are included.

    Returns:
        The rate limit. The program runs its `keep_telling` and, at its end, `tell`.
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
    """Put an exception into one line: type, message, causes, and stack, innermost frame first."""
    exc_info = event_dict.pop("exc_info", None)
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        # With the key "exception" the renderer would begin a new line.
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
    """Escape control characters: a name from a client must not begin a line of its own."""
    for key, value in event_dict.items():
        if isinstance(value, str) and _NOT_IN_A_LINE.search(value):
            event_dict[key] = _NOT_IN_A_LINE.sub(lambda found: repr(found[0])[1:-1], value)
    return event_dict
