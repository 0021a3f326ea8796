"""Claims: which session got a message of a shared subscription at QoS 2, for ever.

The store may deliver a message of a group to several members one after the other: after a lost connection, a crash, or
the death of a broker. At QoS 2 exactly one of them may send it. So a member claims it first: one commit stores the
message with what is under way in the session, and a key that is named after the message. The commit is refused if the
key exists, or if the group's cursor has passed the message; then another member has the message, or it is finished.

A claim is not needed any more once the group's cursor has passed its message, and is deleted then. A message that was
delivered before that, and is claimed later, is refused because of the cursor.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import attrs
import msgspec
import trio

from broker_adapter.changes import Changes, CursorCheck, StateDelete, StatePut
from broker_adapter.errors import ShardNotFoundError, StorageError
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.store_retry import StoreRetry
from broker_adapter.state_forms import decode, encode
from shards.topics.names import group_cursor

_log = logging.getLogger(__name__)

_DELETED_TOGETHER = 500


class StoredClaim(msgspec.Struct, array_like=True, frozen=True):
    """A claim as it is stored: the message, and the client that claimed it."""

    store_group: str
    shard: str
    offset: int
    client_id: str


@attrs.frozen(slots=True)
class Claim:
    """A message of a group of the store."""

    store_group: str
    shard: str
    offset: int
    lsn: int

    @property
    def key(self) -> bytes:
        """Its key in the state store."""
        return keys.claim(self.store_group, self.shard, self.offset, self.lsn)


def changes_of(claims: Collection[Claim], client_id: str) -> Changes:
    """Changes that claim messages; refused if one is claimed already, or if its group's cursor has passed it."""
    lowest: dict[tuple[str, str], int] = {}
    for claim in claims:
        place = (claim.shard, group_cursor(claim.store_group))
        lowest[place] = min(lowest.get(place, claim.offset), claim.offset)
    puts = tuple(
        StatePut(one.key, encode(StoredClaim(one.store_group, one.shard, one.offset, client_id)), 0) for one in claims
    )
    return Changes(puts=puts, cursors=tuple(CursorCheck(*place, offset) for place, offset in lowest.items()))


class Claims:
    """The claims of the groups that have members at this broker.

    Args:
        store_retry: The store.
        interval_s: Interval at which claims that are not needed any more are deleted.
        audit_interval_s: Interval at which claims are looked for that other brokers did not delete.
    """

    def __init__(self, store_retry: StoreRetry, interval_s: float, audit_interval_s: float) -> None:
        self._store_retry = store_retry
        self._interval_s = interval_s
        self._audit_interval_s = audit_interval_s
        self._known: dict[tuple[str, str], dict[bytes, int]] = {}
        self._looked_at_s: dict[str, float] = {}

    def made(self, claims: Iterable[Claim]) -> None:
        """Note claims that this broker made, to delete them when they are not needed any more."""
        for claim in claims:
            self._note(claim.store_group, claim.shard, claim.key, claim.offset)
            # This broker also deletes claims of other brokers in the group.
            self._looked_at_s.setdefault(claim.store_group, -self._audit_interval_s)

    async def foreign(self, claims: Collection[Claim]) -> set[Claim]:
        """Which of these messages were claimed by other sessions, or are finished."""
        found: set[Claim] = set()

        async def look(claim: Claim) -> None:
            if await self._store_retry.get(claim.key) is not None:
                found.add(claim)

        passed: dict[tuple[str, str], int] = {}
        for place in {(claim.store_group, claim.shard) for claim in claims}:
            passed[place] = await self._passed(*place)
        async with trio.open_nursery() as nursery:
            for claim in claims:
                if claim.offset < passed[claim.store_group, claim.shard]:
                    found.add(claim)
                else:
                    nursery.start_soon(look, claim)
        return found

    async def run(self) -> None:
        """Delete claims that are not needed any more, until cancelled."""
        while True:
            await trio.sleep(self._interval_s)
            try:
                await self.clear()
            except StorageError as error:
                _log.warning("claims of messages that are finished are deleted later: %s", error)

    async def clear(self) -> None:
        """Delete the claims whose group has passed them.

        Raises:
            StorageError: The store does not answer; the deletion is tried again later.
        """
        now_s = trio.current_time()
        for store_group, looked_at_s in list(self._looked_at_s.items()):
            if now_s - looked_at_s >= self._audit_interval_s:
                await self._look_for(store_group)
                self._looked_at_s[store_group] = now_s
        for (store_group, shard), known in list(self._known.items()):
            passed = await self._passed(store_group, shard)
            await self._delete([key for key, offset in known.items() if offset < passed])
            for key in [key for key, offset in known.items() if offset < passed]:
                del known[key]
            if not known:
                del self._known[store_group, shard]

    async def forget(self, store_group: str) -> None:
        """Delete all claims of a group that has no members any more.

        Raises:
            StorageError: The store does not answer.
        """
        self._looked_at_s.pop(store_group, None)
        for place in [place for place in self._known if place[0] == store_group]:
            del self._known[place]
        async with self._store_retry.scan(keys.claims_of(store_group)) as values:
            found = [value.key async for value in values]
        await self._delete(found)

    async def _look_for(self, store_group: str) -> None:
        async with self._store_retry.scan(keys.claims_of(store_group)) as values:
            async for value in values:
                stored = decode(StoredClaim, value.key, value.value)
                self._note(store_group, stored.shard, value.key, stored.offset)

    def _note(self, store_group: str, shard: str, key: bytes, offset: int) -> None:
        self._known.setdefault((store_group, shard), {})[key] = offset

    async def _passed(self, store_group: str, shard: str) -> int:
        """The offset below which a group has finished all records of a shard."""
        try:
            cursor = await self._store_retry.adapter.get_cursor(shard, group_cursor(store_group))
        except ShardNotFoundError:
            return 1 << 63  # every claim may be deleted
        return 0 if cursor is None else cursor.offset

    async def _delete(self, found: list[bytes]) -> None:
        for first in range(0, len(found), _DELETED_TOGETHER):
            chunk = found[first : first + _DELETED_TOGETHER]
            await self._store_retry.commit(Changes(deletes=tuple(StateDelete(key) for key in chunk)))
