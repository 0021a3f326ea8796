"""Reading shared files: the rows of one shard as the record batches that they were, or whole row groups as columns."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shards.parquet.arrow_buffers import column_numbers
from shards.parquet.group_reader import GroupReader
from shards.parquet.schema import RECORD_SCHEMA
from shards.parquet.wire_batches import EncodedGroup, encode_group
from shards.seams.file_system import FileSystem

# All that batches are made of: the name of the shard is known to the caller.
_NEEDED = ("shard_id", "own_topic", *RECORD_SCHEMA.names)


@attrs.frozen(slots=True)
class PartOfFile:
    """The rows of one segment in a shared file.

    Attributes:
        shard_id: Id of the shard.
        base_offset: Offset of the first record.
        next_offset: Offset after the last one.
        first_row: Row of the first record in the file.
    """

    shard_id: int
    base_offset: int
    next_offset: int
    first_row: int


@attrs.frozen(slots=True)
class PartGroup:
    """The rows of a part in one row group.

    Attributes:
        index: Number of the row group.
        first_row: First row, counted in the row group.
        first_offset: Its offset.
        next_offset: Offset after the last row.
        last_lsn: No record of them has a higher lsn.
        newest_us: No record of them has a later timestamp.
    """

    index: int
    first_row: int
    first_offset: int
    next_offset: int
    last_lsn: int
    newest_us: int


@attrs.frozen(slots=True)
class RowsOfShard:
    """Adjacent rows of a row group that are of one shard, with offsets without a gap.

    Attributes:
        shard: Its name.
        shard_id: Its id.
        first_row: First row, counted in the row group.
        first_offset: Its offset.
        next_offset: Offset after the last row.
    """

    shard: str
    shard_id: int
    first_row: int
    first_offset: int
    next_offset: int

    def part(self, group_row: int) -> PartOfFile:
        """The same rows as a part; the row group begins at this row of the file."""
        return PartOfFile(self.shard_id, self.first_offset, self.next_offset, group_row + self.first_row)

    def group(self, index: int) -> PartGroup:
        """The same rows in their row group, of which the number is given; bounds are not known."""
        return PartGroup(index, self.first_row, self.first_offset, self.next_offset, last_lsn=0, newest_us=0)


class SharedReader(GroupReader):
    """A shared file, open for reading. Threads may share it.

    Args:
        files: The file system.
        path: The file.

    Raises:
        CorruptionError: The file is damaged, truncated, or not a shared file.
        FormatVersionError: A newer program wrote it.
        OSError: It cannot be read.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        super().__init__(files, path)
        self._first_rows = [0, *accumulate(entry.row_count for entry in self.metadata.row_groups)]

    def groups_of(self, part: PartOfFile) -> list[PartGroup]:
        """Return where the rows of a part are.

        Raises:
            ValueError: The file does not have these rows.
        """
        end = part.first_row + part.next_offset - part.base_offset
        if not 0 <= part.first_row < end <= self.metadata.record_count:
            raise ValueError(
                f"{self.path} has {self.metadata.record_count} rows, expected rows {part.first_row} to {end} for "
                f"offsets {part.base_offset} to {part.next_offset} of shard {part.shard_id}"
            )
        found = []
        index = bisect_right(self._first_rows, part.first_row) - 1
        while index < len(self.metadata.row_groups) and self._first_rows[index] < end:
            entry, group_row = self.metadata.row_groups[index], self._first_rows[index]
            first = max(part.first_row, group_row)
            after = min(end, self._first_rows[index + 1])
            first_offset = part.base_offset + first - part.first_row
            found.append(
                PartGroup(
                    index=index,
                    first_row=first - group_row,
                    first_offset=first_offset,
                    next_offset=first_offset + after - first,
                    last_lsn=entry.last_lsn,
                    newest_us=entry.newest_us,
                )
            )
            index += 1
        return found

    def rows_for_batches(self, index: int) -> pa.RecordBatch:
        """Return a row group with the columns of which batches are made, for `batches`.

        Raises:
            CorruptionError: The row group is damaged.
            OSError: It cannot be read.
        """
        return self.table(index, _NEEDED)

    def shard_ids(self) -> list[int]:
        """Return the ids of all shards that have rows in the file.

        Raises:
            CorruptionError: A row group is damaged.
            OSError: The file cannot be read.
        """
        found: set[int] = set()
        for index in range(len(self.metadata.row_groups)):
            found.update(np.unique(column_numbers(self.table(index, ["shard_id"]).column("shard_id"))).tolist())
        return sorted(found)

    def rows_of_shards(self, index: int) -> list[RowsOfShard]:
        """Return which rows of a row group are of which shard, in their order.

        Raises:
            CorruptionError: The row group is damaged.
            OSError: It cannot be read.
        """
        rows = self.table(index, ["shard", "shard_id", "offset"])
        ids, offsets = column_numbers(rows.column("shard_id")), column_numbers(rows.column("offset"))
        begins = [0, *(np.flatnonzero((np.diff(ids) != 0) | (np.diff(offsets) != 1)) + 1).tolist()]
        names = rows.column("shard")
        return [
            RowsOfShard(names[begin].as_py(), int(ids[begin]), begin, int(offsets[begin]), int(offsets[end - 1]) + 1)
            for begin, end in pairwise([*begins, len(ids)])
        ]

    def batches(self, part: PartOfFile, group: PartGroup, rows: pa.RecordBatch | None = None) -> EncodedGroup:
        """Return the rows of a part in a row group as the record batches that were appended.

        Offsets, lsns, times and records are the same; producer fields are 0 and nothing is compressed.

        Args:
            part: The part.
            group: One of its `groups_of`.
            rows: The row group from `rows_for_batches`, for callers that read many parts of it.

        Raises:
            CorruptionError: The row group is damaged, or has other rows.
            OSError: It cannot be read.
        """
        whole = self.rows_for_batches(group.index) if rows is None else rows
        rows = whole.slice(group.first_row, group.next_offset - group.first_offset)
        offsets, shard_ids = column_numbers(rows.column("offset")), column_numbers(rows.column("shard_id"))
        if (shard_ids != part.shard_id).any() or (offsets != np.arange(group.first_offset, group.next_offset)).any():
            raise self.corruption(
                group.index,
                f"expected offsets {group.first_offset} to {group.next_offset} of shard {part.shard_id} from row "
                f"{group.first_row} of the group on, found offset {offsets[0]} of shard {shard_ids[0]} and others",
            )
        try:
            return encode_group(as_appended(rows))
        except struct.error as error:
            raise self.corruption(group.index, f"an offset, lsn or time is below 0: {error}") from error


def as_appended(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a shared file with the columns of records: topics are as records had them."""
    own = rows.column("own_topic")
    topics: Any = rows.column("topic")
    if own.true_count < len(own):
        topics = pc.if_else(own, topics, "")
    columns = {name: rows.column(name) for name in RECORD_SCHEMA.names} | {"topic": topics}
    return pa.RecordBatch.from_arrays([columns[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


class PartReader:
    """The rows of one part of a shared file, as readers of its shard get them.

    Args:
        reader: The file.
        part: The part.

    Attributes:
        row_groups: In the order of their offsets, without a gap.

    Raises:
        ValueError: The file does not have these rows.
    """

    def __init__(self, reader: SharedReader, part: PartOfFile) -> None:
        self._reader = reader
        self._part = part
        self.row_groups = reader.groups_of(part)

    def has_all_rows(self, index: int) -> bool:
        """Whether the row group of one of `row_groups` has no rows of other parts."""
        group = self.row_groups[index]
        return group.next_offset - group.first_offset == self._reader.metadata.row_groups[group.index].row_count

    def rows(self, index: int) -> pa.RecordBatch:
        """Return the row group of one of `row_groups`, with the rows of other parts too.

        Raises:
            CorruptionError: The row group is damaged.
            OSError: It cannot be read.
        """
        return self._reader.rows_for_batches(self.row_groups[index].index)

    def batches(self, index: int, rows: pa.RecordBatch | None = None) -> EncodedGroup:
        """Return one of `row_groups` as record batches, from its `rows` if they are given.

        Raises:
            CorruptionError: The row group is damaged, or has other rows.
            OSError: It cannot be read.
        """
        return self._reader.batches(self._part, self.row_groups[index], rows)
