"""The outgoing side of a connection, without a connection."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from journal.server.output import Output, Readable


class StuckCarrier:
    """Takes nothing, like a peer that never reads."""

    keeps_frames_whole = False

    def send_nowait(self, buffers: list[Readable]) -> int:
        return 0

    async def send_some(self, buffers: list[Readable]) -> int:
        await trio.sleep_forever()
        raise AssertionError


async def test_what_is_broken_has_room_although_replies_are_still_being_read_for_it() -> None:
    """Otherwise a receiver would ask again for ever, without a pause."""
    output = Output(StuckCarrier(), limit_bytes=100)
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
    output = Output(StuckCarrier(), limit_bytes=100)
    output.send([bytes(100)], 100)
    with trio.fail_after(1), pytest.raises(trio.TooSlowError), trio.fail_after(0.5):
        await output.wait_for_room()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.wait_for_room)
        await trio.testing.wait_all_tasks_blocked()
        output.abandon()
