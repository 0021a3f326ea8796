"""The file of bearer tokens: its lines, finding a token's principal, creating and removing tokens.

A line is ``name:sha256-hex`` or ``name:sha256-hex:expires`` with a date and time of ISO 8601, in UTC if it has no zone.
A token has 256 random bits, so a fast hash is safe; the token itself is in no file and is shown only when it is
created. A name may have many tokens, so that an old one stays valid until all its users have a new one. Empty lines and
lines that begin with ``#`` are ignored.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import attrs

from journal.access.credential_files import read_lines, replace_file
from journal.access.users import check_name
from journal.settings.values import ConfigurationError

_TOKEN_BYTES: Final = 32
_WRITTEN_BY: Final = "journal token"
_DIGEST: Final = re.compile("[0-9a-f]{64}")


@attrs.frozen(slots=True)
class TokenHash:
    """The stored part of a token.

    Attributes:
        name: Name of the principal.
        digest: SHA-256 of the token.
        expires_at_s: Seconds since 1970 after which it is not valid; None for never.
    """

    name: str
    digest: bytes = attrs.field(repr=False)
    expires_at_s: float | None = None

    @classmethod
    def of(cls, name: str, token: str, expires_at_s: float | None = None) -> TokenHash:
        """The stored part of this token."""
        return cls(name, hashlib.sha256(token.encode()).digest(), expires_at_s)

    @classmethod
    def parse(cls, line: str) -> TokenHash:
        """Parse a line that `format` wrote.

        Raises:
            ValueError: It is not such a line; the message does not repeat the hash.
        """
        name, _, rest = line.partition(":")
        digest, colon, expires = rest.partition(":")
        check_name(name)
        if not _DIGEST.fullmatch(digest):
            raise ValueError("is not of the form name:sha256-hex or name:sha256-hex:expires")
        return cls(name, bytes.fromhex(digest), _seconds_of(expires) if colon else None)

    def format(self) -> str:
        """The line of the file."""
        if self.expires_at_s is None:
            return f"{self.name}:{self.digest.hex()}"
        expires = datetime.fromtimestamp(self.expires_at_s, UTC).isoformat(timespec="seconds")
        return f"{self.name}:{self.digest.hex()}:{expires}"


def _seconds_of(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("has no date and time like 2030-01-31T12:00:00+00:00 at its end") from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


class Tokens:
    """The stored parts of all tokens."""

    def __init__(self, kept: Iterable[TokenHash]) -> None:
        # The time of a search must not reveal anything about a hash, so it uses a hash with a key of this process.
        self._key = secrets.token_bytes(32)
        self._kept = {self._place_of(each.digest): each for each in kept}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def names(self) -> Iterable[str]:
        """Names of the principals that have tokens."""
        return {each.name for each in self._kept.values()}

    def find(self, token: str) -> TokenHash | None:
        """The stored part of a token; None if it is unknown. The caller checks whether it has expired."""
        # Anything that a peer sends can be hashed, even if it is not text.
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        found = self._kept.get(self._place_of(digest))
        return found if found is not None and hmac.compare_digest(found.digest, digest) else None

    def holds(self, kept: TokenHash) -> bool:
        """Whether a token is still stored, with the same name and expiry."""
        return self._kept.get(self._place_of(kept.digest)) == kept

    def _place_of(self, digest: bytes) -> bytes:
        return hmac.digest(self._key, digest, hashlib.sha256)


def read_tokens(path: str) -> Tokens:
    """Read a file of tokens.

    Raises:
        ConfigurationError: It cannot be read, or has an invalid line; the message names the line, not its content.
    """
    return Tokens(each for _, each in _parsed(path, read_lines(path, _WRITTEN_BY)) if each is not None)


def _parsed(path: str, lines: Iterable[str]) -> list[tuple[str, TokenHash | None]]:
    """The lines with their tokens; None for ignored lines."""
    parsed: list[tuple[str, TokenHash | None]] = []
    seen: set[bytes] = set()
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            parsed.append((line, None))
            continue
        try:
            kept = TokenHash.parse(line)
        except ValueError as error:
            raise ConfigurationError(
                f"{path}, line {number}: {error}; `{_WRITTEN_BY} {path} USER` writes such lines"
            ) from error
        if kept.digest in seen:
            raise ConfigurationError(f"{path}, line {number}: has a token that an earlier line has; leave one out")
        seen.add(kept.digest)
        parsed.append((line, kept))
    return parsed


def add_token(path: str, name: str, expires_at_s: float | None = None) -> str:
    """Create a token and add its hash to the file, which is replaced atomically.

    Args:
        path: The file; created if it does not exist, readable only for its owner.
        name: Name of the principal.
        expires_at_s: When it expires, in seconds since 1970; None for never.

    Returns:
        The token, which cannot be read again.

    Raises:
        ConfigurationError: The existing file is not a file of tokens.
        OSError: It cannot be written.
    """
    check_name(name)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    target = os.path.realpath(path)
    owner = os.stat(target) if os.path.exists(target) else None
    lines = [line for line, _ in _parsed(target, read_lines(target, _WRITTEN_BY))] if owner is not None else []
    lines.append(TokenHash.of(name, token, expires_at_s).format())
    replace_file(target, "".join(f"{line}\n" for line in lines).encode(), owner)
    return token


def remove_tokens(path: str, name: str) -> int:
    """Remove all tokens of a name from the file.

    Returns:
        The number of removed tokens.

    Raises:
        ConfigurationError: It cannot be read, or is not a file of tokens.
        OSError: It cannot be written.
    """
    target = os.path.realpath(path)
    parsed = _parsed(target, read_lines(target, _WRITTEN_BY))
    left = [line for line, kept in parsed if kept is None or kept.name != name]
    if len(left) < len(parsed):
        replace_file(target, "".join(f"{line}\n" for line in left).encode(), os.stat(target))
    return len(parsed) - len(left)
