"""A workload that touches everything the engine makes durable, and the check of what is there after a start.

Several tasks run side by side, each with its own shard, so that commit groups hold entries of many kinds. A task ends
quietly when the engine has failed: what it asked for last stays unacknowledged in the ledger.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from journal.engine import Engine
from journal.protocol.frames import ACK, ACK_DUPLICATE, build_append
from shards.errors import (
    ConversionFailedError,
    DiskFullError,
    OffsetOutOfRangeError,
    StaleEpochError,
    StorageFailedError,
)
from shards.format.batch import encode_values, read_records
from shards.format.record import Gap, StoredRecord
from shards.model import AckLevel, Appended, Mode, SegmentKind, ShardConfig
from shards.seams.clock import ManualClock
from shards.segments.shard import Shard
from tests.crash.ledger import Ledger, ProducerLedger, Register, Sent, ShardLedger, require
from tests.journal.engines import append_frames

SHARD_OF_PRODUCER = {"switcher": "log/switched", "rememberer": "memory/plain", "steady": "log/produced"}


class _Waiters:
    """An ack sink for appends that are sent together, as a connection sends them."""

    number = 0
    producers = ""

    def __init__(self, count: int, note: Callable[[int, Appended], None]) -> None:
        self._left = count
        self._note = note
        self._failure: StorageFailedError | None = None
        self._done = trio.Event()

    def acknowledge(self, acks: bytearray) -> None:
        for correlation, level, flags, _, offset in ACK.iter_unpack(acks):
            require(self._failure is None, "acknowledged after a failure", correlation, offset)
            self._note(correlation, Appended(offset, AckLevel(level), bool(flags & ACK_DUPLICATE)))
            self._left -= 1
        if not self._left:
            self._done.set()

    def fail(self, error: StorageFailedError) -> None:
        self._failure = error
        self._done.set()

    async def wait(self) -> None:
        await self._done.wait()
        if self._failure is not None:
            raise self._failure


async def append_together(
    engine: Engine,
    shard: Shard,
    batches: list[bytes],
    note: Callable[[int, Appended], None],
    ack: AckLevel = AckLevel.DEFAULT,
) -> None:
    """Append batches as frames that are back to back in one receive buffer; the acknowledgements go to `note`."""
    await engine.parts.checkpointer.wait_for_room()
    frames = [build_append(number, 0, batch, ack_level=ack) for number, batch in enumerate(batches)]
    sink = _Waiters(len(batches), note)
    append_frames(engine, b"".join(frames), shard, sink)
    await sink.wait()


async def read_all(engine: Engine, shard: Shard, offset: int | None = None) -> list[StoredRecord | Gap]:
    """Everything a shard has, from an offset or its start on."""
    found: list[StoredRecord | Gap] = []
    at = shard.start_offset if offset is None else offset
    while True:
        extent = await engine.parts.reader.read(shard, at, 1500)
        if not extent.buffers:
            return found
        require(extent.next_offset > at, "a read does not get on", shard.name, at, extent.next_offset)
        found += read_records(b"".join(extent.buffers), start_offset=at)
        at = extent.next_offset


class Workload:
    """The clients of one engine.

    Args:
        ledger: What they know, from one life of the engine to the next.
        engine: The open engine.
        rng: Their choices.
        clock: The time of day, which they move.
        steps: How much each of them does.
    """

    def __init__(self, ledger: Ledger, engine: Engine, rng: random.Random, clock: ManualClock, steps: int) -> None:
        self._ledger = ledger
        self._engine = engine
        self._rng = rng
        self._clock = clock
        self._steps = steps
        self._heard_late: DiskFullError | None = None
        # How often appends began to be refused.
        self._times_full = 0
        disk_space = engine.parts.disk_space
        refuse_for = disk_space.refuse_for

        def note(full: DiskFullError | None) -> None:
            self._times_full += full is not None and disk_space.full is None
            refuse_for(full)

        disk_space.refuse_for = note  # type: ignore[method-assign]

    async def run(self) -> None:
        """Let all of them work until each is done or the engine has failed."""
        await self._until_failure(self._prepare)
        async with trio.open_nursery() as nursery:
            for task in self._clients():
                nursery.start_soon(self._until_failure, task)

    def _clients(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self._write_file_shard,
            self._switch_modes,
            self._write_memory_shard,
            self._commit_cursors,
            self._put_state,
            self._come_and_go,
            self._follow,
        ]

    async def _prepare(self) -> None:
        await self._ensure("log/plain", Mode.FILE)

    async def _until_failure(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except DiskFullError as error:
            # The engine goes on without this client.
            self._check_disk_full(error)
        except StorageFailedError:
            self._check_failure()

    def _check_disk_full(self, error: DiskFullError) -> None:
        if error is not self._heard_late:
            require(self._engine.parts.disk_space.full is not None, "a full disk that the engine does not admit")

    def _check_failure(self) -> None:
        require(self._engine.failure is not None, "a failure that the engine does not admit")

    async def _ensure(self, name: str, mode: Mode) -> tuple[Shard, ShardLedger]:
        known = self._ledger.shards.get(name)
        if known is None:
            known = self._ledger.shards[name] = ShardLedger(name, creating=True, ever_in_memory=mode is Mode.MEMORY)
        info = await self._engine.create_shard(name, ShardConfig(mode=mode), exist_ok=True)
        known.creating = False
        # Memory mode has a bound by bytes even if no retention is set.
        known.retention_trims = known.ever_in_memory
        known.shard_id = info.shard_id
        self._ledger.newest_shard_id = max(self._ledger.newest_shard_id, info.shard_id)
        return self._engine.parts.table.by_name(name), known

    def _values(self) -> tuple[bytes, ...]:
        return tuple(self._ledger.value(self._rng.randrange(150)) for _ in range(self._rng.randrange(1, 5)))

    async def _append(self, shard: Shard, known: ShardLedger, ack: AckLevel = AckLevel.DEFAULT) -> None:
        # Now and then more than a commit group takes.
        count = self._rng.choice([1, 1, 2, 3, self._rng.randrange(1, 60)])
        sent = [known.send(self._values(), "plain") for _ in range(count)]
        batches = [encode_values(one.values, timestamp_us=self._clock.now_us()) for one in sent]

        def note(number: int, got: Appended) -> None:
            known.acknowledge(sent[number], got.base_offset, got.level)

        await append_together(self._engine, shard, batches, note, ack)

    async def _convert(self, shard: Shard) -> None:
        wait = self._rng.randrange(2) == 0
        disk_space = self._engine.parts.disk_space
        was_full, times_full = disk_space.full is not None, self._times_full
        try:
            info = await (self._engine.convert if wait else self._engine.roll)(shard.name)
        except ConversionFailedError:
            # It stays a log; everything else goes on.
            require(self._engine.parts.conversion.last_failure != "", "a failure that conversion does not admit")
            return
        except DiskFullError as error:
            if wait:
                # The wait ended when the disk was full; when this client continues, there may be space again.
                require(was_full or self._times_full > times_full, "a full disk that the engine did not admit")
                self._heard_late = error
            raise
        left = [
            segment
            for segment in info.segments
            if segment.kind is SegmentKind.LOG
            and segment.closed
            # One that was trimmed whole while it was open goes with the next trim.
            and segment.next_offset > max(segment.base_offset, info.start_offset)
        ]
        require(not wait or not left, "not everything is sealed", info)

    async def _write_file_shard(self) -> None:
        shard, known = await self._ensure("log/plain", Mode.FILE)
        commands = self._engine.parts.commands
        for _ in range(self._steps):
            choice = self._rng.randrange(10)
            if choice == 0:
                await self._convert(shard)
            elif choice == 1:
                target = self._rng.randint(shard.start_offset, shard.published_offset)
                known.trims_asked.append(target)
                info = await commands.trim(shard.name, target)
                require(info.start_offset == max(target, known.trimmed), "a trim is not there", info, target)
                known.trimmed = info.start_offset
                known.trims_asked.clear()
            else:
                ack = AckLevel.MEMORY if choice == 2 else AckLevel.DEFAULT
                await self._append(shard, known, ack)
            self._clock.advance(microseconds=self._rng.randrange(1000))

    async def _open_producer(self, name: str) -> ProducerLedger:
        known = self._ledger.producers.setdefault(name, ProducerLedger(name))
        if known.identity is None or known.opening or self._rng.randrange(4) == 0:
            known.opening = True
            identity = await self._engine.open_producer(name)
            if known.identity is not None:
                require(identity.producer_id == known.identity.producer_id, "a producer lost its id", name, identity)
                require(identity.epoch > known.identity.epoch, "an epoch does not rise", name, identity, known)
            known.identity = identity
            known.opening = False
            known.next_sequence = 0
            known.last = None
            known.outstanding = []
        return known

    def encoded(self, sent: Sent, producer: ProducerLedger) -> bytes:
        """A producer's batch."""
        assert producer.identity is not None  # it is opened before it sends
        return encode_values(
            sent.values,
            timestamp_us=self._clock.now_us(),
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.epoch,
            sequence=sent.sequence,
        )

    async def _produce(self, shard: Shard, known: ShardLedger, producer: ProducerLedger) -> None:
        """Send the next batches of a producer, or what is outstanding from before again."""
        if not producer.outstanding:
            for _ in range(self._rng.randrange(1, 4)):
                sent = known.send(self._values(), producer.name, producer.next_sequence)
                producer.next_sequence += len(sent.values)
                producer.outstanding.append(sent)
        outstanding = list(producer.outstanding)

        def note(number: int, got: Appended) -> None:
            sent = outstanding[number]
            if got.duplicate and sent.level is not None:
                require(got.base_offset == sent.offset, "a repetition lies elsewhere", known.name, sent, got)
            known.acknowledge(sent, got.base_offset, got.level)
            producer.last = sent
            producer.outstanding.remove(sent)

        await append_together(self._engine, shard, [self.encoded(sent, producer) for sent in outstanding], note)

    async def _repeat(self, shard: Shard, known: ShardLedger, producer: ProducerLedger) -> None:
        """Send the last acknowledged batch once more: it must be recognised, unless it was lost with the memory."""
        last = producer.last
        if last is None or producer.outstanding:
            return
        answers: list[Appended] = []
        await append_together(self._engine, shard, [self.encoded(last, producer)], lambda _, got: answers.append(got))
        got = answers[0]
        if last.level is AckLevel.DURABLE:
            require(got.duplicate and got.base_offset == last.offset, "stored twice", known.name, last, got)
        elif got.duplicate:
            kept = got.base_offset in known.durable or 0 <= got.base_offset < shard.start_offset
            require(got.level is AckLevel.MEMORY or kept, "promised too much", last, got)
        else:
            last.level = None
            known.acknowledge(last, got.base_offset, got.level)

    async def _switch_modes(self) -> None:
        shard, known = await self._ensure("log/switched", Mode.FILE)
        producer = await self._open_producer("switcher")
        await self._repeat(shard, known, producer)
        for _ in range(self._steps):
            choice = self._rng.randrange(8)
            if choice < 2:
                mode = Mode.FILE if shard.in_memory_mode else Mode.MEMORY
                known.ever_in_memory = known.retention_trims = True
                info = await self._engine.set_mode(shard.name, mode)
                require(info.config.mode is mode, "a mode is not there", info)
            elif choice == 2:
                await self._repeat(shard, known, producer)
            elif choice == 3:
                await self._convert(shard)
            elif choice == 4:
                await self._append(shard, known)
            else:
                await self._produce(shard, known, producer)

    async def _write_memory_shard(self) -> None:
        shard, known = await self._ensure("memory/plain", Mode.MEMORY)
        producer = await self._open_producer("rememberer")
        await self._repeat(shard, known, producer)
        for step in range(self._steps):
            await self._produce(shard, known, producer)
            if step % 4 == 3:
                await self._repeat(shard, known, producer)

    async def _commit_cursors(self) -> None:
        shard, known = await self._ensure("log/plain", Mode.FILE)
        for _ in range(self._steps):
            name = self._rng.choice(["reader", "writer"])
            register = known.cursors.setdefault(name, Register())
            if self._rng.randrange(5) == 0:
                register.attempt(None)
                await self._engine.delete_cursor(shard.name, name, None)
                register.acknowledge(None, 0)
                continue
            offset = self._rng.randint(0, shard.published_offset)
            register.attempt(offset)
            expected = self._rng.choice([None, register.version if register.value is not None else 0])
            cursor = await self._engine.commit_cursor(shard.name, name, offset, expected)
            register.acknowledge(offset, cursor.version)

    async def _put_state(self) -> None:
        for _ in range(self._steps):
            key = self._rng.choice([b"a", b"b", b"c"])
            register = self._ledger.state.setdefault(key, Register())
            expected = self._rng.choice([None, register.version if register.value is not None else 0])
            if self._rng.randrange(5) == 0:
                register.attempt(None)
                await self._engine.delete_state(key, expected)
                register.acknowledge(None, 0)
                continue
            value = self._ledger.value(self._rng.randrange(200))
            register.attempt(value)
            stored = await self._engine.put_state(key, value, expected, 0)
            register.acknowledge(value, stored.version)

    async def _come_and_go(self) -> None:
        name = "come/and/go"
        for _ in range(self._steps // 3):
            shard, known = await self._ensure(name, Mode.FILE)
            for _ in range(self._rng.randrange(3)):
                await self._append(shard, known)
            known.deleting = True
            await self._engine.delete_shard(name)
            del self._ledger.shards[name]

    async def _follow(self) -> None:
        """Read what is published while it is being written; nothing that was read from a file may go away."""
        shard, known = await self._ensure("log/plain", Mode.FILE)
        offset = shard.published_offset
        for _ in range(self._steps * 3):
            await trio.sleep(0)
            if shard.start_offset > offset:
                offset = shard.start_offset
            try:
                extent = await self._engine.parts.reader.read(shard, offset, 2000)
            except OffsetOutOfRangeError:
                require(shard.start_offset > offset, "an offset is out of range though it was not trimmed", offset)
                continue
            records = read_records(b"".join(extent.buffers), start_offset=offset)
            known.durable.update(known.read(records, offset, extent.next_offset))
            offset = extent.next_offset


async def check(ledger: Ledger, engine: Engine) -> None:
    """Compare all that an engine holds after a start with what its clients know."""
    require(not engine.recovery.damages, "damage is reported", engine.recovery)
    require(not engine.parts.table.recovering, "still recovering")
    for name, known in list(ledger.shards.items()):
        shard_id = engine.parts.table.catalogue.id_of(name)
        if shard_id is None:
            require(known.creating or known.deleting, "a shard is missing", name, known.shard_id)
            del ledger.shards[name]
            continue
        if known.shard_id:
            require(shard_id == known.shard_id, "a shard has another id", name, shard_id, known.shard_id)
        else:
            require(shard_id > ledger.newest_shard_id, "a shard id is used again", name, shard_id)
            known.shard_id = shard_id
        known.creating = known.deleting = False
        shard = engine.parts.table.by_name(name)
        require(not shard.damage, "a shard is stopped", name, shard.damage)
        known.check(await read_all(engine, shard), shard.start_offset, shard.published_offset)
        ledger.check_cursors(known, engine.list_cursors(name))
    for name in engine.parts.table.catalogue.matching("#"):
        require(name in ledger.shards, "a shard that was not created, or that was deleted", name)
    ledger.check_state((await engine.scan_state(b"", None, 1000))[0])
    await _check_producers(ledger, engine)


async def _check_producers(ledger: Ledger, engine: Engine) -> None:
    """A fenced epoch stays fenced."""
    for name, producer in ledger.producers.items():
        shard_name = SHARD_OF_PRODUCER[name]
        if producer.identity is None or producer.identity.epoch < 2 or shard_name not in ledger.shards:
            continue
        identity = producer.identity
        stale = encode_values(
            [b"stale"], timestamp_us=1, producer_id=identity.producer_id, producer_epoch=identity.epoch - 1
        )
        try:
            await engine.append(engine.parts.table.by_name(shard_name), stale)
        except StaleEpochError:
            continue
        require(False, "a fenced producer was let in", name, identity)
