"""Bounds how many cursors each principal creates, since a cursor stays until it is deleted.

A cursor does not say who created it, so what a principal has created is remembered here, from the start of the server
on. A cursor that was deleted, by any principal or together with its shard, does not count any more. A group counts once
for each shard or filter that it was joined on.
"""

from __future__ import annotations

from typing import Final

import attrs
import trio

from journal.engine import Engine
from journal.engine.time_slice import TimeSlice
from journal.protocol.errors import QuotaExceededError
from shards.topics.names import group_cursor

_LARGEST_SHARE: Final = 20
_SHORTEST_PAUSE_S: Final = 1.0


@attrs.frozen(slots=True)
class _Created:
    """A cursor of a shard, or the positions of a group in the shards of a filter."""

    cursor: str
    shard: str | None
    topic_filter: str | None = None


class _Account:
    """What one principal has created.

    Attributes:
        created: In the order in which they were last found to exist.
        is_full_until_s: No look for cursors that are gone is worth its cost before this time.
    """

    def __init__(self) -> None:
        self.created: dict[_Created, None] = {}
        self.is_full_until_s = 0.0


class CursorQuotas:
    """See the module.

    Args:
        engine: The engine with the cursors.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._accounts: dict[str, _Account] = {}

    async def check_cursor(self, principal: str, limit: int, shard: str, cursor: str) -> None:
        """Count a cursor that a principal is about to set, unless it exists.

        Args:
            principal: Name of the principal.
            limit: How many cursors it may have created.
            shard: Name of the shard.
            cursor: Name of the cursor.

        Raises:
            QuotaExceededError: It may not create another one.
        """
        await self._admit(principal, limit, _Created(cursor, shard))

    async def check_group(
        self, principal: str, limit: int, group: str, shard: str | None, topic_filter: str | None
    ) -> None:
        """Count the positions of a group that a principal is about to join, unless there are some.

        Raises:
            QuotaExceededError: It may not create further positions.
        """
        await self._admit(principal, limit, _Created(group_cursor(group), shard, topic_filter))

    async def _admit(self, principal: str, limit: int, wanted: _Created) -> None:
        account = self._accounts.get(principal)
        if account is None:
            account = self._accounts[principal] = _Account()
        created = account.created
        # A cursor is found by its key; positions by filter are looked for only if there is no room.
        if wanted in created or (wanted.shard is not None and await self._exists(wanted)):
            return
        while len(created) >= limit:
            if await self._exists(wanted):
                return
            if not await self._make_room(account):
                who = f"principal {principal!a} has" if principal else "principals without a name have"
                raise QuotaExceededError(
                    f"{who} created {len(created)} cursors and positions of groups since the start of the server, and "
                    f"quotas.cursors allows {limit}; delete some, use existing names again, or ask for a higher quota"
                )
        created[wanted] = None

    async def _make_room(self, account: _Account) -> bool:
        """Forget one that is gone; false if there is none, or if that was looked for a moment ago."""
        began_s = trio.current_time()
        if began_s < account.is_full_until_s:
            return False
        step = TimeSlice()
        for each in list(account.created):
            is_gone = not await self._exists(each)
            account.created.pop(each, None)
            if is_gone:
                return True
            # The next look begins with others.
            account.created[each] = None
            if step.is_over:
                await step.rest()
        now_s = trio.current_time()
        account.is_full_until_s = now_s + max(_SHORTEST_PAUSE_S, _LARGEST_SHARE * (now_s - began_s))
        return False

    async def _exists(self, wanted: _Created) -> bool:
        if wanted.shard is not None:
            return self._has(wanted.shard, wanted.cursor)
        assert wanted.topic_filter is not None  # it is of a shard or of a filter
        scan, step = self._engine.scan_names(wanted.topic_filter), TimeSlice()
        while (names := await scan.more()) is not None:
            for name in names:
                if self._has(name, wanted.cursor):
                    return True
                if step.is_over:
                    await step.rest()
        return False

    def _has(self, shard: str, cursor: str) -> bool:
        shard_id = self._engine.shard_id(shard)
        return shard_id is not None and self._engine.cursor_of(shard_id, cursor) is not None
