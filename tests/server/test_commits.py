"""COMMIT over a socket: one request changes shards and state together, and one wrong part refuses all of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.protocol import Op, encode, frames
from journal.protocol.messages import (
    CommitReply,
    CommitRequest,
    NameRequest,
    ShardBatch,
    StateDeleteRequest,
    StateGetRequest,
    StatePutRequest,
)
from shards.errors import (
    BatchError,
    InvalidRequestError,
    LimitExceededError,
    ShardNotFoundError,
    StorageError,
    VersionConflictError,
)
from shards.model import AckLevel
from tests.server.serving import FILE, MEMORY, RawClient, batch_of, serving, values_of

MIB = 1 << 20


async def commit(client: RawClient, request: CommitRequest) -> CommitReply:
    reply: CommitReply = await client.call(Op.COMMIT, request)
    return reply


async def prepare(client: RawClient) -> dict[str, int]:
    """One shard of each mode, by name their handles, and a key."""
    handles = {name: await client.open(name, config) for name, config in (("file", FILE), ("memory", MEMORY))}
    await client.call(Op.STATE_PUT, StatePutRequest(b"there", b"before"))
    return handles


async def assert_untouched(client: RawClient, handles: dict[str, int]) -> None:
    for handle in handles.values():
        assert await client.read_values(handle) == []
    assert (await client.call(Op.STATE_GET, StateGetRequest(b"k"))).value is None
    assert (await client.call(Op.STATE_GET, StateGetRequest(b"there"))).value.value == b"before"


def whole(
    *batches: ShardBatch, puts: tuple[StatePutRequest, ...] = (), deletes: tuple[StateDeleteRequest, ...] = ()
) -> CommitRequest:
    """A request that would be carried out but for what is given."""
    return CommitRequest(
        [ShardBatch("file", batch_of(b"v")), ShardBatch("memory", batch_of(b"v")), *batches],
        [StatePutRequest(b"k", b"v"), *puts],
        list(deletes),
    )


async def test_shards_of_both_modes_and_state_change_together(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handles = await prepare(client)
        reply = await commit(
            client, whole(ShardBatch("file", batch_of(b"w", b"x")), deletes=(StateDeleteRequest(b"there"),))
        )
        levels = [AckLevel(one.level) for one in reply.appended]
        assert levels == [AckLevel.DURABLE, AckLevel.MEMORY, AckLevel.DURABLE]
        assert [one.base_offset for one in reply.appended] == [0, 0, 1]
        assert await client.read_values(handles["file"]) == [b"v", b"w", b"x"]
        assert await client.read_values(handles["memory"]) == [b"v"]
        stored = (await client.call(Op.STATE_GET, StateGetRequest(b"k"))).value
        assert (stored.value, stored.version) == (b"v", reply.values[0].version)
        assert reply.values[0].value == b"", "what the client has sent need not travel back"
        assert (await client.call(Op.STATE_GET, StateGetRequest(b"there"))).value is None


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (CommitRequest(), InvalidRequestError),
        (whole(ShardBatch("nowhere", batch_of(b"v"))), ShardNotFoundError),
        (whole(ShardBatch("file", b"")), BatchError),
        (whole(ShardBatch("memory", batch_of(b"v")[:-1])), BatchError),
        (whole(ShardBatch("file", batch_of(b"v", producer_id=1, producer_epoch=1))), InvalidRequestError),
        (whole(ShardBatch("memory", batch_of(bytes(MIB)))), LimitExceededError),
        (whole(puts=(StatePutRequest(b"there", b"", 0),)), VersionConflictError),
        (whole(puts=(StatePutRequest(b"missing", b"", 12345),)), VersionConflictError),
        (whole(deletes=(StateDeleteRequest(b"there", 1 << 40),)), VersionConflictError),
        (whole(deletes=(StateDeleteRequest(b"k"),)), InvalidRequestError),
        (whole(puts=(StatePutRequest(b"k", b"twice"),)), InvalidRequestError),
        (whole(puts=(StatePutRequest(b"", b"no key"),)), StorageError),
        (whole(puts=(StatePutRequest(bytes(5000), b"long key"),)), StorageError),
        (whole(puts=(StatePutRequest(b"large", bytes(MIB + 1)),)), LimitExceededError),
    ],
    ids=[
        *("nothing", "no shard", "no batch", "cut batch", "producer", "large batch", "key is there", "key is missing"),
        *("wrong version", "put and deleted", "put twice", "empty key", "long key", "large value"),
    ],
)  # fmt: skip
async def test_one_wrong_part_refuses_all_of_it(
    tmp_path: Path, refused: CommitRequest, error: type[StorageError]
) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handles = await prepare(client)
        with pytest.raises(error):
            await commit(client, refused)
        await assert_untouched(client, handles)
        assert [one.base_offset for one in (await commit(client, whole())).appended] == [0, 0]


async def test_more_than_one_write_of_the_journal_is_refused_and_what_just_fits_is_not(tmp_path: Path) -> None:
    """Each part is small enough; together they would be torn apart by a crash between two writes."""
    async with serving(tmp_path, limits__max_frame_bytes=8 * MIB) as served, served.client() as client:
        handles = await prepare(client)
        half = ShardBatch("file", batch_of(bytes(MIB * 9 // 10)))
        with pytest.raises(LimitExceededError, match="journal_file_bytes"):
            await commit(client, whole(half, half, half))
        await assert_untouched(client, handles)
        assert len((await commit(client, whole(half, half))).appended) == 4


async def test_a_deleted_shard_refuses_and_its_successor_takes_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handles = await prepare(client)
        await client.call(Op.DELETE_SHARD, NameRequest("memory"))
        with pytest.raises(ShardNotFoundError, match="memory"):
            await commit(client, whole())
        await assert_untouched(client, {"file": handles["file"]})
        await client.open("memory", FILE)
        reply = await commit(client, whole())
        assert [AckLevel(one.level) for one in reply.appended] == [AckLevel.DURABLE, AckLevel.DURABLE]


async def test_of_commits_in_one_packet_each_stands_alone_and_in_order(tmp_path: Path) -> None:
    """Those behind a refused one are carried out, and see what those before them did."""
    async with serving(tmp_path) as served, served.client() as client:
        handles = await prepare(client)
        counter = (await client.call(Op.STATE_PUT, StatePutRequest(b"counter", b"0"))).version

        def numbered(number: int) -> CommitRequest:
            batch = ShardBatch("memory" if number % 2 else "file", batch_of(b"%d" % number))
            return CommitRequest([batch], [StatePutRequest(b"counter", b"%d" % number, counter)])

        started = [client.start(Op.COMMIT, numbered(number)) for number in range(10)]
        await client.send(*(frame for _, frame in started))
        outcomes = []
        for correlation, _ in started:
            try:
                await client.reply_to(Op.COMMIT, correlation)
            except VersionConflictError:
                outcomes.append(False)
            else:
                outcomes.append(True)
        assert outcomes.count(True) == 1, "all of them expected the same version"
        winner = outcomes.index(True)
        assert await client.read_values(handles["memory" if winner % 2 else "file"]) == [b"%d" % winner]
        assert await client.read_values(handles["file" if winner % 2 else "memory"]) == []


async def test_a_reader_is_woken_by_a_commit_to_memory_when_the_whole_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client, served.client() as reader:
        await prepare(client)
        handle = await reader.open("memory", None)
        correlation = reader.next_correlation()
        await reader.send(frames.build_fetch(correlation, handle, 0, MIB, 5_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, client, whole())
            fetched = await reader.fetched(correlation)
            assert values_of(fetched.batches) == [b"v"]
            assert (await reader.call(Op.STATE_GET, StateGetRequest(b"k"))).value.value == b"v"


BODY = encode(whole())
MALFORMED = {
    "empty": b"",
    "cut": BODY[:-1],
    "garbage": b"\xc1" * 20,
    "no map": msgspec.msgpack.encode([1, 2, 3]),
    "appends are no list": msgspec.msgpack.encode({"appends": 7}),
    "a batch is text": msgspec.msgpack.encode({"appends": [{"shard": "file", "batch": "text"}]}),
    "a name is bytes": msgspec.msgpack.encode({"appends": [{"shard": b"\xff", "batch": batch_of(b"v")}]}),
    "a key is a number": msgspec.msgpack.encode({"puts": [{"key": 1, "value": b"v"}]}),
    "a version is negative": msgspec.msgpack.encode({"deletes": [{"key": b"k", "expected_version": -5}]}),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_body_is_refused_and_the_connection_continues(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handles = await prepare(client)
        correlation = client.next_correlation()
        await client.send(frames.build(Op.COMMIT, correlation, body))
        with pytest.raises(StorageError):
            await client.reply_to(Op.COMMIT, correlation)
        await assert_untouched(client, handles)
        assert len((await commit(client, whole())).appended) == 2


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(edits=st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_request_is_carried_out_whole_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]]
) -> None:
    body = bytearray(BODY)
    for at, byte in edits:
        body[at] = byte

    async def send() -> None:
        async with serving(tmp_path_factory.mktemp("damaged")) as served, served.client() as client:
            handles = await prepare(client)
            correlation = client.next_correlation()
            await client.send(frames.build(Op.COMMIT, correlation, bytes(body)))
            try:
                reply: CommitReply = await client.reply_to(Op.COMMIT, correlation)
            except StorageError:
                await assert_untouched(client, handles)
            else:
                counts = [len(await client.read_values(handle)) for handle in handles.values()]
                assert sum(counts) == len(reply.appended)

    trio.run(send)
