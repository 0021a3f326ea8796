"""The same promises over a journal server, whose connection breaks and comes again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.mqtt.delivery import DeliveryLimits
from tests.mqtt.delivery.delivering import delivering
from tests.mqtt.delivery.test_groups import join, take_shares
from tests.mqtt.delivery.test_model import LIMITS, histories
from tests.server.serving import serving


class Line:
    """A TCP connection to the server that can be cut."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._scopes: set[trio.CancelScope] = set()

    def cut(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def handle(self, client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", self._server_port)
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(self._forward, client, server)
                await self._forward(server, client)
                nursery.cancel_scope.cancel()
        self._scopes.discard(scope)

    async def _forward(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(65536):
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


@asynccontextmanager
async def cuttable(tmp_path: Path) -> AsyncIterator[tuple[StorageAdapter, Line, StorageAdapter]]:
    """A store over a line that can be cut, the line, and the store over one that stays."""
    async with serving(tmp_path) as served, background_tasks() as tasks:
        line = Line(served.ports["tcp"])
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tasks.start_soon(trio.serve_listeners, line.handle, [listener])
        port = listener.socket.getsockname()[1]
        async with (
            open_adapter(f"journal://127.0.0.1:{port}") as store,
            open_adapter(f"journal://{served.address}") as publisher,
        ):
            yield store, line, publisher


@pytest.mark.few_cases(1, "a model of many sessions for each setting")
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(2))
async def test_every_session_gets_its_messages_once_in_order_whatever_happens(
    limits: str, seed: int, tmp_path: Path
) -> None:
    async with cuttable(tmp_path) as (store, _, publisher):
        async with histories(store, seed, LIMITS[limits], publisher=publisher) as history:
            with trio.fail_after(40):
                await history.run(80)


@pytest.mark.parametrize("seed", range(2))
async def test_no_subscriber_misses_a_message_when_the_connection_is_cut(seed: int, tmp_path: Path) -> None:
    async with cuttable(tmp_path) as (store, line, publisher):
        async with delivering(store, publisher=publisher, limits=DeliveryLimits(max_queued_count=20)) as broker:
            sessions = [broker.session(f"c{number}") for number in range(3)]
            for number, session in enumerate(sessions):
                await session.subscribe("a/#", f"b/{number}")
            received: list[list[bytes]] = [[] for _ in sessions]
            for number in range(120):
                await broker.publish(f"a/{number % 5}", b"%d" % number)
                if number % 40 == 10 + seed:
                    line.cut()
                if number % 3 == 0:
                    received[0] += [one.message.payload for one in sessions[0].inbox.take(9)]
            for session, of_session in zip(sessions, received, strict=True):
                of_session += await session.take(120 - len(of_session))
                assert sorted(map(int, of_session)) == list(range(120))
                await session.assert_silent()


async def test_shares_survive_a_cut_and_nothing_is_left_over(tmp_path: Path) -> None:
    async with cuttable(tmp_path) as (store, line, publisher):
        async with delivering(store, publisher=publisher) as broker, delivering(publisher) as other:
            sessions = [broker.session("1"), other.session("2")]
            for session in sessions:
                await join(session, "a/+")
            for number in range(40):
                await broker.publish("a/1", b"%d" % number)
                if number == 20:
                    line.cut()
            taken: set[bytes] = set()
            while len(taken) < 40:
                taken.update(*await take_shares(sessions, 1))


async def test_messages_that_the_store_cannot_read_are_named_and_hold_up_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that was away passes over what a missing file held: the log names the shard and the file."""
    async with serving(tmp_path) as served, open_adapter(f"journal://{served.address}") as store:
        async with delivering(store) as broker:
            for topic in ("a/1", "a/2"):
                await broker.publish(topic, topic.encode())
            lost = (await store.describe_shard("a/1")).shard_id
    [log] = tmp_path.glob(f"**/log/*/{lost:016x}-*.log")
    log.unlink()
    async with serving(tmp_path) as served, open_adapter(f"journal://{served.address}") as store:
        async with delivering(store) as broker:
            session = broker.session("c", position_lsn=0)
            await session.restore({"a/#": 0})
            assert await session.take(1) == [b"a/2"]
            assert broker.distributor.statistics().gaps == 1
            again = broker.session("again", position_lsn=0)
            await again.restore({"a/#": 0})
            assert await again.take(1) == [b"a/2"]
            assert broker.distributor.statistics().gaps == 1
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    [error] = [error for error in errors if "shard 'a/1' is not delivered any more" in error]
    assert str(log) in error
