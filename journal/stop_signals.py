"""Signals that arrive before a program is ready to handle them: recorded, and handled as soon as it is.

Otherwise SIGTERM and SIGHUP would kill a server while Python is still importing its modules.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class EarlySignals:
    """A signal handler that only records signals.

    Attributes:
        stop: SIGTERM or SIGINT, if one arrived.
        reload: Whether SIGHUP arrived.
    """

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.reload = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number in _STOPS:
            self.stop = signal.Signals(number)
        else:
            self.reload = True


def note_signals() -> None:
    """Only record SIGTERM, SIGINT and SIGHUP from now on. Call it first, in the main thread."""
    early = EarlySignals()
    for number in (*_STOPS, signal.SIGHUP):
        signal.signal(number, early)


def early_signals() -> EarlySignals:
    """The signals since `note_signals`; none if it was not called, or other handlers were installed since."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler if isinstance(handler, EarlySignals) else EarlySignals()
