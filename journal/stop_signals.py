"""Signals that arrive before a program is ready to handle them: recorded, and handled as soon as it is.

Otherwise SIGTERM and SIGHUP would kill a server while Python is still importing its modules.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
STOPS_AND_RELOAD: Final = (*STOPS, signal.SIGHUP)


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
        if number in STOPS:
            self.stop = signal.Signals(number)
        else:
            self.reload = True


def note_signals(numbers: tuple[signal.Signals, ...] = STOPS_AND_RELOAD) -> None:
    """Only record these signals from now on. Call it first, in the main thread."""
    early = EarlySignals()
    for number in numbers:
        signal.signal(number, early)


def early_signals() -> EarlySignals:
    """The signals since `note_signals`; none if it was not called, or other handlers were installed since."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler if isinstance(handler, EarlySignals) else EarlySignals()


@contextmanager
def all_signals(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """Receive signals for the length of the block, first those since `note_signals`: a stop, then a reload."""
    # Imported here, since `note_signals` has to be called before anything takes long.
    import trio

    early = early_signals()
    with trio.open_signal_receiver(*numbers) as received:
        before = [*([early.stop] if early.stop is not None else []), *([signal.SIGHUP] if early.reload else [])]
        yield _Signals(deque(number for number in before if number in numbers), received)


class _Signals:
    def __init__(self, early: deque[signal.Signals], received: AsyncIterator[int]) -> None:
        self._early = early
        self._received = received

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        return self._early.popleft() if self._early else await anext(self._received)
