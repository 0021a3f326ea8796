"""The operations on shards of a server, common to all protocols: rules and quotas, then the engine.

The native protocol, the JSON sub-protocol and the administration over HTTP call them. They are independent of the wire
formats.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from journal.access.authorization import Principal
from journal.access.quotas import Meter
from journal.access.rights import Operation, Use
from journal.engine import Engine
from journal.engine.state.shard_discovery import NameScan
from journal.engine.time_slice import TimeSlice
from shards.model import Cursor, Mode, Retention, ShardConfig, ShardInfo
from shards.segments.shard import Shard
from shards.topics.names import MAX_NAME_BYTES
from shards.topics.topic_filters import matches

LARGEST_PAGE = 1_000
"""Largest number of entries of a page. Pages are made in steps of some milliseconds, so that other tasks run."""

_ENTRY_BYTES = 300
"""Largest size of an entry of a page in any protocol, without its name."""


class Requester(Protocol):
    """The sender of a request.

    Attributes:
        principal: Its principal.
        meter: Its quotas; None if it has none.
    """

    @property
    def principal(self) -> Principal: ...

    @property
    def meter(self) -> Meter | None: ...


@attrs.frozen(slots=True)
class ShardPage:
    """Shards sorted by name, without their segments unless these are wanted; ``more`` means that others follow."""

    shards: list[ShardInfo]
    more: bool


@attrs.frozen(slots=True)
class SegmentPage:
    """A shard with some of its segments, oldest first; ``more`` means that newer ones follow."""

    info: ShardInfo
    more: bool


@attrs.frozen(slots=True)
class CursorLag:
    """A cursor and its lag.

    Attributes:
        shard: Name of the shard.
        name: Name of the cursor.
        offset: Next offset that its owner will read.
        version: lsn of the commit that set it.
        lag_records: Number of records from there to the end of the shard, without those that were lost with the memory.
        lost_records: Number of records that were dropped before the owner had read them. Offsets among them that were
            lost with the memory are counted, since they cannot be told from records any more.
    """

    shard: str
    name: str
    offset: int
    version: int
    lag_records: int
    lost_records: int


@attrs.frozen(slots=True)
class CursorPage:
    """Cursors of a page of shards.

    Attributes:
        cursors: Sorted by shard and name.
        more: There are more cursors, or more shards to examine.
        after: The last shard that was examined, for the next page.
        after_cursor: If others of that shard follow, the last cursor of it on this page, for the next page; else empty.
    """

    cursors: list[CursorLag]
    more: bool
    after: str
    after_cursor: str = ""


class ShardOperations:
    """The operations on shards of one engine, for all principals."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # One page is made at a time: the steps of a hundred concurrent requests would add up to a long one.
        self._making = trio.Lock()

    def page_bytes(self, limit: int, most_segments: int = 0) -> int:
        """Approximate upper bound of the size of a listing's reply."""
        entries = min(max(1, limit), LARGEST_PAGE) * (1 + min(most_segments, self.largest_segment_page))
        return min(entries * _ENTRY_BYTES, self._page_bytes) if most_segments else entries * _ENTRY_BYTES

    async def list_shards(
        self,
        requester: Requester,
        topic_filter: str,
        after: str,
        limit: int,
        operation: Operation = Operation.LIST_SHARDS,
        *,
        most_segments: int = 0,
    ) -> ShardPage:
        """One page of the shards that match a filter, sorted by name, after ``after``.

        Each shard is described as of some moment before this returns. Over all pages, a shard that exists during the
        whole listing is listed exactly once; one that is created or deleted during the listing may be listed or not. No
        shard is opened. A shard with up to ``most_segments`` segments is listed with them, one with more without any.

        Raises:
            InvalidNameError: The filter is not valid.
            NotAuthorizedError: The principal may not read all topics of the filter.
        """
        pages = self._names(requester, operation, topic_filter, after)
        async with self._making:
            most_segments = min(most_segments, self.largest_segment_page)
            return await self._shard_page(pages, max(1, min(limit, LARGEST_PAGE)), most_segments)

    async def _shard_page(self, pages: NameScan, limit: int, most_segments: int) -> ShardPage:
        found: list[ShardInfo] = []
        room = self._page_bytes
        step = TimeSlice()
        while (names := await pages.more()) is not None:
            for name in names:
                if (shard_id := self._id_of(name)) is None or (shard := self._engine.peek(shard_id)) is None:
                    continue
                info = shard.info(with_segments=most_segments > 0)
                if len(info.segments) > most_segments:
                    info = attrs.evolve(info, segments=())
                room -= len(name.encode()) + _ENTRY_BYTES * (1 + len(info.segments))
                if len(found) == limit or (found and room < 0):
                    return ShardPage(found, more=True)
                found.append(info)
                if step.is_over:
                    await step.rest()
        return ShardPage(found, more=False)

    def _names(self, requester: Requester, operation: Operation, topic_filter: str, after: str) -> NameScan:
        scan = self._engine.scan_names(topic_filter, after)
        Use(operation, topic_filter=topic_filter).require(requester.principal)
        return scan

    def _id_of(self, name: str) -> int | None:
        """The id of a shard; None if it was deleted since its name was found."""
        return self._engine.shard_id(name)

    @property
    def _page_bytes(self) -> int:
        """Bound on the size of a page's entries, so that they fit into a frame."""
        return self._engine.config.limits.max_frame_bytes // 2

    @property
    def largest_segment_page(self) -> int:
        """Largest number of a shard's segments in one frame."""
        return min(LARGEST_PAGE, self._page_bytes // _ENTRY_BYTES)

    def describe(self, requester: Requester, name: str) -> ShardInfo:
        """A shard with its segments.

        Raises:
            ShardNotFoundError: The shard does not exist.
        """
        Use(Operation.DESCRIBE_SHARD, shard=name).require(requester.principal)
        return self._engine.describe_shard(name, with_segments=True)

    def describe_page(self, requester: Requester, name: str, from_offset: int, limit: int) -> SegmentPage:
        """A shard with up to ``limit`` of its segments, beginning with the one that holds an offset.

        The next page begins at the end of the last segment. Segments that were closed, converted or trimmed in between
        are described as they are then.

        Raises:
            ShardNotFoundError: The shard does not exist.
        """
        info = self.describe(requester, name)
        segments = [each for each in info.segments if each.base_offset >= from_offset or each.next_offset > from_offset]
        end = max(1, min(limit, self.largest_segment_page))
        # An empty segment is followed by one that begins at the same offset, at which the next page would return it
        # again.
        while end < len(segments) and segments[end - 1].next_offset == segments[end - 1].base_offset:
            end += 1
        return SegmentPage(attrs.evolve(info, segments=tuple(segments[:end])), end < len(segments))

    async def cursors(
        self, requester: Requester, topic_filter: str, after: str, limit: int, after_cursor: str = ""
    ) -> CursorPage:
        """The cursors of up to ``limit`` shards that match a filter, sorted by name; at most `LARGEST_PAGE` of them.

        The page begins after the shard ``after``, or with ``after_cursor`` after this cursor of that shard. Cursors of
        a stopped shard are left out: its end is not known. As for `list_shards`, shards may be created and deleted
        between pages.
        """
        pages = self._names(requester, Operation.LIST_CURSORS, topic_filter, after)
        async with self._making:
            page = CursorPage([], more=True, after=after)
            if after_cursor and matches(topic_filter, after):
                page = self._with_cursors(page, after, after_cursor)
            if page.after_cursor:
                return page
            return await self._cursor_lags(page, pages, max(1, min(limit, LARGEST_PAGE)))

    async def _cursor_lags(self, page: CursorPage, pages: NameScan, limit: int) -> CursorPage:
        looked_at = 0
        step = TimeSlice()
        while (names := await pages.more()) is not None:
            for name in names:
                if looked_at == limit or len(page.cursors) >= LARGEST_PAGE:
                    return page
                looked_at += 1
                page = self._with_cursors(page, name)
                if page.after_cursor:
                    return page
                if step.is_over:
                    await step.rest()
        return attrs.evolve(page, more=False)

    def _with_cursors(self, page: CursorPage, name: str, behind: str = "") -> CursorPage:
        """The page with the cursors of one more shard, as many as it has room for."""
        shard_id = self._id_of(name)
        shard = None if shard_id is None else self._engine.peek(shard_id)
        if shard is None or shard.damage:
            return attrs.evolve(page, after=name)
        room = LARGEST_PAGE - len(page.cursors)
        cursors = self._engine.cursors_of(shard.shard_id, behind, room + 1)
        page.cursors.extend(_lag(shard, cursor) for cursor in cursors[:room])
        return attrs.evolve(page, after=name, after_cursor=cursors[room - 1].name if len(cursors) > room else "")

    def cursor_page(self, requester: Requester, name: str, after: str, limit: int) -> tuple[list[Cursor], bool]:
        """Cursors of one shard after ``after``, sorted by name, and whether others follow.

        Raises:
            ShardNotFoundError: The shard does not exist.
            ShardDamagedError: The shard is stopped because of damage.
        """
        Use(Operation.GET_CURSOR, shard=name).require(requester.principal)
        limit = max(1, min(limit, LARGEST_PAGE, self._page_bytes // (MAX_NAME_BYTES + _ENTRY_BYTES)))
        cursors = self._engine.list_cursors(name, after, limit + 1)
        return cursors[:limit], len(cursors) > limit

    async def create(
        self, requester: Requester, name: str, config: ShardConfig, *, exist_ok: bool = False
    ) -> ShardInfo:
        """Create a shard; with ``exist_ok`` an existing one is returned unchanged.

        Raises:
            ShardExistsError: It exists, and ``exist_ok`` was not given.
            QuotaExceededError: The principal has as many shards as it may have.
        """
        Use(Operation.CREATE_SHARD, shard=name).require(requester.principal)
        return await self._create(requester, name, config, exist_ok=exist_ok)

    async def create_in_passing(self, requester: Requester, name: str, config: ShardConfig) -> None:
        """Create a shard for an append if it does not exist: the right to append to a topic includes this."""
        Use(Operation.CREATE_BY_APPENDING, shard=name).require(requester.principal)
        await self._create(requester, name, config, exist_ok=True)

    async def _create(self, requester: Requester, name: str, config: ShardConfig, *, exist_ok: bool) -> ShardInfo:
        engine, meter = self._engine, requester.meter
        if meter is None or engine.shard_id(name) is not None:
            return await engine.create_shard(name, config, exist_ok=exist_ok)
        meter.check_new_shard(name)
        # Counted before it exists, so that concurrent creations are counted, too.
        meter.count_shard(name, 1)
        try:
            return await engine.create_shard(name, config, exist_ok=exist_ok)
        except BaseException:
            meter.count_shard(name, -1)
            raise

    async def delete(self, requester: Requester, name: str) -> None:
        """Delete a shard with its records, cursors and files."""
        Use(Operation.DELETE_SHARD, shard=name).require(requester.principal)
        engine, meter = self._engine, requester.meter
        if meter is None or engine.shard_id(name) is None:
            return await engine.delete_shard(name)
        # Before it is removed, so that a measurement at this moment counts one too many rather than one too few.
        meter.count_shard(name, -1)
        try:
            await engine.delete_shard(name)
        except BaseException:
            meter.count_shard(name, 1)
            raise

    async def set_mode(self, requester: Requester, name: str, mode: Mode) -> ShardInfo:
        """Switch a shard to memory or file mode while it is in use."""
        Use(Operation.CONFIGURE_SHARD, shard=name).require(requester.principal)
        return await self._engine.set_mode(name, mode)

    async def configure(
        self, requester: Requester, name: str, *, retention: Retention | None, segment_bytes: int | None
    ) -> ShardInfo:
        """Change the retention or segment size of a shard; None leaves a setting unchanged."""
        Use(Operation.CONFIGURE_SHARD, shard=name).require(requester.principal)
        return await self._engine.configure_shard(name, retention=retention, segment_bytes=segment_bytes)

    async def roll(self, requester: Requester, name: str) -> ShardInfo:
        """Close the active segment of a shard; the next append opens another."""
        Use(Operation.ROLL_SHARD, shard=name).require(requester.principal)
        return await self._engine.roll(name)

    async def convert(self, requester: Requester, name: str) -> ShardInfo:
        """Roll a shard, and return when all its closed log segments are Parquet files."""
        Use(Operation.ROLL_SHARD, shard=name).require(requester.principal)
        return await self._engine.convert(name)

    async def trim(self, requester: Requester, name: str, before_offset: int) -> ShardInfo:
        """Drop all records below an offset."""
        Use(Operation.TRIM_SHARD, shard=name).require(requester.principal)
        return await self._engine.trim(name, before_offset)

    async def delete_cursor(self, requester: Requester, shard: str, name: str, version: int | None) -> None:
        """Delete a cursor if its version is the expected one."""
        Use(Operation.CHANGE_CURSOR, shard=shard, cursor=name).require(requester.principal)
        await self._engine.delete_cursor(shard, name, version)


def _lag(shard: Shard, cursor: Cursor) -> CursorLag:
    return CursorLag(
        shard.name,
        cursor.name,
        cursor.offset,
        cursor.version,
        shard.record_count_from(cursor.offset),
        max(0, shard.start_offset - cursor.offset),
    )
