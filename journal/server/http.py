"""Health, metrics and administration over HTTP. Contents are from `observers`, `metrics`, `journal.server.admin`."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import trio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from journal.server.admin.problems import problem_response
from journal.server.http_connections import Encryption, serve_connections
from journal.server.http_senders import HttpSenders
from journal.server.metrics import CONTENT_TYPE, StoreMember, recovering_page
from journal.server.observers import RECOVERING, STOPPING, Observers

Message: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

Identity: TypeAlias = Callable[[Mapping[str, str]], dict[str, str]]


def no_identity(_: Mapping[str, str]) -> dict[str, str]:
    """What a server on its own tells other servers."""
    return {}


def make_app(
    why_not_ready: Callable[[], list[str]],
    metrics_page: Callable[[], bytes],
    pages: Sequence[BaseRoute] = (),
    observers: Observers | None = None,
    identity: Identity = no_identity,
    *,
    tells_why: bool = False,
) -> Starlette:
    """The HTTP application of a server.

    Args:
        why_not_ready: Returns the reasons why the server is not ready; an empty list if it is.
        metrics_page: Returns the text of the metrics.
        pages: The routes of the administration and of the console.
        observers: Decides which clients may see reasons and metrics; None for all.
        identity: Returns the headers of `/livez` that tell other servers of a store who answers, and what it owns. It
            gets the headers of the request.
        tells_why: Show the reasons to all.
    """

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n", headers=identity(request.headers))

    async def readyz(request: Request) -> Response:
        reasons = why_not_ready()
        if reasons and not tells_why and observers is not None and not await observers.may_look(request):
            reasons = ["the reasons are shown to clients that may read the metrics"]
        return _not_ready(reasons) if reasons else PlainTextResponse("ready\n")

    async def metrics(request: Request) -> Response:
        if observers is not None and (refusal := await observers.refusal(request)) is not None:
            return problem_response(refusal)
        return Response(metrics_page(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics), *pages],
        exception_handlers={404: _no_page},
    )


def _no_page(request: Request, error: Exception) -> Response:
    return PlainTextResponse(
        "there is no such page; pages are / (the console), /livez, /readyz, /metrics and those of "
        "/api/v1/openapi.json\n",
        status_code=404,
    )


def _not_ready(reasons: list[str]) -> Response:
    return PlainTextResponse("not ready: " + "; ".join(reasons) + "\n", status_code=503)


class Front:
    """The application that answers from the moment the address is bound: first while recovering, then the server's.

    Args:
        is_stopping: Whether the server is stopping.
        identity: See `make_app`.
        member: This server as one of those that share a store; None for a server on its own.

    Attributes:
        app: The application that answers now.
    """

    def __init__(
        self,
        is_stopping: Callable[[], bool],
        identity: Identity = no_identity,
        member: StoreMember | None = None,
    ) -> None:
        def why_not() -> list[str]:
            if is_stopping():
                return [STOPPING]
            return [(member.why_waiting() if member is not None else "") or RECOVERING]

        async def not_yet(request: Request) -> Response:
            return _not_ready(why_not())

        def unready_app(page: Callable[[], bytes], observers: Observers | None = None) -> Starlette:
            app = make_app(why_not, page, (), observers, identity, tells_why=True)
            app.router.routes.append(Route("/{path:path}", not_yet))
            return app

        self._unready_app = unready_app
        self._starting = unready_app(recovering_page(member))
        self.app: App = self._starting

    def serve_reads(self, metrics_page: Callable[[], bytes], observers: Observers) -> None:
        """The server follows the owner of its store, and serves reads: its clients count in its metrics.

        Args:
            metrics_page: Returns the text of the metrics.
            observers: Decides which clients may see them.
        """
        self.app = self._unready_app(metrics_page, observers)

    def start_again(self) -> None:
        """The server serves nothing any more. It follows the owner of its store, perhaps after it was the owner."""
        self.app = self._starting

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        await self.app(scope, receive, send)


async def serve_http(
    app: App,
    sock: socket.socket,
    stop: trio.Event,
    encryption: Encryption | None = None,
    senders: HttpSenders | None = None,
) -> None:
    """Serve on a listening socket until ``stop`` is set.

    Args:
        app: The application.
        sock: The listening socket.
        stop: Ends the listener.
        encryption: How connections are encrypted; None for no encryption.
        senders: Knows the principals of credentials; None if all requests count for their address.
    """
    config = Config()
    config.graceful_timeout = 0.5
    config.accesslog = None
    config.errorlog = logging.getLogger("journal.http")
    await serve_connections(app, config, sock, stop, encryption or Encryption(), senders)  # type: ignore[arg-type]
