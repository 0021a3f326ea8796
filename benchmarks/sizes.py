"""Sizes of appends, and their stored sizes, for the rows and for the measurements."""

from __future__ import annotations

VALUE_BYTES = 100
SMALL_BATCH_BYTES = 16 << 10
LARGE_BATCH_BYTES = 128 << 10
HEADER_BYTES = 88
WAITING_TASKS = 1024
MANY_SHARDS = 4000

# 88 bytes of header; one record has 8 bytes of offsets and 104 of padded value, each of several 4 + 100.
BATCH_RECORDS = (SMALL_BATCH_BYTES - HEADER_BYTES - 16) // (VALUE_BYTES + 4)
LARGE_BATCH_RECORDS = (LARGE_BATCH_BYTES - HEADER_BYTES - 16) // (VALUE_BYTES + 4)
SINGLE_STORED_MB = (HEADER_BYTES + 8 + 104 + 40) / 1e6
BATCHED_STORED_MB = (SMALL_BATCH_BYTES + 40) / BATCH_RECORDS / 1e6

RECORDS_OF_A_SHARD = 300
"""In the scan of many shards by Spark."""


def shards_scanned(records: int) -> int:
    """Number of shards in that scan, beside a history of so many records."""
    return max(1, min(10_000, records // RECORDS_OF_A_SHARD))
