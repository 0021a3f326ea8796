"""Asking the broker of a client to end its connection, from any broker or from a command.

The session in the store names the broker. The request and the answer go through the shard of messages between brokers
(`broker_adapter.mqtt.session.peer_channel`).
"""

from __future__ import annotations

import enum
import secrets
from contextlib import AbstractAsyncContextManager
from typing import Final

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import StorageError
from broker_adapter.mqtt.clients.listing import session_of
from broker_adapter.mqtt.rules.followers import running_brokers
from broker_adapter.mqtt.session.peer_channel import CONTROL_SHARD, CONTROL_SHARD_CONFIG, PeerMessage, message_of
from broker_adapter.mqtt.session.stored import SessionRecord
from broker_adapter.state_forms import encode
from broker_adapter.subscription import Subscription
from shards.format.record import Gap
from shards.model import AckLevel

_ASKER: Final = "kick-"
_MOVES: Final = 5
"""How often a client is followed that moves from broker to broker meanwhile."""


class Kicked(enum.StrEnum):
    """What became of a request to end a connection."""

    DISCONNECTED = "disconnected"
    """The connection has ended; the session is stored, as after a lost connection, or has ended with it."""

    ENDED = "session ended"
    """The session has ended, and its connection if it had one."""

    AWAY = "not connected"
    """The client is not connected, and its session stays."""

    UNKNOWN = "no session"
    """No client with this identifier has a session."""

    UNANSWERED = "no answer"
    """The broker has not answered; it may be dead, and then the connection is lost anyway."""


@attrs.frozen
class KickResult:
    """The result.

    Attributes:
        outcome: What became of the request.
        broker: The broker that was asked; empty if none was.
    """

    outcome: Kicked
    broker: str = ""


class NoBrokerError(StorageError):
    """No broker runs that could end a session."""

    code = "no_broker"
    retriable = True


async def kick(
    adapter: StorageAdapter, client_id: str, *, by: str, end_session: bool = False, timeout_s: float = 10.0
) -> KickResult:
    """End the connection of a client, at whichever broker it is.

    The client may connect again at once. Returns when its session is closed in the store.

    Args:
        client_id: The client.
        by: Who asks for it, for the audit log of the broker.
        end_session: End the session, too, also of a client that is away: its subscriptions and waiting messages are
            dropped, and its will is published.
        timeout_s: How long to wait for the broker, in seconds.

    Raises:
        NoBrokerError: The session of a client that is away cannot be ended, because no broker runs.
        StorageError: The store does not answer. The call may be repeated.
    """
    await adapter.create_shard(CONTROL_SHARD, CONTROL_SHARD_CONFIG, exist_ok=True)
    asked = ""
    with trio.move_on_after(timeout_s):
        for _ in range(_MOVES):
            record = await session_of(adapter, client_id)
            if record is None:
                return KickResult(Kicked.UNKNOWN)
            if not record.owner and not end_session:
                return KickResult(Kicked.AWAY)
            asked = await _responsible(adapter, record)
            answer = await _ask(
                adapter, PeerMessage("kick", _ASKER, asked, client_id, secrets.randbits(63), end_session, by)
            )
            if answer:
                return KickResult(Kicked(answer), asked)
    return KickResult(Kicked.UNANSWERED, asked)


async def _responsible(adapter: StorageAdapter, record: SessionRecord) -> str:
    if record.owner:
        return record.owner
    running = await running_brokers(adapter)
    if not running:
        raise NoBrokerError("no broker runs that could end the session; start one, and try again")
    return running[0]


async def _ask(adapter: StorageAdapter, question: PeerMessage) -> str:
    """Ask a broker; return the outcome, empty if the client is not there any more."""
    following: AbstractAsyncContextManager[Subscription] = adapter.subscribe(CONTROL_SHARD)
    async with following as subscription:
        await adapter.append(CONTROL_SHARD, [encode(question)], ack=AckLevel.MEMORY)
        async for delivery in subscription:
            for record in delivery.records:
                if isinstance(record, Gap):
                    continue
                answer = message_of(record.value)
                if answer is not None and answer.kind == "kicked" and answer.epoch == question.epoch:
                    return answer.outcome
    return ""
