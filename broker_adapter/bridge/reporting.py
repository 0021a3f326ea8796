"""A driver's status for the operator, the operator's requests to it, and the bounds of the queue.

Both are keys of the state store, so any program can show and set them, wherever the driver runs.
"""

from __future__ import annotations

from typing import Final

import attrs
import msgspec
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import QueueDrain, names
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.pausing import PAUSED
from broker_adapter.cache_queue.progress import total
from broker_adapter.cache_queue.queue import keep_within_bounds, read_definition, settings_of
from broker_adapter.cache_queue.stored import Status
from broker_adapter.state_forms import encode
from shards.seams.clock import Clock

_REPORT_INTERVAL_S: Final = 1.0
_STATUS_INTERVAL_S: Final = 10.0
_SMOOTHING: Final = 0.3


@attrs.define(slots=True)
class Activity:
    """The state of a driver.

    Attributes:
        state: See `stored.Status`.
        since_us: When that began, in microseconds since the epoch.
        reason: Why the sink is out.
        next_attempt_us: When it is tried again, in microseconds since the epoch.
    """

    state: str = "starting"
    since_us: int = 0
    reason: str = ""
    next_attempt_us: int = 0


@attrs.define(slots=True)
class _Rate:
    """An exponentially smoothed rate per second."""

    last: int | None = None
    last_s: float = 0.0
    per_s: float = 0.0

    def note(self, value: int, now_s: float) -> None:
        if self.last is not None and now_s > self.last_s:
            rate = max(0, value - self.last) / (now_s - self.last_s)
            self.per_s += _SMOOTHING * (rate - self.per_s)
            if self.per_s < 1 and not rate:
                self.per_s = 0.0
        self.last, self.last_s = value, now_s


class Reporter:
    """The reporter of one driver.

    Attributes:
        activity: What is reported; the driver changes it with `set_state`.
        is_paused: Whether the operator has paused the queue.
        depth_count: Records that waited at the last report.
    """

    def __init__(self, adapter: StorageAdapter, grant: Grant, drain: QueueDrain, clock: Clock) -> None:
        self._adapter = adapter
        self._queue = grant.queue
        self._holder = grant.holder
        self._drain = drain
        self._clock = clock
        self._definition_version = 0
        self._reporting = trio.Lock()
        self._heard = trio.lowlevel.ParkingLot()
        self._told = trio.Event()
        self._in = _Rate()
        self._out = _Rate()
        self._last_status: Status | None = None
        self._last_status_s = -_STATUS_INTERVAL_S
        self.activity = Activity()
        self.is_paused = False
        self.wake_count = 0
        self.depth_count = 0

    def set_state(self, state: str, reason: str = "", next_attempt_us: int = 0) -> None:
        """Set the driver's state, and store it soon."""
        if (state, reason, next_attempt_us) == (
            self.activity.state,
            self.activity.reason,
            self.activity.next_attempt_us,
        ):
            return
        since_us = self.activity.since_us if state == self.activity.state else self._clock.now_us()
        self.activity = Activity(state, since_us, reason, next_attempt_us)
        self._told.set()

    async def wait_for_requests(self) -> None:
        """Return when the operator may have changed something."""
        await self._heard.park()

    async def run(self) -> None:
        """Report and read the operator's requests until cancelled.

        Raises:
            StorageError: The store does not answer.
        """
        while True:
            await self.report()
            self._told = trio.Event()
            with trio.move_on_after(_REPORT_INTERVAL_S):
                await self._told.wait()
                # Quick changes are combined into one report.
                await trio.sleep(_REPORT_INTERVAL_S / 10)

    async def report(self) -> None:
        """Read the operator's requests, keep the queue within its bounds, and store the status.

        A status is stored whenever the definition of the queue was stored anew, also if the status is the same. A
        status "paused" means that nothing was being sent to the sink when it was stored, and that nothing will be
        before this process has read the definition again. `pausing.pause_queue` depends on that.

        Raises:
            QueueNotFoundError: The queue was deleted.
            StorageError: The store does not answer.
        """
        # One report at a time: of two, the one that read an older definition might store its status last.
        async with self._reporting:
            await self._report()

    async def _report(self) -> None:
        definition, version = await read_definition(self._adapter, self._queue)
        is_changed = version != self._definition_version
        self._definition_version = version
        self.is_paused, self.wake_count = definition.is_paused, definition.wake_count
        if is_changed:
            if not self.is_paused and self.activity.state == PAUSED:
                # In the same step: from here on the driver may send again.
                self.set_state("starting")
            self._heard.unpark_all()
        shard = names.shard_of(self._queue)
        info = await self._adapter.describe_shard(shard)
        left_count = total(self._drain.counts)
        depth = await keep_within_bounds(self._adapter, self._queue, settings_of(definition), info, self._drain.offset)
        await self._drain.show_cursor()
        self.depth_count = depth.record_count
        now_s = trio.current_time()
        self._in.note(left_count + depth.record_count, now_s)
        self._out.note(left_count, now_s)
        await self._store_status(now_s, is_forced=is_changed)

    async def _store_status(self, now_s: float, *, is_forced: bool) -> None:
        activity, drain = self.activity, self._drain
        status = Status(
            self._holder,
            activity.state,
            activity.since_us,
            activity.reason,
            activity.next_attempt_us,
            drain.counts,
            drain.offset,
            round(self._in.per_s, 1),
            round(self._out.per_s, 1),
            0,
        )
        # An unchanged status is stored at intervals, too: its time shows that the driver is alive.
        is_recent = status == self._last_status and now_s - self._last_status_s < _STATUS_INTERVAL_S
        if is_recent and not is_forced:
            return
        self._last_status, self._last_status_s = status, now_s
        told = msgspec.structs.replace(status, updated_us=self._clock.now_us())
        await self._adapter.put_state(names.status_key(self._queue), encode(told))
