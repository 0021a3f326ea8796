"""Web pages that may connect to the server: the rules for the Origin and Host headers of browsers. Pure.

A page of any site can make a browser connect to a server on the user's machine or network. The browser sends the page's
site in Origin, and the page cannot change it; other programs send no Origin. A page may also have its own name resolved
to the server's address; then only Host shows it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

ANY_ORIGIN = "*"
_LOCAL_NAME = "localhost"


def parse_origin(text: str) -> str:
    """Return an origin as browsers send it: ``https://console.example.com``, with a port unless it is the default.

    Raises:
        ValueError: It is not an origin, or more than one.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or text != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"{text!r} is not an origin")
    if "@" in parts.netloc:
        raise ValueError(f"{text!r} is not an origin")
    _ = parts.port  # raises for a port that is no number
    return text.lower()


class Origins:
    """The allowed pages: those of this machine's loopback addresses, and those that are listed.

    Args:
        listed: Origins, or `ANY_ORIGIN`.
    """

    def __init__(self, listed: Collection[str] = ()) -> None:
        self._listed = frozenset(listed)
        self._any = ANY_ORIGIN in self._listed
        self._hosts = frozenset(urlsplit(origin).hostname for origin in self._listed - {ANY_ORIGIN})

    def allows(self, origin: str | None) -> bool:
        """Whether a connection from a page of this origin is allowed; None for a program that is not a browser."""
        if origin is None or self._any:
            return True
        return origin.lower() in self._listed or _is_loopback_origin(origin)

    def allows_host(self, host: str) -> bool:
        """Whether a request with this Host header cannot come from a page whose name was resolved to this server.

        Addresses are safe, and listed pages are trusted; any other name may belong to any site.
        """
        if self._any:
            return True
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (name == _LOCAL_NAME or _is_address(name) or name in self._hosts)

    def origin_refusal(self, origin: str | None) -> str:
        """Why a request from a page of this origin is refused; empty if it is allowed."""
        if self.allows(origin):
            return ""
        return f"pages of {origin} may not send requests; list it in listen.websocket_origins to allow them"

    def refusal(self, origin: str | None, host: str) -> str:
        """Why a request is refused, by its origin or by a host name that may be the page's; empty if it is allowed."""
        if refusal := self.origin_refusal(origin):
            return refusal
        if self.allows_host(host):
            return ""
        return (
            f"the host name {host!a} is not known to be this server's; use its address, or list its origin in "
            f"listen.websocket_origins"
        )


def _is_loopback_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or name is None:
        return False
    return name == _LOCAL_NAME or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
