"""Who sends an HTTP request: where it comes from, what it gives to be let in, and which principal that is."""

from __future__ import annotations

import base64
import binascii

import attrs
from starlette.requests import Request

from journal.access.authorization import Principal
from journal.access.quotas import Meter
from journal.protocol.errors import AuthenticationError
from journal.server.login import Login


@attrs.frozen
class HttpIdentity:
    """Who sent one request."""

    principal: Principal
    meter: Meter | None


async def asker_of(request: Request, admission: Login) -> HttpIdentity:
    """Find out who sent a request, and wait until it may have another one.

    Raises:
        AuthenticationError: It is nobody.
    """
    peer = peer_of(request)
    try:
        credentials = _credentials_of(request)
    except AuthenticationError:
        admission.refused(None, peer)
        raise
    asker = HttpIdentity(*await admission.identify(credentials, peer))
    if asker.meter is not None:
        await asker.meter.wait()
        asker.meter.spend(1, 0)
    return asker


def peer_of(request: Request) -> str:
    """``HOST:PORT``; empty if that is not known."""
    client = request.client
    return "" if client is None else f"{client.host}:{client.port}"


def _credentials_of(request: Request) -> dict[str, str] | None:
    """What its Authorization header holds; None without one.

    Raises:
        AuthenticationError: It is none that is understood here.
    """
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return {"token": value.strip()}
    if scheme.lower() == "basic":
        try:
            user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if colon:
            return {"user": user, "password": password}
    raise AuthenticationError("the Authorization header is neither a Bearer token nor Basic credentials")
