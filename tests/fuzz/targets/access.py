"""Who may connect: lines of the files of users and tokens, origins of web pages, addresses to listen on."""

from __future__ import annotations

import contextlib

from journal.access.tokens import TokenHash, Tokens
from journal.access.users import PasswordHash, check_name
from journal.net.address import parse_address
from journal.net.origins import Origins, parse_origin
from journal.net.protocol_sniffing import spoken_in
from journal.settings.values import parse_size
from tests.fuzz.target import Target, text_of


def run_access(data: bytes) -> None:
    """A line is what is kept of a token or of a password, or refused by ValueError that does not repeat a hash.

    What is read is written to a line that reads the same. An origin is allowed if it is listed or on this machine;
    any text may be asked for. An address to listen on has a host and a port that exists.
    """
    text = text_of(data)
    for line in text.split("\n")[:4]:
        _check_token(line)
        _check_password(line)
        _check_origin(line)
        try:
            address = parse_address(line)
        except ValueError:
            address = None
        if address is not None:
            assert address[0]
            assert 0 <= address[1] <= 65535
        with contextlib.suppress(ValueError):
            assert parse_size(line) >= 0
    spoken_in(data)
    Tokens([]).find(text)


def _check_token(line: str) -> None:
    try:
        kept = TokenHash.parse(line)
    except ValueError as error:
        parts = line.split(":")
        assert len(parts) < 2 or len(parts[1]) < 40 or parts[1] in ascii(parts[0]) or parts[1] not in str(error)
        return
    assert check_name(kept.name) == kept.name
    again = TokenHash.parse(kept.format())
    assert (again.name, again.digest) == (kept.name, kept.digest)
    assert (again.expires_at_s is None) == (kept.expires_at_s is None)


def _check_password(line: str) -> None:
    try:
        kept = PasswordHash.parse(line)
    except ValueError:
        return
    again = PasswordHash.parse(kept.format())
    assert (again.cost, again.salt, again.digest) == (kept.cost, kept.salt, kept.digest)


def _check_origin(line: str) -> None:
    try:
        origin = parse_origin(line)
    except ValueError:
        origin = ""
    allowed = Origins([origin] if origin else [])
    assert not origin or allowed.allows(line)
    allowed.allows(line)
    allowed.allows_host(line)
    Origins().allows(line)
    Origins().allows_host(line)


_SEEDS = (
    b"anna:" + b"0a" * 32 + b":2030-01-31T12:00:00+00:00\nbob:" + b"ff" * 32,
    b"$scrypt$16384$8$1$c2FsdHNhbHRzYWx0$ZGlnZXN0ZGlnZXN0ZGlnZXN0",
    b"https://console.example.com:8443\nhttp://[::1]:80\nhttp://localhost",
    b"127.0.0.1:7420\n[::1]:7420\n256 MiB\n1.5 KiB",
)

TARGETS = (
    Target(
        "access",
        run_access,
        lambda: _SEEDS,
        tokens=(
            b"0a" * 32,
            b"$scrypt$",
            b"$",
            b":",
            b"https://",
            b"[",
            b"]",
            b"@",
            b"+14:00",
            b"0001-01-01T00:00:00",
            b"9999-12-31T23:59:59",
            b" TiB",
            b"9" * 4400,
            "\u0663".encode(),
            "\u00b2".encode(),
            b"\xed\xa0\x80",
        ),
        max_input_bytes=6000,
    ),
)
