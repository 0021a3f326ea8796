"""Saving the records of shards, and the states of their producers, into the views."""

from __future__ import annotations

from collections.abc import Iterable

from journal.engine.state.producer_use import ProducerUse
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.time_slice import TimeSlice
from shards.seams.store import Mutations
from shards.segments.shard import Shard
from shards.views import shard_records
from shards.views.producer_records import save_changed

_PRODUCERS_AT_ONCE = 2000


class RecordSaver:
    """Saves shards for checkpoints.

    Args:
        table: Told which shards are saved, and with which segments.
        views: Where they are saved.
        producer_use: Which producers may come back: their states are kept.
    """

    def __init__(self, table: ShardTable, views: Views, producer_use: ProducerUse) -> None:
        self._table = table
        self._views = views
        self._producer_use = producer_use

    async def save(self, shards: Iterable[Shard]) -> list[Shard]:
        """Save some shards as they are now, each of them in one write of the store, the states of its producers first.

        Returns:
            Those of them with records that are not in files yet: they must be saved again.
        """
        heads: list[tuple[Shard, int, Mutations, shard_records.Saved]] = []
        for shard in shards:
            if not shard.gone:
                self._table.saved(shard)
                head = Mutations()
                saved = shard_records.save(head, shard, recorded=self._table.recorded(shard.shard_id))
                heads.append((shard, shard_records.safe_offset(shard), head, saved))
        unsafe: list[Shard] = []
        mutations = Mutations()
        references: shard_records.References = {}
        looked_at = 0
        step = TimeSlice()

        async def write() -> None:
            self._views.files.refer(mutations, references)
            self._views.store.write(mutations)
            references.clear()
            mutations.clear()
            await step.rest()

        for shard, safe_offset, head, saved in heads:
            # Other tasks run in between: a shard that they change is saved in its former state, and saved again later.
            for _ in save_changed(mutations, shard, safe_offset, self._producer_use.may_return):
                looked_at += 1
                if looked_at % _PRODUCERS_AT_ONCE == 0:
                    await write()
                    if shard.gone:
                        break
            if shard.gone:
                continue
            if len(self._views.files):
                # Written before the next pause, so the stored records are what they are compared with.
                shard_records.changed_references(self._views.store, head, references)
            mutations.update(head)
            self._table.set_recorded(shard.shard_id, saved.base_offsets)
            saved.note_written()
            if safe_offset < shard.published_offset:
                unsafe.append(shard)
            if step.is_over:
                await write()
        await write()
        return unsafe
