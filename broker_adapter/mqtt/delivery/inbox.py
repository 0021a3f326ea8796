"""What has arrived for one session and was not taken yet. Bounded: who takes too little catches up later.

An inbox knows nothing of the store. It keeps the books that let its owner fill it from several sources, one after the
other, without leaving anything out or bringing anything twice: how far each shard has been put in, and how far all.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import attrs
import trio

from broker_adapter.mqtt.delivery.arrival import Arrival, arrival_of
from broker_adapter.mqtt.message import Message
from broker_adapter.mqtt.origin import Origin
from broker_adapter.mqtt.subscription import SubscriptionOptions
from shards.filter_index import FilterIndex
from shards.topic_filters import matches

if TYPE_CHECKING:
    from broker_adapter.mqtt.delivery.tail import Tail

_FEW_FILTERS: Final = 8
_ARRIVAL_BYTES: Final = 256
_SAFE_EVERY: Final = 256
_MANY_SHARDS: Final = 4096


@attrs.frozen(slots=True, kw_only=True)
class InboxLimits:
    """Bounds of one inbox.

    Attributes:
        max_count: Arrivals that wait.
        max_bytes: Their payloads, and `_ARRIVAL_BYTES` for each.
        group_count: Arrivals of one group that are not acknowledged; more go to its other members.
    """

    max_count: int = 1000
    max_bytes: int = 4 << 20
    group_count: int = 64


class State(enum.Enum):
    """Where an inbox gets its messages from."""

    LIVE = enum.auto()
    """From tails."""

    CATCHING_UP = enum.auto()
    """From the store, while what tails bring is held back."""

    BEHIND = enum.auto()
    """From the store alone."""

    CLOSED = enum.auto()


class Inbox:
    """See the module.

    Args:
        client_id: Whose it is.
        position_lsn: Every matching stored message up to here was taken earlier.
        on_ready: Called when something can be taken.
        limits: Its bounds.

    Attributes:
        floors: The tails that feed it, in the order that decides which of them brings a shard, and above which lsn.
        tails_of: Which of them a topic filter needs.
        offline_until_lsn: What lies at or below this came while the session was away.
        dropped_count: Messages that it did not get because it was full: live-only ones and those at QoS 0.
    """

    __slots__ = (
        "_by_filter",
        "_bytes",
        "_held",
        "_index",
        "_limits",
        "_on_ready",
        "_position_lsn",
        "_put",
        "_queue",
        "_room",
        "_safe_lsn",
        "_state",
        "_taken",
        "client_id",
        "dropped_count",
        "floors",
        "offline_until_lsn",
        "tails_of",
    )

    def __init__(self, client_id: str, position_lsn: int, *, on_ready: Callable[[], None], limits: InboxLimits) -> None:
        self.client_id = client_id
        self._state = State.LIVE
        self.floors: dict[Tail, int] = {}
        self.tails_of: dict[str, tuple[Tail, ...]] = {}
        self.dropped_count = 0
        self.offline_until_lsn = 0
        self._limits = limits
        self._on_ready = on_ready
        self._position_lsn = position_lsn
        self._safe_lsn = position_lsn
        self._queue: deque[Arrival] = deque()
        self._held: deque[Arrival] = deque()
        self._bytes = 0
        self._taken = 0
        self._room: trio.Event | None = None
        self._put: dict[str, tuple[int, int]] = {}
        self._by_filter: dict[str, SubscriptionOptions] = {}
        self._index: FilterIndex[str] | None = None

    @property
    def state(self) -> State:
        """Where it gets its messages from."""
        return self._state

    def is_in(self, state: State) -> bool:
        """Whether that is where it gets its messages from; it may change whenever somebody waits."""
        return self._state is state

    def become(self, state: State) -> None:
        """Get them from elsewhere; a closed inbox stays closed."""
        if self._state is not State.CLOSED:
            self._state = state

    # What the session's sender uses

    def take(self, max_count: int) -> list[Arrival]:
        """Up to so many arrivals, in order; none if there are none now."""
        queue = self._queue
        count = min(max_count, len(queue))
        taken = [queue.popleft() for _ in range(count)]
        self._taken += count
        for arrival in taken:
            self._bytes -= len(arrival.message.payload) + _ARRIVAL_BYTES
        if self._room is not None and self.has_room:
            self._room.set()
            self._room = None
        return taken

    @property
    def has_more(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._queue)

    @property
    def queued_count(self) -> int:
        """Arrivals that wait."""
        return len(self._queue) + len(self._held)

    @property
    def is_behind(self) -> bool:
        """Whether it is being filled from the store, not by live tails."""
        return self.state in (State.BEHIND, State.CATCHING_UP)

    @property
    def safe_lsn(self) -> int:
        """Every matching stored message with this lsn or a lower one has been taken."""
        if self._queue or self._held:
            if self._taken >= _SAFE_EVERY:
                self._taken = 0
                lowest = min((one.message.lsn for one in self._counted()), default=self.position_lsn + 1)
                self._safe_lsn = max(self._safe_lsn, min(self.position_lsn, lowest - 1))
            return self._safe_lsn
        self._safe_lsn = max(self._safe_lsn, self.position_lsn)
        return self._safe_lsn

    def _counted(self) -> Iterator[Arrival]:
        for queue in (self._queue, self._held):
            for arrival in queue:
                if arrival.origin is Origin.SUBSCRIPTION and arrival.message.lsn:
                    yield arrival

    # Subscriptions

    @property
    def filters(self) -> dict[str, SubscriptionOptions]:
        """Options by topic filter."""
        return self._by_filter

    def set_filter(self, topic_filter: str, options: SubscriptionOptions) -> None:
        """Add a subscription or replace its options."""
        is_new = topic_filter not in self._by_filter
        self._by_filter[topic_filter] = options
        if self._index is not None and is_new:
            self._index.add(topic_filter, topic_filter)
        elif len(self._by_filter) > _FEW_FILTERS and self._index is None:
            self._index = FilterIndex()
            for one in self._by_filter:
                self._index.add(one, one)

    def remove_filter(self, topic_filter: str) -> None:
        """Forget a subscription."""
        if self._by_filter.pop(topic_filter, None) is not None and self._index is not None:
            self._index.discard(topic_filter, topic_filter)

    def arrival(self, message: Message) -> Arrival | None:
        """What a message is for this session; None if nothing."""
        by_filter = self._by_filter
        if self._index is not None:
            matched = [by_filter[one] for one in self._index.match(message.topic)]
        elif len(by_filter) == 1:
            [(only, options)] = by_filter.items()
            matched = [options] if matches(only, message.topic) else []
        else:
            matched = [options for one, options in by_filter.items() if matches(one, message.topic)]
        return arrival_of(message, self.client_id, matched) if matched else None

    # Filling it

    @property
    def has_room(self) -> bool:
        """Whether a source that can wait may put something in: it is at most half full."""
        return len(self._queue) <= self._limits.max_count // 2 and self._bytes <= self._limits.max_bytes // 2

    async def wait_for_room(self) -> None:
        """Return when it `has_room`."""
        while not self.has_room and self.state is not State.CLOSED:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    @property
    def is_full(self) -> bool:
        """Whether a source that cannot wait must not put anything in."""
        return len(self._queue) + len(self._held) >= self._limits.max_count or self._bytes >= self._limits.max_bytes

    @property
    def group_count(self) -> int:
        """How many arrivals of one group may wait for their acknowledgement."""
        return self._limits.group_count

    def put(self, arrival: Arrival) -> None:
        """Add an arrival; the caller has looked whether there is room, and calls `ready` when it has put in all."""
        self._queue.append(arrival)
        self._bytes += len(arrival.message.payload) + _ARRIVAL_BYTES

    def hold(self, arrival: Arrival) -> None:
        """Keep an arrival for `release_held`."""
        self._held.append(arrival)
        self._bytes += len(arrival.message.payload) + _ARRIVAL_BYTES

    def ready(self) -> None:
        """Tell the session that there is something to take."""
        if self._queue:
            self._on_ready()

    def note_put(self, shard: str, next_offset: int, lsn: int) -> None:
        """Everything of a shard below an offset was put in, or is not for this session."""
        self._put[shard] = (next_offset, lsn)
        if len(self._put) > _MANY_SHARDS:
            position_lsn = self.position_lsn
            self._put = {name: put for name, put in self._put.items() if put[1] > position_lsn}

    def was_put(self, shard: str, offset: int) -> bool:
        """Whether a record was put in before, above the position."""
        put = self._put.get(shard)
        return put is not None and offset < put[0]

    def release_held(self) -> None:
        """What tails brought meanwhile follows what was caught up with."""
        for arrival in self._held:
            message = arrival.message
            self.note_put(message.shard, message.offset + 1, message.lsn)
        self._queue.extend(self._held)
        self._held.clear()

    def drop_held(self) -> None:
        """Give up what tails brought meanwhile: it will be caught up with."""
        for arrival in self._held:
            self._bytes -= len(arrival.message.payload) + _ARRIVAL_BYTES
        self._held.clear()

    # Positions

    @property
    def position_lsn(self) -> int:
        """Every matching stored message with this lsn or a lower one has been put in."""
        if self.state is State.LIVE and self.floors:
            reached = min(max(tail.progress_lsn, floor) for tail, floor in self.floors.items())
            self._position_lsn = max(self._position_lsn, reached)
        return self._position_lsn

    def advance(self, lsn: int) -> None:
        """Everything up to here has been put in."""
        self._position_lsn = max(self._position_lsn, lsn)

    def close(self) -> None:
        """Nothing is put in any more."""
        self._state = State.CLOSED
        if self._room is not None:
            self._room.set()

    def brings(self, tail: Tail, shard: str) -> bool:
        """Whether this tail is the one that brings a shard: of those whose target matches it, the first."""
        if len(self.floors) == 1:
            return True
        return tail is next((one for one in self.floors if matches(one.target, shard)), tail)


def ready_all(inboxes: Iterable[Inbox]) -> None:
    """Tell all of them."""
    for inbox in inboxes:
        inbox.ready()
