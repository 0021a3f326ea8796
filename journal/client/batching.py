"""Record batches from the records of callers: which appends may share a batch, and its encoding. Nothing is sent here.

Appends are joined without waiting for further ones: those queued in one iteration of the event loop share a batch, and
so do those queued while an earlier batch of the shard is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, cast

from journal.client.append_future import NOT_JOINED, AppendFuture
from journal.client.producer_window import Entry
from journal.protocol.frames import NO_OFFSET
from shards import compiled
from shards.errors import InvalidRequestError, LimitExceededError, StorageError
from shards.format.batch import encode, encode_values
from shards.format.batch_header import verify_body
from shards.format.compression import Codec
from shards.format.record import Record
from shards.model import ProducerIdentity

# Bytes in the window for an append, and for each record with fields, in addition to the payload.
_OVERHEAD_BYTES: Final = 128
# Types with a length and items that are nevertheless a mistake here.
_NO_SEQUENCES: Final = (bytes, str)


def pending_of(
    records: Sequence[bytes] | Sequence[Record],
    ack_level: int = 0,
    expected_offset: int | None = None,
    may_join: bool = False,
) -> AppendFuture:
    """Make an append of plain values or of records; with an expected offset it does not share its batch.

    Raises:
        InvalidRequestError: No records, or an item that is neither bytes nor `Record`.
    """
    if expected_offset is None:
        expected_offset = NO_OFFSET
        join_key = ack_level * 2 if may_join else NOT_JOINED
    else:
        join_key = NOT_JOINED
    kind: type[object] = type(records)
    if kind is list and len(records) == 1 and type(value := records[0]) is bytes:
        # One message at a time, as most brokers send.
        return AppendFuture(1, len(value) + _OVERHEAD_BYTES, value, None, None, ack_level, expected_offset, join_key)
    if issubclass(kind, _NO_SEQUENCES):
        raise InvalidRequestError(f"an append takes a list of bytes or of Record, not one {kind.__name__}")
    count = len(records)
    if not count:
        raise InvalidRequestError("an append needs at least one record")
    try:
        if isinstance(records[0], Record):
            # Copied: they are encoded later, when the caller may have changed its list.
            fields = cast("tuple[Record, ...]", tuple(records))
            # Headers and tags are not counted: the bound on memory is approximate.
            size_bytes = sum([len(record.value) + len(record.key) for record in fields]) + _OVERHEAD_BYTES * count
            if join_key != NOT_JOINED:
                join_key += 1
            return AppendFuture(count, size_bytes, None, fields, None, ack_level, expected_offset, join_key)
        values = cast("tuple[bytes, ...]", tuple(records))
        size_bytes = _size_of(values) + _OVERHEAD_BYTES
    except (TypeError, AttributeError) as fault:
        raise InvalidRequestError(f"an append takes either only bytes or only Record: {fault}") from fault
    return AppendFuture(
        count, size_bytes, values if count > 1 else values[0], None, None, ack_level, expected_offset, join_key
    )


def _size_of(values: tuple[bytes, ...]) -> int:
    if compiled.size_of_items is not None and (size_bytes := compiled.size_of_items(values)) is not None:
        return size_bytes
    return sum(map(len, values))


def pending_of_batch(batch: bytes, *, ack_level: int, expected_offset: int | None) -> AppendFuture:
    """Make an append of an encoded batch.

    Raises:
        BatchError: These bytes are not one complete batch.
    """
    header = verify_body(batch)
    expected = NO_OFFSET if expected_offset is None else expected_offset
    return AppendFuture(
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

    Attributes:
        waiting: The queued appends; read-only for others.
    """

    __slots__ = ("_join_key", "_max_batch_bytes", "_max_batch_records", "_record_count", "_size_bytes", "waiting")

    def __init__(self, max_batch_bytes: int, max_batch_records: int) -> None:
        self.waiting: deque[AppendFuture] = deque()
        self._max_batch_bytes = max_batch_bytes
        self._max_batch_records = max_batch_records
        self._size_bytes = 0
        self._record_count = 0
        self._join_key = NOT_JOINED

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, pending: AppendFuture) -> bool:
        """Queue an append. Returns whether a full batch is queued now."""
        waiting = self.waiting
        if not waiting:
            self._join_key = pending.join_key
        elif pending.join_key != self._join_key:
            self._join_key = NOT_JOINED
        waiting.append(pending)
        self._size_bytes = size_bytes = self._size_bytes + pending.size_bytes
        self._record_count = count = self._record_count + pending.record_count
        return size_bytes >= self._max_batch_bytes or count >= self._max_batch_records

    def take(self, *, is_busy: bool) -> list[AppendFuture]:
        """Remove and return the appends of the next batch; none if the queue is empty or waiting allows more joining.

        Args:
            is_busy: An earlier batch of the shard is in flight: then less than a full batch waits for it.
        """
        waiting = self.waiting
        if not waiting:
            return []
        first = waiting[0]
        if first.join_key == NOT_JOINED:
            waiting.popleft()
            self._size_bytes -= first.size_bytes
            self._record_count -= first.record_count
            return [first]
        max_bytes, max_records = self._max_batch_bytes, self._max_batch_records
        if is_busy and self._size_bytes < max_bytes and self._record_count < max_records:
            return []
        if self._join_key != NOT_JOINED and self._size_bytes <= max_bytes and self._record_count <= max_records:
            # All of them fit and may share one batch: no need to check each.
            return self.clear()
        return self._take_some(first, max_bytes, max_records)

    def _take_some(self, first: AppendFuture, max_bytes: int, max_records: int) -> list[AppendFuture]:
        waiting = self.waiting
        waiting.popleft()
        size_bytes, count = first.size_bytes, first.record_count
        group = [first]
        while waiting:
            pending = waiting[0]
            if (
                pending.join_key != first.join_key
                or size_bytes + pending.size_bytes > max_bytes
                or count + pending.record_count > max_records
            ):
                break
            size_bytes += pending.size_bytes
            count += pending.record_count
            group.append(waiting.popleft())
        self._size_bytes -= size_bytes
        self._record_count -= count
        return group

    def withdraw(self, appends: Collection[object]) -> list[AppendFuture]:
        """Remove appends from the queue; returns those that were in it."""
        waiting = self.clear()
        for pending in waiting:
            if pending not in appends:
                self.add(pending)
        return [pending for pending in waiting if pending in appends]

    def clear(self) -> list[AppendFuture]:
        """Empty the queue and return its content."""
        taken = list(self.waiting)
        self.waiting.clear()
        self._size_bytes = self._record_count = 0
        return taken


ENCODING_FAULTS: Final = (StorageError, TypeError, ValueError, AttributeError, OverflowError)


class BatchEncoder:
    """Encodes groups of appends.

    Args:
        now_us: Time for records without a timestamp, in microseconds since the epoch.
        codec: Compression of batches that are encoded here; already encoded ones are not changed.
        max_batch_bytes: The server's limit; set when it is known.
    """

    def __init__(self, now_us: Callable[[], int], codec: Codec = Codec.NONE, max_batch_bytes: int = 0) -> None:
        self.max_batch_bytes = max_batch_bytes
        self._now_us = now_us
        self._codec = codec

    def encode(
        self, group: list[AppendFuture], identity: ProducerIdentity, sequence: int
    ) -> Iterator[Entry | tuple[AppendFuture, StorageError]]:
        """Make one batch of the group. If that fails, each append is encoded alone, and invalid ones are returned."""
        try:
            yield self.entry(group, identity, sequence)
        except ENCODING_FAULTS as fault:
            if len(group) == 1:
                error = fault if isinstance(fault, StorageError) else InvalidRequestError(f"not a record: {fault}")
                yield group[0], error
                return
            for pending in group:
                # Encoded without its place in the sequence, which the window assigns.
                for made in self.encode([pending], identity, sequence):
                    if isinstance(made, Entry):
                        made.stamped_sequence = -1
                    yield made

    def entry(self, group: list[AppendFuture], identity: ProducerIdentity, sequence: int) -> Entry:
        """Make one batch of the whole group; raises one of `ENCODING_FAULTS` if an append is invalid."""
        first = group[0]
        stamped_sequence = sequence
        if first.values is not None:
            values = [first.values] if len(group) == 1 and first.record_count == 1 else _values_of(group)
            count = len(values)
            batch = encode_values(
                values,  # type: ignore[arg-type]  # one record: one value
                timestamp_us=self._now_us(),
                codec=self._codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                sequence=sequence,
            )
        elif first.records is not None:
            records = first.records if len(group) == 1 else [r for pending in group for r in pending.records or ()]
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
        return Entry(batch, count, group, first.ack_level, first.expected_offset, 0, 0, stamped_sequence)


def _values_of(group: list[AppendFuture]) -> list[bytes]:
    if sum([pending.record_count for pending in group]) == len(group):
        return [pending.values for pending in group]  # type: ignore[misc]  # one record: one value
    values: list[bytes] = []
    for pending in group:
        if isinstance(pending.values, bytes):
            values.append(pending.values)
        elif pending.values is not None:
            values.extend(pending.values)
    return values
