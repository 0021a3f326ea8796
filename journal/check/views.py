"""Check of the views: every record can be decoded, and the records are consistent with each other."""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from journal.check.report import Report
from journal.engine.directory.restores import META_KEY as RESTORES_KEY
from journal.engine.directory.restores import decode_restores
from journal.engine.state.node_record import NodeRecord, read_node_record
from shards.errors import CorruptionError, FormatVersionError, InvalidNameError
from shards.idempotence.producer_state import ProducerState
from shards.seams.store import Family, OrderedStore
from shards.segments.chunks import ChunkPool
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment_paths import log_path, shared_path
from shards.segments.shard import Shard
from shards.topics.names import validate_name, validate_shard_name
from shards.views import shard_records
from shards.views.catalogue import CatalogueRecord, decode_record
from shards.views.cursors import decode_cursor
from shards.views.inverted_index import decode_index_key
from shards.views.producers import decode_epoch, decode_identity, decode_name
from shards.views.shared_files import FileKey, SharedFileRecord, load_files
from shards.views.state_store import EXPIRY_PREFIX, VALUE_PREFIX, decode_expiry_key, decode_value, expiry_key

_ID = struct.Struct(">Q")
_DAMAGED = (CorruptionError, FormatVersionError, InvalidNameError, UnicodeDecodeError, struct.error)


@attrs.define
class CheckedViews:
    """The results that other parts of the check need.

    Attributes:
        node: The numbers about the node as a whole.
        segments: The log segments by the paths of their files.
        sealed: The Parquet segments.
        files: The shared files.
        shards: The catalogue.
        starts: First offsets of the trimmed shards. A Parquet segment of such a shard may be recorded only in the
            journal.
    """

    node: NodeRecord = attrs.Factory(NodeRecord)
    segments: dict[str, LogSegment] = attrs.Factory(dict)
    sealed: list[ParquetSegment] = attrs.Factory(list)
    files: list[SharedFileRecord] = attrs.Factory(list)
    shards: dict[int, CatalogueRecord] = attrs.Factory(dict)
    starts: dict[int, int] = attrs.Factory(dict)


class ViewPass:
    """The check of all families of a store."""

    def __init__(self, store: OrderedStore, path: str, log_directory: str, sealed_root: str, report: Report) -> None:
        self._store = store
        self._path = path
        self._log_directory = log_directory
        self._sealed_root = sealed_root
        self._report = report
        self._shards: dict[int, CatalogueRecord] = {}
        self._pool = ChunkPool(0)
        self.found = CheckedViews(shards=self._shards)

    def check(self) -> CheckedViews:
        """Check all families; if the store cannot be read any further, that is reported as damage."""
        parts: tuple[Callable[[], None], ...] = (
            self._check_meta,
            self._check_catalogue,
            self._check_shards,
            self._check_segment_keys,
            self._check_files,
            self._check_cursors,
            self._check_producers,
            self._check_state,
            self._check_words,
        )
        for part in parts:
            try:
                part()
            except CorruptionError as error:
                self._report.damage(error.path, error.position, error.problem)
        return self.found

    def _damage(self, problem: str) -> None:
        self._report.damage(self._path, 0, problem)

    def _check_meta(self) -> None:
        for key, value in self._store.scan(Family.META):
            if key == RESTORES_KEY:
                self._check_restores(value)
            elif len(value) != _ID.size:
                self._damage(f"{key.decode('ascii', 'replace')} has {len(value)} bytes, expected {_ID.size}")
                return
        self.found.node = read_node_record(self._store)

    def _check_restores(self, value: bytes) -> None:
        lsns = [lsn for restore in decode_restores(value) for lsn in (restore.lsn_before, restore.lsn_after)]
        if lsns != sorted(lsns):
            self._damage(f"the lsns of the restores do not rise: {lsns}")

    def _check_catalogue(self) -> None:
        names: dict[str, int] = {}
        for key, value in self._store.scan(Family.CATALOGUE):
            try:
                (shard_id,) = _ID.unpack(key)
                record = decode_record(shard_id, value)
                validate_shard_name(record.name)
            except _DAMAGED as error:
                self._damage(f"catalogue key {key.hex()}: {error}")
                continue
            self._report.counts.shards += 1
            self._shards[shard_id] = record
            if record.name in names:
                self._damage(f"shards {names[record.name]} and {shard_id} have the same name {record.name!r}")
            names[record.name] = shard_id

    def _check_shards(self) -> None:
        for shard_id, record in self._shards.items():
            shard = Shard(shard_id, record.name, record.config, record.created_us)
            try:
                shard_records.load(self._store, shard, self._log_path, self._pool, sealed_root=self._sealed_root)
            except _DAMAGED as error:
                self._damage(f"shard {record.name!r} ({shard_id}): {error}")
                continue
            self._check_shard(shard)

    def _log_path(self, shard_id: int, base_offset: int) -> str:
        return log_path(self._log_directory, shard_id, base_offset)

    def _check_shard(self, shard: Shard) -> None:
        if shard.damage:
            self._damage(f"shard {shard.name!r} was stopped: {shard.damage}")
        following = shard.start_offset
        if shard.start_offset:
            self.found.starts[shard.shard_id] = shard.start_offset
        segments = shard.segments
        for segment in segments:
            if isinstance(segment, LogSegment):
                self.found.segments[segment.path] = segment
            elif isinstance(segment, ParquetSegment):
                self.found.sealed.append(segment)
            if segment is not segments[0] and segment.base_offset < following:
                self._damage(
                    f"shard {shard.name!r}: the segment at offset {segment.base_offset} begins before the end "
                    f"{following} of the one before it"
                )
            self._check_gap(shard, following, segment.base_offset)
            if segment.next_offset < segment.base_offset or segment.end < segment.start_position:
                self._damage(f"shard {shard.name!r}: the segment at offset {segment.base_offset} ends before it begins")
            following = max(following, segment.next_offset)
        self._check_gap(shard, following, shard.next_offset)
        if segments and shard.next_offset < segments[-1].next_offset and not shard.damage:
            self._damage(
                f"shard {shard.name!r}: its next offset {shard.next_offset} is before the end "
                f"{segments[-1].next_offset} of its last segment"
            )

    def _check_gap(self, shard: Shard, end: int, begin: int) -> None:
        """Offsets may be missing only where they were reserved for memory; trimmed ones are before the start."""
        if end < begin > shard.reserved_offset:
            self._damage(
                f"shard {shard.name!r}: offsets {end} to {begin - 1} are in no segment and were never in memory"
            )

    def _check_segment_keys(self) -> None:
        unknown: set[int] = set()
        for key, _ in self._store.scan(Family.SEGMENTS):
            if len(key) not in (_ID.size, 2 * _ID.size):
                self._damage(f"segments key {key.hex()} has {len(key)} bytes")
            elif (shard_id := _ID.unpack_from(key)[0]) not in self._shards:
                unknown.add(shard_id)
        for shard_id in sorted(unknown):
            self._report.note(
                self._path, 0, f"segments are recorded of shard {shard_id}, which is not in the catalogue"
            )

    def _check_files(self) -> None:
        """Compare what the records of shared files say about references with the segments that are recorded in them."""
        counts: dict[FileKey, list[int]] = {}
        for key, value in self._store.scan(Family.SEGMENTS):
            if (found := shard_records.reference(key, value)) is not None:
                count = counts.setdefault(found[0], [0, 0])
                count[0] += found[1]
                count[1] += found[2]
        for record in load_files(self._store):
            self.found.files.append(record)
            records, size_bytes = counts.pop(record.key, (0, 0))
            if (record.live_records, record.live_bytes) != (records, size_bytes):
                self._damage(
                    f"shared file {record.path('sealed')}: expected {record.live_records} records and "
                    f"{record.live_bytes} bytes in recorded segments, found {records} and {size_bytes}"
                )
        for day, file_id in sorted(counts):
            self._damage(f"shared file {shared_path('sealed', day, file_id)} has segments, but no record of its own")

    def _check_cursors(self) -> None:
        for key, value in self._store.scan(Family.CURSORS):
            try:
                (shard_id,) = _ID.unpack_from(key)
                name = key[_ID.size :].decode()
                decode_cursor(shard_id, validate_name("cursor name", name), value)
            except _DAMAGED as error:
                self._damage(f"cursor key {key.hex()}: {error}")
                continue
            self._report.counts.cursors += 1
            if shard_id not in self._shards:
                self._report.note(self._path, 0, f"cursor {name!r} belongs to shard {shard_id}, which does not exist")

    def _check_producers(self) -> None:
        epochs: dict[int, int] = {}
        named: dict[int, int] = {}
        names: dict[int, str] = {}
        names_by_id: dict[int, str] = {}
        for key, value in self._store.scan(Family.PRODUCERS):
            try:
                if key[:1] == b"n":
                    identity = decode_identity(value)
                    named[identity.producer_id] = identity.epoch
                    names[identity.producer_id] = validate_name("producer name", key[1:].decode())
                    self._report.counts.producers += 1
                elif key[:1] == b"i":
                    producer_id = _ID.unpack(key[1:])[0]
                    epochs[producer_id] = decode_epoch(value)
                    if name := decode_name(value):
                        names_by_id[producer_id] = name
                elif key[:1] == b"s" and len(key) == 1 + 2 * _ID.size:
                    ProducerState.decode(value)
                else:
                    self._damage(f"producers key {key.hex()} is of an unknown kind")
            except _DAMAGED as error:
                self._damage(f"producers key {key.hex()}: {error}")
        if named != epochs:
            ids = sorted({*named.items()} ^ {*epochs.items()})
            self._damage(f"producers by name and by id differ: (id, epoch) {ids[:10]}")
        if not names_by_id.items() <= names.items():
            others = sorted(names_by_id.items() - names.items())
            self._damage(f"producers have other names by id: (id, name) {others[:10]}")

    def _check_state(self) -> None:
        for key, value in self._store.scan(Family.STATE):
            try:
                if key[:1] == VALUE_PREFIX:
                    stored = decode_value(key[1:], value)
                    self._report.counts.state_values += 1
                    expires = stored.expires_at_us
                    if expires and self._store.get(Family.STATE, expiry_key(expires, stored.key)) is None:
                        self._damage(f"state key {stored.key!r} expires, but is not in the index of expiries")
                elif key[:1] == EXPIRY_PREFIX:
                    self._check_expiry(key)
                else:
                    self._damage(f"state key {key.hex()} is of an unknown kind")
            except _DAMAGED as error:
                self._damage(f"state key {key.hex()}: {error}")

    def _check_expiry(self, key: bytes) -> None:
        expires_at_us, state_key = decode_expiry_key(key)
        value = self._store.get(Family.STATE, VALUE_PREFIX + state_key)
        if value is None or decode_value(state_key, value).expires_at_us != expires_at_us:
            self._damage(f"the index of expiries has state key {state_key!r} at {expires_at_us}, the value has not")

    def _check_words(self) -> None:
        for key, _ in self._store.scan(Family.KEY_INDEX):
            try:
                decode_index_key(key)
            except _DAMAGED as error:
                self._damage(f"key index: {error}")
                continue
            self._report.counts.indexed_words += 1
