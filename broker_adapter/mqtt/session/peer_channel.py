"""Messages between brokers: requests to give up a session, or to end the connection of a client, and the answers.

They are records of one shard in memory that all brokers follow. They only save time and duplicates: compare-and-set
decides who owns a session, and a broker that gets no answer continues without one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.errors import CorruptionError, FormatVersionError, ShardNotFoundError, StorageError
from broker_adapter.mqtt.session.store_retry import StoreRetry, may_pass
from broker_adapter.state_forms import decode, encode
from shards.format.record import Gap
from shards.model import AckLevel, Mode, Retention, ShardConfig
from shards.topics.names import BROKER_PREFIX

_log = logging.getLogger(__name__)

CONTROL_SHARD: Final = f"{BROKER_PREFIX}control"
CONTROL_SHARD_CONFIG: Final = ShardConfig(
    mode=Mode.MEMORY, retention=Retention(max_age_s=60, max_bytes=4 << 20), segment_bytes=1 << 20
)
_MAX_YIELDING: Final = 64


class PeerMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message from one broker to another, or from an administrator's command.

    Attributes:
        kind: ``yield`` asks for a session, ``yielded`` says that it may be taken. ``kick`` asks to end a connection,
            ``kicked`` says that it was done.
        epoch: Epoch of the session as the asking broker read it; for a kick a random number, repeated in the answer.
        end_session: For ``kick``: whether the session is to end, too.
        by: For ``kick``: who asks for it.
        outcome: For ``kicked``: what became of it; empty if the client is not at this broker.
    """

    kind: Literal["yield", "yielded", "kick", "kicked"]
    sender: str
    receiver: str
    client_id: str
    epoch: int
    end_session: bool = False
    by: str = ""
    outcome: str = ""


class PeerChannel:
    """Sends and receives the messages of this broker.

    Args:
        store_retry: The store.
        broker_id: Messages with this receiver are for this broker.
        give_up: Gives up a session if this broker has it open; the answer is sent after it returns.
        kick: Ends a connection or a session; returns the outcome, which is the answer.
        on_missed: Called when messages may have been missed.
    """

    def __init__(
        self,
        store_retry: StoreRetry,
        broker_id: str,
        *,
        give_up: Callable[[str, int], Awaitable[None]],
        kick: Callable[[PeerMessage], Awaitable[str]],
        on_missed: Callable[[], None],
    ) -> None:
        self._store_retry = store_retry
        self._broker_id = broker_id
        self._give_up = give_up
        self._kick = kick
        self._on_missed = on_missed
        self._asked: dict[tuple[str, str, int], trio.Event] = {}
        self._silent: set[str] = set()

    @property
    def _adapter(self) -> StorageAdapter:
        return self._store_retry.adapter

    async def ask(self, owner: str, client_id: str, epoch: int, *, timeout_s: float) -> bool:
        """Ask the owner of a session to give it up; return whether it answered that it has.

        After a broker did not answer, later calls do not wait for it until `mark_alive` is called for it.
        """
        if owner in self._silent:
            return False
        question = (owner, client_id, epoch)
        answered = self._asked.setdefault(question, trio.Event())
        try:
            with trio.move_on_after(timeout_s):
                await self._send(PeerMessage("yield", self._broker_id, owner, client_id, epoch))
                await answered.wait()
                return True
        except StorageError as error:
            if not may_pass(error):
                raise
        finally:
            if self._asked.get(question) is answered:
                del self._asked[question]
        self._silent.add(owner)
        return False

    def mark_alive(self, broker_id: str) -> None:
        """A broker has shown that it is alive."""
        self._silent.discard(broker_id)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive messages until cancelled."""
        attempt = 0
        room = trio.Semaphore(_MAX_YIELDING)
        async with background_tasks() as nursery:
            while True:
                try:
                    await self._adapter.create_shard(CONTROL_SHARD, CONTROL_SHARD_CONFIG, exist_ok=True)
                    async with self._adapter.subscribe(CONTROL_SHARD) as subscription:
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
                        async for delivery in subscription:
                            attempt = 0
                            for record in delivery.records:
                                if isinstance(record, Gap):
                                    self._on_missed()
                                else:
                                    await self._handle(record.value, nursery, room)
                except ShardNotFoundError:
                    _log.warning("the control shard was deleted; it is created again")
                except StorageError as error:
                    if not may_pass(error):
                        raise
                else:
                    return  # the adapter is being closed
                await self._store_retry.pause(attempt)
                attempt += 1
                self._on_missed()

    async def _handle(self, value: bytes, nursery: trio.Nursery, room: trio.Semaphore) -> None:
        message = message_of(value)
        if message is None:
            return
        self._silent.discard(message.sender)
        if message.receiver != self._broker_id:
            return
        if message.kind in ("yield", "kick"):
            await room.acquire()
            nursery.start_soon(self._answer, message, room)
        elif message.kind == "yielded":
            answered = self._asked.get((message.sender, message.client_id, message.epoch))
            if answered is not None:
                answered.set()

    async def _answer(self, message: PeerMessage, room: trio.Semaphore) -> None:
        try:
            client_id, epoch = message.client_id, message.epoch
            if message.kind == "kick":
                outcome = await self._kick(message)
                answer = PeerMessage("kicked", self._broker_id, message.sender, client_id, epoch, outcome=outcome)
            else:
                await self._give_up(client_id, epoch)
                answer = PeerMessage("yielded", self._broker_id, message.sender, client_id, epoch)
            await self._send(answer)
        except StorageError as error:
            # The asker continues after its timeout; the session's own writes get the same error.
            _log.warning("%s of the session of client %r has no answer: %s", message.kind, message.client_id, error)
        finally:
            room.release()

    async def _send(self, message: PeerMessage) -> None:
        await self._adapter.append(CONTROL_SHARD, [encode(message)], ack=AckLevel.MEMORY)


def message_of(value: bytes) -> PeerMessage | None:
    """The message in a record; None, with a line in the log, if it cannot be decoded."""
    try:
        return decode(PeerMessage, CONTROL_SHARD.encode(), value)
    except (CorruptionError, FormatVersionError) as error:
        _log.warning("a control message cannot be decoded: %s", error)
        return None
