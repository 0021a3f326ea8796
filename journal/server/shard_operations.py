"""What may be asked of a server about shards, whatever way the question came: rules and quotas, then the engine.

The native protocol, the JSON sub-protocol and the administration over HTTP put these into their own words. No wire form
is known here.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from journal.access.authorization import Action, Principal, require
from journal.access.quotas import Meter
from journal.engine import Engine
from journal.engine.state.name_scan import NameScan
from journal.engine.time_slice import TimeSlice
from shards.model import Cursor, Mode, Retention, ShardConfig, ShardInfo
from shards.segments.shard import Shard
from shards.topics.names import MAX_NAME_BYTES

LARGEST_PAGE = 1_000
"""Most entries of a page. Pages of shards are made in steps of some milliseconds, others have their turn in between."""

_ENTRY_BYTES = 300
"""What an entry of a page takes in any form besides its name, at most."""


class Asker(Protocol):
    """Who asks.

    Attributes:
        principal: With which rights.
        meter: On which accounts; None if nothing bounds it.
    """

    @property
    def principal(self) -> Principal: ...

    @property
    def meter(self) -> Meter | None: ...


@attrs.frozen(slots=True)
class ShardPage:
    """Shards sorted by name, without their segments; ``more`` says that others sort behind the last."""

    shards: list[ShardInfo]
    more: bool


@attrs.frozen(slots=True)
class SegmentPage:
    """A shard with some of its segments, oldest first; ``more`` says that newer ones follow."""

    info: ShardInfo
    more: bool


@attrs.frozen(slots=True)
class CursorLag:
    """A cursor, and how far it is behind.

    Attributes:
        shard: The shard's name.
        name: The cursor's.
        offset: Next offset its owner wants to read.
        version: lsn of the commit that set it.
        lag_records: Records from there to the end of the shard; what was lost with the memory is not counted.
        lost_records: Records that the owner had not read when they were dropped; offsets among them that were lost with
            the memory count, for nothing tells them apart any more.
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
        cursors: By shard and name.
        more: There are more shards to look at.
        after: The last shard that was looked at, for the next page.
    """

    cursors: list[CursorLag]
    more: bool
    after: str


class ShardOperations:
    """The operations on shards of one engine, for every principal."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # One page is made at a time: the steps of a hundred that are asked for at once would add up to a long one.
        self._making = trio.Lock()

    def page_bytes(self, limit: int) -> int:
        """About how large the reply to a listing is, at most."""
        return min(max(1, limit), LARGEST_PAGE) * _ENTRY_BYTES

    async def list_shards(self, who: Asker, topic_filter: str, after: str, limit: int) -> ShardPage:
        """One page of the shards that match a filter and sort behind ``after``.

        Each shard is shown as it is at some moment before this returns. Page after page, a shard that is there all the
        time is listed exactly once; one that is created or deleted meanwhile may be listed or not. No shard is opened
        for it.

        Raises:
            InvalidNameError: It is no filter.
            NotAuthorizedError: The principal may not read all that it stands for.
        """
        pages = self._names(who, topic_filter, after)
        async with self._making:
            return await self._shard_page(pages, max(1, min(limit, LARGEST_PAGE)))

    async def _shard_page(self, pages: NameScan, limit: int) -> ShardPage:
        found: list[ShardInfo] = []
        room = self._page_bytes
        step = TimeSlice()
        while (names := await pages.more()) is not None:
            for name in names:
                if (shard_id := self._id_of(name)) is None or (shard := self._engine.peek(shard_id)) is None:
                    continue
                room -= len(name.encode()) + _ENTRY_BYTES
                if len(found) == limit or (found and room < 0):
                    return ShardPage(found, more=True)
                found.append(shard.info(with_segments=False))
                if step.is_over:
                    await step.rest()
        return ShardPage(found, more=False)

    def _names(self, who: Asker, topic_filter: str, after: str) -> NameScan:
        scan = self._engine.scan_names(topic_filter, after)
        require(who.principal, topic_filter, Action.READ, Action.ADMINISTER)
        return scan

    def _id_of(self, name: str) -> int | None:
        """None if it was deleted since its name was found."""
        return self._engine.shard_id(name)

    @property
    def _page_bytes(self) -> int:
        """What the entries of a page may take together, so that a frame has room for it."""
        return self._engine.config.limits.max_frame_bytes // 2

    @property
    def largest_segment_page(self) -> int:
        """Most segments of a shard that are told in one frame."""
        return min(LARGEST_PAGE, self._page_bytes // _ENTRY_BYTES)

    def describe(self, who: Asker, name: str) -> ShardInfo:
        """A shard with its segments.

        Raises:
            ShardNotFoundError: There is none.
        """
        require(who.principal, name, Action.READ, Action.ADMINISTER)
        return self._engine.describe_shard(name, with_segments=True)

    def describe_page(self, who: Asker, name: str, from_offset: int, limit: int) -> SegmentPage:
        """A shard with up to ``limit`` of its segments, from the one that holds an offset on.

        Ask for the next page from the offset on with which the last segment ends. Segments that were closed, sealed or
        trimmed in between show as they are then.

        Raises:
            ShardNotFoundError: There is none.
        """
        info = self.describe(who, name)
        segments = [each for each in info.segments if each.base_offset >= from_offset or each.next_offset > from_offset]
        end = max(1, min(limit, self.largest_segment_page))
        # One that is empty is followed by one that begins at the same offset: asked for from there on, it came again.
        while end < len(segments) and segments[end - 1].next_offset == segments[end - 1].base_offset:
            end += 1
        return SegmentPage(attrs.evolve(info, segments=tuple(segments[:end])), end < len(segments))

    async def cursors(self, who: Asker, topic_filter: str, after: str, limit: int) -> CursorPage:
        """The cursors of up to ``limit`` shards that match a filter and sort behind ``after``.

        Those of a shard that is stopped are left out: how far it goes is not known. As with `list_shards`, shards may
        come and go from page to page.
        """
        pages = self._names(who, topic_filter, after)
        async with self._making:
            return await self._cursor_lags(pages, after, max(1, min(limit, LARGEST_PAGE)))

    async def _cursor_lags(self, pages: NameScan, after: str, limit: int) -> CursorPage:
        found: list[CursorLag] = []
        looked_at, last = 0, after
        step = TimeSlice()
        while (names := await pages.more()) is not None:
            for name in names:
                if looked_at == limit:
                    return CursorPage(found, more=True, after=last)
                looked_at, last = looked_at + 1, name
                await self._add_cursors(name, found, step)
        return CursorPage(found, more=False, after=last)

    async def _add_cursors(self, name: str, found: list[CursorLag], step: TimeSlice) -> None:
        behind = ""
        while (shard_id := self._id_of(name)) is not None:
            shard = self._engine.peek(shard_id)
            if shard is None or shard.damage:
                return
            cursors = self._engine.cursors_of(shard_id, behind, LARGEST_PAGE)
            found += [_lag(shard, cursor) for cursor in cursors]
            if step.is_over:
                await step.rest()
            if len(cursors) < LARGEST_PAGE:
                return
            behind = cursors[-1].name

    def cursor_page(self, who: Asker, name: str, after: str, limit: int) -> tuple[list[Cursor], bool]:
        """Cursors of one shard that sort behind ``after``, and whether others follow.

        Raises:
            ShardNotFoundError: There is none.
            ShardDamagedError: It is stopped.
        """
        require(who.principal, name, Action.READ, Action.ADMINISTER)
        limit = max(1, min(limit, LARGEST_PAGE, self._page_bytes // (MAX_NAME_BYTES + _ENTRY_BYTES)))
        cursors = self._engine.list_cursors(name, after, limit + 1)
        return cursors[:limit], len(cursors) > limit

    async def create(self, who: Asker, name: str, config: ShardConfig, *, exist_ok: bool = False) -> ShardInfo:
        """Create a shard; with ``exist_ok`` one that is there is returned as it is.

        Raises:
            ShardExistsError: It is there, and ``exist_ok`` was not given.
            QuotaExceededError: The principal has as many as it may have.
        """
        require(who.principal, name, Action.ADMINISTER)
        return await self._create(who, name, config, exist_ok=exist_ok)

    async def create_in_passing(self, who: Asker, name: str, config: ShardConfig) -> None:
        """Make sure that a shard is there that is about to be appended to: who may append to a topic may begin it."""
        require(who.principal, name, Action.APPEND, Action.ADMINISTER)
        await self._create(who, name, config, exist_ok=True)

    async def _create(self, who: Asker, name: str, config: ShardConfig, *, exist_ok: bool) -> ShardInfo:
        engine, meter = self._engine, who.meter
        if meter is None or engine.shard_id(name) is not None:
            return await engine.create_shard(name, config, exist_ok=exist_ok)
        meter.check_new_shard(name)
        # Counted before it is there: others that are being created at the same time count, too.
        meter.count_shard(name, 1)
        try:
            return await engine.create_shard(name, config, exist_ok=exist_ok)
        except BaseException:
            meter.count_shard(name, -1)
            raise

    async def delete(self, who: Asker, name: str) -> None:
        """Delete a shard with its records, cursors and files."""
        require(who.principal, name, Action.ADMINISTER)
        engine, meter = self._engine, who.meter
        if meter is None or engine.shard_id(name) is None:
            return await engine.delete_shard(name)
        # Before it is gone, so that a measurement at this moment counts one too many rather than one too few.
        meter.count_shard(name, -1)
        try:
            await engine.delete_shard(name)
        except BaseException:
            meter.count_shard(name, 1)
            raise

    async def set_mode(self, who: Asker, name: str, mode: Mode) -> ShardInfo:
        """Switch a shard to memory or file mode while it is in use."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.set_mode(name, mode)

    async def configure(
        self, who: Asker, name: str, *, retention: Retention | None, segment_bytes: int | None
    ) -> ShardInfo:
        """Change how a shard is kept from now on; None leaves a part as it is."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.configure_shard(name, retention=retention, segment_bytes=segment_bytes)

    async def seal(self, who: Asker, name: str, *, wait: bool = False) -> ShardInfo:
        """Close a shard's active segment; with ``wait``, return when all that is closed lies in Parquet files."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.seal(name, wait=wait)

    async def trim(self, who: Asker, name: str, before_offset: int) -> ShardInfo:
        """Drop all records below an offset."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.trim(name, before_offset)

    async def delete_cursor(self, who: Asker, shard: str, name: str, version: int | None) -> None:
        """Remove a cursor, if its version is the expected one."""
        require(who.principal, shard, Action.ADMINISTER)
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
