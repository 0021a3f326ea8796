"""The product's client when its server stops in good order and another takes its place: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import trio

from journal.client import open_client
from shards.back_off import BackOff
from shards.model import ShardConfig
from tests.patience import PATIENCE_S
from tests.server.serving import Served, serving


async def test_appends_go_on_exactly_once_over_a_stop_and_a_restart(tmp_path: Path) -> None:
    relay: list[Served] = []

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]

        async def forward(stream: trio.SocketStream) -> None:
            """The client's one address leads to whichever server runs now."""
            async with stream:
                if not relay:
                    return
                try:
                    async with relay[-1].stream() as server, trio.open_nursery() as both:

                        async def pump(source: trio.SocketStream, target: trio.SocketStream) -> None:
                            while data := await source.receive_some(65536):
                                await target.send_all(data)
                            both.cancel_scope.cancel()

                        both.start_soon(pump, stream, server)
                        both.start_soon(pump, server, stream)
                except* OSError:
                    pass
                except* trio.BrokenResourceError:
                    pass

        nursery.start_soon(trio.serve_listeners, forward, listeners)
        count, offsets = 400, dict[int, int]()

        async def write() -> None:
            async with open_client(f"127.0.0.1:{port}", join_appends=False, backoff=BackOff(0.01, 2.0)) as client:
                await client.open_shard("a", create=ShardConfig())
                async with trio.open_nursery() as appends:

                    async def append(number: int) -> None:
                        offsets[number] = (await client.append("a", [b"%d" % number])).base_offset

                    for number in range(count):
                        appends.start_soon(append, number)
                        await trio.sleep(0.001)

        async with serving(tmp_path) as served:
            relay.append(served)
            nursery.start_soon(write)
            with trio.fail_after(PATIENCE_S):
                while len(offsets) < count // 4:
                    await trio.sleep(0.005)
        async with serving(tmp_path) as served:
            relay.append(served)
            with trio.fail_after(PATIENCE_S):
                while len(offsets) < count:
                    await trio.sleep(0.005)
            async with served.client() as reader:
                values = await reader.read_values(await reader.open("a"))
        assert sorted(values) == sorted(b"%d" % number for number in range(count))
        assert [values[offset] for offset in offsets.values()] == [b"%d" % number for number in offsets]
        nursery.cancel_scope.cancel()
