"""A client that asks for much at once gets it bit by bit, with others' requests in between."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from trio_websocket import wrap_client_stream

from journal.protocol import Op, messages
from journal.server.shard_operations import SegmentPage, ShardOperations
from shards.model import ShardConfig, ShardInfo
from tests.patience import PATIENCE_S
from tests.server.serving import RawClient, serving

INFO = ShardInfo("a", 1, ShardConfig(), 0, 0, 0, 0, 0)
COUNT = 100
WORK_S = 0.003


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Makes descriptions of shards take their time on the loop; has an entry for each."""
    done: list[float] = []

    def take_time(*_: object) -> SegmentPage:
        time.sleep(WORK_S)
        done.append(time.monotonic())
        return SegmentPage(INFO, more=False)

    monkeypatch.setattr(ShardOperations, "describe_page", take_time)
    return done


class _Messages(trio.abc.Stream):
    """A WebSocket as a stream: what is sent at once is one message."""

    def __init__(self, websocket: object) -> None:
        self._websocket = websocket

    async def send_all(self, data: bytes) -> None:  # type: ignore[override]
        await self._websocket.send_message(data)  # type: ignore[attr-defined]

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._websocket.get_message())  # type: ignore[attr-defined]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("listener", ["tcp", "websocket"])
async def test_many_requests_in_one_chunk_leave_others_their_turn(
    tmp_path: Path, listener: str, listed: list[float]
) -> None:
    async with (
        serving(tmp_path) as served,
        served.client() as other,
        await trio.open_tcp_stream("127.0.0.1", served.ports[listener]) as stream,
        trio.open_nursery() as nursery,
    ):
        carried: trio.abc.Stream = stream
        if listener == "websocket":
            carried = _Messages(await wrap_client_stream(nursery, stream, "127.0.0.1", "/"))
        greedy = RawClient(carried)
        await greedy.hello()
        asked = [greedy.start(Op.DESCRIBE_SHARD, messages.DescribeShardRequest("a")) for _ in range(COUNT)]
        await greedy.send(*(frame for _, frame in asked))
        with trio.fail_after(PATIENCE_S):
            while not listed:
                await trio.lowlevel.checkpoint()
            # The chunk is being worked on.
            await other.call(Op.PING)
        assert len(listed) < COUNT // 2
        for correlation, _ in asked:
            await greedy.reply_to(Op.DESCRIBE_SHARD, correlation)
        nursery.cancel_scope.cancel()
