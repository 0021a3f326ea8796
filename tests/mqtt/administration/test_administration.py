"""Rights at the administration of a broker, and the commands that docs/mqtt.md shows, with a real client.

Two brokers on a real server.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from broker_adapter.mqtt_codec import ReasonCode
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
    "GET /api/v1/bans": {},
    "POST /api/v1/bans": {"json": {"kind": "user", "name": "mallory"}},
    "DELETE /api/v1/ban": {"params": {"kind": "user", "name": "none"}},
}
"""A request for each page; what a page answers to those who may ask is 404 at most."""

MEANINGLESS: Final = [
    ("DELETE", "/api/v1/client", "client_id"),
    ("DELETE", "/api/v1/client?client_id=", "length >= 1"),
    ("DELETE", "/api/v1/client?client_id=a&wait=61", "out of bounds"),
    ("DELETE", "/api/v1/client?client_id=a&client_id=b", "more than once"),
    ("DELETE", "/api/v1/client?client_id=a&force=1", "force"),
    ("GET", "/api/v1/clients?limit=0", "limit"),
    ("GET", "/api/v1/clients?limit=1001", "limit"),
    ("DELETE", "/api/v1/ban?kind=user", "name"),
    ("DELETE", "/api/v1/ban?kind=host&name=a", "host"),
    ("DELETE", "/api/v1/ban?kind=network&name=192.0.2.7/24", "host bits set"),
    ("GET", "/api/v1/bans?limit=0", "limit"),
]
MEANINGLESS_BANS: Final[list[tuple[dict[str, Any], int, str]]] = [
    ({"json": {"kind": "user"}}, 400, "name"),
    ({"json": {"kind": "network", "name": "a.example"}}, 400, "give an address such as"),
    ({"json": {"kind": "user", "name": "a", "expires_in_s": 0}}, 400, "expires_in_s"),
    ({"json": {"kind": "user", "name": "a", "expires_in_s": 10**12}}, 400, "expires_in_s"),
    ({"json": {"kind": "user", "name": "a", "reason": "x" * 1001}}, 400, "reason"),
    ({"json": {"kind": "user", "name": "a", "for": "1h"}}, 400, "for"),
    ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "the body"),
    ({"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "send it as application/json"),
]


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
    """Anna is an administrator and Bert is a user; there are no others."""
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


@pytest.mark.few_cases(1, "a broker for each request")
@pytest.mark.usefixtures("users")
@pytest.mark.parametrize("name", REQUESTS)
async def test_pages_of_other_sites_may_not_use_the_credentials_of_a_browser(tmp_path: Path, name: str) -> None:
    method, path = name.split()
    async with asking(tmp_path) as (_, asker):
        answer = await asker.ask(method, path, headers={"Origin": "https://elsewhere.example"}, **REQUESTS[name])
        assert answer.status_code == 403
        assert answer.json()["code"] == "origin_refused"
        of_this_machine = await asker.ask(method, path, headers={"Origin": "http://localhost:8080"}, **REQUESTS[name])
        assert of_this_machine.status_code in (200, 404)


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


@pytest.mark.slow("starts a broker")
@pytest.mark.usefixtures("users")
async def test_requests_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, asker):
        for method, path, problem in MEANINGLESS:
            answer = await asker.ask(method, path)
            assert (answer.status_code, problem in answer.json()["detail"]) == (400, True), (path, answer.text)
        for body, status, problem in MEANINGLESS_BANS:
            answer = await asker.ask("POST", "/api/v1/bans", **body)
            assert (answer.status_code, problem in answer.json()["detail"]) == (status, True), answer.text
        assert (await asker.ask("GET", "/api/v1/bans")).json()["bans"] == []


@pytest.mark.slow("starts a broker and commands")
@pytest.mark.usefixtures("users")
async def test_bans_are_changed_over_http_within_their_number(tmp_path: Path) -> None:
    async with site(tmp_path) as there, asked(there, text="anonymous = true\nmax_bans = 3") as (broker, asker):
        for kind, name in (("user", "mallory"), ("network", "192.0.2.0/24"), ("client", "gateway")):
            added = await asker.ask("POST", "/api/v1/bans", json={"kind": kind, "name": name, "expires_in_s": 3600})
            assert (added.status_code, added.json()["behind"]) == (200, [])
        full = await asker.ask("POST", "/api/v1/bans", json={"kind": "user", "name": "one more"})
        assert (full.status_code, full.json()["code"]) == (409, "too_many_bans")
        async with broker.client() as client:
            assert (await client.connect("gateway")).reason_code == ReasonCode.BANNED
        metrics = (await asker.ask("GET", "/metrics")).text
        assert "journal_broker_bans 3\n" in metrics
        assert 'journal_broker_connections_refused_total{reason="banned"} 1\n' in metrics

        page = (await asker.ask("GET", "/api/v1/bans?limit=2")).json()
        assert ([each["name"] for each in page["bans"]], page["more"]) == (["gateway", "192.0.2.0/24"], True)
        rest = (await asker.ask("GET", "/api/v1/bans?after=network:192.0.2.0/24")).json()
        assert ([each["name"] for each in rest["bans"]], rest["more"]) == (["mallory"], False)
        assert rest["bans"][0]["by"] == "anna@a"

        for status in (200, 404):
            removed = await asker.ask("DELETE", "/api/v1/ban?kind=client&name=gateway")
            assert removed.status_code == status
        async with broker.client() as client:
            assert (await client.connect("gateway")).reason_code == ReasonCode.SUCCESS
        # As docs/mqtt.md shows the command.
        status, said = await there.command("ban", "add", "user", "line1-gateway", "--for", "2h", "--reason", "floods")
        assert (status, said.startswith("user line1-gateway: banned until ")) == (0, True)
        status, said = await there.command("ban", "remove", "user", "line1-gateway")
        assert (status, said) == (0, "user line1-gateway: not banned any more\n")
        status, said = await there.command("ban", "remove", "user", "line1-gateway")
        assert (status, "is not banned; `journal-broker ban list` shows all bans" in said) == (1, True)


@pytest.mark.slow("starts two brokers and a command")
@pytest.mark.usefixtures("users")
async def test_a_broker_that_does_not_apply_a_ban_is_named(tmp_path: Path) -> None:
    async with site(tmp_path) as there, there.broker("b") as frozen, asked(there) as (_, asker):
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            added = await asker.ask("POST", "/api/v1/bans?wait=0", json={"kind": "user", "name": "mallory"})
            assert added.status_code == 202
            assert "b" in [each["broker"] for each in added.json()["behind"]]
            status, said = await there.command("ban", "add", "user", "mallory", "--wait", "0")
            assert (status, "the broker b does not apply it" in said) == (1, True)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
