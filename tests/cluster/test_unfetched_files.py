"""The place of the files (`--objects`) does not answer, and the log is well: followers go on, and take over."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from journal.client.client import Client
from journal.client.opening import open_client
from journal.client.session_keeper import SessionTimes
from journal.client.subscription import Subscription
from shards.errors import FileUnavailableError, StorageError
from shards.format.batch import read_records
from shards.position import Start
from tests.cluster.servers import Cluster, Server, running
from tests.cluster.test_history import append, fill, parquet_files, require, wait_for_table
from tests.cluster.test_real_stores import seaweed
from tests.cluster.writing import SHARD, connected, value_of
from tests.logstore.faulty_proxy import Fault, all_meet, open_proxy, through
from tests.patience import PATIENCE_S

ONCE: Final = SessionTimes(first_within_s=PATIENCE_S)


@attrs.frozen
class Away:
    """Two servers, and a place of their files that has a file which the follower does not have, and is away.

    Attributes:
        at_owner: A client of whichever server owns the store.
        at_follower: A client that reads from the follower.
    """

    cluster: Cluster
    owner: Server
    follower: Server
    at_owner: Client
    at_follower: Client
    objects: Path

    def bring_back(self) -> None:
        self.objects.with_name("away").rename(self.objects)


@asynccontextmanager
async def objects_away(directory: Path) -> AsyncIterator[Away]:
    objects = directory / "objects"
    objects.mkdir()
    with running(directory, 2, objects=f"file://{objects}") as cluster:
        async with connected(cluster) as at_owner:
            owner = await cluster.owner()
            (follower,) = await cluster.followers(owner)
            await wait_until(lambda: "journal_committed_lsn" in follower.get("/metrics")[1])
            # It has read nothing of the history when the place goes away.
            follower.send(signal.SIGSTOP)
            await fill(at_owner)
            objects.rename(objects.with_name("away"))
            follower.send(signal.SIGCONT)
            await append(at_owner, 10, 15)
            async with open_client(f"journal://{follower.tcp}?read=follower", times=ONCE) as at_follower:
                yield Away(cluster, owner, follower, at_owner, at_follower, objects)


async def values_from(client: Client, offset: int) -> list[int]:
    reply = await client.fetch(SHARD, offset)
    return [value_of(record) for record in read_records(reply.batches, start_offset=offset)]


async def wait_for(client: Client, next_offset: int) -> None:
    """Until a server has that much of the shard."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                if (await client.describe_shard(SHARD)).next_offset >= next_offset:
                    return
            except StorageError:
                pass  # It has not read that the shard was made.
            await trio.sleep(0.05)


async def wait_until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not await trio.to_thread.run_sync(condition):
            await trio.sleep(0.05)


async def taken(subscription: Subscription, count: int) -> list[int]:
    """The next values that a subscription delivers."""
    values: list[int] = []
    with trio.fail_after(PATIENCE_S):
        while len(values) < count:
            delivery = await anext(subscription)
            values += map(value_of, read_records(delivery.batches, start_offset=delivery.first_offset))
    return values


@pytest.mark.slow("starts two servers, and waits until one does without a file")
async def test_a_follower_reads_on_while_the_place_of_files_does_not_answer(tmp_path: Path) -> None:
    """It stood still at the entry that names the file: what it showed was as old as the outage."""
    async with objects_away(tmp_path) as away:
        await wait_for(away.at_follower, 15)
        assert await values_from(away.at_follower, 10) == [10, 11, 12, 13, 14]
        with pytest.raises(FileUnavailableError, match=r"offsets 0 to 9 of shard 'plant/line' cannot be read here yet"):
            await values_from(away.at_follower, 0)
        await wait_until(lambda: "no file could be fetched from the log store" in away.follower.log.read_text())
        assert "is no directory" in away.follower.log.read_text()
        async with (
            away.at_follower.subscribe(shard=SHARD, start=Start.earliest()) as old,
            away.at_follower.subscribe(topic_filter="plant/#", start=Start.latest()) as new,
        ):
            await append(away.at_owner, 15, 20)
            assert await taken(new, 5) == list(range(15, 20))
            away.bring_back()
            assert await taken(old, 20) == list(range(20))
        assert await values_from(away.at_follower, 0) == list(range(10))
        await wait_until(lambda: "the log store answers again" in away.follower.log.read_text())


@pytest.mark.slow("starts two servers, waits until one takes over, and until it looks for a file again")
async def test_a_new_owner_says_which_file_is_gone_and_serves_it_when_it_was_put_back(tmp_path: Path) -> None:
    """It finds out only after it has begun to serve."""
    async with objects_away(tmp_path) as away:
        await wait_for(away.at_follower, 15)
        away.owner.kill()
        await append(away.at_owner, 15, 20)
        (path,) = away.objects.with_name("away").glob("journal/file/*")
        content = path.read_bytes()
        path.unlink()
        away.bring_back()
        await wait_until(lambda: "the log store has not got the file" in away.follower.log.read_text())
        with pytest.raises(FileUnavailableError, match="the log store has not got the file"):
            await values_from(away.at_owner, 0)
        assert await values_from(away.at_owner, 10) == list(range(10, 20))
        (away.objects / "journal" / "file" / path.name).write_bytes(content)
        async with away.at_owner.subscribe(shard=SHARD, start=Start.earliest()) as old:
            assert await taken(old, 20) == list(range(20))


@pytest.mark.slow("starts two servers, and waits until one takes over")
async def test_a_follower_takes_over_while_the_place_of_files_does_not_answer(tmp_path: Path) -> None:
    """The store had no owner until the place of the files was back."""
    async with objects_away(tmp_path) as away:
        await wait_for(away.at_follower, 15)
        away.owner.kill()
        await append(away.at_owner, 15, 20)
        assert await away.cluster.owner() is away.follower
        assert await values_from(away.at_owner, 10) == list(range(10, 20))
        with pytest.raises(FileUnavailableError, match="is no directory"):
            await values_from(away.at_owner, 0)
        assert "journal_log_unavailable 1.0" in away.follower.get("/metrics")[1]
        async with away.at_owner.subscribe(shard=SHARD, start=Start.earliest()) as old:
            away.bring_back()
            assert await taken(old, 20) == list(range(20))
        await away.at_owner.convert(SHARD)
        await require(away.at_owner, 0, 20)
        await wait_for_table(away.follower, set(range(20)))
        assert len(parquet_files(away.follower)) == 2
        await wait_until(lambda: "journal_log_unavailable 0.0" in away.follower.get("/metrics")[1])


@pytest.mark.slow("starts SeaweedFS and two servers, and waits until one does without a file and takes over")
@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.DENIED, Fault.REFUSED_503])
async def test_a_follower_that_alone_gets_no_files_reads_on_and_takes_over(tmp_path: Path, fault: Fault) -> None:
    place, environment = seaweed()
    endpoint = environment["AWS_ENDPOINT_URL"]
    with open_proxy(endpoint) as one, open_proxy(endpoint) as other:
        each = [through(proxy, environment) for proxy in (one, other)]
        with running(tmp_path, 2, objects=place, each=each) as cluster:
            async with connected(cluster) as at_owner:
                owner = await cluster.owner()
                (follower,) = await cluster.followers(owner)
                await wait_until(lambda: "journal_committed_lsn" in follower.get("/metrics")[1])
                proxy = one if follower is cluster.servers[0] else other
                proxy.decide = all_meet(fault)
                await fill(at_owner)
                await append(at_owner, 10, 15)
                async with open_client(f"journal://{follower.tcp}?read=follower", times=ONCE) as at_follower:
                    await wait_for(at_follower, 15)
                    with pytest.raises(FileUnavailableError):
                        await values_from(at_follower, 0)
                owner.kill()
                await append(at_owner, 15, 20)
                assert await cluster.owner() is follower
                assert await values_from(at_owner, 10) == list(range(10, 20))
                async with at_owner.subscribe(shard=SHARD, start=Start.earliest()) as old:
                    proxy.pass_all()
                    assert await taken(old, 20) == list(range(20))
