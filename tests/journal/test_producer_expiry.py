"""Producers that are not used expire, those that are used do not, and what is left of them goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import pytest
import trio

from journal.engine import Engine, Environment, open_engine
from journal.engine.state.producer_use import RETURNS_WITHIN_S
from journal.engine.wal.pending_ack import PendingAck
from journal.engine.write.producer_expiry import UNUSED_PRODUCERS_KEPT_US
from journal.protocol.frames import ACK, ACK_DUPLICATE, build_append
from shards.errors import SequenceLostError, StorageFailedError, UnknownProducerError
from shards.format.batch import encode_values
from shards.model import AckLevel, Appended, ProducerIdentity, ShardConfig
from shards.seams.store import Family
from shards.segments.shard import Shard
from shards.views import producer_records
from tests.journal.engines import DATA, append_frames, config, stop_without_checkpoint
from tests.shards.batches import NOW_US
from tests.simulation.file_system import SimulatedFileSystem
from tests.simulation.inline import InlineDisk
from tests.simulation.store import SimulatedStore

DAY_US = 86_400 * 1_000_000


@attrs.define
class StoppedClock:
    time_us: int = NOW_US

    def now_us(self) -> int:
        return self.time_us

    def monotonic_us(self) -> int:
        return self.time_us


@attrs.define
class Node:
    """A data directory on a simulated disk, and its time."""

    files: SimulatedFileSystem = attrs.Factory(SimulatedFileSystem)
    clock: StoppedClock = attrs.Factory(StoppedClock)

    def __attrs_post_init__(self) -> None:
        self.files.mkdir(DATA)

    def open(self) -> AbstractAsyncContextManager[Engine]:
        return open_engine(
            DATA,
            config(),
            Environment(
                files=self.files,
                clock=self.clock,
                make_disk=InlineDisk,
                open_store=lambda path: SimulatedStore(self.files, path),
            ),
        )


class Connected(PendingAck):
    """Where the acknowledgement of one append of a connection goes."""

    producers = ""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def acknowledge(self, acks: bytearray) -> None:
        _, level, flags, _, base_offset = ACK.unpack(acks)
        self.resolve(Appended(base_offset, AckLevel(level), bool(flags & ACK_DUPLICATE)))

    def fail(self, error: StorageFailedError) -> None:
        self.reject(error)


async def send(engine: Engine, shard: Shard, me: ProducerIdentity, sequence: int, number: int = 1) -> Appended:
    batch = encode_values(
        [b"%d" % sequence],
        timestamp_us=NOW_US,
        producer_id=me.producer_id,
        producer_epoch=me.epoch,
        sequence=sequence,
    )
    sink = Connected(number)
    append_frames(engine, build_append(0, 0, batch), shard, sink)
    return await sink.wait()


def names(engine: Engine) -> list[str]:
    return [found.name for found in engine.parts.views.producers.registered() if found is not None]


@asynccontextmanager
async def settled(node: Node) -> AsyncIterator[Engine]:
    """An engine that started so long ago that nothing is expected to return."""
    async with node.open() as engine:
        await trio.sleep(RETURNS_WITHIN_S)
        yield engine


async def test_unused_producers_expire(autojump_clock: trio.testing.MockClock) -> None:
    """Two keys for each client that ever appended stayed in the views, and one in each shard."""
    node = Node()
    async with settled(node) as engine:
        await engine.create_shard("a", ShardConfig())
        shard = engine.parts.table.by_name("a")
        me = await engine.open_producer("old")
        await send(engine, shard, me, 0)
        engine.parts.producer_use.disconnected(1)
        await engine.parts.checkpointer.checkpoint()
        assert len(list(engine.parts.views.store.scan(Family.PRODUCERS))) == 3
        await trio.sleep(RETURNS_WITHIN_S)
        node.clock.time_us += UNUSED_PRODUCERS_KEPT_US
        await engine.parts.producer_expiry.apply()
        assert names(engine) == ["old"]
        node.clock.time_us += DAY_US
        await engine.parts.producer_expiry.apply()
        await engine.parts.producer_expiry.apply()
        assert list(engine.parts.views.store.scan(Family.PRODUCERS)) == []
        with pytest.raises(UnknownProducerError, match="has expired"):
            await send(engine, shard, me, 1)
        again = await engine.open_producer("old")
        assert again.producer_id > me.producer_id
        assert not (await send(engine, shard, again, 0)).duplicate


@pytest.mark.slow("hours pass on a simulated clock")
async def test_a_producer_that_is_connected_does_not_expire_and_a_restart_knows_that_it_was_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    async with settled(node) as engine:
        await engine.create_shard("a", ShardConfig())
        me = await engine.open_producer("busy")
        await send(engine, engine.parts.table.by_name("a"), me, 0)
        for _ in range(20):
            node.clock.time_us += DAY_US + 1
            await engine.parts.producer_expiry.apply()
        assert names(engine) == ["busy"]
        stop_without_checkpoint(engine)
    async with settled(node) as engine:
        await engine.parts.producer_expiry.apply()
        (found,) = engine.parts.views.producers.registered()
        assert found is not None
        assert found.used_us == node.clock.time_us
        assert (await send(engine, engine.parts.table.by_name("a"), me, 0)).duplicate


@pytest.mark.slow("hours pass on a simulated clock")
async def test_nothing_expires_before_those_who_were_connected_could_return(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    async with node.open() as engine:
        await engine.open_producer("away")
    node.clock.time_us += 100 * DAY_US
    async with node.open() as engine:
        await engine.parts.producer_expiry.apply()
        assert names(engine) == ["away"]
        await trio.sleep(RETURNS_WITHIN_S)
        await engine.parts.producer_expiry.apply()
        assert names(engine) == []


@pytest.mark.slow("hours pass on a simulated clock")
async def test_a_deletion_is_repeated_by_a_recovery_and_a_later_opening_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    async with settled(node) as engine:
        for name in ("gone", "back"):
            await engine.open_producer(name)
        node.clock.time_us += UNUSED_PRODUCERS_KEPT_US + DAY_US
        await engine.parts.producer_expiry.apply()
        back = await engine.open_producer("back")
        stop_without_checkpoint(engine)
    async with node.open() as engine:
        assert names(engine) == ["back"]
        assert engine.parts.views.producers.get("back") == back


@pytest.mark.slow("registers many producers")
async def test_a_producer_that_was_still_connected_was_forgotten_and_its_resend_stored_twice(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind 4,096 others and a checkpoint the resend of a connected producer was taken for a new batch."""
    monkeypatch.setattr(producer_records, "PRODUCERS_REMEMBERED", 2)
    node = Node()
    async with settled(node) as engine:
        await engine.create_shard("a", ShardConfig())
        shard = engine.parts.table.by_name("a")
        mine = [await engine.open_producer(f"p{number}") for number in range(5)]
        for number, me in enumerate(mine):
            for sequence in range(3):
                await send(engine, shard, me, sequence, number=number + 1)
        for number in (1, 2, 3, 4):
            engine.parts.producer_use.disconnected(number + 1)
        await trio.sleep(RETURNS_WITHIN_S)
        await engine.parts.checkpointer.checkpoint()
        assert shard.producers is not None
        assert set(shard.producers) == {mine[0].producer_id, mine[3].producer_id, mine[4].producer_id}
        assert (await send(engine, shard, mine[0], 2, number=1)).duplicate
        stop_without_checkpoint(engine)
    async with node.open() as engine:
        shard = engine.parts.table.by_name("a")
        assert (await send(engine, shard, mine[0], 2)).duplicate
        # One that is forgotten is not stored twice, and may begin again.
        with pytest.raises(SequenceLostError, match="has no state of it") as refused:
            await send(engine, shard, mine[1], 2)
        assert refused.value.expected_sequence == 0
        assert not (await send(engine, shard, mine[1], 0)).duplicate
