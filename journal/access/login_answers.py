"""What a web service that decides about logins is asked, and what its answers mean. Pure."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import attrs
import msgspec

from journal.access.login_grants import grants_of
from journal.access.logins import Attempt
from journal.access.rules import NO_GRANTS, Grants
from journal.access.users import check_name

_OK: Final = 200
_LATEST_S: Final = 1 << 40
_ENCODER: Final = msgspec.json.Encoder()


class AnswerError(Exception):
    """The answer is none: the service failed, or is another one. The message repeats nothing of it."""


@attrs.frozen(slots=True)
class Verdict:
    """What the service decided.

    Attributes:
        result: ``ignore`` leaves the client to the next method.
        name: The user, if it is allowed.
        grants: Its roles and rules.
        expires_at_s: Seconds since 1970 at which the login ends; None for never.
    """

    result: Literal["allow", "deny", "ignore"]
    name: str = ""
    grants: Grants = NO_GRANTS
    expires_at_s: float | None = None


class _Answer(msgspec.Struct, frozen=True):
    result: Literal["allow", "deny", "ignore"]
    user: str | None = None
    roles: Any = None
    rules: Any = None
    expires: float | None = None


_read_answer: Final = msgspec.json.Decoder(_Answer).decode


def question(attempt: Attempt) -> bytes | None:
    """The body of the request; None if the service cannot be asked: about nothing, or about a password that is no text.

    A bearer token is asked about as ``token``, which is absent otherwise.
    """
    if not (attempt.user or attempt.password is not None or attempt.token is not None or attempt.certificate_name):
        return None
    try:
        fields = {
            "username": attempt.user or "",
            "password": None if attempt.password is None else attempt.password.decode(),
            "client_id": attempt.client_id,
            "peer": attempt.peer,
            "certificate_name": attempt.certificate_name,
        }
        if attempt.token is not None:
            fields["token"] = attempt.token
        return _ENCODER.encode(fields)
    except UnicodeError:
        return None


def verdict_of(status: int, body: bytes, attempt: Attempt) -> Verdict:
    """What an answer means for the attempt that it is for.

    Raises:
        AnswerError: It means nothing.
    """
    if status != _OK:
        raise AnswerError(f"it answered with status {status}")
    try:
        answer = _read_answer(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError('its answer is not JSON of the form {"result": "allow" | "deny" | "ignore", ...}') from error
    if answer.result != "allow":
        return Verdict(answer.result)
    try:
        name = check_name(answer.user or attempt.user or attempt.certificate_name)
        grants = grants_of(answer.roles, answer.rules)
    except ValueError as error:
        raise AnswerError(f"its answer cannot be used: {error}") from error
    expires = answer.expires
    if expires is not None and not math.isfinite(expires):
        raise AnswerError("its answer cannot be used: expires is not a time")
    return Verdict("allow", name, grants, None if expires is None else min(expires, _LATEST_S))
