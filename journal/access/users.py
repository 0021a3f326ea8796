"""The password file: its lines, checking a password, and changing one.

A line is ``name:$scrypt$n$r$p$salt$hash`` with the cost parameters of scrypt (RFC 7914) and salt and hash in base64.
Empty lines and lines that begin with ``#`` are ignored. A check takes about fifty milliseconds by design, and blocks;
`authentication` limits the number of attempts, and runs them in threads.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from journal.access.credential_files import read_lines, replace_file
from journal.settings.values import ConfigurationError, format_size

_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_MAX_MEMORY_BYTES: Final = 256 << 20
_ROOM_BYTES: Final = 1 << 20
_MAX_NAME_BYTES: Final = 65_535
_FORBIDDEN_IN_NAMES: Final = re.compile(r"[:\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WRITTEN_BY: Final = "journal passwd"


@attrs.frozen(slots=True)
class Cost:
    """Cost parameters of scrypt: about 128 * n * r bytes of memory, and time in proportion to n * r * p."""

    n: int = 1 << 14
    r: int = 8
    p: int = 1

    def check(self) -> None:
        """Raise ValueError if the numbers are not valid for scrypt, or too large to be used for every CONNECT."""
        if self.n < 2 or self.n & (self.n - 1) or self.r < 1 or self.p < 1:
            raise ValueError(
                f"n={self.n} r={self.r} p={self.p} is not a valid cost; n is a power of 2, r and p at least 1"
            )
        if 128 * self.n * self.r > _MAX_MEMORY_BYTES or self.p > 16:
            raise ValueError(
                f"n={self.n} r={self.r} p={self.p} costs too much; allowed: 128 * n * r up to "
                f"{format_size(_MAX_MEMORY_BYTES)}, p up to 16"
            )


@attrs.frozen(slots=True, repr=False)
class PasswordHash:
    """The stored part of a password."""

    cost: Cost
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: bytes, cost: Cost | None = None) -> PasswordHash:
        """Hash a password with a new salt. Blocks."""
        cost = cost or Cost()
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(cost, salt, _digest(password, cost, salt, _HASH_BYTES))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Parse what `format` wrote.

        Raises:
            ValueError: It has another form; the message does not repeat it.
        """
        parts = text.split("$")
        if len(parts) != 7 or parts[:2] != ["", "scrypt"]:
            raise ValueError("is not of the form $scrypt$n$r$p$salt$hash")
        if not all(re.fullmatch("[0-9]{1,9}", number) for number in parts[2:5]):
            raise ValueError("has a cost that is not a number")
        cost = Cost(*(int(number) for number in parts[2:5]))
        cost.check()
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[5:])
        except binascii.Error as error:
            raise ValueError("has a salt or a hash that is not base64") from error
        if len(salt) < 8 or not 16 <= len(digest) <= 64:
            raise ValueError(
                f"has a salt of {len(salt)} and a hash of {len(digest)} bytes; allowed: at least 8, and 16 to 64"
            )
        return cls(cost, salt, digest)

    def format(self) -> str:
        """The part of a line after the user name."""
        cost = self.cost
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"$scrypt${cost.n}${cost.r}${cost.p}${salt}${digest}"

    def matches(self, password: bytes) -> bool:
        """Whether the password is right. Blocks; the time does not depend on the password."""
        return hmac.compare_digest(_digest(password, self.cost, self.salt, len(self.digest)), self.digest)


def _digest(password: bytes, cost: Cost, salt: bytes, size_bytes: int) -> bytes:
    max_memory = 128 * cost.r * (cost.n + cost.p + 2) + _ROOM_BYTES
    return hashlib.scrypt(password, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=max_memory, dklen=size_bytes)


class Users:
    """User names and the stored parts of their passwords."""

    def __init__(self, hashes: Mapping[str, PasswordHash]) -> None:
        self._hashes = dict(hashes)
        # Checked for user names that do not exist, with the most frequent cost.
        costs = Counter(each.cost for each in self._hashes.values()).most_common(1)
        self._no_user = PasswordHash(
            costs[0][0] if costs else Cost(), secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_HASH_BYTES)
        )

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def names(self) -> Iterable[str]:
        """Names of all users."""
        return self._hashes.keys()

    def check(self, name: str, password: bytes) -> bool:
        """Whether the user exists and the password is right. Blocks as long for a user that does not exist."""
        found = self._hashes.get(name)
        return (found or self._no_user).matches(password) and found is not None

    def hash_of(self, name: str) -> PasswordHash | None:
        """The stored part of a user's password; None for a user that does not exist."""
        return self._hashes.get(name)


def read_users(path: str) -> Users:
    """Read a password file.

    Raises:
        ConfigurationError: It cannot be read, or has an invalid line; the message names the line, not its content.
    """
    hashes: dict[str, PasswordHash] = {}
    for number, line in enumerate(read_lines(path, _WRITTEN_BY), 1):
        if not line or line.startswith("#"):
            continue
        try:
            name, kept = _parse_line(line)
        except ValueError as error:
            raise ConfigurationError(
                f"{path}, line {number}: {error}; `{_WRITTEN_BY} {path} USER` writes such lines"
            ) from error
        if name in hashes:
            raise ConfigurationError(f"{path}, line {number}: names {name!r} again; leave one of the lines out")
        hashes[name] = kept
    return Users(hashes)


def _parse_line(line: str) -> tuple[str, PasswordHash]:
    name, colon, rest = line.partition(":")
    if not colon:
        raise ValueError("is not of the form name:$scrypt$n$r$p$salt$hash")
    return check_name(name), PasswordHash.parse(rest)


def check_name(name: str) -> str:
    """Return the name if it is a valid user name.

    Raises:
        ValueError: It is not; the message continues a sentence that begins with "the line" or "it".
    """
    if not name or name != name.strip() or name.startswith("#") or _FORBIDDEN_IN_NAMES.search(name):
        raise ValueError(
            f"has {name!a} for a user name; it must not be empty, begin with '#', begin or end with white space, "
            "or have ':' or control characters"
        )
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"has a user name of {len(name.encode())} bytes; allowed: up to {_MAX_NAME_BYTES}")
    return name


def write_user(path: str, name: str, kept: PasswordHash | None) -> bool:
    """Add a user to the password file, or remove one; the other lines are unchanged.

    The file is replaced atomically: a reader sees either the old or the new one. Only its owner can read it afterwards.

    Args:
        path: The file; created if it does not exist.
        name: The user.
        kept: The password's hash; None removes the user.

    Returns:
        Whether the user existed before.

    Raises:
        ConfigurationError: The existing file is not a password file.
        OSError: It cannot be written.
    """
    check_name(name)
    target = os.path.realpath(path)
    lines: list[str] = []
    owner = None
    if os.path.exists(target):
        read_users(target)
        lines = read_lines(target, _WRITTEN_BY)
        owner = os.stat(target)
    at = next((at for at, line in enumerate(lines) if line.startswith(f"{name}:")), None)
    replacement = [] if kept is None else [f"{name}:{kept.format()}"]
    if at is None:
        lines += replacement
    else:
        lines[at : at + 1] = replacement
    replace_file(target, "".join(f"{line}\n" for line in lines).encode(), owner)
    return at is not None
