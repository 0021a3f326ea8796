"""From an HTTP request to an endpoint and back: authentication, origin check, parameters and body.

The endpoints are in `journal.server.admin.endpoints`; the form of errors is in `journal.server.admin.problems`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

import attrs
import msgspec
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from journal.access.audit import AuditEntry, outcome_noted
from journal.access.rights import UseRefusedError
from journal.net.origins import Origins
from journal.protocol.errors import ShuttingDownError
from journal.server.admin import forms
from journal.server.admin.endpoints import ENDPOINTS, PREFIX, Administered, Endpoint
from journal.server.admin.openapi import DOCUMENT_PATH, openapi_document
from journal.server.admin.problems import (
    ANSWER_HEADERS,
    BodyTimeoutError,
    BodyTooLargeError,
    MethodNotAllowedError,
    NotFoundError,
    NotJsonError,
    problem_response,
)
from journal.server.http_identity import check_page, identity_of, peer_of
from journal.server.login import Login
from journal.server.shard_operations import Requester
from journal.server.statistics import ServerStatistics
from shards.errors import InvalidRequestError, StorageError

LARGEST_BODY_BYTES: Final = 64 * 1024
BODY_TIMEOUT_S: Final = 10.0


@attrs.frozen
class Administration:
    """The parts of a server that the API uses.

    Attributes:
        on: The objects that the endpoints work on.
        admission: Authenticates clients and writes the audit log.
        origins: The web pages that may send requests.
        statistics: Counts refusals.
        version: Version of the program.
        is_stopping: Whether the server is stopping.
        report: Logs an unexpected error.
    """

    on: Administered
    admission: Login
    origins: Origins
    statistics: ServerStatistics
    version: str
    is_stopping: Callable[[], bool]
    report: Callable[[Exception, int], None]


def admin_routes(administration: Administration) -> list[BaseRoute]:
    """The routes of the API; any other path below its prefix is answered with a problem."""
    document = msgspec.Raw(msgspec.json.encode(openapi_document(administration.version)))

    async def openapi(_on: Administered, _requester: Requester, _query: forms.NoQuery, _: None) -> msgspec.Raw:
        return document

    paths: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    page = Endpoint("GET", "/openapi.json", "openapi", "This document", forms.NoQuery, msgspec.Raw, openapi)
    paths[page.path] = {page.method: page}
    routes: list[BaseRoute] = [
        Route(PREFIX + path, _Resource(administration, methods)) for path, methods in paths.items()
    ]
    routes.append(Route(PREFIX + "/{path:path}", _Resource(administration, None)))
    return routes


class _Resource:
    """One path, as an ASGI application: starlette itself would not answer a wrong method with a problem."""

    def __init__(self, administration: Administration, methods: dict[str, Endpoint] | None) -> None:
        self._administration = administration
        self._methods = methods

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        headers: dict[str, str] = {}
        try:
            check_page(request, self._administration.origins)
            return await self._carry_out(self._find(request, headers), request)
        except StorageError as error:
            self._administration.statistics.count_error(error)
            return problem_response(error, headers)
        except ClientDisconnect:
            # The client has disconnected.
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        except Exception as error:  # noqa: BLE001 it ends this request only
            self._administration.report(error, 0)
            return problem_response(error)

    def _find(self, request: Request, headers: dict[str, str]) -> Endpoint:
        if self._methods is None:
            raise NotFoundError(f"there is no {request.url.path}; {DOCUMENT_PATH} lists all paths")
        endpoint = self._methods.get(request.method)
        if endpoint is None:
            headers["Allow"] = ", ".join(self._methods)
            raise MethodNotAllowedError(f"{request.url.path} has no {request.method}; it has {headers['Allow']}")
        return endpoint

    async def _carry_out(self, endpoint: Endpoint, request: Request) -> Response:
        if self._administration.is_stopping():
            raise ShuttingDownError("the server is stopping; repeat the request when it is running again")
        admission = self._administration.admission
        asker = await identity_of(request, admission)
        query = _query(endpoint.query, request)
        body = None if endpoint.body is None else _decode(endpoint.body, await _body(request))

        def note(outcome: str) -> None:
            if endpoint.changes:
                admission.record(
                    AuditEntry(
                        principal=asker.principal.name,
                        peer=peer_of(request),
                        act=endpoint.name,
                        target=_target(query, body),
                        cursor=query.name if isinstance(query, forms.CursorQuery) else "",
                        outcome=outcome,
                    )
                )

        with outcome_noted(note):
            try:
                result = await endpoint.handle(self._administration.on, asker, query, body)
            except UseRefusedError as error:
                if not endpoint.changes:
                    admission.record_refused(asker.principal.name, peer_of(request), endpoint.name, error)
                raise
        return Response(
            b"" if endpoint.result is None else msgspec.json.encode(result),
            status_code=endpoint.status,
            media_type=None if endpoint.result is None else "application/json",
            headers=ANSWER_HEADERS,
        )


def _query(form: type[forms.Form], request: Request) -> forms.Form:
    items = request.query_params.multi_items()
    fields = dict(items)
    if len(fields) < len(items):
        raise InvalidRequestError(f"a parameter is given more than once: {_names(items)}")
    try:
        return msgspec.convert(fields, form, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"query of {request.url.path}: {error}") from error


def _names(items: Sequence[tuple[str, str]]) -> str:
    return ", ".join(name for name, _ in items)[:200]


def _decode(form: type[forms.Form], body: bytes) -> forms.Form:
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"body: {error}") from error


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise NotJsonError(f"the body is {kind[:100] or 'of no type'}; send it as application/json")
    body = bytearray()
    with trio.move_on_after(BODY_TIMEOUT_S) as waiting:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > LARGEST_BODY_BYTES:
                    raise BodyTooLargeError(f"the body has more than {LARGEST_BODY_BYTES} bytes")
    if waiting.cancelled_caught:
        raise BodyTimeoutError(f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s")
    return bytes(body)


def _target(query: forms.Form, body: forms.Form | None) -> str:
    """The shard that a request concerns, for the audit log."""
    for form, field in ((query, "shard"), (query, "name"), (body, "name")):
        name = getattr(form, field, None)
        if isinstance(name, str):
            return name
    return ""
