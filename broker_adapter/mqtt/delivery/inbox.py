"""Messages that have arrived for one session and were not taken yet. Bounded: a slow session reads the rest later.

An inbox does not access the store. It records positions, so that it can be filled from several sources, one after the
other, without gaps or duplicates. An empty inbox needs little memory, because there are many of them.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import trio

from broker_adapter.mqtt.delivery.dedup_watermark import DedupWatermark
from broker_adapter.mqtt.delivery.limits import DeliveryLimits
from broker_adapter.mqtt.delivery.outgoing_message import ARRIVAL_BYTES, Arrival, size_bytes, total_bytes
from broker_adapter.mqtt.model.position import ReachedLsn
from shards.seams.clock import Clock


class State(enum.Enum):
    """The source of an inbox's messages."""

    LIVE = enum.auto()
    """Tails."""

    BEHIND = enum.auto()
    """The store; messages of tails are ignored, because they will be read from the store."""

    JOINING = enum.auto()
    """The store, while messages of tails beyond a certain lsn are held back."""

    CLOSED = enum.auto()
    """None: it is closed."""


class Reach(Protocol):
    """How far the tails have come for an inbox."""

    @property
    def reached_lsn(self) -> ReachedLsn:
        """Everything up to this lsn was handed out; 0 if that is unknown."""


class Inbox:
    """A bounded queue of messages for one session; see the module.

    Args:
        client_id: Client of the session.
        position_lsn: All matching stored messages up to this lsn were taken earlier.
        on_ready: Called when something can be taken, once for many messages; must not block.
        on_behind: Called when it has fallen behind.
        reach: Tells how far the tails have come.
        limits: Limits of the queue.
        clock: Tells what has expired.

    Attributes:
        watermark: Records that were put in.
        live_watermark: Records of tails beyond this are accepted; None if none are.
        offline_until_lsn: Records up to this lsn were stored while the session was away.
        dropped_count: Messages that were dropped because it was full.
    """

    __slots__ = (
        "_bytes",
        "_clock",
        "_held",
        "_held_bytes",
        "_limits",
        "_lows",
        "_on_behind",
        "_on_ready",
        "_on_room",
        "_put_count",
        "_queue",
        "_reach",
        "_room",
        "_safe_lsn",
        "_state",
        "_taken_count",
        "client_id",
        "dropped_count",
        "live_watermark",
        "offline_until_lsn",
        "watermark",
    )

    def __init__(
        self,
        client_id: str,
        position_lsn: ReachedLsn,
        *,
        on_ready: Callable[[], None],
        on_behind: Callable[[Inbox], None],
        reach: Reach,
        limits: DeliveryLimits,
        clock: Clock,
    ) -> None:
        self.client_id = client_id
        self.watermark = DedupWatermark(position_lsn)
        self.live_watermark: DedupWatermark | None = self.watermark
        self.offline_until_lsn = ReachedLsn(0)
        self.dropped_count = 0
        self._state = State.LIVE
        self._on_ready = on_ready
        self._on_behind = on_behind
        self._reach = reach
        self._limits = limits
        self._clock = clock
        self._safe_lsn = position_lsn
        # An empty deque needs more memory than all the rest of an inbox, so there is none while nothing waits.
        self._queue: deque[Arrival] | tuple[()] = ()
        self._held: list[Arrival] | None = None
        self._held_bytes = 0
        self._bytes = 0
        self._put_count = 0
        self._taken_count = 0
        # (number of the last arrival, lowest lsn among these), lowest lsn first: `safe_lsn` must stay below these.
        self._lows: list[tuple[int, int]] = []
        self._room: trio.Event | None = None
        self._on_room: Callable[[Inbox], None] | None = None

    def __repr__(self) -> str:
        return f"<Inbox of {self.client_id!r}, {self._state.name}, {self.queued_count} queued>"

    # Called by the session's sender

    def take(self, max_count: int) -> list[Arrival]:
        """Up to ``max_count`` arrivals, in order; an empty list if there are none. Expired ones are left out."""
        queue = self._queue
        taken: list[Arrival] = []
        if isinstance(queue, tuple):
            return taken
        count = size = 0
        now_us = 0
        while queue and len(taken) < max_count:
            arrival = queue.popleft()
            message = arrival.message
            count += 1
            size += len(message.payload)
            if expires_at_us := message.expires_at_us:
                now_us = now_us or self._clock.now_us()
                if expires_at_us <= now_us:
                    if arrival.acknowledge is not None:
                        arrival.acknowledge()
                    continue
            taken.append(arrival)
        self._bytes -= size + ARRIVAL_BYTES * count
        self._taken_count += count
        self._forget_lows()
        if (self._room is not None or self._on_room is not None) and self.has_room:
            self._notify_room()
        return taken

    @property
    def has_more(self) -> bool:
        """Whether `take` may return something."""
        return bool(self._queue)

    @property
    def queued_count(self) -> int:
        """Arrivals that wait."""
        return len(self._queue) + (len(self._held) if self._held else 0)

    @property
    def is_behind(self) -> bool:
        """Whether it is being filled from the store, not from tails."""
        return self._state in (State.BEHIND, State.JOINING)

    @property
    def safe_lsn(self) -> ReachedLsn:
        """Every matching stored message up to this lsn has been taken. It never decreases."""
        lsn = self.position_lsn
        if self._lows:
            lsn = min(lsn, ReachedLsn(self._lows[0][1] - 1))
        self._safe_lsn = max(self._safe_lsn, lsn)
        return self._safe_lsn

    def _forget_lows(self) -> None:
        if not self._queue:
            self._queue = ()
            self._lows.clear()
            self._put_count = self._taken_count = 0
            return
        lows = self._lows
        passed = 0
        while passed < len(lows) and lows[passed][0] <= self._taken_count:
            passed += 1
        del lows[:passed]

    # Positions

    @property
    def state(self) -> State:
        """The present source of its messages."""
        return self._state

    @property
    def position_lsn(self) -> ReachedLsn:
        """Every matching stored message up to this lsn has been put in."""
        return max(self.watermark.lsn, self._reach.reached_lsn) if self._state is State.LIVE else self.watermark.lsn

    def note_reached(self) -> None:
        """Raise `watermark` to `position_lsn`: before tails are left, and at intervals."""
        if self._state is State.LIVE:
            self.watermark.raise_to(self.position_lsn)

    # Called by the sources

    @property
    def has_room(self) -> bool:
        """Whether it is at most half full."""
        limits = self._limits
        return 2 * len(self._queue) <= limits.max_queued_count and 2 * self._bytes <= limits.max_queued_bytes

    def takes(self, arrivals: int, arrivals_bytes: int) -> bool:
        """Whether a source that can wait may put this much in. The last quarter is for sources that cannot wait."""
        limits = self._limits
        return (not self._queue and arrivals == 1) or (
            4 * (len(self._queue) + arrivals) <= 3 * limits.max_queued_count
            and 4 * (self._bytes + arrivals_bytes) <= 3 * limits.max_queued_bytes
        )

    def room_for(self, arrivals: Sequence[Arrival]) -> int:
        """How many of the first of these a source that can wait may put in at once."""
        count = len(arrivals)
        most = min(count, max(1, 3 * self._limits.max_queued_count // 4 - len(self._queue)))
        while most and not self.takes(most, total_bytes(arrivals[:most])):
            most //= 2
        return most

    def _fits(self, arrivals: int, arrivals_bytes: int) -> bool:
        count = self.queued_count
        return (count + arrivals <= self._limits.max_queued_count) and (
            self._bytes + self._held_bytes + arrivals_bytes <= self._limits.max_queued_bytes or not count
        )

    def _may_hold(self, arrivals: int, arrivals_bytes: int) -> bool:
        """Whether this much more may be held back: up to the quarter that `takes` leaves free."""
        held = len(self._held or ())
        limits = self._limits
        return self._fits(arrivals, arrivals_bytes) and (
            (not held and arrivals == 1)
            or (
                4 * (held + arrivals) <= limits.max_queued_count
                and 4 * (self._held_bytes + arrivals_bytes) <= limits.max_queued_bytes
            )
        )

    async def wait_for_room(self) -> None:
        """Return when `has_room` is true, or it is closed."""
        await trio.lowlevel.checkpoint()
        while not self.has_room and self._state is not State.CLOSED:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def when_room(self, call: Callable[[Inbox], None]) -> None:
        """Call ``call`` once when `has_room` becomes true, without a waiting task."""
        if self.has_room:
            call(self)
        else:
            self._on_room = call

    def _notify_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None
        if self._on_room is not None:
            call, self._on_room = self._on_room, None
            call(self)

    def put(self, arrivals: Sequence[Arrival], arrivals_bytes: int) -> None:
        """Put in messages that are not tracked by lsn (shares, replays); `takes` must have returned true."""
        if isinstance(self._queue, tuple):
            self._queue = deque()
        self._queue.extend(arrivals)
        self._bytes += arrivals_bytes
        self._put_count += len(arrivals)

    def put_stored(self, shard: str, arrivals: Sequence[Arrival], arrivals_bytes: int) -> None:
        """Put in records of one shard that were read from the store, in order; `takes` must have returned true."""
        self.put(arrivals, arrivals_bytes)
        self._note_low(arrivals[0].message.lsn)
        last = arrivals[-1].message
        self.watermark.advance(shard, (last.lsn, last.offset))

    def put_unless_full(self, arrival: Arrival) -> bool:
        """Put in a message that cannot be read again; if it is full, the message is dropped and counted."""
        if self._state is State.CLOSED:
            return False
        arrival_bytes = size_bytes(arrival)
        if not self._fits(1, arrival_bytes):
            self.dropped_count += 1
            return False
        self.put((arrival,), arrival_bytes)
        return True

    def wants_live(self, record_lsn: int) -> bool:
        """Whether to put in a record of a tail now; if not, it was put in already, or will be read from the store."""
        return self.live_watermark is not None and record_lsn > self.live_watermark.lsn

    def put_live(self, shard: str, arrivals: Sequence[Arrival], arrivals_bytes: int) -> bool:
        """Put in records of one shard that a tail brought, beyond `live_watermark`, in order.

        If it is full, messages for QoS 0 are dropped and counted; any other message makes the inbox fall behind.

        Returns:
            Whether there is something to take now.
        """
        if self._held is not None:
            if self._may_hold(len(arrivals), arrivals_bytes):
                self._put_live(shard, arrivals, arrivals_bytes)
            else:
                self.give_up_joining()
            return False
        if not self._fits(len(arrivals), arrivals_bytes):
            return self._put_what_fits(shard, arrivals)
        self._put_live(shard, arrivals, arrivals_bytes)
        return True

    def _put_live(self, shard: str, arrivals: Sequence[Arrival], arrivals_bytes: int) -> None:
        assert self.live_watermark is not None  # REQUIRES: the caller passes only records beyond it
        last = arrivals[-1].message
        if self._held is None:
            self.put(arrivals, arrivals_bytes)
            self._note_low(arrivals[0].message.lsn)
        else:
            self._held.extend(arrivals)
            self._held_bytes += arrivals_bytes
        self.live_watermark.advance(shard, (last.lsn, last.offset))
        if self.live_watermark.is_large:
            self.note_reached()

    def _put_what_fits(self, shard: str, arrivals: Iterable[Arrival]) -> bool:
        put = False
        for arrival in arrivals:
            arrival_bytes = size_bytes(arrival)
            if self._fits(1, arrival_bytes):
                self._put_live(shard, (arrival,), arrival_bytes)
                put = True
            elif arrival.qos:
                self.fall_behind()
                break
            else:
                self.dropped_count += 1
        return put

    def _note_low(self, lsn: int) -> None:
        lows = self._lows
        while lows and lows[-1][1] >= lsn:
            lows.pop()
        lows.append((self._put_count, lsn))

    def ready(self) -> None:
        """Notify the session that there is something to take."""
        if self._queue and self._state is not State.CLOSED:
            self._on_ready()

    def discard(self, is_unwanted: Callable[[Arrival], bool]) -> None:
        """Remove arrivals that are not for this session any more; they must have been added with `put`."""
        kept = [arrival for arrival in self._queue if not is_unwanted(arrival)]
        if len(kept) < len(self._queue):
            self._queue = deque(kept)
            self._bytes = sum(map(size_bytes, kept))
            self._forget_lows()
            if self.has_room:
                self._notify_room()

    # Changing the source

    def fall_behind(self, offline_until_lsn: ReachedLsn | None = None) -> None:
        """Accept nothing from tails any more; what is in the queue stays.

        Args:
            offline_until_lsn: Records up to this lsn were stored while the session was away.
        """
        if offline_until_lsn is not None:
            self.offline_until_lsn = offline_until_lsn
        if self._state is State.LIVE:
            self.note_reached()
            self._state = State.BEHIND
            self.live_watermark = None
            self._on_behind(self)
        elif self._state is State.JOINING:
            self.give_up_joining()

    def begin_joining(self, lsn: ReachedLsn) -> None:
        """Hold back messages of tails beyond this lsn until `join`; up to it everything is read from the store."""
        if self._state is State.BEHIND:
            self._state = State.JOINING
            self._held = []
            self.live_watermark = DedupWatermark(lsn)

    def give_up_joining(self) -> None:
        """Discard the messages that were held back: they will be read from the store."""
        if self._state is State.JOINING:
            self._held = None
            self._held_bytes = 0
            self.live_watermark = None
            self._state = State.BEHIND

    def join(self) -> bool:
        """Everything up to the lsn of `begin_joining` was put in: add what was held back, and be live from now on.

        Returns:
            Whether it is live now; False if too much was held back.
        """
        if self._state is not State.JOINING:
            return False
        assert self._held is not None
        assert self.live_watermark is not None
        held, self._held = self._held, None
        self.watermark = self.live_watermark
        self._state = State.LIVE
        if held:
            self.put(held, self._held_bytes)
            self._held_bytes = 0
            self._note_low(min([arrival.message.lsn for arrival in held]))
        return True

    def close(self) -> None:
        """Accept nothing any more. The positions that it reports stay valid."""
        if self._state is State.CLOSED:
            return
        self.note_reached()
        self.give_up_joining()
        self._state = State.CLOSED
        self.live_watermark = None
        self._on_room = None
        if self._room is not None:
            self._room.set()
            self._room = None
