"""Which web pages may talk to the server: the rule for the Origin and Host that a browser sends. Pure.

A page on any site can make its reader's browser connect to a server on the reader's own machine or network. The
browser says in Origin which page that is, and the page cannot change it; programs that are no browsers send none. A
page may also have its own name resolved to the server's address; then only Host tells.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

ANY_ORIGIN = "*"
_LOCAL_NAME = "localhost"


def parse_origin(text: str) -> str:
    """Return an origin as browsers write it: ``https://console.example.com``, with a port if it is not the usual one.

    Raises:
        ValueError: It is none, or more than one.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or text != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"{text!r} is no origin")
    if "@" in parts.netloc:
        raise ValueError(f"{text!r} is no origin")
    _ = parts.port  # raises for a port that is no number
    return text.lower()


class Origins:
    """The pages that may: those of this machine's loopback, and those that are listed.

    Args:
        listed: Origins, or `ANY_ORIGIN`.
    """

    def __init__(self, listed: Collection[str] = ()) -> None:
        self._listed = frozenset(listed)
        self._any = ANY_ORIGIN in self._listed
        self._hosts = frozenset(urlsplit(origin).hostname for origin in self._listed - {ANY_ORIGIN})

    def allows(self, origin: str | None) -> bool:
        """Whether a connection from a page of this origin is taken; None: no page asks."""
        if origin is None or self._any:
            return True
        return origin.lower() in self._listed or _is_loopback_origin(origin)

    def allows_host(self, host: str) -> bool:
        """Whether a request for this host (its Host header) can be no page's whose name was made to point here.

        An address is what it is, and a listed page is trusted; any other name may be anybody's.
        """
        if self._any:
            return True
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (name == _LOCAL_NAME or _is_address(name) or name in self._hosts)


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
