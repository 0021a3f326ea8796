"""Every HTTP endpoint is refused to clients without credentials, and to users without the right."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from journal.server.admin.endpoints import ENDPOINTS
from journal.settings.access import QuotaTable
from shards.errors import StorageFailedError
from tests.server.admin.test_api import admin
from tests.server.json_protocol.talking import talking
from tests.server.people import EXPIRED_TOKEN, PASSWORD, TOKEN, guarded, rule
from tests.server.serving import Served, serving

RULES: Final = (
    rule("elsewhere/#", principal="anna"),
    rule("#", principal="admin"),
    rule("#", principal="robot", actions=("read",)),
)
NAMED: Final = {"params": {"name": "plant/1"}}
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "list_shards": {"params": {"filter": "plant/#"}},
    "create_shard": {"json": {"name": "plant/2"}},
    "describe_shard": NAMED,
    "configure_shard": {**NAMED, "json": {"segment_bytes": 1_000_000}},
    "delete_shard": NAMED,
    "set_mode": {**NAMED, "json": {"mode": "memory"}},
    "roll": NAMED,
    "trim": {**NAMED, "json": {"before_offset": 1}},
    "list_cursors": {"params": {"filter": "plant/#"}},
    "cursor_delete": {"params": {"shard": "plant/1", "name": "c"}},
    "list_queues": {},
    "list_connections": {},
    "list_subscriptions": {},
    "describe_node": {},
}
READING: Final = {"list_shards", "describe_shard", "list_cursors"}
"""What who may read may look at, without being an administrator."""


def test_the_table_has_every_endpoint() -> None:
    assert set(REQUESTS) == {endpoint.name for endpoint in ENDPOINTS}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


ADMIN: Final = basic("admin", PASSWORD)


@asynccontextmanager
async def plant(path: Path, **changes: Any) -> AsyncIterator[Served]:
    async with guarded(path, *RULES, **changes) as served:
        async with talking(served, user="admin", password=PASSWORD) as talker:
            await talker.append("plant/1", "secret", create={})
        await served.engine.commit_cursor("plant/1", "c", 0, None)
        yield served


def untouched(served: Served) -> None:
    info = served.engine.parts.table.by_name("plant/1").info(with_segments=True)
    assert (info.start_offset, info.config.mode, info.config.segment_bytes, len(info.segments)) == (0, "file", 0, 1)
    assert [cursor.name for cursor in served.engine.list_cursors("plant/1")] == ["c"]
    assert len(served.engine.parts.table.catalogue) == 1


@pytest.mark.few_cases(2, "a client for each way in")
@pytest.mark.parametrize(
    "credentials",
    [
        None,
        basic("anna", "guess"),
        basic("eve", PASSWORD),
        basic("admin", ""),
        f"Bearer {EXPIRED_TOKEN}",
        "Bearer guess",
        "Bearer",
        f"Bearer {PASSWORD}",
    ],
)
async def test_who_cannot_show_who_it_is_may_do_nothing(tmp_path: Path, credentials: str | None) -> None:
    headers = {} if credentials is None else {"authorization": credentials}
    async with plant(tmp_path) as served, admin(served, **headers) as client:
        for endpoint in ENDPOINTS:
            answer = await client.request(endpoint.method, endpoint.path, **REQUESTS[endpoint.name])
            assert (answer.status_code, answer.json()["code"]) == (401, "authentication_failed"), endpoint.name
            assert "Bearer" in answer.headers["www-authenticate"]
        untouched(served)


async def test_who_may_something_elsewhere_may_nothing_here(tmp_path: Path) -> None:
    async with plant(tmp_path) as served, admin(served, authorization=basic("anna", PASSWORD)) as client:
        for endpoint in ENDPOINTS:
            answer = await client.request(endpoint.method, endpoint.path, **REQUESTS[endpoint.name])
            assert (answer.status_code, answer.json()["code"]) == (403, "not_authorized"), endpoint.name
        untouched(served)
        assert (await client.post("/shards", json={"name": "elsewhere/1"})).status_code == 201
        assert (await client.get("/shards", params={"filter": "elsewhere/#"})).status_code == 200


async def test_who_may_read_looks_and_changes_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path) as served, admin(served, authorization=f"Bearer {TOKEN}") as client:
        for endpoint in ENDPOINTS:
            answer = await client.request(endpoint.method, endpoint.path, **REQUESTS[endpoint.name])
            assert answer.status_code == (200 if endpoint.name in READING else 403), endpoint.name
        untouched(served)


async def test_what_was_done_is_recorded_with_what_came_of_it(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with plant(tmp_path, access__audit_file=str(audit)) as served:
        async with admin(served, authorization=ADMIN) as client:
            for endpoint in ENDPOINTS:
                await client.request(endpoint.method, endpoint.path, **REQUESTS[endpoint.name])
        async with admin(served, authorization=f"Bearer {TOKEN}") as client:
            await client.delete("/shard", **NAMED)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    changing = {endpoint.name for endpoint in ENDPOINTS if endpoint.changes} | {"login"}
    refused = [line for line in lines if line["act"] not in changing]
    lines = [line for line in lines if line["act"] in changing]
    assert [(line["principal"], line["act"], line["target"], line["outcome"]) for line in lines] == [
        ("admin", "login", "", "ok"),
        ("admin", "create_shard", "plant/2", "ok"),
        ("admin", "configure_shard", "plant/1", "ok"),
        ("admin", "delete_shard", "plant/1", "ok"),
        ("admin", "set_mode", "plant/1", "shard_not_found"),
        ("admin", "roll", "plant/1", "shard_not_found"),
        ("admin", "trim", "plant/1", "shard_not_found"),
        ("admin", "cursor_delete", "plant/1", "shard_not_found"),
        ("robot", "login", "", "ok"),
        ("robot", "delete_shard", "plant/1", "not_authorized"),
    ]
    # What no rule of theirs allows, although they change nothing.
    assert [(line["principal"], line["act"]) for line in refused] == [("admin", "list_queues")]
    assert [line.get("cursor", "") for line in lines if line["act"] == "cursor_delete"] == ["c"]
    assert all(line["peer"].startswith("127.0.0.1:") for line in lines)


async def test_the_quota_of_shards_holds_here_too(tmp_path: Path) -> None:
    quota = QuotaTable(principal="anna", topics=("elsewhere/#",), shards=1)
    async with plant(tmp_path, quotas=(quota,)) as served:
        async with admin(served, authorization=basic("anna", PASSWORD)) as client:
            assert (await client.post("/shards", json={"name": "elsewhere/1"})).status_code == 201
            refused = await client.post("/shards", json={"name": "elsewhere/2"})
            assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
            assert refused.headers["retry-after"] == "1"
        async with admin(served, authorization=ADMIN) as client:
            assert (await client.post("/shards", json={"name": "plant/2"})).status_code == 201


# Health and metrics

OBSERVERS: Final[list[tuple[str, str | None, int]]] = [
    ("nothing", None, 401),
    ("a wrong password", basic("admin", "guess"), 401),
    ("an expired token", f"Bearer {EXPIRED_TOKEN}", 401),
    ("no credentials that are known here", "Digest x", 401),
    ("a right elsewhere", basic("anna", PASSWORD), 403),
    ("the right to look at metrics", basic("bob", PASSWORD), 200),
    ("the right to read everything", f"Bearer {TOKEN}", 200),
    ("every right", ADMIN, 200),
]


@pytest.mark.parametrize(
    ("credentials", "status"), [pytest.param(given, status, id=name) for name, given, status in OBSERVERS]
)
async def test_metrics_and_reasons_are_for_those_who_may_look_and_health_is_for_all(
    tmp_path: Path, credentials: str | None, status: int
) -> None:
    headers = {} if credentials is None else {"authorization": credentials}
    rules = (*RULES, rule("$metrics", principal="bob", actions=("read",)))
    async with guarded(tmp_path, *rules) as served, admin(served, **headers) as client:
        base = f"http://127.0.0.1:{served.ports['http']}"
        page = await client.get(f"{base}/metrics")
        assert page.status_code == status
        assert ("journal_appends_total" in page.text) is (status == 200)
        assert ("www-authenticate" in page.headers) is (status == 401)
        assert (await client.get(f"{base}/livez")).text == "ok\n"
        assert (await client.get(f"{base}/readyz")).text == "ready\n"
        served.engine.parts.committer.failure = StorageFailedError("fsync of /secret/journal failed")
        ready = await client.get(f"{base}/readyz")
        assert ready.status_code == 503
        assert ("/secret/journal" in ready.text) is (status == 200)
        served.engine.parts.committer.failure = None


async def test_who_asks_whether_the_server_is_ready_is_no_refused_login(tmp_path: Path) -> None:
    """A probe that gives nothing comes every few seconds, and must neither fill the audit log nor be slowed down."""
    audit = tmp_path / "audit.jsonl"
    async with plant(tmp_path, access__audit_file=str(audit)) as served, admin(served) as client:
        before = audit.read_text()
        served.engine.parts.committer.failure = StorageFailedError("broken")
        assert (await client.get(f"http://127.0.0.1:{served.ports['http']}/readyz")).status_code == 503
        served.engine.parts.committer.failure = None
        assert audit.read_text() == before
        assert not served.server.statistics.errors


async def test_without_authentication_everybody_may_look(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, admin(served) as client:
        base = f"http://127.0.0.1:{served.ports['http']}"
        assert (await client.get(f"{base}/metrics")).status_code == 200
        served.engine.parts.committer.failure = StorageFailedError("broken")
        assert "broken" in (await client.get(f"{base}/readyz")).text
        served.engine.parts.committer.failure = None
