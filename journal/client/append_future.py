"""The future of one append: its result, or its error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import trio

from journal.protocol.errors import RemoteProtocolError
from journal.protocol.frames import ACK_DUPLICATE, NO_OFFSET
from shards.errors import StorageError, afresh
from shards.format.record import Record
from shards.model import AckLevel, Appended

NOT_JOINED: Final = -1

_LEVELS: Final = {int(level): level for level in AckLevel}


class AppendFuture:
    """An append that was passed to the client. It is carried out whether or not a caller waits for it.

    One is created for every append, so it has no attributes that only some of them need.

    Attributes:
        record_count: Number of records.
        size_bytes: Bytes that it counts in the client's window.
        values: Values without other fields; a single one is stored directly.
        records: Records, if it has these instead.
        batch: An encoded batch, if it has that instead.
        join_key: Appends to one shard with the same key may share a batch; `NOT_JOINED` has a batch of its own.
        is_done: The result is known.
        on_done: Called when the result is known; None if no caller waits.
        base_offset, level, flags: Result from the server, if it accepted.
    """

    __slots__ = (
        "_error",
        "ack_level",
        "base_offset",
        "batch",
        "expected_offset",
        "flags",
        "is_done",
        "join_key",
        "level",
        "on_done",
        "record_count",
        "records",
        "size_bytes",
        "values",
    )

    base_offset: int
    level: int
    flags: int

    def __init__(
        self,
        record_count: int,
        size_bytes: int,
        values: bytes | Sequence[bytes] | None = None,
        records: Sequence[Record] | None = None,
        batch: bytes | None = None,
        ack_level: int = 0,
        expected_offset: int = NO_OFFSET,
        join_key: int = NOT_JOINED,
    ) -> None:
        self.record_count = record_count
        self.size_bytes = size_bytes
        self.values = values
        self.records = records
        self.batch = batch
        self.ack_level = ack_level
        self.expected_offset = expected_offset
        self.join_key = join_key
        self.is_done = False
        self._error: StorageError | None = None
        self.on_done: Callable[[], None] | None = None

    @property
    def may_join(self) -> bool:
        """Whether it may share a batch with other appends."""
        return self.join_key != NOT_JOINED

    @property
    def is_accepted(self) -> bool:
        """Whether the server has acknowledged it."""
        return self.is_done and self._error is None

    async def wait(self) -> Appended:
        """Wait for the result. Cancelling or a timeout ends the wait, not the append.

        Raises:
            StorageError: The append was refused, and is not retried.
        """
        # Inlined from `wait_done`: one coroutine less for every append that a caller waits for.
        if self.is_done:
            await trio.lowlevel.checkpoint()
        else:
            event = trio.Event()
            self.call_when_done(event.set)
            await event.wait()
        return self.result_nowait()

    async def wait_done(self) -> None:
        """Wait until the result is known, success or error."""
        if self.is_done:
            await trio.lowlevel.checkpoint()
        else:
            event = trio.Event()
            self.call_when_done(event.set)
            await event.wait()

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once the result is known, at once if it is; it must neither block nor raise.

        That is after all results have been set that came together, and in a later step of the event loop for an error.
        """
        if self.is_done:
            call()
        elif self.on_done is None:
            self.on_done = call
        else:
            earlier = self.on_done

            def both() -> None:
                earlier()
                call()

            self.on_done = both

    def result_nowait(self) -> Appended:
        """Result of an append that `is_done`.

        Raises:
            StorageError: The append was refused, and is not retried.
            trio.WouldBlock: The result is not known yet.
        """
        if not self.is_done:
            raise trio.WouldBlock
        if self._error is not None:
            raise afresh(self._error)
        level = _LEVELS.get(self.level)
        if level is None:
            raise RemoteProtocolError(f"append acknowledged at the unknown level {self.level}")
        return Appended(self.base_offset, level, bool(self.flags & ACK_DUPLICATE))

    def reject(self, error: StorageError) -> None:
        """Set an error: the append is not stored, or its result will never be known. Called by the sender."""
        self._error = error
        self.is_done = True
        self.values = self.records = self.batch = None
        if self.on_done is not None:
            # Later: what refuses appends is in the middle of something, and may end their caller next.
            trio.lowlevel.current_trio_token().run_sync_soon(self.on_done)

    @staticmethod
    def resolve_all(
        group: Iterable[AppendFuture], base_offset: int, level: int, flags: int, done: list[Callable[[], None]]
    ) -> int:
        """Set the result of all appends that share an acknowledged batch; returns their size in the window.

        Called by the sender. One loop for a whole batch, since this is done for every append.

        Args:
            group, base_offset, level, flags: The appends and their result.
            done: Gets what is to be called now; the sender does so when its own state is right again.
        """
        size_bytes = 0
        for pending in group:
            pending.base_offset = base_offset
            pending.level = level
            pending.flags = flags
            pending.is_done = True
            # A caller that keeps the append must not keep its records in memory.
            pending.values = pending.records = pending.batch = None
            if pending.on_done is not None:
                done.append(pending.on_done)
            size_bytes += pending.size_bytes
            if base_offset >= 0:
                base_offset += pending.record_count
        return size_bytes
