"""The OpenAPI document of the administration API, generated from the same table as its routes. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import msgspec

from journal.server.admin.endpoints import ENDPOINTS, PREFIX, Endpoint
from journal.server.admin.forms import Form, Problem
from journal.server.admin.problems import PROBLEM_TYPE

DOCUMENT_PATH: Final = f"{PREFIX}/openapi.json"
_ALWAYS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_WITH_BODY: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
_REFERENCE: Final = "#/components/schemas/{name}"


def openapi_document(version: str) -> dict[str, Any]:
    """Generate the document.

    Args:
        version: Version of the program.
    """
    types = [Problem, *(kind for each in ENDPOINTS for kind in (each.body, each.result) if kind is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Journal administration",
            "version": version,
            "description": "Shards, cursors, connections and health of one node.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        # The server's configuration decides which of these it requires, if any.
        "security": [{}, {"token": []}, {"password": []}],
    }


def _operation(endpoint: Endpoint, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint.query),
        "responses": _responses(endpoint, schema_of),
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[endpoint.body]}},
        }
    return operation


def _parameters(query: type[Form]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([query], ref_template=_REFERENCE)
    schema = components[query.__name__]
    required = schema["required"]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": field.pop("description", name),
            "schema": field,
        }
        for name, field in schema["properties"].items()
    ]


def _responses(endpoint: Endpoint, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(endpoint.status).phrase}
    if endpoint.result is not None:
        answer["content"] = {"application/json": {"schema": schema_of[endpoint.result]}}
    responses = {str(endpoint.status): answer}
    for status in sorted(statuses_of(endpoint)):
        responses[str(int(status))] = {
            "description": status.phrase,
            "content": {PROBLEM_TYPE: {"schema": schema_of[Problem]}},
        }
    return responses


def statuses_of(endpoint: Endpoint) -> set[HTTPStatus]:
    """The statuses of an endpoint's errors."""
    statuses = set(_ALWAYS)
    if endpoint.body is not None:
        statuses.update(_WITH_BODY)
    if endpoint.finds:
        statuses.add(HTTPStatus.NOT_FOUND)
    if endpoint.may_conflict:
        statuses.add(HTTPStatus.CONFLICT)
    if endpoint.changes:
        statuses.add(HTTPStatus.INSUFFICIENT_STORAGE)
    return statuses
