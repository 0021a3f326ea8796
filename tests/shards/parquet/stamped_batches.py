"""The batches of one log, and the records in batches and in rows: for the tests of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from shards.format.batch import BatchHeader, decode, encode, iterate, stamp
from shards.format.record import Record, StoredRecord
from tests.shards.batches import NOW_US, codecs, record_lists

BASE_OFFSET = 1000

batch_lists = st.lists(st.builds(lambda records, codec: (records, codec), record_lists, codecs), min_size=1, max_size=6)
"""Batches as lists of records, each with a codec."""


def encode_all(batches: Sequence[tuple[list[Record], Any]]) -> list[bytes]:
    """Return the batches unstamped."""
    return [encode(records, now_us=NOW_US, codec=codec) for records, codec in batches]


def stamp_all(batches: Sequence[bytes], *, base_offset: int = BASE_OFFSET, first_lsn: int = 5) -> bytes:
    """Return the batches stamped with rising places, back to back."""
    log = bytearray()
    for number, batch in enumerate(batches):
        at = len(log)
        log += batch
        stamp(log, at, base_offset, first_lsn + 3 * number, NOW_US + 50 * (number // 2))
        base_offset = BatchHeader.unpack(log, at).next_offset
    return bytes(log)


def decode_all(batches: bytes) -> list[StoredRecord]:
    """Return the records of stamped batches back to back, read one by one."""
    return [record for at, _ in iterate(batches) for record in decode(batches, at)]


def records_of(rows: Any) -> list[StoredRecord]:
    """Return the rows of an Arrow table or record batch as the records that readers of the shard see."""
    import pyarrow as pa

    def times(name: str) -> list[int]:
        return [time_us or 0 for time_us in rows.column(name).cast(pa.int64()).to_pylist()]

    return [
        StoredRecord(
            offset=offset,
            lsn=lsn,
            append_time_us=append_time_us,
            value=value,
            key=key,
            topic=topic,
            timestamp_us=timestamp_us,
            headers=tuple((header["key"], header["value"]) for header in headers),
            tags=tuple(tags),
            expires_at_us=expires_at_us,
        )
        for offset, lsn, append_time_us, value, key, topic, timestamp_us, headers, tags, expires_at_us in zip(
            rows.column("offset").to_pylist(),
            rows.column("lsn").to_pylist(),
            times("append_time"),
            rows.column("value").to_pylist(),
            rows.column("key").to_pylist(),
            rows.column("topic").to_pylist(),
            times("timestamp"),
            rows.column("headers").to_pylist(),
            rows.column("tags").to_pylist(),
            times("expires_at"),
            strict=True,
        )
    ]
