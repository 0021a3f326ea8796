"""A check that runs over each new connection decides which unanswered appends are never sent again."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from journal.client import AppendFuture
from journal.client.opening import open_client
from journal.client.reconnection import Reconnection
from journal.protocol import Op
from journal.protocol.errors import ConnectionLostError
from shards.errors import OverloadedError
from tests.client.fake_server import FakeServer
from tests.client.test_client_appends import FAST, appends_seen, stored

pytestmark = pytest.mark.trio


async def test_nothing_is_sent_over_a_new_connection_before_the_check_has_returned() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        shard = server.create("a")
        await client.append("a", [b"before"])
        checking, may_go_on = trio.Event(), trio.Event()

        async def check(reconnection: Reconnection) -> None:
            checking.set()
            await may_go_on.wait()

        server.hold_acks = True
        with client.before_resending(check):
            pending = client.append_nowait("a", [b"unanswered"])
            await appends_seen(server, 2)
            seen_count = len(server.seen)
            await server.kill_connections()
            server.hold_acks = False
            await checking.wait()
            later = client.append_nowait("a", [b"later"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.list_shards)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert [op for op in server.seen[seen_count:] if op not in (Op.HELLO, Op.END_CLIENT)] == []
                may_go_on.set()
            assert [(await one.wait()).base_offset for one in (pending, later)] == [1, 2]
        assert stored(shard) == [b"before", b"unanswered", b"later"]


async def test_a_check_that_fails_is_made_again_over_the_next_connection() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        await client.append("a", [b"before"])
        failures = [OverloadedError("not now"), OverloadedError("not now")]
        checked_count = 0

        async def check(reconnection: Reconnection) -> None:
            nonlocal checked_count
            checked_count += 1
            await reconnection.list_shards()
            if failures:
                raise failures.pop()

        with client.before_resending(check):
            await server.kill_connections()
            await client.append("a", [b"after"])
        assert checked_count == 3


@pytest.mark.parametrize("was_stored", [False, True])
async def test_withdrawn_appends_are_not_sent_again_and_those_behind_them_are_stored_once(was_stored: bool) -> None:
    """Appends that shared a batch with a withdrawn one cannot be sent without it: their outcome is unknown."""
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        shard = server.create("a")
        await client.append("a", [b"before"])
        withdrawn: list[AppendFuture] = []
        batches: list[list[AppendFuture]] = []

        async def check(reconnection: Reconnection) -> None:
            batches.extend(reconnection.unanswered_batches())
            reconnection.withdraw(withdrawn)

        with client.before_resending(check):
            server.hold_acks = True
            if not was_stored:
                server.append_fault = lambda name, batch: OverloadedError("the reply gets lost")
            lost, beside = client.append_nowait("a", [b"lost"]), client.append_nowait("a", [b"beside"])
            await appends_seen(server, 2)
            lost_too, behind = client.append_nowait("a", [b"lost too"]), client.append_nowait("a", [b"behind"])
            withdrawn += [lost, lost_too]
            await server.kill_connections()
            server.hold_acks = False
            server.append_fault = lambda name, batch: None
            await behind.wait()
            for one in (lost, beside, lost_too):
                with pytest.raises(ConnectionLostError, match="it is not known whether it is stored"):
                    await one.wait()
            await client.append("a", [b"after"])
        assert batches == [[lost, beside]]
        assert stored(shard) == [b"before", *([b"lost", b"beside"] if was_stored else []), b"behind", b"after"]
        assert client.unacknowledged_bytes == 0
