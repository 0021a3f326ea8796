"""An issuer of JSON Web Tokens with real keys, and a web service that has them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import attrs
import jwt
import trio
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from journal.telemetry.http_pages import HttpPages, Reply, Request, Resource

AUDIENCE = "mqtt"
SECRET = b"a secret of more than 32 bytes, for HS256"


@cache
def private_key(algorithm: str, number: int = 0) -> Any:
    """A key; the same one for the same number."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65_537, 2048)
    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else SECRET


def public_jwk(algorithm: str, key_id: str, number: int = 0) -> dict[str, Any]:
    """A key as an entry of a key set."""
    key = private_key(algorithm, number)
    handler = jwt.get_algorithm_by_name(algorithm)
    public = key if algorithm == "HS256" else key.public_key()
    return {**json.loads(handler.to_jwk(public)), "kid": key_id, "alg": algorithm, "use": "sig"}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


STANDARD = (public_jwk("RS256", "r"), public_jwk("ES256", "e"), public_jwk("HS256", "h"))
"""A key of each kind; ``h`` only counts in a file."""


def token(
    user: str | None = "anna",
    *,
    algorithm: str = "ES256",
    key_id: str | None = None,
    number: int = 0,
    expires_in_s: float = 600,
    **claims: Any,
) -> str:
    """A signed token; a claim of None is left out."""
    all_claims = {"sub": user, "aud": AUDIENCE, "exp": int(time.time() + expires_in_s), **claims}
    kept = {name: value for name, value in all_claims.items() if value is not None}
    kid = {"RS256": "r", "ES256": "e", "HS256": "h"}[algorithm] if key_id is None else key_id
    return jwt.encode(kept, private_key(algorithm, number), algorithm, {"kid": kid} if kid else None)


@attrs.define
class Service:
    """A web service on the loopback.

    Attributes:
        port: Its port.
        reply: Answers requests; it may be replaced.
        requests: All requests so far.
    """

    port: int
    reply: Callable[[Request], Awaitable[Reply]]
    requests: list[Request] = attrs.field(factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/path?secret=hidden"

    def answers(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Answer everything like this from now on."""

        async def reply(_request: Request) -> Reply:
            return Reply(body, status, "application/json", headers=headers)

        self.reply = reply


@asynccontextmanager
async def service(body: bytes = b"{}") -> AsyncIterator[Service]:
    """A web service for the length of the block."""
    sock = socket.create_server(("127.0.0.1", 0))
    with sock:

        async def page(request: Request) -> Reply:
            served.requests.append(request)
            return await served.reply(request)

        served = Service(sock.getsockname()[1], page)
        served.answers(body)
        pages = HttpPages({"/path": Resource({"GET": page, "POST": page}, 1 << 20)})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pages.serve, sock)
            yield served
            nursery.cancel_scope.cancel()
