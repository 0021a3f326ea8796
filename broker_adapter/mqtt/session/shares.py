"""Shared subscriptions: who is a member, and which group of the store the members share.

A shared subscription has a record while it has members; the record counts them, and each member has a key of its own.
The store keeps a group's position in each shard for ever. So after the last member has left, the next one gets a group
with a new name, and the positions of the old group are deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import attrs
import msgspec

from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.errors import ShardNotFoundError, VersionConflictError
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.storage_rules import LIVE_TARGET
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.claims import Claims
from broker_adapter.mqtt.session.owned_session import OwnedSession
from broker_adapter.mqtt.session.session import Membership
from broker_adapter.mqtt.session.store_retry import StoreRetry
from broker_adapter.mqtt.session.stored import CleanupRecord, ShareRecord, StoredMembership
from broker_adapter.mqtt.session.transitions import merged
from broker_adapter.state_forms import decode, encode
from broker_adapter.topic_mapping import TopicMapping
from shards.seams.clock import Clock
from shards.subscriptions.group_assignment import STICKY_PREFIX
from shards.topics.names import group_cursor
from shards.topics.topic_filters import is_filter

CLEANUP: Final = "cleanup"

STICKY_SHARE_PREFIX: Final = "sticky-"
"""Prefix of the share name of a shared subscription that keeps each topic with one member while it is connected."""

_MAX_READABLE_BYTES: Final = 120


@attrs.frozen(slots=True)
class _Place:
    """What the store says about one client in one shared subscription."""

    member_key: bytes
    member_version: int
    member_group: str
    share_key: bytes
    share_version: int
    share: ShareRecord | None

    @property
    def is_member(self) -> bool:
        """Whether the record counts the client as a member."""
        return self.share is not None and self.member_group == self.share.store_group


class Shares:
    """The shared subscriptions of the store.

    Args:
        store_retry: The store.
        claims: The claims of members of the groups.
        mapping: The shards of topics, where groups have their positions.
        clock: Gives the due time of cleanups.
    """

    def __init__(self, store_retry: StoreRetry, claims: Claims, mapping: TopicMapping, clock: Clock) -> None:
        self._store_retry = store_retry
        self._claims = claims
        self._mapping = mapping
        self._clock = clock

    async def join(self, owned: OwnedSession, group: str, topic_filter: str, after: Position) -> Membership:
        """Make a session a member, in one commit with its record."""
        memberships = owned.session.memberships
        attempt = 0
        while (group, topic_filter) not in memberships:
            place = await self._read(group, topic_filter, owned.session.client_id)
            share = place.share
            if share is None:
                kind = STICKY_PREFIX if group.startswith(STICKY_SHARE_PREFIX) else ""
                store_group = f"{kind}mqtt/{secrets.token_hex(8)}/{quote(group, safe='')[:_MAX_READABLE_BYTES]}"
                share = ShareRecord(group, topic_filter, store_group, after.lsn, 0)
            puts: tuple[StatePut, ...] = ()
            if not place.is_member:
                counted = msgspec.structs.replace(share, member_count=share.member_count + 1)
                puts = (
                    StatePut(place.share_key, encode(counted), place.share_version),
                    StatePut(place.member_key, share.store_group.encode(), place.member_version),
                )
            memberships[group, topic_filter] = Membership(share.store_group, Position(share.start_lsn))
            is_done = False
            try:
                await owned.commit(Changes(puts=puts), with_record=True)
                is_done = True
            except VersionConflictError:
                await self._store_retry.pause_after_conflict(attempt)
            finally:
                # A record with a membership that was not counted does no harm: only the member's key counts.
                if not is_done:
                    memberships.pop((group, topic_filter), None)
            if is_done:
                break
            attempt += 1
        return memberships[group, topic_filter]

    async def leave(self, owned: OwnedSession, group: str, topic_filter: str) -> None:
        """End a membership, in one commit with the session's record."""
        session = owned.session
        membership = session.memberships.get((group, topic_filter))
        attempt = 0
        while membership is not None:
            stored = StoredMembership(group, topic_filter, membership.group, membership.after.lsn)
            changes = await self.changes_of_leaving(session.client_id, [stored])
            session.memberships.pop((group, topic_filter), None)
            is_done = False
            try:
                await owned.commit(changes, with_record=True)
                is_done = True
            except VersionConflictError:
                await self._store_retry.pause_after_conflict(attempt)
            finally:
                if not is_done:
                    session.memberships[group, topic_filter] = membership
            if is_done:
                return
            attempt += 1

    async def changes_of_leaving(self, client_id: str, memberships: Sequence[StoredMembership]) -> Changes:
        """The changes that end a client's memberships; conditional on what was read."""
        return merged(
            [
                self._leaving(await self._read(membership.group, membership.topic_filter, client_id))
                for membership in memberships
            ]
        )

    async def clear_away(self, record: CleanupRecord) -> None:
        """Delete the positions of a group that has no members any more. It may be repeated."""
        name = group_cursor(record.store_group)
        adapter = self._store_retry.adapter
        for target in record.targets:
            shards = [info.name for info in await adapter.list_shards(target)] if is_filter(target) else [target]
            for shard in shards:
                try:
                    if await adapter.get_cursor(shard, name) is not None:
                        await adapter.delete_cursor(shard, name)
                except ShardNotFoundError:
                    continue
        await self._claims.forget(record.store_group)

    def _leaving(self, place: _Place) -> Changes:
        if not place.member_version:
            return Changes()
        mark = StateDelete(place.member_key, place.member_version)
        share = place.share
        if share is None or not place.is_member:
            return Changes(deletes=(mark,))
        if share.member_count > 1:
            counted = msgspec.structs.replace(share, member_count=share.member_count - 1)
            return Changes(puts=(StatePut(place.share_key, encode(counted), place.share_version),), deletes=(mark,))
        name = secrets.token_hex(8).encode()
        timer = keys.TimerKey(self._clock.now_us(), CLEANUP, name).encode()
        targets = (*self._mapping.shards_for(share.topic_filter), LIVE_TARGET)
        cleanup = CleanupRecord(share.store_group, targets)
        return Changes(
            puts=(StatePut(timer, encode(cleanup), 0),),
            deletes=(mark, StateDelete(place.share_key, place.share_version)),
        )

    async def _read(self, group: str, topic_filter: str, client_id: str) -> _Place:
        member_key, share_key = keys.member(group, topic_filter, client_id), keys.share(group, topic_filter)
        member = await self._store_retry.get(member_key)
        share = await self._store_retry.get(share_key)
        return _Place(
            member_key,
            member.version if member else 0,
            member.value.decode() if member else "",
            share_key,
            share.version if share else 0,
            decode(ShareRecord, share_key, share.value) if share else None,
        )
