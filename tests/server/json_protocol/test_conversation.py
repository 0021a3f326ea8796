"""Requests and replies of the JSON sub-protocol over a real WebSocket."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionRejected

from journal.server.json_protocol import connection, operations
from shards.format.batch import encode
from shards.format.compression import Codec
from shards.format.record import Record
from tests.server.json_protocol.talking import RefusedError, talking
from tests.server.serving import serving


async def test_append_read_describe_and_list(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        appended = await talker.append("a/b", "0", "1", create={})
        assert appended == {"base_offset": 0, "level": "durable"}
        found = await talker.call("read", shard="a/b")
        assert [record["value"] for record in found["records"]] == ["0", "1"]
        assert [record["offset"] for record in found["records"]] == [0, 1]
        assert {name: found[name] for name in ("gaps", "next_offset", "start_offset", "end_offset")} == {
            "gaps": [],
            "next_offset": 2,
            "start_offset": 0,
            "end_offset": 2,
        }
        described = await talker.call("describe", shard="a/b")
        assert described["next_offset"] == 2
        assert [segment["kind"] for segment in described["segments"]] == ["log"]
        assert (await talker.append("a/c", "x", create={"mode": "memory"}))["level"] == "memory"
        listed = await talker.call("list", filter="a/+")
        assert [(shard["name"], shard["config"]["mode"]) for shard in listed["shards"]] == [
            ("a/b", "file"),
            ("a/c", "memory"),
        ]
        assert (await talker.call("list", filter="a/+", limit=1))["more"] is True
        assert (await talker.call("list", filter="a/+", after="a/b"))["more"] is False


async def test_what_one_protocol_appends_the_other_reads(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker, served.client() as native:
        record = {
            "value_base64": base64.b64encode(b"\xff\x00").decode(),
            "key": "k",
            "topic": "t/x",
            "timestamp_us": 5,
            "headers": [{"name": "h", "value": "v"}, {"name": "h", "value_base64": "gA=="}],
            "tags": ["red"],
            "expires_at_us": 2**52,
        }
        await talker.call("append", shard="a", records=[record, {"value": "ä"}], create={})
        handle = await native.open("a")
        assert await native.read_values(handle) == [b"\xff\x00", "ä".encode()]
        found = (await talker.call("read", shard="a"))["records"]
        assert {name: found[0][name] for name in record} == record
        assert found[1]["topic"] == "a"
        assert found[1]["value"] == "ä"
        await native.append_values(handle, b"n")
        assert (await talker.call("read", shard="a", start={"at": "offset", "value": 2}))["records"][0]["value"] == "n"


async def test_a_read_waits_for_a_record(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as reader, talking(served) as writer:
        await writer.append("a", "0", create={})
        waiting = await reader.start("read", shard="a", start={"at": "latest"}, wait_ms=10_000)
        assert await reader.call("ping") == {}
        await writer.append("a", "1")
        assert [record["value"] for record in (await reader.result(waiting))["records"]] == ["1"]
        empty = await reader.call("read", shard="a", start={"at": "latest"}, wait_ms=1)
        assert (empty["records"], empty["next_offset"]) == ([], 2)


async def test_appends_keep_their_order_however_many_are_under_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "first", create={})
        numbers = [await talker.start("append", shard="a", records=[{"value": str(each)}]) for each in range(200)]
        offsets = [(await talker.result(number))["base_offset"] for number in numbers]
        assert offsets == list(range(1, 201))
        found = await talker.call("read", shard="a", start={"at": "offset", "value": 1})
        assert [record["value"] for record in found["records"]] == [str(each) for each in range(200)]


async def test_a_long_shard_is_read_page_by_page(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", *[f"{each:0500}" for each in range(1_500)], create={})
        offset, found, largest = 0, [], 0
        while True:
            page = await talker.call("read", shard="a", start={"at": "offset", "value": offset}, max_bytes=100_000)
            found += [int(record["value"]) for record in page["records"]]
            largest = max(largest, len(json.dumps(page)))
            offset = page["next_offset"]
            if offset == page["end_offset"]:
                break
        assert found == list(range(1_500))
        assert largest < 130_000


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"op": "describe", "shard": "none"}, "shard_not_found", "none"),
        ({"op": "read", "shard": "none"}, "shard_not_found", "none"),
        ({"op": "append", "shard": "none", "records": [{"value": ""}]}, "shard_not_found", "none"),
        ({"op": "append", "shard": "+", "records": [{"value": ""}], "create": {}}, "invalid_name", "'+'"),
        ({"op": "append", "shard": "a", "records": []}, "protocol_error", "$.records"),
        ({"op": "append", "shard": "a", "records": [{"value": "", "value_base64": ""}]}, "invalid_request", "twice"),
        ({"op": "append", "shard": "a", "records": [{"valeu": "x"}]}, "protocol_error", "valeu"),
        ({"op": "append", "shard": "a", "records": [{"value_base64": "?"}]}, "protocol_error", "base64"),
        ({"op": "append", "shard": "a", "records": [{}], "expected_offset": 7}, "offset_conflict", "is 1"),
        ({"op": "append", "shard": "m", "records": [{}], "ack": "durable"}, "durability_unavailable", "memory"),
        ({"op": "read", "shard": "a", "start": {"at": "offset", "value": 9}}, "offset_out_of_range", "9"),
        ({"op": "read", "shard": "a", "start": {"at": "somewhere"}}, "protocol_error", "$.start.at"),
        ({"op": "tail", "tail": 1}, "invalid_request", "either a shard or a filter"),
        ({"op": "tail", "tail": 1, "shard": "a", "filter": "#"}, "invalid_request", "either a shard or a filter"),
        ({"op": "tail", "tail": 1, "filter": "a/#/b"}, "invalid_name", "a/#/b"),
        ({"op": "untail", "tail": 5}, "unknown_subscription", "5"),
        ({"op": "list", "filter": ""}, "invalid_name", "empty"),
        ({"op": "list", "limit": 0}, "protocol_error", "$.limit"),
        ({"op": "hello"}, "invalid_request", "already"),
        ({"op": "dance"}, "protocol_error", "dance"),
        ({}, "protocol_error", "operation"),
    ],
)
async def test_what_is_refused_says_why_and_the_connection_continues(
    tmp_path: Path, fields: dict[str, Any], code: str, words: str
) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        await talker.append("m", "0", create={"mode": "memory"})
        await talker.send({"id": "mine", **fields})
        reply = await talker.receive(id="mine")
        assert (reply["error"]["code"], reply["error"]["retriable"]) == (code, False)
        assert words in reply["error"]["message"]
        assert await talker.call("ping") == {}


async def test_an_error_has_details_where_there_are_some(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        with pytest.raises(RefusedError) as caught:
            await talker.append("a", "1", expected_offset=5)
        assert caught.value.details == {"shard": "a", "expected_offset": 5, "next_offset": 1}


@pytest.mark.parametrize("message", ["", "{", "[]", "1", '"x"', "[" * 100_000, '{"op": 1}', '{"id": -1}', b"\x00", b""])
async def test_what_is_no_request_is_answered_without_an_id(tmp_path: Path, message: str | bytes) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.send(message)
        reply = await talker.receive(id=None)
        assert reply["error"]["code"] == "protocol_error"
        assert len(reply["error"]["message"]) < 500
        assert await talker.call("ping") == {}


async def test_a_request_without_an_id_is_carried_out_and_answered_only_if_it_fails(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        await talker.send({"op": "append", "shard": "a", "records": [{"value": "1"}]})
        await talker.send({"op": "describe", "shard": "none"})
        assert (await talker.receive(id=None))["error"]["code"] == "shard_not_found"
        # A read answers behind the append: what waits for the disk is done by then.
        await talker.call("read", shard="a", start={"at": "offset", "value": 1}, wait_ms=5_000)
        assert not talker.others


@pytest.mark.parametrize(
    "message", ['{"id": 1, "op": "ping"}', "nonsense", b"binary", '{"id": 1, "op": "hello", "x": 1}']
)
async def test_the_first_message_must_be_a_hello(tmp_path: Path, message: str | bytes) -> None:
    async with serving(tmp_path) as served, talking(served, greet=False) as talker:
        await talker.send(message)
        (answer,) = await talker.receive_until_closed()
        assert answer["error"]["code"] == "protocol_error"


async def test_a_client_that_says_no_hello_is_sent_away(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__hello_timeout_s=1) as served, talking(served, greet=False) as talker:
        (answer,) = await talker.receive_until_closed()
        assert "no hello within 1 s" in answer["error"]["message"]


async def test_hello_has_the_limits(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served, greet=False) as talker:
        hello = await talker.call("hello")
        assert hello["version"] == 1
        assert hello["max_message_bytes"] == served.engine.config.limits.max_frame_bytes
        assert hello["max_batch_bytes"] == served.engine.config.limits.max_batch_bytes
        assert hello["node_id"] == served.engine.node_id


def rejected(group: ExceptionGroup[Exception]) -> tuple[int, bytes | None]:
    (error,) = group.exceptions
    assert isinstance(error, ConnectionRejected)
    return error.status_code, error.body


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:7422"])
async def test_programs_and_pages_of_this_machine_may_connect(tmp_path: Path, origin: str | None) -> None:
    async with serving(tmp_path) as served, talking(served, origin=origin) as talker:
        assert await talker.call("ping") == {}


@pytest.mark.parametrize(
    "origin", ["https://example.com", "http://localhost.example.com", "null", "file://", "http://["]
)
async def test_pages_from_elsewhere_may_not(tmp_path: Path, origin: str) -> None:
    async with serving(tmp_path) as served:
        with pytest.raises(ExceptionGroup) as caught:
            async with talking(served, origin=origin):
                pass
        assert rejected(caught.value) == (403, f"pages of {origin} may not connect\n".encode())


async def test_listed_pages_may(tmp_path: Path) -> None:
    origins = ("https://console.example.com",)
    async with serving(tmp_path, listen__websocket_origins=origins) as served:
        async with talking(served, origin="https://console.example.com") as talker:
            assert await talker.call("ping") == {}
        with pytest.raises(ExceptionGroup) as caught:
            async with talking(served, origin="https://example.com"):
                pass
        assert rejected(caught.value)[0] == 403


async def test_a_batch_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        limit = served.engine.config.limits.max_batch_bytes
        with pytest.raises(RefusedError, match="limit_exceeded"):
            await talker.append("a", "x" * (limit + 1), create={})
        assert await talker.call("ping") == {}


async def test_a_batch_with_very_many_headers_is_not_decoded_and_the_answer_names_the_way_out(tmp_path: Path) -> None:
    """600,000 headers took the interpreter from all other clients for half a second."""
    async with serving(tmp_path) as served, talking(served) as talker, served.client() as native:
        handle = await native.open("a")
        await native.append(handle, encode([Record(b"x", tags=("",) * 200_001)], now_us=1))
        await native.append(handle, encode([Record(b"y", headers=(("", b""),) * 3, tags=("t",))], now_us=1))
        with pytest.raises(RefusedError, match="200001 headers and tags; at most 200000 can be read as JSON"):
            await talker.call("read", shard="a", start={"at": "earliest"})
        await talker.call("tail", tail=1, shard="a", start={"at": "earliest"})
        unreadable = await talker.receive(tail=1, event="unreadable")
        assert unreadable["error"]["code"] == "limit_exceeded"
        assert await talker.pushed_values(1, 1) == ["y"]


async def test_a_bomb_is_not_opened_and_the_answer_names_the_way_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker, served.client() as native:
        handle = await native.open("a")
        await native.append_values(handle, b"before")
        bomb = encode([Record(bytes(1 << 20))] * 20, now_us=1, codec=Codec.ZSTD)
        assert len(bomb) < 100_000
        await native.append(handle, bomb)
        await native.append_values(handle, b"after")
        with pytest.raises(RefusedError, match="native protocol") as caught:
            await talker.call("read", shard="a", start={"at": "offset", "value": 1})
        assert caught.value.code == "limit_exceeded"
        assert (await talker.call("read", shard="a"))["next_offset"] == 1
        await talker.call("tail", tail=1, shard="a", start={"at": "earliest"})
        assert await talker.pushed_values(1, 2) == ["before", "after"]
        unreadable = await talker.receive(tail=1, event="unreadable")
        assert (unreadable["offset"], unreadable["next_offset"]) == (1, 21)
        assert unreadable["error"]["code"] == "limit_exceeded"


async def test_expired_records_are_not_shown(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.call("append", shard="a", records=[{"value": "old", "expires_at_us": 1}], create={})
        await talker.append("a", "new")
        found = await talker.call("read", shard="a")
        assert [record["value"] for record in found["records"]] == ["new"]
        assert found["next_offset"] == 2


async def test_large_messages_of_many_clients_are_converted_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread that converts takes the interpreter from all other threads, and a thread from the disk."""
    running = most = 0

    def watched(convert: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.02)
            try:
                return convert(*arguments)
            finally:
                running -= 1

        return run

    monkeypatch.setattr(connection, "decode_request", watched(connection.decode_request))
    monkeypatch.setattr(operations, "encode_batch", watched(operations.encode_batch))
    async with serving(tmp_path) as served, trio.open_nursery() as nursery:

        async def append(number: int) -> None:
            async with talking(served) as talker:
                done = await talker.append(f"shard/{number}", *["x" * 40] * 2000, create={})
                assert done["base_offset"] == 0

        for number in range(6):
            nursery.start_soon(append, number)
    assert most == 1


async def test_headers_and_tags_count_like_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append of one record with 600,000 headers held the loop for a second."""
    converted: list[int] = []
    encode_batch = operations.encode_batch

    def noted(*arguments: Any) -> bytes:
        converted.append(threading.get_ident())
        return encode_batch(*arguments)

    monkeypatch.setattr(operations, "encode_batch", noted)
    async with serving(tmp_path) as served, talking(served) as client:
        record = {"value": "v", "headers": [{"name": "a"}] * 999, "tags": ["t"]}
        await client.call("append", shard="a", records=[record], create={})
        assert converted[0] != threading.get_ident()
        with pytest.raises(
            RefusedError, match="101001 records, headers and tags is over the limit of 100000"
        ) as caught:
            await client.call("append", shard="a", records=[{**record, "tags": ["t"] * 100_001}])
        assert caught.value.code == "limit_exceeded"
        assert served.engine.parts.table.by_name("a").next_offset == 1
