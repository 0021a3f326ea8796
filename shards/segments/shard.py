"""A shard: its ordered segments, appends to them, and the part that readers may see.

Appending runs ahead of publishing. The engine decides an append (its offset, its lsn) and copies it to the end at once;
when it is durable in the journal, `publish` moves the published end. So a reader never sees uncommitted records, and
publishing after a commit costs the same for one batch as for a thousand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TypeAlias

from shards.errors import ShardDamagedError, ShardNotFoundError
from shards.idempotence.producer_state import ProducerState
from shards.idempotence.resends import Place
from shards.model import Mode, SegmentInfo, SegmentKind, ShardConfig, ShardInfo
from shards.segments.chunks import ChunkPool
from shards.segments.due_times import DueTime
from shards.segments.log_segment import LogHeader, LogSegment
from shards.segments.losses import Loss, with_loss
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment import MemorySegment, Segment
from shards.topics.publish_epochs import PublishEpoch

BEING_DELETED = "it is being deleted"
"""Damage of a shard whose deletion is not durable yet; never stored."""

Published: TypeAlias = tuple[int, Segment | None, int, int]
"""How far a shard may be read: (next offset, segment that contains it, position in it, lsn). A plain tuple, since a
commit group creates one for every shard in it."""


class Shard:
    """The write and read state of one shard.

    Attributes:
        shard_id: lsn of the entry that created it.
        name: Its name.
        config: Its configuration; ``config.mode`` is the mode of the active segment.
        start_offset: First offset that was not trimmed.
        trim_decided: The same, including a trim by retention that is not durable yet.
        next_offset: Offset of the next record; may be ahead of the published end.
        last_lsn: lsn of the newest batch, or of what tells that later ones were lost, or of the deletion; may be ahead
            as well.
        reserved_offset: Offsets below it are never assigned again (memory mode: reserved in the journal ahead of use).
        asked_offset: The same, including reservations that are not durable yet.
        in_memory_mode: Whether the next batch goes to a memory segment; may be ahead of ``config.mode``.
        indexed: Whether it has an index of keys or tags.
        chunk_number: The appender's mark, so that a received chunk publishes it once.
        segments: All segments with records, oldest first; offsets between two of them were lost with the memory.
        producers: Sequence state by producer id; None until a producer with an id appends.
        has_forgotten_producers: Whether the state of a registered producer was ever dropped; set with `producers`.
        recovered_offset: Offsets below it were assigned before the shard was opened; those in no segment are lost.
        damage: Why the shard is stopped, or an empty string.
        deleted: It is being deleted or was deleted (``damage`` is set as well): it must not be used any more.
        deleted_lsn: The lsn of the deletion, from the decision on; 0 before.
        gone: The deletion is committed. Until then a crash may restore the shard, so it is kept like any other.
        group_number: Commit group that last changed it (the committer's mark, so that a group lists it once).
        pending_groups: Number of commit groups with entries of this shard that are not published yet.
        restored_lsn: First lsn after the newest restore from a backup of this shard; 0 if there was none.
        restored_offset: Its next offset at that restore.
        losses: Offsets that were lost with the memory, oldest first, see `shards.segments.losses`.
        listeners: Called with the shard after each publish.
        era: Epoch of its last publish, see `shards.topics.publish_epochs`.
        due: When the background work looks at it, see `shards.segments.due_times`; None if no time is set.
        tells_appends: The background work has to look at it after its next publish.
        in_closing_order: It is among the shards that may be closed when too many are open.
    """

    __slots__ = (
        "__weakref__",
        "asked_offset",
        "chunk_number",
        "config",
        "created_us",
        "damage",
        "deleted",
        "deleted_lsn",
        "dirty",
        "due",
        "era",
        "gone",
        "group_number",
        "has_forgotten_producers",
        "in_closing_order",
        "in_memory_mode",
        "indexed",
        "last_lsn",
        "listeners",
        "losses",
        "name",
        "next_offset",
        "pending_groups",
        "producers",
        "published_lsn",
        "published_offset",
        "published_position",
        "published_segment",
        "recovered_offset",
        "reserved_offset",
        "restored_lsn",
        "restored_offset",
        "segment_limit_bytes",
        "segments",
        "shard_id",
        "start_offset",
        "tells_appends",
        "trim_decided",
    )

    def __init__(self, shard_id: int, name: str, config: ShardConfig, created_us: int) -> None:
        self.shard_id = shard_id
        self.name = name
        self.config = config
        self.created_us = created_us
        self.start_offset = 0
        self.trim_decided = 0
        self.next_offset = 0
        self.reserved_offset = 0
        self.restored_lsn = 0
        self.restored_offset = 0
        self.asked_offset = 0
        self.losses: tuple[Loss, ...] = ()
        self.indexed = config.index_keys or config.index_tags
        self.in_memory_mode = config.mode is Mode.MEMORY
        self.chunk_number = -1
        self.last_lsn = 0
        self.segments: list[Segment] = []
        self.producers: dict[int, ProducerState] | None = None
        self.has_forgotten_producers = False
        self.recovered_offset = 0
        self.published_offset = 0
        self.published_segment: Segment | None = None
        self.published_position = 0
        self.published_lsn = 0
        self.segment_limit_bytes = 0
        self.group_number = -1
        self.pending_groups = 0
        self.listeners: dict[Callable[[Shard], None], None] | None = None
        self.era: PublishEpoch[Shard] | None = None
        self.due: DueTime | None = None
        self.tells_appends = False
        self.in_closing_order = False
        self.damage = ""
        self.deleted = False
        self.deleted_lsn = 0
        self.gone = False
        self.dirty = False

    def active(self) -> Segment | None:
        """The segment for the next batch; None if one has to be opened first."""
        if not self.segments or self.segments[-1].closed:
            return None
        return self.segments[-1]

    def places_of(self, first_offset: int, end: int) -> tuple[Place, Place]:
        """The safest and the least safe place of the records from an offset up to another, see `resends`."""
        places: set[Place] = set()
        end = min(end, self.next_offset)
        offset = first_offset
        if offset < self.start_offset:
            # Offsets of memory-mode batches are reserved before.
            places.add(Place.TRIMMED if offset < self.asked_offset else Place.TRIMMED_FILE)
            offset = self.start_offset
        at = max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)
        while offset < end:
            segment = self.segments[at] if at < len(self.segments) else None
            at += 1
            if segment is not None and segment.next_offset <= offset:
                continue
            if segment is None or segment.base_offset > offset:
                # Memory segments between others are dropped when there are too many; all of them were lost at a
                # restart.
                places.add(Place.LOST if offset < self.recovered_offset else Place.TRIMMED)
                if segment is None:
                    break
                offset = segment.base_offset
            if offset < end:
                places.add(Place.MEMORY if segment.kind is SegmentKind.MEMORY else Place.FILE)
                offset = segment.next_offset
        return (min(places), max(places)) if places else (Place.FILE, Place.FILE)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is lost if this object is freed and the shard is read from its saved record again.

        The caller has to check that the record is up to date, and that the shard needs no regular checks.
        """
        return not (
            self.damage
            or self.listeners
            or self.pending_groups
            or self.in_memory_mode
            or self.trim_decided > self.start_offset
            or any(segment.kind is SegmentKind.MEMORY or segment.chunks.chunks for segment in self.segments)
        )

    def open_segment(self, mode: Mode, base_offset: int, created_us: int, path: str, pool: ChunkPool) -> Segment:
        """Close the active segment and open the next one in the given mode (``path``: for a log file)."""
        if self.segments:
            self.segments[-1].closed = True
        self.in_memory_mode = mode is Mode.MEMORY
        segment: Segment
        if mode is Mode.MEMORY:
            segment = MemorySegment(base_offset, created_us, pool)
        else:
            segment = LogSegment(path, LogHeader(self.shard_id, base_offset, created_us, self.name), pool)
        self.segments.append(segment)
        return segment

    def published_now(self) -> Published:
        """The present write state, to be passed to `publish` when all of it is committed."""
        segment = self.segments[-1] if self.segments else None
        return self.next_offset, segment, segment.end if segment else 0, self.last_lsn

    @property
    def is_published(self) -> bool:
        """Whether `published_now` is visible to readers already."""
        next_offset, segment, position, lsn = self.published_now()
        return (
            segment is self.published_segment
            and next_offset == self.published_offset
            and position == self.published_position
            and lsn == self.published_lsn
        )

    def publish(self, published: Published) -> None:
        """Make everything up to there visible to readers.

        REQUIRES: it is committed, or the shard is in memory mode and nothing of it is pending.
        """
        self.published_offset, self.published_segment, self.published_position, self.published_lsn = published
        self.dirty = True
        if self.listeners:
            self.notify()

    def add_listener(self, listener: Callable[[Shard], None]) -> None:
        """Call a function after each publish, and when the shard is stopped or deleted.

        There may be thousands: a listener that has been called and has not read yet should remove itself until it has.
        """
        if self.listeners is None:
            self.listeners = {}
        self.listeners[listener] = None

    def remove_listener(self, listener: Callable[[Shard], None]) -> None:
        """Remove a listener."""
        if self.listeners is not None:
            del self.listeners[listener]
            if not self.listeners:
                self.listeners = None

    def notify(self) -> None:
        """Call the listeners."""
        if self.listeners:
            for listener in tuple(self.listeners):
                listener(self)

    def visible_end(self, segment: Segment) -> int:
        """Position up to which a segment may be read; its start if nothing of it is published."""
        if segment is self.published_segment:
            return self.published_position
        # Segments before the published one are committed completely, those after it not at all.
        return segment.end if segment.base_offset < self.published_offset else segment.start_position

    def visible_next_offset(self, segment: Segment) -> int:
        """Offset up to which a segment may be read."""
        return min(segment.next_offset, self.published_offset)

    def segment_at(self, offset: int) -> tuple[Segment | None, int]:
        """The segment that holds an offset, and the offset to read at: after the wanted one where records were lost.

        Returns:
            (None, published_offset) if there is nothing published at or after the offset.
        """
        if offset >= self.published_offset:
            return None, self.published_offset
        at = bisect_right(self.segments, offset, key=_base_offset) - 1
        if at >= 0 and offset < self.segments[at].next_offset:
            return self.segments[at], offset
        at += 1
        # A segment that was opened and closed without a record does not divide a lost range.
        while at < len(self.segments) and self.segments[at].next_offset == self.segments[at].base_offset:
            at += 1
        if at < len(self.segments) and self.segments[at].base_offset < self.published_offset:
            return self.segments[at], self.segments[at].base_offset
        return None, self.published_offset

    def put_parts(self, parts: Sequence[ParquetSegment]) -> list[Segment]:
        """Replace the segments of a range by the parts of it that are in shared files.

        Segments at the beginning of the range may be missing, because they were trimmed.

        Args:
            parts: In order, each beginning where the one before ends.

        Returns:
            The segments that were replaced; none if the shard has the parts already, or has no such range any more.
        """
        end = parts[-1].next_offset
        first = bisect_left(self.segments, parts[0].base_offset, key=_base_offset)
        after = bisect_left(self.segments, end, key=_base_offset)
        old = self.segments[first:after]
        if not old or not _make_up(old, parts[0].base_offset if first else None, end) or _are_these(old, parts):
            return []
        new = [part for part in parts if part.next_offset > max(self.start_offset, old[0].base_offset)]
        if not new:
            if self.published_segment not in old:
                return []
            # It was trimmed as a whole, and is kept because nothing was published after it.
            new = [parts[-1]]
        self.segments[first:after] = new
        if self.published_segment in old:
            self.published_segment, self.published_position = new[-1], new[-1].end
        self._shorten_first()
        self.dirty = True
        return old

    def trim(self, start_offset: int) -> list[Segment]:
        """Drop records below the offset and return the segments that the shard no longer has; never the active one.

        A Parquet segment of which half was trimmed is replaced by a shorter one: the rest of it is dead in its file.
        """
        if start_offset <= self.start_offset:
            return []
        self.start_offset = start_offset
        self.dirty = True
        dropped = []
        while self.segments and self.segments[0].closed and self.segments[0].next_offset <= start_offset:
            if self.segments[0] is self.published_segment:
                break
            dropped.append(self.segments.pop(0))
        # A segment that was closed while it was empty shares its file with the one that began at the same offset.
        kept = {segment.base_offset for segment in self.segments}
        return [*(segment for segment in dropped if segment.base_offset not in kept), *self._shorten_first()]

    def _shorten_first(self) -> list[ParquetSegment]:
        """Replace the first segment by a shorter one if much of it was trimmed; returns the one that was replaced."""
        first = self.segments[0] if self.segments else None
        if not isinstance(first, ParquetSegment) or not first.base_offset < self.start_offset < first.next_offset:
            return []
        self.segments[0] = shorter = first.without_trimmed(self.start_offset)
        if self.published_segment is first:
            self.published_segment, self.published_position = shorter, shorter.end
        return [first] if shorter is not first else []

    @property
    def accounted_offset(self) -> int:
        """Offset below which each record is in a segment, was trimmed, or is recorded as lost."""
        end = max(self.start_offset, self.losses[-1][0] if self.losses else 0)
        return max(end, self.segments[-1].next_offset) if self.segments else end

    def note_loss(self, next_offset: int, last_lsn: int) -> None:
        """Record that the records below an offset, with lsns up to the given one, were lost with the memory."""
        self.losses = with_loss(self.losses, (next_offset, last_lsn), self.start_offset)
        self.dirty = True

    def note_restore(self, restored_lsn: int) -> None:
        """Record that the shard was restored from a backup, if it is older than the restore and not marked yet.

        The mark need not be saved: as long as nothing else changes, the next opening of the shard sets the same.

        REQUIRES: nothing was appended since.
        """
        if self.restored_lsn < restored_lsn and self.shard_id < restored_lsn:
            self.restored_lsn, self.restored_offset = restored_lsn, self.next_offset

    def record_count_from(self, offset: int) -> int:
        """Number of published records from an offset on, without those that were lost with the memory."""
        offset = max(offset, self.start_offset)
        count = 0
        for segment in reversed(self.segments):
            end = self.visible_next_offset(segment)
            count += max(0, end - max(segment.base_offset, offset))
            if segment.base_offset <= offset:
                break
        return count

    def check_usable(self) -> None:
        """Refuse any operation on a shard that is stopped or deleted.

        Raises:
            ShardNotFoundError: It was deleted.
            ShardDamagedError: Its stored data is damaged.
        """
        if self.deleted:
            raise ShardNotFoundError(f"shard {self.name!r} was deleted; create it again first")
        if self.damage:
            raise ShardDamagedError(
                f"shard {self.name!r} is stopped because stored data of it is damaged: {self.damage}. "
                f"Other shards continue; see 'journal check', then restore or delete it"
            )

    def info(self, *, with_segments: bool) -> ShardInfo:
        """The description of the shard for clients: published records only."""
        segments: list[SegmentInfo] = []
        size_bytes = 0
        for segment in self.segments:
            if segment.base_offset > self.published_offset:
                break
            end = self.visible_end(segment)
            size_bytes += end - segment.start_position
            if with_segments:
                segments.append(segment.info(self.visible_next_offset(segment), end))
            if segment is self.published_segment:
                break
        return ShardInfo(
            name=self.name,
            shard_id=self.shard_id,
            config=self.config,
            created_us=self.created_us,
            start_offset=self.start_offset,
            next_offset=self.published_offset,
            last_lsn=self.published_lsn,
            size_bytes=size_bytes,
            segments=tuple(segments),
            restored_offset=self.restored_offset if self.restored_lsn else None,
            record_count=self.record_count_from(self.start_offset),
        )


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _make_up(segments: Sequence[Segment], base_offset: int | None, end: int) -> bool:
    """Whether closed segments in files make up the range from an offset (None: from the first one's) to another.

    Closed segments without records may lie between them: the mode was switched back and forth.
    """
    following = segments[0].base_offset if base_offset is None else base_offset
    for segment in segments:
        if segment.closed and segment.next_offset == segment.base_offset:
            continue
        if segment.base_offset != following or not segment.closed or segment.kind is SegmentKind.MEMORY:
            return False
        following = segment.next_offset
    return following == end


def _are_these(segments: Sequence[Segment], parts: Sequence[ParquetSegment]) -> bool:
    """Whether the newest of the segments are the parts, or what a trim has left of them."""
    last = segments[-1]
    return isinstance(last, ParquetSegment) and last.is_in_file_of(parts[-1])
