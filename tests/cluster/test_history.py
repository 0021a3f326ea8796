"""Parquet files of a store: every owner of the store has all of them, also those that another server wrote."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest
import trio

from journal.client.client import Client
from shards.format.batch import read_records
from shards.format.record import Record
from shards.model import Mode, SegmentKind, ShardConfig
from tests.cluster.servers import Cluster, Server, remove, running
from tests.cluster.writing import SHARD, connected, value_of
from tests.patience import PATIENCE_S


async def fill(client: Client) -> None:
    """Ten numbers, in a Parquet file."""
    await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
    await append(client, 0, 10)
    await client.convert(SHARD)


async def append(client: Client, first: int, end: int) -> None:
    for number in range(first, end):
        await client.append(SHARD, [Record(value=str(number).encode())])


async def require(client: Client, first: int, end: int) -> None:
    """The shard has these numbers, and every closed segment of it is in a Parquet file."""
    info = await client.describe_shard(SHARD)
    assert (info.start_offset, info.next_offset) == (first, end)
    assert {segment.kind for segment in info.segments if segment.closed} == {SegmentKind.PARQUET}
    values: list[int] = []
    offset = first
    while offset < end:
        reply = await client.fetch(SHARD, offset)
        values += map(value_of, read_records(reply.batches, start_offset=offset))
        offset = reply.next_offset
    assert values == list(range(first, end))


def parquet_files(server: Server) -> set[str]:
    return {path.name for path in (server.data / "sealed").glob("*/*.parquet")}


def stored_files(cluster: Cluster) -> set[str]:
    """Names of the files that are in the log store."""
    root = Path(cluster.address_of_store.removeprefix("file://"))
    return {f"{path.name.split('-')[1]}.parquet" for path in root.glob("journal/file/*")}


async def wait_for_table(server: Server, values: set[int]) -> None:
    """Until a reader of the Delta table finds these records."""
    path = server.data / "sealed"
    found: set[int] = set()
    with trio.fail_after(PATIENCE_S):
        while found != values:
            await trio.sleep(0.05)
            if deltalake.DeltaTable.is_deltatable(str(path)):
                rows = deltalake.DeltaTable(str(path)).to_pyarrow_table(columns=["value"])
                found = {int(value) for value in rows["value"].to_pylist()}


@pytest.mark.slow("kills two servers, and waits for takeovers")
async def test_a_server_that_takes_over_has_the_files_and_a_table_of_them(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        async with connected(cluster) as client:
            await fill(client)
            first = await cluster.owner()
            (second,) = await cluster.followers(first)
            assert parquet_files(first) == stored_files(cluster)
            first.kill()
            # Nothing is left of what the first one had.
            remove(first.data)
            await append(client, 10, 20)
            await client.convert(SHARD)
            await require(client, 0, 20)
            await wait_for_table(second, set(range(20)))
            first.start()
            await cluster.followers(second)
            second.kill()
            await append(client, 20, 21)
            assert await cluster.owner() is first
            assert parquet_files(first) == stored_files(cluster)
            await require(client, 0, 21)
            await wait_for_table(first, set(range(20)))


@pytest.mark.slow("starts a server three times, which reads the log again")
async def test_an_empty_directory_gets_only_the_files_that_are_still_needed(tmp_path: Path) -> None:
    with running(tmp_path, 1) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await fill(client)
            old = stored_files(cluster)
            await append(client, 10, 20)
            await client.convert(SHARD)
            await client.trim(SHARD, 10)
            server.kill()
            remove(server.data)
            # It may have been deleted from the log store since.
            for path in (tmp_path / "store").glob("journal/file/*"):
                if f"{path.name.split('-')[1]}.parquet" in old:
                    path.unlink()
            server.start()
            await append(client, 20, 25)
            await require(client, 10, 25)
            assert parquet_files(server) == stored_files(cluster)
            await wait_for_table(server, set(range(10, 20)))


@pytest.mark.slow("starts two servers, and waits for a takeover")
async def test_a_damaged_file_in_the_log_store_is_refused_by_name(tmp_path: Path) -> None:
    with running(tmp_path, 1) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await fill(client)
        server.kill()
        remove(server.data)
        (path,) = (tmp_path / "store").glob("journal/file/*")
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        server.start()
        assert server.wait() != 0
        assert f"{path.name}: the body's checksum is" in server.log.read_text()
