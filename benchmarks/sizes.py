"""How much is appended at once, and what it takes in the store: the same for rows and for what measures them."""

from __future__ import annotations

VALUE_BYTES = 100
SMALL_BATCH_BYTES = 16 << 10
LARGE_BATCH_BYTES = 128 << 10
HEADER_BYTES = 88
WAITING_TASKS = 1024

# 88 bytes of header; 8 bytes of offsets and 104 of padded value for one record, 4 + 100 a record for many.
BATCH_RECORDS = (SMALL_BATCH_BYTES - HEADER_BYTES - 16) // (VALUE_BYTES + 4)
LARGE_BATCH_RECORDS = (LARGE_BATCH_BYTES - HEADER_BYTES - 16) // (VALUE_BYTES + 4)
SINGLE_STORED_MB = (HEADER_BYTES + 8 + 104 + 40) / 1e6
BATCHED_STORED_MB = (SMALL_BATCH_BYTES + 40) / BATCH_RECORDS / 1e6
