"""The disk thread: one thread that writes the journal, so that the event loop never waits for a disk.

Its answers come back as callbacks on the loop rather than through a task: a commit costs two thread hand-overs and no
scheduling beyond that.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

import outcome
import trio

Work: TypeAlias = Callable[[], None]
Done: TypeAlias = Callable[[outcome.Outcome[None]], None]


class Disk(Protocol):
    """Runs pieces of blocking work one after the other, and reports each on the event loop."""

    def submit(self, work: Work, done: Done) -> None:
        """Queue ``work``; ``done`` is called on the loop with its outcome."""

    def close(self) -> None:
        """Finish what is queued and end; no further submits."""


class DiskThread:
    """A `Disk` with a thread of its own."""

    def __init__(self, name: str) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._queue: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Queue ``work`` for the thread."""
        self._queue.put((work, done))

    def close(self) -> None:
        """Wait for the queued work and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            result = outcome.capture(work)
            try:
                self._token.run_sync_soon(done, result)
            except trio.RunFinishedError:
                # The loop ended while the work was under way; nobody is left to be told.
                return


class InlineDisk:
    """A `Disk` that works at once in the calling thread: for deterministic simulations."""

    def submit(self, work: Work, done: Done) -> None:
        """Do the work now and report it when the loop comes round."""
        trio.lowlevel.current_trio_token().run_sync_soon(done, outcome.capture(work))

    def close(self) -> None:
        """Nothing to end."""
