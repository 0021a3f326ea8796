"""Collecting the rows of a row group from batches."""

from __future__ import annotations

import pyarrow as pa

from shards.errors import BatchError, CorruptionError
from shards.format.batch import BatchHeader, decode
from shards.format.checksum import Buffer
from shards.parquet.arrow_batches import BatchCollector
from shards.parquet.schema import RECORD_SCHEMA
from shards.parquet.source_batches import SourceBatches
from shards.segments.conversion_plan import PartSource

ROW_GROUP_BYTES = 3 << 20
ROW_GROUP_RECORDS = 1 << 16
"""A row group ends at the latest with the batch that brings it to this many records."""


class CollectedRows:
    """The rows of a row group, collected from batches in a buffer that is reused."""

    def __init__(self) -> None:
        self._collector = BatchCollector()
        # Where the batches in the buffer are from: the log, the position in it, the place in the buffer.
        self._places: list[tuple[PartSource, int, Buffer, int]] = []
        # Rows whose bytes are not in the buffer any more.
        self._parts: list[pa.RecordBatch] = []
        self.record_count = 0
        self.body_bytes = 0

    def add(self, batches: SourceBatches, at: int, header: BatchHeader) -> None:
        """Add the batch that was read last.

        Raises:
            CorruptionError: It cannot be decompressed.
        """
        source, position = batches.source, batches.position_of(at)
        try:
            self._collector.add(batches.buffer, at, header)
        except BatchError as error:
            raise CorruptionError(source.log_path, position, str(error)) from error
        self._places.append((source, position, batches.buffer, at))
        self.record_count += header.record_count
        self.body_bytes += header.raw_size

    def is_full_before(self, header: BatchHeader, row_group_bytes: int) -> bool:
        """Whether a row group ends before this batch: it is full, or the batch is one of its own."""
        return self.record_count > 0 and (
            self.body_bytes >= row_group_bytes
            or self.record_count >= ROW_GROUP_RECORDS
            or header.raw_size >= row_group_bytes
            or header.record_count >= ROW_GROUP_RECORDS
        )

    def empty(self) -> None:
        """Convert what is in the buffer to rows: its bytes will be overwritten.

        Raises:
            CorruptionError: A batch cannot be decoded.
        """
        places, self._places = self._places, []
        if not places:
            return
        try:
            self._parts.append(self._collector.finish())
        except BatchError as error:
            raise _first_unreadable(places, error) from error

    def take(self) -> pa.Table:
        """Return the rows and begin anew.

        Raises:
            CorruptionError: A batch cannot be decoded.
        """
        self.empty()
        rows = pa.Table.from_batches(self._parts, RECORD_SCHEMA)
        self._parts = []
        self.record_count = self.body_bytes = 0
        return rows


def _first_unreadable(places: list[tuple[PartSource, int, Buffer, int]], found: BatchError) -> CorruptionError:
    """Return the error for the first batch that cannot be decoded alone, after all together could not."""
    for source, position, buffer, at in places:
        try:
            decode(buffer, at)
        except BatchError as error:
            return CorruptionError(source.log_path, position, str(error))
    source, position, _, _ = places[0]
    return CorruptionError(source.log_path, position, str(found))
