"""Damaged records on the command line: which shard, which offsets, which file, and what can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from command_line.boundary import CommandError, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from journal.client import Client
    from shards.format.record import Gap, StoredRecord

WAY_OUT: Final = (
    "`journal check DIR` on the server's data directory or its newest backup lists all damage; `journal restore` "
    "creates a data directory from a backup"
)


async def read_received(
    client: Client, shard: str, batches: memoryview, start_offset: int
) -> tuple[Sequence[StoredRecord | Gap], CommandError | None]:
    """Decode received batches, up to the first damaged one.

    Returns:
        The records, and the error to show for the damage after them; None if there is none.
    """
    import time

    from shards.errors import BatchError
    from shards.format.batch import read_records

    now_us = time.time_ns() // 1000
    try:
        return read_records(batches, start_offset=start_offset, now_us=now_us), None
    except BatchError as error:
        at, first, end = _damaged_range(batches, start_offset)
        whole = read_records(batches[:at], start_offset=start_offset, now_us=now_us)
        offsets = f"at offset {first}" if end is None else f"at offsets {first} up to, not including, {end}"
        go_on = "" if end is None else f"; `journal read {shard} --from {end}` continues after it"
        place = await _place(client, shard, first)
        # The byte position refers to the received bytes, not to the file.
        problem = one_line(error).removeprefix(f"record batch at byte {at}: ")
        return whole, CommandError(f"shard {shard!r} is damaged {offsets}{place}: {problem}; {WAY_OUT}{go_on}")


def _damaged_range(batches: memoryview, start_offset: int) -> tuple[int, int, int | None]:
    """Byte position of the first damaged batch, its first offset, and the offset after it if that is known."""
    from shards.errors import BatchError
    from shards.format.batch import iterate
    from shards.format.batch_header import verify, verify_stamp

    end_at, first = 0, start_offset
    try:
        for at, header in iterate(batches):
            if header.next_offset > start_offset:
                try:
                    verify(batches, at)
                except BatchError:
                    # Its offsets are valid if their own checksum is.
                    verify_stamp(batches, at)
                    return at, max(header.base_offset, start_offset), header.next_offset
            end_at, first = at + header.size_bytes, max(header.next_offset, start_offset)
    except BatchError:
        pass
    return end_at, first, None


async def _place(client: Client, shard: str, offset: int) -> str:
    """Where the server stores an offset, as far as it reports it."""
    from shards.errors import StorageError
    from shards.model import SegmentKind
    from shards.segments.segment_paths import log_path, sealed_path

    try:
        info = await client.describe_shard(shard)
    except StorageError:
        return ""
    for segment in info.segments:
        if segment.base_offset <= offset < segment.next_offset:
            if segment.kind is SegmentKind.LOG:
                path = log_path("log", info.shard_id, segment.base_offset)
            elif segment.kind is SegmentKind.PARQUET:
                path = sealed_path("sealed", shard, info.shard_id, segment.base_offset, segment.next_offset)
            else:
                return ", in the server's memory"
            return f", in {path} of the server's data directory"
    return ""
