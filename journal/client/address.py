"""Server addresses with the client's identity, as one text. Secrets are never part of the text.

``journals://anna@store.example:7420?password_file=/etc/store.password&ca_file=/etc/store-ca.pem``, for example. Secrets
are in files that the address names, or in the environment; they are read for every connection, so a change applies from
the next connection on. Several servers of one store are separated by commas: ``journal://a:7420,b:7420,c:7420``.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import attrs

from journal.protocol.messages import READ_FOLLOWER
from shards.errors import InvalidRequestError

DEFAULT_PORTS: Final = {"tcp": 7420, "tls": 7420, "ws": 7421, "wss": 7421}
PASSWORD_VARIABLE: Final = "JOURNAL_PASSWORD"  # noqa: S105 the name of a variable
TOKEN_VARIABLE: Final = "JOURNAL_TOKEN"  # noqa: S105 the name of a variable
_SCHEMES: Final = {
    "journal": "tcp",
    "tcp": "tcp",
    "journals": "tls",
    "tls": "tls",
    "journal+ws": "ws",
    "ws": "ws",
    "journal+wss": "wss",
    "wss": "wss",
}
_OPTIONS: Final = ("password_file", "token_file", "ca_file", "certificate_file", "key_file", "read")
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]{0,30}")
_MAX_SECRET_BYTES: Final = 32 * 1024


@attrs.frozen(slots=True)
class Address:
    """Address of a server, and the identity to use there.

    Attributes:
        kind: ``tcp``, ``tls``, ``ws`` or ``wss``.
        path: Path of the WebSocket.
        user: User name; empty if a token or a certificate identifies the client, or no authentication is needed.
        password_file: Its first line is the user's password.
        token_file: Its first line is a bearer token.
        ca_file: Trusted authorities, PEM; empty for those of the system.
        certificate_file: Client certificate, PEM; empty for none.
        key_file: Its private key; empty if it is in the same file.
        read: ``follower`` if the client only reads, and prefers a server that follows the owner of its store; else
            empty.
    """

    kind: str
    host: str
    port: int
    path: str = "/"
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    read: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{host}:{self.port}"

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self.kind in ("tls", "wss")

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``host:port`` or a URL; the port may be left out.

        The schemes are ``journal``, ``journals`` (with TLS), ``journal+ws`` and ``journal+wss`` (with TLS). ``user@``
        may precede the host; at the end ``?`` and any of ``password_file``, ``token_file``, ``ca_file``,
        ``certificate_file`` and ``key_file`` may follow, each with ``=PATH``, and ``read=follower``, separated by
        ``&``.

        Raises:
            InvalidRequestError: It is not such an address. The message contains no part that may be a secret.
        """
        scheme, separator, rest = text.partition("://")
        if not separator:
            scheme, rest = "", text
        kind = _SCHEMES.get(scheme if separator else "journal")
        rest, _, query = rest.partition("?")
        place, slash, path = rest.partition("/")
        user, at, place = place.rpartition("@")
        if ":" in user:
            raise InvalidRequestError(
                f"the address of {place!r} has a password in it, which others could see; write it into a file and name "
                f"that with ?password_file=PATH, or set the environment variable {PASSWORD_VARIABLE}"
            )
        host, _, port = place.rpartition(":")
        if ":" not in place or place.endswith("]"):
            host, port = place, ""
        host = host.strip("[]")
        # An "@" further on may be the end of a password with a slash or question mark in it.
        may_show = "@" not in path and "@" not in query and (not separator or _SCHEME.fullmatch(scheme) is not None)
        if kind is None or not host or not _is_port(port) or (at and not user):
            shown = f" {f'{scheme}{separator}{place}'!r}" if may_show else ""
            raise InvalidRequestError(
                f"address{shown} is none of host:port, journal://host:port and journal+ws://host:port; journals:// "
                "and journal+wss:// are the same with TLS"
            )
        options = cls._options(query, place if may_show else "")
        address = cls(
            kind,
            host,
            int(port) if port else DEFAULT_PORTS[kind],
            slash + path if slash else "/",
            unquote(user),
            **options,
        )
        address._check()
        return address

    @classmethod
    def parse_all(cls, text: str) -> tuple[Address, ...]:
        """Parse an address of one or more servers, whose places are separated by commas: ``journal://a:7420,b:7420``.

        What is before and after the places is the same for all of them.

        Raises:
            InvalidRequestError: It is not such an address.
        """
        scheme, separator, rest = text.rpartition("://") if "://" in text else ("", "", text)
        end = min((at for at in map(rest.find, "/?") if at >= 0), default=len(rest))
        user, at, places = rest[:end].rpartition("@")
        if "," not in places or ":" in user:
            return (cls.parse(text),)
        before, after = f"{scheme}{separator}{user}{at}", rest[end:]
        return tuple(cls.parse(f"{before}{place.strip()}{after}") for place in places.split(","))

    @staticmethod
    def to_write(text: str) -> str:
        """The same text for a client that also writes: without ``read=follower``."""
        place, separator, query = text.partition("?")
        options = [option for option in query.split("&") if option.partition("=")[0] != "read"]
        return place + (separator if any(options) else "") + "&".join(options)

    @staticmethod
    def _options(query: str, place: str) -> dict[str, str]:
        options = dict(parse_qsl(query, keep_blank_values=True))
        for name in options:
            if name not in _OPTIONS:
                told = f"the address of {place!r} has the unknown option {name!r}" if place else "an option is unknown"
                raise InvalidRequestError(f"{told}; known: {', '.join(_OPTIONS)}")
        return options

    def _check(self) -> None:
        problem = ""
        if self.password_file and not self.user:
            problem = "password_file but no user; write user@ before the host"
        elif self.password_file and self.token_file:
            problem = "password_file and token_file; give one of them"
        elif not self.is_encrypted and (self.ca_file or self.certificate_file or self.key_file):
            problem = "certificates but no TLS; write journals:// or journal+wss://"
        elif self.key_file and not self.certificate_file:
            problem = "key_file but no certificate_file"
        elif self.read not in ("", READ_FOLLOWER):
            problem = f"read, which can only be {READ_FOLLOWER}"
        if problem:
            raise InvalidRequestError(f"address {self} has {problem}")

    def credentials(self, environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
        """Credentials for HELLO; None for none.

        Raises:
            InvalidRequestError: A file cannot be read.
        """
        if self.token_file:
            return {"token": _secret_in("token_file", self.token_file)}
        if self.password_file:
            return {"user": self.user, "password": _secret_in("password_file", self.password_file)}
        if self.user:
            password = environment.get(PASSWORD_VARIABLE, "")
            return {"user": self.user, "password": password} if password else {"user": self.user}
        token = environment.get(TOKEN_VARIABLE, "")
        return {"token": token} if token else None

    def tls_context(self) -> ssl.SSLContext:
        """Create the TLS context with the trusted authorities and the client certificate. Blocks on the disk.

        Raises:
            InvalidRequestError: A file cannot be used.
        """
        path = self.ca_file
        try:
            context = ssl.create_default_context(cafile=path or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if path := self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file or None, password=_no_passphrase)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise InvalidRequestError(f"{path!r}, named for {self}, has no usable certificates: {reason}") from error
        return context


def _is_port(text: str) -> bool:
    """Whether a text is a port or empty; only ASCII digits are accepted."""
    return not text or (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535)


def _no_passphrase() -> str:
    # Otherwise the library would ask for it on the terminal.
    raise ValueError("the key has a passphrase; write it without one, in a file that others cannot read")


def _secret_in(name: str, path: str) -> str:
    try:
        with open(path, "rb") as file:
            secret = file.readline(_MAX_SECRET_BYTES).rstrip(b"\r\n").decode()
    except OSError as error:
        raise InvalidRequestError(f"{name} {path!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{name} {path!r} is not text in UTF-8") from None
    if not secret:
        raise InvalidRequestError(f"{name} {path!r} has an empty first line")
    return secret
