"""The console's files and their HTTP headers. The page itself is in `static/`.

The files are the same for all clients and contain no data: the page authenticates at the administration API and at the
WebSocket listener, from which it gets its data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"
_ANY_HOST: Final = "*"

# Topics and payloads are not trusted. The page does not use them as markup, and the browser forbids it: with trusted
# types required and no policy allowed, assigning a text as HTML is an error.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'{listener}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    # The browser checks for a change each time, which is answered with 304 if there is none.
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def console_routes(websocket_port: int | None) -> list[BaseRoute]:
    """The routes of the console.

    Args:
        websocket_port: Port of the JSON sub-protocol; None if there is no such listener.
    """
    routes: list[BaseRoute] = []
    for file in files(__package__).joinpath("static").iterdir():
        path = "/" if file.name == _INDEX else f"/console/{file.name}"
        kind = _TYPES[file.name[file.name.rindex(".") :]]
        routes.append(Route(path, _page(file.read_bytes(), kind, websocket_port)))

    async def listeners(request: Request) -> Response:
        return Response(
            msgspec.json.encode({"websocket_port": websocket_port}),
            media_type="application/json",
            headers={**_HEADERS, "Cache-Control": "no-store"},
        )

    routes.append(Route("/console/listeners.json", listeners))
    return routes


def _page(content: bytes, kind: str, websocket_port: int | None) -> Callable[[Request], Awaitable[Response]]:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    async def answer(request: Request) -> Response:
        headers = {
            **_HEADERS,
            "ETag": etag,
            "Content-Security-Policy": policy(request.headers.get("host", ""), websocket_port),
        }
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return answer


def policy(host: str, websocket_port: int | None) -> str:
    """The Content-Security-Policy of a page that was requested under this Host.

    It names the WebSocket listener, which has another port, so that ``'self'`` does not cover it.
    """
    if websocket_port is None:
        return _POLICY.format(listener="")
    name = _host_name(host)
    return _POLICY.format(listener=f" ws://{name}:{websocket_port} wss://{name}:{websocket_port}")


def _host_name(host: str) -> str:
    """The name in a Host header; any host if a policy cannot contain it, such as an IPv6 address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return _ANY_HOST
    is_plain = name.replace("-", "").replace(".", "").isalnum() and name.isascii()
    return name if is_plain else _ANY_HOST
