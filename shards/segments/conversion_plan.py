"""What is to be sealed, and what came of it: the words between the engine and whoever writes the Parquet file.

Apart from the writer, which needs pyarrow: the engine makes plans without it, and a plan travels to another process as
JSON.
"""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True)
class ConversionPlan:
    """A closed log segment that is to become a Parquet file.

    Attributes:
        log_path: The log file.
        out_path: The Parquet file to write; nobody reads it before it is renamed to its place.
        name: The shard's name.
        shard_id: Its number.
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
        record_count: Records in it.
        value_bytes: Bytes of their values.
        row_groups: Row groups in it.
    """

    size_bytes: int
    digest: bytes
    record_count: int
    value_bytes: int
    row_groups: int
