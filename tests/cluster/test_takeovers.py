"""The owner of a store is killed, suspended or stopped: another server goes on, and nothing acknowledged is missing."""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path

import pytest
import trio

from journal.client.opening import open_client
from shards.format.batch import read_records
from shards.format.record import Gap, Record
from shards.model import Mode, ShardConfig
from tests.cluster.servers import remove, running
from tests.cluster.writing import SHARD, check, connected, value_of, writing


@pytest.mark.smoke
@pytest.mark.slow("kills three servers, one after the other, and waits for takeovers")
async def test_nothing_acknowledged_is_lost_or_doubled_when_each_owner_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, 3) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(20)
            for _ in range(3):
                owner = await cluster.owner()
                owner.kill()
                await writer.wait_for(20)
                owner.start()
        await check(cluster, writer)


@pytest.mark.slow("waits until a suspended server counts as lost")
async def test_a_suspended_owner_that_wakes_up_acknowledges_nothing_and_follows(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(20)
            owner = await cluster.owner()
            owner.send(signal.SIGSTOP)
            await writer.wait_for(20)
            owner.send(signal.SIGCONT)
            new_owner = next(server for server in cluster.servers if server is not owner)
            assert await cluster.followers(new_owner) == [owner]
            await writer.wait_for(20)
            owner.send(signal.SIGTERM)
            assert owner.wait() == 0
        await check(cluster, writer)


@pytest.mark.slow("starts three servers and waits for takeovers")
async def test_a_data_directory_that_is_deleted_comes_back_from_the_log(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(50)
            owner = await cluster.owner()
            owner.send(signal.SIGTERM)
            assert owner.wait() == 0
            await writer.wait_for(50)
            remove(owner.data)
            owner.start()
            other = next(server for server in cluster.servers if server is not owner)
            await cluster.followers(other)
            other.kill()
            remove(other.data)
            await writer.wait_for(50)
            assert await cluster.owner() is owner
        await check(cluster, writer)


@pytest.mark.slow("starts a server three times")
@pytest.mark.parametrize("missing", ["all", "newest"])
async def test_what_is_missing_of_the_journal_is_read_from_the_log_again(tmp_path: Path, missing: str) -> None:
    with running(tmp_path, 1) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            for number in range(30):
                await client.append(SHARD, [Record(value=b"%d" % number), Record(value=random.randbytes(100_000))])
        server.kill()
        files = sorted((server.data / "journal").glob("journal-*.jnl"))
        for path in files if missing == "all" else files[-1:]:
            path.unlink()
        check = [sys.executable, "-m", "journal.cli.main", "check", str(server.data)]
        checked = await trio.run_process(check, capture_stdout=True, capture_stderr=True, check=False)
        assert checked.returncode == 0, checked.stdout.decode() + checked.stderr.decode()
        server.start()
        async with connected(cluster) as client:
            info = await client.describe_shard(SHARD)
            assert (info.start_offset, info.next_offset) == (0, 60)
            for number in range(30):
                reply = await client.fetch(SHARD, 2 * number)
                first, *_ = read_records(reply.batches, start_offset=2 * number)
                assert value_of(first) == number


@pytest.mark.slow("starts two servers and waits for a takeover")
async def test_a_follower_makes_checkpoints_of_a_log_that_is_longer_than_its_journal_may_be(tmp_path: Path) -> None:
    with running(tmp_path, 1) as cluster:
        async with connected(cluster) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            for number in range(60):
                await client.append(SHARD, [Record(value=b"%d" % number), Record(value=random.randbytes(100_000))])
        (first,) = cluster.servers
        first.kill()
        remove(first.data)
        first.start()
        async with connected(cluster) as client:
            info = await client.describe_shard(SHARD)
            assert info.next_offset == 120
            reply = await client.fetch(SHARD, 118)
            assert value_of(read_records(reply.batches, start_offset=118, end_offset=119)[0]) == 59


@pytest.mark.slow("starts two servers and waits for a takeover")
async def test_records_in_memory_are_lost_with_the_owner_and_shown_as_a_gap(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        async with connected(cluster) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.MEMORY))
            await client.create_shard("plant/durable", ShardConfig(mode=Mode.FILE))
            for number in range(10):
                await client.append(SHARD, [Record(value=b"%d" % number)])
                await client.append("plant/durable", [Record(value=b"%d" % number)])
            owner = await cluster.owner()
            await cluster.followers(owner)
            owner.kill()
            after = await client.append(SHARD, [Record(value=b"after")])
            assert after.base_offset >= 10, "an offset is never used for another record"
            reply = await client.fetch(SHARD, 0)
            (gap,) = read_records(reply.batches)
            assert isinstance(gap, Gap)
            assert (gap.first_offset, 10 <= gap.next_offset <= after.base_offset) == (0, True)
            reply = await client.fetch("plant/durable", 0)
            assert [value_of(record) for record in read_records(reply.batches)] == list(range(10))


@pytest.mark.slow("starts a server twice")
async def test_what_follows_records_in_memory_is_kept_by_a_server_that_reads_the_log_in_several_rounds(
    tmp_path: Path,
) -> None:
    """It took the offsets for used that are reserved for records in memory, at the end of the first round."""
    with running(tmp_path, 1) as cluster:
        (server,) = cluster.servers
        async with connected(cluster) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.MEMORY))
            await client.create_shard("plant/large", ShardConfig(mode=Mode.FILE))
            await client.append(SHARD, [Record(value=b"in memory")])
            for _ in range(20):
                await client.append("plant/large", [Record(value=random.randbytes(100_000))])
            await client.set_mode(SHARD, Mode.FILE)
            after = await client.append(SHARD, [Record(value=b"%d" % number) for number in range(5)])
        server.kill()
        remove(server.data)
        server.start()
        async with connected(cluster) as client:
            reply = await client.fetch(SHARD, after.base_offset)
            assert [value_of(record) for record in read_records(reply.batches)] == list(range(5))


@pytest.mark.slow("starts two servers")
async def test_a_client_that_knows_a_follower_alone_finds_the_owner(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner = await cluster.owner()
        (follower,) = await cluster.followers(owner)
        assert follower.get("/readyz") == (
            503,
            f"not ready: the server at {owner.tcp} owns the store; this one follows it\n",
        )
        command = [sys.executable, "-m", "journal.cli.main", "cluster", "status", "--store", cluster.address_of_store]
        told = await trio.run_process([*command, "--json"], capture_stdout=True)
        content = json.loads(told.stdout)
        assert content == {
            "store_id": content["store_id"],
            "epoch": 1,
            "owner": owner.tcp,
            "life": "alive",
            "checkpoint_lsn": 0,
            "slots": content["slots"],
            "servers": content["servers"],
        }
        assert {server["address"]: server["is_owner"] for server in content["servers"]} == {
            owner.tcp: True,
            follower.tcp: False,
        }
        async with open_client(follower.tcp) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            assert (await client.describe_shard(SHARD)).name == SHARD
