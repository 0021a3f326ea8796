"""Checking JSON Web Tokens (RFC 7519): signature, times, issuer and audience. Pure; it needs the extra ``logins``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import jwt

from journal.access.json_web_keys import KeySet, WebKey

_SIGNING: Final = ("RS256", "ES256", "HS256")
_SHOWN_CHARACTERS: Final = 60


class TokenRefusedError(Exception):
    """A token is not valid. The message says why, and repeats nothing of it but names of its header."""


_REASONS: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "it is of another issuer"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
    (jwt.InvalidAlgorithmError, "its algorithm is not that of its key"),
)


def claims_of(
    token: str, keys: KeySet, *, audience: Collection[str], issuer: str, leeway_s: int
) -> tuple[Mapping[str, Any], WebKey]:
    """Check a token, and return its claims and the key that signed it.

    Args:
        token: The token.
        keys: The keys of its issuer.
        audience: It must be for one of these.
        issuer: The issuer that it must name; empty for any.
        leeway_s: How much the clocks of the issuer and of this machine may differ, in seconds.

    Raises:
        KeyMissingError: There is no key for it.
        TokenRefusedError: It is not valid.
    """
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise TokenRefusedError("it is not a JSON Web Token") from error
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in _SIGNING:
        raise TokenRefusedError(f"its algorithm {ascii(algorithm)[:_SHOWN_CHARACTERS]} is not one of {_SIGNING}")
    if "crit" in header:
        raise TokenRefusedError("its header has extensions that must be understood (crit)")
    key = keys.find(key_id, algorithm)
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=list(audience),
            issuer=issuer or None,
            leeway=leeway_s,
            # The time of issue matters to nothing here, and issuers with a fast clock exist.
            options={"require": ["exp"], "verify_iat": False, "verify_sub": False, "verify_jti": False},
        )
    except jwt.MissingRequiredClaimError as error:
        raise TokenRefusedError(f"it lacks the claim {error.claim}") from error
    except jwt.PyJWTError as error:
        reason = next((words for kind, words in _REASONS if isinstance(error, kind)), "it cannot be read")
        raise TokenRefusedError(reason) from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TokenRefusedError("it cannot be read") from error
    if isinstance(claims["exp"], bool) or not isinstance(claims["exp"], int | float):
        # The library takes a text, too.
        raise TokenRefusedError("its exp is not a number")
    return claims, key


def claim(claims: Mapping[str, Any], path: str) -> object:
    """The claim of this name, or with dots in it of this path: ``realm_access.roles``. None if it is missing."""
    if path in claims:
        return claims[path]
    found: object = claims
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
