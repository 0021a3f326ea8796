"""What reading and appending give: records as they were found, and appends whose outcome may still be open.

The calls that give them are on `broker_adapter.adapter.StorageAdapter`; what is pushed instead of asked for is in
`broker_adapter.subscription` and `broker_adapter.feed`.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from shards.format.record import Gap, StoredRecord
from shards.model import Appended


@attrs.frozen(slots=True)
class ReadResult:
    """What a read found.

    Attributes:
        records: Records and gaps in offset order. Expired records are left out.
        next_offset: Where to read on. It moves past records that were left out, so it may move although there are none.
    """

    records: list[StoredRecord | Gap]
    next_offset: int


@attrs.frozen(slots=True)
class StoredBatches:
    """Whole record batches as the engine stores them, for readers that work on columns; see `shards.format.batch`.

    Attributes:
        batches: Stamped batches back to back; a gap batch stands for records that were lost. Records below the offset
            asked for may come first, if its batch begins there. Checksums are the reader's to check.
        start_offset: First offset that is still in the shard: lower ones in ``batches`` were trimmed.
        next_offset: Where to read on.
    """

    batches: bytes | memoryview
    start_offset: int
    next_offset: int


class PendingAppend(Protocol):
    """An append that was handed over. It is carried out whether or not anybody waits for it."""

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""

    async def wait(self) -> Appended:
        """Wait for the acknowledgement. Cancelling gives up waiting, not the append.

        Raises:
            StorageError: It was refused; see `StorageAdapter.append`.
        """

    def result_nowait(self) -> Appended:
        """The outcome of an append that `is_done`; raises what `wait` raises, or `trio.WouldBlock` before that."""
