"""The workload of the failure sequences: that of `simulated_workload` with commits, resends, checkpoints and clocks.

What its clients find wrong while no call has failed is a broken promise too: a conversion that fails on a sound disk, a
time that falls, an acknowledgement that says more than what is stored.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Awaitable, Callable

import attrs
import trio

from journal.backup import Source, back_up
from journal.engine import Engine
from journal.engine.write.transactions import Put
from shards.errors import DiskFullError, SequenceGapError, SequenceLostError
from shards.format.batch import encode_values
from shards.format.record import StoredRecord
from shards.model import AckLevel, Appended, Mode
from shards.seams.clock import ManualClock
from shards.segments.shard import Shard
from tests.crash.ledger import Ledger, ProducerLedger, Register, Sent, ShardLedger, require
from tests.crash.simulated_workload import Workload, append_together, read_all
from tests.simulation.file_system import SimulatedFileSystem

BACKUP = "/backup"
PAIR = ("pair/left", "pair/right")
COUNTER = b"pair"
RESENT = 4

# With these, a commit's entries have 472, 512 and 512 bytes, so that each begins where a sector begins: 40 bytes behind
# the beginning of the first one, after the header of the group, the others at one of their own.
_ALIGNED_VALUES = (329, 369)
_ALIGNED_COUNTER = 430


@attrs.define(eq=False)
class SequenceLedger(Ledger):
    """What all clients know, with what only the clients of this workload ask for.

    Attributes:
        pairs: For each commit, in order: its append to either shard of the pair.
        batches: What was read under each lsn: the shard and the offset of the batch.
        resendable: The last appends of each producer, in order, whatever became of them.
        backup: What was known when the newest backup was made.
    """

    pairs: list[tuple[Sent, Sent]] = attrs.Factory(list)
    batches: dict[int, tuple[str, int]] = attrs.Factory(dict)
    resendable: dict[str, list[Sent]] = attrs.Factory(dict)
    backup: SequenceLedger | None = None

    @property
    def has_acknowledged(self) -> bool:
        """Whether anything was acknowledged yet: the first thing ever is that a shard is there."""
        return self.newest_shard_id > 0


class SequenceWorkload(Workload):
    """The clients of one engine.

    Args:
        ledger: What they know, from one life of the engine to the next.
        engine: The open engine.
        rng: Their choices.
        clock: The time of day, which they move.
        steps: How much each of them does.
        files: The engine's file system; whatever is refused is expected once a call of it failed.
        clock_jumps_s: How far the clock may jump at once while they work.
    """

    def __init__(
        self,
        ledger: SequenceLedger,
        engine: Engine,
        rng: random.Random,
        clock: ManualClock,
        steps: int,
        *,
        files: SimulatedFileSystem,
        clock_jumps_s: float = 0,
    ) -> None:
        super().__init__(ledger, engine, rng, clock, steps)
        self._sequence_ledger = ledger
        self._files = files
        self._clock_jumps_s = clock_jumps_s

    def _clients(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *super()._clients(),
            self._produce_durably,
            self._switch_back_and_forth,
            self._commit_pairs,
            self._checkpoint,
            self._set_clock,
        ]

    async def finish(self) -> None:
        """Leave something in memory, with the newest lsns of all, when the others are done."""

        async def append() -> None:
            await self._append(*await self._ensure("memory/plain", Mode.MEMORY))

        await self._until_failure(append)

    def _check_disk_full(self, error: DiskFullError) -> None:
        # There may be room again by now.
        require(self._files.failed, "a full disk though no call has failed")

    def _check_failure(self) -> None:
        if not self._files.crashed:
            super()._check_failure()

    async def _convert(self, shard: Shard) -> None:
        failure = self._engine.parts.conversion.last_failure
        await super()._convert(shard)
        failed = self._engine.parts.conversion.last_failure
        require(self._files.failed or failed in ("", failure), "conversion fails on a sound disk", shard.name, failed)

    async def _produce(self, shard: Shard, known: ShardLedger, producer: ProducerLedger) -> None:
        first = len(known.sent)
        try:
            await super()._produce(shard, known, producer)
        except SequenceLostError:
            # What it was not answered for was in memory and is lost, while later batches are kept. It begins again.
            producer.opening = True
        finally:
            # Also if the engine ends meanwhile: some of them may be acknowledged, and then are not sent by themselves.
            sent = self._sequence_ledger.resendable.setdefault(producer.name, [])
            sent.extend(one for one in known.sent[first:] if one.stream == producer.name)
            del sent[:-RESENT]

    async def _open_producer(self, name: str) -> ProducerLedger:
        before = self._sequence_ledger.producers.get(name)
        epoch = before.identity.epoch if before and before.identity else 0
        producer = await super()._open_producer(name)
        if producer.identity is not None and producer.identity.epoch != epoch:
            self._sequence_ledger.resendable[name] = []
        return producer

    async def _resend(self, shard: Shard, known: ShardLedger, producer: ProducerLedger) -> None:
        """Send the last batches again in their order, as a client does that reconnects after a crash."""
        again = list(self._sequence_ledger.resendable.get(producer.name, ()))
        if not again or producer.outstanding:
            return
        for sent in again:
            answers: list[Appended] = []
            try:
                await append_together(
                    self._engine, shard, [self.encoded(sent, producer)], lambda _, got, to=answers: to.append(got)
                )
            except (SequenceLostError, SequenceGapError):
                # It, or one before it, was in memory alone and is lost.
                lost = [one for one in again if one.level is not AckLevel.DURABLE]
                require(bool(lost), "a producer whose batches are durable is refused", known.name, again)
                require(sent.level is not AckLevel.DURABLE, "a durable batch is refused as lost", known.name, sent)
                continue
            await self._check_answer(shard, known, sent, answers[0])

    async def _check_answer(self, shard: Shard, known: ShardLedger, sent: Sent, got: Appended) -> None:
        """Check the acknowledgement of a batch that was sent again."""
        if not got.duplicate:
            require(sent.level is not AckLevel.DURABLE, "stored twice", known.name, sent, got)
            sent.level = None
            known.acknowledge(sent, got.base_offset, got.level)
            return
        if got.level is AckLevel.DURABLE:
            items = await read_all(self._engine, shard)
            there = any(isinstance(item, StoredRecord) and item.value == sent.values[0] for item in items)
            require(
                there or sent.offset < shard.start_offset,
                "a repetition is acknowledged as durable and is not stored",
                known.name,
                sent,
                got,
            )
        # What was in memory alone may be lost, and stored again since.
        same = sent.level is not AckLevel.DURABLE or got.base_offset in (-1, sent.offset)
        require(same, "a repetition lies elsewhere", known.name, sent, got)

    async def _switch_modes(self) -> None:
        shard, known = await self._ensure("log/switched", Mode.FILE)
        await self._resend(shard, known, await self._open_producer("switcher"))
        await super()._switch_modes()

    async def _produce_durably(self) -> None:
        shard, known = await self._ensure("log/produced", Mode.FILE)
        producer = await self._open_producer("steady")
        await self._resend(shard, known, producer)
        for step in range(self._steps):
            await self._produce(shard, known, producer)
            if step % 4 == 3:
                await self._resend(shard, known, producer)

    async def _switch_back_and_forth(self) -> None:
        """Switch to memory and back at once, so that both fall into one checkpoint, and convert what was written."""
        shard, known = await self._ensure("log/flipped", Mode.FILE)
        known.ever_in_memory = known.retention_trims = True
        for _ in range(self._steps):
            for mode in (Mode.MEMORY, Mode.FILE):
                await self._engine.set_mode(shard.name, mode)
            for _ in range(self._rng.randrange(1, 7)):
                await self._append_one(shard, known)
            if self._rng.randrange(2):
                await self._convert(shard)

    async def _append_one(self, shard: Shard, known: ShardLedger) -> None:
        sent = known.send((self._ledger.value(700),), "plain")
        batch = encode_values(sent.values, timestamp_us=self._clock.now_us())

        def note(_: int, got: Appended) -> None:
            known.acknowledge(sent, got.base_offset, got.level)

        await append_together(self._engine, shard, [batch], note)

    async def _commit_pairs(self) -> None:
        for _ in range(self._steps):
            left, right = self._ledger.value(self._rng.choice((20, 20, 600))), self._ledger.value(20)
            await self._commit_pair(left, right, b"%d" % (len(self._sequence_ledger.pairs) + 1))

    async def commit_aligned(self) -> None:
        """Commit pairs whose entries begin where sectors begin, so that a torn group is torn between entries.

        With a checkpoint now and then the journal's files are used again, by groups that lie where groups lay before.
        """

        async def commits() -> None:
            for number in range(4 * self._steps):
                left, right = [self._ledger.value(0).ljust(size, b"x") for size in _ALIGNED_VALUES]
                counter = b"%d" % (len(self._sequence_ledger.pairs) + 1)
                await self._commit_pair(left, right, counter.ljust(_ALIGNED_COUNTER))
                if number % 8 == 7:
                    await self._make_checkpoint()

        await self._until_failure(commits)

    async def _commit_pair(self, left_value: bytes, right_value: bytes, counter: bytes) -> None:
        """Append to two shards and count in the state store, all or nothing."""
        left, right = [(await self._ensure(name, Mode.FILE))[1] for name in PAIR]
        ledger = self._sequence_ledger
        register = ledger.state.setdefault(COUNTER, Register())
        sent = left.send((left_value,), "pair"), right.send((right_value,), "pair")
        ledger.pairs.append(sent)
        register.attempt(counter)
        batches = [
            (name, encode_values(one.values, timestamp_us=self._clock.now_us()))
            for name, one in zip(PAIR, sent, strict=True)
        ]
        appended, stored = await self._engine.parts.transactions.commit(batches, [Put(COUNTER, counter, None)], [])
        for known, one, got in zip((left, right), sent, appended, strict=True):
            known.acknowledge(one, got.base_offset, got.level)
        register.acknowledge(counter, stored[0].version)

    async def _checkpoint(self) -> None:
        for _ in range(3):
            for _ in range(self._rng.randrange(25)):
                await trio.sleep(0.001)
            await self._make_checkpoint()

    async def _make_checkpoint(self) -> None:
        async def nothing() -> None:
            pass

        try:
            await self._engine.parts.checkpointer.after_checkpoint(nothing)
        except DiskFullError:
            require(self._files.failed, "no checkpoint can be made on a disk with space")

    async def _set_clock(self) -> None:
        for _ in range(3):
            for _ in range(self._rng.randrange(20)):
                await trio.sleep(0.001)
            self._clock.jump(seconds=self._rng.uniform(-1, 1) * self._clock_jumps_s)

    async def back_up(self, data: str) -> None:
        """Make a backup of what is there now. No client may be at work."""
        known = copy.deepcopy(self._sequence_ledger)
        known.backup = None
        try:
            async with self._engine.parts.snapshots.take() as snapshot:
                await trio.to_thread.run_sync(
                    lambda: back_up(
                        self._files, Source(snapshot.path, snapshot.lsn), BACKUP, now_us=self._clock.now_us(), keep=2
                    )
                )
        except DiskFullError:
            require(self._files.failed, "no backup can be made on a disk with space", data)
            return
        self._sequence_ledger.backup = known


async def look_at_all(ledger: SequenceLedger, engine: Engine) -> None:
    """Read everything, in memory too, and check what holds at any time: times do not fall, no lsn is used twice."""
    stamps: list[tuple[int, int, str, int]] = []
    for name, known in ledger.shards.items():
        if engine.parts.table.catalogue.id_of(name) is None:
            # It was never created: the client was not answered.
            continue
        for item in await read_all(engine, engine.parts.table.by_name(name)):
            if isinstance(item, StoredRecord):
                stamps.append((item.lsn, item.append_time_us, name, item.offset))
                base_offset = item.offset - known.owners[item.value].values.index(item.value)
                batch = ledger.batches.setdefault(item.lsn, (name, base_offset))
                require(batch == (name, base_offset), "an lsn was given out twice", item.lsn, batch, name, base_offset)
    stamps.sort()
    for before, after in itertools.pairwise(stamps):
        require(before[1] <= after[1], "an append time is lower than one before it", before, after)


async def check_more(ledger: SequenceLedger, engine: Engine) -> None:
    """Compare what an engine holds after a start beyond what `simulated_workload.check` does."""
    await look_at_all(ledger, engine)
    await _check_pairs(ledger, engine)


async def _check_pairs(ledger: SequenceLedger, engine: Engine) -> None:
    present: list[set[bytes]] = []
    for name in PAIR:
        if name not in ledger.shards:
            return
        items = await read_all(engine, engine.parts.table.by_name(name))
        present.append({item.value for item in items if isinstance(item, StoredRecord)})
    counter = engine.get_state(COUNTER)
    newest = int(counter.value) if counter is not None else 0
    last = 0
    for number, (left, right) in enumerate(ledger.pairs, 1):
        there = left.values[0] in present[0], right.values[0] in present[1]
        require(there[0] == there[1], "a commit is there in part", number, there, left, right)
        last = number if there[0] else last
    require(newest == last, "a commit's state and its records differ", newest, last)
