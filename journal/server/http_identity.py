"""The sender of an HTTP request: its address, its credentials, and its principal."""

from __future__ import annotations

import base64
import binascii

import attrs
from starlette.requests import Request

from journal.access.authorization import Principal
from journal.access.quotas import Meter
from journal.net.origins import Origins
from journal.protocol.errors import AuthenticationError
from journal.server.login import Login
from shards.errors import StorageError


class OriginRefusedError(StorageError):
    """A web page sent a request that its origin is not allowed to send."""

    code = "origin_refused"


@attrs.frozen
class HttpIdentity:
    """The sender of one request."""

    principal: Principal
    meter: Meter | None


async def identity_of(request: Request, admission: Login) -> HttpIdentity:
    """Authenticate the sender of a request, and wait until its quota allows the request.

    Raises:
        AuthenticationError: The credentials are missing or not valid.
    """
    peer = peer_of(request)
    try:
        credentials = _credentials_of(request)
    except AuthenticationError:
        admission.refused(None, peer)
        raise
    authorization = (request.headers.get("authorization") or "").strip()
    try:
        asker = HttpIdentity(*await admission.identify(credentials, peer))
    except AuthenticationError:
        admission.http_senders.invalid(authorization)
        raise
    if authorization and asker.principal.name:
        admission.http_senders.valid(authorization, asker.principal.name)
    if asker.meter is not None:
        await asker.meter.wait()
        asker.meter.spend(1, 0)
    return asker


def check_page(request: Request, origins: Origins) -> None:
    """Refuse requests of web pages that may not send them: by their origin, and by a host name that may be theirs.

    Raises:
        OriginRefusedError: It is such a request.
    """
    if refusal := origins.refusal(request.headers.get("origin"), request.headers.get("host", "")):
        raise OriginRefusedError(refusal)


def peer_of(request: Request) -> str:
    """``HOST:PORT`` of the sender; empty if it is not known."""
    client = request.client
    return "" if client is None else f"{client.host}:{client.port}"


def _credentials_of(request: Request) -> dict[str, str] | None:
    """The credentials in the Authorization header; None without one.

    Raises:
        AuthenticationError: The header's scheme is not supported.
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
