"""The outgoing side of a connection, without a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from journal.net.output import Carrier, Output
from shards.segments.chunks import Readable


class StuckCarrier:
    """Takes nothing, like a peer that never reads."""

    keeps_frames_whole = False

    def send_nowait(self, buffers: list[Readable]) -> int:
        return 0

    async def send_some(self, buffers: list[Readable]) -> int:
        await trio.sleep_forever()
        raise AssertionError


class SlowCarrier(StuckCarrier):
    """Takes some bytes at a time, whenever it is allowed to."""

    def __init__(self, at_a_time: int) -> None:
        self.at_a_time = at_a_time
        self.taken = b""
        self.may_take = trio.Event()

    async def send_some(self, buffers: list[Readable]) -> int:
        await self.may_take.wait()
        await trio.lowlevel.checkpoint()
        sent = b"".join(buffers)[: self.at_a_time]
        self.taken += sent
        return len(sent)


def output_of(
    carrier: Carrier,
    start: Callable[[Callable[[], Awaitable[None]]], None] = lambda _: None,
    on_broken: Callable[[], None] = lambda: None,
) -> Output:
    return Output(carrier, start, limit_bytes=100, on_broken=on_broken)


async def test_what_is_broken_has_room_although_replies_are_still_being_read_for_it() -> None:
    """Otherwise a receiver would ask again for ever, without a pause."""
    output = output_of(StuckCarrier())
    await output.reserve(60)
    await output.reserve(60)
    assert not output.has_room
    output.abandon()
    assert output.has_room
    with trio.fail_after(1):
        await output.wait_for_room()
    output.unreserve(60)
    output.unreserve(60)


async def test_a_task_that_waits_for_room_ends_when_the_connection_breaks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as writers:
        output = output_of(StuckCarrier(), writers.start_soon)
        output.send([bytes(100)], 100)
        with trio.fail_after(1), pytest.raises(trio.TooSlowError), trio.fail_after(0.5):
            await output.wait_for_room()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(output.wait_for_room)
            await trio.testing.wait_all_tasks_blocked()
            output.abandon()
        writers.cancel_scope.cancel()


async def test_a_writer_runs_only_while_bytes_wait() -> None:
    carrier = SlowCarrier(3)
    async with trio.open_nursery() as writers:
        output = output_of(carrier, writers.start_soon)
        for frame in (b"one", b"seven"):
            carrier.may_take = trio.Event()
            output.send([frame[:2], frame[2:]], len(frame))
            output.send([b"!"], 1)
            await trio.testing.wait_all_tasks_blocked()
            assert (len(writers.child_tasks), output.waiting_bytes) == (1, len(frame) + 1)
            carrier.may_take.set()
            await output.wait_drained()
            await trio.testing.wait_all_tasks_blocked()
            assert (len(writers.child_tasks), output.waiting_bytes) == (0, 0)
    assert carrier.taken == b"one!seven!"
    assert output.sent_bytes == len(carrier.taken)


async def test_what_was_being_sent_when_the_connection_broke_is_no_error() -> None:
    """The writer came back to a queue that was empty meanwhile."""
    carrier = SlowCarrier(3)
    async with trio.open_nursery() as writers:
        output = output_of(carrier, writers.start_soon)
        output.send([b"three"], 5)
        await trio.testing.wait_all_tasks_blocked()
        carrier.may_take.set()
        output.abandon()
    assert output.waiting_bytes == 0


@pytest.mark.parametrize("within_s", [5, 100])
async def test_a_peer_that_reads_nothing_is_given_up(within_s: int, autojump_clock: trio.testing.MockClock) -> None:
    broken = trio.Event()
    async with trio.open_nursery() as writers:
        output = output_of(StuckCarrier(), writers.start_soon, broken.set)
        output.expect_progress(within_s)
        began = trio.current_time()
        output.send([bytes(30)], 30)
        await broken.wait()
    assert trio.current_time() - began == pytest.approx(min(within_s, 60))
    assert (output.stalled_bytes, output.waiting_bytes) == (30, 0)
