"""Errors in HTTP answers: problem details (RFC 9457), with the codes that all protocols of the server share."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from journal.protocol.errors import describe_error
from journal.server.admin.forms import Problem
from shards.errors import StorageError

PROBLEM_TYPE: Final = "application/problem+json"
ANSWER_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers of every answer: its content depends on the client's rights, and names in it are not trusted."""

_STATUS: Final[dict[str, HTTPStatus]] = {
    "invalid_request": HTTPStatus.BAD_REQUEST,
    "invalid_name": HTTPStatus.BAD_REQUEST,
    "authentication_failed": HTTPStatus.UNAUTHORIZED,
    "not_authorized": HTTPStatus.FORBIDDEN,
    "origin_refused": HTTPStatus.FORBIDDEN,
    "shard_not_found": HTTPStatus.NOT_FOUND,
    "not_found": HTTPStatus.NOT_FOUND,
    "method_not_allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "body_timeout": HTTPStatus.REQUEST_TIMEOUT,
    "shard_exists": HTTPStatus.CONFLICT,
    "shard_damaged": HTTPStatus.CONFLICT,
    "limit_exceeded": HTTPStatus.CONFLICT,
    "offset_out_of_range": HTTPStatus.CONFLICT,
    "version_conflict": HTTPStatus.CONFLICT,
    "body_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "not_json": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "quota_exceeded": HTTPStatus.TOO_MANY_REQUESTS,
    "overloaded": HTTPStatus.SERVICE_UNAVAILABLE,
    "shutting_down": HTTPStatus.SERVICE_UNAVAILABLE,
    "conversion_failed": HTTPStatus.SERVICE_UNAVAILABLE,
    "disk_full": HTTPStatus.INSUFFICIENT_STORAGE,
}

STATUSES: Final = tuple(sorted({*_STATUS.values(), HTTPStatus.INTERNAL_SERVER_ERROR}))
"""Every status that a problem may have."""


class BodyTooLargeError(StorageError):
    """The body of a request is larger than allowed."""

    code = "body_too_large"


class BodyTimeoutError(StorageError):
    """The body of a request did not arrive in time."""

    code = "body_timeout"
    retriable = True


class NotJsonError(StorageError):
    """The body of a request is not declared as JSON. Pages of other sites can send such requests without permission."""

    code = "not_json"


class NotFoundError(StorageError):
    """There is no such path."""

    code = "not_found"


class MethodNotAllowedError(StorageError):
    """The path has no such method."""

    code = "method_not_allowed"


def problem_of(error: BaseException) -> Problem:
    """Convert an error to problem details. An exception that is not a `StorageError` is not described."""
    body = describe_error(error)
    status = _STATUS.get(body.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return Problem(
        type=f"urn:journal-engine:error:{body.code}",
        title=body.code.replace("_", " "),
        status=status,
        detail=body.message,
        code=body.code,
        retriable=body.retriable,
        details=body.details,
    )


def problem_response(error: BaseException, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that failed."""
    problem = problem_of(error)
    sent = {**ANSWER_HEADERS, **(headers or {})}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        sent["WWW-Authenticate"] = 'Bearer realm="journal", Basic realm="journal", charset="UTF-8"'
    if problem.retriable and problem.status >= HTTPStatus.TOO_MANY_REQUESTS:
        sent["Retry-After"] = "1"
    return Response(msgspec.json.encode(problem), status_code=problem.status, media_type=PROBLEM_TYPE, headers=sent)
