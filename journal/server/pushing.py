"""The subscriptions of one connection: their credit, their order, and the task that sends their pushes.

A `PushForm` encodes the pushes: as frames here, as JSON in `journal.server.json_protocol`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from journal.access.authorization import Principal
from journal.access.quotas import Meter
from journal.access.rights import Use, shards_delivered
from journal.engine import Subscription
from journal.net.output import Output
from journal.protocol.errors import UnknownSubscriptionError, describe_error, error_number
from journal.protocol.frames import PUSH, Op, build, build_push_head
from journal.protocol.message_codec import encode
from journal.protocol.messages import ShardEvent
from shards.errors import InvalidRequestError
from shards.subscriptions.events import Notice, Push

_LARGEST_PUSH_BYTES = 1 << 20
_SLICE_S = 0.0002


class PushState:
    """State of one subscription on its connection.

    Attributes:
        target: Its shard or filter, for people.
        use: What its principal needs rights for.
        may_deliver: Which shards it delivers; None for all that it matches.
        is_member: It is a member of a group.
    """

    __slots__ = ("credit_bytes", "is_member", "may_deliver", "number", "queued", "subscription", "target", "use")

    def __init__(
        self, number: int, credit_bytes: int, target: str, use: Use, may_deliver: Callable[[str], bool] | None
    ) -> None:
        self.number = number
        self.target = target
        self.use = use
        self.may_deliver = may_deliver
        self.credit_bytes = credit_bytes
        self.queued = False
        self.is_member = False
        self.subscription: Subscription | None = None

    def delivers(self, shard: str) -> bool:
        """Whether records of a shard may be sent now."""
        return self.subscription is not None and (self.may_deliver is None or self.may_deliver(shard))

    def restrict(self, may_deliver: Callable[[str], bool] | None) -> None:
        """Deliver other shards from now on."""
        self.may_deliver = may_deliver
        if self.subscription is not None:
            self.subscription.restrict(may_deliver)


class PushForm(Protocol):
    """Encodes and sends the pushes of one connection.

    Attributes:
        largest_push_bytes: How much is taken from a subscription at a time.
    """

    largest_push_bytes: int

    async def send(self, state: PushState, item: Push | Notice) -> int:
        """Send an item; returns how much credit it used. It stops if the subscription ends in the meantime."""


class FramedPushes:
    """Pushes as frames of the native protocol."""

    def __init__(self, output: Output, max_frame_bytes: int) -> None:
        self._output = output
        self.largest_push_bytes = min(_LARGEST_PUSH_BYTES, max_frame_bytes - PUSH.size)

    async def send(self, state: PushState, item: Push | Notice) -> int:
        if isinstance(item, Notice):
            frame = build(Op.SHARD_EVENT, 0, encode(_event(state.number, item)))
            self._output.send((frame,), len(frame))
            return 0
        head = build_push_head(state.number, item.reference, item.first_offset, item.next_offset, item.size_bytes)
        self._output.send([head, *item.buffers], len(head) + item.size_bytes)
        return item.size_bytes


class Pushing:
    """Sends pushes of all subscriptions in turn, as far as their credit and the output's limit allow.

    Attributes:
        pushed_bytes: Pushed bytes, as counted for credit.
        meter: The quotas for them; None if there are none.
    """

    def __init__(self, output: Output, form: PushForm) -> None:
        self._output = output
        self._form = form
        self._states: dict[int, PushState] = {}
        self._ready: deque[PushState] = deque()
        self._wake = trio.Event()
        self.pushed_bytes = 0
        self.meter: Meter | None = None

    def __len__(self) -> int:
        return len(self._states)

    @property
    def has_members(self) -> bool:
        """Whether one of the subscriptions is a member of a group."""
        return any(state.is_member for state in self._states.values())

    def states(self) -> list[PushState]:
        """The states of all subscriptions."""
        return list(self._states.values())

    def add(self, number: int, credit_bytes: int, target: str, use: Use, principal: Principal) -> PushState:
        """Reserve a number for a subscription that will begin.

        Args:
            number: Its number.
            credit_bytes: Its first credit.
            target: Its shard or filter, for administrators.
            use: What its principal needs rights for, as long as it is open.
            principal: The principal.

        Raises:
            InvalidRequestError: The number is in use.
        """
        if number in self._states:
            raise InvalidRequestError(
                f"subscription {number} is already open on this connection; choose another number"
            )
        may_deliver = shards_delivered(use, principal)
        state = self._states[number] = PushState(number, credit_bytes, target, use, may_deliver)
        return state

    def discard(self, state: PushState) -> None:
        """Release the number of a subscription that did not begin."""
        if self._states.get(state.number) is state:
            del self._states[state.number]

    def begin(self, state: PushState, subscription: Subscription) -> None:
        """Attach the subscription; `ready` may have been called for it before."""
        if self._states.get(state.number) is not state:
            # Its end was requested before it began.
            subscription.close()
            return
        state.subscription = subscription
        # The rights may have changed while it began.
        subscription.restrict(state.may_deliver)
        if subscription.has_more:
            self.ready(state)

    def ready(self, state: PushState) -> None:
        """Note that the subscription may have something to push."""
        if not state.queued and state.subscription is not None:
            state.queued = True
            self._ready.append(state)
            self._wake.set()

    def get(self, number: int) -> PushState:
        """A subscription by its number.

        Raises:
            UnknownSubscriptionError: It does not exist.
        """
        state = self._states.get(number)
        if state is None:
            raise UnknownSubscriptionError(f"subscription {number} is not open on this connection")
        return state

    def credit(self, number: int, size_bytes: int) -> None:
        """Add credit. Credit for a subscription that has just ended is not an error."""
        state = self._states.get(number)
        if state is not None:
            state.credit_bytes += size_bytes
            if state.subscription is not None:
                state.subscription.credit_changed()
                if state.subscription.has_more:
                    self.ready(state)

    def acknowledge(self, number: int, reference: int, first_offset: int, next_offset: int) -> None:
        """Acknowledge records for a group member."""
        state = self._states.get(number)
        if state is not None and state.subscription is not None:
            state.subscription.acknowledge(reference, first_offset, next_offset)

    def end(self, number: int) -> None:
        """End a subscription."""
        state = self.get(number)
        del self._states[number]
        if state.subscription is not None:
            state.subscription.close()
            state.subscription = None

    def close(self) -> None:
        """End all of them."""
        for number in list(self._states):
            self.end(number)

    async def run(self) -> None:
        """Send pushes until cancelled.

        A client with many subscriptions to the same records gets each of them many times, mostly without any wait: so
        other tasks get time in between.
        """
        slice_ends = 0.0
        while True:
            if not self._ready:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            if not self._output.has_room:
                await self._output.wait_for_room()
            if self.meter is not None:
                await self.meter.wait()
                if not self._ready:
                    continue
            state = self._ready.popleft()
            state.queued = False
            await self._push_one(state)
            now = time.perf_counter()
            if now >= slice_ends:
                await trio.lowlevel.checkpoint()
                slice_ends = time.perf_counter() + _SLICE_S

    async def _push_one(self, state: PushState) -> None:
        subscription = state.subscription
        if subscription is None or state.credit_bytes <= 0:
            return
        item = await subscription.take(min(state.credit_bytes, self._form.largest_push_bytes))
        if state.subscription is None:
            # It ended while a file was being read.
            return
        if item is not None:
            taken = await self._form.send(state, item)
            state.credit_bytes -= taken
            self.pushed_bytes += taken
            if self.meter is not None:
                self.meter.spend(0, taken)
        if item is not None and subscription.has_more:
            self.ready(state)


def _event(number: int, notice: Notice) -> ShardEvent:
    event = ShardEvent(
        number,
        notice.event,
        shard_ref=notice.reference,
        shard_id=notice.shard_id,
        name=notice.name,
        offset=notice.offset,
        lsn=notice.lsn,
    )
    if notice.error is None:
        return event
    body = describe_error(notice.error)
    return attrs.evolve(
        event, code=body.code, status=error_number(notice.error), message=body.message, details=body.details
    )
