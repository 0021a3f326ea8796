"""The OpenAPI document of a broker's HTTP API below `/api/v1`. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from broker_adapter.mqtt.admin.problems import PROBLEM_TYPE, STATUSES

_PREFIX: Final = "/api/v1"
RULES_PATH: Final = f"{_PREFIX}/rules"
CLIENTS_PATH: Final = f"{_PREFIX}/clients"
CLIENT_PATH: Final = f"{_PREFIX}/client"
BANS_PATH: Final = f"{_PREFIX}/bans"
BAN_PATH: Final = f"{_PREFIX}/ban"
DOCUMENT_PATH: Final = f"{_PREFIX}/openapi.json"

_NUMBER: Final = {"type": "integer", "minimum": 0}
_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_BAN_KIND: Final = {"enum": ["user", "client", "network"]}
_TABLES: Final = {"type": "array", "items": {"type": "object"}}


def openapi_document(version: str) -> dict[str, Any]:
    """The OpenAPI document.

    Args:
        version: Version of the program.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Administration of MQTT brokers",
            "version": version,
            "description": "Rules, clients and bans of all brokers of a store.",
        },
        "paths": {
            RULES_PATH: {"get": _get(), "put": _put()},
            CLIENTS_PATH: {"get": _list_clients()},
            CLIENT_PATH: {"delete": _disconnect()},
            BANS_PATH: {"get": _list_bans(), "post": _add_ban()},
            BAN_PATH: {"delete": _remove_ban()},
            DOCUMENT_PATH: {
                "get": {
                    "operationId": "openapi",
                    "summary": "This document",
                    "security": [{}],
                    "responses": {"200": {"description": "OK", "content": _json({"type": "object"})}},
                }
            },
        },
        "components": {"schemas": _schemas(), "securitySchemes": {"password": {"type": "http", "scheme": "basic"}}},
        "security": [{"password": []}],
    }


def _get() -> dict[str, Any]:
    return {
        "operationId": "get_rules",
        "summary": "The rules, without secrets, and which version each broker applies",
        "responses": {"200": _rules_answer("OK", "Rules"), **_problems()},
    }


def _put() -> dict[str, Any]:
    body = {"schema": _reference("RuleTables")}
    return {
        "operationId": "put_rules",
        "summary": "Make these the rules of all brokers; repeating it changes nothing",
        "parameters": [
            _wait("Seconds to wait for brokers"),
            _parameter("dry_run", {"type": "boolean", "default": False}, "Return what would change; change nothing"),
            {
                "name": "If-Match",
                "in": "header",
                "required": False,
                "description": 'The version that the change is based on, as in ETag; "0" for no rules yet.',
                "schema": {"type": "string", "pattern": r'^"\d{1,18}"$'},
            },
        ],
        "requestBody": {"required": True, "content": {"application/json": body, "application/toml": {"schema": _TEXT}}},
        "responses": {
            "200": _rules_answer("The rules are stored, and all brokers apply them", "Change"),
            "202": _rules_answer("The rules are stored; brokers that do not apply them yet are named", "Change"),
            **_problems(),
        },
    }


def _list_clients() -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    return {
        "operationId": "list_clients",
        "summary": "Clients that have a session, connected or not",
        "parameters": [
            _parameter("after", _TEXT, "Only clients after this one: the last of the page before"),
            _parameter("limit", limit, "Clients on the page"),
        ],
        "responses": {"200": _answer("OK", "Clients"), **_problems()},
    }


def _disconnect() -> dict[str, Any]:
    return {
        "operationId": "disconnect_client",
        "summary": "End the connection of a client, at whichever broker it is",
        "parameters": [
            _parameter("client_id", _TEXT, "The client", required=True),
            _parameter("end_session", {"type": "boolean", "default": False}, "End its session, too"),
            _wait("Seconds to wait for the broker"),
        ],
        "responses": {
            "200": _answer("Its connection or session has ended, or it had none", "Disconnected"),
            "202": _answer("Its broker has not answered", "Disconnected"),
            **_problems(),
        },
    }


def _list_bans() -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    return {
        "operationId": "list_bans",
        "summary": "Bans that have not ended, sorted by kind and name",
        "parameters": [
            _parameter("after", _TEXT, "Only bans after this one, as KIND:NAME: the last of the page before"),
            _parameter("limit", limit, "Bans on the page"),
        ],
        "responses": {"200": _answer("OK", "Bans"), **_problems()},
    }


def _add_ban() -> dict[str, Any]:
    return {
        "operationId": "add_ban",
        "summary": "Ban a user, a client identifier or a network, in place of an earlier ban of it",
        "parameters": [_wait("Seconds to wait for brokers")],
        "requestBody": {"required": True, "content": _json(_reference("NewBan"))},
        "responses": _ban_changes(),
    }


def _remove_ban() -> dict[str, Any]:
    return {
        "operationId": "remove_ban",
        "summary": "Remove a ban",
        "parameters": [
            _parameter("kind", _BAN_KIND, "What is banned", required=True),
            _parameter("name", _TEXT, "Its name", required=True),
            _wait("Seconds to wait for brokers"),
        ],
        "responses": _ban_changes(),
    }


def _ban_changes() -> dict[str, Any]:
    return {
        "200": _answer("It is stored, and all brokers apply it", "BanChange"),
        "202": _answer("It is stored; brokers that do not apply it yet are named", "BanChange"),
        **_problems(),
    }


def _parameter(name: str, schema: dict[str, Any], description: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def _wait(description: str) -> dict[str, Any]:
    return _parameter("wait", {"type": "number", "minimum": 0, "maximum": 60, "default": 10}, description)


def _answer(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": _json(_reference(schema))}


def _rules_answer(description: str, schema: str) -> dict[str, Any]:
    return {
        "description": description,
        "headers": {"ETag": {"description": "The version of the rules", "required": True, "schema": _TEXT}},
        "content": _json(_reference(schema)),
    }


def _problems() -> dict[str, Any]:
    content = {PROBLEM_TYPE: {"schema": _reference("Problem")}}
    return {str(int(status)): {"description": HTTPStatus(status).phrase, "content": content} for status in STATUSES}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: dict[str, Any], **others: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **others,
    }


def _schemas() -> dict[str, Any]:
    version = {"version": _NUMBER, "applied_at": _TEXT_OR_NULL, "applied_by": _TEXT_OR_NULL}
    broker = _object({"broker": _TEXT, "version": {"type": ["integer", "null"]}, "problem": _TEXT_OR_NULL})
    brokers = {"type": "array", "items": _reference("Broker")}
    return {
        "RuleTables": _object(
            {
                "broker": _object({"offline": {"type": "boolean"}}, required=[]),
                "storage": _TABLES,
                "mapping": _TABLES,
                "bridge": _TABLES,
            },
            required=[],
            description="The tables of a settings file, with the names that they have there: see conf/broker.toml.",
        ),
        "Rules": _object({**version, "rules": _reference("RuleTables"), "brokers": brokers}),
        "Change": _object({**version, "changes": {"type": "array", "items": _TEXT}, "behind": brokers}),
        "Broker": broker,
        "Client": _object(
            {
                "client_id": _TEXT,
                "user": _TEXT_OR_NULL,
                "broker": _TEXT_OR_NULL,
                "host": _TEXT_OR_NULL,
                "expires_at": _TEXT_OR_NULL,
                "subscriptions": _NUMBER,
            }
        ),
        "Clients": _object({"clients": {"type": "array", "items": _reference("Client")}, "more": {"type": "boolean"}}),
        "NewBan": _object(
            {
                "kind": _BAN_KIND,
                "name": _TEXT,
                "expires_in_s": {"type": ["integer", "null"], "minimum": 1},
                "reason": _TEXT,
            },
            required=["kind", "name"],
        ),
        "Ban": _object(
            {
                "kind": _BAN_KIND,
                "name": _TEXT,
                "until": _TEXT_OR_NULL,
                "reason": _TEXT_OR_NULL,
                "since": _TEXT,
                "by": _TEXT,
            }
        ),
        "Bans": _object(
            {
                "version": _NUMBER,
                "bans": {"type": "array", "items": _reference("Ban")},
                "more": {"type": "boolean"},
            }
        ),
        "BanChange": _object({"version": _NUMBER, "kind": _BAN_KIND, "name": _TEXT, "behind": brokers}),
        "Disconnected": _object({"client_id": _TEXT, "outcome": _TEXT, "broker": _TEXT_OR_NULL}),
        "Problem": _object(
            {
                "type": _TEXT,
                "title": _TEXT,
                "status": _NUMBER,
                "detail": _TEXT,
                "code": _TEXT,
                "retriable": {"type": "boolean"},
                "details": {"type": "object"},
            }
        ),
    }
