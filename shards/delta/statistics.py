"""What the Delta log says about a shared file, so that readers can leave it out: from the file's footer alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from shards.delta.actions import STATISTICS_OF, AddedFile, table_path
from shards.parquet.shared_reading import SharedReader
from shards.seams.file_system import FileSystem

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_TEXT: Final = "\U0010ffff"


def _time(value_us: int) -> str:
    """The time as text; a time after the year 9999, which the text cannot have, is the last time in it."""
    time = _EPOCH + timedelta(microseconds=max(0, min(value_us, _LAST_US)))
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


_FORMS: Final[dict[str, Callable[[Any], str | int]]] = {
    "shard": bytes.decode,
    "topic": bytes.decode,
    "shard_id": int,
    "offset": int,
    "lsn": int,
    "timestamp": _time,
    "append_time": _time,
}


def describe(files: FileSystem, root: str, day: int, file_id: int) -> AddedFile:
    """Return the description of a shared file.

    Args:
        files: The file system.
        root: The directory of all Parquet segments.
        day: Days since 1970 of its appends.
        file_id: Its number.

    Raises:
        CorruptionError: The end of the file is damaged, or it is another file.
        OSError: It cannot be read.
    """
    path = table_path(day, file_id)
    with SharedReader(files, f"{root}/{path}") as reader:
        return AddedFile(
            path=path,
            size_bytes=reader.end.size_bytes,
            modified_ms=reader.modified_ns() // 1_000_000,
            rewritten_from=reader.metadata.rewritten_from,
            statistics=_statistics(reader.footer),
        )


def _statistics(footer: Any) -> str:
    """Smallest and largest values as JSON. Readers may leave out a file in which another one's bound is missing.

    So a bound that the footer lacks is one that every value keeps.
    """
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    places = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for name in STATISTICS_OF:
        form = _FORMS[name]
        found = [footer.row_group(group).column(places[name]).statistics for group in range(footer.num_row_groups)]
        if all(each is not None and each.has_min_max for each in found):
            least, most = min(each.min_raw for each in found), max(each.max_raw for each in found)
            smallest[name], largest[name] = form(least), form(most)
        else:
            # Topics of some thousand bytes have no statistics.
            smallest[name], largest[name] = "", _LAST_TEXT
    return msgspec.json.encode(
        {
            "numRecords": footer.num_rows,
            "minValues": smallest,
            "maxValues": largest,
            "nullCount": dict.fromkeys(STATISTICS_OF, 0),
        }
    ).decode()
