"""One append as its caller sees it: a promise that is kept, or broken with an error."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from journal.protocol.errors import RemoteProtocolError
from journal.protocol.frames import ACK_DUPLICATE, NO_OFFSET
from shards.errors import StorageError
from shards.model import AckLevel, Appended
from shards.record import Record


class PendingAppend:
    """An append that was handed over. It is carried out whether or not anybody waits for it.

    Attributes:
        record_count: Records in it.
        size_bytes: What it counts against the client's window.
    """

    __slots__ = (
        "_base_offset",
        "_error",
        "_event",
        "_flags",
        "_level",
        "ack_level",
        "batch",
        "expected_offset",
        "is_done",
        "may_join",
        "record_count",
        "records",
        "size_bytes",
        "values",
    )

    def __init__(
        self,
        record_count: int,
        size_bytes: int,
        *,
        values: Sequence[bytes] | None = None,
        records: Sequence[Record] | None = None,
        batch: bytes | None = None,
        ack_level: int = 0,
        expected_offset: int = NO_OFFSET,
        may_join: bool = False,
    ) -> None:
        self.record_count = record_count
        self.size_bytes = size_bytes
        self.values = values
        self.records = records
        self.batch = batch
        self.ack_level = ack_level
        self.expected_offset = expected_offset
        self.may_join = may_join
        self.is_done = False
        self._base_offset = NO_OFFSET
        self._level = 0
        self._flags = 0
        self._error: StorageError | None = None
        self._event: trio.Event | None = None

    async def wait(self) -> Appended:
        """Wait for the outcome. Cancelling or timing out gives up waiting, not the append.

        Raises:
            StorageError: The append was refused for good.
        """
        if self.is_done:
            await trio.lowlevel.checkpoint()
        else:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()
        return self.result_nowait()

    def result_nowait(self) -> Appended:
        """Outcome of an append that `is_done`.

        Raises:
            StorageError: The append was refused for good.
            trio.WouldBlock: It is still on its way.
        """
        if not self.is_done:
            raise trio.WouldBlock
        if self._error is not None:
            raise self._error
        try:
            level = AckLevel(self._level)
        except ValueError as error:
            raise RemoteProtocolError(f"append acknowledged at the unknown level {self._level}") from error
        return Appended(self._base_offset, level, bool(self._flags & ACK_DUPLICATE))

    def resolve(self, base_offset: int, level: int, flags: int) -> None:
        """The server has it. For the sender."""
        self._base_offset = base_offset
        self._level = level
        self._flags = flags
        self._finish()

    def reject(self, error: StorageError) -> None:
        """It will never be stored, or nobody knows. For the sender."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.values = self.records = self.batch = None
        if self._event is not None:
            self._event.set()
