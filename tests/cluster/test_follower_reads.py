"""Servers that follow the owner of their store serve reads to clients that ask for them, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from broker_adapter.opening import open_adapter
from journal.client import Client
from journal.client.opening import open_client
from journal.client.session_keeper import SessionTimes
from journal.protocol.errors import AuthenticationError, NotAuthorizedError
from shards.errors import InvalidRequestError, NotOwnerError
from shards.format.batch import read_records
from shards.format.record import Record
from shards.model import Mode, SegmentKind, ShardConfig
from shards.position import Start
from tests.cluster.servers import Cluster, Server, running
from tests.cluster.writing import SHARD, check, value_of, writing
from tests.patience import PATIENCE_S
from tests.server.people import PASSWORD, write_people, write_server_certificate

OTHER = "plant/other"
PATIENT = SessionTimes(first_within_s=PATIENCE_S)


@asynccontextmanager
async def reading_from(server: Server, address: str = "") -> AsyncIterator[Client]:
    """A client that reads from this server, as soon as it serves reads as a follower."""
    address = address or f"{server.tcp}?read=follower"
    with trio.fail_after(PATIENCE_S):
        while True:
            async with open_client(address) as client:
                assert client.server is not None
                if client.server.is_follower:
                    break
            await trio.sleep(0.05)
    async with open_client(address) as client:
        yield client


async def values_of(client: Client, shard: str = SHARD, offset: int = 0) -> list[int]:
    """All records that a server shows from an offset on."""
    values: list[int] = []
    while True:
        reply = await client.fetch(shard, offset)
        values += [value_of(record) for record in read_records(reply.batches, start_offset=offset)]
        if reply.next_offset == offset:
            return values
        offset = reply.next_offset


async def until(client: Client, is_there: Callable[[list[int]], bool], shard: str = SHARD) -> None:
    with trio.fail_after(PATIENCE_S):
        while not (await client.list_shards(shard) and is_there(await values_of(client, shard))):
            await trio.sleep(0.05)


async def two(cluster: Cluster) -> tuple[Server, Server]:
    """The owner and the follower."""
    owner = await cluster.owner()
    (follower,) = await cluster.followers(owner)
    return owner, follower


@pytest.mark.smoke
@pytest.mark.slow("starts two servers")
async def test_a_follower_serves_reads_of_all_kinds(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.FILE, index_keys=True, index_tags=True))
            for number in range(10):
                record = Record(value=b"%d" % number, key=b"k%d" % (number % 2), tags=(f"t{number % 5}",))
                await writer.append(SHARD, [record])
            async with reading_from(follower) as reader:
                await until(reader, lambda values: values == list(range(10)))
                assert [shard.name for shard in await reader.list_shards("#")] == [SHARD]
                info = await reader.describe_shard(SHARD)
                assert info == await writer.describe_shard(SHARD)
                assert await values_of(reader, offset=7) == [7, 8, 9]
                assert await reader.find_offset(SHARD, Start.time(0)) == 0
                assert await reader.find_offset(SHARD, Start.latest()) == 10
                by_key = await reader.fetch_indexed(SHARD, "key", b"k1")
                assert [value_of(record) for record in read_records(by_key.batches)] == [1, 3, 5, 7, 9]
                by_tag = await reader.fetch_indexed(SHARD, "tag", b"t3")
                assert [value_of(record) for record in read_records(by_tag.batches)] == [3, 8]
                latest = await reader.fetch_indexed(SHARD, "key", b"k0", latest=True)
                assert [value_of(record) for record in read_records(latest.batches)] == [8]

                # A fetch that waits is answered with what comes next.
                found: list[int] = []

                async def wait() -> None:
                    reply = await reader.fetch(SHARD, 10, max_wait_s=30)
                    found.extend(value_of(record) for record in read_records(reply.batches))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await writer.append(SHARD, [Record(value=b"10")])
                assert found == [10]


@pytest.mark.slow("starts two servers")
async def test_without_the_option_a_follower_sends_clients_to_the_owner(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with reading_from(follower), open_client(follower.tcp) as client:
            await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            assert client.server is not None
            assert not client.server.is_follower
            assert owner.is_running


@pytest.mark.slow("starts two servers")
async def test_a_follower_refuses_everything_but_reads(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            await writer.append(SHARD, [Record(value=b"0")])
            await until(reader, lambda values: values == [0])
            refused: list[Callable[[], Awaitable[object]]] = [
                lambda: reader.create_shard(OTHER, ShardConfig(mode=Mode.FILE)),
                lambda: reader.open_shard(OTHER, create=ShardConfig(mode=Mode.FILE)),
                lambda: reader.delete_shard(SHARD),
                lambda: reader.trim(SHARD, 1),
                lambda: reader.set_mode(SHARD, Mode.MEMORY),
                lambda: reader.roll(SHARD),
                lambda: reader.commit_cursor(SHARD, "reader", 1),
                lambda: reader.get_cursor(SHARD, "reader"),
                lambda: reader.put_state(b"key", b"value"),
                lambda: reader.get_state(b"key"),
                lambda: reader.open_producer("producer"),
                lambda: reader.end_client("other"),
                reader.status,
            ]
            for request in refused:
                with pytest.raises(NotOwnerError) as error:
                    await request()
                assert error.value.owner == owner.tcp
            with pytest.raises(InvalidRequestError, match="read=follower"):
                await reader.append(SHARD, [Record(value=b"1")])
            with pytest.raises(InvalidRequestError, match="read=follower"):
                async with reader.subscribe(shard=SHARD, group="g"):
                    pass
            # The connection goes on, and nothing was changed.
            assert await values_of(reader) == [0]
            assert await values_of(writer) == [0]
            assert [shard.name for shard in await writer.list_shards("#")] == [SHARD]


@pytest.mark.slow("kills the owner of two servers, and waits for the takeover")
async def test_what_was_read_from_a_follower_is_read_after_its_takeover_over_the_same_connection(
    tmp_path: Path,
) -> None:
    with running(tmp_path, 2) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(20)
            owner, follower = await two(cluster)
            async with reading_from(follower) as reader:
                session = await reader.wait_connected()
                await until(reader, lambda values: len(values) >= 20)
                seen = 0
                for is_killed in (False, True):
                    if is_killed:
                        owner.kill()
                    with trio.fail_after(PATIENCE_S):
                        until_offset = seen + 40
                        while seen < until_offset:
                            info = await reader.describe_shard(SHARD)
                            assert info.next_offset >= seen, "a reader saw history go back"
                            seen = info.next_offset
                            shown = await values_of(reader)
                            assert shown[:seen] == list(range(seen)), "a reader saw history go back"
                            seen = len(shown)
                assert await cluster.owner() is follower
                assert await reader.wait_connected() is session, "the connection did not go on"
                # The owner also changes things for it now.
                await reader.commit_cursor(SHARD, "reader", 1)
        await check(cluster, writer)


@pytest.mark.slow("suspends the owner of two servers, and waits for the takeover")
async def test_a_follower_serves_reads_while_the_owner_is_suspended(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(20)
            owner, follower = await two(cluster)
            async with reading_from(follower) as reader:
                await until(reader, lambda values: len(values) >= 20)
                owner.send(signal.SIGSTOP)
                assert len(await values_of(reader)) >= 20
                await writer.wait_for(20)
                owner.send(signal.SIGCONT)
                # Until it has noticed that it is not the owner any more, what is read from it may be old.
                await cluster.followers(follower)
        await check(cluster, writer)


@pytest.mark.slow("starts three servers")
async def test_a_follower_that_is_stopped_sends_its_readers_to_another_server(tmp_path: Path) -> None:
    with running(tmp_path, 3) as cluster:
        owner = await cluster.owner()
        first, second = await cluster.followers(owner)
        async with open_client(owner.tcp) as writer:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            await writer.append(SHARD, [Record(value=b"0")])
        for follower in (first, second):
            async with reading_from(follower) as reader:
                await until(reader, lambda values: values == [0])
        async with open_client(f"{first.tcp},{second.tcp}?read=follower") as reader:
            assert await values_of(reader) == [0]
            first.send(signal.SIGTERM)
            assert await trio.to_thread.run_sync(first.wait) == 0
            with trio.fail_after(PATIENCE_S):
                assert await values_of(reader) == [0]
            assert second.is_running


@pytest.mark.slow("starts two servers, and writes more than a follower keeps in memory")
async def test_reads_go_on_when_a_follower_opens_its_directory_again(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        large = bytes(100_000)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            seen = 0
            for number in range(40):
                await writer.append(SHARD, [Record(value=b"%d" % number), Record(value=large)])
                with trio.fail_after(PATIENCE_S):
                    while (await _next_offset(reader)) < 2 * number + 2:
                        await trio.sleep(0.01)
                info = await reader.describe_shard(SHARD)
                assert info.next_offset >= seen
                seen = info.next_offset
                for place in (0, number):
                    reply = await reader.fetch(SHARD, 2 * place)
                    assert value_of(read_records(reply.batches, start_offset=2 * place)[0]) == place
        assert "ends reads" in follower.log.read_text(), "the follower never opened its directory again"


async def _subscribe(client: Client, shard: str) -> None:
    async with client.subscribe(shard=shard):
        pass


async def _next_offset(client: Client) -> int:
    shards = await client.list_shards(SHARD)
    return shards[0].next_offset if shards else 0


@pytest.mark.slow("starts two servers, and waits for a conversion")
async def test_a_follower_reads_converted_segments(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            await writer.append(SHARD, [Record(value=b"%d" % number) for number in range(50)])
            await writer.convert(SHARD)
            with trio.fail_after(PATIENCE_S):
                while True:
                    shards = await reader.list_shards(SHARD, with_segments=True)
                    if shards and SegmentKind.PARQUET in {segment.kind for segment in shards[0].segments}:
                        break
                    await trio.sleep(0.05)
            assert await values_of(reader) == list(range(50))


@pytest.mark.slow("starts two servers")
async def test_records_that_the_owner_has_in_memory_are_not_shown_by_a_follower(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer, reading_from(follower) as reader:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.MEMORY))
            await writer.create_shard(OTHER, ShardConfig(mode=Mode.FILE))
            for number in range(5):
                await writer.append(SHARD, [Record(value=b"%d" % number)])
            await writer.append(OTHER, [Record(value=b"durable")])
            with trio.fail_after(PATIENCE_S):
                while not (shards := {info.name: info for info in await reader.list_shards("#")}) or (
                    OTHER not in shards or not shards[OTHER].next_offset
                ):
                    await trio.sleep(0.05)
            assert (shards[SHARD].next_offset, await values_of(reader)) == (0, [])
            # An offset that the owner has told may be ahead of the follower: there is nothing to read yet.
            reply = await reader.fetch(SHARD, 5)
            assert (reply.batches, reply.next_offset) == (b"", 5)


@pytest.mark.slow("starts two servers")
async def test_the_rights_of_a_client_are_the_same_on_a_follower(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    config = tmp_path / "server.toml"
    rules = (
        f'access.users_file = "{people["access__users_file"]}"\n'
        '[[access.rules]]\nprincipal = "admin"\npermission = "allow"\ntopics = "#"\n'
    )
    anna = '[[access.rules]]\nprincipal = "anna"\npermission = "allow"\ntopics = "open"\n'
    config.write_text(rules + anna)

    def address(user: str, server: Server, options: str = "") -> str:
        return f"{user}@{server.tcp}?password_file={tmp_path / 'password'}{options}"

    with running(tmp_path, 2, config=config) as cluster:
        owner, follower = await two(cluster)
        async with open_client(address("admin", owner)) as writer:
            for name in ("open", "closed"):
                await writer.create_shard(name, ShardConfig(mode=Mode.FILE, index_keys=True))
                await writer.append(name, [Record(value=b"0", key=b"key")])
        async with reading_from(follower, address("admin", follower, "&read=follower")) as reader:
            await until(reader, lambda values: values == [0], "open")
            await until(reader, lambda values: values == [0], "closed")
        # The metrics of its clients are for those who may see them; why it is not ready is for all.
        assert follower.get("/metrics")[0] == 401
        assert "follows it" in follower.get("/readyz")[1]
        with pytest.raises(AuthenticationError):
            async with open_client(f"{follower.tcp}?read=follower"):
                pass
        async with reading_from(follower, address("anna", follower, "&read=follower")) as reader:
            assert await values_of(reader, "open") == [0]
            assert [shard.name for shard in await reader.list_shards("open")] == ["open"]
            refused: list[Callable[[], Awaitable[object]]] = [
                lambda: reader.fetch("closed", 0),
                lambda: reader.fetch_indexed("closed", "key", b"key"),
                lambda: reader.find_offset("closed", Start.latest()),
                lambda: reader.describe_shard("closed"),
                lambda: reader.open_shard("closed"),
                lambda: reader.list_shards("#"),
                lambda: _subscribe(reader, "closed"),
            ]
            for request in refused:
                with pytest.raises(NotAuthorizedError):
                    await request()
            # What is taken from a user ends on a follower, too.
            async with reader.subscribe(shard="open", start=Start.earliest()) as subscription:
                assert (await anext(subscription)).shard == "open"
                config.write_text(rules)
                follower.send(signal.SIGHUP)
                with trio.fail_after(PATIENCE_S), pytest.raises(NotAuthorizedError):
                    while True:
                        await anext(subscription)
            with trio.fail_after(PATIENCE_S), pytest.raises(NotAuthorizedError):
                while True:
                    await reader.fetch("open", 0)
                    await trio.sleep(0.05)


@pytest.mark.slow("starts two servers")
async def test_a_follower_serves_reads_over_tls(tmp_path: Path) -> None:
    files = write_server_certificate(tmp_path)
    config = tmp_path / "server.toml"
    config.write_text(
        f'[tls]\ncertificate_file = "{files["tls__certificate_file"]}"\nkey_file = "{files["tls__key_file"]}"\n'
    )
    authority = files["tls__client_ca_file"]
    with running(tmp_path, 2, config=config) as cluster:
        places = ",".join(server.tcp for server in cluster.servers)
        async with open_client(f"journals://{places}?ca_file={authority}", times=PATIENT) as writer:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            await writer.append(SHARD, [Record(value=b"0")])
            with trio.fail_after(PATIENCE_S):
                is_follower = False
                while not is_follower:
                    async with open_client(
                        f"journals://{places}?ca_file={authority}&read=follower", times=PATIENT
                    ) as reader:
                        assert reader.server is not None
                        if is_follower := reader.server.is_follower:
                            await until(reader, lambda values: values == [0])


@pytest.mark.slow("starts two servers")
async def test_an_adapter_reads_from_a_follower_and_writes_to_the_owner(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with reading_from(follower):
            pass
        async with open_adapter(f"{cluster.address}?read=follower") as adapter:
            await adapter.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
            await adapter.append(SHARD, [b"0", b"1"])
            with trio.fail_after(PATIENCE_S):
                while not await adapter.list_shards(SHARD):
                    await trio.sleep(0.05)
            result = await adapter.read(SHARD, 0, max_wait_s=30)
            assert [value_of(record) for record in result.records] == [0, 1]
            follower.kill()
            # No follower is left: the owner serves reads, too.
            await adapter.append(SHARD, [b"2"])
            result = await adapter.read(SHARD, 0)
            assert [value_of(record) for record in result.records] == [0, 1, 2]
            assert owner.is_running


@pytest.mark.slow("starts two servers")
async def test_a_follower_tells_how_far_it_is_behind(tmp_path: Path) -> None:
    with running(tmp_path, 2) as cluster:
        owner, follower = await two(cluster)
        async with open_client(owner.tcp) as writer:
            await writer.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        with trio.fail_after(PATIENCE_S):
            while "journal_follower_lag_lsns 0.0" not in follower.get("/metrics")[1]:
                await trio.sleep(0.05)
        assert "journal_follower 1.0" in follower.get("/metrics")[1]
        assert "journal_follower 0.0" in owner.get("/metrics")[1]
