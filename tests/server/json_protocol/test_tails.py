"""Tails: what they give, what a slow client delays, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request, TextMessage

from journal.server import heartbeat
from journal.server.json_protocol import SUBPROTOCOL
from tests.patience import PATIENCE_S
from tests.server.json_protocol.talking import RefusedError, talking
from tests.server.serving import Served, serving


async def test_a_tail_of_a_shard_gives_what_is_there_and_what_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker, talking(served) as writer:
        await writer.append("a", "0", "1", create={})
        tail = await talker.call("tail", tail=7, shard="a", start={"at": "offset", "value": 1})
        assert tail == {"tail": 7, "lsn": served.engine.parts.committer.committed_lsn}
        added = await talker.receive(tail=7, event="added")
        assert (added["shard"], added["offset"]) == ("a", 1)
        assert await talker.pushed_values(7, 1) == ["1"]
        await writer.append("a", "2")
        message = await talker.receive(tail=7, event="records")
        assert (message["shard"], message["next_offset"], message["gaps"]) == ("a", 3, [])
        assert [(record["value"], record["offset"]) for record in message["records"]] == [("2", 2)]


async def test_a_tail_of_a_filter_gives_later_shards_and_reports_its_position(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker, talking(served) as writer:
        await writer.append("plant/1", "a", create={})
        await talker.call("tail", tail=1, filter="plant/+", start={"at": "earliest"})
        assert await talker.pushed_values(1, 1) == ["a"]
        await writer.append("plant/2", "b", create={})
        await writer.append("other", "x", create={})
        message = await talker.receive(tail=1, event="records", shard="plant/2")
        assert [record["value"] for record in message["records"]] == ["b"]
        lsn = served.engine.parts.committer.committed_lsn
        while (await talker.receive(tail=1, event="progress"))["lsn"] < lsn:
            pass
        # Who goes on behind that misses nothing and gets nothing twice.
        await writer.append("plant/1", "c")
        await talker.call("tail", tail=2, filter="plant/+", start={"at": "lsn", "value": lsn + 1})
        assert await talker.pushed_values(2, 1) == ["c"]


async def test_credit_bounds_what_is_pushed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker, talking(served) as writer:
        await writer.append("a", "x" * 1_000, create={})
        for _ in range(99):
            await writer.append("a", "x" * 1_000)
        await talker.call("tail", tail=1, shard="a", start={"at": "earliest"}, credit_bytes=5_000)
        got = received_bytes = 0
        credit_bytes = 5_000
        while got < 100:
            message = await talker.receive(tail=1, event="records")
            got += len(message["records"])
            received_bytes += len(json.dumps(message, separators=(",", ":")))
            # One batch may pass the credit, no more.
            assert received_bytes < credit_bytes + 2_000
            if received_bytes >= credit_bytes:
                await talker.call("credit", tail=1, bytes=5_000)
                credit_bytes += 5_000
        assert got == 100


async def test_a_tail_without_credit_gives_nothing_and_holds_up_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        await talker.call("tail", tail=1, shard="a", start={"at": "earliest"}, credit_bytes=0)
        await talker.call("tail", tail=2, shard="a", start={"at": "earliest"})
        assert await talker.pushed_values(2, 1) == ["0"]
        assert not [message for message in talker.others if message.get("tail") == 1]
        await talker.send({"op": "credit", "tail": 1, "bytes": 1})
        assert await talker.pushed_values(1, 1) == ["0"]


@pytest.mark.slow("fills thousands of shards, groups or messages")
async def test_a_client_that_reads_nothing_is_bounded_by_the_output_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, socket_buffer_bytes=16_384) as served:
        limit = served.engine.config.limits.max_output_bytes_per_connection
        async with talking(served) as writer:
            for _ in range(10):
                await writer.append("a", *["x" * 1_000] * 500, create={})
            async with talking(served, client="slow") as slow:
                for tail in range(1, 9):
                    await slow.send(
                        {"op": "tail", "tail": tail, "shard": "a", "start": {"at": "earliest"}, "credit_bytes": 1 << 30}
                    )
                connection = next(each for each in served.server._connections if each.client == "slow")
                while connection.output.has_room:
                    await trio.sleep(0.01)
                largest = 0
                for _ in range(20):
                    await writer.call("ping")
                    largest = max(largest, connection.output.waiting_bytes)
                # One batch, or what is read of a shard at a time, may pass it.
                assert largest < limit + (1 << 20)
                assert (await writer.append("a", "on"))["base_offset"] == 5_000
                assert len(await slow.pushed_values(1, 5_001)) == 5_001


async def test_an_ended_tail_gives_nothing_more_and_its_number_is_free(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        await talker.call("tail", tail=1, shard="a", start={"at": "earliest"})
        assert await talker.pushed_values(1, 1) == ["0"]
        with pytest.raises(RefusedError, match="choose another number"):
            await talker.call("tail", tail=1, shard="a")
        await talker.call("untail", tail=1)
        assert served.engine.parts.subscriptions.count == 0
        await talker.append("a", "1")
        await talker.call("tail", tail=1, shard="a", start={"at": "earliest"})
        assert await talker.pushed_values(1, 2) == ["0", "1"]


async def test_a_tail_that_is_ended_before_it_has_begun_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        for _ in range(20):
            begun = await talker.start("tail", tail=1, shard="a", start={"at": "time", "value": 1})
            ended = await talker.start("untail", tail=1)
            await talker.result(begun)
            await talker.result(ended)
        assert served.engine.parts.subscriptions.count == 0


async def test_a_deleted_shard_ends_its_tail(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        await talker.call("tail", tail=1, shard="a")
        await served.engine.delete_shard("a")
        assert (await talker.receive(tail=1, event="removed"))["shard"] == "a"


async def test_lost_records_are_a_gap(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", "1", create={})
        await talker.call("tail", tail=1, shard="a", start={"at": "earliest"}, credit_bytes=0)
        await served.engine.trim("a", 2)
        await talker.append("a", "2")
        await talker.call("credit", tail=1, bytes=10_000)
        message = await talker.receive(tail=1, event="records")
        assert message["gaps"] == [[0, 2]]
        values = [record["value"] for record in message["records"]]
        assert values == ["2"] or await talker.pushed_values(1, 1) == ["2"]


async def test_the_limit_of_tails_is_that_of_subscriptions(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__max_subscriptions_per_connection=2) as served, talking(served) as talker:
        await talker.call("tail", tail=1, filter="#")
        await talker.call("tail", tail=2, filter="#")
        with pytest.raises(RefusedError, match=r"limits\.max_subscriptions_per_connection") as caught:
            await talker.call("tail", tail=3, filter="#")
        assert caught.value.code == "limit_exceeded"


async def test_a_client_that_disappears_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        async with talking(served) as talker:
            await talker.append("a", "0", create={})
            await talker.call("tail", tail=1, filter="#", start={"at": "earliest"})
            await talker.start("read", shard="a", start={"at": "latest"}, wait_ms=30_000)
            await trio.aclose_forcefully(talker.websocket._stream)
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections or served.engine.parts.subscriptions.count:
                await trio.sleep(0.01)


async def test_a_stopping_server_answers_what_waits_and_says_goodbye(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as talker:
        await talker.append("a", "0", create={})
        waiting = await talker.start("read", shard="a", start={"at": "latest"}, wait_ms=30_000)
        await talker.call("ping")
        served.server.stopping.set()
        messages = {message["id"]: message for message in await talker.receive_until_closed()}
        assert messages[waiting]["result"]["records"] == []
        assert messages[None]["error"]["code"] == "shutting_down"
        assert messages[None]["error"]["retriable"] is True


async def connect_without_answering(served: Served) -> bytes:
    """Open a connection, say hello, and answer no ping; gives what came until the server closed."""
    peer = WSConnection(ConnectionType.CLIENT)
    async with await trio.open_tcp_stream("127.0.0.1", served.ports["websocket"]) as stream:
        await stream.send_all(peer.send(Request(host="127.0.0.1", target="/", subprotocols=[SUBPROTOCOL])))
        peer.receive_data(await stream.receive_some())
        assert isinstance(next(peer.events()), AcceptConnection)
        await stream.send_all(peer.send(TextMessage('{"id": 1, "op": "hello"}')))
        received = b""
        while data := await stream.receive_some():
            received += data
        return received


async def test_a_peer_that_answers_no_pings_is_let_go_and_one_that_does_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.1)
    monkeypatch.setattr(heartbeat, "PATIENCE_S", 0.5)
    async with serving(tmp_path) as served, talking(served) as alive:
        received: list[bytes] = []

        async def connect() -> None:
            received.append(await connect_without_answering(served))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            while not received:
                mock_clock.jump(0.05)
                await wait_all_tasks_blocked(0.005)
        assert b'"heartbeat_s"' in received[0]
        # One that receives nothing but pings is as alive as one that talks.
        assert await alive.call("ping") == {}
        assert served.server.statistics.connections == 1
