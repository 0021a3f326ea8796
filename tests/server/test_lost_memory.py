"""Resends of what was lost with the memory: never a durable duplicate, and the client goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from journal.client import Client, Feed, open_client
from journal.protocol import Op, messages
from shards.back_off import BackOff
from shards.errors import SequenceLostError
from shards.format.batch import read_records
from shards.format.record import StoredRecord
from shards.model import AckLevel, Mode, ShardConfig
from shards.subscriptions.events import Progress
from tests.journal.engines import stop_without_checkpoint
from tests.patience import PATIENCE_S
from tests.server.admin.test_api import admin
from tests.server.serving import MEMORY, RawClient, Served, serving
from tests.server.test_metrics import counted, families, value
from tests.server.test_producers import open_producer, produced


async def set_mode(client: RawClient, name: str, mode: Mode) -> None:
    await client.call(Op.SET_MODE, messages.SetModeRequest(name, mode))


async def test_what_was_lost_with_the_memory_was_acknowledged_again_as_durable(tmp_path: Path) -> None:
    """Appended in memory mode, lost in a crash behind a switch to files: the resend was a durable duplicate."""
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a", MEMORY)
        me = await open_producer(client)
        await client.append(handle, produced(me, 0, b"0"))
        await set_mode(client, "a", Mode.FILE)
        await client.append(handle, produced(me, 1, b"1"))
        stop_without_checkpoint(served.engine)
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        with pytest.raises(SequenceLostError, match="sent sequence 0") as refused:
            await client.append(handle, produced(me, 0, b"0"))
        assert refused.value.expected_sequence == 2
        again = await client.append(handle, produced(me, 1, b"1"))
        assert (again.level, again.base_offset, again.is_duplicate) == (AckLevel.DURABLE, 1, True)
        await client.append(handle, produced(me, 2, b"0"))
        assert await client.read_values(handle) == [b"1", b"0"]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_what_was_lost_with_all_behind_it_is_stored_again_in_order(tmp_path: Path, checkpointed: bool) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a", MEMORY)
        me = await open_producer(client)
        await set_mode(client, "a", Mode.FILE)
        await client.append(handle, produced(me, 0, b"0"))
        await set_mode(client, "a", Mode.MEMORY)
        await client.append(handle, produced(me, 1, b"1"))
        await client.append(handle, produced(me, 2, b"2"))
        if checkpointed:
            await served.engine.parts.checkpointer.checkpoint()
        await set_mode(client, "a", Mode.FILE)
        stop_without_checkpoint(served.engine)
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for sequence in (1, 2):
            again = await client.append(handle, produced(me, sequence, b"%d" % sequence))
            assert (again.level, again.is_duplicate) == (AckLevel.DURABLE, False)
        repeated = await client.append(handle, produced(me, 0, b"0"))
        assert (repeated.level, repeated.is_duplicate, repeated.base_offset) == (AckLevel.DURABLE, True, 0)
        assert await client.read_values(handle) == [b"0", b"1", b"2"]


async def test_what_was_stored_again_in_place_of_lost_memory_is_stored_once(tmp_path: Path) -> None:
    """Stored again, killed, restarted, stopped: the checkpoint took the replayed state for the one it had saved.

    Both end with the same sequence; the saved one named the lost records, so a further resend was stored a third time.
    """
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a", MEMORY)
        me = await open_producer(client)
        for sequence in range(2):
            await client.append(handle, produced(me, sequence, b"%d" % sequence))
        await set_mode(client, "a", Mode.FILE)
        await client.append_values(handle, b"of another")
        await served.engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(served.engine)
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for sequence in range(2):
            again = await client.append(handle, produced(me, sequence, b"%d" % sequence))
            assert (again.level, again.is_duplicate) == (AckLevel.DURABLE, False)
        stop_without_checkpoint(served.engine)
    async with serving(tmp_path):
        pass
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for sequence in range(2):
            again = await client.append(handle, produced(me, sequence, b"%d" % sequence))
            assert (again.level, again.is_duplicate) == (AckLevel.DURABLE, True)
        assert await client.read_values(handle) == [b"of another", b"0", b"1"]


class Relay:
    """The one address of a client, which leads to the server that runs now, and can hold back its answers."""

    def __init__(self) -> None:
        self.served: Served | None = None
        self.answers = True
        self._both: trio.CancelScope | None = None

    async def forward(self, stream: trio.SocketStream) -> None:
        async with stream:
            if self.served is None:
                return
            try:
                async with self.served.stream() as server, trio.open_nursery() as both:
                    self._both = both.cancel_scope
                    both.start_soon(self._pump, stream, server, both)
                    both.start_soon(self._pump, server, stream, both)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream, both: trio.Nursery) -> None:
        while data := await source.receive_some(65536):
            if self.answers or source.socket.getsockname()[1] == self._port:
                await target.send_all(data)
        both.cancel_scope.cancel()

    async def listen(self, nursery: trio.Nursery) -> int:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self._port = int(listeners[0].socket.getsockname()[1])
        nursery.start_soon(trio.serve_listeners, self.forward, listeners)
        return self._port

    def cut(self) -> None:
        if self._both is not None:
            self._both.cancel()


async def test_the_client_reports_what_was_lost_and_continues_behind_it(tmp_path: Path) -> None:
    """The client was told that a record which no reader will ever see is durable."""
    relay = Relay()
    outcomes: dict[int, object] = {}

    async with trio.open_nursery() as nursery:
        port = await relay.listen(nursery)
        async with serving(tmp_path) as served:
            relay.served = served
            client_closed = trio.Event()
            client_scope = await nursery.start(keep_client, port, client_closed)
            client, append = client_scope
            await client.open_shard("a", create=ShardConfig(mode=Mode.MEMORY))
            await append(outcomes, 0)
            assert outcomes[0] is AckLevel.MEMORY
            relay.answers = False
            shard = served.engine.parts.table.by_name("a")
            nursery.start_soon(append, outcomes, 1)
            await until(lambda: shard.next_offset == 2)
            await served.engine.set_mode("a", Mode.FILE)
            nursery.start_soon(append, outcomes, 2)
            await until(lambda: shard.published_offset == 3)
            stop_without_checkpoint(served.engine)
            relay.cut()
            relay.served = None
        async with serving(tmp_path) as served:
            relay.answers = True
            relay.served = served
            await until(lambda: len(outcomes) == 3)
            await append(outcomes, 3)
            async with served.client() as reader:
                assert await reader.read_values(await reader.open("a")) == [b"2", b"3"]
            client_closed.set()
        nursery.cancel_scope.cancel()
    assert outcomes == {
        0: AckLevel.MEMORY,
        1: SequenceLostError.code,
        2: AckLevel.DURABLE,
        3: AckLevel.DURABLE,
    }


async def test_a_filter_is_shown_what_was_lost_while_it_had_no_connection(tmp_path: Path) -> None:
    """It went on at an lsn, behind all that was lost: the reader saw the next offset and no gap before it."""
    relay = Relay()
    async with trio.open_nursery() as nursery:
        port = await relay.listen(nursery)
        async with serving(tmp_path) as served:
            relay.served = served
            closed = trio.Event()
            client, append = await nursery.start(keep_client, port, closed)
            await client.open_shard("a", create=ShardConfig(mode=Mode.MEMORY))
            feed = await nursery.start(keep_feed, client, closed)
            outcomes: dict[int, object] = {}
            await append(outcomes, 0)
            assert await shown(feed, until_value=b"0") == [(0, 1, b"0")]
            assert isinstance(await feed.__anext__(), Progress)
            stop_without_checkpoint(served.engine)
            relay.cut()
            relay.served = None
        async with serving(tmp_path) as served:
            relay.served = served
            await append(outcomes, 1)
            offset = served.engine.parts.table.by_name("a").next_offset - 1
            assert offset > 1
            assert await shown(feed, until_value=b"1") == [(1, offset, "gap"), (offset, offset + 1, b"1")]
            closed.set()
        nursery.cancel_scope.cancel()


async def keep_feed(client: Client, closed: trio.Event, *, task_status: trio.TaskStatus[Feed]) -> None:
    async with client.follow("#", 0) as feed:
        task_status.started(feed)
        await closed.wait()


async def shown(feed: Feed, *, until_value: bytes) -> list[tuple[int, int, object]]:
    """The ranges that a feed shows, each with its value, up to the one with this value."""
    ranges: list[tuple[int, int, object]] = []
    with trio.fail_after(PATIENCE_S):
        while not ranges or ranges[-1][2] != until_value:
            item = await feed.__anext__()
            if not isinstance(item, Progress):
                (entry,) = read_records(item.batches, start_offset=item.first_offset)
                value = entry.value if isinstance(entry, StoredRecord) else "gap"
                ranges.append((item.first_offset, item.next_offset, value))
    return ranges


async def keep_client(port: int, closed: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
    async with open_client(f"127.0.0.1:{port}", join_appends=False, backoff=BackOff(0.01, 2.0)) as client:

        async def append(outcomes: dict[int, object], number: int) -> None:
            try:
                outcomes[number] = (await client.append("a", [b"%d" % number])).level
            except SequenceLostError as error:
                outcomes[number] = error.code

        task_status.started((client, append))
        await closed.wait()


async def until(condition: object) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():  # type: ignore[operator]
            await trio.sleep(0.005)


async def test_offsets_that_memory_lost_were_counted_as_records(tmp_path: Path) -> None:
    """A shard of ten records had 1,048,586 after a crash, and a group was as far behind in it."""
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a", MEMORY)
        await client.append_values(handle, *[b"lost"] * 10)
        await served.engine.commit_cursor("a", "group/workers", 4, None)
        stop_without_checkpoint(served.engine)
    async with serving(tmp_path) as served, served.client() as client, admin(served) as api:
        assert (await client.call(Op.LIST_SHARDS, messages.ListShardsRequest())).shards[0].record_count == 0
        handle = await client.open("a")
        await client.append_values(handle, b"0", b"1")
        found = await client.call(Op.DESCRIBE_SHARD, messages.DescribeShardRequest("a"))
        assert found.next_offset > 1 << 20
        assert found.record_count == 2
        [cursor] = (await api.get("/cursors")).json()["cursors"]
        assert cursor["lag_records"] == 2
        [shard] = (await api.get("/shards")).json()["shards"]
        assert shard["record_count"] == 2
        await counted(served)
        assert value(await families(served), "journal_group_lag_records", group="workers") == 2
