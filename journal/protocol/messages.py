"""MessagePack bodies of the protocol. `journal.protocol.message_codec` encodes and decodes them.

A body is one map with field names as keys. Unknown fields are ignored, so either side may be newer. A missing field has
its default; a missing field without a default or a value of the wrong type is an error that names operation and path.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import attrs
import msgspec

from journal.protocol.frames import NO_OFFSET, PROTOCOL_VERSION
from shards.history import HistoryGap
from shards.model import Cursor, Mode, Retention, ShardConfig, ShardInfo, StateValue
from shards.position import StartKind

U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
Count = Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]


@attrs.frozen(slots=True)
class Empty:
    """No fields; an empty body decodes to it as well."""


READ_FOLLOWER: Final = "follower"
"""Value of `HelloRequest.read`."""


@attrs.frozen(slots=True)
class HelloRequest:
    """First frame of a connection.

    Attributes:
        version: Protocol version of the client.
        client: Name for logs and statistics.
        credentials: Credentials that the server's configuration requires, e.g. ``{"token": "..."}``.
        heartbeat_ms: The client promises to send something at least this often; 0 is no promise. If the client breaks
            its promise, the server closes the connection.
        read: `READ_FOLLOWER` if the client only reads, and may be served by a follower of its store; else empty.
    """

    version: U32
    client: str
    credentials: dict[str, str] | None = attrs.field(default=None, repr=False)
    heartbeat_ms: U32 = 0
    read: str = ""


@attrs.frozen(slots=True)
class HelloReply:
    """Description of the server; its limits apply to the rest of the connection.

    Attributes:
        version: Protocol version of the server, which is that of the client.
        node_id: Permanent id of the node's data.
        max_frame_bytes: Longest frame, header included, in either direction.
        max_batch_bytes: Longest record batch in an append.
        connection_id: Number of the connection; a later connection has a higher one.
        restores: Restores of the server's data from backups, oldest first. If they differ from those of the client's
            last connection, the client has records of a lost history.
        is_follower: The server follows the owner of its store: it serves reads of what it has of the log so far.
    """

    version: U32
    server: str
    node_id: str
    max_frame_bytes: U32
    max_batch_bytes: U32
    connection_id: Count = 0
    restores: list[HistoryGap] = attrs.Factory(list)
    is_follower: bool = False


def other_version(peer: str, version: int, this_side: str) -> str:
    """The message about a peer of another protocol version, which each side refuses after HELLO.

    Args:
        peer: "the client" or "the server".
        version: Its version.
        this_side: The other one of the two.
    """
    older = peer if version < PROTOCOL_VERSION else this_side
    return (
        f"{peer} uses protocol version {version} and {this_side} uses version {PROTOCOL_VERSION}; update {older}: both "
        "must be of releases with the same protocol version"
    )


@attrs.frozen(slots=True)
class EndClientRequest:
    """End the connections of the client with this name."""

    client: str


@attrs.frozen(slots=True)
class EndClientReply:
    """The number of connections that were ended."""

    connections: Count


@attrs.frozen(slots=True)
class CreateShardRequest:
    name: str
    config: ShardConfig = ShardConfig()
    exist_ok: bool = False


@attrs.frozen(slots=True)
class OpenShardRequest:
    """Open a handle; ``create`` creates the shard with this configuration if it does not exist."""

    name: str
    create: ShardConfig | None = None


@attrs.frozen(slots=True)
class OpenShardReply:
    handle: U32
    info: ShardInfo


@attrs.frozen(slots=True)
class HandleRequest:
    handle: U32


@attrs.frozen(slots=True)
class ListShardsRequest:
    """One page of the shards that match ``filter``, sorted by name, after ``after``.

    Attributes:
        segments: A shard with up to this many segments is listed with them, one with more without any.
    """

    filter: str = "#"
    after: str = ""
    limit: U32 = 1000
    segments: U32 = 0


@attrs.frozen(slots=True)
class ListShardsReply:
    """Shards sorted by name, with their segments as the request wants; ``more`` means that another page follows."""

    shards: list[ShardInfo]
    more: bool = False


@attrs.frozen(slots=True)
class NameRequest:
    name: str


@attrs.frozen(slots=True)
class DescribeShardRequest:
    """A shard with up to ``limit`` of its segments, beginning with the one that holds ``from_offset``."""

    name: str
    from_offset: Count = 0
    limit: U32 = 1000


@attrs.frozen(slots=True)
class DescribedShard(ShardInfo):
    """A ShardInfo with segments; ``more`` means that another page follows, which begins where the last segment ends."""

    more: bool = False


@attrs.frozen(slots=True)
class SetModeRequest:
    name: str
    mode: Mode


@attrs.frozen(slots=True)
class ConfigureShardRequest:
    """Change the fields that are not null."""

    name: str
    retention: Retention | None = None
    segment_bytes: Count | None = None


@attrs.frozen(slots=True)
class RollRequest:
    """Close the active segment; with ``wait`` the reply is sent when all closed log segments are Parquet files."""

    name: str
    wait: bool = False


@attrs.frozen(slots=True)
class TrimRequest:
    name: str
    before_offset: Count


@attrs.frozen(slots=True)
class FindOffsetRequest:
    handle: U32
    at: Literal["earliest", "latest", "time", "lsn"]
    value: Count = 0


@attrs.frozen(slots=True)
class FindOffsetReply:
    offset: Count


@attrs.frozen(slots=True)
class FetchIndexedRequest:
    """Batches with records of one key or tag; with ``latest`` only the batch with the newest such record."""

    handle: U32
    by: Literal["key", "tag"]
    word: bytes
    from_offset: Count = 0
    max_bytes: U32 = 1 << 20
    latest: bool = False


@attrs.frozen(slots=True)
class SubscribeRequest:
    """Exactly one of ``shard`` and ``filter`` is given; ``start`` and ``value`` are those of `Start`.

    A filter without a group may also start at "committed", which is after the lsn of the reply, and end after
    ``until_lsn``. After a restore from a backup ``common_lsn`` is the lsn up to which the client and the server have
    the same history: a start at an offset then begins no later than at the first record with a higher lsn.
    ``seen_lsn``: a shard was created or deleted at this lsn, as the client has learned from this subscription on
    another server. A follower that has not read that much of the log begins later, when it has.
    """

    subscription: U32
    shard: str | None = None
    filter: str | None = None
    start: StartKind | Literal["committed"] = "latest"
    value: Count = 0
    credit_bytes: U32 = 1 << 20
    group: str | None = None
    until_lsn: Count | None = None
    common_lsn: Count | None = None
    seen_lsn: Count = 0


@attrs.frozen(slots=True)
class SubscribeReply:
    """``lsn``: newest committed lsn when the subscription began; a subscription by filter can be resumed after it."""

    lsn: Count = 0


@attrs.frozen(slots=True)
class UnsubscribeRequest:
    subscription: U32


@attrs.frozen(slots=True)
class ShardEvent:
    """A change of the set of shards of a subscription.

    Attributes:
        event: ``added`` announces a shard_ref before its first PUSH; ``removed`` ends it because the shard was deleted;
            ``error`` ends it with ``status``, ``code``, ``message``, ``details``; ``progress`` means that all records
            up to ``lsn`` were pushed, ``end`` means that in addition nothing more follows. Other events are to be
            ignored.
        offset: With ``added``: offset at which the subscription begins in this shard; -1 if the group decides.
        lsn: With ``progress`` and ``end``, and with ``removed`` that of the deletion, 0 if it is not known.
        shard_id: With ``added``: id of the shard, which differs from that of a deleted shard with the same name. It is
            the lsn of its creation.
    """

    subscription: U32
    event: str
    shard_ref: U32 = 0
    name: str = ""
    offset: int = NO_OFFSET
    shard_id: Count = 0
    lsn: Count = 0
    code: str = ""
    status: U32 = 0
    message: str = ""
    details: dict[str, Any] = attrs.Factory(dict)


@attrs.frozen(slots=True)
class CursorRequest:
    shard: str
    name: str


@attrs.frozen(slots=True)
class CursorReply:
    cursor: Cursor | None = None


@attrs.frozen(slots=True)
class CursorListRequest:
    """One page of a shard's cursors, sorted by name, after ``after``."""

    shard: str
    after: str = ""
    limit: U32 = 1000


@attrs.frozen(slots=True)
class CursorListReply:
    """Cursors sorted by the bytes of their names; ``more`` means that another page follows."""

    cursors: list[Cursor]
    more: bool = False


@attrs.frozen(slots=True)
class CursorCommitRequest:
    """``expected_version``: 0 for "must not exist", null for any version."""

    shard: str
    name: str
    offset: Count
    expected_version: Count | None = None


@attrs.frozen(slots=True)
class CursorDeleteRequest:
    shard: str
    name: str
    expected_version: Count | None = None


@attrs.frozen(slots=True)
class StateGetRequest:
    key: bytes


@attrs.frozen(slots=True)
class StateGetReply:
    value: StateValue | None = None


@attrs.frozen(slots=True)
class StatePutRequest:
    """``expected_version``: 0 for "must not exist", null for any version. ``expires_at_us``: 0 for never."""

    key: bytes
    value: bytes
    expected_version: Count | None = None
    expires_at_us: Count = 0


@attrs.frozen(slots=True)
class StateDeleteRequest:
    key: bytes
    expected_version: Count | None = None


@attrs.frozen(slots=True)
class StateScanRequest:
    """One page of keys with ``prefix``, sorted, after ``after``."""

    prefix: bytes
    after: bytes | None = None
    limit: U32 = 1000


@attrs.frozen(slots=True)
class StateScanReply:
    values: list[StateValue]
    more: bool = False


@attrs.frozen(slots=True)
class ShardBatch:
    """One record batch, unstamped and without a producer, for a shard."""

    shard: str
    batch: bytes


@attrs.frozen(slots=True)
class CursorCheck:
    """A condition: the cursor does not exist, or is at ``max_offset`` or before it."""

    shard: str
    name: str
    max_offset: Count


@attrs.frozen(slots=True)
class CommitRequest:
    """Appends and state changes that are made atomically; no key may be changed twice.

    They are made only if all conditions in ``cursors`` hold at that moment.
    """

    appends: list[ShardBatch] = attrs.Factory(list)
    puts: list[StatePutRequest] = attrs.Factory(list)
    deletes: list[StateDeleteRequest] = attrs.Factory(list)
    cursors: list[CursorCheck] = attrs.Factory(list)


@attrs.frozen(slots=True)
class BatchAppended:
    """Acknowledgement level and first offset of a batch."""

    level: U32
    base_offset: Count


@attrs.frozen(slots=True)
class CommitReply:
    """Results of the appends and the puts, in their order."""

    appended: list[BatchAppended]
    values: list[StateValue]


@attrs.frozen(slots=True)
class ProducerOpenRequest:
    name: str


@attrs.frozen(slots=True)
class SnapshotReply:
    path: str
    lsn: int
