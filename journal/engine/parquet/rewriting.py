"""The decision which shared files are rewritten: those with dead records, and small ones of the same day together.

Dead records are those of trimmed and deleted shards: the server does not return them, but other programs that read the
files find them. Pure. A record that lives long is rewritten once for each tier of sizes, about three times.
"""

from __future__ import annotations

from collections.abc import Iterable

from shards.views.shared_files import FileKey, SharedFileRecord

MERGED_AT_ONCE = 8
"""Files of one day and a similar size are merged when there are so many."""
LARGEST_MERGED_BYTES = 256 << 20
"""Files that are larger together are not merged."""
LONGEST_DEAD_S = 3000
"""A file is rewritten when it has had dead records for so long, however few.

Ten minutes earlier at most they were dropped: a checkpoint finds them. So other programs find them for an hour.
"""
_SMALLEST_TIER_BYTES = 1 << 20


def due(
    records: Iterable[SharedFileRecord],
    checkpoint_lsn: int,
    failed: frozenset[FileKey] | set[FileKey],
    now_us: int,
    unmerged: frozenset[FileKey] | set[FileKey] = frozenset(),
) -> list[SharedFileRecord]:
    """Return the files to rewrite next, together; none if there is nothing to do.

    Args:
        records: All shared files.
        checkpoint_lsn: What refers to files with later entries is not recorded yet: they wait.
        failed: Files that could not be read; they stay as they are.
        now_us: The time in microseconds since 1970.
        unmerged: Files that are not merged with others.
    """
    tiers: dict[tuple[int, int], list[SharedFileRecord]] = {}
    for record in sorted(records, key=lambda each: each.lsn):
        if record.lsn > checkpoint_lsn or record.key in failed or not record.live_records:
            continue
        if record.live_records * 2 < record.record_count or _is_dead_for_long(record, now_us):
            return [record]
        if record.key not in unmerged:
            tiers.setdefault((record.day, _tier(record.live_bytes)), []).append(record)
    for same in tiers.values():
        chosen: list[SharedFileRecord] = []
        for record in same:
            if sum(each.live_bytes for each in chosen) + record.live_bytes <= LARGEST_MERGED_BYTES:
                chosen.append(record)
        if len(chosen) >= MERGED_AT_ONCE:
            return chosen
    return []


def due_in_s(records: Iterable[SharedFileRecord], now_us: int) -> float:
    """Return after how many seconds the next file is due because it has had dead records for long.

    Infinite if there is none; files that are due already are left out.

    Args:
        records: All shared files.
        now_us: The time in microseconds since 1970.
    """
    ends = (each.dead_since_us + LONGEST_DEAD_S * 1_000_000 for each in records if each.dead_since_us > 0)
    return min((end - now_us for end in ends if end > now_us), default=float("inf")) / 1_000_000


def _is_dead_for_long(record: SharedFileRecord, now_us: int) -> bool:
    return record.dead_since_us > 0 and now_us - record.dead_since_us >= LONGEST_DEAD_S * 1_000_000


def _tier(size_bytes: int) -> int:
    """Sizes up to 1 MiB, 8 MiB, 64 MiB and so on are similar."""
    return max(0, (size_bytes - 1) // _SMALLEST_TIER_BYTES).bit_length() // 3
