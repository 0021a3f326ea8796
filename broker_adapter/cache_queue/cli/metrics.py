"""`journal queue metrics`: metrics of all queues for Prometheus, printed once or served over HTTP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, ask
from command_line.boundary import UsageError
from command_line.output import write_text

if TYPE_CHECKING:
    import socket

    from broker_adapter.adapter import StorageAdapter


def metrics_command(
    *,
    listen: Annotated[str, Parameter(help="Serve them at http://HOST:PORT/metrics until Ctrl-C.")] = "",
    server: StoreOption = DEFAULT_SERVER,
) -> None:
    """Print the metrics of all queues in the format of Prometheus, or serve them.

    It covers all queues of the store, whichever brokers write and drive them: one exporter is enough.
    """
    if not listen:
        sys.stdout.buffer.write(ask(server, _page))
        return
    from journal.net.address import parse_address
    from journal.net.listening import bind

    try:
        parse_address(listen)
    except ValueError as error:
        raise UsageError(f"--listen {listen!r} is not an address; write it like 127.0.0.1:7423") from error
    sockets = bind({"metrics": listen}, main="metrics")
    try:
        ask(server, lambda adapter: _serve(adapter, sockets["metrics"]))
    finally:
        for sock in sockets.values():
            sock.close()


async def _page(adapter: StorageAdapter) -> bytes:
    from broker_adapter.cache_queue.cli.prometheus import page
    from broker_adapter.cache_queue.cli.view_reader import view_at_once
    from broker_adapter.cache_queue.queue import list_queues

    return page(await view_at_once(adapter, await list_queues(adapter)))


async def _serve(adapter: StorageAdapter, sock: socket.socket) -> None:
    import signal

    import trio

    from broker_adapter.background_tasks import background_tasks
    from broker_adapter.errors import StorageError
    from journal.net.listening import listens_at
    from journal.telemetry.exposition import CONTENT_TYPE
    from journal.telemetry.http_pages import HttpPages, Reply, Request

    async def metrics(_request: Request) -> Reply:
        try:
            return Reply(await _page(adapter), content_type=CONTENT_TYPE)
        except StorageError as error:
            return Reply(f"the store does not answer: {error}\n".encode(), 503)

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with background_tasks() as tasks:
            tasks.start_soon(HttpPages({"/metrics": metrics}).serve, sock)
            write_text(f"ready metrics={listens_at(sock)}")
            async for _ in signals:
                return
