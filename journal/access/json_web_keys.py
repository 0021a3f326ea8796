"""Keys that sign JSON Web Tokens, from a JSON Web Key Set (RFC 7517). Pure; it needs the extra ``logins``.

Each key is for one algorithm, whatever a token names. So a token cannot choose how it is checked: neither "none", nor
HS256 with the text of a public key as the secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import jwt
import msgspec

_ALGORITHMS: Final = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("oct", None): "HS256"}
"""The algorithm of each kind of key, with its curve."""

_PRIVATE: Final = ("d", "p", "q", "dp", "dq", "qi")
_MOST_KEYS: Final = 100
_MOST_BYTES_OF_RSA: Final = 1024
_SHOWN_CHARACTERS: Final = 60


class KeySetError(ValueError):
    """A text is no set of keys, or has none that can be used. The message repeats nothing of a key."""


class KeyMissingError(Exception):
    """No key fits to a token.

    Attributes:
        may_be_new: Whether another set of keys may have it.
    """

    def __init__(self, message: str, *, may_be_new: bool) -> None:
        super().__init__(message)
        self.may_be_new = may_be_new


@attrs.frozen(slots=True)
class WebKey:
    """One key.

    Attributes:
        key_id: The ``kid``; empty without one.
        algorithm: The one algorithm that it is for.
        key: What checks signatures.
        fingerprint: The same for the same key.
    """

    key_id: str
    algorithm: str
    key: jwt.PyJWK = attrs.field(repr=False, eq=False)
    fingerprint: bytes = attrs.field(repr=False)


class KeySet:
    """The keys of one issuer.

    Attributes:
        unusable: Why keys of the set are not used, one text for each.
    """

    def __init__(self, keys: Sequence[WebKey], unusable: Sequence[str] = ()) -> None:
        self._keys = tuple(keys)
        self._fingerprints = {each.fingerprint for each in keys}
        self.unusable = tuple(unusable)

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, fingerprint: bytes) -> bool:
        """Whether a key is in the set."""
        return fingerprint in self._fingerprints

    def find(self, key_id: str | None, algorithm: str) -> WebKey:
        """The key of a token.

        Args:
            key_id: The ``kid`` of its header; None without one: then there must be one key alone for the algorithm.
            algorithm: The ``alg`` of its header.

        Raises:
            KeyMissingError: There is none.
        """
        if key_id is None:
            fitting = [each for each in self._keys if each.algorithm == algorithm]
            if len(fitting) == 1:
                return fitting[0]
            raise KeyMissingError(
                f"it names no key (kid), and {len(fitting)} keys are for {_shown(algorithm)}", may_be_new=False
            )
        named = [each for each in self._keys if each.key_id == key_id]
        for each in named:
            if each.algorithm == algorithm:
                return each
        if named:
            raise KeyMissingError(
                f"its algorithm is {_shown(algorithm)}, but its key is for {named[0].algorithm}", may_be_new=False
            )
        raise KeyMissingError(f"its key (kid) {_shown(key_id)} is not known", may_be_new=True)


def parse_key_set(data: bytes, *, takes_secrets: bool) -> KeySet:
    """Parse a key set.

    Args:
        data: JSON.
        takes_secrets: Whether secrets (HS256) are used, which everyone who can read the set could sign with.

    Raises:
        KeySetError: It is none, or has no key that can be used.
    """
    try:
        listed = msgspec.json.decode(data, type=dict[str, Any]).get("keys")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise KeySetError('is not JSON of the form {"keys": [...]}') from error
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise KeySetError('is not of the form {"keys": [...]}')
    if len(listed) > _MOST_KEYS:
        raise KeySetError(f"has {len(listed)} keys; allowed: up to {_MOST_KEYS}")
    keys: list[WebKey] = []
    unusable: list[str] = []
    for number, entry in enumerate(listed, 1):
        try:
            keys.append(_key_of(entry, takes_secrets=takes_secrets))
        except KeySetError as error:
            unusable.append(f"key {number} {error}")
    names = [(each.key_id, each.algorithm) for each in keys]
    twice = {name for name in names if names.count(name) > 1 and name[0]}
    if twice:
        raise KeySetError(f"has two keys with the kid {_shown(next(iter(twice))[0])}")
    if not keys:
        raise KeySetError(f"has no key that can be used{': ' if unusable else ''}{'; '.join(unusable[:3])}")
    return KeySet(keys, unusable)


def _key_of(entry: Mapping[str, Any], *, takes_secrets: bool) -> WebKey:
    kind, curve, key_id = entry.get("kty"), entry.get("crv"), entry.get("kid", "")
    if not isinstance(key_id, str):
        raise KeySetError("has a kid that is not a text")
    if entry.get("use", "sig") != "sig":
        raise KeySetError("is not for signatures")
    algorithm = _ALGORITHMS.get((kind, curve)) if isinstance(kind, str) and isinstance(curve, str | None) else None
    if algorithm is None:
        raise KeySetError("is neither RSA, EC on P-256 nor a secret (oct)")
    if entry.get("alg", algorithm) != algorithm:
        raise KeySetError(f"is for an algorithm other than {algorithm}")
    if kind == "oct" and not takes_secrets:
        raise KeySetError("is a secret, which only a file may have")
    if any(name in entry for name in _PRIVATE):
        raise KeySetError("has its private part; leave that with the issuer")
    try:
        key = jwt.PyJWK(dict(entry), algorithm)
        problem = key.Algorithm.check_key_length(key.key)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise KeySetError("cannot be read") from error
    if problem or len(str(entry.get("n", ""))) > 2 * _MOST_BYTES_OF_RSA:
        raise KeySetError("is too short or too long to be used")
    fingerprint = hashlib.sha256(msgspec.json.encode(sorted((name, repr(value)) for name, value in entry.items())))
    return WebKey(key_id, algorithm, key, fingerprint.digest())


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN_CHARACTERS])
