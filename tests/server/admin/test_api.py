"""The administration API over real HTTP: what each endpoint does, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from journal.protocol import Op, messages
from journal.server import shard_operations
from journal.settings.server import OnFailure
from shards.model import Mode
from tests.patience import PATIENCE_S
from tests.server.json_protocol.talking import talking
from tests.server.serving import Served, serving


@asynccontextmanager
async def admin(served: Served, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    base = f"http://127.0.0.1:{served.ports['http']}/api/v1"
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=PATIENCE_S) as client:
        yield client


async def test_answers_are_never_cached_and_never_taken_for_a_page(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, admin(served) as client:
        for path, status in (("/node", 200), ("/shards", 200), ("/shard?name=<script>", 404), ("/nothing", 404)):
            answer = await client.get(path)
            assert answer.status_code == status
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_shard_from_its_creation_to_its_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, admin(served) as client, talking(served) as talker:
        name = "plant/../1 ä?&"
        created = await client.post("/shards", json={"name": name, "retention": {"max_bytes": 1_000_000}})
        assert created.status_code == 201
        assert created.json()["config"]["retention"]["max_bytes"] == 1_000_000
        again = await client.post("/shards", json={"name": name, "exist_ok": True})
        assert again.json() == created.json()
        assert (await client.post("/shards", json={"name": name})).json()["code"] == "shard_exists"

        shard = {"name": name}
        await talker.append(name, "0", "1", "2")
        found = (await client.get("/shard", params=shard)).json()
        assert (found["next_offset"], len(found["segments"])) == (3, 1)
        changed = await client.patch("/shard", params=shard, json={"segment_bytes": 131_072})
        assert changed.json()["config"] == {
            **found["config"],
            "segment_bytes": 131_072,
        }
        switched = await client.put("/shard/mode", params=shard, json={"mode": "memory"})
        assert switched.json()["config"]["mode"] == "memory"
        await talker.append(name, "3")
        sealed = (await client.post("/shard/roll", params=shard)).json()
        assert [(segment["kind"], segment["closed"]) for segment in sealed["segments"]] == [
            ("log", True),
            ("memory", True),
            ("memory", False),
        ]
        trimmed = await client.post("/shard/trim", params=shard, json={"before_offset": 3})
        assert trimmed.json()["start_offset"] == 3
        gone = await client.delete("/shard", params=shard)
        assert (gone.status_code, gone.content) == (204, b"")
        assert (await client.get("/shard", params=shard)).json()["code"] == "shard_not_found"


async def test_shards_are_listed_by_filter_and_page(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, admin(served) as client:
        for name in ("a/1", "a/2", "a/3", "b"):
            await client.post("/shards", json={"name": name, "mode": "memory"})
        page = (await client.get("/shards", params={"filter": "a/+", "limit": 2})).json()
        assert ([shard["name"] for shard in page["shards"]], page["more"]) == (["a/1", "a/2"], True)
        page = (await client.get("/shards", params={"filter": "a/+", "limit": 2, "after": "a/2"})).json()
        assert ([shard["name"] for shard in page["shards"]], page["more"]) == (["a/3"], False)
        assert {shard["config"]["mode"] for shard in page["shards"]} == {Mode.MEMORY}


async def test_cursors_tell_how_far_they_are_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, admin(served) as client, talking(served) as talker:
        for shard in ("a", "b"):
            await talker.append(shard, *"01234", create={})
        commands = served.engine.parts.commands
        await commands.commit_cursor("a", "billing", 1, None)
        cursor = await commands.commit_cursor("a", "history", 5, None)
        await commands.commit_cursor("b", "billing", 2, None)
        await commands.trim("a", 3)
        page = (await client.get("/cursors")).json()
        assert [
            (each["shard"], each["name"], each["lag_records"], each["lost_records"]) for each in page["cursors"]
        ] == [
            ("a", "billing", 2, 2),
            ("a", "history", 0, 0),
            ("b", "billing", 3, 0),
        ]
        assert (page["more"], page["after"]) == (False, "b")
        page = (await client.get("/cursors", params={"limit": 1})).json()
        assert (page["more"], page["after"], len(page["cursors"])) == (True, "a", 2)
        wanted = {"shard": "a", "name": "history"}
        conflict = await client.delete("/cursor", params={**wanted, "version": cursor.version + 1})
        assert (conflict.status_code, conflict.json()["code"]) == (409, "version_conflict")
        assert conflict.json()["details"]["found_version"] == cursor.version
        assert (await client.delete("/cursor", params={**wanted, "version": cursor.version})).status_code == 204
        assert len((await client.get("/cursors", params={"filter": "a"})).json()["cursors"]) == 1


async def test_a_page_of_cursors_is_bounded_however_many_a_shard_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counted shards alone, so 100,000 cursors of one shard were an answer of 28 MB."""
    monkeypatch.setattr(shard_operations, "LARGEST_PAGE", 3)
    async with serving(tmp_path) as served, admin(served) as client, talking(served) as talker:
        expected = []
        for shard, number in (("a", 7), ("b", 0), ("c", 2), ("d", 1)):
            await talker.append(shard, "x", create={})
            for name in "1234567"[:number]:
                await served.engine.commit_cursor(shard, name, 0, None)
                expected.append((shard, name))
        found, place = [], {}
        while True:
            page = (await client.get("/cursors", params=place)).json()
            assert len(page["cursors"]) <= 3
            found += [(each["shard"], each["name"]) for each in page["cursors"]]
            if not page["more"]:
                break
            place = {"after": page["after"], "after_cursor": page["after_cursor"]}
        assert found == expected
        elsewhere = {"filter": "c", "after": "a", "after_cursor": "1"}
        page = (await client.get("/cursors", params=elsewhere)).json()
        assert {each["shard"] for each in page["cursors"]} == {"c"}


async def test_connections_and_subscriptions_of_every_protocol(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, admin(served) as client:
        async with talking(served, client="page") as talker, served.client() as native:
            await native.call(Op.SUBSCRIBE, messages.SubscribeRequest(9, filter="a/#", credit_bytes=77))
            await talker.call("tail", tail=4, filter="#")
            found = (await client.get("/connections")).json()
            assert [(each["transport"], each["client"], each["subscriptions"]) for each in found["connections"]] == [
                ("json", "page", 1),
                ("tcp", "test", 1),
            ]
            assert all(each["peer"].startswith("127.0.0.1:") for each in found["connections"])
            subscriptions = (await client.get("/subscriptions")).json()["subscriptions"]
            assert [(each["number"], each["target"]) for each in subscriptions] == [(4, "#"), (9, "a/#")]
            assert subscriptions[1]["credit_bytes"] == 77
            page = (await client.get("/connections", params={"limit": 1})).json()
            assert (len(page["connections"]), page["more"]) == (1, True)
            after = page["connections"][0]["number"]
            page = (await client.get("/connections", params={"after": after})).json()
            assert (len(page["connections"]), page["more"]) == (1, False)
        with trio.fail_after(PATIENCE_S):
            while (await client.get("/connections")).json()["connections"]:
                pass


async def test_the_node_says_whether_it_is_ready_and_why_not(tmp_path: Path) -> None:
    async with serving(tmp_path, storage__on_failure=OnFailure.READ_ONLY) as served, admin(served) as client:
        node = (await client.get("/node")).json()
        assert (node["node_id"], node["ready"], node["reasons"]) == (served.engine.node_id, True, [])
        assert node["statistics"]["shards"] == 0
        assert {address.partition("=")[0] for address in node["addresses"]} == {"tcp", "websocket", "http"}
        served.engine.parts.committer.fail(OSError(5, "Input/output error"))
        node = (await client.get("/node")).json()
        assert node["ready"] is False
        assert "Input/output error" in node["reasons"][0]
        refused = await client.post("/shards", json={"name": "a"})
        assert (refused.status_code, refused.json()["code"]) == (500, "storage_failed")


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code", "words"),
    [
        ("GET", "/shard", {"params": {"name": "none"}}, 404, "shard_not_found", "none"),
        ("GET", "/shard", {}, 400, "invalid_request", "name"),
        ("GET", "/shard", {"params": {"nmae": "a"}}, 400, "invalid_request", "nmae"),
        ("GET", "/shard", {"params": [("name", "a"), ("name", "b")]}, 400, "invalid_request", "more than once"),
        ("GET", "/shards", {"params": {"limit": 0}}, 400, "invalid_request", "$.limit"),
        ("GET", "/shards", {"params": {"limit": "x"}}, 400, "invalid_request", "$.limit"),
        ("GET", "/shards", {"params": {"filter": "a/#/b"}}, 400, "invalid_name", "a/#/b"),
        ("POST", "/shards", {"json": {"name": "a+"}}, 400, "invalid_name", "'+'"),
        ("POST", "/shards", {"json": {"name": "a", "mod": "file"}}, 400, "invalid_request", "mod"),
        ("POST", "/shards", {"json": {"name": "a", "retention": {"max_age": 1}}}, 400, "invalid_request", "max_age"),
        ("POST", "/shards", {"json": {"name": "a", "segment_bytes": -1}}, 400, "invalid_request", "segment_bytes"),
        ("POST", "/shards", {"content": b'{"name": "a"}'}, 415, "not_json", "application/json"),
        ("POST", "/shards", {"json": {"name": "x" * 70_000}}, 413, "body_too_large", "65536"),
        (
            "POST",
            "/shards",
            {"content": b"[" * 60_000, "headers": {"content-type": "application/json"}},
            400,
            "invalid_request",
            "body",
        ),
        ("PATCH", "/shard", {"params": {"name": "a"}, "json": {}}, 400, "invalid_request", "retention"),
        ("PUT", "/shard/mode", {"params": {"name": "a"}, "json": {"mode": "x"}}, 400, "invalid_request", "$.mode"),
        (
            "POST",
            "/shard/trim",
            {"params": {"name": "here"}, "json": {"before_offset": 9}},
            409,
            "offset_out_of_range",
            "9",
        ),
        ("PUT", "/shards", {}, 405, "method_not_allowed", "GET, POST"),
        ("TRACE", "/node", {}, 405, "method_not_allowed", "GET"),
        ("GET", "/nothing/at/all", {}, 404, "not_found", "openapi.json"),
        ("GET", "/node", {"headers": {"authorization": "Digest x"}}, 401, "authentication_failed", "Bearer"),
        ("GET", "/node", {"headers": {"authorization": "Basic !"}}, 401, "authentication_failed", "Basic"),
        ("GET", "/node", {"headers": {"origin": "https://example.com"}}, 403, "origin_refused", "websocket_origins"),
        ("GET", "/node", {"headers": {"host": "example.com"}}, 403, "origin_refused", "websocket_origins"),
    ],
)
async def test_what_is_refused_is_a_problem_that_says_why(
    tmp_path: Path, method: str, path: str, sent: dict[str, Any], status: int, code: str, words: str
) -> None:
    async with serving(tmp_path) as served, admin(served) as client:
        await client.post("/shards", json={"name": "here"})
        answer = await client.request(method, path, **sent)
        problem = answer.json()
        assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
        assert answer.headers["content-type"] == "application/problem+json"
        assert words in problem["detail"]
        assert len(problem["detail"]) < 1_000
        assert problem["type"] == f"urn:journal-engine:error:{code}"
        assert ("www-authenticate" in answer.headers) == (status == 401)
        assert ("allow" in answer.headers) == (status == 405)
        assert served.server.statistics.errors == {code: 1}


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from journal.server.admin import api

    monkeypatch.setattr(api, "BODY_TIMEOUT_S", 0.2)
    async with serving(tmp_path) as served:
        async with await trio.open_tcp_stream("127.0.0.1", served.ports["http"]) as stream:
            await stream.send_all(
                b"POST /api/v1/shards HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 100\r\n\r\n{"name'
            )
            with trio.fail_after(PATIENCE_S):
                assert b" 408 " in await stream.receive_some()
