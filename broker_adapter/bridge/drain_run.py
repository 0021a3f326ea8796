"""One run of draining a queue into a sink: batches are prepared ahead, written in order, and confirmed in order.

It ends when the sink or the store fails, or when it is stopped. Batches that were written and not confirmed by then are
written again by the next run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Final

import attrs
import trio

from broker_adapter.bridge.batch_writer import BatchWriter
from broker_adapter.bridge.batcher import Batcher, Letter, Prepared
from broker_adapter.bridge.poison_detector import PoisonDetector
from broker_adapter.bridge.rate_limit import Pace
from broker_adapter.bridge.settled import Settled, confirm_settled
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import QueueDrain
from broker_adapter.errors import StorageError, is_retriable
from broker_adapter.sinks import BatchRefusedError, Sink, SinkError, SinkUnavailableError
from shards.format.record import StoredRecord

_PREPARED_AHEAD: Final = 2


@attrs.define(slots=True, eq=False)
class _InFlightBatch:
    """A batch that is not confirmed.

    Attributes:
        is_alone: No later batch is started before it is settled.
        settled: What there is to confirm, once the sink has taken or refused all of it.
    """

    is_alone: bool
    settled: Settled | None = None


class DrainRun:
    """One run.

    Args:
        sink: A sink that was just checked.
        drain: The queue; its offset is where to begin.
        pace: How fast records are sent; the same in all runs.
        poison_detector: Finds the record that causes outages.
        on_accepted: Called after each batch that the sink accepted.
        alone_to_offset: That of the run before.

    Attributes:
        alone_to_offset: Batches that begin below it are written one at a time, because one of them was refused as a
            whole and has to be split.
    """

    def __init__(
        self,
        spec: BridgeSpec,
        sink: Sink,
        drain: QueueDrain,
        *,
        pace: Pace,
        poison_detector: PoisonDetector,
        on_accepted: Callable[[], None],
        alone_to_offset: int = 0,
    ) -> None:
        self.alone_to_offset = alone_to_offset
        self._spec = spec
        self._sink = sink
        self._drain = drain
        self._limit = pace.limit
        self._slow_start = pace.slow_start
        self._poison_detector = poison_detector
        self._on_accepted = on_accepted
        self._batch_writer = BatchWriter(sink, spec.max_refusals, spec.breaker.min_backoff_s, self._give_up)
        self._flights: deque[_InFlightBatch] = deque()
        self._window = trio.Semaphore(spec.window)
        self._sink_room = trio.Semaphore(sink.max_in_flight)
        self._changed = trio.lowlevel.ParkingLot()
        self._failure: SinkError | StorageError | None = None
        self._beginning = trio.CancelScope()
        self._is_written = False

    @property
    def unconfirmed(self) -> list[Settled]:
        """The first batches that are not confirmed and whose outcome at the sink is known, in order."""
        return [each for flight in takewhile(_is_settled, self._flights) if (each := flight.settled)]

    def stop(self) -> None:
        """Begin no new batch, also none that is prepared; `run` returns when those in flight are confirmed.

        A batch in flight is finished: a sink that keeps no position would otherwise get a part of it twice.
        """
        self._beginning.cancel()

    async def run(self) -> None:
        """Write batches until stopped, or until a batch has to be written alone, which the next run does.

        Raises:
            SinkUnavailableError: The sink is out.
            DriverFencedError, QueueLostError: The queue has another driver, or its cursor was moved.
            StorageError: The store does not answer.
        """
        async with trio.open_nursery() as confirming:
            confirming.start_soon(self._confirm_until_lost, confirming.cancel_scope)
            # An outage cancels only this nursery: what the sink accepted before is still confirmed.
            async with trio.open_nursery() as writing:
                await self._begin_batches(writing)
            self._is_written = True
            self._changed.unpark_all()
        if self._failure is not None:
            raise self._failure

    async def _guarded(self, task: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        """Run a task; the first failure cancels the scope."""
        try:
            await task()
        except (SinkError, StorageError) as error:
            if self._failure is None:
                self._failure = error
            scope.cancel()

    async def _begin_batches(self, writing: trio.Nursery) -> None:
        """Begin batches in a nursery until stopped, or until a failure cancels the nursery."""
        send, receive = trio.open_memory_channel[Prepared](_PREPARED_AHEAD)
        # A stop cancels only this scope: writes in flight are in the other nursery.
        with self._beginning:
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self._guarded, lambda: self._prepare(send), writing.cancel_scope)
                tasks.start_soon(self._guarded, lambda: self._write_all(receive, writing), writing.cancel_scope)

    async def _prepare(self, send: trio.MemorySendChannel[Prepared]) -> None:
        preparer = Batcher(self._drain, self._spec, self._drain.offset)
        async with send:
            while True:
                prepared = await preparer.next(self._poison_detector.at_most(self._slow_start.records))
                if prepared is not None:
                    await send.send(prepared)

    async def _write_all(self, receive: trio.MemoryReceiveChannel[Prepared], nursery: trio.Nursery) -> None:
        async with receive:
            while (prepared := await self._next(receive)) is not None:
                is_alone = (
                    not self._slow_start.is_over
                    or self._poison_detector.is_sought
                    or prepared.batch.first_offset < self.alone_to_offset
                )
                if is_alone or (self._flights and self._flights[-1].is_alone):
                    await self._until_settled()
                await self._wait_for_rate(len(prepared.records))
                await self._window.acquire()
                flight = _InFlightBatch(is_alone or self._sink.max_in_flight == 1)
                self._flights.append(flight)
                self._changed.unpark_all()
                await self._sink_room.acquire()
                # A task runs up to its first checkpoint before the next one is started, so writes begin in order.
                await nursery.start(self._write, prepared, flight, nursery.cancel_scope)

    async def _wait_for_rate(self, record_count: int) -> None:
        wait_s = self._limit.take(record_count, trio.current_time())
        try:
            if wait_s:
                await trio.sleep(wait_s)
        except trio.Cancelled:
            # They are counted again when they are sent.
            self._limit.give_back(record_count)
            raise

    async def _next(self, receive: trio.MemoryReceiveChannel[Prepared]) -> Prepared | None:
        """The next batch, or None at the end. While there is none, check the sink at intervals."""
        while True:
            try:
                with trio.move_on_after(self._spec.health_interval_s):
                    return await receive.receive()
            except trio.EndOfChannel:
                return None
            if not self._flights:
                await self._sink.check()

    async def _write(
        self,
        prepared: Prepared,
        flight: _InFlightBatch,
        scope: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        task_status.started()

        async def settle() -> None:
            await self._give_up(prepared.letters)
            try:
                refused = await self._batch_writer.settle(prepared, is_alone=flight.is_alone)
            except BatchRefusedError:
                self.alone_to_offset = max(self.alone_to_offset, prepared.batch.next_offset)
                scope.cancel()
                return
            except SinkUnavailableError as error:
                await self._note_outage(prepared.records, error, is_alone=flight.is_alone)
                raise
            self._sink_room.release()
            if prepared.records:
                self._poison_detector.succeeded(prepared.batch.next_offset)
                self._slow_start.succeeded()
                self._on_accepted()
            flight.settled = Settled.of(prepared, refused)
            self._changed.unpark_all()

        await self._guarded(settle, scope)

    async def _give_up(self, letters: Sequence[Letter]) -> None:
        """Store dead letters now if the sink keeps its position: no later driver reads below that position."""
        if self._sink.keeps_position:
            await self._drain.set_aside([(letter.record, letter.reason) for letter in letters])

    async def _note_outage(
        self, records: Sequence[StoredRecord], error: SinkUnavailableError, *, is_alone: bool
    ) -> None:
        """Make the batch's only record a dead letter if the sink failed each time that it was sent alone."""
        # A sink that says when to retry is out for another reason; with other batches in flight one of them may be the
        # cause.
        if error.retry_after_s is not None or not is_alone or not records:
            return
        if self._poison_detector.failed(records[0].offset, len(records)):
            reason = f"the sink failed each time that this record alone was sent: {error}"
            await self._drain.set_aside([(records[0], reason)])

    async def _confirm_until_lost(self, scope: trio.CancelScope) -> None:
        try:
            await self._confirm_all()
        except StorageError as error:
            self._failure = self._failure or error
            if is_retriable(error):
                # The store is lost, not the queue. The sink's answer to what it is being sent is still worth waiting
                # for: if those records were in the store's memory, it decides whether they are delivered or lost.
                self.stop()
            else:
                scope.cancel()

    async def _confirm_all(self) -> None:
        while True:
            # Several may have been settled while one was confirmed: one commit of the cursor is enough for all.
            settled = self.unconfirmed
            if not settled:
                if self._is_written:
                    return
                await self._changed.park()
                continue
            await confirm_settled(self._drain, settled)
            for _ in settled:
                self._flights.popleft()
                self._window.release()
            self._changed.unpark_all()
            if not self._flights:
                await self._drain.trim()

    async def _until_settled(self) -> None:
        while not all(map(_is_settled, self._flights)):
            await self._changed.park()


def _is_settled(flight: _InFlightBatch) -> bool:
    return flight.settled is not None
