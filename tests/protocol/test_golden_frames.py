"""The bytes of a protocol version never change: golden files against both encoder and decoder.

The files of a version were written once. If a test here fails, the code is wrong, not the file; or the protocol has a
new version, with its own directory of files. `docs/protocol.md` says which changes make one.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from journal.protocol import Frame, FrameParser, decode_error, decode_reply, decode_request, frames
from journal.protocol.frames import Op
from journal.protocol.messages import DescribedShard, RollRequest
from shards.errors import OffsetOutOfRangeError
from tests.protocol.append_frames import acks_of, read_append
from tests.protocol.samples import (
    BATCH,
    CHECKED_COMMIT,
    COUNTED_INFO,
    CURSOR_PAGE,
    CURSORS_PAGE,
    DESCRIBE_PAGE,
    DESCRIBED_PAGE,
    END,
    ENDING_SUBSCRIBE,
    FOLLOWER_HELLO,
    HEARTBEAT_HELLO,
    LIST_WITH_SEGMENTS,
    PROGRESS,
    READING_HELLO,
    REPLIES,
    REQUESTS,
    RESTORED_HELLO,
    RESTORED_INFO,
    RESTORED_SUBSCRIBE,
    SEEN_SUBSCRIBE,
    SHARED_INFO,
    golden_frames,
)

_DIRECTORY = Path(__file__).parent.parent / "golden"
GOLDEN = _DIRECTORY / f"v{frames.PROTOCOL_VERSION}" / "frames"
FRAMES = golden_frames()


def read(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


def parse(data: bytes) -> Frame:
    parser = FrameParser(1 << 20)
    parser.feed(data)
    (frame,) = parser
    assert parser.is_empty
    return frame


def test_every_operation_has_its_golden_files() -> None:
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(FRAMES)
    assert {name.split(".")[0] for name in FRAMES} == {op.name.lower() for op in Op}


def test_the_frames_of_version_1_that_made_version_2_necessary() -> None:
    """Besides HELLO, which has the version in it. An operation that had another name had the same bytes."""
    old_names = {
        "roll.reply": "seal.reply",
        "roll.request": "seal.request",
        "roll.waiting_request": "seal.waiting_request",
    }
    came_with_version_2 = {
        "describe_shard.shared_reply",
        "hello.follower_reply",
        "hello.reading_request",
        "list_shards.segments_request",
        "subscribe.seen_request",
    }
    compared = FRAMES.keys() - came_with_version_2
    old = {name: _DIRECTORY / "v1" / "frames" / f"{old_names.get(name, name)}.bin" for name in compared}
    changed = {name for name, path in old.items() if path.read_bytes() != read(name)}
    assert {name for name in changed if not name.startswith("hello.")} == {
        "describe_shard.counted_reply",
        "describe_shard.page_reply",
        "describe_shard.reply",
        "describe_shard.restored_reply",
        "roll.reply",
    }


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_encoder_writes_the_golden_bytes(name: str) -> None:
    assert FRAMES[name] == read(name)


@pytest.mark.parametrize("op", REQUESTS)
def test_request_is_read_from_the_golden_bytes(op: Op) -> None:
    frame = parse(read(f"{op.name.lower()}.request"))
    assert (frame.op, frame.status) == (op, 0)
    assert decode_request(op, frame.body) == REQUESTS[op]


@pytest.mark.parametrize("op", REPLIES)
def test_reply_is_read_from_the_golden_bytes(op: Op) -> None:
    frame = parse(read(f"{op.name.lower()}.reply"))
    assert (frame.op, frame.status) == (op, 0)
    assert decode_reply(op, frame.body) == REPLIES[op]


def test_a_reader_and_a_follower_are_read_from_the_golden_bytes() -> None:
    assert decode_request(Op.HELLO, parse(read("hello.reading_request")).body) == READING_HELLO
    assert decode_reply(Op.HELLO, parse(read("hello.follower_reply")).body) == FOLLOWER_HELLO


def test_a_subscription_that_has_been_on_another_server_is_read_from_the_golden_bytes() -> None:
    assert decode_request(Op.SUBSCRIBE, parse(read("subscribe.seen_request")).body) == SEEN_SUBSCRIBE


def test_a_roll_that_waits_is_read_from_the_golden_bytes() -> None:
    frame = parse(read("roll.waiting_request"))
    assert decode_request(Op.ROLL, frame.body) == RollRequest("plant/line-1", wait=True)


def test_a_subscription_with_an_end_is_read_from_the_golden_bytes() -> None:
    assert decode_request(Op.SUBSCRIBE, parse(read("subscribe.ending_request")).body) == ENDING_SUBSCRIBE
    for name, event in (("progress", PROGRESS), ("end", END)):
        assert decode_reply(Op.SHARD_EVENT, parse(read(f"shard_event.{name}_reply")).body) == event


def test_a_restored_shard_is_read_from_the_golden_bytes() -> None:
    assert decode_reply(Op.DESCRIBE_SHARD, parse(read("describe_shard.restored_reply")).body) == DescribedShard(
        *attrs.astuple(RESTORED_INFO, recurse=False)
    )


def test_a_shard_with_its_count_of_records_is_read_from_the_golden_bytes() -> None:
    assert decode_reply(Op.DESCRIBE_SHARD, parse(read("describe_shard.counted_reply")).body) == DescribedShard(
        *attrs.astuple(COUNTED_INFO, recurse=False)
    )


def test_a_shard_with_a_segment_in_a_shared_file_is_read_from_the_golden_bytes() -> None:
    assert decode_reply(Op.DESCRIBE_SHARD, parse(read("describe_shard.shared_reply")).body) == DescribedShard(
        *attrs.astuple(SHARED_INFO, recurse=False)
    )


def test_a_restored_server_and_a_subscription_to_it_are_read_from_the_golden_bytes() -> None:
    assert decode_reply(Op.HELLO, parse(read("hello.restored_reply")).body) == RESTORED_HELLO
    assert decode_request(Op.SUBSCRIBE, parse(read("subscribe.restored_request")).body) == RESTORED_SUBSCRIBE


def test_a_commit_with_a_condition_is_read_from_the_golden_bytes() -> None:
    assert decode_request(Op.COMMIT, parse(read("commit.checked_request")).body) == CHECKED_COMMIT


def test_a_hello_that_promises_heartbeats_is_read_from_the_golden_bytes() -> None:
    assert decode_request(Op.HELLO, parse(read("hello.heartbeat_request")).body) == HEARTBEAT_HELLO


def test_pages_are_read_from_the_golden_bytes() -> None:
    assert decode_request(Op.LIST_SHARDS, parse(read("list_shards.segments_request")).body) == LIST_WITH_SEGMENTS
    assert decode_request(Op.DESCRIBE_SHARD, parse(read("describe_shard.page_request")).body) == DESCRIBE_PAGE
    assert decode_reply(Op.DESCRIBE_SHARD, parse(read("describe_shard.page_reply")).body) == DESCRIBED_PAGE
    assert decode_request(Op.CURSOR_LIST, parse(read("cursor_list.page_request")).body) == CURSOR_PAGE
    assert decode_reply(Op.CURSOR_LIST, parse(read("cursor_list.page_reply")).body) == CURSORS_PAGE


def test_fixed_bodies_are_read_from_the_golden_bytes() -> None:
    head, batch = read_append(parse(read("append.request")).body)
    assert (*head, bytes(batch)) == (3, 2, 105, BATCH)
    assert list(acks_of(parse(read("appended.reply")).body)) == [
        (1, 2, 0, 0, 105),
        (2, 1, 1, 0, -1),
    ]
    assert frames.read_fetch(parse(read("fetch.request")).body) == (3, 1 << 20, 33, 500)
    assert tuple(frames.read_fetch_reply(parse(read("fetch.reply")).body)) == (30, 35, BATCH)
    assert tuple(frames.read_fetch_reply(parse(read("fetch_indexed.reply")).body)) == (30, 105, BATCH)
    assert frames.read_credit(parse(read("credit.request")).body) == (9, 65536)
    assert tuple(frames.read_push(parse(read("push.reply")).body)) == (9, 4, 33, 35, BATCH + BATCH)
    assert frames.read_acknowledge(parse(read("acknowledge.request")).body) == (9, 4, 33, 35)


def test_error_is_read_from_the_golden_bytes() -> None:
    frame = parse(read("fetch.error"))
    error = decode_error(frame.status, frame.body)
    assert isinstance(error, OffsetOutOfRangeError)
    assert (frame.op, error.shard, error.offset, error.start_offset, error.next_offset) == (
        Op.FETCH,
        "plant/line-1",
        1,
        5,
        105,
    )
