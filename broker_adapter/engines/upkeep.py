"""What a key-value store drops: records by retention or trim, expired state, and what deleted shards leave behind.

All of it goes in steps, so that other calls run in between and being cut short at any of them does no harm. What is
dropped of one shard is decided in `broker_adapter.engines.stored_shard`.
"""

from __future__ import annotations

import logging

import trio

from broker_adapter.engines.committed_views import CommittedState
from broker_adapter.engines.group_commit import GroupCommit
from broker_adapter.engines.local_subscriptions import Watchers
from broker_adapter.engines.producer_table import ProducerTable
from broker_adapter.engines.shard_table import ShardTable
from broker_adapter.engines.stored_shard import StoredShard
from shards.errors import BatchError, CorruptionError, StorageFailedError
from shards.seams.clock import Clock
from shards.seams.store import Mutations

_log = logging.getLogger(__name__)

_DROP_STEP_BATCHES = 200


class Upkeep:
    """Keeps one store within what its shards are to hold; `run` is its task.

    Args:
        table: The shards.
        commit: Writes.
        state: Knows what has expired.
        producers: Forget what they sent to a deleted shard.
        watchers: Are told that a shard begins later.
        clock: Tells the age of records.
    """

    def __init__(
        self,
        table: ShardTable,
        commit: GroupCommit,
        state: CommittedState,
        producers: ProducerTable,
        watchers: Watchers,
        clock: Clock,
    ) -> None:
        self._table = table
        self._commit = commit
        self._state = state
        self._producers = producers
        self._watchers = watchers
        self._clock = clock

    async def run(self, interval_s: float) -> None:
        """Retention by age, expired state and leftovers of deleted shards; runs until cancelled."""
        try:
            while True:
                for shard_id in self._table.garbage():
                    await self.sweep(shard_id)
                for shard in list(self._table):
                    # A bound on size is seen to by whoever waits for an append; nobody need wait for a pipelined one.
                    if (shard.config.retention.max_age_s or shard.passes_bound()) and not shard.deleted:
                        await self.retain(shard)
                await self._state.drop_expired()
                await trio.sleep(interval_s)
        except StorageFailedError:
            # Every caller that wants to write meets the same error; those that read go on.
            _log.exception("upkeep stopped: the store failed")

    async def retain(self, shard: StoredShard) -> None:
        """Apply retention; a damaged shard keeps its records and troubles no other one."""
        try:
            await self.drop_below(shard, shard.retained_from(self._clock.now_us()))
        except (CorruptionError, BatchError):
            _log.exception("retention of shard %r stopped", shard.name)

    async def drop_below(self, shard: StoredShard, before_offset: int) -> None:
        """Drop records in steps; the start moves first, so being cut short leaves nothing that a reader could see."""
        while True:
            mutations = Mutations()
            more = shard.drop_below(mutations, before_offset, limit=_DROP_STEP_BATCHES)
            self._commit.write(mutations)
            self._watchers.shard_advanced(shard)
            if not more or shard.deleted:
                return
            await trio.lowlevel.checkpoint()

    async def sweep(self, shard_id: int) -> None:
        """Remove what is left of a deleted shard, in steps."""
        more = True
        while more:
            mutations = Mutations()
            self._producers.sweep(mutations, shard_id)
            more = self._table.sweep(mutations, shard_id)
            self._commit.write(mutations)
            await trio.lowlevel.checkpoint()
