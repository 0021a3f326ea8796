"""Reading a sealed segment: its footer once, then row groups by number, as Arrow columns or as record batches again."""

from __future__ import annotations

import struct

import attrs

from shards.parquet.file_end import FileFormat
from shards.parquet.group_reader import GroupReader
from shards.parquet.schema import FORMAT_VERSION, SCHEMA, SegmentMetadata
from shards.parquet.wire_batches import EncodedGroup, encode_group
from shards.seams.file_system import FileSystem

_FORMAT = FileFormat("sealed format", FORMAT_VERSION, SCHEMA, SegmentMetadata.decode)


@attrs.frozen
class RowGroup:
    """A row group: whole batches of at most about 1 MiB before compression, or one larger batch.

    Attributes:
        last_lsn: lsn of its last batch.
        newest_us: Newest record timestamp in it.
        value_bytes: Size of its values together.
    """

    index: int
    first_offset: int
    next_offset: int
    last_lsn: int
    newest_us: int
    value_bytes: int


class SealedReader(GroupReader[SegmentMetadata]):
    """A sealed segment, open for reading. Threads may share it.

    Args:
        files: The file system.
        path: The file.

    Attributes:
        shard: The name of the shard.
        base_offset: Offset of the first record.
        next_offset: Offset after the last record.
        row_groups: In the order of their offsets, without a gap from ``base_offset`` to ``next_offset``.

    Raises:
        CorruptionError: The file is damaged, truncated, or not a sealed segment.
        FormatVersionError: A newer program wrote it.
        OSError: It cannot be read.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        super().__init__(files, path, _FORMAT)
        self.shard = self.metadata.shard
        self.shard_id = self.metadata.shard_id
        self.base_offset = self.metadata.base_offset
        self.next_offset = self.metadata.next_offset
        self.row_groups = [
            RowGroup(index, entry.first_offset, entry.next_offset, entry.last_lsn, entry.newest_us, entry.value_bytes)
            for index, entry in enumerate(self.metadata.row_groups)
        ]

    def batches(self, index: int) -> EncodedGroup:
        """Return a row group as the record batches of the former log segment.

        Offsets, lsns, times and records are the same; producer fields are 0 and nothing is compressed.

        Raises:
            CorruptionError: The row group is damaged.
            OSError: It cannot be read.
        """
        rows = self.table(index)
        try:
            return encode_group(rows)
        except struct.error as error:
            raise self.corruption(index, f"an offset, lsn or time is below 0: {error}") from error
