"""`/api/v1/rules` of a broker: the functions of `journal-broker rules` and `journal-broker apply` over HTTP.

The journal server has no knowledge of bridges and sinks, so brokers serve these requests. Only users listed in
``access.administrators`` are allowed, even from loopback: rules make a broker write files and connect to any address.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
import structlog

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import InvalidRequestError, StorageError
from broker_adapter.mqtt.admin.administration import (
    JSON,
    Administration,
    Asker,
    AtWork,
    query_of,
    require_wait,
)
from broker_adapter.mqtt.admin.openapi import DOCUMENT_PATH, RULES_PATH, openapi_document
from broker_adapter.mqtt.admin.problems import NotADocumentError, RulesUnknownError
from broker_adapter.mqtt.rules.differences import HIDDEN, differences
from broker_adapter.mqtt.rules.followers import wait_followed
from broker_adapter.mqtt.rules.report import brokers, look, report, version_of
from broker_adapter.mqtt.rules.rule_set import RuleSet, RulesRefusedError, check_rules
from broker_adapter.mqtt.rules.store import Applied, apply_rules, read_rules, require_version
from broker_adapter.mqtt.rules.stored import StoredRules
from journal.access.rights import Operation
from journal.settings.values import ConfigurationError
from journal.telemetry.http_pages import Page, Reply, Request, Resource
from shards.seams.clock import Clock

MAX_BODY_BYTES: Final = 256 * 1024
_TOML: Final = "application/toml"
_ENTITY_TAG: Final = re.compile(r'"(\d{1,18})"')
_SOURCE: Final = "the request"

_T = TypeVar("_T")

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class _ChangeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query parameters of a change.

    Attributes:
        wait: For how many seconds to retry while the store does not answer, and to wait for brokers.
        dry_run: Return what would change; change nothing.
    """

    wait: float = 10.0
    dry_run: bool = False


def rules_pages(administration: Administration, version: str) -> dict[str, Page | Resource]:
    """The pages, by path.

    Args:
        administration: Authenticates the askers.
        version: Version of the program.
    """
    pages = _RulesPages(administration)
    document = msgspec.json.encode(openapi_document(version))

    async def openapi(_request: Request) -> Reply:
        return Reply(document, content_type=JSON)

    methods = {
        "GET": administration.page(Operation.SEE_BROKER_RULES, pages.get),
        "PUT": administration.page(Operation.CHANGE_BROKER_RULES, pages.put),
    }
    return {RULES_PATH: Resource(methods, MAX_BODY_BYTES), DOCUMENT_PATH: openapi}


class _RulesPages:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def get(self, request: Request, _asker: Asker) -> Reply:
        if request.query:
            raise InvalidRequestError("GET has no query parameters here")
        stored, followers = await look(self._administration.ready.adapter)
        return _reply(_known(lambda: report(stored, followers)), stored)

    async def put(self, request: Request, asker: Asker) -> Reply:
        outcome, version = "internal_error", 0
        try:
            query = query_of(request.query, _ChangeQuery)
            require_wait(query.wait)
            rules = _rules(request)
            expected_version = _expected_version(request.headers)
            on = self._administration.ready
            if query.dry_run:
                outcome = "nothing to change"
                return await _would_change(on.adapter, rules, expected_version)
            if not on.is_shared:
                raise RulesRefusedError(
                    "the store of this broker is not shared: its rules are those of the broker's settings, read at "
                    "each start; change them there"
                )
            clock = self._administration.clock
            applied = await _apply(on, rules, asker, expected_version, query.wait, clock)
            outcome, version = "ok" if applied.changes else "unchanged", applied.stored.version
            behind = await wait_followed(on.adapter, version, timeout_s=query.wait)
        except StorageError as error:
            outcome = error.code
            raise
        finally:
            log.info("rules received over HTTP", user=asker.name, peer=asker.peer, outcome=outcome, version=version)
            target = f"version {version}" if version else ""
            self._administration.audit.record("rules", by=asker.name, peer=asker.peer, target=target, outcome=outcome)
        body = {**version_of(applied.stored), "changes": applied.changes, "behind": brokers(behind)}
        return _reply(body, applied.stored, HTTPStatus.ACCEPTED if behind else HTTPStatus.OK)


async def _apply(
    on: AtWork, rules: RuleSet, asker: Asker, expected_version: int | None, within_s: float, clock: Clock
) -> Applied:
    try:
        return await apply_rules(
            on.adapter,
            rules,
            source=_SOURCE,
            by=asker.at(on.broker_id),
            clock=clock,
            expected_version=expected_version,
            within_s=within_s,
        )
    except ConfigurationError as error:
        raise RulesUnknownError(str(error)) from error


async def _would_change(adapter: StorageAdapter, rules: RuleSet, expected_version: int | None) -> Reply:
    stored = await read_rules(adapter)
    present = _known(lambda: RuleSet() if stored is None else stored.rules)
    changes = differences(present, rules, "the store", _SOURCE)
    if changes:
        require_version(stored, expected_version)
    return _reply({**version_of(stored), "changes": changes, "behind": []}, stored)


def _known(make: Callable[[], _T]) -> _T:
    """Call ``make``, and convert its error about rules of the store that are unknown to this version."""
    try:
        return make()
    except ConfigurationError as error:
        raise RulesUnknownError(str(error)) from error


def _expected_version(headers: Mapping[str, str]) -> int | None:
    tag = headers.get("if-match")
    if tag is None:
        return None
    found = _ENTITY_TAG.fullmatch(tag.strip())
    if found is None:
        raise InvalidRequestError(
            f'If-Match: {tag[:100]!a} is not a version; use the ETag of a response, such as "3" with its quotation '
            'marks, or "0" if there should be no rules yet'
        )
    return int(found[1])


def _rules(request: Request) -> RuleSet:
    """The rules in a request body, with the checks of a settings file."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    parse = _PARSERS.get(kind)
    if parse is None:
        raise NotADocumentError(f"the body has {kind[:100] or 'no content type'}; send it as {' or '.join(_PARSERS)}")
    try:
        tables = parse(request.body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not valid {kind}: {error}") from error
    _require_shown(tables)
    try:
        return check_rules(tables, _SOURCE)
    except ConfigurationError as error:
        raise InvalidRequestError(str(error)) from error


def _require_shown(tables: Mapping[str, Any]) -> None:
    """Refuse the placeholder that responses have in place of a secret: it would be stored as the secret."""
    bridges = tables.get("bridge")
    for table in bridges if isinstance(bridges, list) else []:
        sink = table.get("sink") if isinstance(table, dict) else None
        for name, value in sink.items() if isinstance(sink, dict) else ():
            if value == HIDDEN:
                raise InvalidRequestError(
                    f"[[bridge]] {table.get('name')}: sink.{name} is {HIDDEN!r}, the placeholder of responses for what "
                    "may be a secret; give its value"
                )


def _json(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def _toml(body: bytes) -> dict[str, Any]:
    return tomllib.loads(body.decode())


_PARSERS: Final[dict[str, Callable[[bytes], dict[str, Any]]]] = {JSON: _json, _TOML: _toml}


def _reply(body: object, stored: StoredRules | None, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    tag = f'"{0 if stored is None else stored.version}"'
    return Reply(msgspec.json.encode(body) + b"\n", status, JSON, headers={"ETag": tag})
