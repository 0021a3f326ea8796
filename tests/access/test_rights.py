"""The table of rights has a row for every operation of every way in, and the documentation shows this table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import Route

from broker_adapter.mqtt.admin.openapi import openapi_document
from journal.access.authenticator import AuthenticatedPrincipal
from journal.access.rights import TABLE, Operation, Right, Row, shards_delivered, subscription_use
from journal.access.rules import AccessRule, AccessRules, User
from journal.protocol import Op
from journal.server.admin.endpoints import ENDPOINTS, PREFIX
from journal.server.admin.openapi import DOCUMENT_PATH
from journal.server.console import console_routes
from journal.server.http import make_app
from journal.server.json_protocol import messages
from tests.documents.pages import REPOSITORY

SENT_BY_THE_SERVER = {Op.APPENDED, Op.PUSH, Op.SHARD_EVENT}
PAGE = REPOSITORY / "docs" / "security.md"


def test_every_operation_has_one_row() -> None:
    assert set(TABLE) == set(Operation)


def test_every_frame_of_a_client_has_a_row() -> None:
    assert {name for row in TABLE.values() for name in row.frames} == {op.name for op in set(Op) - SENT_BY_THE_SERVER}


def test_every_json_operation_has_a_row() -> None:
    assert {name for row in TABLE.values() for name in row.json} == set(messages.OPERATIONS)


def test_every_endpoint_of_the_administration_has_a_row() -> None:
    expected = {f"{each.method} {PREFIX}{each.path}" for each in ENDPOINTS} | {f"GET {DOCUMENT_PATH}"}
    assert {name for row in TABLE.values() for name in row.http if PREFIX in name} == expected


def test_every_other_page_over_http_has_a_row() -> None:
    app = make_app(list, bytes, console_routes(1))
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    shown = {name.removeprefix("GET ") for row in TABLE.values() for name in row.http if PREFIX not in name}
    assert {path if not path.startswith("/console/") else "/console/" for path in paths} == shown


def test_no_module_of_the_server_decides_about_rights_without_the_table() -> None:
    """They name an operation; the rights that it needs are the table's business."""
    for path in Path(REPOSITORY, "journal", "server").rglob("*.py"):
        assert not re.search(r"\.may\(|\bAction\.|\bResource\.", path.read_text()), path


def test_the_documentation_shows_the_table() -> None:
    rows = [row for row in TABLE.values() if not row.broker]
    assert table_under("| operation | needs | frames | JSON | HTTP |", len(rows)) == [line_of(row) for row in rows]


def test_the_documentation_shows_the_table_of_operations_at_brokers() -> None:
    rows = [row for row in TABLE.values() if row.broker]
    shown = table_under("| operation at a broker | needs | HTTP |", len(rows))
    assert shown == [f"| {row.operation} | {needs_of(row)} | {names_of(row.broker)} |" for row in rows]


def test_every_page_of_the_administration_of_brokers_has_a_row() -> None:
    paths = openapi_document("")["paths"]
    expected = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert {name for row in TABLE.values() for name in row.broker} == expected


def table_under(heading: str, count: int) -> list[str]:
    """The rows of a table of the page, from which the right ones can be pasted."""
    lines = PAGE.read_text().splitlines()
    start = lines.index(heading) + 2
    return lines[start : start + count]


@pytest.mark.parametrize(
    ("target", "delivered"),
    [
        ({"topic_filter": "open/#"}, None),
        ({"topic_filter": "open/x"}, None),
        ({"shard": "open/x"}, None),
        ({"topic_filter": "#"}, {"open/x"}),
        ({"topic_filter": "+/x", "group": "g"}, {"open/x"}),
    ],
    ids=str,
)
def test_shards_are_checked_one_by_one_only_where_a_rule_denies_a_part(
    target: dict[str, str], delivered: set[str] | None
) -> None:
    rules = AccessRules([AccessRule(False, ("secret/#",)), AccessRule(True, ("#",))], default=False)
    anna = AuthenticatedPrincipal("anna", rules.permissions_of(User("anna")))
    use = subscription_use(**{"shard": None, "topic_filter": None, "group": None, **target})
    may_deliver = shards_delivered(use, anna)
    if delivered is None:
        assert may_deliver is None
    else:
        assert may_deliver is not None
        assert {name for name in ("open/x", "secret/x") if may_deliver(name)} == delivered


def line_of(row: Row) -> str:
    """A row as the page shows it."""
    ways_in = map(names_of, (row.frames, row.json, row.http))
    return f"| {row.operation} | {needs_of(row)} | {' | '.join(ways_in)} |".replace("  ", " ")


def needs_of(row: Row) -> str:
    needs = " or ".join(" and ".join(map(words_of, way)) for way in row.ways)
    return needs or ("nothing, not even a login" if row.without_login else "a login")


def names_of(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def words_of(right: Right) -> str:
    return f"`{right.action}` {right.resource}"
