"""Strategies and small makers of record batches, for the tests of everything that stores or moves them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from shards.format.batch import Codec, encode, stamp
from shards.format.record import Record, StoredRecord

NOW_US = 1_700_000_000_000_000

texts = st.text(max_size=12)
payloads = st.binary(max_size=40)
times_us = st.integers(min_value=0, max_value=2**63 - 1)
records = st.builds(
    Record,
    value=payloads,
    key=st.just(b"") | payloads,
    topic=st.just("") | texts,
    timestamp_us=st.just(0) | times_us,
    headers=st.just(()) | st.lists(st.tuples(texts, payloads), max_size=3).map(tuple),
    tags=st.just(()) | st.lists(texts, max_size=3).map(tuple),
    expires_at_us=st.just(0) | times_us,
)
record_lists = st.lists(records, min_size=1, max_size=12)
codecs = st.sampled_from(Codec)


def stamped(batch: bytes, base_offset: int = 0, lsn: int = 1, append_time_us: int = NOW_US) -> bytes:
    """Return a stamped copy of the batch."""
    buffer = bytearray(batch)
    stamp(buffer, 0, base_offset, lsn, append_time_us)
    return bytes(buffer)


def encode_stamped(batch_records: Sequence[Record], base_offset: int = 0, *, codec: Codec = Codec.NONE) -> bytes:
    """Return a stamped batch of the records."""
    return stamped(encode(batch_records, now_us=NOW_US, codec=codec), base_offset)


def stored(
    batch_records: Sequence[Record], base_offset: int = 0, lsn: int = 1, append_time_us: int = NOW_US
) -> list[StoredRecord]:
    """Return what readers must see of the records of `encode_stamped`."""
    return [
        StoredRecord(
            offset=base_offset + index,
            lsn=lsn,
            append_time_us=append_time_us,
            value=record.value,
            key=record.key,
            topic=record.topic,
            timestamp_us=record.timestamp_us or NOW_US,
            headers=record.headers,
            tags=record.tags,
            expires_at_us=record.expires_at_us,
        )
        for index, record in enumerate(batch_records)
    ]
