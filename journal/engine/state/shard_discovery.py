"""Finds shards that have something newer than an lsn, and notifies subscriptions by filter of shards that publish.

Shards that published since the start are in memory in the order of their publishes. For the others the stored records
are read: for a narrow filter those of the few names that can match, for a wide one a list of all shards by their newest
lsn, which is built once, when a subscription first resumes at an lsn before the start.

`NameScan` finds all shards whose name matches a filter, whether they have something new or not.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final, Protocol

import trio

from journal.engine.state.committed_lsns import CommittedLsns
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from shards.seams.store import OrderedStore
from shards.segments.shard import Shard
from shards.topics.filter_watch import FilterWatch
from shards.topics.publish_epochs import PublishEpochs
from shards.topics.topic_filters import pattern, validate_filter
from shards.views import shard_records
from shards.views.catalogue import Catalogue

_LOOKED_AT_ONCE = 500
_SORTED_AT_ONCE = 10_000
_FEW_NAMES = 1000


class Waiting(Hashable, Protocol):
    """A subscription by filter that waits for shards."""

    def arrives(self, shard: Shard) -> None:
        """Called before a matching shard publishes."""


class ShardDiscovery:
    """Finds shards for subscriptions by filter; see the module.

    Args:
        table: The shards. Those that are open at the start were recovered from the journal.
        store: The store of the views, with the records of the other shards.
        lsns: Tells what is published. Everything published before the start has an lsn up to the committed one.

    Attributes:
        recent: The shards that published since the start, or shortly before.
    """

    def __init__(self, table: ShardTable, store: OrderedStore, lsns: CommittedLsns) -> None:
        self._table = table
        self._store = store
        self._lsns = lsns
        self._started_lsn = lsns.committed_lsn()
        self._stored: tuple[array[int], array[int]] | None = None
        self._listing: trio.Event | None = None
        self._list_number = 0
        self.recent: PublishEpochs[Shard] = PublishEpochs(lsns.next_lsn)
        self._live: FilterWatch[Waiting] = FilterWatch(self.recent)
        self.recent.load(
            [shard for shard in table.open_shards() if shard.published_lsn], lambda shard: shard.published_lsn
        )

    def take_over(self) -> None:
        """The follower owns the store now. Shards in memory mode have lost what was in the memory of the owner before.

        That counts as published up to this moment, which the list of stored shards does not tell yet.
        """
        self._started_lsn = self._lsns.committed_lsn()
        self._stored = None
        self._list_number += 1

    # Subscriptions that wait for shards

    def wait(self, topic_filter: str, waiting: Waiting) -> None:
        """Notify ``waiting`` of every shard that matches, before the shard's next publish."""
        self._live.add(topic_filter, waiting)

    def forget(self, topic_filter: str, waiting: Waiting) -> None:
        """Stop the notifications of `wait`."""
        self._live.discard(topic_filter, waiting)

    def publishing(self, shard: Shard) -> None:
        """Called before a shard publishes. Needed only if its epoch is not the newest."""
        if shard.era is not self.recent.newest:
            for waiting in self._live.waiting_for(shard.name, self.recent.note(shard)):
                waiting.arrives(shard)

    def deleted(self, shard: Shard) -> None:
        """Note that a shard was deleted."""
        self.recent.discard(shard)

    def closing(self, shard: Shard) -> None:
        """Note that a shard that is not used will be closed."""
        self.recent.close(shard)

    # Searching

    def search(self, topic_filter: str, above_lsn: int | None) -> Search:
        """Find the shards that match and have something above an lsn now; with None, all that match."""
        catalogue = self._table.catalogue
        if above_lsn is None:
            return _SearchByName(self._table, topic_filter, None)
        recent, closed = self.recent.newer_than(above_lsn), self.recent.closed_newer_than(above_lsn)
        if catalogue.count_looked_at(topic_filter) <= max(_FEW_NAMES, len(recent) + len(closed)):
            return _SearchByName(self._table, topic_filter, above_lsn)
        return _SearchByLsn(
            self, self._table, topic_filter, above_lsn, recent, closed, stored=above_lsn < self._started_lsn
        )

    async def stored_newer_than(self, lsn: int) -> array[int]:
        """Ids of the shards whose stored record has a higher lsn, and of some that have published since."""
        while self._stored is None:
            if self._listing is not None:
                await self._listing.wait()
                continue
            self._listing = trio.Event()
            number = self._list_number
            try:
                stored = await self._list_stored()
                if number == self._list_number:
                    self._stored = stored
            finally:
                self._listing.set()
                self._listing = None
        lsns, shard_ids = self._stored
        return shard_ids[bisect_right(lsns, lsn) :]

    async def _list_stored(self) -> tuple[array[int], array[int]]:
        """The newest lsns of all stored shards, sorted, and the ids of these shards."""
        lsns, shard_ids = array("Q"), array("Q")
        stored = shard_records.newest_lsns(self._store, self._table.started_lsn)
        step = TimeSlice()
        for newest in stored:
            if newest is not None:
                shard_ids.append(newest[0])
                lsns.append(newest[1])
            if step.is_over:
                await step.rest()
        runs: list[array[int]] = []
        for start in range(0, len(lsns), _SORTED_AT_ONCE):
            run = range(start, min(start + _SORTED_AT_ONCE, len(lsns)))
            runs.append(array("Q", sorted(run, key=lsns.__getitem__)))
            await trio.lowlevel.checkpoint()
        merged: Iterator[int] = heapq.merge(*runs, key=lsns.__getitem__)
        sorted_lsns, sorted_ids = array("Q"), array("Q")
        while rows := list(islice(merged, _SORTED_AT_ONCE)):
            sorted_lsns.extend(map(lsns.__getitem__, rows))
            sorted_ids.extend(map(shard_ids.__getitem__, rows))
            await trio.lowlevel.checkpoint()
        return sorted_lsns, sorted_ids


class Search(Protocol):
    """A search in progress. It does not find shards that publish later; `wait` notifies of those."""

    async def more(self) -> list[Shard] | None:
        """Return some matching shards, perhaps none; None at the end. Cancelling it loses nothing."""


class _SearchByName:
    """Checks every name that matches."""

    def __init__(self, table: ShardTable, topic_filter: str, above_lsn: int | None) -> None:
        self._table = table
        self._scan = NameScan(table.catalogue, topic_filter)
        self._above_lsn = above_lsn
        self._names: list[str] = []

    async def more(self) -> list[Shard] | None:
        if not self._names:
            names = await self._scan.more()
            if names is None:
                return None
            names.reverse()
            self._names = names
        else:
            await trio.lowlevel.checkpoint()
        found: list[Shard] = []
        step = TimeSlice()
        while self._names and not step.is_over:
            shard_id = self._table.catalogue.id_of(self._names.pop())
            if shard_id is None or (
                self._above_lsn is not None and self._table.newest_lsn(shard_id) <= self._above_lsn
            ):
                continue
            shard = self._table.by_id(shard_id)
            if shard is not None and not shard.damage:
                found.append(shard)
        return found


class _SearchByLsn:
    """Checks every shard that has something newer."""

    def __init__(
        self,
        discovery: ShardDiscovery,
        table: ShardTable,
        topic_filter: str,
        above_lsn: int,
        recent: list[Shard],
        closed: list[int],
        *,
        stored: bool,
    ) -> None:
        self._discovery = discovery
        self._table = table
        self._is_wanted = pattern(topic_filter).fullmatch
        self._above_lsn = above_lsn
        self._recent = recent
        self._at = 0
        self._closed = closed
        self._has_stored = stored
        self._stored: array[int] | None = None

    async def more(self) -> list[Shard] | None:
        await trio.lowlevel.checkpoint()
        if self._at < len(self._recent):
            some = self._recent[self._at : self._at + _LOOKED_AT_ONCE]
            self._at += len(some)
            return [shard for shard in some if shard.published_lsn > self._above_lsn and self._fits(shard)]
        if self._closed:
            return self._open_some(self._closed)
        if self._stored is None and self._has_stored:
            self._stored = await self._discovery.stored_newer_than(self._above_lsn)
        return self._open_some(self._stored) if self._stored else None

    def _open_some(self, shard_ids: list[int] | array[int]) -> list[Shard]:
        """Remove ids from the end until the time slice is over; return the matching shards among them."""
        found: list[Shard] = []
        step = TimeSlice()
        while shard_ids and not step.is_over:
            shard_id = shard_ids.pop()
            name = self._table.name_of(shard_id)
            if name is not None and self._is_wanted(name):
                shard = self._table.by_id(shard_id)
                if shard is not None and not shard.damage:
                    found.append(shard)
        return found

    def _fits(self, shard: Shard) -> bool:
        return not shard.damage and self._is_wanted(shard.name) is not None


_NAMES_AT_ONCE: Final = 1000


class NameScan:
    """One scan of the names of shards that match a topic filter, in steps of bounded length.

    A filter that begins with a wildcard is compared with every name. Names are visited in sorted order, continuing
    after the last one, so shards may be created and deleted in the meantime: a shard that exists during the whole scan
    is found exactly once; one that is created or deleted during the scan may be found or not.

    Args:
        catalogue: The catalogue of the shards.
        topic_filter: The filter that the names have to match.
        after: Only names that sort after this one.

    Raises:
        InvalidNameError: The filter is not valid.
    """

    def __init__(self, catalogue: Catalogue, topic_filter: str, after: str = "") -> None:
        validate_filter(topic_filter)
        self._catalogue = catalogue
        self._filter = topic_filter
        self._after: str | None = after

    async def more(self) -> list[str] | None:
        """Return some matching names, perhaps none; None at the end. A checkpoint; cancelling it loses nothing."""
        await trio.lowlevel.checkpoint()
        if self._after is None:
            return None
        names, self._after = self._catalogue.scan(self._filter, self._after, _NAMES_AT_ONCE)
        return names
