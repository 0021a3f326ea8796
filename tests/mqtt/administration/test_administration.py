"""Rights at the administration of a broker, and the commands that docs/mqtt.md shows, with a real client.

Two brokers on a real server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from journal.access.rights import TABLE, Operation
from tests.mqtt.clients.paho_client import V5, PahoClient
from tests.mqtt.edges.test_broker_process import passwd
from tests.mqtt.rules.test_rules_over_http import ANNA, BERT, Asker, asked
from tests.mqtt.rules.test_two_brokers import Site, site

REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "GET /api/v1/rules": {},
    "PUT /api/v1/rules": {"json": {}},
    "GET /api/v1/clients": {},
    "DELETE /api/v1/client": {"params": {"client_id": "none"}},
}
"""A request for each page; what a page answers to those who may ask is 404 at most."""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, password in (ANNA, BERT):
        passwd(monkeypatch, tmp_path / "users", name, password)


@asynccontextmanager
async def asking(directory: Path) -> AsyncIterator[tuple[Site, Asker]]:
    async with site(directory) as there, asked(there) as (_, asker):
        yield there, asker


@pytest.mark.usefixtures("users")
async def test_each_operation_at_a_broker_needs_what_its_row_says(tmp_path: Path) -> None:
    """Anna is an administrator, Bert is a user; nobody else is anybody."""
    rows = [row for row in TABLE.values() if row.ways and row.broker]
    assert {name for row in rows for name in row.broker} == set(REQUESTS)
    async with asking(tmp_path) as (_, asker):
        for row in rows:
            for name in row.broker:
                method, path = name.split()
                answers = [
                    (await asker.ask(method, path, auth=auth, **REQUESTS[name])).status_code
                    for auth in (ANNA, BERT, None, ("anna", "wrong"), ("x", "x"))
                ]
                assert answers[0] in (200, 404), (name, answers)
                assert answers[1:] == [403, 401, 401, 401], (name, answers)
        open_rows = [row for row in TABLE.values() if row.broker and not row.ways]
        assert [row.operation for row in open_rows] == [Operation.READ_BROKER_API_DESCRIPTION]
        assert (await asker.ask("GET", "/api/v1/openapi.json", auth=None)).status_code == 200


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("method", "path", "problem"),
    [
        ("DELETE", "/api/v1/client", "client_id"),
        ("DELETE", "/api/v1/client?client_id=", "length >= 1"),
        ("DELETE", "/api/v1/client?client_id=a&wait=61", "out of bounds"),
        ("DELETE", "/api/v1/client?client_id=a&client_id=b", "more than once"),
        ("DELETE", "/api/v1/client?client_id=a&force=1", "force"),
        ("GET", "/api/v1/clients?limit=0", "limit"),
        ("GET", "/api/v1/clients?limit=1001", "limit"),
    ],
)
async def test_requests_that_mean_nothing_are_refused(tmp_path: Path, method: str, path: str, problem: str) -> None:
    async with asking(tmp_path) as (_, asker):
        answer = await asker.ask(method, path)
        assert answer.status_code == 400
        assert problem in answer.json()["detail"]


@pytest.mark.slow("starts two brokers and commands")
@pytest.mark.usefixtures("users")
async def test_a_client_of_one_broker_is_disconnected_by_command_and_over_http_of_another(tmp_path: Path) -> None:
    audit = f'audit_file = "{tmp_path / "audit.jsonl"}"'
    async with (
        site(tmp_path) as there,
        there.broker("b", f"[access]\n{audit}\n") as other,
        asked(there, text="anonymous = true") as (_, asker),
    ):
        port = other.ports["mqtt"]

        def connect() -> PahoClient:
            return PahoClient(port, "gateway", version=V5, durable=True).__enter__()

        client = await trio.to_thread.run_sync(connect)
        try:
            assert (await listed(asker)) == [("gateway", None, "b", "127.0.0.1")]
            status, said = await there.command("clients", "list", "--json")
            assert (status, [json.loads(line)["client_id"] for line in said.splitlines()]) == (0, ["gateway"])

            status, said = await there.command("clients", "kick", "gateway")
            assert (status, said) == (0, "client gateway: disconnected, broker b\n")
            await other.said("disconnected by an administrator")
        finally:
            await trio.to_thread.run_sync(client.__exit__, None, None, None)
        ended = await asker.ask("DELETE", "/api/v1/client", params={"client_id": "gateway", "end_session": "true"})
        assert (ended.status_code, ended.json()["outcome"]) == (200, "session ended")
        assert await listed(asker) == []
        gone = await asker.ask("DELETE", "/api/v1/client", params={"client_id": "gateway"})
        assert (gone.status_code, gone.json()["code"]) == (404, "client_not_found")
        status, said = await there.command("clients", "kick", "gateway", "--json")
        assert (status, json.loads(said)["outcome"]) == (1, "no session")


async def listed(asker: Asker) -> list[tuple[str, str | None, str | None, str | None]]:
    clients = (await asker.ask("GET", "/api/v1/clients")).json()["clients"]
    return [(each["client_id"], each["user"] or None, each["broker"], each["host"]) for each in clients]


async def test_a_command_says_that_the_store_of_one_broker_is_out_of_its_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from broker_adapter.mqtt.cli.main import run

    status = await trio.to_thread.run_sync(run, ["clients", "list", "--store", f"embedded:{tmp_path}/none"])
    assert status != 0
    assert "ask that broker over HTTP (listen.http)" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
