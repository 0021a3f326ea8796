"""Waiting inside the process for the acknowledgement of one append."""

from __future__ import annotations

import trio

from journal.protocol.frames import ACK, ACK_DUPLICATE
from shards.errors import StorageFailedError, afresh
from shards.model import AckLevel, Appended


class PendingAck:
    """An `AckSink` for one append."""

    number = 0
    producers = ""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._result: Appended | StorageFailedError | None = None

    def acknowledge(self, acks: bytearray) -> None:
        _, level, flags, _, base_offset = ACK.unpack(acks)
        self._result = Appended(base_offset, AckLevel(level), bool(flags & ACK_DUPLICATE))
        self._done.set()

    def fail(self, error: StorageFailedError) -> None:
        self._result = error
        self._done.set()

    async def wait(self) -> Appended:
        """Wait for the acknowledgement and return it.

        Raises:
            StorageFailedError: The engine failed; only after a restart it is known whether the batch is stored.
        """
        await self._done.wait()
        if isinstance(self._result, Appended):
            return self._result
        assert self._result is not None  # it is set before the event
        raise afresh(self._result)
