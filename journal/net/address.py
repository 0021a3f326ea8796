"""Addresses in settings and commands: ``host:port``."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_MOST_NAME_BYTES: Final = 253


def parse_address(address: str) -> tuple[str, int] | None:
    """Split ``host:port``; None for the empty address, which means "do not listen".

    Raises:
        ValueError: It is neither.
    """
    if not address:
        return None
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+)):(\d{1,5})", address)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(f"{address!r} is not an address")
    host = match[1] or match[2]
    if not match[1] and not _is_name(host):
        raise ValueError(f"{host!r} is not the name of a host")
    return host, int(match[3])


def _is_name(host: str) -> bool:
    """Whether a name can be asked for at all: no part of it is empty or longer than DNS has room for."""
    try:
        return len(host.encode("idna")) <= _MOST_NAME_BYTES
    except UnicodeError:
        return False


def is_loopback_host(host: str) -> bool:
    """Whether only this machine can be reached at a host; False for other names, whose addresses are not known yet."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
