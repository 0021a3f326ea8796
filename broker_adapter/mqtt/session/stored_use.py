"""How much of the store each user occupies: sessions, retained and delayed messages, counted from the store.

Every broker counts what all brokers have stored, about every ten seconds, and adds what it stores itself in between. So
between two counts brokers can together store more than a quota allows, and nothing is refused before the first count
after a start. What a broker adds may be too much, since a message may replace another; so a user who seems to have
reached a limit is refused only after the next count, if that does not take long. Without any quota for stored things
nothing is counted.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeVar

import attrs
import msgspec
import trio

from broker_adapter.errors import CorruptionError, FormatVersionError, StorageError
from broker_adapter.mqtt.access.quotas import Limit, Quota, Quotas, TooManySessionsError
from broker_adapter.mqtt.model.message import DelayedPublish, Message
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.store_retry import StoreRetry
from broker_adapter.state_forms import decode

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 10.0
_SHORTEST_INTERVAL_S: Final = 1.0
_LARGEST_SHARE: Final = 20
"""Counting takes at most one part in so many of the time."""
_LONGEST_WAIT_S: Final = 2.0

_RAW: Final = msgspec.Raw(b"\xc0")


class SessionUser(msgspec.Struct, array_like=True, frozen=True):
    """The user in a `stored.SessionRecord`; the other fields are not decoded, since there may be many subscriptions."""

    client_id: msgspec.Raw
    epoch: msgspec.Raw
    claim: msgspec.Raw
    owner: msgspec.Raw
    protocol: msgspec.Raw
    expiry_interval_s: msgspec.Raw
    disconnected_at_us: msgspec.Raw = _RAW
    will: msgspec.Raw = _RAW
    will_due_us: msgspec.Raw = _RAW
    expires_due_us: msgspec.Raw = _RAW
    subscriptions: msgspec.Raw = _RAW
    memberships: msgspec.Raw = _RAW
    unfenced: msgspec.Raw = _RAW
    user: str | None = None


class MessageUser(msgspec.Struct, array_like=True, frozen=True):
    """The user and the payload in a `stored.StoredMessage`."""

    topic: msgspec.Raw
    payload: bytes
    headers: msgspec.Raw
    timestamp_us: msgspec.Raw
    expires_at_us: msgspec.Raw
    user: str | None = None


Form = TypeVar("Form", SessionUser, MessageUser)


@attrs.define(slots=True)
class Use:
    """What one user has in the store.

    Attributes:
        sessions: Of connected clients, and of those that are away.
        retained: Retained messages.
        retained_bytes: Their payloads.
        delayed: Messages that wait until they are due.
        is_estimate: Something was added since the count.
    """

    sessions: int = 0
    retained: int = 0
    retained_bytes: int = 0
    delayed: int = 0
    is_estimate: bool = False


class StoredUse:
    """Counts what users have in the store, and decides what they may add to it.

    All anonymous clients together count as one user here, since each could take any number of client identifiers.

    Args:
        store_retry: The store.
        quotas: The limits of users.

    Attributes:
        limits_sessions: Whether any quota limits sessions.
    """

    def __init__(self, store_retry: StoreRetry, quotas: Quotas) -> None:
        self._store_retry = store_retry
        self._quotas = quotas
        self._uses: dict[str, Use] = defaultdict(Use)
        self._is_wanted = trio.Event()
        self._counted = trio.Event()
        self._counted_at_s = -math.inf
        self.limits_sessions = Limit.SESSIONS in quotas.limits_of_any

    async def run(self) -> None:
        """Count again and again, until cancelled; return at once if no quota limits what is stored."""
        while self._quotas.limit_stored:
            began_s = trio.current_time()
            try:
                self._uses = await self._count()
            except StorageError as error:
                _log.warning("what users have stored could not be counted: %s", error)
            else:
                self._counted_at_s = began_s
            self._counted.set()
            self._counted = trio.Event()
            pause_s = max(_SHORTEST_INTERVAL_S, _LARGEST_SHARE * (trio.current_time() - began_s))
            await trio.sleep(pause_s)
            # A count of half a second or more makes the pause longer than the interval.
            with trio.move_on_after(max(0.0, _INTERVAL_S - pause_s)):
                await self._is_wanted.wait()
            self._is_wanted = trio.Event()

    def of(self, user: str) -> Use:
        """What a user has in the store, as far as this broker knows."""
        return self._uses[user]

    async def begin_session(self, user: str) -> None:
        """Count a session that is about to begin.

        Raises:
            TooManySessionsError: The user has as many sessions as it may have.
        """
        limit = self._quotas.of(user).sessions
        if not limit:
            return
        if self._uses[user].sessions >= limit:
            await self._count_soon(user)
        use = self._uses[user]
        if use.sessions >= limit:
            raise TooManySessionsError(limit)
        use.sessions += 1
        use.is_estimate = True

    def end_session(self, user: str | None) -> None:
        """A session has ended at this broker."""
        if user is not None and self._quotas.of(user).sessions:
            use = self._uses[user]
            use.sessions = max(0, use.sessions - 1)

    async def is_refused(self, message: Message, due: DelayedPublish | None) -> bool:
        """Whether a user may not store a retained or delayed message; one that it may store is counted.

        A retained message that replaces one of the same user takes no further place. Who has reached a limit can
        replace and delete messages.

        Raises:
            StorageError: The store refuses to say what is retained now.
        """
        user = message.user
        if user is None or not (due is not None or (message.retain and message.payload)):
            return False
        quota = self._quotas.of(user)
        if due is not None:
            return await self._is_full(user, quota, Use(delayed=1))
        if not (quota.retained or quota.retained_bytes):
            return False
        wanted = Use(retained=1, retained_bytes=len(message.payload))
        if not _exceeded(quota, self._uses[user], wanted):
            _add(self._uses[user], wanted)
            return False
        old = await self._retained_now(message.topic)
        if old is not None and old.user == user:
            wanted = Use(retained_bytes=len(message.payload) - len(old.payload))
        return await self._is_full(user, quota, wanted)

    async def _is_full(self, user: str, quota: Quota, wanted: Use) -> bool:
        if _exceeded(quota, self._uses[user], wanted):
            await self._count_soon(user)
            if exceeded := _exceeded(quota, self._uses[user], wanted):
                self._quotas.refusals.note(exceeded, user)
                return True
        _add(self._uses[user], wanted)
        return False

    async def _retained_now(self, topic: str) -> MessageUser | None:
        key = keys.retained(topic)
        found = await self._store_retry.get(key)
        return None if found is None else decode(MessageUser, key, found.value)

    async def _count_soon(self, user: str) -> None:
        """Wait for the next count, unless that takes long, or the last one can hardly be outdated."""
        counted = self._counted
        self._is_wanted.set()
        if not self._uses[user].is_estimate and trio.current_time() - self._counted_at_s <= _SHORTEST_INTERVAL_S:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(_LONGEST_WAIT_S):
            await counted.wait()

    async def _count(self) -> dict[str, Use]:
        uses: dict[str, Use] = defaultdict(Use)
        limits = self._quotas.limits_of_any
        if Limit.SESSIONS in limits:
            async for session in self._values(keys.SESSIONS, SessionUser):
                if session.user is not None:
                    uses[session.user].sessions += 1
        if limits & {Limit.RETAINED, Limit.RETAINED_BYTES}:
            async for message in self._values(keys.RETAINED, MessageUser):
                if message.user is not None:
                    use = uses[message.user]
                    use.retained += 1
                    use.retained_bytes += len(message.payload)
        if Limit.DELAYED in limits:
            async for message in self._values(keys.DELAYED, MessageUser):
                if message.user is not None:
                    uses[message.user].delayed += 1
        return uses

    async def _values(self, prefix: bytes, form: type[Form]) -> AsyncGenerator[Form, None]:
        async with self._store_retry.scan(prefix) as values:
            async for value in values:
                try:
                    yield decode(form, value.key, value.value)
                except (CorruptionError, FormatVersionError):
                    # Whoever uses it reports that.
                    continue


_STORED: Final[dict[Limit, Callable[[Use], int]]] = {
    Limit.RETAINED: lambda use: use.retained,
    Limit.RETAINED_BYTES: lambda use: use.retained_bytes,
    Limit.DELAYED: lambda use: use.delayed,
}


def _exceeded(quota: Quota, use: Use, wanted: Use) -> Limit | None:
    """The limit that would be exceeded; what takes nothing more exceeds none."""
    for limit, amount in _STORED.items():
        allowed, more = quota.allowed(limit), amount(wanted)
        if allowed and more > 0 and amount(use) + more > allowed:
            return limit
    return None


def _add(use: Use, more: Use) -> None:
    use.retained += more.retained
    use.retained_bytes += more.retained_bytes
    use.delayed += more.delayed
    use.is_estimate = True
