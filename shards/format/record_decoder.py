"""From the body of a record batch to its records: the decoder in Python, and which form is used.

Readers spend more time here than anywhere else in the format. So there is the same in C
(`shards/compiled/record_decoder.c`), which is used where it was built. It leaves every body that is not in order to
the form in Python, which says what is wrong. A change of one is a change of both: a property compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from shards import compiled
from shards.errors import BatchError
from shards.format.batch_header import BatchHeader
from shards.format.columns import Column, read_columns
from shards.format.record import StoredRecord


def decode_records(header: BatchHeader, raw: bytes, at: int) -> list[StoredRecord]:
    """Return the records of a batch.

    Args:
        header: Its header, verified; not that of a gap.
        raw: Its body before compression.
        at: Position of the batch, for errors.

    Raises:
        BatchError: As `checked_columns`.
    """
    if compiled.decode_records is not None:
        records = compiled.decode_records(
            raw,
            header.record_count,
            header.columns,
            header.base_offset,
            header.lsn,
            header.append_time_us,
            header.min_timestamp_us,
            header.max_timestamp_us,
            StoredRecord,
        )
        if records is not None:
            return records
    return decode_in_python(header, raw, at)


def decode_in_python(header: BatchHeader, raw: bytes, at: int) -> list[StoredRecord]:
    """The form in Python of `decode_records`."""
    columns = checked_columns(header, raw, at)
    return list(
        map(
            StoredRecord,
            range(header.base_offset, header.base_offset + header.record_count),
            repeat(header.lsn),
            repeat(header.append_time_us),
            columns.get(Column.VALUE, repeat(b"")),
            columns.get(Column.KEY, repeat(b"")),
            columns.get(Column.TOPIC, repeat("")),
            columns.get(Column.TIMESTAMP, repeat(header.min_timestamp_us)),
            columns.get(Column.HEADERS, repeat(())),
            columns.get(Column.TAGS, repeat(())),
            columns.get(Column.EXPIRES_AT, repeat(0)),
        )
    )


def checked_columns(header: BatchHeader, raw: bytes, at: int, wanted: int = 0xFFFF) -> dict[int, Sequence[Any]]:
    """Return the wanted ones of a batch's columns; for the arguments see `decode_records`.

    Raises:
        BatchError: As `read_columns`, or the timestamps are not between those of the header.
    """
    columns = read_columns(raw, header.record_count, header.columns, wanted)
    if wanted & Column.TIMESTAMP:
        # Time indexes rely on the header's bounds, so a batch with wrong ones is refused as a whole.
        times_us = columns.get(Column.TIMESTAMP)
        found = (min(times_us), max(times_us)) if times_us else (header.min_timestamp_us, header.min_timestamp_us)
        if found != (header.min_timestamp_us, header.max_timestamp_us):
            raise BatchError(
                f"record batch at byte {at}: timestamps are from {found[0]} to {found[1]}, the header says "
                f"{header.min_timestamp_us} to {header.max_timestamp_us}"
            )
    return columns
