"""What may be asked of a server about shards, whatever way the question came: rules of access, then the engine.

The JSON sub-protocol and the administration over HTTP put these into their own words. No wire form is known here.
"""

from __future__ import annotations

import attrs

from journal.access.principal import Action, Principal
from journal.engine import Engine
from shards.errors import InvalidRequestError, StorageError
from shards.model import Cursor, Mode, Retention, ShardConfig, ShardInfo
from shards.topic_filters import validate_filter

LARGEST_PAGE = 10_000


class AccessDeniedError(StorageError):
    """The principal may not do this; another one may."""

    code = "access_denied"


def require(principal: Principal, target: str, *actions: Action) -> None:
    """Refuse what the principal may not do; any one of the actions is enough.

    Raises:
        AccessDeniedError: It may do none of them.
    """
    if not any(principal.may(action, target) for action in actions):
        wanted = " or ".join(actions)
        raise AccessDeniedError(f"{principal.name or 'a client without a name'!r} may not {wanted} {target!r}")


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

    def list_shards(self, principal: Principal, topic_filter: str, after: str, limit: int) -> ShardPage:
        """One page of the shards that match a filter and sort behind ``after``.

        Raises:
            InvalidNameError: It is no filter.
            AccessDeniedError: The principal may not read all that it stands for.
        """
        names, more = self._page(principal, topic_filter, after, limit)
        table = self._engine.table
        return ShardPage([table.by_name(name).info(with_segments=False) for name in names], more)

    def _page(self, principal: Principal, topic_filter: str, after: str, limit: int) -> tuple[list[str], bool]:
        validate_filter(topic_filter)
        require(principal, topic_filter, Action.READ, Action.ADMINISTER)
        limit = max(1, min(limit, LARGEST_PAGE))
        names = self._engine.table.catalogue.matching(topic_filter, after=after, limit=limit + 1)
        return names[:limit], len(names) > limit

    def describe(self, principal: Principal, name: str) -> ShardInfo:
        """A shard with its segments.

        Raises:
            ShardNotFoundError: There is none.
        """
        require(principal, name, Action.READ, Action.ADMINISTER)
        return self._engine.table.by_name(name).info(with_segments=True)

    def cursors(self, principal: Principal, topic_filter: str, after: str, limit: int) -> CursorPage:
        """The cursors of up to ``limit`` shards that match a filter and sort behind ``after``.

        Those of a shard that is stopped are left out: how far it goes is not known.
        """
        names, more = self._page(principal, topic_filter, after, limit)
        found = []
        for name in names:
            shard = self._engine.table.by_name(name)
            if not shard.damage:
                cursors = self._engine.control.list_cursors(name)
                found += [_lag(name, cursor, shard.start_offset, shard.published_offset) for cursor in cursors]
        return CursorPage(found, more, names[-1] if names else after)

    async def create(
        self, principal: Principal, name: str, config: ShardConfig, *, exist_ok: bool = False
    ) -> ShardInfo:
        """Create a shard; with ``exist_ok`` one that is there is returned as it is."""
        require(principal, name, Action.ADMINISTER)
        return await self._engine.control.create_shard(name, config, exist_ok=exist_ok)

    async def create_for_append(self, principal: Principal, name: str, config: ShardConfig) -> None:
        """Make sure that a shard is there before something is appended: who may append may do this."""
        require(principal, name, Action.APPEND)
        await self._engine.control.create_shard(name, config, exist_ok=True)

    async def delete(self, principal: Principal, name: str) -> None:
        """Delete a shard with its records, cursors and files."""
        require(principal, name, Action.ADMINISTER)
        await self._engine.control.delete_shard(name)

    async def set_mode(self, principal: Principal, name: str, mode: Mode) -> ShardInfo:
        """Switch a shard to memory or file mode while it is in use."""
        require(principal, name, Action.ADMINISTER)
        return await self._engine.control.set_mode(name, mode)

    async def configure(
        self, principal: Principal, name: str, *, retention: Retention | None, segment_bytes: int | None
    ) -> ShardInfo:
        """Change how a shard is kept from now on; None leaves a part as it is.

        Raises:
            InvalidRequestError: Nothing is to be changed.
        """
        require(principal, name, Action.ADMINISTER)
        if retention is None and segment_bytes is None:
            raise InvalidRequestError(f"nothing of shard {name!r} is to be changed; give retention or segment_bytes")
        return await self._engine.control.configure_shard(name, retention=retention, segment_bytes=segment_bytes)

    async def seal(self, principal: Principal, name: str) -> ShardInfo:
        """Close a shard's active segment; the next record begins a new one."""
        require(principal, name, Action.ADMINISTER)
        return await self._engine.seal(name)

    async def trim(self, principal: Principal, name: str, before_offset: int) -> ShardInfo:
        """Drop all records below an offset."""
        require(principal, name, Action.ADMINISTER)
        return await self._engine.control.trim(name, before_offset)

    async def delete_cursor(self, principal: Principal, shard: str, name: str, version: int | None) -> None:
        """Remove a cursor, if its version is the expected one."""
        require(principal, shard, Action.ADMINISTER)
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
