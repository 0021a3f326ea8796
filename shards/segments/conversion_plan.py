"""The request to convert a segment and its result, exchanged between the engine and the writer of Parquet files.

Separate from the writer, which needs pyarrow: the engine creates plans without it, and a plan is sent to another
process as JSON.
"""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True)
class ConversionPlan:
    """A closed log segment that is to be converted to a Parquet file.

    Attributes:
        log_path: The log file.
        out_path: The Parquet file to write; not read before it is renamed to its place.
        name: The shard's name.
        shard_id: Id of the shard.
        base_offset: Offset of the first record.
        next_offset: Offset after the last record.
        start_position: Byte position of the first batch in the log file.
        end_position: Byte position after the last batch.
        created_us: When the log segment was opened.
    """

    log_path: str
    out_path: str
    name: str
    shard_id: int
    base_offset: int
    next_offset: int
    start_position: int
    end_position: int
    created_us: int


@attrs.frozen(slots=True)
class SealedFile:
    """A Parquet file that was written and synced.

    Attributes:
        size_bytes: Size of the file.
        digest: SHA-256 of the whole file.
        record_count: Number of records in it.
        value_bytes: Bytes of their values.
        row_groups: Number of its row groups.
    """

    size_bytes: int
    digest: bytes
    record_count: int
    value_bytes: int
    row_groups: int
