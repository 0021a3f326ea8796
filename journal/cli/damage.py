"""Damaged records on the command line: which shard, which offsets, which file, and what can be done."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from command_line.boundary import CommandError, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from journal.client import Client
    from shards.format.checksum import Buffer
    from shards.format.record import Gap, StoredRecord

WAY_OUT: Final = (
    "`journal check DIR` on the server's data directory or its newest backup lists all damage; `journal restore` "
    "creates a data directory from a backup"
)


async def read_received(
    client: Client, shard: str, batches: Buffer, start_offset: int
) -> tuple[Sequence[StoredRecord | Gap], CommandError | None]:
    """Decode received batches, up to the first damaged one.

    Returns:
        The records, and the error to show for the damage after them; None if there is none.
    """
    import time

    records, damage = _decoded(batches, start_offset, time.time_ns() // 1000)
    if damage is None:
        return records, None
    first, end = damage.first_offset, damage.next_offset
    offsets = f"at offset {first}" if end is None else f"at offsets {first} up to, not including, {end}"
    go_on = "" if end is None else f"; `journal read {shard} --from {end}` continues after it"
    place = await _place(client, shard, first)
    return records, CommandError(f"shard {shard!r} is damaged {offsets}{place}: {damage.problem}; {WAY_OUT}{go_on}")


class _Damage(NamedTuple):
    """The first damaged batch: its first offset, the offset after it if that is known, and what is wrong with it."""

    first_offset: int
    next_offset: int | None
    problem: str


def _decoded(batches: Buffer, start_offset: int, now_us: int) -> tuple[list[StoredRecord | Gap], _Damage | None]:
    """The records before the first damaged batch, and the damage."""
    from shards.errors import BatchError
    from shards.format.batch import batch_records, iterate
    from shards.format.batch_header import verify_stamp

    found: list[StoredRecord | Gap] = []
    end_at, first, end = 0, start_offset, None
    try:
        # `end_at` is where the batches before end, so the position of a batch that is damaged.
        for at, header in iterate(batches):
            try:
                found += batch_records(header, batches, at, start_offset, now_us=now_us)
            except BatchError:
                with suppress(BatchError):
                    # Its offsets are valid if their own checksum is.
                    verify_stamp(batches, at)
                    first, end = max(header.base_offset, start_offset), header.next_offset
                raise
            end_at, first = at + header.size_bytes, max(header.next_offset, start_offset)
    except BatchError as error:
        # The byte position refers to the received bytes, not to the file.
        return found, _Damage(first, end, one_line(error).removeprefix(f"record batch at byte {end_at}: "))
    return found, None


async def _place(client: Client, shard: str, offset: int) -> str:
    """Where the server stores an offset, as far as it reports it."""
    from shards.errors import StorageError
    from shards.model import SegmentKind
    from shards.segments.segment_paths import log_path

    try:
        info = await client.describe_shard(shard)
    except StorageError:
        return ""
    for segment in info.segments:
        if segment.base_offset <= offset < segment.next_offset:
            if segment.kind is SegmentKind.LOG:
                path = log_path("log", info.shard_id, segment.base_offset)
            elif segment.file:
                path = f"sealed/{segment.file}"
            else:
                return ", in the server's memory"
            return f", in {path} of the server's data directory"
    return ""
