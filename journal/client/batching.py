"""From the records of callers to record batches: what may share a batch, and its encoding. Nothing is sent here.

Appends are joined without waiting for more to come: what was queued in one tick goes together, and so does what
collects while an earlier batch of the shard is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from journal.client.pending import PendingAppend
from journal.client.producer_window import Entry
from journal.protocol.frames import NO_OFFSET
from shards.batch import encode, encode_values
from shards.batch_header import verify_body
from shards.compression import Codec
from shards.errors import InvalidRequestError, LimitExceededError, StorageError
from shards.model import ProducerIdentity
from shards.record import Record

# What an append, and each record with fields, costs in the window over its payload.
_OVERHEAD_BYTES: Final = 128


def pending_of(
    records: Sequence[bytes] | Sequence[Record], *, ack_level: int, expected_offset: int | None, may_join: bool
) -> PendingAppend:
    """Make an append of plain values or of records; one with an expected offset shares its batch with no other.

    Raises:
        InvalidRequestError: No records, or something that is neither bytes nor `Record`.
    """
    given: object = records
    if isinstance(given, bytes | str):
        raise InvalidRequestError(f"an append takes a list of bytes or of Record, not one {type(given).__name__}")
    count = len(records)
    if not count:
        raise InvalidRequestError("an append needs at least one record")
    expected = NO_OFFSET if expected_offset is None else expected_offset
    may_join = may_join and expected_offset is None
    try:
        if isinstance(records[0], Record):
            # Copied: they are encoded later, when the caller may have put other things into its list.
            fields = cast("tuple[Record, ...]", tuple(records))
            # Headers and tags are not weighed one by one: the bound is on memory, roughly, not an account of it.
            size_bytes = sum([len(record.value) + len(record.key) for record in fields]) + _OVERHEAD_BYTES * count
            return PendingAppend(
                count, size_bytes, records=fields, ack_level=ack_level, expected_offset=expected, may_join=may_join
            )
        values = cast("tuple[bytes, ...]", tuple(records))
        size_bytes = sum(map(len, values)) + _OVERHEAD_BYTES
    except (TypeError, AttributeError) as fault:
        raise InvalidRequestError(f"an append takes all bytes or all Record: {fault}") from fault
    return PendingAppend(
        count, size_bytes, values=values, ack_level=ack_level, expected_offset=expected, may_join=may_join
    )


def pending_of_batch(batch: bytes, *, ack_level: int, expected_offset: int | None) -> PendingAppend:
    """Make an append of an encoded batch.

    Raises:
        BatchError: These bytes are not one whole batch.
    """
    header = verify_body(batch)
    expected = NO_OFFSET if expected_offset is None else expected_offset
    return PendingAppend(
        header.record_count,
        len(batch) + _OVERHEAD_BYTES,
        batch=batch,
        ack_level=ack_level,
        expected_offset=expected,
    )


class AppendQueue:
    """Appends to one shard that are not encoded yet, in order.

    Args:
        max_batch_bytes: Bound on the payload of a joined batch.
        max_batch_records: Bound on its records.
    """

    __slots__ = ("_max_batch_bytes", "_max_batch_records", "_queue", "_record_count", "_size_bytes")

    def __init__(self, max_batch_bytes: int, max_batch_records: int) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._max_batch_records = max_batch_records
        self._queue: deque[PendingAppend] = deque()
        self._size_bytes = 0
        self._record_count = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, pending: PendingAppend) -> None:
        """Queue an append."""
        self._queue.append(pending)
        self._size_bytes += pending.size_bytes
        self._record_count += pending.record_count

    def take(self, *, is_busy: bool) -> list[PendingAppend]:
        """Take the appends of the next batch; none if the queue is empty or if waiting joins more of them.

        Args:
            is_busy: An earlier batch of the shard is in flight: less than a full batch waits for it.
        """
        queue = self._queue
        if not queue:
            return []
        first = queue[0]
        max_bytes, max_records = self._max_batch_bytes, self._max_batch_records
        if is_busy and first.may_join and self._size_bytes < max_bytes and self._record_count < max_records:
            return []
        queue.popleft()
        size_bytes, count = first.size_bytes, first.record_count
        group = [first]
        if first.may_join:
            has_values = first.values is not None
            while queue:
                pending = queue[0]
                if (
                    not pending.may_join
                    or pending.ack_level != first.ack_level
                    or (pending.values is not None) is not has_values
                    or size_bytes + pending.size_bytes > max_bytes
                    or count + pending.record_count > max_records
                ):
                    break
                size_bytes += pending.size_bytes
                count += pending.record_count
                group.append(queue.popleft())
        self._size_bytes -= size_bytes
        self._record_count -= count
        return group

    def clear(self) -> list[PendingAppend]:
        """Empty the queue; returns what was in it."""
        taken = list(self._queue)
        self._queue.clear()
        self._size_bytes = self._record_count = 0
        return taken


class BatchEncoder:
    """Encodes groups of appends.

    Args:
        now_us: Clock for records without a timestamp, in microseconds since the epoch.
        codec: Compression of the batches made here; encoded ones stay as they are.
        max_batch_bytes: The server's limit; to be set when it is known.
    """

    def __init__(self, now_us: Callable[[], int], codec: Codec = Codec.NONE, max_batch_bytes: int = 0) -> None:
        self.max_batch_bytes = max_batch_bytes
        self._now_us = now_us
        self._codec = codec

    def encode(
        self, group: list[PendingAppend], identity: ProducerIdentity, sequence: int
    ) -> Iterator[Entry | tuple[PendingAppend, StorageError]]:
        """Make one batch of the group. If one append spoils it, each is encoded alone and the bad one is given back."""
        try:
            yield self._entry(group, identity, sequence)
        except (StorageError, TypeError, ValueError, AttributeError, OverflowError) as fault:
            if len(group) == 1:
                error = fault if isinstance(fault, StorageError) else InvalidRequestError(f"not a record: {fault}")
                yield group[0], error
                return
            for pending in group:
                # Encoded without its place in the sequence, which the window gives it.
                for made in self.encode([pending], identity, sequence):
                    if isinstance(made, Entry):
                        made.stamped_sequence = -1
                    yield made

    def _entry(self, group: list[PendingAppend], identity: ProducerIdentity, sequence: int) -> Entry:
        first = group[0]
        is_single = len(group) == 1
        stamped_sequence = sequence
        if first.values is not None:
            values = first.values if is_single else [v for pending in group for v in pending.values or ()]
            count = len(values)
            batch = encode_values(
                values,
                timestamp_us=self._now_us(),
                codec=self._codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                sequence=sequence,
            )
        elif first.records is not None:
            records = first.records if is_single else [r for pending in group for r in pending.records or ()]
            count = len(records)
            batch = encode(
                records,
                now_us=self._now_us(),
                codec=self._codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                sequence=sequence,
            )
        else:
            batch = first.batch or b""
            count = first.record_count
            stamped_sequence = -1
        if len(batch) > self.max_batch_bytes:
            raise LimitExceededError(
                f"a batch of {len(batch)} bytes is longer than the server's max_batch_bytes of "
                f"{self.max_batch_bytes}: append fewer records at once"
            )
        entry = Entry(batch, count, group, first.ack_level, first.expected_offset)
        entry.stamped_sequence = stamped_sequence
        return entry
