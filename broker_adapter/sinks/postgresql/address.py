"""Address of a PostgreSQL server: parsing of the setting ``url``, output without the password, lookup of hosts."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

import psycopg
import trio
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from journal.settings.values import ConfigurationError

_PORT: Final = "5432"


def read_url(url: str) -> dict[str, str]:
    """The parameters in a URL or connection string, by libpq's names.

    Raises:
        ConfigurationError: It is not valid. The message does not show it, because it may contain a password.
    """
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error:
        given = None
    if given is None or _is_torn(given):
        raise ConfigurationError(
            "url cannot be parsed by libpq; write it like postgresql://user@host:5432/database "
            "(with %XX for special characters) or host=... user=... dbname=..."
        )
    return given


def _is_torn(given: Mapping[str, str]) -> bool:
    """Whether parts of a URL are in the wrong place, as with a password that contains ``@`` or ``/``."""
    hosts, ports = given.get("host", "").split(","), given.get("port", "").split(",")
    return (
        any("@" in host[1:] for host in hosts)
        or any(port and not port.isdecimal() for port in ports)
        or "@" in given.get("dbname", "")
    )


def with_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """The parameters that libpq would use: those of the environment (PGHOST and so on), replaced by those given."""
    found = {
        option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val is not None
    }
    return {**found, **given}


def show(parameters: Mapping[str, str]) -> str:
    """The address for messages: ``postgresql://user@host:port/database``."""
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "local socket").split(",")
    ports = _ports(parameters, len(hosts))
    places = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in zip(hosts, ports, strict=False)
    )
    user = parameters.get("user", "")
    return f"postgresql://{user}{'@' if user else ''}{places}/{parameters.get('dbname') or user}"


async def look_up(parameters: Mapping[str, str]) -> dict[str, str]:
    """Parameters with the addresses of all hosts, so that connecting never waits for name servers.

    Raises:
        OSError: None of the hosts is known.
    """
    found = dict(parameters)
    if not found.get("host") or found.get("hostaddr"):
        return found
    hosts = found["host"].split(",")
    places: list[tuple[str, str, str]] = []
    failure: OSError | None = None
    for host, port in zip(hosts, _ports(found, len(hosts)), strict=False):
        if not host or host.startswith(("/", "@")):
            places.append((host, "", port))  # a socket in the file system
            continue
        try:
            addresses = await trio.socket.getaddrinfo(host, port or _PORT, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = OSError(f"the host {host!r} is not known: {error.strerror or error}")
            continue
        places += [(host, str(address[4][0]), port) for address in addresses]
    if not places and failure is not None:
        raise failure
    found["host"], found["hostaddr"], found["port"] = (",".join(parts) for parts in zip(*places, strict=True))
    return found


def _ports(parameters: Mapping[str, str], count: int) -> list[str]:
    ports = (parameters.get("port") or _PORT).split(",")
    return ports * count if len(ports) == 1 else ports
