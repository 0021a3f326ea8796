"""Exactly once over the wire: repeats, gaps, epochs, other clients; and order across a mode switch under load."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from journal.protocol import Op, frames, messages
from shards.errors import OffsetConflictError, SequenceGapError, StaleEpochError, UnknownProducerError
from shards.model import Mode, ProducerIdentity
from tests.server.serving import FILE, MEMORY, RawClient, acks_in, batch_of, serving


async def open_producer(client: RawClient, name: str = "p") -> ProducerIdentity:
    identity: ProducerIdentity = await client.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest(name))
    return identity


def produced(identity: ProducerIdentity, sequence: int, *values: bytes) -> bytes:
    return batch_of(*values, producer_id=identity.producer_id, producer_epoch=identity.epoch, sequence=sequence)


async def test_a_repeated_batch_is_stored_once_and_acknowledged_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        me = await open_producer(client)
        first = await client.append(handle, produced(me, 0, b"0", b"1"))
        second = await client.append(handle, produced(me, 2, b"2"))
        for sequence, values, original in ((0, (b"0", b"1"), first), (2, (b"2",), second)):
            again = await client.append(handle, produced(me, sequence, *values))
            assert again.is_duplicate
            assert again.base_offset == original.base_offset
        # Whatever else it asks for.
        again = await client.append(handle, produced(me, 2, b"2"), expected_offset=2)
        assert again.is_duplicate
        assert await client.read_values(handle) == [b"0", b"1", b"2"]


async def test_both_sendings_in_one_chunk_are_one_record(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        me = await open_producer(client)
        sent = [frames.build_append(client.next_correlation(), handle, produced(me, 0, b"0")) for _ in range(3)]
        first = client._correlation - 2
        await client.send(*sent)
        acks = await client.acks([first, first + 1, first + 2])
        assert [ack.is_duplicate for ack in acks.values()] == [False, True, True]
        assert {ack.base_offset for ack in acks.values()} == {0}
        assert await client.read_values(handle) == [b"0"]


async def test_a_gap_is_refused_with_the_sequence_that_is_wanted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        me = await open_producer(client)
        await client.append(handle, produced(me, 0, b"0"))
        with pytest.raises(SequenceGapError, match="expects 1") as refused:
            await client.append(handle, produced(me, 2, b"2"))
        assert refused.value.expected_sequence == 1
        with pytest.raises(OffsetConflictError):
            await client.append(handle, produced(me, 1, b"x"), expected_offset=9)
        # A refused batch does not move what is expected.
        assert (await client.append(handle, produced(me, 1, b"1"))).base_offset == 1


async def test_a_newer_epoch_fences_the_older_one_everywhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle, other = await client.open("a"), await client.open("b")
        old = await open_producer(client)
        await client.append(handle, produced(old, 0, b"old"))
        new = await open_producer(client)
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
        for at in (handle, other):
            with pytest.raises(StaleEpochError, match="open it again"):
                await client.append(at, produced(old, 1, b"x"))
        assert (await client.append(handle, produced(new, 0, b"new"))).base_offset == 1
        assert await client.read_values(handle) == [b"old", b"new"]


async def test_a_producer_that_was_never_opened_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        with pytest.raises(UnknownProducerError, match="open a producer by name first"):
            await client.append(handle, produced(ProducerIdentity(4711, 1), 0, b"x"))


async def test_a_producer_belongs_to_the_newest_connection_that_used_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as old, served.client() as new:
        old_handle, new_handle = await old.open("a"), await new.open("a")
        me = await open_producer(old)
        await old.append(old_handle, produced(me, 0, b"0"))
        await new.append(new_handle, produced(me, 1, b"1"))
        with pytest.raises(StaleEpochError):
            await old.append(old_handle, produced(me, 2, b"2"))


async def test_a_fenced_holder_on_a_newer_connection_does_not_lock_out_the_rightful_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as rightful, served.client() as fenced:
        handle = await rightful.open("a")
        old = await open_producer(fenced)
        new = await open_producer(rightful)
        other = await fenced.open("a")
        with pytest.raises(StaleEpochError):
            await fenced.append(other, produced(old, 0, b"x"))
        assert (await rightful.append(handle, produced(new, 0, b"x"))).base_offset == 0


async def test_a_newer_epoch_may_be_used_over_an_older_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as older, served.client() as newer:
        handle, other = await older.open("a"), await newer.open("a")
        first = await open_producer(newer)
        await newer.append(other, produced(first, 0, b"x"))
        second = await open_producer(older)
        assert (await older.append(handle, produced(second, 0, b"x"))).base_offset == 1
        with pytest.raises(StaleEpochError):
            await newer.append(other, produced(first, 1, b"x"))


@pytest.mark.parametrize("config", [FILE, MEMORY], ids=["file", "memory"])
async def test_a_mode_switch_under_load_loses_and_reorders_nothing(tmp_path: Path, config: object) -> None:
    """Two connections write while a third switches to and fro; offsets and each writer's order stay whole."""
    writers, least_switches, most_under_way = 2, 6, 200
    async with serving(tmp_path) as served, served.client() as switcher:
        handle = await switcher.open("a", config)  # type: ignore[arg-type]
        counts = [0] * writers
        finished = switches = 0

        async def write(writer: int) -> None:
            nonlocal finished
            async with served.client() as client:
                handle = await client.open("a")
                offsets: list[int] = []

                async def take_acks(*, but: int) -> None:
                    while counts[writer] - len(offsets) > but:
                        frame = await client.receive()
                        assert frame.op == Op.APPENDED, frame
                        offsets.extend(ack.base_offset for ack in acks_in(frame))

                while counts[writer] < 3000 or switches < least_switches:
                    numbers = range(counts[writer], counts[writer] + 50)
                    batches = [batch_of(b"%d %d" % (writer, number)) for number in numbers]
                    await client.send(*(frames.build_append(client.next_correlation(), handle, it) for it in batches))
                    counts[writer] = numbers.stop
                    await take_acks(but=most_under_way)
                await take_acks(but=0)
                assert offsets == sorted(set(offsets))
            finished += 1

        async with trio.open_nursery() as nursery:
            for writer in range(writers):
                nursery.start_soon(write, writer)
            while finished < writers:
                mode = Mode.MEMORY if switches % 2 else Mode.FILE
                await switcher.call(Op.SET_MODE, messages.SetModeRequest("a", mode))
                switches += 1
        values = [value.split() for value in await switcher.read_values(handle)]
        assert len(values) == sum(counts)
        for writer in range(writers):
            assert [int(number) for who, number in values if int(who) == writer] == list(range(counts[writer]))
