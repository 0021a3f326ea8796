"""Signals that reach a program before it is ready to act on them: noted here, acted on as soon as it is.

Without this SIGTERM ends a server by the signal while Python still imports its modules, and SIGHUP does, too.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class EarlySignals:
    """A signal handler that only takes note.

    Attributes:
        stop: SIGTERM or SIGINT, if one came.
        reload: SIGHUP came.
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
    """Only note SIGTERM, SIGINT and SIGHUP from now on. Call it first, in the main thread."""
    early = EarlySignals()
    for number in (*_STOPS, signal.SIGHUP):
        signal.signal(number, early)


def early_signals() -> EarlySignals:
    """What was noted since `note_signals`; nothing if that was not called, or other handlers were installed since."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler if isinstance(handler, EarlySignals) else EarlySignals()
