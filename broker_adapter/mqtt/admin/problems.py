"""Errors in HTTP responses: problem details (RFC 9457), with the same fields and codes as those of a server."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from broker_adapter.errors import StorageError, describe_error, is_retriable
from journal.telemetry.http_pages import Reply

PROBLEM_TYPE: Final = "application/problem+json"

_STATUS: Final[dict[str, HTTPStatus]] = {
    "invalid_request": HTTPStatus.BAD_REQUEST,
    "ban_not_found": HTTPStatus.NOT_FOUND,
    "too_many_bans": HTTPStatus.CONFLICT,
    "client_not_found": HTTPStatus.NOT_FOUND,
    "no_broker": HTTPStatus.SERVICE_UNAVAILABLE,
    "rules_refused": HTTPStatus.CONFLICT,
    "rules_unknown": HTTPStatus.CONFLICT,
    "version_conflict": HTTPStatus.PRECONDITION_FAILED,
    "not_a_document": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
}
STATUSES: Final = tuple(
    sorted(
        {
            *_STATUS.values(),
            HTTPStatus.UNAUTHORIZED,
            HTTPStatus.FORBIDDEN,
            HTTPStatus.INTERNAL_SERVER_ERROR,
            HTTPStatus.SERVICE_UNAVAILABLE,
        }
    )
)
"""All statuses that a problem may have."""

_CHALLENGE: Final = 'Basic realm="journal-broker", charset="UTF-8"'


class NotADocumentError(StorageError):
    """The content type of a request is not JSON or TOML. A page of another site can send such a request unnoticed."""

    code = "not_a_document"


class PageRefusedError(StorageError):
    """A web page of another site may not use the credentials that its visitor's browser has stored."""

    code = "origin_refused"


class RulesUnknownError(StorageError):
    """The rules of the store have something unknown to this version of the program."""

    code = "rules_unknown"


class ClientNotFoundError(StorageError):
    """No client with this identifier has a session."""

    code = "client_not_found"


class NotReadyError(StorageError):
    """The broker is not ready."""

    code = "shutting_down"
    retriable = True


def problem_reply(error: StorageError, status: HTTPStatus | None = None) -> Reply:
    """The response to a request that failed.

    Args:
        status: For an error of the request that the store may also raise.
    """
    described = describe_error(error)
    status = status or _STATUS.get(described.code)
    if status is None:
        # All others come from the store: temporary errors, and those that a retry does not help.
        status = HTTPStatus.SERVICE_UNAVAILABLE if is_retriable(error) else HTTPStatus.INTERNAL_SERVER_ERROR
    body = {
        "type": f"urn:journal-engine:error:{described.code}",
        "title": described.code.replace("_", " "),
        "status": int(status),
        "detail": described.message,
        "code": described.code,
        "retriable": described.retriable,
        "details": described.details,
    }
    return Reply(
        msgspec.json.encode(body) + b"\n",
        status,
        PROBLEM_TYPE,
        challenge=_CHALLENGE if status == HTTPStatus.UNAUTHORIZED else "",
        headers={"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {},
    )
