"""Results of reading and appending: records as they were read, and appends whose outcome may still be pending.

The calls that return them are in `broker_adapter.adapter.StorageAdapter`; pushed records are in
`broker_adapter.subscription` and `broker_adapter.subscription`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from shards.format.record import Gap, StoredRecord
from shards.model import Appended


@attrs.frozen(slots=True)
class ReadResult:
    """The result of a read.

    Attributes:
        records: Records and gaps in offset order. Expired records are left out.
        next_offset: Where to read on. It may advance without any record, because it also passes expired ones.
    """

    records: list[StoredRecord | Gap]
    next_offset: int


@attrs.frozen(slots=True)
class StoredBatches:
    """Whole record batches as the engine stores them, for readers that work on columns; see `shards.format.batch`.

    Attributes:
        batches: Stamped batches back to back; a gap batch stands for records that were lost. If the offset asked for is
            inside a batch, the first batch begins with lower offsets. The reader has to check the checksums.
        start_offset: First offset that is still in the shard: lower ones in ``batches`` were trimmed.
        next_offset: Where to read on.
    """

    batches: bytes | memoryview
    start_offset: int
    next_offset: int


class PendingAppend(Protocol):
    """An append that was queued. It is carried out whether or not a task waits for it."""

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""

    async def wait(self) -> Appended:
        """Wait for the acknowledgement. Cancelling ends the wait, not the append.

        Raises:
            StorageError: It was refused; see `StorageAdapter.append`.
        """

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Have ``call`` called on the event loop once the outcome is known, at once if it is.

        This takes less time than a task that waits. ``call`` must neither block nor raise.
        """

    def result_nowait(self) -> Appended:
        """The outcome of an append that `is_done`; raises what `wait` raises, or `trio.WouldBlock` if it is pending."""
