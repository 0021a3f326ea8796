"""Whatever is added to a way into the server has to be tried by the generator, or it has to be said here why not."""

from __future__ import annotations

from typing import Final

import pytest
from starlette.routing import Route

from journal.access.rights import TABLE
from journal.cli import main
from tests.access import test_rights as rights_tests
from tests.rights.deeds import NEEDS
from tests.rights.ways import COMMANDS, WAYS

FRAMES: Final = {
    "STATUS": "node",
    "SNAPSHOT": "snapshot",
    "END_CLIENT": "end another",
    "CREATE_SHARD": "create",
    "OPEN_SHARD": "open",
    "LIST_SHARDS": "list",
    "DESCRIBE_SHARD": "describe",
    "DELETE_SHARD": "delete",
    "SET_MODE": "set mode",
    "CONFIGURE_SHARD": "configure",
    "ROLL": "roll",
    "TRIM": "trim",
    "APPEND": "append",
    "FETCH": "read",
    "FIND_OFFSET": "find offset",
    "FETCH_INDEXED": "read by key",
    "SUBSCRIBE": "join filter",
    "CURSOR_GET": "cursor",
    "CURSOR_LIST": "cursors",
    "CURSOR_COMMIT": "set cursor",
    "CURSOR_DELETE": "delete cursor",
    "STATE_GET": "state",
    "STATE_PUT": "put state",
    "STATE_DELETE": "delete state",
    "STATE_SCAN": "states",
    "COMMIT": "commit",
    "PRODUCER_OPEN": "open producer",
}
JSON: Final = {"list": "list", "describe": "describe", "append": "append", "read": "read", "tail": "subscribe"}
HTTP: Final = {
    "GET /metrics": "metrics",
    "GET /api/v1/node": "node",
    "GET /api/v1/connections": "connections",
    "GET /api/v1/subscriptions": "subscriptions",
    "GET /api/v1/shards": "list",
    "POST /api/v1/shards": "create",
    "GET /api/v1/shard": "describe",
    "DELETE /api/v1/shard": "delete",
    "PATCH /api/v1/shard": "configure",
    "PUT /api/v1/shard/mode": "set mode",
    "POST /api/v1/shard/roll": "roll",
    "POST /api/v1/shard/trim": "trim",
    "GET /api/v1/cursors": "cursors of filter",
    "DELETE /api/v1/cursor": "delete cursor",
    "GET /api/v1/queues": "queues",
}
OF_COMMANDS: Final = {
    "shard create": "create",
    "shard list": "list",
    "shard show": "describe",
    "shard mode": "set mode",
    "shard set": "configure",
    "shard roll": "roll",
    "shard trim": "trim",
    "shard delete": "delete",
    "cursor list": "cursors",
    "cursor get": "cursor",
    "cursor set": "set cursor",
}
WITH_SIGNALS: Final = {"append", "read", "tail", "bench", "bench trace", "shard convert", "backup"}
"""Commands that must have a main thread or take long; they send frames that are tried as frames."""
OF_FILES: Final = {
    "serve",
    "config",
    "paths",
    "passwd",
    "token",
    "restore",
    "check",
    "compact",
    "dump",
    "cluster status",
}
"""Commands that send nothing to a server, or only ask whether it is alive."""


@pytest.mark.parametrize(("way", "tried"), [("frames", FRAMES), ("json", JSON), ("http", HTTP)])
def test_every_operation_that_needs_a_right_is_tried(way: str, tried: dict[str, str]) -> None:
    assert {name for row in TABLE.values() if row.ways for name in getattr(row, way)} == set(tried)
    assert set(tried.values()) <= set(WAYS[way])


def test_every_command_is_tried_or_sends_nothing_of_its_own() -> None:
    assert set(main.COMMANDS) == {*OF_COMMANDS, *WITH_SIGNALS, *OF_FILES}
    assert set(OF_COMMANDS.values()) == set(COMMANDS)


def test_every_kind_of_request_is_sent_over_some_way() -> None:
    assert set(NEEDS) == {kind for kinds in WAYS.values() for kind in kinds}


def test_a_new_operation_without_a_row_is_noticed_whatever_the_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class NewOp:
        name = "NEW"

    class NewEndpoint:
        method, path = "POST", "/new"

    class NewPage(Route):
        """A page of the console."""

    def routes(port: int | None) -> list[object]:
        return [*found(port), NewPage("/new", lambda request: None)]

    found = rights_tests.console_routes
    added = (
        (rights_tests, "Op", [*rights_tests.Op, NewOp()], rights_tests.test_every_frame_of_a_client_has_a_row),
        (
            rights_tests.messages,
            "OPERATIONS",
            (*rights_tests.messages.OPERATIONS, "new"),
            rights_tests.test_every_json_operation_has_a_row,
        ),
        (
            rights_tests,
            "ENDPOINTS",
            (*rights_tests.ENDPOINTS, NewEndpoint()),
            rights_tests.test_every_endpoint_of_the_administration_has_a_row,
        ),
        (rights_tests, "console_routes", routes, rights_tests.test_every_other_page_over_http_has_a_row),
        (main, "COMMANDS", {**main.COMMANDS, "new": ("", "")}, test_every_command_is_tried_or_sends_nothing_of_its_own),
    )
    for module, name, value, noticed in added:
        noticed()
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            with pytest.raises(AssertionError):
                noticed()
