"""Removal of entries of the views that no reader needs: index entries of trimmed records, entries of deleted shards.

There may be millions of them, so they are removed in steps, between which other tasks run.
"""

from __future__ import annotations

import trio

from journal.engine.state.views import Views
from shards.seams.store import Mutations
from shards.segments.shard import Shard
from shards.views import leftovers

_UNINDEXED_AT_ONCE = 2000
_REMOVED_AT_ONCE = 2000
_STEPS_IN_A_TURN = 50


class ViewCleanup:
    """The removals of one engine; one task calls `clean_indexes` and `remove_leftovers` in turns.

    Args:
        views: The views.
    """

    def __init__(self, views: Views) -> None:
        self._views = views
        self._to_unindex: dict[int, Shard] = {}
        self._unindexing: tuple[Shard, bytes] | None = None

    def index_trimmed(self, shard: Shard) -> None:
        """Remove the index entries of a shard's trimmed records later."""
        self._to_unindex[shard.shard_id] = shard

    async def clean_indexes(self) -> bool:
        """Remove some index entries of trimmed records; return whether there are more. Readers skip such entries."""
        for _ in range(_STEPS_IN_A_TURN):
            if self._unindexing is None:
                if not self._to_unindex:
                    return False
                # Another trim in the meantime begins again after it.
                self._unindexing = (self._to_unindex.pop(next(iter(self._to_unindex))), b"")
            shard, place = self._unindexing
            following: bytes | None = None
            if not shard.deleted:
                mutations = Mutations()
                following = self._views.word_index.drop_below(
                    mutations, shard.shard_id, shard.start_offset, _UNINDEXED_AT_ONCE, place
                )
                self._views.store.write(mutations)
            self._unindexing = None if following is None else (shard, following)
            await trio.lowlevel.checkpoint()
        return True

    async def remove_leftovers(self) -> bool:
        """Remove some of the entries that deleted shards left in the views; return whether there are more."""
        waiting = self._views.leftovers
        for _ in range(_STEPS_IN_A_TURN):
            if not waiting:
                return False
            mutations = Mutations()
            room = _REMOVED_AT_ONCE
            while waiting and room > 0:
                shard_id, place = next(iter(waiting.items()))
                removed, following = leftovers.remove_some(self._views.store, mutations, shard_id, room, place)
                # A shard takes time even if it has no entries.
                room -= removed + 20
                if following is None:
                    del waiting[shard_id]
                else:
                    waiting[shard_id] = following
            self._views.store.write(mutations)
            await trio.lowlevel.checkpoint()
        return True
