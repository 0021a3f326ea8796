"""Frames that come too slowly: how long a peer may hold what the server keeps for it, and what does not count."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from journal.protocol import Op, decode_error, frames
from journal.protocol.frames import HEADER
from journal.server import tcp
from journal.settings.values import KIB
from tests.patience import PATIENCE_S
from tests.server.serving import batch_of, serving


async def test_a_frame_that_is_never_sent_to_its_end_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then does not restart the time limit."""
    monkeypatch.setattr(tcp, "_PATIENCE_S", 0.6)
    async with serving(tmp_path) as served, served.client() as client:
        await client.send(HEADER.pack(200, Op.PING, 0, 1))
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:

                async def trickle() -> None:
                    while True:
                        await client.send(b"\0")
                        await trio.sleep(0.1)

                nursery.start_soon(trickle)
                answers = await client.receive_until_closed()
                nursery.cancel_scope.cancel()
        assert "of a frame of 200 came within 1 s; send whole frames" in str(
            decode_error(answers[-1].status, answers[-1].body)
        )


async def test_a_byte_that_comes_as_the_time_ends_is_answered_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """The connection was closed without a word: a negative time limit is an error."""
    monkeypatch.setattr(tcp, "_PATIENCE_S", 0.5)
    async with serving(tmp_path) as served, served.client() as client:
        await client.send(HEADER.pack(200, Op.PING, 0, 1))
        await wait_all_tasks_blocked(0.005)
        # Both at once, before any other task runs.
        client.send_nowait(b"\0")
        mock_clock.jump(1.0)
        (answer,) = await client.receive_until_closed()
        assert "send whole frames" in str(decode_error(answer.status, answer.body))


async def test_many_frames_in_halves_may_take_as_long_as_they_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(tcp, "_PATIENCE_S", 0.5)
    async with serving(tmp_path) as served, served.client() as client:
        for number in range(8):
            ping = frames.build(Op.PING, 100 + number)
            await client.send(ping[:5])
            await wait_all_tasks_blocked(0.005)
            mock_clock.jump(0.4)
            await client.send(ping[5:])
            assert (await client.receive()).correlation == 100 + number


@pytest.mark.parametrize("buffers", [1, 8])
async def test_large_frames_come_in_through_buffers_that_grow(tmp_path: Path, buffers: int) -> None:
    """Sizes around the pool's, behind one another and in pieces that end anywhere."""
    pool = {"storage__receive_buffers": buffers, "storage__receive_buffer_bytes": 64 * KIB}
    async with serving(tmp_path, **pool) as served, served.client() as client:
        handle = await client.open("a")
        sizes = [1, 40_000, 65_000, 66_000, 100_000, 131_072, 500_000, 10, 900_000, 30_000]
        sent = b"".join(
            frames.build_append(number + 100, handle, batch_of(bytes([number]) * size))
            for number, size in enumerate(sizes)
        )
        for at in range(0, len(sent), 37_337):
            await client.send(sent[at : at + 37_337])
        await client.acks([number + 100 for number in range(len(sizes))])
        assert [len(value) for value in await client.read_values(handle)] == sizes
