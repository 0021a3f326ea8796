"""Deletion of producers that were not used for a long time: otherwise every name that was ever opened would stay.

The journal records when a producer was last used, to the day. Its deletion is a decision in the journal, so that a
recovery has the same result. The states that shards have of deleted producers have no use and are removed when found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from journal.engine.state.producer_use import ProducerUse
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.group_commit import Committer
from journal.engine.write.commands import Commands
from shards.seams.store import Family, Mutations
from shards.views import producer_records
from shards.views.producers import RegisteredProducer, count_of

UNUSED_PRODUCERS_KEPT_US: Final = 7 * 86_400 * 1_000_000
"""A producer is deleted after this time if it was not opened and no connection sent batches for it."""

_NOTED_AFTER_US: Final = 86_400 * 1_000_000
_INTERVAL_S: Final = 3600.0
_DECIDED_AT_ONCE: Final = 1000


class ProducerExpiry:
    """Checks the producers of one engine from time to time.

    Args:
        fail: Called with an error that stops the engine.
    """

    def __init__(
        self,
        *,
        views: Views,
        table: ShardTable,
        commands: Commands,
        committer: Committer,
        use: ProducerUse,
        now_us: Callable[[], int],
        fail: Callable[[Exception], None],
    ) -> None:
        self._views = views
        self._table = table
        self._commands = commands
        self._committer = committer
        self._use = use
        self._now_us = now_us
        self._fail = fail

    async def run(self) -> None:
        """Check them once an hour, and once at the start, which also counts them, until cancelled."""
        try:
            while self._committer.failure is None:
                await self.apply()
                await trio.sleep(_INTERVAL_S)
        except Exception as error:  # noqa: BLE001 as in `Checkpointer.run`
            self._fail(error)

    async def apply(self) -> None:
        """Record which producers are in use; delete those unused for long, and the states of deleted ones."""
        counts: dict[str, int] = {}
        step = TimeSlice()
        for found in self._views.producers.registered():
            if found is not None:
                counts[count_of(found.name)] = counts.get(count_of(found.name), 0) + 1
                self._look_at(found)
            if len(self._committer.group.decisions) >= _DECIDED_AT_ONCE:
                await self._committer.wait(self._committer.group)
            elif step.is_over:
                self._committer.kick()
                await step.rest()
        self._views.producers.counts = counts
        await self._committer.wait_for_all()
        self._use.forget_left()
        await self._remove_states()

    def _look_at(self, listed: RegisteredProducer) -> None:
        if self._now_us() - listed.used_us <= _NOTED_AFTER_US:
            return
        # It may have been read before a pause, and opened again since.
        found = self._views.producers.find(listed.name)
        if found is None:
            return
        producer_id = found.identity.producer_id
        age_us = self._now_us() - found.used_us
        if self._use.is_used(producer_id) or found.used_us == 0:
            # Older versions did not record it.
            if age_us > _NOTED_AFTER_US and self._commands.refuse is None:
                self._commands.note_producer_nowait(found.name, found.identity)
        elif age_us > UNUSED_PRODUCERS_KEPT_US and not self._use.may_return(producer_id):
            self._commands.delete_producer_nowait(found.name, producer_id, lambda: self._use.forget(producer_id))

    async def _remove_states(self) -> None:
        store, producers = self._views.store, self._views.producers
        mutations = Mutations()
        step = TimeSlice()
        for item in store.scan_in_steps(Family.PRODUCERS, producer_records.STATE_PREFIX):
            if item is not None:
                shard_id, producer_id = producer_records.decode_state_key(item[0])
                if not producers.is_registered(producer_id):
                    producer_records.delete_state(mutations, shard_id, producer_id)
                    shard = self._table.opened(shard_id)
                    if shard is not None and shard.producers is not None:
                        shard.producers.pop(producer_id, None)
            if step.is_over:
                if len(mutations):
                    store.write(mutations)
                    mutations.clear()
                await step.rest()
        if len(mutations):
            store.write(mutations)
