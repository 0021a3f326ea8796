"""Appends that wait for a log store that does not answer leave memory in which other clients are heard."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from journal.client import open_client
from shards.model import Mode, ShardConfig
from tests.cluster.servers import Server, running
from tests.patience import PATIENCE_S
from tests.server.serving import RawClient

SHARD = "plant/line"
BUFFERS = 4
FEW = (f"storage.receive_buffers={BUFFERS}", "storage.receive_buffer_bytes=64 KiB")


async def raw_client(server: Server) -> RawClient:
    host, port = server.tcp.split(":")
    client = RawClient(await trio.open_tcp_stream(host, int(port)))
    await client.hello()
    return client


@pytest.mark.slow("starts a server, and lets its log store be away")
@pytest.mark.parametrize("slots", [1, 4])
async def test_reads_continue_though_more_appends_wait_than_there_are_receive_buffers(
    tmp_path: Path, slots: int
) -> None:
    """All buffers held appends that waited for the log store. Nothing was read from any client until it answered."""
    store, away = tmp_path / "store", tmp_path / "away"
    store.mkdir()
    with running(tmp_path, 1, f"file://{store}?slots={slots}", settings=FEW) as cluster:
        server = await cluster.owner()
        async with open_client(server.tcp) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            await client.append(SHARD, [b"before"])
        reader, *writers = [await raw_client(server) for _ in range(2 * BUFFERS + 1)]
        handles = [await writer.open(SHARD, None) for writer in writers]
        read_from = await reader.open(SHARD, None)
        store.rename(away)
        async with trio.open_nursery() as nursery:
            with trio.fail_after(PATIENCE_S):
                for number, (writer, handle) in enumerate(zip(writers, handles, strict=True)):
                    # One after the other, so that each has a buffer of its own.
                    nursery.start_soon(writer.append_values, handle, b"%d" % number)
                    await trio.sleep(0.02)
                for _ in range(3):
                    with trio.fail_after(5.0):
                        assert await reader.read_values(read_from) == [b"before"]
                away.rename(store)
        found = await reader.read_values(read_from)
        assert found[0] == b"before"
        assert sorted(found[1:]) == [b"%d" % number for number in range(2 * BUFFERS)]
        for each in (reader, *writers):
            await each.stream.aclose()
