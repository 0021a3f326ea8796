"""Drives one bridge: while this process holds its queue's lease, it sends the queue's records to the sink.

After an outage of the sink it waits as long as the breaker says; it also waits for an outage of the store to end. After
an unexpected error the sink is closed and opened again after the back-off, and the queue's status shows the error's
text as the reason.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks, single_error
from broker_adapter.bridge.breaker import Breaker, BreakerState
from broker_adapter.bridge.drain_run import DrainRun
from broker_adapter.bridge.poison_detector import PoisonDetector
from broker_adapter.bridge.rate_limit import Pace, RateLimit, SlowStart
from broker_adapter.bridge.reporting import Reporter
from broker_adapter.bridge.settled import Settled, Unconfirmed, confirm_of_before
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import LeaseSettings, QueueDrain, QueueLease, ensure_queue, names
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.pausing import PAUSED
from broker_adapter.cache_queue.queue import stored_settings
from broker_adapter.cache_queue.stored import Definition
from broker_adapter.errors import ShardNotFoundError, StorageError, is_retriable
from broker_adapter.sinks import DriverFencedError, Sink, SinkContext, SinkUnavailableError
from journal.settings.values import ConfigurationError
from shards.history import HistoryGap
from shards.seams.clock import Clock, SystemClock

STANDING_BY: Final = "standing by"
"""Another process drives the bridge, or the store cannot be reached."""

DRIVER_STATES: Final = (STANDING_BY, "starting", *BreakerState, PAUSED)
"""The states of a candidate: standing by, or, as the driver, one of the others."""

_PAUSE_S: Final = 0.5
_MICROSECONDS: Final = 1_000_000
_SHOWN_CHARACTERS: Final = 300

_log = logging.getLogger(__name__)


class BridgeDriver:
    """A candidate for driving one bridge.

    Args:
        adapter: The store.
        spec: The bridge.
        holder: Name of this process, shown to operators.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        spec: BridgeSpec,
        holder: str,
        *,
        lease: LeaseSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._adapter = adapter
        self._spec = spec
        self._lease = QueueLease(adapter, spec.name, holder, lease or LeaseSettings())
        self._clock = clock or SystemClock()
        self._reporter: Reporter | None = None
        self._has_told_settings = False
        self._unconfirmed: Unconfirmed | None = None

    @property
    def state(self) -> str:
        """Its state: one of `DRIVER_STATES`."""
        return STANDING_BY if self._reporter is None else str(self._reporter.activity.state)

    async def run(self) -> None:
        """Drive the bridge whenever this process holds its lease, until cancelled.

        Raises:
            StorageError: The store refuses the queue.
        """
        name = self._spec.name
        while True:
            try:
                if not self._has_told_settings:
                    # Once, at the start, as writers do: later drivers use the settings that were stored last.
                    await ensure_queue(self._adapter, name, self._spec.queue)
                    self._has_told_settings = True
                async with self._lease.hold() as grant:
                    _log.info("bridge %s: driven by this process, epoch %d", name, grant.epoch)
                    await self._drive(grant)
            except (QueueLostError, DriverFencedError) as error:
                _log.warning("bridge %s: %s", name, error)
            except StorageError as error:
                if not is_retriable(error) and not isinstance(error, ShardNotFoundError):
                    raise
                _log.info("bridge %s: the store does not answer: %s", name, error)
            await trio.sleep(_PAUSE_S)

    async def _drive(self, grant: Grant) -> None:
        definition = await ensure_queue(
            self._adapter, grant.queue, await stored_settings(self._adapter, grant.queue, self._spec.queue)
        )
        drain = QueueDrain(self._adapter, grant)
        await drain.begin()
        queue_id = id_for_sinks(definition, self._adapter.restores)
        if self._unconfirmed is not None:
            await confirm_of_before(drain, self._unconfirmed, queue_id)
            self._unconfirmed = None
        context = SinkContext(self._spec.name, queue_id, self._spec.projection.columns, grant.epoch)
        reporter = self._reporter = Reporter(self._adapter, grant, drain, self._clock)
        driving = _Driving(self._adapter, self._spec, context, drain, reporter, grant, self._clock)
        try:
            await driving.run()
        finally:
            self._reporter = None
            if driving.unconfirmed:
                self._unconfirmed = Unconfirmed(queue_id, driving.unconfirmed)


def id_for_sinks(definition: Definition, restores: Sequence[HistoryGap]) -> str:
    """The name under which a sink knows a queue: another one after each restore of the store from a backup.

    A restored queue assigns the offsets of lost records to new ones. A sink that keeps a position, or detects
    duplicates by offset, would otherwise take the new records for duplicates.
    """
    if not restores or restores[-1].lsn_after < definition.shard_id:
        return definition.queue_id
    return f"{definition.queue_id}-{restores[-1].lsn_after}"


class _Driving:
    """Drives a bridge while the lease is held.

    Attributes:
        unconfirmed: Batches that the sink had when the last run ended, and that may not be confirmed in the queue.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        spec: BridgeSpec,
        context: SinkContext,
        drain: QueueDrain,
        reporter: Reporter,
        grant: Grant,
        clock: Clock,
    ) -> None:
        self._adapter = adapter
        self._grant = grant
        self._spec = spec
        self._context = context
        self._drain = drain
        self._reporter = reporter
        self._clock = clock
        self._breaker = Breaker(spec.breaker)
        self._poison_detector = PoisonDetector(spec.max_outages)
        self._pace = Pace(RateLimit(spec.max_rate, trio.current_time()), SlowStart(spec.batch_records))
        self._alone_to_offset = 0
        self._failure: Exception | None = None
        self._attempt: DrainRun | None = None
        self._attempt_is_over = trio.Event()
        self.unconfirmed: Sequence[Settled] = ()

    async def run(self) -> None:
        """Drive until the lease is lost or asked for; for what it raises see `BridgeDriver.run`."""
        async with trio.open_nursery() as nursery:

            async def guarded(task: Callable[[], Awaitable[None]]) -> None:
                """Run a task; the first failure of one cancels both."""
                try:
                    await task()
                except (StorageError, DriverFencedError) as error:
                    self._failure = self._failure or error
                    nursery.cancel_scope.cancel()

            nursery.start_soon(guarded, self._report_until_lost)
            await guarded(self._drain_until_asked)
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _report_until_lost(self) -> None:
        try:
            await self._reporter.run()
        except StorageError as error:
            if is_retriable(error) and self._attempt is not None:
                # The sink's answer to what it is being sent is worth waiting for, as in `DrainRun`. The wait ends with
                # the lease at the latest.
                self._attempt.stop()
                await self._attempt_is_over.wait()
            raise

    async def _drain_until_asked(self) -> None:
        await self._reporter.report()
        while not self._grant.is_asked_for.is_set():
            # Also before a sink that cannot be opened is tried again.
            await self._wait_while_paused()
            try:
                async with self._open_sink() as sink:
                    await self._drain_to(sink)
            except ConfigurationError as error:
                await self._wait_after_outage(SinkUnavailableError(f"the sink cannot be opened: {error}"))
            except (StorageError, DriverFencedError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one sink must not end the broker
                cause = single_error(error)
                _log.error("bridge %s: unexpected error", self._spec.name, exc_info=cause)
                await self._wait_after_outage(SinkUnavailableError(_unexpected(cause)))

    @asynccontextmanager
    async def _open_sink(self) -> AsyncIterator[Sink]:
        async with self._spec.open_sink(self._context) as sink:
            try:
                yield sink
            finally:
                with trio.move_on_after(_PAUSE_S, shield=True):
                    await sink.aclose()

    async def _drain_to(self, sink: Sink) -> None:
        """Drain into an open sink until the lease is asked for."""
        while not self._grant.is_asked_for.is_set():
            await self._wait_while_paused()
            try:
                await sink.check()
                await self._drain.require_cursor()
                await self._find_position(sink)
                if self._breaker.state is BreakerState.CLOSED:
                    self._reporter.set_state(BreakerState.CLOSED)
                await self._run_once(sink)
            except SinkUnavailableError as error:
                await self._wait_after_outage(error)

    async def _wait_while_paused(self) -> None:
        """Return when the queue is not paused. Only called while nothing is being sent to the sink."""
        reporter = self._reporter
        has_waited = False
        while reporter.is_paused:
            has_waited = True
            reporter.set_state(PAUSED)
            await reporter.wait_for_requests()
        if has_waited and self._breaker.state is not BreakerState.CLOSED:
            reporter.set_state(self._breaker.state, self._breaker.reason)

    async def _find_position(self, sink: Sink) -> None:
        """Continue after the last record that the sink has, if it keeps its position."""
        if not sink.keeps_position:
            return
        position = await sink.position()
        if position is None or position <= self._drain.offset:
            return
        info = await self._adapter.describe_shard(names.shard_of(self._spec.name))
        if position > info.next_offset:
            raise SinkUnavailableError(
                f"the sink reports that it has everything of the queue {self._spec.name!r} below offset {position}, "
                f"but the queue ends at {info.next_offset}: the store was restored to an older state; create the queue "
                "again (`journal queue delete`), or reset the sink's position"
            )
        await self._drain.confirm(position, await self._drain.counts_at_sink(position), 0)

    async def _run_once(self, sink: Sink) -> None:
        attempt = DrainRun(
            self._spec,
            sink,
            self._drain,
            pace=self._pace,
            poison_detector=self._poison_detector,
            on_accepted=self._batch_accepted,
            alone_to_offset=self._alone_to_offset,
        )
        self._attempt, self._attempt_is_over = attempt, trio.Event()

        async def stop_when_paused() -> None:
            while not self._reporter.is_paused:
                await self._reporter.wait_for_requests()
            attempt.stop()

        async def stop_when_asked() -> None:
            await self._grant.is_asked_for.wait()
            attempt.stop()

        async with background_tasks() as tasks:
            tasks.start_soon(stop_when_paused)
            tasks.start_soon(stop_when_asked)
            try:
                await attempt.run()
            finally:
                self._alone_to_offset = attempt.alone_to_offset
                self.unconfirmed = attempt.unconfirmed
                self._attempt = None
                self._attempt_is_over.set()

    def _batch_accepted(self) -> None:
        self._breaker.succeeded()
        self._reporter.set_state(BreakerState.CLOSED)

    async def _wait_after_outage(self, error: SinkUnavailableError) -> None:
        """Wait before the sink is tried again, until the back-off is over or the operator requests a retry."""
        reporter = self._reporter
        wait_s = self._breaker.failed(str(error), error.retry_after_s)
        self._pace.slow_start.restart()
        _log.warning("bridge %s: %s; trying again in %.1f s", self._spec.name, error, wait_s)
        reporter.set_state(self._breaker.state, str(error), self._clock.now_us() + round(wait_s * _MICROSECONDS))
        wake_count = reporter.wake_count
        with trio.move_on_after(wait_s):
            while reporter.wake_count == wake_count and not reporter.is_paused:
                await reporter.wait_for_requests()
        self._breaker.waited()
        if not reporter.is_paused:
            reporter.set_state(self._breaker.state, str(error))


def _unexpected(error: BaseException) -> str:
    words = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
    return f"unexpected error {type(error).__name__}: {words}; the log has its traceback"
