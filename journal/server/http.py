"""Health and metrics over HTTP: `/livez`, `/readyz`, `/metrics`; the API of `journal.server.admin` beside them."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from journal.engine import Engine
from journal.server.statistics import ServerStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class EngineCollector:
    """Reads engine and server counters when the metrics page is asked for; nothing is counted twice."""

    def __init__(self, engine: Engine, statistics: ServerStatistics) -> None:
        self._engine = engine
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """All metrics; label sets are small at any number of shards."""
        engine, statistics = self._engine, self._statistics
        storage = engine.config.storage
        yield CounterMetricFamily("journal_appends", "Acknowledged batches.", statistics.appends)
        yield CounterMetricFamily("journal_append_bytes", "Bytes of appended frames received.", statistics.append_bytes)
        yield CounterMetricFamily(
            "journal_fetched_bytes", "Bytes of batches sent to fetches.", statistics.fetched_bytes
        )
        yield CounterMetricFamily(
            "journal_commit_groups", "Commit groups made durable.", engine.committer.groups_committed
        )
        yield CounterMetricFamily("journal_checkpoints", "Checkpoints made.", engine.maintenance.checkpoints)
        yield GaugeMetricFamily("journal_connections", "Open connections.", statistics.connections)
        yield GaugeMetricFamily("journal_shards", "Shards in the catalogue.", len(engine.table.catalogue))
        yield GaugeMetricFamily("journal_subscriptions", "Open subscriptions.", engine.subscriptions.count)
        yield GaugeMetricFamily("journal_committed_lsn", "Newest durable lsn.", engine.committer.committed_lsn)
        yield GaugeMetricFamily("journal_used_bytes", "Bytes of journal files in use.", engine.writer.used_bytes)
        yield GaugeMetricFamily("journal_budget_bytes", "Bytes the journal may use.", storage.journal_budget_bytes)
        yield GaugeMetricFamily("journal_tail_bytes", "Memory of unflushed tails.", engine.table.tail_pool.held_bytes)
        yield GaugeMetricFamily(
            "journal_memory_bytes", "Memory of memory segments.", engine.table.memory_pool.held_bytes
        )
        yield GaugeMetricFamily(
            "journal_disk_full",
            "1 while appends are refused for lack of disk.",
            int(engine.maintenance.disk_full is not None),
        )
        yield GaugeMetricFamily("journal_failed", "1 after a storage failure.", int(engine.failure is not None))
        errors = CounterMetricFamily("journal_refusals", "Refused requests by error code.", labels=["code"])
        for code, count in sorted(statistics.errors.items()):
            errors.add_metric([code], count)
        yield errors


def make_app(
    engine: Engine, statistics: ServerStatistics, is_stopping: Callable[[], bool], api: Sequence[BaseRoute] = ()
) -> Starlette:
    """The HTTP application of a server; ``api`` are the routes of its administration."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, statistics))

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        reasons = []
        if is_stopping():
            reasons.append("the server is stopping")
        if engine.failure is not None:
            reasons.append(str(engine.failure))
        if engine.maintenance.disk_full is not None:
            reasons.append(str(engine.maintenance.disk_full))
        if reasons:
            return PlainTextResponse("not ready: " + "; ".join(reasons) + "\n", status_code=503)
        return PlainTextResponse("ready\n")

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics), *api])


class _Config(Config):
    """Hypercorn's settings, with certificates that were read already."""

    tls: ssl.SSLContext | None = None

    @property
    def ssl_enabled(self) -> bool:
        return self.tls is not None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        return self.tls


async def serve_http(app: Starlette, sock: socket.socket, stop: trio.Event, tls: ssl.SSLContext | None = None) -> None:
    """Serve on a listening socket until told to stop."""
    config = _Config()
    config.tls = tls
    # Hypercorn closes what it listens on, so it gets a descriptor of its own.
    config.bind = [f"fd://{os.dup(sock.fileno())}"]
    config.graceful_timeout = 0.5
    config.accesslog = None
    config.errorlog = logging.getLogger("journal.http")
    await serve(app, config, shutdown_trigger=stop.wait, mode="asgi")  # type: ignore[arg-type]
