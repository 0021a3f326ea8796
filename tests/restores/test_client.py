"""Clients that stay connected, again and again, to one address while the server behind it is restored from a backup.

Before this was mended they dropped every push below the offset that they had reached before the restore. A restore
gives offsets out again, so new records were skipped without a word.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from broker_adapter import Delivery as AdapterDelivery
from broker_adapter import open_adapter
from broker_adapter.engines.journal import JournalAdapter
from journal.client import Client, Delivery, ServerRestored, SessionTimes, Subscription, open_client
from journal.client.address import Address
from journal.client.transport import Transport, open_transport
from journal.protocol.errors import ServerRestoredError
from shards.back_off import BackOff
from shards.errors import StorageError
from shards.format.batch import read_records
from shards.format.record import StoredRecord
from shards.position import Start
from tests.patience import PATIENCE_S
from tests.restores.restorable_server import RestorableServer, restorable_server

pytestmark = pytest.mark.trio

QUICK: dict[str, Any] = {"backoff": BackOff(0.01, 0.1)}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RestorableServer]:
    async with restorable_server(tmp_path) as started:
        yield started


def values_of(delivery: Delivery) -> list[int]:
    records = read_records(delivery.batches, start_offset=delivery.first_offset)
    return [int(one.value) for one in records if isinstance(one, StoredRecord) and one.offset < delivery.next_offset]


async def take(pushed: Any, count: int) -> list[int]:
    """The next values of a subscription or feed; a feed's progress is passed over."""
    taken: list[int] = []
    with trio.fail_after(PATIENCE_S):
        while len(taken) < count:
            item = await pushed.__anext__()
            if isinstance(item, Delivery):
                taken += values_of(item)
                if isinstance(pushed, Subscription):
                    pushed.acknowledge(item)
            elif isinstance(item, AdapterDelivery):
                # A gap would have no value: nothing is missing for these readers.
                taken += [int(one.value) for one in item.records]
    return taken


TARGETS: dict[str, dict[str, Any]] = {"shard": {"shard": "x/a"}, "filter": {"topic_filter": "x/#"}}
KINDS: dict[str, dict[str, Any]] = {
    f"{target}-{name}": {**TARGETS[target], **more}
    for target in TARGETS
    for name, more in {
        "earliest": {"start": Start.earliest()},
        "latest": {"start": Start.latest()},
        "group": {"start": Start.earliest(), "group": "g"},
    }.items()
}
KINDS["shard-offset"] = {"shard": "x/a", "start": Start.offset(0)}


@pytest.mark.slow("restores the server of running clients")
async def test_subscriptions_skipped_the_records_that_got_offsets_of_lost_ones(
    server: RestorableServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Subscriptions of all kinds, and feeds of client and adapter; the new history is longer than the lost one."""
    told: list[ServerRestored] = []
    async with (
        open_client(server.address, on_restored=told.append, **QUICK) as client,
        JournalAdapter(client) as adapter,
        AsyncExitStack() as stack,
    ):
        await server.append("x/a", 0, 0)
        everything: dict[str, Any] = {
            kind: await stack.enter_async_context(client.subscribe(**arguments)) for kind, arguments in KINDS.items()
        }
        everything["feed"] = await stack.enter_async_context(client.follow("x/#"))
        everything["adapter feed"] = await stack.enter_async_context(adapter.follow("x/#", 0))
        everything["adapter shard"] = await stack.enter_async_context(adapter.subscribe("x/a", Start.earliest()))

        async def all_take(numbers: range) -> None:
            expected = [*numbers]
            assert {kind: await take(one, len(expected)) for kind, one in everything.items()} == dict.fromkeys(
                everything, expected
            )

        await server.append("x/a", 0, 5)
        await all_take(range(5))
        await wait_for_cursor(client, 5)
        await server.back_up()
        await server.append("x/a", 5, 5)
        await all_take(range(5, 10))
        await wait_for_cursor(client, 10)
        assert not told
        await server.restore()
        await server.append("x/a", 100, 10)
        await all_take(range(100, 110))
        await server.append("x/a", 110, 1)
        await all_take(range(110, 111))
    assert len(told) == 1
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert any("was restored from a backup" in one for one in warnings)


async def wait_for_cursor(client: Client, offset: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while (cursor := await client.get_cursor("x/a", "group/g")) is None or cursor.offset < offset:
            await trio.sleep(0.01)


@pytest.mark.slow("restores the server of running clients")
async def test_a_subscription_that_is_behind_the_backup_continues_where_it_was(server: RestorableServer) -> None:
    """Nothing that is between its position and the backup may be left out, and nothing comes twice."""
    async with open_client(server.address, **QUICK) as client:
        await server.append("x/a", 0, 5)
        async with (
            client.subscribe(shard="x/a", start=Start.earliest(), credit_bytes=1) as one_shard,
            client.subscribe(topic_filter="x/#", start=Start.earliest(), credit_bytes=1) as by_filter,
        ):
            assert await take(one_shard, 2) == await take(by_filter, 2) == [0, 1]
            await server.back_up()
            await server.append("x/a", 5, 5)
            await server.restore()
            await server.append("x/a", 100, 3)
            expected = [2, 3, 4, 100, 101, 102]
            assert await take(one_shard, 6) == expected
            assert await take(by_filter, 6) == expected


@pytest.mark.slow("restores the server of running clients")
async def test_a_subscription_at_an_offset_beyond_the_backup_skipped_what_came_below_it(
    server: RestorableServer,
) -> None:
    """It began at the end and nothing had come; the new history passed that offset before the client was back."""
    await server.append("x/a", 0, 3)
    await server.back_up()
    await server.append("x/a", 3, 5)
    async with open_client(server.address, **QUICK) as client:
        async with client.subscribe(shard="x/a", start=Start.offset(8)) as subscription:
            await server.set_back()
            await server.start()
            await server.append("x/a", 100, 10)
            assert await take(subscription, 10) == [*range(100, 110)]


@pytest.mark.slow("restores the server of running clients")
async def test_two_restores_while_a_client_was_away_hide_nothing_from_it(server: RestorableServer) -> None:
    """The shard shows only where the newest restore was; the records that differ begin at the one before."""
    may_connect = trio.Event()
    may_connect.set()

    async def connect(nursery: trio.Nursery) -> Transport:
        await may_connect.wait()
        return await open_transport(Address.parse(server.address), nursery)

    await server.append("x/a", 0, 3)
    await server.back_up()
    async with (
        open_client(server.address, connect=connect, times=SessionTimes(connect_timeout_s=600), **QUICK) as client,
        client.subscribe(shard="x/a", start=Start.earliest()) as one_shard,
        client.subscribe(topic_filter="x/#", start=Start.earliest()) as by_filter,
    ):
        await server.append("x/a", 3, 7)
        assert await take(one_shard, 10) == await take(by_filter, 10) == [*range(10)]
        may_connect = trio.Event()
        await server.restore()
        await server.append("x/a", 100, 5)
        await server.back_up()
        await server.append("x/a", 105, 5)
        await server.restore()
        await server.append("x/a", 200, 10)
        may_connect.set()
        expected = [*range(100, 105), *range(200, 210)]
        assert await take(one_shard, 15) == await take(by_filter, 15) == expected


@pytest.mark.slow("restores the server of running clients")
async def test_a_client_that_is_to_end_sends_nothing_to_a_restored_server(server: RestorableServer) -> None:
    """A program that holds more state than subscriptions would write what it knows of a lost history."""
    await server.append("x/a", 0, 3)
    await server.back_up()
    async with open_adapter(server.url, ends_at_restore=True) as adapter:
        cursor = await adapter.commit_cursor("x/a", "mine", 3)
        await server.set_back()
        async with trio.open_nursery() as nursery:
            refused: list[StorageError] = []

            async def call(make: Any) -> None:
                try:
                    await make
                except StorageError as error:
                    refused.append(error)

            nursery.start_soon(call, adapter.append("x/a", [b"lost"]))
            nursery.start_soon(call, adapter.put_state(b"key", b"value"))
            nursery.start_soon(call, adapter.commit_cursor("x/a", "mine", 0, expected_version=cursor.version))
            await trio.testing.wait_all_tasks_blocked()
            await server.start()
            with trio.fail_after(PATIENCE_S):
                failure = await adapter.wait_failed()
        assert isinstance(failure, ServerRestoredError)
        assert [type(error) for error in refused] == [ServerRestoredError] * 3
        with pytest.raises(ServerRestoredError, match="open the store again"):
            await adapter.get_state(b"key")
    async with server.short_client() as client:
        assert await client.get_state(b"key") is None
        assert (await client.describe_shard("x/a")).next_offset == 3
    async with open_adapter(server.url, ends_at_restore=True) as adapter:
        assert (await adapter.describe_shard("x/a")).restored_offset == 3


@pytest.mark.slow("restores the server of running clients")
async def test_a_server_that_only_starts_again_is_not_taken_for_a_restored_one(server: RestorableServer) -> None:
    told: list[ServerRestored] = []
    await server.append("x/a", 0, 1)
    await server.back_up()
    await server.restore()
    async with open_client(server.address, on_restored=told.append, ends_at_restore=True, **QUICK) as client:
        async with client.subscribe(shard="x/a", start=Start.earliest()) as subscription:
            assert await take(subscription, 1) == [0]
            await server.stop()
            await server.start()
            await server.append("x/a", 1, 1)
            assert await take(subscription, 1) == [1]
    assert not told


@pytest.mark.slow("restores the server of running clients")
async def test_another_server_at_the_address_is_read_from_its_beginning(
    server: RestorableServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no restore to report, so its records below the old offset or lsn were skipped without a word."""
    told: list[ServerRestored] = []
    async with (
        open_client(server.address, on_restored=told.append, **QUICK) as client,
        AsyncExitStack() as stack,
    ):
        await server.append("x/a", 0, 0)
        everything: dict[str, Any] = {
            kind: await stack.enter_async_context(client.subscribe(**arguments)) for kind, arguments in KINDS.items()
        }
        everything["feed"] = await stack.enter_async_context(client.follow("x/#"))
        await server.append("x/a", 0, 10)
        for one in everything.values():
            assert await take(one, 10) == [*range(10)]
        first_node = client.server.node_id if client.server else ""
        # A subscription to a shard that does not exist is over.
        for kind in [kind for kind in everything if kind.startswith("shard")]:
            del everything[kind]
        await server.be_replaced()
        await server.append("x/a", 100, 3)
        for one in everything.values():
            assert await take(one, 3) == [100, 101, 102]
    assert [(one.former_node_id, one.common_lsn) for one in told] == [(first_node, 0)]
    assert any("another server answers at the address" in one.getMessage() for one in caplog.records)


@pytest.mark.slow("waits for a client to see what is wrong")
async def test_a_client_that_is_to_end_sends_nothing_to_another_server(server: RestorableServer) -> None:
    await server.append("x/a", 0, 3)
    async with open_adapter(server.url, ends_at_restore=True) as adapter:
        await server.be_replaced()
        with trio.fail_after(PATIENCE_S), pytest.raises(ServerRestoredError, match="no common history"):
            await adapter.put_state(b"key", b"value")
    async with server.short_client() as client:
        assert await client.get_state(b"key") is None
