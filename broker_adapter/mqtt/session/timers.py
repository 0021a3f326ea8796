"""Timers, fired by whichever broker is alive: wills, session expiry, delayed messages, cleanups.

Every broker looks for due timers. A timer is deleted in the same commit as its effect, on the condition that it still
exists, so the effect happens once. To avoid conflicts, a due timer is left for a short time to the broker that its key
prefers among those alive.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from broker_adapter.background_tasks import background_tasks
from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.errors import CorruptionError, FormatVersionError, StorageError, VersionConflictError
from broker_adapter.mqtt.model.message import DelayedPublish, Message
from broker_adapter.mqtt.session import keys, transitions
from broker_adapter.mqtt.session.commits import Commits
from broker_adapter.mqtt.session.leases import Leases
from broker_adapter.mqtt.session.settings import SessionSettings
from broker_adapter.mqtt.session.shares import CLEANUP, Shares
from broker_adapter.mqtt.session.statistics import SessionStatistics
from broker_adapter.mqtt.session.store_retry import StoreRetry
from broker_adapter.mqtt.session.stored import CleanupRecord, SessionRecord, StoredMessage, message_from, stored_message
from broker_adapter.mqtt.session.transitions import Found
from broker_adapter.mqtt_codec.text import shown
from broker_adapter.state_forms import decode, encode
from shards.format.checksum import crc32c
from shards.model import StateValue
from shards.seams.clock import Clock

_log = logging.getLogger(__name__)

DELAYED: Final = "delayed"

_MAX_AT_ONCE: Final = 16
_MAX_PER_ROUND: Final = 2_000
_CLEANUP_TIME_US: Final = 60_000_000
_SECOND_US: Final = 1_000_000


def delayed_puts(message: Message, due: DelayedPublish) -> tuple[StatePut, ...]:
    """The puts that delay a message.

    The message has a key apart from its timer's, so that looking for due timers costs the same for all kinds.
    """
    return (
        StatePut(keys.TimerKey(due.at_us, DELAYED, due.name.encode()).encode(), b"", 0),
        StatePut(keys.delayed(due.name), encode(stored_message(message)), 0),
    )


class Timers:
    """Fires due timers.

    Args:
        store_retry: The store.
        commits: Commits the effects.
        shares: Deletes what groups without members have left.
        leases: Tells which brokers are alive.
        clock: Tells what is due.
    """

    def __init__(
        self,
        store_retry: StoreRetry,
        commits: Commits,
        shares: Shares,
        leases: Leases,
        clock: Clock,
        settings: SessionSettings,
        statistics: SessionStatistics,
    ) -> None:
        self._store_retry = store_retry
        self._commits = commits
        self._shares = shares
        self._leases = leases
        self._clock = clock
        self._interval_s = settings.timer_interval_s
        self._preference_us = round(settings.preference_s * _SECOND_US)
        self._statistics = statistics
        self._broken: set[bytes] = set()
        self._clearing = trio.CapacityLimiter(1)
        self._effects: dict[str, Callable[[keys.TimerKey, StateValue], Awaitable[None]]] = {
            transitions.WILL: self._session_timer,
            transitions.EXPIRY: self._session_timer,
            DELAYED: self._delayed_message,
        }

    async def run(self) -> None:
        """Look for due timers and fire them, until cancelled."""
        async with background_tasks() as nursery:
            while True:
                fired_count = 0
                try:
                    fired_count = await self.fire_due(nursery)
                except StorageError as error:
                    _log.warning("due timers could not be looked for: %s", error)
                if fired_count < _MAX_PER_ROUND:
                    await trio.sleep(self._interval_s)

    async def fire_due(self, nursery: trio.Nursery) -> int:
        """Fire due timers, and return how many were found; if that is the most taken at once, there may be more.

        Raises:
            StorageError: The store does not answer; timers that were not fired are still due.
        """
        now_us = self._clock.now_us()
        found: list[tuple[keys.TimerKey, StateValue]] = []
        async with self._store_retry.scan(keys.TIMERS) as timers:
            async for timer in timers:
                key = self._key_of(timer)
                if key is None:
                    continue
                if key.due_us > now_us or len(found) >= _MAX_PER_ROUND:
                    break
                if self._is_preferred(timer.key) or key.due_us + self._preference_us <= now_us:
                    found.append((key, timer))
        room = trio.CapacityLimiter(_MAX_AT_ONCE)
        async with trio.open_nursery() as firing:
            for key, timer in found:
                if key.kind == CLEANUP:
                    nursery.start_soon(self._clean_up, key, timer)  # may take long
                else:
                    firing.start_soon(self._fire, key, timer, room)
        return len(found)

    def _key_of(self, timer: StateValue) -> keys.TimerKey | None:
        if timer.key in self._broken:
            return None
        try:
            key = keys.TimerKey.decode(timer.key)
            if key.kind in self._effects or key.kind == CLEANUP:
                return key
            _log.warning("timer %r has a kind unknown to this broker; it is left to newer ones", timer.key)
        except CorruptionError:
            _log.exception("a timer cannot be decoded; it is skipped")
        self._broken.add(timer.key)
        return None

    def _is_preferred(self, key: bytes) -> bool:
        alive = sorted(self._leases.alive)
        return alive[crc32c(key) % len(alive)] == self._leases.broker_id

    async def _fire(self, key: keys.TimerKey, timer: StateValue, room: trio.CapacityLimiter) -> None:
        async with room:
            try:
                await self._effects[key.kind](key, timer)
            except VersionConflictError:
                # Another broker fired it, or its subject has just changed: if it still exists, it is found again.
                self._statistics.conflict_count += 1
            except (CorruptionError, FormatVersionError):
                _log.exception("timer %r cannot be fired; it is skipped", timer.key)
                self._broken.add(timer.key)
            except StorageError as error:
                # It is still due, and found again in the next round.
                _log.warning("timer %r was not fired: %s", timer.key, error)
                self._statistics.retry_count += 1

    async def _session_timer(self, key: keys.TimerKey, timer: StateValue) -> None:
        session_key = keys.session_of_part(key.name)
        stored = await self._store_retry.get(session_key)
        record = decode(SessionRecord, session_key, stored.value) if stored is not None else None
        if stored is None or record is None or not transitions.is_due(record, key.kind, key.due_us):
            await self._store_retry.adapter.delete_state(timer.key, expected_version=timer.version)
            return
        found = Found(record.client_id, record, stored.version)
        is_end = key.kind == transitions.EXPIRY
        await self._commits.make(
            record.client_id, transitions.expired(found) if is_end else transitions.will_published(found)
        )
        self._statistics.fired_count += 1
        self._statistics.expired_count += is_end

    async def _delayed_message(self, key: keys.TimerKey, timer: StateValue) -> None:
        message_key = keys.delayed(key.name.decode())
        deletes = Changes(deletes=(StateDelete(timer.key, timer.version), StateDelete(message_key)))
        stored = await self._store_retry.get(message_key)
        message = message_from(decode(StoredMessage, message_key, stored.value)) if stored is not None else None
        if message is None or 0 < message.expires_at_us <= self._clock.now_us():
            await self._store_retry.commit(deletes)
            return
        if await self._commits.publish(message, deletes) is not None:
            self._statistics.delayed_count += 1
        else:
            _log.warning("the delayed message to %s is dropped", shown(message.topic))
            await self._store_retry.commit(deletes)
        self._statistics.fired_count += 1

    async def _clean_up(self, key: keys.TimerKey, timer: StateValue) -> None:
        """Postpone the timer while this broker works on it, so that others take over only if this one fails."""
        later = keys.TimerKey(self._clock.now_us() + _CLEANUP_TIME_US, CLEANUP, key.name).encode()
        try:
            async with self._clearing:
                await self._store_retry.commit(
                    Changes(puts=(StatePut(later, timer.value),), deletes=(StateDelete(timer.key, timer.version),))
                )
                await self._shares.clear_away(decode(CleanupRecord, timer.key, timer.value))
                await self._store_retry.adapter.delete_state(later)
                self._statistics.fired_count += 1
        except VersionConflictError:
            self._statistics.conflict_count += 1
        except StorageError as error:
            _log.warning("the positions and claims of a group are not deleted yet: %s", error)
