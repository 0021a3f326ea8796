"""Every operation of the protocol over a socket: what it answers, and what it answers when it refuses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from journal.client import open_client
from journal.protocol import Op, frames, messages
from journal.protocol.errors import ShuttingDownError, UnknownHandleError
from journal.server import operations
from shards.errors import (
    BatchError,
    DurabilityUnavailableError,
    IndexMissingError,
    InvalidNameError,
    InvalidRequestError,
    LimitExceededError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    ShardExistsError,
    ShardNotFoundError,
    VersionConflictError,
)
from shards.format.batch import encode
from shards.format.record import Record
from shards.model import Mode, Retention, ShardConfig
from shards.segments.shard import Shard
from tests.patience import PATIENCE_S
from tests.server.serving import FILE, MEMORY, acks_in, batch_of, records_of, serving, values_of


async def test_hello_has_the_limits_and_ping_and_status_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as first, served.client() as second:
        assert second.connection_id > first.connection_id
        hello = messages.HelloRequest(frames.PROTOCOL_VERSION, "again")
        with pytest.raises(InvalidRequestError, match="already"):
            await first.call(Op.HELLO, hello)
        await first.call(Op.PING)
        status = await first.call(Op.STATUS)
        assert status["connections"] == 2
        assert status["failure"] == ""


async def test_shards_are_created_listed_described_changed_and_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        created = await client.call(Op.CREATE_SHARD, messages.CreateShardRequest("a/b", MEMORY))
        assert (created.name, created.config.mode, created.next_offset) == ("a/b", Mode.MEMORY, 0)
        with pytest.raises(ShardExistsError, match="a/b"):
            await client.call(Op.CREATE_SHARD, messages.CreateShardRequest("a/b"))
        again = await client.call(Op.CREATE_SHARD, messages.CreateShardRequest("a/b", exist_ok=True))
        assert again.shard_id == created.shard_id
        for name in ("a/+", "", "#", "a/\0"):
            with pytest.raises(InvalidNameError):
                await client.call(Op.CREATE_SHARD, messages.CreateShardRequest(name))
        for name in ("a/c", "b/a", "$sys/x"):
            await client.call(Op.CREATE_SHARD, messages.CreateShardRequest(name))

        async def listed(**arguments: Any) -> tuple[list[str], bool]:
            reply = await client.call(Op.LIST_SHARDS, messages.ListShardsRequest(**arguments))
            return [info.name for info in reply.shards], reply.more

        assert await listed() == (["a/b", "a/c", "b/a"], False)
        assert await listed(filter="$sys/#") == (["$sys/x"], False)
        assert await listed(filter="+/a") == (["b/a"], False)
        assert await listed(limit=2) == (["a/b", "a/c"], True)
        assert await listed(limit=2, after="a/c") == (["b/a"], False)
        with pytest.raises(InvalidNameError):
            await listed(filter="a/#/b")

        retention = Retention(max_records=10)
        changed = await client.call(Op.CONFIGURE_SHARD, messages.ConfigureShardRequest("a/c", retention, 1 << 20))
        assert (changed.config.retention, changed.config.segment_bytes) == (retention, 1 << 20)
        handle = await client.open("a/c", None)
        await client.append_values(handle, b"1", b"2", b"3")
        sealed = await client.call(Op.ROLL, messages.NameRequest("a/c"))
        assert [segment.closed for segment in sealed.segments][:1] == [True]
        trimmed = await client.call(Op.TRIM, messages.TrimRequest("a/c", 2))
        assert (trimmed.start_offset, trimmed.next_offset) == (2, 3)
        with pytest.raises(OffsetOutOfRangeError, match="from 2 up to but not including 3"):
            await client.call(Op.TRIM, messages.TrimRequest("a/c", 4))
        switched = await client.call(Op.SET_MODE, messages.SetModeRequest("a/c", Mode.MEMORY))
        assert switched.config.mode is Mode.MEMORY
        described = await client.call(Op.DESCRIBE_SHARD, messages.NameRequest("a/c"))
        assert described.config == switched.config
        await client.call(Op.DELETE_SHARD, messages.NameRequest("a/c"))
        for op in (Op.DESCRIBE_SHARD, Op.DELETE_SHARD, Op.ROLL):
            with pytest.raises(ShardNotFoundError, match="a/c"):
                await client.call(op, messages.NameRequest("a/c"))


async def test_a_handle_is_good_until_closed_or_its_shard_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client, served.client() as other:
        handle = await client.open("a")
        assert await client.open("a", None) == handle
        with pytest.raises(ShardNotFoundError, match="'b' does not exist"):
            await client.open("b", None)
        with pytest.raises(UnknownHandleError, match="handle 7 is not open"):
            await client.fetch(7, 0)
        with pytest.raises(UnknownHandleError, match="handle 7 is not open"):
            await client.append_values(7, b"x")
        await client.append_values(handle, b"x")
        await client.call(Op.CLOSE_SHARD, messages.HandleRequest(handle))
        for op in (Op.CLOSE_SHARD,):
            with pytest.raises(UnknownHandleError):
                await client.call(op, messages.HandleRequest(handle))
        with pytest.raises(UnknownHandleError):
            await client.fetch(handle, 0)

        handle = await client.open("a")
        await other.call(Op.DELETE_SHARD, messages.NameRequest("a"))
        with pytest.raises(UnknownHandleError, match="deleted"):
            await client.append_values(handle, b"x")
        with pytest.raises(UnknownHandleError, match="deleted"):
            await client.fetch(handle, 0)
        with pytest.raises(UnknownHandleError, match="deleted"):
            await client.call(Op.FIND_OFFSET, messages.FindOffsetRequest(handle, "latest"))
        again = await client.open("a")
        assert (await client.append_values(again, b"y")).base_offset == 0


async def test_the_number_of_handles_is_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__max_handles_per_connection=2) as served, served.client() as client:
        await client.open("a")
        await client.open("b")
        with pytest.raises(LimitExceededError, match=r"limits\.max_handles_per_connection"):
            await client.open("c")
        async with served.client() as other:
            await other.open("c")


async def test_a_shard_that_was_closed_does_not_count_among_the_open_ones(tmp_path: Path) -> None:
    """A connection could open so many in its life: a broker lost the topics beyond."""
    async with serving(tmp_path, limits__max_handles_per_connection=2) as served, served.client() as client:
        handles = {name: await client.open(name) for name in ("a", "b")}
        for name in ("c", "d", "e"):
            closed = handles.pop(min(handles))
            await client.call(Op.CLOSE_SHARD, messages.HandleRequest(closed))
            handles[name] = await client.open(name)
            # A request that comes late does not reach another shard.
            assert handles[name] > closed
            for each, handle in handles.items():
                await client.append_values(handle, each.encode())
        # Each record is in the shard whose handle its number was at that moment.
        reading = [await client.read_values(handle) for handle in handles.values()]
        assert [set(values) for values in reading] == [{name.encode()} for name in handles]


async def test_a_shard_is_not_created_for_a_handle_over_the_limit(tmp_path: Path) -> None:
    """OPEN_SHARD with ``create`` was refused, and had created it."""
    async with serving(tmp_path, limits__max_handles_per_connection=3) as served, served.client() as client:
        await client.open("a")
        started = [client.start(Op.OPEN_SHARD, messages.OpenShardRequest(name, FILE)) for name in ("b", "c", "d", "e")]
        await client.send(*(request for _, request in started))
        refused = []
        for correlation, _ in started:
            try:
                await client.reply_to(Op.OPEN_SHARD, correlation)
            except LimitExceededError:
                refused.append(correlation)
        assert refused == [correlation for correlation, _ in started[2:]]
        async with served.client() as other:
            listed = await other.call(Op.LIST_SHARDS, messages.ListShardsRequest("#"))
        assert [shard.name for shard in listed.shards] == ["a", "b", "c"]


@pytest.mark.parametrize("is_created_again", [False, True])
async def test_a_shard_that_was_deleted_does_not_count_among_the_open_ones(
    tmp_path: Path, is_created_again: bool
) -> None:
    async with serving(tmp_path, limits__max_handles_per_connection=2) as served, served.client() as client:
        for number in range(10):
            handle = await client.open("a")
            await client.append_values(handle, b"x")
            other = await client.open("a" if is_created_again else f"b/{number}")
            assert await client.read_values(other) == ([b"x"] if is_created_again else [])
            await client.call(Op.DELETE_SHARD, messages.NameRequest("a"))
            if not is_created_again:
                await client.call(Op.CLOSE_SHARD, messages.HandleRequest(other))


async def test_a_connection_that_has_opened_very_many_shards_has_to_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of handles that were closed take memory at the server."""
    monkeypatch.setattr(operations, "_LEAST_NUMBERS", 8)
    async with serving(tmp_path, limits__max_handles_per_connection=2) as served, served.client() as client:
        with trio.fail_after(PATIENCE_S), pytest.raises(ShuttingDownError, match="opened 32 shards"):
            for number in range(100):
                handle = await client.open(f"s/{number}")
                await client.call(Op.CLOSE_SHARD, messages.HandleRequest(handle))
        assert number == 32


async def test_appends_are_acknowledged_with_the_level_they_reached(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        file, memory = await client.open("file"), await client.open("memory", MEMORY)
        assert [(await client.append_values(file, b"x", ack=ack)).level for ack in (0, 1, 2)] == [2, 2, 2]
        assert [(await client.append_values(memory, b"x", ack=ack)).level for ack in (0, 1)] == [1, 1]
        with pytest.raises(DurabilityUnavailableError, match="memory mode"):
            await client.append_values(memory, b"x", ack=2)
        assert (await client.append_values(memory, b"x")).base_offset == 2


async def test_a_conditional_append_is_done_only_at_its_offset(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        assert (await client.append(handle, batch_of(b"1", b"2"), expected_offset=0)).base_offset == 0
        with pytest.raises(OffsetConflictError, match="expected next offset 1, but it is 2") as refused:
            await client.append(handle, batch_of(b"3"), expected_offset=1)
        assert refused.value.next_offset == 2
        assert (await client.append(handle, batch_of(b"3"), expected_offset=2)).base_offset == 2
        assert await client.read_values(handle) == [b"1", b"2", b"3"]


async def test_a_bad_batch_is_refused_and_those_beside_it_are_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        bad = bytearray(batch_of(b"bad"))
        bad[-1] ^= 1
        sent = [
            append_frame(client, handle, batch)
            for batch in (batch_of(b"1"), bytes(bad), batch_of(b"2"), b"short", batch_of(b"3"))
        ]
        await client.send(*[frame for _, frame in sent])
        good = [correlation for correlation, _ in (sent[0], sent[2], sent[4])]
        refusals = [await client.receive(lambda frame: frame.op == Op.APPEND) for _ in range(2)]
        assert [refusal.correlation for refusal in refusals] == [sent[1][0], sent[3][0]]
        assert [ack.base_offset for ack in (await client.acks(good)).values()] == [0, 1, 2]
        assert await client.read_values(handle) == [b"1", b"2", b"3"]
        with pytest.raises(BatchError, match="checksum"):
            await client.append(handle, bytes(bad))
        with pytest.raises(LimitExceededError, match=r"limits\.max_batch_bytes"):
            await client.append(handle, batch_of(bytes(1 << 20)))


def append_frame(client: Any, handle: int, batch: bytes) -> tuple[int, bytes]:
    correlation = client.next_correlation()
    return correlation, frames.build_append(correlation, handle, batch)


async def test_one_frame_acknowledges_the_appends_of_a_commit(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handles = [await client.open(f"s{number}") for number in range(10)]
        sent = [append_frame(client, handles[number % 10], batch_of(b"%d" % number)) for number in range(500)]
        await client.send(*[frame for _, frame in sent])
        seen: list[int] = []
        count = 0
        while len(seen) < 500:
            frame = await client.receive(lambda frame: frame.op == Op.APPENDED)
            seen.extend(ack.correlation for ack in acks_in(frame))
            count += 1
        assert seen == [correlation for correlation, _ in sent]
        assert count < 50


async def test_requests_of_all_kinds_may_be_pipelined(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        pending: list[tuple[Op, int]] = []
        parts: list[bytes] = []
        appends: list[int] = []
        for number in range(2500):
            correlation, frame = append_frame(client, handle, batch_of(b"%d" % number))
            appends.append(correlation)
            parts.append(frame)
            put = messages.StatePutRequest(b"key%d" % number, b"value")
            for op, message in ((Op.STATE_PUT, put), (Op.PING, None), (Op.DESCRIBE_SHARD, messages.NameRequest("a"))):
                correlation, frame = client.start(op, message)
                pending.append((op, correlation))
                parts.append(frame)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, *parts)
            replies = {}
            acked: list[int] = []
            while len(replies) < len(pending) or len(acked) < len(appends):
                frame = await client.receive()
                assert frame.status == 0, frame
                if frame.op == Op.APPENDED:
                    acked.extend(ack.correlation for ack in acks_in(frame))
                else:
                    replies[frame.correlation] = frame.op
        assert acked == appends
        assert replies == {correlation: op for op, correlation in pending}


async def test_a_fetch_gives_the_range_it_may_give_or_says_which_there_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for number in range(10):
            await client.append_values(handle, b"%d-a" % number, b"%d-b" % number)
        first = await client.fetch(handle, 0, max_bytes=1)
        assert (first.next_offset, values_of(first.batches)) == (2, [b"0-a", b"0-b"])
        inside = await client.fetch(handle, 3, max_bytes=1)
        assert values_of(inside.batches, 3) == [b"1-b"]
        end = await client.fetch(handle, 20)
        assert (end.next_offset, len(end.batches)) == (20, 0)
        with pytest.raises(OffsetOutOfRangeError, match="from 0 up to but not including 20") as refused:
            await client.fetch(handle, 21)
        assert (refused.value.start_offset, refused.value.next_offset) == (0, 20)
        await client.call(Op.TRIM, messages.TrimRequest("a", 5))
        with pytest.raises(OffsetOutOfRangeError, match="from 5 up to"):
            await client.fetch(handle, 4)
        reply = await client.fetch(handle, 5)
        assert (reply.start_offset, values_of(reply.batches, 5)[0]) == (5, b"2-b")
        with pytest.raises(OffsetOutOfRangeError):
            await client.fetch(handle, -1)


@pytest.mark.parametrize("config", [FILE, MEMORY], ids=["file", "memory"])
async def test_a_long_poll_ends_with_an_append_or_at_its_deadline(tmp_path: Path, config: ShardConfig) -> None:
    async with serving(tmp_path) as served, served.client() as reader, served.client() as writer:
        reading, writing = await reader.open("a", config), await writer.open("a")
        started = trio.current_time()
        empty = await reader.fetch(reading, 0, max_wait_ms=50)
        assert len(empty.batches) == 0
        assert empty.next_offset == 0
        assert trio.current_time() - started >= 0.05
        async with trio.open_nursery() as nursery:
            found: list[list[bytes]] = []

            async def poll() -> None:
                found.append(values_of((await reader.fetch(reading, 0, max_wait_ms=5_000)).batches))

            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked(0.02)
            await writer.append_values(writing, b"at last")
        assert found == [[b"at last"]]


async def test_a_long_poll_on_a_deleted_shard_ends_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as reader, served.client() as other:
        handle = await reader.open("a")
        async with trio.open_nursery() as nursery:

            async def poll() -> None:
                with pytest.raises((ShardNotFoundError, UnknownHandleError), match="deleted"):
                    await reader.fetch(handle, 0, max_wait_ms=60_000)

            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked(0.02)
            with trio.fail_after(PATIENCE_S):
                await other.call(Op.DELETE_SHARD, messages.NameRequest("a"))


async def test_offsets_are_found_by_time_and_lsn(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for number in range(5):
            await client.append(handle, batch_of(b"x", b"y", timestamp_us=1_000 * (number + 1)))

        async def find(at: Any, value: int = 0) -> int:
            return (await client.call(Op.FIND_OFFSET, messages.FindOffsetRequest(handle, at, value))).offset

        assert [await find("earliest"), await find("latest")] == [0, 10]
        assert [await find("time", 0), await find("time", 2_001), await find("time", 9_000)] == [0, 4, 10]
        lsns = [record.lsn for record in records_of((await client.fetch(handle, 0)).batches)]
        assert [await find("lsn", lsns[0]), await find("lsn", lsns[4]), await find("lsn", lsns[-1] + 1)] == [0, 4, 10]
        await client.call(Op.TRIM, messages.TrimRequest("a", 3))
        assert [await find("earliest"), await find("time", 0)] == [3, 3]


@pytest.mark.parametrize("mode", [Mode.FILE, Mode.MEMORY])
async def test_records_are_found_by_key_and_tag(tmp_path: Path, mode: Mode) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a", ShardConfig(mode=mode, index_keys=True, index_tags=True))
        for number in range(20):
            records = [
                Record(
                    value=b"%d" % number, key=b"k%d" % (number % 4), tags=("even",) if number % 2 == 0 else ("odd",)
                ),
                Record(value=b"-"),
            ]
            await client.append(handle, encode(records, now_us=1))

        async def found(by: Any, word: bytes, **more: Any) -> tuple[list[bytes], int]:
            correlation, frame = client.start(Op.FETCH_INDEXED, messages.FetchIndexedRequest(handle, by, word, **more))
            await client.send(frame)
            reply = await client.fetched(correlation)
            return [value for value in values_of(reply.batches) if value != b"-"], reply.next_offset

        assert await found("key", b"k1") == ([b"1", b"5", b"9", b"13", b"17"], 40)
        assert await found("key", b"k1", latest=True) == ([b"17"], 40)
        assert await found("key", b"none") == ([], 40)
        assert await found("tag", b"odd", from_offset=30) == ([b"15", b"17", b"19"], 40)
        page, next_offset = await found("tag", b"even", max_bytes=1)
        assert page == [b"0"]
        rest, end = await found("tag", b"even", from_offset=next_offset)
        assert (rest[0], end) == (b"2", 40)
        plain = await client.open("plain")
        for by in ("key", "tag"):
            with pytest.raises(IndexMissingError, match=f"index_{by}s"):
                await client.call(Op.FETCH_INDEXED, messages.FetchIndexedRequest(plain, by, b"x"))


async def test_cursors_are_set_under_their_version(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        await client.append_values(await client.open("a"), b"0", b"1", b"2", b"3")
        assert (await client.call(Op.CURSOR_GET, messages.CursorRequest("a", "c"))).cursor is None
        set_once = await client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", "c", 3, 0))
        with pytest.raises(VersionConflictError) as refused:
            await client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", "c", 4, 0))
        assert refused.value.found_version == set_once.version
        moved = await client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", "c", 4, set_once.version))
        listed = await client.call(Op.CURSOR_LIST, messages.CursorListRequest("a"))
        assert listed.cursors == [moved]
        with pytest.raises(VersionConflictError):
            await client.call(Op.CURSOR_DELETE, messages.CursorDeleteRequest("a", "c", set_once.version))
        await client.call(Op.CURSOR_DELETE, messages.CursorDeleteRequest("a", "c", moved.version))
        assert (await client.call(Op.CURSOR_GET, messages.CursorRequest("a", "c"))).cursor is None
        with pytest.raises(OffsetOutOfRangeError, match="up to but not including 4"):
            await client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", "c", 5))
        with pytest.raises(InvalidNameError):
            await client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", "", 4))
        with pytest.raises(ShardNotFoundError):
            await client.call(Op.CURSOR_GET, messages.CursorRequest("none", "c"))


async def test_a_listing_opens_no_shard(tmp_path: Path) -> None:
    """Every shard that was listed, described or measured for a quota was opened and stayed in memory until the stop."""
    async with serving(tmp_path) as served, served.client() as client:
        for number in range(30):
            handle = await client.open(f"a/{number}", MEMORY if number % 3 == 0 else FILE)
            await client.append_values(handle, b"0", b"1")
            await client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest(f"a/{number}", "c", 1))
        await client.call(Op.ROLL, messages.RollRequest("a/1"))
        await client.call(Op.TRIM, messages.TrimRequest("a/4", 1))
    # The task that converts opens shards with log files, sooner or later.
    async with serving(tmp_path, conversion__enabled=False) as served, served.client() as client:
        table = served.engine.parts.table
        assert not table.open_shards()
        listed = (await client.call(Op.LIST_SHARDS, messages.ListShardsRequest("a/#"))).shards
        described = [await client.call(Op.DESCRIBE_SHARD, messages.DescribeShardRequest(info.name)) for info in listed]
        for info in listed:
            assert [
                c.offset for c in (await client.call(Op.CURSOR_LIST, messages.CursorListRequest(info.name))).cursors
            ]
        assert len(listed) == 30
        assert not table.open_shards()
        # And what it shows is what the shards are when they are opened.
        for info, whole in zip(listed, described, strict=True):
            opened = table.by_name(info.name)
            assert info == opened.info(with_segments=False)
            assert whole.segments == opened.info(with_segments=True).segments


async def test_a_page_is_made_in_short_steps_and_shards_may_go_meanwhile(tmp_path: Path) -> None:
    """A page of 1,000 shards that were not open was made in one step of 97 ms."""
    async with serving(tmp_path) as served, served.client() as client, served.client() as other:
        for number in range(200):
            await client.call(Op.CREATE_SHARD, messages.CreateShardRequest(f"a/{number:03}"))
        table = served.engine.parts.table
        shown: list[str] = []
        peek = table.peek

        def slow(shard_id: int) -> Shard | None:
            time.sleep(0.003)
            shard = peek(shard_id)
            if shard is not None:
                shown.append(shard.name)
            return shard

        table.peek = slow  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:

            async def delete_some() -> None:
                while len(shown) < 20:
                    await trio.sleep(0)
                # Answered while the page is being made.
                await other.call(Op.DELETE_SHARD, messages.NameRequest("a/199"))
                await other.call(Op.DELETE_SHARD, messages.NameRequest("a/000"))
                assert len(shown) < 150

            nursery.start_soon(delete_some)
            reply = await client.call(Op.LIST_SHARDS, messages.ListShardsRequest("+/+"))
        assert [info.name for info in reply.shards] == [f"a/{number:03}" for number in range(199)]
        assert not reply.more


async def test_what_does_not_fit_into_a_frame_comes_in_pages(tmp_path: Path) -> None:
    """A shard with so many cursors or segments that its reply was larger than a frame could not be asked about."""
    limits = {"limits__max_frame_bytes": 65536, "limits__max_batch_bytes": 4096}
    async with serving(tmp_path, **limits) as served, served.client() as client:
        handle = await client.open("a")
        for number in range(150):
            await client.append_values(handle, b"%d" % number)
            reply = await client.call(Op.ROLL, messages.RollRequest("a"))
        assert 50 < len(reply.segments) < 150
        assert reply.segments[-1].next_offset == 150
        names = [f"{number:04}/{'x' * 240}" for number in range(130)]
        for name in names:
            await client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("a", name, 1))
        long_names = [f"{'n' * 1000}/{number:03}" for number in range(50)]
        for name in long_names:
            await client.call(Op.CREATE_SHARD, messages.CreateShardRequest(name))
        async with open_client(served.address) as found:
            described = await found.describe_shard("a")
            assert described == served.engine.parts.table.by_name("a").info(with_segments=True)
            assert len(described.segments) >= 150
            assert [cursor.name for cursor in await found.list_cursors("a")] == names
            assert [info.name for info in await found.list_shards("+/+")] == long_names
            # A page has a shard with its segments if they are not too many, and as many shards as fit into a frame.
            await found.create_shard("0")
            await found.append("0", [b""])
            page = await found.list_shards_page(segments=20)
            assert [(info.name, len(info.segments)) for info in page.shards[:2]] == [("0", 1), ("a", 0)]
            assert page.more
            assert len(page.shards) < 52
            whole = await found.list_shards(with_segments=True)
            assert whole == [await found.describe_shard(info.name) for info in whole]
            assert len(whole) == 52


async def test_state_is_set_under_its_version_scanned_and_expires(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:

        async def put(key: bytes, value: bytes, *more: int | None) -> Any:
            return await client.call(Op.STATE_PUT, messages.StatePutRequest(key, value, *more))

        first = await put(b"s/1", b"one", 0)
        with pytest.raises(VersionConflictError):
            await put(b"s/1", b"two", 0)
        second = await put(b"s/1", b"two", first.version)
        assert (await client.call(Op.STATE_GET, messages.StateGetRequest(b"s/1"))).value == second
        await put(b"s/2", b"x")
        await put(b"t/1", b"x")
        await put(b"s/3", b"gone", None, 1)
        page = await client.call(Op.STATE_SCAN, messages.StateScanRequest(b"s/", None, 1))
        assert ([value.key for value in page.values], page.more) == ([b"s/1"], True)
        rest = await client.call(Op.STATE_SCAN, messages.StateScanRequest(b"s/", b"s/1"))
        assert ([value.key for value in rest.values], rest.more) == ([b"s/2"], False)
        with pytest.raises(VersionConflictError):
            await client.call(Op.STATE_DELETE, messages.StateDeleteRequest(b"s/1", first.version))
        await client.call(Op.STATE_DELETE, messages.StateDeleteRequest(b"s/1", second.version))
        assert (await client.call(Op.STATE_GET, messages.StateGetRequest(b"s/1"))).value is None
        with pytest.raises(LimitExceededError, match="4096"):
            await put(b"k" * 5000, b"")
