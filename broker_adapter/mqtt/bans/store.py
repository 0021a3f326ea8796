"""Reading and changing the bans of a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.errors import StorageError, VersionConflictError
from broker_adapter.mqtt.access.bans import Ban, BanKind
from broker_adapter.mqtt.bans.stored import (
    BAN_PREFIX,
    BANS_KEY,
    BANS_SHARD,
    BANS_SHARD_CONFIG,
    Announcement,
    BansVersion,
    StoredBan,
    ban_key,
)
from broker_adapter.mqtt.session.store_retry import may_pass
from broker_adapter.state_forms import decode, encode
from shards.back_off import BackOff
from shards.format.record import Record

_PAUSES: Final = BackOff(0.02, 0.5, jitter=0.0)
_REMOVED_AT_ONCE: Final = 500
"""Bans that have ended are removed from the store by the next changes, so many by each."""


class BanNotFoundError(StorageError):
    """There is no such ban."""

    code = "ban_not_found"


class TooManyBansError(StorageError):
    """There are as many bans as the settings allow."""

    code = "too_many_bans"


@attrs.frozen
class StoredBans:
    """The bans of a store.

    Attributes:
        version: Their version; 0 if there was never a ban.
        bans: The bans by kind and name, with those that have ended and are not removed yet.
        by: Who made the last change, for people.
    """

    version: int
    bans: dict[tuple[BanKind, str], Ban]
    by: str = ""

    def lasting(self, now_us: int) -> list[Ban]:
        """The bans that have not ended."""
        return [ban for ban in self.bans.values() if not ban.is_over(now_us)]


async def read_bans(adapter: StorageAdapter) -> StoredBans:
    """The bans of a store, all of one version.

    Raises:
        StorageError: The store does not answer, or a newer program wrote the bans.
    """
    while True:
        found, _ = await _version(adapter)
        bans = [decode(StoredBan, value.key, value.value).ban async for value in adapter.scan_state(BAN_PREFIX)]
        if (await _version(adapter))[0] == found:
            return StoredBans(found.version, {ban.key: ban for ban in bans}, found.by)


async def read_version(adapter: StorageAdapter) -> int:
    """The version of the bans of a store, 0 if there was never one.

    Raises:
        StorageError: The store does not answer.
    """
    return (await _version(adapter))[0].version


async def add_ban(adapter: StorageAdapter, ban: Ban, *, now_us: int, max_bans: int, within_s: float = 0.0) -> int:
    """Store a ban, in place of one of the same user, client identifier or network.

    Must not return until it would survive a crash of the store.

    Args:
        now_us: The time, in microseconds since 1970.
        max_bans: How many bans there may be.
        within_s: For how long to retry while the store does not answer, in seconds.

    Returns:
        The version of the bans that has it.

    Raises:
        TooManyBansError: There are ``max_bans`` others.
        StorageError: The store does not answer. The call may be repeated.
    """

    async def make(_is_repeated: bool) -> int:
        stored, expected = await _read(adapter)
        if stored.bans.get(ban.key) == ban:
            # An earlier attempt was carried out, and its answer was lost.
            return stored.version
        others = sum(each.key != ban.key for each in stored.lasting(now_us))
        if others >= max_bans:
            raise TooManyBansError(
                f"there are {others} bans, and access.max_bans is {max_bans}; remove some, or ban a network "
                "in their place"
            )
        announcement = Announcement(stored.version + 1, "banned", ban.kind, ban.name, ban.by, ban.reason, ban.until_us)
        put = StatePut(ban_key(ban.kind, ban.name), encode(StoredBan.of(ban)))
        return await _commit(adapter, stored, expected, announcement, now_us, puts=(put,), of=ban.key)

    return await _patiently(make, within_s)


async def remove_ban(
    adapter: StorageAdapter, kind: BanKind, name: str, *, by: str, now_us: int, within_s: float = 0.0
) -> int:
    """Remove a ban; see `add_ban`.

    Raises:
        BanNotFoundError: There is no such ban.
        StorageError: The store does not answer. The call may be repeated.
    """

    async def make(is_repeated: bool) -> int:
        stored, expected = await _read(adapter)
        ban = stored.bans.get((kind, name))
        if ban is None or ban.is_over(now_us):
            if is_repeated:
                return stored.version
            raise BanNotFoundError(f"{kind} {name!a} is not banned; `journal-broker ban list` shows all bans")
        announcement = Announcement(stored.version + 1, "unbanned", kind, name, by)
        delete = StateDelete(ban_key(kind, name))
        return await _commit(adapter, stored, expected, announcement, now_us, deletes=(delete,), of=(kind, name))

    return await _patiently(make, within_s)


async def _commit(
    adapter: StorageAdapter,
    stored: StoredBans,
    expected_version: int,
    announcement: Announcement,
    now_us: int,
    *,
    of: tuple[BanKind, str],
    puts: tuple[StatePut, ...] = (),
    deletes: tuple[StateDelete, ...] = (),
) -> int:
    ended = [ban for ban in stored.bans.values() if ban.is_over(now_us) and ban.key != of][:_REMOVED_AT_ONCE]
    await adapter.commit(
        Changes(
            appends=((BANS_SHARD, [Record(msgspec.json.encode(announcement))]),),
            puts=(
                *puts,
                StatePut(BANS_KEY, encode(BansVersion(announcement.version, announcement.by)), expected_version),
            ),
            deletes=(*deletes, *(StateDelete(ban_key(ban.kind, ban.name)) for ban in ended)),
        )
    )
    return announcement.version


async def _patiently(make: Callable[[bool], Awaitable[int]], within_s: float) -> int:
    """Make a change again after a conflict, and while the store does not answer."""
    deadline_s = trio.current_time() + within_s
    attempt = 0
    is_repeated = False
    while True:
        pause_s = _PAUSES.delay_s(attempt)
        try:
            return await make(is_repeated)
        except VersionConflictError:
            # Another change was first, or the answer to this one was lost: reading again tells which.
            is_repeated = True
            continue
        except StorageError as error:
            if not may_pass(error) or trio.current_time() + pause_s >= deadline_s:
                raise
            is_repeated = True
        await trio.sleep(pause_s)
        attempt += 1


async def _read(adapter: StorageAdapter) -> tuple[StoredBans, int]:
    """The bans, and the version of the key that the next change expects."""
    await adapter.create_shard(BANS_SHARD, BANS_SHARD_CONFIG, exist_ok=True)
    expected = (await _version(adapter))[1]
    return await read_bans(adapter), expected


async def _version(adapter: StorageAdapter) -> tuple[BansVersion, int]:
    found = await adapter.get_state(BANS_KEY)
    return (BansVersion(0), 0) if found is None else (decode(BansVersion, found.key, found.value), found.version)
