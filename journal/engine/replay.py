"""What a start does with what recovery reads: it folds the journal into the views once more, and reports on it.

How damage is told from a torn tail, and what it means, is in `journal.engine.wal.recovery`; what folding an entry does,
in `journal.engine.state.views`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.recovery import RecoveredGroup

_FOLDED_AT_ONCE = 2000


@attrs.frozen(slots=True)
class RecoveryReport:
    """What a start found in the journal.

    Attributes:
        entries: Entries read.
        truncated_bytes: Bytes of an unfinished last write that were cut off; nothing of it had been acknowledged.
        damages: Damaged entries; their shards are stopped.
    """

    entries: int
    truncated_bytes: int
    damages: tuple[str, ...]


async def replay(
    groups: Iterable[RecoveredGroup],
    table: ShardTable,
    views: Views,
    checkpoint: int,
    prove: Callable[[RecoveredGroup], Awaitable[None]],
) -> int:
    """Fold what lies after the checkpoint, and stop the shards that are damaged there.

    Args:
        groups: What recovery reads.
        table: The shards.
        views: What is folded into.
        checkpoint: The views hold everything up to this lsn.
        prove: Makes a group durable of which this is not known. It is called before the group is folded, since the
            store of the views may write what it was given to the disk at any time.

    Returns:
        How many entries were read, those up to the checkpoint too.
    """
    entries = 0
    step = TimeSlice()
    for group in groups:
        if step.is_over:
            await step.rest()
        if group.unproven is not None:
            await prove(group)
        for damage in group.damages:
            shard = table.by_id(damage.shard_id)
            if shard is not None and damage.lsn > checkpoint:
                views.stop(shard, str(damage))
        wanted = [entry for entry in group.entries if entry.lsn > checkpoint]
        for start in range(0, len(wanted), _FOLDED_AT_ONCE):
            views.replay(wanted[start : start + _FOLDED_AT_ONCE])
            await trio.lowlevel.checkpoint()
        entries += len(group.entries)
    return entries
