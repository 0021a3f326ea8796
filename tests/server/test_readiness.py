"""`/readyz` says why not: from before the server has recovered until after its last checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio
from trio.testing import MockClock

import journal.server.process as process_module
from journal.engine import Engine, open_engine
from journal.server.http import Front
from journal.server.observers import PATIENCE_S, why_not_ready
from journal.server.process import run_server
from journal.settings.server import ListenConfig, OnFailure, ServerConfig
from journal.telemetry.loop_monitor import LoopLag
from shards.errors import DiskFullError
from tests import patience
from tests.server.serving import Served, serving, small_config


async def ask(port: int, path: str = "/readyz") -> tuple[int, str]:
    async with httpx.AsyncClient(timeout=patience.PATIENCE_S) as browser:
        reply = await browser.get(f"http://127.0.0.1:{port}{path}")
        return reply.status_code, reply.text


async def asked(served: Served) -> tuple[int, str]:
    return await ask(served.ports["http"])


async def test_a_server_that_takes_appends_is_ready(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert await asked(served) == (200, "ready\n")


async def test_a_disk_that_is_nearly_full_is_a_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, storage__disk_reserve_bytes=1 << 43, storage__flush_interval_ms=60_000) as served:
        served.engine.parts.checkpointer.look_at_disk()
        status, text = await asked(served)
        assert status == 503
        assert "storage.disk_reserve_bytes" in text
        assert "journal_ready 0.0" in (await ask(served.ports["http"], "/metrics"))[1]
        served.engine.parts.disk_space.full = None
        assert (await asked(served))[0] == 200


async def test_all_reasons_are_given(tmp_path: Path) -> None:
    async with serving(tmp_path, storage__on_failure=OnFailure.READ_ONLY) as served:
        served.engine.parts.committer.fail(OSError(5, "Input/output error"))
        # The background work looks at the disk once more and ends.
        await trio.testing.wait_all_tasks_blocked()
        served.engine.parts.disk_space.full = DiskFullError("the disk is full")
        _, text = await asked(served)
        assert "the disk is full" in text
        assert "Input/output error" in text
        assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ({"journal_budget_bytes": 0, "journal_file_bytes": 0}, "storage.journal_budget_bytes"),
        ({"tail_budget_bytes": 0}, "storage.tail_budget_bytes"),
    ],
)
async def test_appends_that_are_held_back_for_long_are_a_reason(
    tmp_path: Path, autojump_clock: MockClock, storage: dict[str, int], reason: str
) -> None:
    """A moment of back-pressure must not take a node out of service; a disk that cannot keep up must."""
    async with open_engine(str(tmp_path / "data"), small_config()) as engine:
        room = [False]
        loop_lag = LoopLag(lambda: room[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop_lag.run)
            _set_budgets(engine, storage)
            await trio.sleep(PATIENCE_S - 1)
            assert why_not_ready(engine, loop_lag, is_stopping=False) == []
            await trio.sleep(2)
            (why,) = why_not_ready(engine, loop_lag, is_stopping=False)
            assert "held back for 6 s" in why
            assert reason in why
            room[0] = True
            await trio.sleep(0.2)
            assert why_not_ready(engine, loop_lag, is_stopping=False) == []
            nursery.cancel_scope.cancel()


def _set_budgets(engine: Engine, storage: dict[str, int]) -> None:
    engine.parts.config = attrs.evolve(engine.config, storage=attrs.evolve(engine.config.storage, **storage))


async def test_before_there_is_an_engine_everything_is_answered_with_why_not() -> None:
    stopping = False
    front = Front(lambda: stopping)
    transport = httpx.ASGITransport(app=front)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://journal") as browser:
        assert (await browser.get("/livez")).status_code == 200
        for path in ("/readyz", "/admin/shards", "/"):
            reply = await browser.get(path)
            assert reply.status_code == 503
            assert "recovering" in reply.text
        page = (await browser.get("/metrics")).text
        assert "journal_ready 0.0" in page
        assert "process_resident_memory_bytes" in page
        stopping = True
        assert "stopping" in (await browser.get("/readyz")).text


@pytest.fixture
def default_log() -> object:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("default_log")
async def test_a_server_says_that_it_is_recovering_and_that_it_is_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open, may_close, closing = trio.Event(), trio.Event(), trio.Event()

    @asynccontextmanager
    async def slow_engine(path: str, config: ServerConfig, **options: Any) -> AsyncIterator[Engine]:
        await may_open.wait()
        async with open_engine(path, config, **options) as engine:
            yield engine
            closing.set()
            with trio.CancelScope(shield=True):
                await may_close.wait()

    monkeypatch.setattr(process_module, "open_engine", slow_engine)
    bound: dict[str, int] = {}
    real_bind = process_module.bind

    def bind(*args: object, **options: object) -> object:
        sockets = real_bind(*args, **options)  # type: ignore[arg-type]
        bound.update({name: sock.getsockname()[1] for name, sock in sockets.items()})
        return sockets

    monkeypatch.setattr(process_module, "bind", bind)
    listen = ListenConfig(tcp="127.0.0.1:0", websocket="", http="127.0.0.1:0")
    config = attrs.evolve(small_config(), listen=listen)
    with trio.fail_after(patience.PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_server, config, str(tmp_path / "data"))
            await trio.testing.wait_all_tasks_blocked(0.05)
            status, text = await ask(bound["http"])
            assert (status, "recovering" in text) == (503, True)
            assert (await ask(bound["http"], "/livez"))[0] == 200
            may_open.set()
            while (await ask(bound["http"]))[0] != 200:
                await trio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            await closing.wait()
            status, text = await ask(bound["http"])
            assert (status, "stopping" in text) == (503, True)
            assert (await ask(bound["http"], "/livez"))[0] == 200
            may_close.set()
