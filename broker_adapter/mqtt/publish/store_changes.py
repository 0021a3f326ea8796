"""Storing messages: which changes that takes, and creation of the shards that it needs.

The queue of one connection's messages is in `pipeline`; changes that are stored together with a session's state are
committed by `session`. A message that a bridge takes is two appends, which are acknowledged as one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.bridge.queue_routing import NO_QUEUES, QueueRouting
from broker_adapter.cache_queue import QueueWriter
from broker_adapter.cache_queue.errors import QueueFullError
from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.errors import (
    ConnectionLostError,
    DiskFullError,
    InvalidNameError,
    LimitExceededError,
    OverloadedError,
    ShuttingDownError,
    StorageError,
)
from broker_adapter.mqtt.model.limits import STORE_BACK_OFF
from broker_adapter.mqtt.model.message import DelayedPublish, Message, record_of
from broker_adapter.mqtt.model.storage_rules import Placement, Placements
from broker_adapter.mqtt.publish.received import Received, needs_commit
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from broker_adapter.results import PendingAppend
from shards.format.record import Record
from shards.model import Appended, ShardConfig

_CREATED_AT_ONCE: Final = 64
_KNOWN_SHARDS: Final = 200_000
_APPENDED_TOGETHER_BYTES: Final = 64 * 1024

UNREACHABLE: Final = (ConnectionLostError, ShuttingDownError, OverloadedError)
"""Temporary errors: the store does not answer, or not now. The call is repeated, and no error is reported."""

_REASON_CODES: Final[tuple[tuple[type[StorageError], ReasonCode], ...]] = (
    (InvalidNameError, ReasonCode.TOPIC_NAME_INVALID),
    (DiskFullError, ReasonCode.QUOTA_EXCEEDED),
    (LimitExceededError, ReasonCode.QUOTA_EXCEEDED),
    (OverloadedError, ReasonCode.QUOTA_EXCEEDED),
    (QueueFullError, ReasonCode.QUOTA_EXCEEDED),
)

Result = TypeVar("Result")


class RetainedChanges(Protocol):
    """Returns the change of a retained message; see `session.Retained`."""

    def change_for(self, message: Message) -> StatePut | StateDelete:
        """The change to the state store."""


def reason_code_of(error: StorageError) -> ReasonCode:
    """Reason code for a message that the store refused; always a failure."""
    for kind, reason_code in _REASON_CODES:
        if isinstance(error, kind):
            return reason_code
    return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class Publisher:
    """Stores messages, for all connections of a broker.

    Args:
        adapter: The store.
        placements: Where messages are stored.
        retained: Returns the additional changes of retained messages.
        delay: Returns the puts for a message that is due later (`Sessions.delay`).
        on_refused: Called for each message that the store refuses.
        queue_routing: The cache queues that messages are stored in as well.
        max_packet_bytes: Largest packet of a client; each message in one fits into a batch of the store.

    Attributes:
        append_bytes: Most bytes of messages that are appended together; one message may have more.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        placements: Placements,
        *,
        max_packet_bytes: int,
        retained: RetainedChanges,
        delay: Callable[[Message, DelayedPublish], Iterable[StatePut]],
        on_refused: Callable[[StorageError], None],
        queue_routing: QueueRouting = NO_QUEUES,
    ) -> None:
        self._adapter = adapter
        self._queue_routing = queue_routing
        self._placements = placements
        self._retained = retained
        self._delay = delay
        self.refused = on_refused
        # A message would be refused for those beside it if all together were larger than the store takes.
        self.append_bytes = min(_APPENDED_TOGETHER_BYTES, max_packet_bytes)
        self._known: dict[str, None] = {}

    def placement_of(self, message: Message) -> Placement:
        """Where a message is stored."""
        return self._placements.of(message.topic, message.qos, message.publisher)

    def queues_for(self, message: Message) -> tuple[QueueWriter, ...]:
        """The cache queues that a message is stored in, in addition to its shard."""
        return self._queue_routing.queues_for(message.topic) if self._queue_routing else ()

    def refusal_of(self, message: Message) -> ReasonCode | None:
        """Reason code of a message that is refused because a queue is full; None if it is accepted."""
        refusing = next((queue for queue in self.queues_for(message) if queue.refuses), None)
        return None if refusing is None else self.refuse(refusing)

    def refuse(self, queue: QueueWriter) -> ReasonCode:
        """Note that a message is refused because a queue is full, and return its reason code."""
        queue.rejected(1)
        error = queue.full_error()
        self.refused(error)
        return reason_code_of(error)

    def is_known(self, shard: str) -> bool:
        """Whether this broker knows that a shard exists."""
        return shard in self._known

    def forget(self, shard: str) -> None:
        """A shard does not exist any more."""
        self._known.pop(shard, None)

    def append_nowait(self, shard: str, records: Sequence[Record], *, is_last: bool = False) -> PendingAppend:
        """Append records to a shard that `is_known`; see `StorageAdapter.append_nowait`."""
        return self._adapter.append_nowait(shard, records, is_last=is_last)

    def why_it_waits(self, received: Received) -> str:
        """What a publish without an outcome waits for, for operators."""
        message = received.message
        if message is None:
            return "earlier publishes of its client"
        if needs_commit(received) and received.pending is None:
            return f"a commit of the message to {message.topic!r}"
        shards = [self.placement_of(message).shard, *(writer.shard for writer in self.queues_for(message))]
        if received.unplaced_count:
            step = "room for its append"
        elif received.pending is not None:
            step = "the answer to its append"
        else:
            step = "its shard, which is being created, or earlier publishes of its client"
        states = ((shard, self._adapter.append_state(shard)) for shard in shards)
        return "; ".join([step, *(f"{shard!r}: {state}" for shard, state in states if state)])

    async def wait_for_room(self, size_bytes: int) -> None:
        """See `StorageAdapter.wait_for_room`."""
        await self._adapter.wait_for_room(size_bytes)

    async def create_shards(self, shards: dict[str, ShardConfig]) -> dict[str, StorageError]:
        """Create shards that do not exist; retries as long as the store cannot be reached.

        Returns:
            Shards that the store refused to create, with the error.
        """
        refused: dict[str, StorageError] = {}
        missing = [(name, config) for name, config in shards.items() if name not in self._known]
        if len(missing) == 1:
            await self._create(*missing[0], refused)
            return refused
        for start in range(0, len(missing), _CREATED_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for name, config in missing[start : start + _CREATED_AT_ONCE]:
                    nursery.start_soon(self._create, name, config, refused)
        return refused

    async def _create(self, name: str, config: ShardConfig, refused: dict[str, StorageError]) -> None:
        try:
            await until_reached(lambda: self._adapter.create_shard(name, config, exist_ok=True))
        except StorageError as error:
            refused[name] = error
            return
        while len(self._known) >= _KNOWN_SHARDS:
            del self._known[next(iter(self._known))]
        self._known[name] = None

    async def changes_for(self, message: Message) -> Changes:
        """The changes that store a message, after its shards were created.

        Raises:
            StorageError: The store refuses the shard.
        """
        placement = self.placement_of(message)
        refused = await self.create_shards({placement.shard: placement.config})
        if refused:
            raise refused[placement.shard]
        return self.changes([(message, None)])

    def changes(self, messages: Iterable[tuple[Message, DelayedPublish | None]]) -> Changes:
        """The changes that store messages, now or, with a due time, later.

        REQUIRES: The shards of messages that are not delayed exist.
        """
        appends: dict[str, list[Record]] = {}
        states: dict[bytes, StatePut | StateDelete] = {}
        for message, due in messages:
            if due is not None:
                states.update((put.key, put) for put in self._delay(message, due))
                continue
            placement = self.placement_of(message)
            appends.setdefault(placement.shard, []).append(record_of(message, placement.topic))
            for queue in self.queues_for(message):
                if records := queue.for_commit([record_of(message)]):
                    appends.setdefault(queue.shard, []).extend(records)
            if message.retain:
                change = self._retained.change_for(message)
                # A later message of the topic replaces an earlier one.
                states[change.key] = change
        return Changes(
            tuple(appends.items()),
            tuple(change for change in states.values() if isinstance(change, StatePut)),
            tuple(change for change in states.values() if isinstance(change, StateDelete)),
        )


async def until_reached(
    call: Callable[[], Awaitable[Result]], *, also_after: tuple[type[StorageError], ...] = ()
) -> Result:
    """Repeat a call until the store answers. It must be a call that may be carried out twice.

    Args:
        call: The call.
        also_after: Errors after which it is repeated, too.
    """
    passing: tuple[type[StorageError], ...] = UNREACHABLE + also_after
    attempt = 0
    while True:
        try:
            return await call()
        except passing:
            await trio.sleep(STORE_BACK_OFF.delay_s(attempt))
            attempt += 1


@attrs.frozen(slots=True, eq=False)
class JoinedAppend:
    """A `PendingAppend` that is done when both are; it fails if either fails."""

    first: PendingAppend
    second: PendingAppend

    @property
    def parts(self) -> tuple[PendingAppend, ...]:
        """The two appends."""
        return tuple(part for each in (self.first, self.second) for part in parts_of(each))

    @property
    def is_done(self) -> bool:
        """Whether both outcomes are known."""
        return self.first.is_done and self.second.is_done

    async def wait(self) -> Appended:
        """Wait for both; see `PendingAppend.wait`."""
        for each in (self.first, self.second):
            try:
                await each.wait()
            except StorageError:
                # The error is reported by `result_nowait`, when both are done.
                continue
        return self.result_nowait()

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once both outcomes are known; see `PendingAppend.call_when_done`."""
        self.first.call_when_done(lambda: self.second.call_when_done(call))

    def result_nowait(self) -> Appended:
        """The outcome of the first, if both were stored."""
        self.second.result_nowait()
        return self.first.result_nowait()


def parts_of(pending: PendingAppend) -> tuple[PendingAppend, ...]:
    """The appends to the store that a pending append consists of."""
    return pending.parts if isinstance(pending, JoinedAppend) else (pending,)
