"""A log store in trouble while servers run on it: they stall, say what is wrong, and go on by themselves.

Real servers over SeaweedFS and PostgreSQL: credentials are revoked, the store is full, does not answer, or is killed.
`OUTAGE_S=300` makes outages as long.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio
from psycopg import sql

from journal.client.client import Client
from journal.client.opening import open_client
from journal.client.session_keeper import SessionTimes
from journal.server.cluster.takeover import SILENT_S
from shards.errors import LogUnavailableError
from shards.format.batch import read_records
from shards.format.record import Record
from shards.model import Mode, ShardConfig
from tests.cluster.servers import Cluster, Server, running
from tests.cluster.test_follower_reads import until
from tests.cluster.test_real_stores import postgresql, seaweed
from tests.cluster.test_refusals import refusal
from tests.cluster.writing import SHARD, Writer, check, connected, value_of, writing
from tests.faults.disks import fill, mounted
from tests.logstore import seaweed_server
from tests.logstore.faulty_proxy import Fault, RandomFaults, all_meet, creates_meet, open_proxies, open_proxy, through
from tests.logstore.seaweed_server import SeaweedServer
from tests.patience import PATIENCE_S
from tests.sinks import postgresql_server
from tests.sinks.postgresql_server import PostgresqlServer

OUTAGE_S: Final = float(os.environ.get("OUTAGE_S", "2"))
MOVED_S: Final = 20.0
"""So soon clients are at the next owner: a request that is not answered is trouble after 5 s, and an owner that says so
is lost after 3.5 s. The rest is for slow machines."""

ASIDE: Final = "aside"
SECRETS: Final = (seaweed_server.SECRET, postgresql_server.PASSWORD, "Signature=", "AWS4-HMAC")
KICKED: Final = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s"


@pytest.fixture(scope="module")
def own_seaweed() -> Iterator[SeaweedServer]:
    """One that tests may kill, and whose keys they may change."""
    with seaweed_server.own_server() as server:
        yield server


def place_in(server: SeaweedServer, name: str) -> tuple[str, Mapping[str, str]]:
    keys = {"AWS_ACCESS_KEY_ID": seaweed_server.KEY, "AWS_SECRET_ACCESS_KEY": seaweed_server.SECRET}
    return f"s3://{seaweed_server.BUCKET}/{name}", {"AWS_ENDPOINT_URL": server.endpoint, **keys}


async def wait_until(condition: Callable[[], bool]) -> None:
    """Until something is true that is asked for in a thread."""
    with trio.fail_after(PATIENCE_S + OUTAGE_S):
        while not await trio.to_thread.run_sync(condition):
            await trio.sleep(0.05)


def says(server: Server, reason: str) -> bool:
    """Whether a server tells a reason, as well as that it is not ready, and counts."""
    status, text = server.get("/readyz")
    return status == 503 and reason in text and "journal_log_unavailable 1.0" in server.get("/metrics")[1]


async def values_at(client: Client) -> list[int]:
    """The first numbers of the shard."""
    reply = await client.fetch(SHARD, 0)
    return [value_of(record) for record in read_records(reply.batches, start_offset=0)]


@attrs.frozen
class Stall:
    """Two servers of a store that are in trouble, and clients of theirs."""

    cluster: Cluster
    owner: Server
    follower: Server
    writer: Writer
    at_owner: Client
    at_follower: Client

    async def require(self, reason: str, *, of_follower: str = "") -> None:
        """Both say what is wrong, acknowledge nothing, and can be read. The calls of clients wait, or say why not."""
        await wait_until(lambda: says(self.owner, reason))
        assert "see that it runs" in (told := self.owner.get("/readyz")[1]) or "make the cred" in told or "free" in told
        count = len(self.writer.acknowledged)
        if of_follower:
            await wait_until(lambda: says(self.follower, "no read of the log store has succeeded for"))
            await wait_until(lambda: of_follower in self.follower.log.read_text())
        await wait_until(lambda: reason in self.owner.log.read_text())
        with pytest.raises(LogUnavailableError, match="reads continue"):
            await self.at_owner.create_shard("other", ShardConfig(mode=Mode.FILE))
        with trio.move_on_after(1) as waiting:
            await self.at_owner.append(ASIDE, [Record(value=b"waits")])
        assert waiting.cancelled_caught
        for client in (self.at_owner, self.at_follower):
            assert (await values_at(client))[:20] == list(range(20))
        await trio.sleep(OUTAGE_S)
        assert len(self.writer.acknowledged) == count

    async def require_over(self) -> None:
        """They go on by themselves, and no secret was written down."""
        await self.writer.wait_for(20)
        assert self.owner.is_running
        assert self.follower.is_running
        await wait_until(lambda: any(server.owns_store() for server in self.cluster.servers))
        for server in self.cluster.servers:
            for secret in SECRETS:
                assert secret not in server.log.read_text()


@contextmanager
def small_disk(server: PostgresqlServer) -> Iterator[Path]:
    """The tables that are made from now on lie on a disk of 8 MiB; the logs of the database lie elsewhere."""
    place, space = server.directory / "small", sql.Identifier("small")
    database = sql.Identifier(postgresql_server.DATABASE)
    with mounted(place, "-t", "tmpfs", "-o", f"size=8m,mode=0700,uid={server.user_id}", "none"):
        with server.connect() as admin:
            admin.execute(sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(space, sql.Literal(str(place))))
            admin.execute(sql.SQL("GRANT CREATE ON TABLESPACE {} TO PUBLIC").format(space))
            admin.execute(sql.SQL("ALTER DATABASE {} SET default_tablespace = {}").format(database, space))
        try:
            yield place
        finally:
            server.clear_database()
            with server.connect() as admin:
                admin.execute(sql.SQL("DROP TABLESPACE {}").format(space))


@asynccontextmanager
async def stalling(
    directory: Path,
    store: str,
    environment: Mapping[str, str],
    each: Sequence[Mapping[str, str]] = (),
) -> AsyncIterator[Stall]:
    """Two servers, one of which owns the store, and a writer that nothing acknowledged is lost of in the end."""
    once = SessionTimes(first_within_s=PATIENCE_S)
    with running(directory, 2, store, environment, each=each) as cluster:
        async with writing(cluster) as writer:
            await writer.wait_for(20)
            owner = await cluster.owner()
            (follower,) = await cluster.followers(owner)
            async with (
                connected(cluster) as at_owner,
                open_client(f"journal://{follower.tcp}?read=follower", times=once) as at_follower,
            ):
                await at_owner.create_shard(ASIDE, ShardConfig(mode=Mode.FILE))
                await until(at_follower, lambda values: len(values) >= 20)
                yield Stall(cluster, owner, follower, writer, at_owner, at_follower)
            await writer.wait_for(1)
        await check(cluster, writer)


@pytest.mark.slow("starts SeaweedFS and two servers, and changes its keys")
async def test_servers_whose_key_of_the_object_store_is_revoked_wait_for_it(
    tmp_path: Path, own_seaweed: SeaweedServer
) -> None:
    async with stalling(tmp_path, *place_in(own_seaweed, "revoked")) as stall:
        own_seaweed.allow(secret="another")
        await stall.require("SignatureDoesNotMatch", of_follower="SignatureDoesNotMatch")
        own_seaweed.allow()
        await stall.require_over()


@pytest.mark.slow("starts SeaweedFS and two servers, and changes what a key may do")
async def test_servers_that_may_not_write_to_the_object_store_any_more_wait_for_it(
    tmp_path: Path, own_seaweed: SeaweedServer
) -> None:
    async with stalling(tmp_path, *place_in(own_seaweed, "unwritable")) as stall:
        own_seaweed.allow(actions=("Read", "List"))
        await stall.require("AccessDenied")
        own_seaweed.allow()
        await stall.require_over()


@pytest.mark.slow("starts PostgreSQL and two servers, and changes a password")
async def test_servers_whose_password_of_the_database_is_changed_wait_for_it(tmp_path: Path) -> None:
    store, environment = postgresql()
    role = sql.Identifier(postgresql_server.USER)
    with postgresql_server.shared_server().connect() as admin:

        def change(password: str) -> None:
            admin.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(password)))

        async with stalling(tmp_path, store, environment) as stall:
            change("another")
            try:
                # Connections that there are are not asked again.
                admin.execute(KICKED, [postgresql_server.USER])
                await stall.require("password authentication failed", of_follower="password authentication failed")
            finally:
                change(postgresql_server.PASSWORD)
            await stall.require_over()


@pytest.mark.slow("starts PostgreSQL and two servers, and changes what a role may do")
async def test_servers_that_may_not_insert_into_the_database_any_more_wait_for_it(tmp_path: Path) -> None:
    store, environment = postgresql()
    role = sql.Identifier(postgresql_server.USER)
    async with stalling(tmp_path, store, environment) as stall:
        with postgresql_server.shared_server().connect(postgresql_server.DATABASE) as admin:
            admin.execute("ALTER TABLE journal_log OWNER TO postgres")
            admin.execute(sql.SQL("GRANT SELECT, DELETE ON journal_log TO {}").format(role))
            await stall.require("permission denied for table journal_log")
            admin.execute(sql.SQL("GRANT INSERT ON journal_log TO {}").format(role))
        await stall.require_over()


@pytest.mark.slow("starts SeaweedFS")
def test_a_wrong_key_is_refused_at_the_start_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, environment = seaweed()
    for name, value in {**environment, "AWS_SECRET_ACCESS_KEY": "mistyped"}.items():
        monkeypatch.setenv(name, value)
    told = refusal(Server(tmp_path, store, "x"))
    assert "the log store cannot be used: create of" in told
    assert "answered 403 Forbidden (SignatureDoesNotMatch: " in told
    assert "make the credentials of this server valid there" in told
    assert not any(secret in told for secret in ("mistyped", *SECRETS))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    assert "answered 403 Forbidden (InvalidAccessKeyId: " in refusal(Server(tmp_path, store, "x"))


@pytest.mark.slow("starts PostgreSQL")
def test_a_wrong_password_is_refused_at_the_start_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = postgresql()
    monkeypatch.setenv("PGPASSWORD", "mistyped")
    told = refusal(Server(tmp_path, store, "x"))
    assert 'password authentication failed for user "bridge"' in told
    assert "make the credentials of this server valid there" in told
    assert not any(secret in told for secret in ("mistyped", *SECRETS))


@pytest.mark.slow("starts SeaweedFS and two servers")
async def test_servers_wait_for_space_in_a_bucket_that_is_full(tmp_path: Path) -> None:
    store, environment = seaweed()
    with open_proxy(environment["AWS_ENDPOINT_URL"]) as proxy:
        async with stalling(tmp_path, store, through(proxy, environment)) as stall:
            proxy.decide = creates_meet(Fault.FULL)
            await stall.require("answered 507")
            # The follower would take over, but there is no space for its claim either.
            await wait_until(lambda: "the store could not be taken over: " in stall.follower.log.read_text())
            proxy.pass_all()
            await stall.require_over()


@pytest.mark.slow("starts PostgreSQL and two servers, and fills a disk up")
async def test_servers_wait_for_space_on_the_disk_of_a_database(tmp_path: Path) -> None:
    store, environment = postgresql()
    server = postgresql_server.shared_server()
    with small_disk(server) as disk:
        async with stalling(tmp_path, store, environment) as stall:
            fill(disk / "ballast")
            await stall.require("No space left on device")
            (disk / "ballast").unlink()
            await stall.require_over()


@pytest.mark.slow("starts SeaweedFS and two servers, and waits until requests are not answered for long")
@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.UNANSWERED, Fault.DENIED])
async def test_clients_of_an_owner_that_alone_has_lost_its_log_store_are_soon_at_the_next_one(
    tmp_path: Path, fault: Fault
) -> None:
    """It seemed to be ready for a minute, as long as its attempts lasted. Clients stayed there, also after that.

    What it had under way may be in the log: it is there once, as is what its clients send again.
    """
    store, environment = seaweed()
    with open_proxies(environment, 2) as (proxies, each):
        async with stalling(tmp_path, store, environment, each) as stall:
            proxy = proxies[stall.cluster.servers.index(stall.owner)]
            proxy.decide = all_meet(fault)
            cut_at = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_until, lambda: says(stall.owner, "the log store"))
                await stall.writer.wait_for(20)
                await stall.at_owner.append(ASIDE, [Record(value=b"after")])
                assert trio.current_time() - cut_at < MOVED_S
            assert await stall.cluster.owner() is stall.follower
            # Its own store still does not answer.
            await wait_until(lambda: f"{stall.follower.tcp} owns the store" in stall.owner.get("/readyz")[1])
            proxy.pass_all()
            assert await stall.cluster.followers(stall.follower) == [stall.owner]
            await wait_until(lambda: "the log store answers again" in stall.owner.log.read_text())
            assert await stall.cluster.owner() is stall.follower


@pytest.mark.slow("starts SeaweedFS and two servers, and kills one")
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_or_there_twice_over_a_log_store_of_which_every_third_request_meets_a_fault(
    tmp_path: Path, seed: int
) -> None:
    """Requests are carried out and answered 500 or not at all, carried out late, or not carried out."""
    store, environment = seaweed()
    with open_proxy(environment["AWS_ENDPOINT_URL"]) as proxy:
        with running(tmp_path, 2, f"{store}?slots=4", through(proxy, environment)) as cluster:
            async with writing(cluster) as writer:
                await writer.wait_for(20)
                proxy.decide = RandomFaults(random.Random(seed), share=0.3)
                await writer.wait_for(100)
                (await cluster.owner()).kill()
                await writer.wait_for(100)
                await wait_until(lambda: all(proxy.counts[fault] for fault in RandomFaults.CREATES))
                proxy.pass_all()
                proxy.finish()
                await writer.wait_for(1)
            await check(cluster, writer)


@pytest.mark.slow("starts SeaweedFS and two servers, and waits until an owner would be lost")
async def test_an_outage_of_the_log_store_does_not_end_with_a_takeover(tmp_path: Path) -> None:
    store, environment = seaweed()
    with open_proxy(environment["AWS_ENDPOINT_URL"]) as proxy:
        async with stalling(tmp_path, store, through(proxy, environment)) as stall:
            proxy.refuse()
            await stall.require(
                "no connection to the store at http://", of_follower="no connection to the store at http://"
            )
            # Longer than an owner may be silent.
            await trio.sleep(SILENT_S + 1)
            proxy.listen()
            await stall.require_over()
            assert await stall.cluster.owner() is stall.owner
            assert "journal_cluster_epoch 1.0" in stall.owner.get("/metrics")[1]


@pytest.mark.slow("starts SeaweedFS and two servers, kills SeaweedFS, and waits until it is well again")
@pytest.mark.timeout(300 + OUTAGE_S)
async def test_servers_go_on_by_themselves_when_the_object_store_was_killed(
    tmp_path: Path, own_seaweed: SeaweedServer
) -> None:
    async with stalling(tmp_path, *place_in(own_seaweed, "killed")) as stall:
        own_seaweed.kill()
        await stall.require("Connection refused", of_follower="Connection refused")
        own_seaweed.spawn()
        await trio.to_thread.run_sync(own_seaweed.wait_ready)
        await stall.require_over()


@pytest.mark.slow("starts PostgreSQL and two servers, and kills PostgreSQL")
@pytest.mark.timeout(300 + OUTAGE_S)
async def test_servers_go_on_by_themselves_when_the_database_was_killed(tmp_path: Path) -> None:
    store, environment = postgresql()
    database = postgresql_server.shared_server()
    async with stalling(tmp_path, store, environment) as stall:
        database.kill()
        await stall.require("Connection refused", of_follower="Connection refused")
        database.start()
        await stall.require_over()
