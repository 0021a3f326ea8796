"""One sample of every operation in both directions: what the golden files of the protocol version hold."""

from __future__ import annotations

import struct
from typing import Any

import attrs
import msgspec

from journal.protocol import encode, frames, messages
from journal.protocol.errors import encode_error
from journal.protocol.frames import Op
from shards.errors import OffsetOutOfRangeError
from shards.history import HistoryGap
from shards.model import (
    Cursor,
    Mode,
    ProducerIdentity,
    Retention,
    SegmentInfo,
    SegmentKind,
    ShardConfig,
    ShardInfo,
    StateValue,
)
from tests.protocol.append_frames import build_appended

# Stands for record batches: the protocol carries them as they are.
BATCH = b"JRB1" + bytes(range(84))

CONFIG = ShardConfig(Mode.MEMORY, Retention(3600, 1 << 30, 1000), 1 << 26, True, False)
INFO = ShardInfo("plant/line-1", 7, CONFIG, 1_700_000_000_000_000, 5, 105, 77, 4096)
SEGMENT = SegmentInfo(SegmentKind.LOG, 5, 105, 4096, 1_700_000_000_000_000, False)
FULL_INFO = ShardInfo("plant/line-1", 7, CONFIG, 1_700_000_000_000_000, 5, 105, 77, 4096, (SEGMENT,))
RESTORED_INFO = attrs.evolve(FULL_INFO, restored_offset=42)
COUNTED_INFO = attrs.evolve(FULL_INFO, record_count=60)
SHARED_SEGMENT = attrs.evolve(
    SEGMENT,
    kind=SegmentKind.PARQUET,
    closed=True,
    file="date=2023-11-14/51e5000000000007.parquet",
    first_row=1000,
)
SHARED_INFO = attrs.evolve(COUNTED_INFO, segments=(SHARED_SEGMENT,))
CURSOR = Cursor("drain", 42, 99)
VALUE = StateValue(b"session/1", b"\x00\x01", 12, 1_800_000_000_000_000)

OLD_SUBSCRIBE = {
    "credit_bytes": 65536,
    "filter": "plant/#",
    "group": "drains",
    "shard": None,
    "start": "lsn",
    "subscription": 9,
    "value": 78,
}
ENDING_SUBSCRIBE = messages.SubscribeRequest(9, None, "plant/#", "committed", 0, 65536, None, 90)
RESTORED_SUBSCRIBE = messages.SubscribeRequest(9, "plant/line-1", None, "offset", 500, 65536, common_lsn=88)
SEEN_SUBSCRIBE = messages.SubscribeRequest(9, "plant/line-1", None, "offset", 500, 65536, seen_lsn=77)
RESTORED_HELLO = messages.HelloReply(
    2, "journal-engine 0.1", "node-1", 16 << 20, 8 << 20, 12, [HistoryGap(88, 1 << 40), HistoryGap(1 << 41, 1 << 42)]
)
FOLLOWER_HELLO = messages.HelloReply(2, "journal-engine 0.1", "node-1", 16 << 20, 8 << 20, 12, is_follower=True)
PROGRESS = messages.ShardEvent(9, "progress", lsn=88)
END = messages.ShardEvent(9, "end", lsn=90)

REQUESTS: dict[Op, object] = {
    Op.HELLO: messages.HelloRequest(2, "broker-1", {"token": "secret"}),
    Op.PING: messages.Empty(),
    Op.STATUS: messages.Empty(),
    Op.SNAPSHOT: messages.Empty(),
    Op.END_CLIENT: messages.EndClientRequest("journal-broker-7"),
    Op.CREATE_SHARD: messages.CreateShardRequest("plant/line-1", CONFIG, True),
    Op.OPEN_SHARD: messages.OpenShardRequest("plant/line-1", ShardConfig()),
    Op.CLOSE_SHARD: messages.HandleRequest(3),
    Op.LIST_SHARDS: messages.ListShardsRequest("plant/#", "plant/a", 10),
    Op.DESCRIBE_SHARD: messages.DescribeShardRequest("plant/line-1"),
    Op.DELETE_SHARD: messages.NameRequest("plant/line-1"),
    Op.SET_MODE: messages.SetModeRequest("plant/line-1", Mode.FILE),
    Op.CONFIGURE_SHARD: messages.ConfigureShardRequest("plant/line-1", Retention(60), None),
    Op.ROLL: messages.RollRequest("plant/line-1"),
    Op.TRIM: messages.TrimRequest("plant/line-1", 50),
    Op.FIND_OFFSET: messages.FindOffsetRequest(3, "time", 1_700_000_000_000_000),
    Op.FETCH_INDEXED: messages.FetchIndexedRequest(3, "key", b"pump", 5, 65536, True),
    Op.SUBSCRIBE: messages.SubscribeRequest(9, None, "plant/#", "lsn", 78, 65536, "drains"),
    Op.UNSUBSCRIBE: messages.UnsubscribeRequest(9),
    Op.CURSOR_GET: messages.CursorRequest("plant/line-1", "drain"),
    Op.CURSOR_LIST: messages.CursorListRequest("plant/line-1"),
    Op.CURSOR_COMMIT: messages.CursorCommitRequest("plant/line-1", "drain", 42, 98),
    Op.CURSOR_DELETE: messages.CursorDeleteRequest("plant/line-1", "drain", 99),
    Op.STATE_GET: messages.StateGetRequest(b"session/1"),
    Op.STATE_PUT: messages.StatePutRequest(b"session/1", b"\x00\x01", 0, 1_800_000_000_000_000),
    Op.STATE_DELETE: messages.StateDeleteRequest(b"session/1", 12),
    Op.STATE_SCAN: messages.StateScanRequest(b"session/", b"session/0", 10),
    Op.COMMIT: messages.CommitRequest(
        [messages.ShardBatch("plant/line-1", BATCH)],
        [messages.StatePutRequest(b"session/1", b"\x00\x01", 12)],
        [messages.StateDeleteRequest(b"timer/1", 7)],
    ),
    Op.PRODUCER_OPEN: messages.ProducerOpenRequest("broker-1"),
}
REPLIES: dict[Op, object] = {
    Op.HELLO: messages.HelloReply(2, "journal-engine 0.1", "node-1", 16 << 20, 8 << 20, 12),
    Op.PING: messages.Empty(),
    Op.STATUS: {"shards": 3, "uptime_s": 12.5},
    Op.END_CLIENT: messages.EndClientReply(1),
    Op.SNAPSHOT: messages.SnapshotReply("/var/lib/journal/snapshots/0a1b2c3d", 105),
    Op.CREATE_SHARD: INFO,
    Op.OPEN_SHARD: messages.OpenShardReply(3, INFO),
    Op.CLOSE_SHARD: messages.Empty(),
    Op.LIST_SHARDS: messages.ListShardsReply([INFO], True),
    Op.DESCRIBE_SHARD: messages.DescribedShard(*attrs.astuple(FULL_INFO, recurse=False)),
    Op.DELETE_SHARD: messages.Empty(),
    Op.SET_MODE: INFO,
    Op.CONFIGURE_SHARD: INFO,
    Op.ROLL: FULL_INFO,
    Op.TRIM: INFO,
    Op.FIND_OFFSET: messages.FindOffsetReply(33),
    Op.SUBSCRIBE: messages.SubscribeReply(77),
    Op.UNSUBSCRIBE: messages.Empty(),
    Op.SHARD_EVENT: messages.ShardEvent(9, "added", 4, "plant/line-1", 33, 7),
    Op.CURSOR_GET: messages.CursorReply(CURSOR),
    Op.CURSOR_LIST: messages.CursorListReply([CURSOR]),
    Op.CURSOR_COMMIT: CURSOR,
    Op.CURSOR_DELETE: messages.Empty(),
    Op.STATE_GET: messages.StateGetReply(VALUE),
    Op.STATE_PUT: VALUE,
    Op.STATE_DELETE: messages.Empty(),
    Op.STATE_SCAN: messages.StateScanReply([VALUE], False),
    Op.COMMIT: messages.CommitReply(
        [messages.BatchAppended(2, 105)], [StateValue(b"session/1", b"", 78, 1_800_000_000_000_000)]
    ),
    Op.PRODUCER_OPEN: ProducerIdentity(11, 2),
}

LIST_WITH_SEGMENTS = messages.ListShardsRequest("plant/#", "plant/a", 10, 5)
DESCRIBE_PAGE = messages.DescribeShardRequest("plant/line-1", 105, 10)
DESCRIBED_PAGE = messages.DescribedShard(*attrs.astuple(FULL_INFO, recurse=False), more=True)
CURSOR_PAGE = messages.CursorListRequest("plant/line-1", "drain", 10)
CURSORS_PAGE = messages.CursorListReply([CURSOR], more=True)

_correlation = struct.unpack("<I", b"CORR")[0]


def _as_first_sent(reply: object) -> object:
    """A reply as servers have always sent it that know nothing of restores or shared files and do not count records."""
    plain = msgspec.to_builtins(reply, builtin_types=(bytes,))
    if isinstance(reply, messages.HelloReply):
        del plain["restores"], plain["is_follower"]
    elif isinstance(reply, ShardInfo):
        _uncounted_and_unrestored(plain)
    elif isinstance(reply, messages.OpenShardReply):
        _uncounted_and_unrestored(plain["info"])
    elif isinstance(reply, messages.ListShardsReply):
        for info in plain["shards"]:
            _uncounted_and_unrestored(info)
    return plain


def _uncounted_and_unrestored(info: dict[str, Any]) -> None:
    del info["restored_offset"], info["record_count"]
    _without_files(info)


def _without_files(info: dict[str, Any]) -> dict[str, Any]:
    for segment in info["segments"]:
        del segment["file"], segment["first_row"]
    return info


def _counted(info: ShardInfo) -> dict[str, Any]:
    return _without_files(msgspec.to_builtins(info, builtin_types=(bytes,)))


def _uncounted(info: ShardInfo) -> object:
    plain = _counted(info)
    del plain["record_count"]
    return plain


OLD_COMMIT = {
    "appends": REQUESTS[Op.COMMIT].appends,  # type: ignore[attr-defined]
    "deletes": REQUESTS[Op.COMMIT].deletes,  # type: ignore[attr-defined]
    "puts": REQUESTS[Op.COMMIT].puts,  # type: ignore[attr-defined]
}
HEARTBEAT_HELLO = messages.HelloRequest(2, "broker-1", None, 5000)
READING_HELLO = messages.HelloRequest(2, "reader-1", None, 5000, messages.READ_FOLLOWER)
CHECKED_COMMIT = messages.CommitRequest(
    puts=[messages.StatePutRequest(b"claim/1", b"", 0)],
    cursors=[messages.CursorCheck("plant/line-1", "group/g", 42)],
)


def golden_frames() -> dict[str, bytes]:
    """Name of the golden file -> the whole frame that it must hold."""
    made: dict[str, bytes] = {}
    for op, message in REQUESTS.items():
        made[f"{op.name.lower()}.request"] = frames.build(op, _correlation, encode(message))
    for op, reply in REPLIES.items():
        message = _as_first_sent(reply)
        correlation = 0 if op is Op.SHARD_EVENT else _correlation
        made[f"{op.name.lower()}.reply"] = frames.build(op, correlation, encode(message))
    # The request as clients that do not wait have always sent it; `wait` came later.
    made["roll.request"] = frames.build(Op.ROLL, _correlation, encode(messages.NameRequest("plant/line-1")))
    made["roll.waiting_request"] = frames.build(
        Op.ROLL, _correlation, encode(messages.RollRequest("plant/line-1", wait=True))
    )
    # Without pages and segments; those came later.
    for name, op, message in (
        ("list_shards.request", Op.LIST_SHARDS, {"after": "plant/a", "filter": "plant/#", "limit": 10}),
        ("list_shards.segments_request", Op.LIST_SHARDS, LIST_WITH_SEGMENTS),
        ("describe_shard.request", Op.DESCRIBE_SHARD, messages.NameRequest("plant/line-1")),
        ("describe_shard.reply", Op.DESCRIBE_SHARD, _as_first_sent(FULL_INFO)),
        ("describe_shard.page_request", Op.DESCRIBE_SHARD, DESCRIBE_PAGE),
        ("describe_shard.page_reply", Op.DESCRIBE_SHARD, _as_first_sent(DESCRIBED_PAGE)),
        ("cursor_list.request", Op.CURSOR_LIST, {"shard": "plant/line-1"}),
        ("cursor_list.reply", Op.CURSOR_LIST, {"cursors": [CURSOR]}),
        ("cursor_list.page_request", Op.CURSOR_LIST, CURSOR_PAGE),
        ("cursor_list.page_reply", Op.CURSOR_LIST, CURSORS_PAGE),
    ):
        made[name] = frames.build(op, _correlation, encode(message))
    # And as clients have always sent it that know no end of a subscription.
    made["subscribe.request"] = frames.build(Op.SUBSCRIBE, _correlation, encode(OLD_SUBSCRIBE))
    ending = msgspec.to_builtins(ENDING_SUBSCRIBE)
    del ending["common_lsn"], ending["seen_lsn"]
    made["subscribe.ending_request"] = frames.build(Op.SUBSCRIBE, _correlation, encode(ending))
    resumed = msgspec.to_builtins(RESTORED_SUBSCRIBE)
    del resumed["seen_lsn"]
    made["subscribe.restored_request"] = frames.build(Op.SUBSCRIBE, _correlation, encode(resumed))
    made["subscribe.seen_request"] = frames.build(Op.SUBSCRIBE, _correlation, encode(SEEN_SUBSCRIBE))
    restored = msgspec.to_builtins(RESTORED_HELLO)
    del restored["is_follower"]
    made["hello.restored_reply"] = frames.build(Op.HELLO, _correlation, encode(restored))
    made["hello.follower_reply"] = frames.build(Op.HELLO, _correlation, encode(FOLLOWER_HELLO))
    # As clients have always sent it that make no condition on cursors.
    made["commit.request"] = frames.build(Op.COMMIT, _correlation, encode(OLD_COMMIT))
    # And by clients that promise no heartbeats.
    hello = REQUESTS[Op.HELLO]
    assert isinstance(hello, messages.HelloRequest)
    made["hello.request"] = frames.build(
        Op.HELLO,
        _correlation,
        encode({"client": hello.client, "credentials": hello.credentials, "version": hello.version}),
    )
    promising = msgspec.to_builtins(HEARTBEAT_HELLO)
    del promising["read"]
    made["hello.heartbeat_request"] = frames.build(Op.HELLO, _correlation, encode(promising))
    made["hello.reading_request"] = frames.build(Op.HELLO, _correlation, encode(READING_HELLO))
    made["commit.checked_request"] = frames.build(Op.COMMIT, _correlation, encode(CHECKED_COMMIT))
    made["describe_shard.restored_reply"] = frames.build(
        Op.DESCRIBE_SHARD, _correlation, encode(_uncounted(RESTORED_INFO))
    )
    made["describe_shard.counted_reply"] = frames.build(Op.DESCRIBE_SHARD, _correlation, encode(_counted(COUNTED_INFO)))
    made["describe_shard.shared_reply"] = frames.build(Op.DESCRIBE_SHARD, _correlation, encode(SHARED_INFO))
    made["shard_event.progress_reply"] = frames.build(Op.SHARD_EVENT, 0, encode(PROGRESS))
    made["shard_event.end_reply"] = frames.build(Op.SHARD_EVENT, 0, encode(END))
    made["append.request"] = frames.build_append(_correlation, 3, BATCH, ack_level=2, expected_offset=105)
    made["appended.reply"] = build_appended([(1, 2, 0, 105), (2, 1, frames.ACK_DUPLICATE, -1)])
    made["fetch.request"] = frames.build_fetch(_correlation, 3, 33, 1 << 20, 500)
    made["fetch.reply"] = frames.build_fetch_reply_head(_correlation, 30, 35, len(BATCH)) + BATCH
    made["fetch_indexed.reply"] = (
        frames.build_fetch_reply_head(_correlation, 30, 105, len(BATCH), op=Op.FETCH_INDEXED) + BATCH
    )
    made["credit.request"] = frames.build_credit(9, 65536)
    made["push.reply"] = frames.build_push_head(9, 4, 33, 35, 2 * len(BATCH)) + 2 * BATCH
    made["acknowledge.request"] = frames.build_acknowledge(9, 4, 33, 35)
    made["fetch.error"] = encode_error(_correlation, Op.FETCH, OffsetOutOfRangeError("plant/line-1", 1, 5, 105))
    return made
