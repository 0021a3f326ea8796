"""Addresses in settings and commands: ``host:port``."""

from __future__ import annotations

import ipaddress
import re


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
    return match[1] or match[2], int(match[3])


def is_loopback_host(host: str) -> bool:
    """Whether only this machine can be reached at a host; False for other names, whose addresses are not known yet."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
