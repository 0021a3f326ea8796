"""What sessions promise when the journal server is killed too, between any two steps or in the middle of one.

The server is a process of its own that gets SIGKILL and starts again on its data directory and port. It does so while
the history goes on, so the next steps find it away, coming back, or there. Clients are asked to be patient only: a
publish that the outage hits is still acknowledged in the end, on the same connection.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import HealthCheck, Phase, example, given, settings

from broker_adapter import StorageAdapter
from broker_adapter.engines.journal import JournalAdapter
from broker_adapter.mqtt.connection import connection
from broker_adapter.mqtt.session import SessionSettings
from journal.client import open_client
from shards.back_off import BackOff
from tests.mqtt.cluster.processes import Process, journal_server
from tests.mqtt.contract.history import BROKERS, STEPS, History, Step
from tests.mqtt.contract.severed_brokers import SeveredBrokers
from tests.ports import free_port

PATIENCE_S = 30.0
TRIED_AGAIN_S = 0.1
SESSIONS = SessionSettings(
    renew_interval_s=0.3,
    yield_timeout_s=0.3,
    open_timeout_s=PATIENCE_S,
    save_interval_s=0.1,
    timer_interval_s=0.1,
    max_backoff_s=TRIED_AGAIN_S,
)


@pytest.fixture(scope="module", autouse=True)
def short_goodbye() -> Iterator[None]:
    """A broker that has lost its store cannot store its sessions when it stops: it must not wait long for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_GRACE_S", 0.1)
        yield


CRASH: st.SearchStrategy[Step] = st.one_of(
    st.just(("crash_server",)),
    # The server dies in the middle of another step.
    st.tuples(st.just("crash_server_amid"), st.integers(0, 20), STEPS).map(lambda step: (*step[:2], *step[2])),
)


def histories(max_size: int, max_crashes: int) -> st.SearchStrategy[list[Step]]:
    """Some steps, a crash of the server, some steps and so on; each crash costs the time of a start."""
    some = st.lists(STEPS, max_size=max_size)
    crashes = st.lists(st.tuples(CRASH, some), min_size=1, max_size=max_crashes)
    return st.builds(
        lambda first, rest: [*first, *(step for crash, more in rest for step in (crash, *more))], some, crashes
    )


class KilledServer:
    """The server, and what kills it and has it start again meanwhile."""

    def __init__(self, process: Process, tasks: trio.Nursery) -> None:
        self._process = process
        self._tasks = tasks
        self._is_up = trio.Event()

    async def start(self) -> None:
        await trio.to_thread.run_sync(self._process.start)
        self._is_up.set()

    async def crash(self) -> None:
        """Kill it, as soon as it is up; it starts again while the caller goes on."""
        await self._is_up.wait()
        self._is_up = trio.Event()
        await trio.to_thread.run_sync(self._process.end, signal.SIGKILL)
        self._tasks.start_soon(self.start)


class ServerHistory(History):
    """A history with steps that crash the server."""

    def __init__(self, cluster: SeveredBrokers, server: KilledServer, tasks: trio.Nursery) -> None:
        super().__init__(cluster, tasks, patience_s=PATIENCE_S)
        self._server = server

    async def crash_server(self) -> None:
        await self._server.crash()

    async def crash_server_amid(self, delay_ms: int, name: str, *arguments: int | str | bool) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(getattr(self, name), *arguments)
            await trio.sleep(delay_ms / 1000)
            await self._server.crash()


@asynccontextmanager
async def open_store(port: int) -> AsyncIterator[StorageAdapter]:
    async with (
        open_client(f"127.0.0.1:{port}", backoff=BackOff(0.05, TRIED_AGAIN_S)) as client,
        JournalAdapter(client) as adapter,
    ):
        yield adapter


async def play(history: list[Step]) -> None:
    with tempfile.TemporaryDirectory(prefix="killed-server-") as directory:
        port = free_port()
        process = journal_server(Path(directory), port)
        try:
            async with trio.open_nursery() as tasks:
                server = KilledServer(process, tasks)
                await server.start()
                cluster = SeveredBrokers(
                    partial(open_store, port), tasks, session_settings=SESSIONS, patience_s=PATIENCE_S
                )
                await cluster.start(BROKERS)
                await ServerHistory(cluster, server, tasks).play(history)
                await cluster.stop()
        finally:
            process.end(signal.SIGKILL)


PUBLISHED_AND_LEFT: list[Step] = [
    ("connect", 1, 0, False),
    ("subscribe", 1, "#", 2),
    ("publish", 0, 1, "a", 2),
    ("crash_server",),
    ("crash", 0),
    ("connect", 1, 2, False),
    ("crash_server_amid", 2, "publish", 0, 2, "a", 2),
    ("retain", 1, 1, "c", 1),
]


@pytest.mark.slow("kills servers")
@settings(
    max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@example(PUBLISHED_AND_LEFT)
@given(history=histories(max_size=10, max_crashes=2))
def test_sessions_keep_their_promises(history: list[Step]) -> None:
    trio.run(play, history)


@pytest.mark.long
@pytest.mark.timeout(0)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories(max_size=20, max_crashes=5))
def test_sessions_keep_their_promises_in_long_histories(history: list[Step]) -> None:
    trio.run(play, history)
