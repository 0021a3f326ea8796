"""The paths of segment files. The names are part of the layout of a data directory (docs/formats.md)."""

from __future__ import annotations

from datetime import date, timedelta

FAN_OUT = 256
_EPOCH = date(1970, 1, 1)
LAST_DAY = (date.max - _EPOCH).days
"""The last day, counted from 1970, that has a date of four digits for the year."""


def log_path(log_directory: str, shard_id: int, base_offset: int) -> str:
    """Path of a log segment; 256 directories, so that none gets too large and few have to be synced."""
    return f"{log_directory}/{shard_id % FAN_OUT:02x}/{shard_id:016x}-{base_offset:020}.log"


def date_of_day(day: int) -> str:
    """A day, counted from 1970, as a date: ``2026-11-22``."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def day_of_date(date_text: str) -> int:
    """The reverse of `date_of_day`.

    Raises:
        ValueError: It is not such a date.
    """
    try:
        found = date.fromisoformat(date_text)
    except ValueError:
        found = None
    if found is None or found.isoformat() != date_text:
        raise ValueError(f"expected a date such as 2026-11-22, found {date_text!r}")
    return (found - _EPOCH).days


def shared_path(sealed: str, day: int, file_id: int) -> str:
    """Path of a shared file, which has records of many shards that were appended on one UTC day."""
    return f"{sealed}/date={date_of_day(day)}/{file_id:016x}.parquet"
