"""A cache queue on a real server, used as brokers use it, step by step at random: many more steps than processes allow.

Writers, drivers and the operator are tasks of this process; the sink is a list, which refuses what is poison until it
is put back as a dead letter. A driver is killed by being forgotten, at any point between the sink and the store. When
the store is restored from a backup the driver and the writers live through it, and others take their places.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import msgspec
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import Overflow, QueueDrain, QueueMode, QueueSettings, QueueWriter, ensure_queue, look
from broker_adapter.cache_queue.dead_letters import list_dead_letters, replay_dead_letters
from broker_adapter.cache_queue.errors import QueueFullError, QueueLostError
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.queue import purge_queue
from journal.protocol.errors import ServerRestoredError, is_retriable
from shards.errors import SequenceLostError, StorageError
from shards.format.record import Record, StoredRecord
from tests.bridge.outages.ledger import Ledger
from tests.bridge.outages.world import WRITERS_LOOK_S
from tests.patience import PATIENCE_S
from tests.restores.restorable_server import RestorableServer
from tests.torture.deliveries.checker import check
from tests.torture.deliveries.history import (
    LIFE_OFFSETS,
    Arrival,
    History,
    Message,
    ModeChange,
    Progress,
    Promises,
    Purge,
    PutBack,
    Restore,
    StoreDeath,
    Tally,
)
from tests.torture.rounds import Result

WRITERS: Final = 2
MOST_RECORDS: Final = 300
MAX_AGE_S: Final = 2
BURST: Final = 40
READ_BYTES: Final = 4000
POISON_SHARE: Final = 0.03
LEAST_STEPS: Final = 25


def queue_steps(directory: Path, rng: random.Random, seconds: float) -> Result:
    """As many steps as fit, and at least some; then the queue is drained and judged."""
    server = RestorableServer(directory)
    result = Result()
    try:
        server.process.start()
        steps = trio.run(run_steps, server, rng, seconds)
    finally:
        server.kill()
    steps.history.write(directory / "history.jsonl")
    result.counts += steps.counts
    result.counts["messages for queues"] += len(steps.history.offers)
    result.broken += [str(anomaly) for anomaly in check(steps.history)]
    return result


async def run_steps(server: RestorableServer, rng: random.Random, seconds: float) -> QueueSteps:
    """Take steps for some time, then drain the queue; what is known at the end."""
    async with trio.open_nursery() as nursery:
        steps = QueueSteps(server, rng)
        await steps.begin(nursery)
        ends_s = trio.current_time() + seconds
        count = 0
        while count < LEAST_STEPS or trio.current_time() < ends_s:
            await steps.take()
            count += 1
        with trio.fail_after(PATIENCE_S):
            await steps.end()
        nursery.cancel_scope.cancel()
    return steps


async def _hold_open(
    url: str, ends_at_restore: bool, *, task_status: trio.TaskStatus[StorageAdapter] = trio.TASK_STATUS_IGNORED
) -> None:
    async with open_adapter(url, ends_at_restore=ends_at_restore) as store:
        task_status.started(store)
        await trio.sleep_forever()


class QueueSteps:
    """A queue, those who use it, and what they know.

    Args:
        server: May be killed and restored; it comes back on the same port.
        rng: Decides everything.
        queue: Name of the queue.
        mode: With which it begins; then it rejects what it has no room for. By default mode, overflow and age are any.
        ends_at_restore: Whether drivers and writers end when the store was restored, as all of them do.

    Attributes:
        counts: How often each step was taken.
    """

    def __init__(
        self,
        server: RestorableServer,
        rng: random.Random,
        *,
        queue: str = "steps",
        mode: QueueMode | None = None,
        ends_at_restore: bool = True,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._ledger = Ledger()
        self._server = server
        self._rng = rng
        self._queue = queue
        self._ends_at_restore = ends_at_restore
        self._backup: tuple[float, float] | None = None
        self._life = 0
        overflow, max_age_s = Overflow.REJECT, 0
        if mode is None:
            mode, overflow = rng.choice(tuple(QueueMode)), rng.choice(tuple(Overflow))
            max_age_s = rng.choice((0, 0, MAX_AGE_S))
        self._settings = QueueSettings(
            mode=mode, overflow=overflow, max_age_s=max_age_s, max_records=MOST_RECORDS, memory_bytes=4000
        )
        self._writers: list[QueueWriter] = []
        self._drain: QueueDrain | None = None
        self._epoch = 0
        self._put_back: set[Message] = set()
        self._longest_batch = 0
        self._steps: Sequence[Callable[[], Awaitable[None]]] = (
            *(self.put, self.put, self.put, self.put_and_kill_the_store, self.drain, self.drain, self.drain_to_end),
            *(self.kill_the_store, self.kill_the_driver, self.purge, self.put_letters_back, self.change_mode),
            *(self.back_the_store_up, self.restore_the_store),
        )

    @property
    def history(self) -> History:
        return self._ledger.history

    async def begin(self, nursery: trio.Nursery) -> None:
        """Make the queue and start its writers."""
        self._nursery = nursery
        await self._begin_life()

    async def _begin_life(self) -> None:
        """A driver and writers with a connection of their own."""
        self._drain = None
        self._store: StorageAdapter = await self._nursery.start(_hold_open, self._server.url, self._ends_at_restore)
        self._writers = []
        for number in range(WRITERS):
            writer = QueueWriter(self._store, self._queue, self._settings, writer=f"writer-{number}")
            self._writers.append(writer)
            await self._nursery.start(writer.run)

    async def take(self) -> None:
        """One step. If the store is killed in it, it may or may not have been done."""
        step = self._rng.choice(self._steps)
        self.counts[step.__name__.replace("_", " ")] += 1
        try:
            with trio.fail_after(PATIENCE_S):
                await step()
        except QueueLostError:
            self._drain = None
        except StorageError as error:
            if not _is_of_killed_store(error):
                raise
            self._drain = None
            self.counts["steps of unknown outcome"] += 1

    async def end(self, *, writers_look_s: float = WRITERS_LOOK_S) -> None:
        """Drain the queue, and note what is left.

        Args:
            writers_look_s: How long writers may not have known what changed.
        """
        await self.kill_the_driver()  # it may have been purged since it looked
        while True:
            await self.drain_to_end()
            state = await look(self._store, self._queue)
            if not state.depth.record_count and state.progress.offset == state.shard.next_offset:
                break
        self.history.letters = [
            Arrival(_message_of(each.record), each.queue_offset)
            async for each in list_dead_letters(self._store, self._queue)
        ]
        counts = Counter(msgspec.structs.asdict(state.progress.counts))
        self.history.tally = Tally(state.shard.next_offset, state.progress.offset, counts, state.dead_letter_count)
        self.history.promises = Promises(
            most_repeated=self._longest_batch,
            writers_look_s=writers_look_s,
            most_records=None if self._settings.overflow is Overflow.DROP_OLDEST else MOST_RECORDS - WRITERS * BURST,
            is_in_memory=self._settings.mode is not QueueMode.FILE,
        )

    # Writers

    async def put(self) -> None:
        """One writer puts some messages in, one after the other, without waiting for each."""
        place = self._rng.randrange(WRITERS)
        pending = []
        for _ in range(self._rng.randrange(1, BURST)):
            message = self._ledger.send(f"source-{place}", is_poison=self._rng.random() < POISON_SHARE)
            self._ledger.write(message)
            content = f"{message.source} {message.number}"
            offer = self.history.offers[message]
            offer.content = content
            if self._settings.max_age_s:
                offer.expires_s = offer.began_s + self._settings.max_age_s
            try:
                append = self._writers[place].put_nowait([Record(content.encode(), topic=message.source)])
            except QueueFullError:
                append = None
            if append is None:
                self._ledger.settle(message, is_taken=False)
                continue
            pending.append((message, append))
        for message, append in pending:
            await append.wait()
            self._ledger.settle(message, is_taken=True)

    async def put_and_kill_the_store(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.kill_the_store)
            try:
                await self.put()
            except StorageError as error:
                if not _is_of_killed_store(error):
                    raise
                self.counts["steps of unknown outcome"] += 1

    async def have_writers_look(self) -> None:
        """All writers see now what else they would see within their interval."""
        for writer in self._writers:
            await writer.look()

    # The driver

    async def drain(self) -> None:
        """Bring what one read finds to the sink and confirm it, or be killed before that."""
        drain = await self._driver()
        found = await drain.read(drain.offset, max_bytes=READ_BYTES, max_wait_s=0)
        refused: list[tuple[StoredRecord, str]] = []
        self._longest_batch = max(self._longest_batch, found.next_offset - found.first_offset)
        for record in found.records:
            message = _message_of(record)
            offer = self.history.offers.get(message)
            if offer is not None and offer.is_poison and message not in self._put_back:
                refused.append((record, "it is poison"))
            else:
                arrival = Arrival(message, self._place(record.offset), content=record.value.decode())
                self.history.arrivals.append(arrival)
        if self._rng.random() < 0.1:
            await self.kill_the_driver()
            return
        await drain.set_aside(refused)
        if self._rng.random() < 0.1:
            await self.kill_the_driver()
            return
        outcome = await drain.counts_up_to(found.next_offset)
        await drain.confirm(found.next_offset, outcome, sum(len(record.value) for record in found.records))
        if self._rng.random() < 0.2:
            await drain.trim()
        self.history.progress.append(Progress(self._ledger.now_s(), self._place(drain.offset)))

    async def drain_to_end(self) -> None:
        """Drain what waits now."""
        end_offset = (await self._store.describe_shard(self._writers[0].shard)).next_offset
        while self._drain is None or self._drain.offset < end_offset:
            await self.drain()

    async def kill_the_driver(self) -> None:
        """Another one takes over with a higher epoch."""
        self._drain = None

    async def _driver(self) -> QueueDrain:
        if self._drain is None:
            self._epoch += 1
            drain = QueueDrain(self._store, Grant(self._queue, f"driver-{self._epoch}", self._epoch))
            await drain.begin()
            self._drain = drain
        return self._drain

    def _place(self, offset: int) -> int:
        return offset + self._life * LIFE_OFFSETS

    # The operator, and the injector of faults

    async def kill_the_store(self) -> None:
        await trio.sleep(self._rng.uniform(0, 0.02))
        with self._ledger.during(StoreDeath):
            await trio.to_thread.run_sync(self._server.process.end, signal.SIGKILL)
        await trio.to_thread.run_sync(self._server.process.start)

    async def back_the_store_up(self) -> None:
        """At rest, so that what it has in memory is lost."""
        began_s = self._ledger.now_s()
        with self._ledger.during(StoreDeath):
            await self._server.back_up()
        self._backup = began_s, self._ledger.now_s()

    async def restore_the_store(self) -> None:
        """Bring the newest backup back. A driver that has read lives through it, and confirms what it has read."""
        if self._backup is None:
            return
        drain = await self._driver()
        found = await drain.read(drain.offset, max_bytes=READ_BYTES, max_wait_s=0)
        began_s, ended_s = self._backup
        is_file = self._settings.mode is QueueMode.FILE
        with (
            self._ledger.during(StoreDeath),
            self._ledger.during(ModeChange, is_file=is_file),
            self._ledger.during(Restore, backup_began_s=began_s, backup_ended_s=ended_s),
        ):
            await self._server.restore()
            self._life += 1
            await self._begin_life()
        await self.put()
        if found.next_offset > found.first_offset:
            try:
                await drain.confirm(found.next_offset, await drain.counts_up_to(found.next_offset), 0)
            except ServerRestoredError:
                self.counts["drivers ended by a restore"] += 1

    async def purge(self) -> None:
        with self._ledger.during(Purge):
            await purge_queue(self._store, self._queue)

    async def change_mode(self, mode: QueueMode | None = None) -> None:
        mode = mode or self._rng.choice(tuple(QueueMode))
        with self._ledger.during(ModeChange, is_file=mode is QueueMode.FILE):
            await ensure_queue(self._store, self._queue, attrs.evolve(self._settings, mode=mode))

    async def put_letters_back(self) -> None:
        """The sink takes them now."""
        letters = [_message_of(each.record) async for each in list_dead_letters(self._store, self._queue)]
        self._put_back.update(letters)
        with self._ledger.during(PutBack, count=len(letters)) as noted:
            with suppress(QueueFullError):
                noted["count"] = await replay_dead_letters(self._store, self._queue, self._settings)


def _is_of_killed_store(error: StorageError) -> bool:
    """Whether an error says no more than that the store was killed, perhaps with what lay in its memory."""
    return is_retriable(error) or isinstance(error, SequenceLostError)


def _message_of(record: Record | StoredRecord) -> Message:
    source, number = record.value.decode().split()
    return Message(source, int(number))
