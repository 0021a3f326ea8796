"""Folding committed entries into the views: catalogue, shards, cursors, state, producers, word index.

Folding never refuses an entry, and folding it twice has the same result as once: after a crash the same entries are
folded again, into views that may contain some of them already.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from journal.engine.state.node_record import NodeKey, put_number, read_number
from journal.engine.state.pending_parts import PendingParts, Run, runs_of
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.unfetched_files import UnfetchedFiles
from journal.engine.wal.entry import Entry, Kind
from journal.engine.wal.entry_payloads import (
    ConvertedFile,
    CursorCommitted,
    CursorDeleted,
    Decision,
    FilesConverted,
    LsnsReserved,
    OffsetsReserved,
    ProducerDeleted,
    ProducerOpened,
    ProducerUsed,
    Rolled,
    ShardConfigured,
    ShardCreated,
    ShardDeleted,
    StateDeleted,
    StatePut,
    Trimmed,
    decode_payload,
)
from shards.errors import CorruptionError
from shards.idempotence.producer_state import ProducerState
from shards.model import Mode, SegmentKind, ShardConfig
from shards.seams.store import Mutations, OrderedStore
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from shards.views import leftovers, shard_records
from shards.views.catalogue import CatalogueRecord
from shards.views.cursors import Cursors
from shards.views.inverted_index import InvertedIndex, Words, words_of
from shards.views.producer_records import load_producers
from shards.views.producers import Producers
from shards.views.shared_files import FileKey, SharedFileRecord, SharedFiles
from shards.views.state_store import StateStore

# Of a batch header: base_offset, lsn, append_time_us; record_count; producer_epoch, producer_id, sequence; newest
# timestamp.
_REPLAYED = struct.Struct("<8xQQQ12xI4xIQI12xQ")

FOLDED_AT_ONCE: Final = 2000
"""So many entries are replayed in one step of the event loop."""


@attrs.define(slots=True)
class ViewChanges:
    """Changes by folding that other parts of the engine have to handle, each in the order in which it was folded.

    Attributes:
        created: Shards that are new.
        deleted: Shards that were deleted.
        deleted_again: Ids of shards whose deletion was replayed: a crash may have left logs of them.
        dropped: Segments that no shard refers to any more. Their memory and files are to be freed.
        trimmed: Indexed shards that begin at a later offset now. Index entries below it are to be removed.
        converted: Shards that have parts of shared files in place of other segments: their records are to be saved.
    """

    created: list[Shard] = attrs.field(factory=list)
    deleted: list[Shard] = attrs.field(factory=list)
    deleted_again: list[int] = attrs.field(factory=list)
    dropped: list[Segment] = attrs.field(factory=list)
    trimmed: list[Shard] = attrs.field(factory=list)
    converted: list[Shard] = attrs.field(factory=list)


class Views:
    """The state folded from the journal.

    Args:
        store: Holds the part that is not kept in memory; its recorded lsn tells which decisions it contains.
        table: The shards.

    Attributes:
        folded_lsn: The store contains the result of every decision up to this lsn.
        lsns_reserved: lsns below it are never assigned again.
        leftovers: Deleted shards that may still have entries in the store, and where these begin.
        newest_append_us: The newest append time in the replayed entries.
        unfetched: The shared files that a server of a cluster does not have yet.
    """

    def __init__(self, store: OrderedStore, table: ShardTable) -> None:
        self.store = store
        self.table = table
        self._changes = ViewChanges()
        self._has_changes = False
        self._pending_parts = PendingParts()
        self.cursors = Cursors(store)
        self.state = StateStore(store)
        self.producers = Producers(store)
        self.word_index = InvertedIndex(store)
        self.files = SharedFiles(store)
        self.unfetched = UnfetchedFiles()
        self.folded_lsn = read_number(store, NodeKey.FOLDED)
        self.lsns_reserved = 0
        self.newest_append_us = 0
        self.leftovers = dict(leftovers.noted(store))

    @property
    def deleted(self) -> Sequence[Shard]:
        """The shards that were deleted since `take_changes`, in order."""
        return self._changes.deleted

    def valid_files(self, checkpoint_lsn: int) -> list[FileKey]:
        """The shared files that are valid (`SharedFiles.valid`), and here."""
        return [key for key in self.files.valid(checkpoint_lsn) if key not in self.unfetched]

    def take_changes(self) -> ViewChanges | None:
        """The changes since the last call that other parts have to handle; None if there are none."""
        if not self._has_changes:
            return None
        changes, self._changes, self._has_changes = self._changes, ViewChanges(), False
        return changes

    def _note(self) -> ViewChanges:
        self._has_changes = True
        return self._changes

    def fold(
        self, decisions: Iterable[tuple[int, int, Decision]], words: Iterable[tuple[Shard, int, Words]] = ()
    ) -> None:
        """Fold the decisions of one commit group, in order, with one atomic write to the store."""
        mutations = Mutations()
        lsn = 0
        for lsn, shard_id, decision in decisions:
            if self._pending_parts and isinstance(decision, _CHANGES_SEGMENTS):
                for run in self._pending_parts.take_of(shard_id):
                    self._put_parts(run)
            _FOLDS[type(decision)](self, mutations, lsn, shard_id, decision)
            if isinstance(decision, ShardCreated) and (shard := self.table.by_id(shard_id)) is not None:
                self._note().created.append(shard)
        for shard, base_offset, found in words:
            if not shard.gone:
                self.word_index.fold(mutations, shard.shard_id, base_offset, found)
        if lsn > self.folded_lsn:
            self.folded_lsn = lsn
            put_number(mutations, NodeKey.FOLDED, lsn)
        if len(mutations):
            self.store.write(mutations)

    def replay(self, entries: Iterable[Entry]) -> None:
        """Fold the entries of a recovered group."""
        decisions: list[tuple[int, int, Decision]] = []
        for entry in entries:
            if entry.kind != Kind.APPEND:
                decisions.append((entry.lsn, entry.shard_id, _decision_of(entry)))
                continue
            # An append may depend on the decisions before it, which may create its shard or its segment.
            if decisions:
                self.fold(decisions)
                decisions = []
            self._replay_append(entry)
        if decisions:
            self.fold(decisions)

    def _replay_append(self, entry: Entry) -> None:
        batch = entry.payload
        base_offset, lsn, append_time_us, count, epoch, producer_id, sequence, newest_us = _REPLAYED.unpack_from(batch)
        self.newest_append_us = max(self.newest_append_us, append_time_us)
        shard = self.table.by_id(entry.shard_id)
        if shard is None or shard.damage or base_offset < shard.next_offset:
            return
        segment = shard.segments[-1] if shard.segments else None
        if segment is None or segment.closed or segment.kind is not SegmentKind.LOG:
            # The first segment of a shard is opened by its first batch, without an entry of its own.
            shard.next_offset = max(shard.next_offset, base_offset if not shard.segments else 0)
            segment = self.table.open_segment(shard, Mode.FILE, base_offset, append_time_us)
        if base_offset != segment.next_offset:
            self.stop(shard, f"the journal continues at offset {base_offset}, expected {segment.next_offset}")
            return
        segment.append(batch, base_offset + count, lsn, append_time_us, newest_us)
        shard.next_offset = base_offset + count
        shard.last_lsn = lsn
        shard.dirty = True
        if producer_id:
            self._replay_producer(shard, producer_id, epoch, sequence, base_offset, count)
        if shard.indexed:
            mutations = Mutations()
            self.word_index.fold(mutations, shard.shard_id, base_offset, words_of(shard.config, batch))
            self.store.write(mutations)

    def _replay_producer(
        self, shard: Shard, producer_id: int, epoch: int, sequence: int, base_offset: int, count: int
    ) -> None:
        producers = load_producers(self.store, shard) if shard.producers is None else shard.producers
        state = producers.get(producer_id)
        if state is None or state.epoch != epoch:
            state = producers[producer_id] = ProducerState(epoch, sequence)
        elif state.last_offset >= base_offset:
            # The state was recorded, but the record of its shard was not yet.
            cut = state.before(base_offset)
            state = producers[producer_id] = cut
            state.saved_sequence = -1
        if state.is_repeat(sequence):
            # Its recorded sequences from there on were lost with the memory; here they are stored again.
            state.store_again_from(sequence)
        state.accept(sequence, base_offset, count)

    def stop(self, shard: Shard, damage: str) -> None:
        """Stop one shard: appends and reads are refused until it is repaired or deleted."""
        shard.damage = damage
        shard.dirty = True

    # Folds, one for each decision. They get (views, mutations, lsn, shard id, decision).

    def _created(self, mutations: Mutations, lsn: int, shard_id: int, decision: ShardCreated) -> None:
        self.newest_append_us = max(self.newest_append_us, decision.created_us)
        if lsn <= self.folded_lsn:
            return
        record = CatalogueRecord(decision.name, decision.config, decision.created_us)
        self.table.catalogue.fold_put(mutations, shard_id, record)
        self.table.add(shard_id, record)

    def _deleted(self, mutations: Mutations, lsn: int, shard_id: int, decision: ShardDeleted) -> None:
        shard = self.table.by_id(shard_id)
        if shard is None:
            if self.table.recovering:
                self._note().deleted_again.append(shard_id)
            return
        self.table.catalogue.fold_delete(mutations, shard_id, decision.name)
        records = Mutations()
        shard_records.delete(self.store, records, shard_id)
        self.files.refer(mutations, shard_records.changed_references(self.store, records))
        mutations.update(records)
        leftovers.note(mutations, shard_id)
        self.leftovers[shard_id] = leftovers.BEGINNING
        self.table.remove(shard_id)
        shard.damage = "it was deleted"
        shard.deleted = shard.gone = True
        # Told to subscribers: another server whose log ends before it still has the shard.
        shard.deleted_lsn = lsn
        shard.last_lsn = shard.published_lsn = lsn
        changes = self._note()
        changes.dropped += shard.segments
        changes.deleted.append(shard)

    def _reconfigured(self, mutations: Mutations, shard: Shard, config: ShardConfig) -> None:
        if config != shard.config:
            shard.config = config
            self.table.set_segment_limit(shard)
            record = CatalogueRecord(shard.name, shard.config, shard.created_us)
            self.table.catalogue.fold_put(mutations, shard.shard_id, record)

    def _configured(self, mutations: Mutations, lsn: int, shard_id: int, decision: ShardConfigured) -> None:
        shard = self.table.by_id(shard_id)
        if shard is not None:
            config = attrs.evolve(shard.config, retention=decision.retention, segment_bytes=decision.segment_bytes)
            self._reconfigured(mutations, shard, config)

    def _rolled(self, mutations: Mutations, lsn: int, shard_id: int, decision: Rolled) -> None:
        self.newest_append_us = max(self.newest_append_us, decision.created_us)
        shard = self.table.by_id(shard_id)
        if shard is None:
            return
        if self.table.recovering:
            self._replay_roll(shard, lsn, decision)
        self._reconfigured(mutations, shard, attrs.evolve(shard.config, mode=decision.mode))

    def _replay_roll(self, shard: Shard, lsn: int, decision: Rolled) -> None:
        newest = shard.segments[-1] if shard.segments else None
        to_file = decision.mode is Mode.FILE
        if newest is not None and newest.base_offset > decision.base_offset:
            # The views are newer than this entry: the segments after it are theirs, closed by later entries.
            shard.in_memory_mode = not to_file
            return
        if newest is not None and newest.base_offset == decision.base_offset and to_file:
            # The views have the segment that this entry opened. A later entry, which is replayed too, may close it.
            newest.closed = newest.kind is not SegmentKind.LOG
            if isinstance(newest, LogSegment):
                newest.is_recorded = False
            shard.in_memory_mode = False
            return
        if decision.base_offset > shard.next_offset:
            # The records in between were in memory.
            self.table.forget_memory(shard)
            shard.next_offset = decision.base_offset
        if decision.base_offset > shard.accounted_offset:
            shard.note_loss(decision.base_offset, lsn)
            # Readers by lsn find the shard and the gap, also before there is a record behind it.
            shard.last_lsn = max(shard.last_lsn, lsn)
        if to_file:
            self.table.open_segment(shard, Mode.FILE, decision.base_offset, decision.created_us)
        else:
            # The memory segment itself is lost; the next batch opens a new one.
            if newest is not None:
                newest.closed = True
            shard.in_memory_mode = True
        shard.dirty = True

    def _trimmed(self, mutations: Mutations, lsn: int, shard_id: int, decision: Trimmed) -> None:
        shard = self.table.by_id(shard_id)
        if shard is not None:
            dropped = shard.trim(decision.start_offset)
            if dropped:
                self._note().dropped += dropped
            if shard.indexed:
                self._note().trimmed.append(shard)

    def _files_converted(self, mutations: Mutations, lsn: int, shard_id: int, decision: FilesConverted) -> None:
        for file in decision.files:
            self.files.fold_put(mutations, _record_of(file, lsn))
        if not self.table.recovering:
            self._pending_parts.add(decision)
            return
        for run in runs_of(decision):
            self._put_parts(run)

    def put_next_parts(self) -> bool:
        """Put parts that a decision names into the next shard; False if nothing is pending.

        Parts are put into a shard before anything else that is decided about its segments is folded.
        """
        run = self._pending_parts.take_next()
        if run is None:
            return False
        self._put_parts(run)
        return True

    def _put_parts(self, run: Run) -> None:
        shard = self.table.by_id(run.shard_id)
        if shard is None:
            return
        segments = [self.table.shared_segment(shard, part, run.files[part.file]) for part in run.parts]
        if replaced := shard.put_parts(segments):
            self._note().dropped += replaced
            self._note().converted.append(shard)
            self.files.note_replacement(_files_of(segments), _files_of(replaced))

    def _offsets_reserved(self, mutations: Mutations, lsn: int, shard_id: int, decision: OffsetsReserved) -> None:
        shard = self.table.by_id(shard_id)
        if shard is not None and decision.up_to > shard.reserved_offset:
            shard.reserved_offset = decision.up_to
            shard.dirty = True

    def _lsns_reserved(self, mutations: Mutations, lsn: int, shard_id: int, decision: LsnsReserved) -> None:
        self.lsns_reserved = max(self.lsns_reserved, decision.up_to)

    def _cursor_committed(self, mutations: Mutations, lsn: int, shard_id: int, decision: CursorCommitted) -> None:
        if lsn > self.folded_lsn and self.table.by_id(shard_id) is not None:
            self.cursors.fold_commit(mutations, shard_id, decision.name, decision.offset, lsn)

    def _cursor_deleted(self, mutations: Mutations, lsn: int, shard_id: int, decision: CursorDeleted) -> None:
        if lsn > self.folded_lsn:
            self.cursors.fold_delete(mutations, shard_id, decision.name)

    def _state_put(self, mutations: Mutations, lsn: int, shard_id: int, decision: StatePut) -> None:
        if lsn > self.folded_lsn:
            self.state.fold_put(mutations, decision.key, decision.value, lsn, decision.expires_at_us)

    def _state_deleted(self, mutations: Mutations, lsn: int, shard_id: int, decision: StateDeleted) -> None:
        if lsn > self.folded_lsn:
            self.state.fold_delete(mutations, decision.key)

    def _producer_opened(self, mutations: Mutations, lsn: int, shard_id: int, decision: ProducerOpened) -> None:
        if lsn > self.folded_lsn:
            self.producers.fold_use(mutations, decision.name, decision.producer_id, decision.epoch, 0)

    def _producer_used(self, mutations: Mutations, lsn: int, shard_id: int, decision: ProducerUsed) -> None:
        if lsn > self.folded_lsn:
            used_us = decision.used_us
            self.producers.fold_use(mutations, decision.name, decision.producer_id, decision.epoch, used_us)

    def _producer_deleted(self, mutations: Mutations, lsn: int, shard_id: int, decision: ProducerDeleted) -> None:
        if lsn > self.folded_lsn:
            self.producers.fold_delete(mutations, decision.name, decision.producer_id)


_CHANGES_SEGMENTS = (ShardDeleted, Trimmed)

_FOLDS: dict[type[Decision], Callable[..., None]] = {
    ShardCreated: Views._created,
    ShardDeleted: Views._deleted,
    ShardConfigured: Views._configured,
    Rolled: Views._rolled,
    Trimmed: Views._trimmed,
    FilesConverted: Views._files_converted,
    OffsetsReserved: Views._offsets_reserved,
    LsnsReserved: Views._lsns_reserved,
    CursorCommitted: Views._cursor_committed,
    CursorDeleted: Views._cursor_deleted,
    StatePut: Views._state_put,
    StateDeleted: Views._state_deleted,
    ProducerOpened: Views._producer_opened,
    ProducerUsed: Views._producer_used,
    ProducerDeleted: Views._producer_deleted,
}


def files_named(entries: Iterable[Entry]) -> list[SharedFileRecord]:
    """The shared files that entries name, in order."""
    found: list[SharedFileRecord] = []
    for entry in entries:
        if entry.kind == Kind.CONVERT_FILES:
            decision = _decision_of(entry)
            assert isinstance(decision, FilesConverted)
            found += (_record_of(file, entry.lsn) for file in decision.files)
    return found


def _record_of(file: ConvertedFile, lsn: int) -> SharedFileRecord:
    return SharedFileRecord(
        day=file.day,
        file_id=file.file_id,
        size_bytes=file.size_bytes,
        record_count=file.record_count,
        lsn=lsn,
        live_records=0,
        live_bytes=0,
        digest=file.digest,
    )


def _files_of(segments: Iterable[Segment]) -> set[FileKey]:
    """The shared files in which segments are."""
    return {segment.place.file for segment in segments if isinstance(segment, ParquetSegment)}


def _decision_of(entry: Entry) -> Decision:
    try:
        return decode_payload(entry.kind, entry.payload)
    except ValueError as error:
        kind = Kind(entry.kind).name.lower()
        problem = (
            f"the entry with lsn {entry.lsn} has valid checksums, but is not a valid {kind}: {error}; if a newer "
            f"version of the server wrote it, start that version"
        )
        raise CorruptionError("the journal", entry.position, problem) from error
