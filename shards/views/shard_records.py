"""The records of a shard's data at checkpoints: its head, its segments in files, its producers.

They are written after the files that they describe are synced, so a record never promises more than a file has.

Family ``segments``: key = shard id (u64, big-endian) for the head, the same with the base offset (u64, big-endian) for
a segment; value = version (u8: 1; 2 for the head of a shard that was restored from a backup; 3 for a segment in a
shared file and for the head of a shard that lost records with the memory), then the struct below, little-endian. The
states of its producers are in `shards.views.producer_records`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from typing import TypeAlias

import attrs

from shards.errors import CorruptionError, FormatVersionError
from shards.model import SegmentKind
from shards.seams.store import Family, Mutations, OrderedStore
from shards.segments.chunks import ChunkPool
from shards.segments.log_segment import LogHeader, LogSegment
from shards.segments.losses import Loss, losses_of_restart
from shards.segments.parquet_segment import ParquetSegment, SharedPlace
from shards.segments.segment import Segment
from shards.segments.segment_paths import LAST_DAY
from shards.segments.shard import BEING_DELETED, Shard
from shards.views.shared_files import FileKey

_SHARD = struct.Struct(">Q")
_SEGMENT = struct.Struct(">QQ")
# version; start_offset, next_offset, reserved_offset, last_lsn; then the damage in UTF-8
_HEAD_VALUE = struct.Struct("<BQQQQ")
# the same fields; restored_lsn, restored_offset; then the damage in UTF-8
_RESTORED_HEAD_VALUE = struct.Struct("<BQQQQQQ")
# the same fields; the number of losses; then (next offset, last lsn) of each, then the damage in UTF-8
_LOSSES_HEAD_VALUE = struct.Struct("<BQQQQQQI")
_LOSS = struct.Struct("<QQ")
# version, closed, 2 zero bytes, saved index entries; created, end position, next offset, newest append, last lsn,
# newest record
_SEGMENT_VALUE = struct.Struct("<BBxxIQQQQQQ")
# version, 3 zero bytes, day; next offset, share of the file's bytes, created, newest append, last lsn, newest record,
# file id, first row
_SHARED_VALUE = struct.Struct("<B3xIQQQQQQQQ")
_MAX_OFFSET = 2**63 - 1
_VERSION = 1
_SHARED_VERSION = 3
_RESTORED_VERSION = 2
_LOSSES_VERSION = 3
_SEGMENTS = {_VERSION: _SEGMENT_VALUE, _SHARED_VERSION: _SHARED_VALUE}
_HEADS = {_VERSION: _HEAD_VALUE, _RESTORED_VERSION: _RESTORED_HEAD_VALUE, _LOSSES_VERSION: _LOSSES_HEAD_VALUE}


Outline: TypeAlias = tuple[int, SegmentKind | None, bool, int]
"""(shard id, kind, closed, end position) of a segment; of a shard (id, None, damaged, next offset)."""


@attrs.frozen(slots=True)
class Saved:
    """What `save` has recorded.

    Attributes:
        base_offsets: Base offsets of the segments that are recorded now.
        final: Segments whose records are new and will not change any more.
    """

    base_offsets: tuple[int, ...]
    final: list[LogSegment | ParquetSegment]

    def note_written(self) -> None:
        """Note that the mutations were written: the final records are not written again."""
        for segment in self.final:
            segment.is_recorded = True


def save(mutations: Mutations, shard: Shard, *, recorded: tuple[int, ...]) -> Saved:
    """Record the part of a shard that is flushed to its log files, which must be synced as well.

    A shard may have hundreds of closed segments, so the records of those that are stored and final are left alone.

    REQUIRES: the store has the states of its producers as `shards.views.producer_records` saves them for the present
    `safe_offset`, or newer ones: records below that offset are not replayed from the journal.

    Args:
        mutations: Receives the records.
        shard: The shard.
        recorded: Base offsets of the segments that are recorded in the store.
    """
    safe = safe_offset(shard)
    mutations.put(Family.SEGMENTS, _SHARD.pack(shard.shard_id), _head_value(shard, safe))
    known = set(recorded)
    present: list[int] = []
    final: list[LogSegment | ParquetSegment] = []
    for segment in _published_file_segments(shard):
        present.append(segment.base_offset)
        is_final = _is_final(segment, shard.published_lsn)
        if not (is_final and segment.is_recorded and segment.base_offset in known):
            value = _value(segment, shard.published_lsn)
            mutations.put(Family.SEGMENTS, _SEGMENT.pack(shard.shard_id, segment.base_offset), value)
            if is_final:
                final.append(segment)
        if isinstance(segment, LogSegment) and segment.flushed < shard.visible_end(segment):
            # Later segments are recovered from the journal, which continues in this one.
            break
    for base_offset in known.difference(present):
        mutations.delete(Family.SEGMENTS, _SEGMENT.pack(shard.shard_id, base_offset))
    return Saved(tuple(present), final)


def _is_final(segment: LogSegment | ParquetSegment, published_lsn: int) -> bool:
    """Whether the record of a segment will not change any more."""
    return isinstance(segment, ParquetSegment) or (
        segment.closed and segment.flushed == segment.end and segment.last_lsn <= published_lsn
    )


def _value(segment: LogSegment | ParquetSegment, published_lsn: int) -> bytes:
    return _log_value(segment, published_lsn) if isinstance(segment, LogSegment) else _parquet_value(segment)


def _head_value(shard: Shard, safe: int) -> bytes:
    damage = "" if shard.damage == BEING_DELETED else shard.damage
    fields = (shard.start_offset, safe, shard.reserved_offset, shard.published_lsn)
    restored = (shard.restored_lsn, shard.restored_offset)
    if losses := losses_of_restart(shard.losses, _published_segments(shard), shard.start_offset):
        head = _LOSSES_HEAD_VALUE.pack(_LOSSES_VERSION, *fields, *restored, len(losses))
        return head + b"".join(_LOSS.pack(*loss) for loss in losses) + damage.encode()
    if shard.restored_lsn:
        return _RESTORED_HEAD_VALUE.pack(_RESTORED_VERSION, *fields, *restored) + damage.encode()
    return _HEAD_VALUE.pack(_VERSION, *fields) + damage.encode()


def _log_value(segment: LogSegment, published_lsn: int) -> bytes:
    return _SEGMENT_VALUE.pack(
        _VERSION,
        segment.closed and segment.flushed == segment.end,
        segment.saved_entries,
        segment.created_us,
        segment.flushed,
        segment.flushed_offset,
        segment.newest_append_us,
        # Later batches may never become durable, and then their lsns may be assigned to others.
        min(segment.last_lsn, published_lsn),
        segment.newest_us,
    )


def _parquet_value(segment: ParquetSegment) -> bytes:
    return _SHARED_VALUE.pack(
        _SHARED_VERSION,
        segment.place.day,
        segment.next_offset,
        segment.size_bytes,
        segment.created_us,
        segment.newest_append_us,
        segment.last_lsn,
        segment.newest_us,
        segment.place.file_id,
        segment.place.first_row,
    )


def _published_segments(shard: Shard) -> Iterator[Segment]:
    # A segment after the published one was opened by a decision that may never be committed.
    if shard.published_segment is not None:
        for segment in shard.segments:
            yield segment
            if segment is shard.published_segment:
                return


def _published_file_segments(shard: Shard) -> Iterator[LogSegment | ParquetSegment]:
    return (segment for segment in _published_segments(shard) if isinstance(segment, LogSegment | ParquetSegment))


def safe_offset(shard: Shard) -> int:
    """Offset below which the shard needs no journal: all records below it are in files, or were only in memory."""
    for segment in shard.segments:
        if isinstance(segment, LogSegment) and segment.flushed < shard.visible_end(segment):
            return segment.flushed_offset
        if segment is shard.published_segment:
            break
    return shard.published_offset


def load(
    store: OrderedStore, shard: Shard, log_path: Callable[[int, int], str], pool: ChunkPool, *, sealed_root: str
) -> tuple[int, ...]:
    """Load the recorded state of a shard into a new shard object; none of its files is read.

    Args:
        store: The store of the views.
        shard: A new `Shard`.
        log_path: Returns the path of the log file of a shard id and base offset.
        pool: Memory for appends.
        sealed_root: Directory of all Parquet segments.

    Returns:
        Base offsets of the segments that are recorded in the store.

    Raises:
        CorruptionError: A record is truncated.
        FormatVersionError: A newer program wrote it.
    """
    recorded = []
    for key, value in store.scan(Family.SEGMENTS, _SHARD.pack(shard.shard_id)):
        where = f"record of shard {shard.name!r} in the views"
        is_head = len(key) == _SHARD.size
        version = value[0] if value else 0
        known = _HEADS if is_head else _SEGMENTS
        if version not in known:
            formats = ", ".join(map(str, known))
            raise FormatVersionError(f"{where} has format {value[:1].hex() or 'none'}, this program reads {formats}")
        if is_head:
            layout = _HEADS[version]
            if len(value) < layout.size:
                raise CorruptionError(where, 0, f"{len(value)} bytes, expected at least {layout.size}")
            _, start, following, reserved, last_lsn, *others = layout.unpack_from(value)
            _check_offsets(where, 0, start, following, reserved)
            if others:
                shard.restored_lsn, shard.restored_offset = others[:2]
            shard.losses = _losses(where, value)
            shard.start_offset, shard.next_offset = start, following
            shard.reserved_offset = shard.asked_offset = reserved
            shard.last_lsn = last_lsn
            shard.damage = _decode_damage(where, _head_size(value), value)
            continue
        if len(key) != _SEGMENT.size:
            raise CorruptionError(where, 0, f"the key has {len(key)} bytes, expected {_SEGMENT.size}")
        expected = _SEGMENTS[version].size
        if len(value) != expected:
            raise CorruptionError(where, 0, f"{len(value)} bytes, expected {expected}")
        _, base_offset = _SEGMENT.unpack(key)
        recorded.append(base_offset)
        if version != _VERSION:
            sealed = _parquet_segment(shard, base_offset, value, sealed_root)
            _check_offsets(where, base_offset, sealed.next_offset)
            _check_place(where, sealed)
            sealed.is_recorded = True
            shard.segments.append(sealed)
            continue
        _, closed, entries, created, end, following, newest_append, last_lsn, newest = _SEGMENT_VALUE.unpack(value)
        _check_offsets(where, base_offset, following)
        header = LogHeader(shard.shard_id, base_offset, created, shard.name)
        segment = LogSegment(log_path(shard.shard_id, base_offset), header, pool)
        segment.restore(
            end=end,
            next_offset=following,
            newest_append_us=newest_append,
            last_lsn=last_lsn,
            newest_us=newest,
            entries=entries,
        )
        segment.closed = segment.is_recorded = bool(closed)
        shard.segments.append(segment)
    # Only the newest segment can be open; an older one that a crash left open is followed by another.
    for older in shard.segments[:-1]:
        older.closed = True
    return tuple(recorded)


def _head_size(value: bytes) -> int:
    """Position of the damage in a head's value."""
    if value[0] == _LOSSES_VERSION and len(value) >= _LOSSES_HEAD_VALUE.size:
        count: int = _LOSSES_HEAD_VALUE.unpack_from(value)[7]
        return _LOSSES_HEAD_VALUE.size + count * _LOSS.size
    layout: struct.Struct = _HEADS.get(value[0], _HEAD_VALUE)
    return layout.size


def _losses(where: str, value: bytes) -> tuple[Loss, ...]:
    if value[0] != _LOSSES_VERSION:
        return ()
    start, end = _LOSSES_HEAD_VALUE.size, _head_size(value)
    if len(value) < end:
        raise CorruptionError(where, 0, f"{len(value)} bytes, expected at least {end}")
    losses: tuple[Loss, ...] = tuple(_LOSS.iter_unpack(value[start:end]))
    _check_offsets(where, 1, *(next_offset for next_offset, _ in losses))
    return losses


def _check_offsets(where: str, least: int, *offsets: int) -> None:
    if not all(least <= offset <= _MAX_OFFSET for offset in offsets):
        raise CorruptionError(where, 0, f"offsets {offsets}, expected from {least} to {_MAX_OFFSET}")


def _decode_damage(where: str, start: int, value: bytes) -> str:
    try:
        return value[start:].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(where, start + error.start, f"not UTF-8: {error.reason}") from error


def _check_place(where: str, segment: ParquetSegment) -> None:
    if segment.place.day > LAST_DAY:
        raise CorruptionError(where, 0, f"day {segment.place.day}, expected at most {LAST_DAY}")


def _parquet_segment(shard: Shard, base_offset: int, value: bytes, sealed_root: str) -> ParquetSegment:
    _, day, following, size_bytes, created, newest_append, last_lsn, newest, file_id, row = _SHARED_VALUE.unpack(value)
    return ParquetSegment(
        sealed_root,
        shard.name,
        shard.shard_id,
        base_offset=base_offset,
        next_offset=following,
        size_bytes=size_bytes,
        created_us=created,
        newest_append_us=newest_append,
        last_lsn=last_lsn,
        newest_us=newest,
        place=SharedPlace(day, file_id, row),
    )


def reference(key: bytes, value: bytes) -> tuple[FileKey, int, int] | None:
    """Which shared file a record of a segment refers to, with how many records and bytes; None if it does not."""
    if len(key) != _SEGMENT.size or len(value) != _SHARED_VALUE.size or value[0] != _SHARED_VERSION:
        return None
    _, day, following, size_bytes, *_, file_id, _ = _SHARED_VALUE.unpack(value)
    return (day, file_id), following - _SEGMENT.unpack(key)[1], size_bytes


References: TypeAlias = dict[FileKey, tuple[int, int]]
"""How many more records and bytes segments refer to, by shared file."""


def changed_references(store: OrderedStore, mutations: Mutations, others: References | None = None) -> References:
    """How many more records and bytes the records of segments refer to in shared files when mutations are written.

    REQUIRES: nothing else changes these records before the mutations are written.

    Args:
        store: Has the records as they are.
        mutations: What is to be written.
        others: Changes by other mutations, of other segments: these are added to them.
    """
    changes: References = {} if others is None else others
    for family, key, value in mutations:
        if family is not Family.SEGMENTS or len(key) != _SEGMENT.size:
            continue
        for sign, stored in ((-1, store.get(family, key)), (1, value)):
            found = reference(key, stored) if stored is not None else None
            if found is not None:
                file, records, size_bytes = found
                before = changes.get(file, (0, 0))
                changes[file] = before[0] + sign * records, before[1] + sign * size_bytes
    return changes


def logs(store: OrderedStore) -> Generator[int | None, None, None]:
    """Scan all recorded segments; yields the shard's id for each log segment that is closed or has records, else None.

    So the caller can pause: there may be millions. A shard whose records are in shared files has an empty log segment,
    and is left out, as are unreadable records; `load` reports these.
    """
    for segment in _recorded_logs(store):
        yield None if segment is None else segment[0]


def log_ends(store: OrderedStore) -> Generator[tuple[int, int, int] | None, None, None]:
    """Scan all records; yields (shard id, base offset, end position) for each segment with records in a log file.

    Otherwise it yields None, so that the caller can pause. Unreadable records are left out; `load` reports them.
    """
    for segment in _recorded_logs(store):
        end = None
        if segment is not None:
            shard_id, base_offset, position, has_records = segment
            if has_records:
                end = shard_id, base_offset, position
        yield end


def _recorded_logs(store: OrderedStore) -> Generator[tuple[int, int, int, bool] | None, None, None]:
    """Scan all records; yields (shard id, base offset, end position, whether it has records), else None.

    Log segments that are neither closed nor have records are left out.
    """
    for item in store.scan_in_steps(Family.SEGMENTS):
        found = None
        if item is not None:
            key, value = item
            if len(key) == _SEGMENT.size and len(value) == _SEGMENT_VALUE.size and value[0] == _VERSION:
                shard_id, base_offset = _SEGMENT.unpack(key)
                _, closed, _, _, position, next_offset, *_ = _SEGMENT_VALUE.unpack(value)
                if closed or next_offset > base_offset:
                    found = shard_id, base_offset, position, next_offset > base_offset
        yield found


def references(store: OrderedStore) -> Generator[tuple[int, FileKey] | None, None, None]:
    """Scan all records; yields (shard id, file) for each segment in a shared file.

    Otherwise it yields None, so that the caller can pause.
    """
    for item in store.scan_in_steps(Family.SEGMENTS):
        found = None if item is None else reference(*item)
        yield None if item is None or found is None else (_SEGMENT.unpack(item[0])[0], found[0])


def outlines(store: OrderedStore) -> Generator[Outline | None, None, None]:
    """Scan all records; yields (shard id, kind, closed, end position) for each segment, None for a pause.

    For a shard's head the kind is None, the flag means damage, and the last is the next offset. Unreadable records
    are left out; `load` reports them.
    """
    for item in store.scan_in_steps(Family.SEGMENTS):
        if item is None:
            yield None
            continue
        key, value = item
        if len(key) == _SHARD.size and len(value) >= _HEAD_VALUE.size:
            yield _SHARD.unpack(key)[0], None, len(value) > _head_size(value), _HEAD_VALUE.unpack_from(value)[2]
        elif len(key) != _SEGMENT.size:
            continue
        elif len(value) == _SEGMENT_VALUE.size and value[0] == _VERSION:
            _, closed, _, _, end, *_ = _SEGMENT_VALUE.unpack(value)
            yield _SEGMENT.unpack(key)[0], SegmentKind.LOG, bool(closed), end
        elif (found := reference(key, value)) is not None:
            yield _SEGMENT.unpack(key)[0], SegmentKind.PARQUET, True, found[2]


def held_ranges(store: OrderedStore, shard_id: int) -> list[tuple[int, int]]:
    """The ranges of offsets in the recorded segments of a shard that were not trimmed, in order.

    Unreadable records are left out; `load` reports them.
    """
    start = 0
    ranges: list[tuple[int, int]] = []
    for key, value in store.scan(Family.SEGMENTS, _SHARD.pack(shard_id)):
        if len(key) == _SHARD.size and len(value) >= _HEAD_VALUE.size:
            start = _HEAD_VALUE.unpack_from(value)[1]
        elif len(key) == _SEGMENT.size and (following := _next_offset(value)) is not None:
            first = max(start, _SEGMENT.unpack(key)[1])
            if first < following:
                ranges.append((first, following))
    return ranges


def _next_offset(value: bytes) -> int | None:
    """The end of a recorded segment; None if the record cannot be read."""
    following: int | None = None
    if len(value) == _SEGMENT_VALUE.size and value[0] == _VERSION:
        following = _SEGMENT_VALUE.unpack(value)[5]
    elif len(value) == _SHARED_VALUE.size and value[0] == _SHARED_VERSION:
        following = _SHARED_VALUE.unpack(value)[2]
    return following


def newest_append_times(store: OrderedStore) -> Generator[int, None, None]:
    """Scan all records; yields the time of the newest append for each segment, 0 for the others.

    So the caller can pause: there may be millions. Unreadable records are left out; `load` reports them.
    """
    for item in store.scan_in_steps(Family.SEGMENTS):
        if item is None:
            yield 0
            continue
        key, value = item
        if len(key) != _SEGMENT.size:
            yield 0
        elif len(value) == _SEGMENT_VALUE.size and value[0] == _VERSION:
            yield _SEGMENT_VALUE.unpack(value)[6]
        elif len(value) == _SHARED_VALUE.size and value[0] == _SHARED_VERSION:
            yield _SHARED_VALUE.unpack(value)[5]
        else:
            yield 0


def newest_lsns(store: OrderedStore, started_lsn: int) -> Generator[tuple[int, int] | None, None, None]:
    """Scan all records; yields (shard id, newest lsn as `newest_lsn` returns it) for each shard's head, else None.

    So the caller can pause: there may be millions. Unreadable records are left out; `load` reports them.
    """
    for item in store.scan_in_steps(Family.SEGMENTS):
        if item is None:
            yield None
            continue
        key, value = item
        if len(key) == _SHARD.size and len(value) >= _HEAD_VALUE.size:
            yield _SHARD.unpack(key)[0], _newest_lsn(value, started_lsn)
        else:
            yield None


def newest_lsn(store: OrderedStore, shard_id: int, started_lsn: int) -> int:
    """The lsn of the newest recorded batch of a shard, 0 if there is none.

    A shard with reserved offsets may have lost records since; their lsns were not above that of the start.
    """
    value = store.get(Family.SEGMENTS, _SHARD.pack(shard_id))
    return _newest_lsn(value, started_lsn) if value is not None and len(value) >= _HEAD_VALUE.size else 0


def _newest_lsn(head: bytes, started_lsn: int) -> int:
    _, _, following, reserved, last_lsn = _HEAD_VALUE.unpack_from(head)
    newest: int = max(last_lsn, started_lsn) if reserved > following else last_lsn
    return newest


def delete(store: OrderedStore, mutations: Mutations, shard_id: int) -> None:
    """Remove the head of a shard and the records of its segments."""
    for key, _ in store.scan(Family.SEGMENTS, _SHARD.pack(shard_id)):
        mutations.delete(Family.SEGMENTS, key)
