"""Batches whose outcome at the sink is known, and how they are confirmed in the queue, also by a later run.

When the store is lost, the driver begins again as soon as it answers. Batches that the sink had accepted by then, and
that were not confirmed in the queue, are confirmed first. Otherwise they would be written again, and records that the
store had in memory only, and lost, would be counted as lost although the sink has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from broker_adapter.bridge.batcher import Letter, Prepared
from broker_adapter.cache_queue import QueueDrain
from broker_adapter.cache_queue.progress import added
from broker_adapter.cache_queue.stored import Counts

_NOTHING: Final = Counts()


@attrs.frozen(slots=True)
class Settled:
    """What is needed to confirm a batch. It has no records and rows, since many batches may wait for a slow store.

    Attributes:
        first_offset: First offset of its range.
        next_offset: Offset after it.
        size_bytes: Approximate size of its records.
        outcome: Counts of its offsets.
        letters: Its dead letters, in order.
    """

    first_offset: int
    next_offset: int
    size_bytes: int
    outcome: Counts
    letters: Sequence[Letter]

    @classmethod
    def of(cls, prepared: Prepared, refused: Sequence[Letter]) -> Settled:
        """Of a batch, and the records of it that the sink refuses."""
        letters = sorted((*prepared.letters, *refused), key=lambda letter: letter.record.offset)
        taken = Counts(confirmed=len(prepared.records) - len(refused), dead_lettered=len(letters))
        batch = prepared.batch
        return cls(
            batch.first_offset, batch.next_offset, batch.size_bytes, added(prepared.skipped, taken), tuple(letters)
        )


@attrs.frozen(slots=True)
class Unconfirmed:
    """Consecutive batches that the sink has, and of which it is unknown whether the queue confirmed them.

    Attributes:
        queue_id: The name under which the sink knows the queue: their offsets belong to that queue.
        batches: In order.
    """

    queue_id: str
    batches: Sequence[Settled]


async def confirm_settled(drain: QueueDrain, batches: Sequence[Settled]) -> None:
    """Confirm consecutive batches with one commit of the cursor. Returns when that is durable.

    Args:
        drain: Its offset is the first one of the first batch.
        batches: At least one.

    Raises:
        QueueLostError: Another process advanced the cursor.
        StorageError: The store does not answer.
    """
    outcome, size_bytes = _NOTHING, 0
    for each in batches:
        await drain.set_aside([(letter.record, letter.reason) for letter in each.letters])
        outcome = added(outcome, each.outcome)
        size_bytes += each.size_bytes
    await drain.confirm(batches[-1].next_offset, outcome, size_bytes)


async def confirm_of_before(drain: QueueDrain, before: Unconfirmed, queue_id: str) -> None:
    """Confirm what an earlier run of the same process left behind, as far as it continues at the drain's offset.

    A confirmation that was stored without an answer is recognized by the offset. If the queue is another one, or its
    cursor is anywhere else because of another driver or a purge, nothing is confirmed.

    Args:
        drain: A drain that has begun, with nothing read.
        queue_id: That of the present queue, for sinks.

    Raises:
        QueueLostError: Another process advanced the cursor meanwhile.
        StorageError: The store does not answer.
    """
    batches = [each for each in before.batches if each.next_offset > drain.offset]
    if before.queue_id == queue_id and batches and batches[0].first_offset == drain.offset:
        await confirm_settled(drain, batches)
