"""The shards of a node, which are opened on first use, and the paths of their files.

Opening a shard reads its records from the views and none of its files, so a start takes the same time with ten shards
as with a million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from journal.engine.wal.entry_payloads import ConvertedFile, ConvertedPart
from shards.errors import ShardNotFoundError
from shards.model import Mode, ShardConfig
from shards.seams.store import OrderedStore
from shards.segments.chunks import ChunkPool
from shards.segments.parquet_segment import ParquetSegment, SharedPlace
from shards.segments.segment import Segment
from shards.segments.segment_paths import log_path
from shards.segments.shard import Shard
from shards.views import shard_records
from shards.views.catalogue import Catalogue, CatalogueRecord
from shards.views.producer_records import load_producers

_CONFIGS_SHARED = 10_000
_ONLY_THE_FIRST = (0,)
_MOST_OPEN = 10_000


class ShardTable:
    """Open shards by id, and access to closed ones.

    Attributes:
        catalogue: All shards by name.
        sealed_root: Directory of all Parquet segments.
        tail_pool: Memory of log segments that is not written to files yet.
        memory_pool: Memory of memory segments.
        restored_lsn: Shards with a lower id are older than the newest restore from a backup; 0 if there was none.
        started_lsn: Every lsn that was assigned before the start is this one or lower.
        recovering: Entries are being replayed; a shard that is opened now may still get some of them.
        more_follows: See `finish_recovery`.
        is_read: Clients read shards although entries are being replayed, see `begin_reading`. Stays true afterwards.
        publishing: Called before something new of a shard is published here; None if no subscription can wait for it.
        opening: Called with each shard that was opened just now, or again; None during the recovery.
        most_open: Number of unused shards that stay open.
    """

    def __init__(
        self,
        store: OrderedStore,
        log_directory: str,
        sealed_root: str,
        *,
        tail_pool: ChunkPool,
        memory_pool: ChunkPool,
        segment_bytes: int,
        memory_segment_bytes: int,
    ) -> None:
        self._store = store
        self._log_directory = log_directory
        self.sealed_root = sealed_root
        self._segment_bytes = segment_bytes
        self._memory_segment_bytes = memory_segment_bytes
        # Tuples: a set for each of a million shards would need more memory than the shards.
        self._recorded: dict[int, tuple[int, ...]] = {}
        self._open: dict[int, Shard] = {}
        # Closed here, but other code still refers to the object: there must never be two objects for one shard.
        self._closed: WeakValueDictionary[int, Shard] = WeakValueDictionary()
        self._configs: dict[ShardConfig, ShardConfig] = {}
        self.catalogue = Catalogue(store)
        self.tail_pool = tail_pool
        self.memory_pool = memory_pool
        self.restored_lsn = 0
        self.started_lsn = 0
        self.recovering = True
        self.more_follows = False
        self.is_read = False
        self.publishing: Callable[[Shard], None] | None = None
        self.opening: Callable[[Shard], None] | None = None
        self.most_open = _MOST_OPEN

    def log_path(self, shard_id: int, base_offset: int) -> str:
        """The path of a log segment."""
        return log_path(self._log_directory, shard_id, base_offset)

    def shared_segment(self, shard: Shard, part: ConvertedPart, file: ConvertedFile) -> ParquetSegment:
        """The segment in a shared file that a decision describes."""
        return ParquetSegment(
            self.sealed_root,
            shard.name,
            shard.shard_id,
            base_offset=part.base_offset,
            next_offset=part.next_offset,
            size_bytes=part.size_bytes,
            created_us=part.created_us,
            newest_append_us=part.newest_append_us,
            last_lsn=part.last_lsn,
            newest_us=part.newest_us,
            place=SharedPlace(file.day, file.file_id, part.first_row),
        )

    def open_shards(self) -> list[Shard]:
        """The shards that are open now."""
        return list(self._open.values())

    def opened(self, shard_id: int) -> Shard | None:
        """The shard with this id if it is open, else None."""
        shard = self._open.get(shard_id)
        if shard is None and (shard := self._closed.pop(shard_id, None)) is not None:
            self._keep(shard)
        return shard

    def still_open(self, shard_id: int) -> Shard | None:
        """The shard with this id if it is open, else None. Unlike `opened`, it never opens a closed shard again."""
        return self._open.get(shard_id)

    @property
    def open_count(self) -> int:
        """Number of open shards."""
        return len(self._open)

    def _keep(self, shard: Shard) -> None:
        self._open[shard.shard_id] = shard
        if self.opening is not None:
            self.opening(shard)

    def by_id(self, shard_id: int) -> Shard | None:
        """The shard with this id, which is opened if it is closed; None if it does not exist."""
        shard = self._open.get(shard_id) or self.opened(shard_id)
        if shard is None:
            record = self.catalogue.record(shard_id)
            if record is not None:
                shard = self._load(shard_id, record)
        return shard

    def by_name(self, name: str) -> Shard:
        """The shard with this name, which is opened if it is closed.

        Raises:
            ShardNotFoundError: It does not exist.
        """
        shard_id = self.catalogue.id_of(name)
        shard = self.by_id(shard_id) if shard_id is not None else None
        if shard is None:
            raise _not_found(name)
        return shard

    def peek(self, shard_id: int) -> Shard | None:
        """A view of the shard with this id, for reading before the next ``await``; None if it does not exist.

        A closed shard is read from the views and not kept, so that reading a million shards does not keep them in
        memory. Opening it later creates another object: this one must not be changed.
        """
        shard = self.opened(shard_id)
        if shard is None and (record := self.catalogue.record(shard_id)) is not None:
            shard, _ = self._read(shard_id, record)
            if shard.in_memory_mode and not self.recovering:
                shard.next_offset = max(shard.next_offset, shard.reserved_offset)
            shard.publish(shard.published_now())
        return shard

    def peek_by_name(self, name: str) -> Shard:
        """The same by name.

        Raises:
            ShardNotFoundError: It does not exist.
        """
        shard_id = self.catalogue.id_of(name)
        shard = self.peek(shard_id) if shard_id is not None else None
        if shard is None:
            raise _not_found(name)
        return shard

    def name_of(self, shard_id: int) -> str | None:
        """The name of a shard, without opening it; None if it does not exist."""
        shard = self.opened(shard_id)
        if shard is not None:
            return shard.name
        record = self.catalogue.record(shard_id)
        return None if record is None else record.name

    def newest_lsn(self, shard_id: int) -> int:
        """The lsn of the newest batch that a shard has published, without opening it; 0 if there is none."""
        shard = self.opened(shard_id)
        if shard is not None:
            return shard.published_lsn
        return shard_records.newest_lsn(self._store, shard_id, self.started_lsn)

    def may_close(self) -> int:
        """How many shards are open beyond those that always stay open."""
        return max(0, len(self._open) - self.most_open)

    def close(self, shard: Shard) -> None:
        """Remove a shard from the open ones; its next use reads it from the views.

        REQUIRES: nothing of it is pending, its saved record is up to date, and it has no retention.
        """
        if self._open.pop(shard.shard_id, None) is not None:
            self._closed[shard.shard_id] = shard

    def saved(self, shard: Shard) -> None:
        """Called after the record of a changed shard was saved. A closed shard that was changed is opened again."""
        if shard.shard_id not in self._open and not shard.gone:
            self._closed.pop(shard.shard_id, None)
            self._keep(shard)

    def _load(self, shard_id: int, record: CatalogueRecord) -> Shard:
        shard, recorded = self._read(shard_id, record)
        if recorded:
            self._recorded[shard_id] = recorded
        self.set_segment_limit(shard)
        self._keep(shard)
        if self.is_read:
            # What clients were shown before, as a follower.
            _show(shard)
        if not self.recovering:
            self.settle(shard)
        return shard

    def _read(self, shard_id: int, record: CatalogueRecord) -> tuple[Shard, tuple[int, ...]]:
        """Read a shard from the views, and the base offsets of its recorded segments."""
        shard = Shard(shard_id, record.name, self._shared(record.config), record.created_us)
        recorded = shard_records.load(self._store, shard, self.log_path, self.tail_pool, sealed_root=self.sealed_root)
        shard.note_restore(self.restored_lsn)
        return shard, recorded

    def add(self, shard_id: int, record: CatalogueRecord) -> Shard:
        """Add a new shard to the open ones."""
        shard = Shard(shard_id, record.name, self._shared(record.config), record.created_us)
        self.set_segment_limit(shard)
        self._keep(shard)
        shard.dirty = True
        return shard

    def _shared(self, config: ShardConfig) -> ShardConfig:
        """Return one object for equal configurations: most of a million shards have the same one."""
        if len(self._configs) >= _CONFIGS_SHARED:
            self._configs.clear()
        return self._configs.setdefault(config, config)

    def set_segment_limit(self, shard: Shard) -> None:
        """Set the size at which the shard's segments are closed, from its mode and configuration."""
        default = self._memory_segment_bytes if shard.in_memory_mode else self._segment_bytes
        shard.segment_limit_bytes = shard.config.segment_bytes or default

    def settle(self, shard: Shard) -> None:
        """Finish the recovery of a shard: publish its recovered records.

        In memory mode its last records are lost; the offsets that were reserved for them are never assigned again. If
        more of a log follows, it tells which offsets were assigned.
        """
        if shard.in_memory_mode and not self.more_follows:
            if shard.reserved_offset > shard.next_offset:
                shard.next_offset = shard.reserved_offset
                # The lost records count as published up to here, so that readers by lsn find the shard and the gap.
                shard.last_lsn = max(shard.last_lsn, self.started_lsn)
                self.forget_memory(shard)
            if shard.next_offset > shard.accounted_offset:
                shard.note_loss(shard.next_offset, shard.last_lsn)
        shard.asked_offset = shard.reserved_offset
        shard.recovered_offset = shard.next_offset
        self._show_news(shard)

    def _show_news(self, shard: Shard) -> None:
        """Publish what a shard has, if that has changed. Subscriptions by filter learn of it before."""
        if not shard.is_published:
            if self.publishing is not None:
                self.publishing(shard)
            _show(shard)
        elif shard.damage:
            # It was stopped: those that wait for its records get the error.
            shard.notify()

    def begin_reading(self) -> None:
        """Clients read shards from now on, while the log of a store is followed: publish what there is.

        REQUIRES: what was replayed so far ends with a commit group, and all of it is in the log.
        """
        self.is_read = True
        for shard in self.open_shards():
            _show(shard)

    def end_reading(self) -> None:
        """No client reads shards any more. What knew when they published is gone as well."""
        self.is_read, self.publishing = False, None
        for shard in self.open_shards():
            shard.era = None

    def show(self, shard_ids: Iterable[int]) -> None:
        """A commit group was replayed while clients read: publish the shards that it has changed."""
        for shard_id in shard_ids:
            if (shard := self.opened(shard_id)) is not None:
                self._show_news(shard)

    def show_trimmed(self, shard_ids: Iterable[int]) -> None:
        """The same in the middle of a group, for shards of which all that was published is trimmed now."""
        for shard_id in shard_ids:
            shard = self.opened(shard_id)
            if shard is not None and shard.start_offset > shard.published_offset:
                self._show_news(shard)

    def finish_recovery(self, started_lsn: int, *, more_follows: bool) -> None:
        """Nothing more will be folded into any shard from the journal: publish what there is.

        Args:
            started_lsn: Every lsn that was given out before the start is at or below it.
            more_follows: The journal has only the beginning of the log of a store, and nothing is served.
        """
        self.recovering = False
        self.more_follows = more_follows
        self.started_lsn = started_lsn
        for shard in self.open_shards():
            self.settle(shard)

    def forget_memory(self, shard: Shard) -> None:
        """Note that records of the shard were lost with the memory: its producers may have sent later sequences."""
        producers = load_producers(self._store, shard) if shard.producers is None else shard.producers
        for producer in producers.values():
            producer.memory_lost = True
            producer.saved_sequence = -1
        shard.dirty = True

    def open_segment(self, shard: Shard, mode: Mode, base_offset: int, created_us: int) -> Segment:
        """Close the shard's active segment and open the next one."""
        path = self.log_path(shard.shard_id, base_offset) if mode is Mode.FILE else ""
        pool = self.memory_pool if mode is Mode.MEMORY else self.tail_pool
        segment = shard.open_segment(mode, base_offset, created_us, path, pool)
        self.set_segment_limit(shard)
        return segment

    def recorded(self, shard_id: int) -> tuple[int, ...]:
        """Base offsets of the shard's segments that are recorded in the views."""
        return self._recorded.get(shard_id, ())

    def set_recorded(self, shard_id: int, base_offsets: tuple[int, ...]) -> None:
        """Note which segments are recorded in the views now."""
        if base_offsets:
            self._recorded[shard_id] = _ONLY_THE_FIRST if base_offsets == _ONLY_THE_FIRST else base_offsets
        else:
            self._recorded.pop(shard_id, None)

    def remove(self, shard_id: int) -> None:
        """Remove a deleted shard."""
        self._open.pop(shard_id, None)
        self._closed.pop(shard_id, None)
        self._recorded.pop(shard_id, None)


def _show(shard: Shard) -> None:
    """Publish what a shard has, which needs no saving for that. Offsets that are only reserved are not published."""
    dirty = shard.dirty
    shard.publish(shard.published_now())
    shard.dirty = dirty


def _not_found(name: str) -> ShardNotFoundError:
    return ShardNotFoundError(f"shard {name!r} does not exist; create it first")
