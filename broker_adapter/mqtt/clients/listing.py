"""The sessions of a store: which client has one, whose it is, and at which broker it is connected."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import attrs

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import CorruptionError, FormatVersionError
from broker_adapter.mqtt.rules.report import time_text
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.stored import SessionRecord
from broker_adapter.state_forms import decode


@attrs.frozen(slots=True)
class ClientInfo:
    """A client with a session.

    Attributes:
        client_id: Its identifier.
        user: The user who began the session; empty for an anonymous client, None if an older program stored it.
        broker: Id of the broker at which it is connected; empty while it is away.
        host: Address from which it connected last; None if an older program stored it.
        expires_at_us: When the session ends, in microseconds since 1970; 0 while it is connected, or for never.
        subscription_count: Subscriptions that are stored; a session that ends with its connection has none there.
    """

    client_id: str
    user: str | None
    broker: str
    host: str | None
    expires_at_us: int
    subscription_count: int

    @property
    def plain(self) -> dict[str, Any]:
        """The fields as they are shown to programs."""
        ends = self.expires_at_us
        return {
            "client_id": self.client_id,
            "user": self.user,
            "broker": self.broker or None,
            "host": self.host,
            "expires_at": time_text(ends) if ends else None,
            "subscriptions": self.subscription_count,
        }


async def clients_of(adapter: StorageAdapter, *, after: str = "") -> AsyncGenerator[ClientInfo, None]:
    """The clients with a session, connected or not, in the order of their identifiers in the store.

    Args:
        after: Begin behind the client of this identifier.

    Raises:
        StorageError: The store does not answer.
    """
    start = keys.session(after) if after else None
    async with aclosing(adapter.scan_state(keys.SESSIONS, after=start)) as values:
        async for value in values:
            try:
                record = decode(SessionRecord, value.key, value.value)
            except (CorruptionError, FormatVersionError):
                # One session that cannot be read must not hide all others; the brokers log it.
                continue
            yield ClientInfo(
                record.client_id,
                record.user,
                record.owner,
                record.host,
                record.expires_due_us,
                len(record.subscriptions),
            )


async def session_of(adapter: StorageAdapter, client_id: str) -> SessionRecord | None:
    """The stored session of a client.

    Raises:
        StorageError: The store does not answer.
    """
    found = await adapter.get_state(keys.session(client_id))
    return None if found is None else decode(SessionRecord, found.key, found.value)
