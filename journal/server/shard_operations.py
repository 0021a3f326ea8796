"""What may be asked of a server about shards, whatever way the question came: rules and quotas, then the engine.

The native protocol, the JSON sub-protocol and the administration over HTTP put these into their own words. No wire form
is known here.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from journal.access.principal import Action, Principal, require
from journal.access.quotas import Meter
from journal.engine import Engine
from shards.model import Cursor, Mode, Retention, ShardConfig, ShardInfo
from shards.topic_filters import validate_filter

LARGEST_PAGE = 1_000
"""A page is made in one go; this many shards take some milliseconds, for which everybody else waits."""


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
class CursorLag:
    """A cursor, and how far it is behind.

    Attributes:
        shard: The shard's name.
        name: The cursor's.
        offset: Next offset its owner wants to read.
        version: lsn of the commit that set it.
        lag_records: Records from there to the end of the shard.
        lost_records: Records that the owner had not read when they were dropped.
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

    def list_shards(self, who: Asker, topic_filter: str, after: str, limit: int) -> ShardPage:
        """One page of the shards that match a filter and sort behind ``after``.

        Raises:
            InvalidNameError: It is no filter.
            NotAuthorizedError: The principal may not read all that it stands for.
        """
        names, more = self._page(who, topic_filter, after, limit)
        table = self._engine.table
        return ShardPage([table.by_name(name).info(with_segments=False) for name in names], more)

    def _page(self, who: Asker, topic_filter: str, after: str, limit: int) -> tuple[list[str], bool]:
        validate_filter(topic_filter)
        require(who.principal, topic_filter, Action.READ, Action.ADMINISTER)
        limit = max(1, min(limit, LARGEST_PAGE))
        names = self._engine.table.catalogue.matching(topic_filter, after=after, limit=limit + 1)
        return names[:limit], len(names) > limit

    def describe(self, who: Asker, name: str) -> ShardInfo:
        """A shard with its segments.

        Raises:
            ShardNotFoundError: There is none.
        """
        require(who.principal, name, Action.READ, Action.ADMINISTER)
        return self._engine.table.by_name(name).info(with_segments=True)

    def cursors(self, who: Asker, topic_filter: str, after: str, limit: int) -> CursorPage:
        """The cursors of up to ``limit`` shards that match a filter and sort behind ``after``.

        Those of a shard that is stopped are left out: how far it goes is not known.
        """
        names, more = self._page(who, topic_filter, after, limit)
        found = []
        for name in names:
            shard = self._engine.table.by_name(name)
            if not shard.damage:
                cursors = self._engine.control.list_cursors(name)
                found += [_lag(name, cursor, shard.start_offset, shard.published_offset) for cursor in cursors]
        return CursorPage(found, more, names[-1] if names else after)

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
        control, meter = self._engine.control, who.meter
        if meter is None or self._engine.table.catalogue.id_of(name) is not None:
            return await control.create_shard(name, config, exist_ok=exist_ok)
        meter.check_new_shard(name)
        # Counted before it is there: others that are being created at the same time count, too.
        meter.count_shard(name, 1)
        try:
            return await control.create_shard(name, config, exist_ok=exist_ok)
        except BaseException:
            meter.count_shard(name, -1)
            raise

    async def delete(self, who: Asker, name: str) -> None:
        """Delete a shard with its records, cursors and files."""
        require(who.principal, name, Action.ADMINISTER)
        control, meter = self._engine.control, who.meter
        if meter is None or self._engine.table.catalogue.id_of(name) is None:
            return await control.delete_shard(name)
        # Before it is gone, so that a measurement at this moment counts one too many rather than one too few.
        meter.count_shard(name, -1)
        try:
            await control.delete_shard(name)
        except BaseException:
            meter.count_shard(name, 1)
            raise

    async def set_mode(self, who: Asker, name: str, mode: Mode) -> ShardInfo:
        """Switch a shard to memory or file mode while it is in use."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.control.set_mode(name, mode)

    async def configure(
        self, who: Asker, name: str, *, retention: Retention | None, segment_bytes: int | None
    ) -> ShardInfo:
        """Change how a shard is kept from now on; None leaves a part as it is."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.control.configure_shard(name, retention=retention, segment_bytes=segment_bytes)

    async def seal(self, who: Asker, name: str, *, wait: bool = False) -> ShardInfo:
        """Close a shard's active segment; with ``wait``, return when all that is closed lies in Parquet files."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.seal(name, wait=wait)

    async def trim(self, who: Asker, name: str, before_offset: int) -> ShardInfo:
        """Drop all records below an offset."""
        require(who.principal, name, Action.ADMINISTER)
        return await self._engine.control.trim(name, before_offset)

    async def delete_cursor(self, who: Asker, shard: str, name: str, version: int | None) -> None:
        """Remove a cursor, if its version is the expected one."""
        require(who.principal, shard, Action.ADMINISTER)
        await self._engine.control.delete_cursor(shard, name, version)


def _lag(shard: str, cursor: Cursor, start_offset: int, next_offset: int) -> CursorLag:
    return CursorLag(
        shard,
        cursor.name,
        cursor.offset,
        cursor.version,
        max(0, next_offset - max(cursor.offset, start_offset)),
        max(0, start_offset - cursor.offset),
    )
