"""The request to convert segments and its result, exchanged between the engine and the writer of Parquet files.

Separate from the writer, which needs pyarrow: the engine creates plans without it, and a plan is sent to another
process as JSON.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs


class SourceKind(enum.StrEnum):
    """Where the records of a source are."""

    LOG = "log"
    SHARED = "shared"


@attrs.frozen(slots=True)
class PartSource:
    """A closed segment whose records go into shared files.

    Attributes:
        log_path: Its file, of any kind.
        name: The shard's name.
        shard_id: Id of the shard.
        base_offset: Offset of the first record.
        next_offset: Offset after the last record.
        start_position: Byte position of the first batch in a log file.
        end_position: Byte position after the last batch there.
        kind: What the file is.
        first_row: Row of the first record in a shared file.
        file_position: Where the log begins in its file; positions are relative to that.
    """

    log_path: str
    name: str
    shard_id: int
    base_offset: int
    next_offset: int
    start_position: int = 0
    end_position: int = 0
    kind: SourceKind = SourceKind.LOG
    first_row: int = 0
    file_position: int = 0


@attrs.frozen(slots=True)
class SharedPlan:
    """Closed segments that are to be gathered into shared files, one for each UTC day of their appends.

    Attributes:
        out_prefix: The file of a day is written to this path, followed by ``-<date>.parquet``.
        file_id: Random number that the files have in common; a file is named by it and its day.
        sources: In the order of shard name (as UTF-8 bytes), shard id and offset.
    """

    out_prefix: str
    file_id: int
    sources: Sequence[PartSource]


@attrs.frozen(slots=True)
class SharedFile:
    """A shared file that was written and synced.

    Attributes:
        day: Days since 1970 of the append times in it.
        path: Where it was written.
        size_bytes: Size of the file.
        digest: SHA-256 of the whole file.
        record_count: Number of records in it.
        value_bytes: Bytes of their values.
        row_groups: Number of its row groups.
    """

    day: int
    path: str
    size_bytes: int
    digest: bytes
    record_count: int
    value_bytes: int
    row_groups: int


@attrs.frozen(slots=True)
class SharedPart:
    """The rows of one source in one shared file: adjacent rows, offsets without a gap.

    Attributes:
        source: Index of the source in the plan.
        file: Index of the file in the result.
        base_offset: Offset of its first record.
        next_offset: Offset after its last record.
        first_row: Row of its first record in the file.
        size_bytes: Its share of the bytes of the file's pages.
        newest_append_us: Server time of its newest batch.
        last_lsn: lsn of its newest batch.
        newest_us: Newest record timestamp in it.
    """

    source: int
    file: int
    base_offset: int
    next_offset: int
    first_row: int
    size_bytes: int
    newest_append_us: int
    last_lsn: int
    newest_us: int


@attrs.frozen(slots=True)
class GatheredFiles:
    """The result of a `SharedPlan`.

    Attributes:
        files: One for each day, in order.
        parts: In the order of the sources, and of the days for a source with several.
    """

    files: tuple[SharedFile, ...]
    parts: list[SharedPart]
