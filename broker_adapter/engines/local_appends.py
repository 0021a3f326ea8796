"""What the engines in this process share for appending: encoding, and appends under way with a bound on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import trio

from shards.errors import OverloadedError, StorageError, afresh
from shards.format.batch import encode, encode_values
from shards.format.record import Record
from shards.model import Appended

WINDOW_BYTES = 32 << 20
"""Bound on the batch bytes that wait for their acknowledgement."""


class LocalAppend:
    """A `broker_adapter.results.PendingAppend` of an engine in this process.

    Args:
        size_bytes: What it takes of the window until its outcome is known.
        window: Where it gives that back.
    """

    __slots__ = ("_error", "_on_done", "_result", "_size_bytes", "_window")

    def __init__(self, size_bytes: int, window: AppendWindow) -> None:
        self._size_bytes = size_bytes
        self._window = window
        self._result: Appended | None = None
        self._error: StorageError | None = None
        # In a deep pipeline most are done when their result is read.
        self._on_done: Callable[[], None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._result is not None or self._error is not None

    async def wait(self) -> Appended:
        """Wait for the outcome."""
        if self.is_done:
            await trio.lowlevel.checkpoint()
        else:
            event = trio.Event()
            self._on_done = event.set if self._on_done is None else _both(self._on_done, event.set)
            await event.wait()
        return self.result_nowait()

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once the outcome is known; if it is not known yet, in a later step of the event loop.

        The outcome is set in the middle of a commit, which has to be finished first.
        """
        if self.is_done:
            call()
            return
        token = trio.lowlevel.current_trio_token()
        later = partial(token.run_sync_soon, call)
        earlier = self._on_done
        self._on_done = later if earlier is None else _both(earlier, later)

    def result_nowait(self) -> Appended:
        """The outcome of an append that `is_done`."""
        if self._error is not None:
            raise afresh(self._error)
        if self._result is None:
            raise trio.WouldBlock
        return self._result

    def resolve(self, appended: Appended) -> None:
        """It is stored."""
        self._result = appended
        self._finish()

    def reject(self, error: StorageError) -> None:
        """It is refused, or it is unknown whether it is stored."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._window.free(self._size_bytes)
        if self._on_done is not None:
            self._on_done()


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


class AppendWindow:
    """All appends under way of one adapter.

    Args:
        window_bytes: Bound on their batches; a single batch larger than it goes alone.
    """

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._bytes = 0
        self._room: trio.Event | None = None

    def begin(self, size_bytes: int) -> LocalAppend:
        """Take an append in.

        Raises:
            OverloadedError: There is no room.
        """
        if not self.has_room(size_bytes):
            raise OverloadedError(
                f"{self._bytes} bytes of appends wait to be acknowledged and the bound is {self._window_bytes} bytes: "
                f"wait for room"
            )
        self._bytes += size_bytes
        return LocalAppend(size_bytes, self)

    def has_room(self, size_bytes: int) -> bool:
        """Whether an append of that size would be taken now."""
        return not self._bytes or self._bytes + size_bytes <= self._window_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """Wait until `has_room`; others may be quicker to fill it."""
        await trio.lowlevel.checkpoint()
        while not self.has_room(size_bytes):
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def free(self, size_bytes: int) -> None:
        """Make room: an append has its outcome. For `LocalAppend`."""
        self._bytes -= size_bytes
        # Waking at half keeps a steady producer from being woken for every single acknowledgement.
        if self._room is not None and self._bytes * 2 <= self._window_bytes:
            self._room.set()
            self._room = None


def encoded(records: Sequence[Record] | Sequence[bytes], *, now_us: int) -> bytes:
    """One batch of records, or of bare values.

    Raises:
        InvalidRequestError: There are none, or one cannot be stored.
        LimitExceededError: There are too many for one batch.
    """
    if records and isinstance(records[0], bytes):
        return encode_values(cast("Sequence[bytes]", records), timestamp_us=now_us)
    return encode(cast("Sequence[Record]", records), now_us=now_us)
