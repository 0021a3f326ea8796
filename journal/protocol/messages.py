"""MessagePack bodies of protocol version 1, and the table of operations. Fixed bodies are in `journal.protocol.frames`.

A body is one map keyed by field name. Unknown fields are ignored, so either side may be newer; a missing field takes
its default, and a missing field without default or a value of the wrong type is an error that names operation and path.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import attrs
import msgspec

from journal.protocol.errors import LocalProtocolError, RemoteProtocolError
from journal.protocol.frames import NO_OFFSET, Op
from shards.history import HistoryGap
from shards.model import Cursor, Mode, ProducerIdentity, Retention, ShardConfig, ShardInfo, StateValue
from shards.position import StartKind

U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
Count = Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]


@attrs.frozen(slots=True)
class Empty:
    """No fields: also what an empty body decodes to."""


@attrs.frozen(slots=True)
class HelloRequest:
    """First frame of a connection.

    Attributes:
        version: Highest protocol version the client speaks.
        client: Name for logs and statistics.
        credentials: What the server's configuration asks for, e.g. ``{"token": "..."}``.
        heartbeat_ms: The client sends something at least this often; 0 promises nothing. The server takes a client that
            broke its promise for gone.
    """

    version: U32
    client: str
    credentials: dict[str, str] | None = attrs.field(default=None, repr=False)
    heartbeat_ms: U32 = 0


@attrs.frozen(slots=True)
class HelloReply:
    """What the server says of itself; its limits hold for the rest of the connection.

    Attributes:
        version: Protocol version of this connection.
        node_id: Stable name of the node's data.
        max_frame_bytes: Longest frame, header included, in either direction.
        max_batch_bytes: Longest record batch in an append.
        connection_id: Number of the connection; a later connection has a higher one.
        restores: Restores of the server's data from backups, oldest first. A client that finds others than over its
            last connection has records of a history that is lost.
    """

    version: U32
    server: str
    node_id: str
    max_frame_bytes: U32
    max_batch_bytes: U32
    connection_id: Count = 0
    restores: list[HistoryGap] = attrs.Factory(list)


@attrs.frozen(slots=True)
class EndClientRequest:
    """End the connections of the client that gave itself this name."""

    client: str


@attrs.frozen(slots=True)
class EndClientReply:
    """How many connections that were."""

    connections: Count


@attrs.frozen(slots=True)
class CreateShardRequest:
    name: str
    config: ShardConfig = ShardConfig()
    exist_ok: bool = False


@attrs.frozen(slots=True)
class OpenShardRequest:
    """Ask for a handle; ``create`` makes the shard with this configuration if it is not there."""

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
    """One page of shards by name: those matching ``filter`` that sort behind ``after``."""

    filter: str = "#"
    after: str = ""
    limit: U32 = 1000


@attrs.frozen(slots=True)
class ListShardsReply:
    """Shards sorted by name, without their segments; ``more`` asks for another page."""

    shards: list[ShardInfo]
    more: bool = False


@attrs.frozen(slots=True)
class NameRequest:
    name: str


@attrs.frozen(slots=True)
class DescribeShardRequest:
    """A shard with up to ``limit`` of its segments, from the one that holds ``from_offset`` on."""

    name: str
    from_offset: Count = 0
    limit: U32 = 1000


@attrs.frozen(slots=True)
class DescribedShard(ShardInfo):
    """A ShardInfo with segments; ``more`` asks for another page, from the offset on with which the last one ends."""

    more: bool = False


@attrs.frozen(slots=True)
class SetModeRequest:
    name: str
    mode: Mode


@attrs.frozen(slots=True)
class ConfigureShardRequest:
    """Change what is not null."""

    name: str
    retention: Retention | None = None
    segment_bytes: Count | None = None


@attrs.frozen(slots=True)
class SealRequest:
    """Close the active segment; with ``wait`` the reply comes when all that is closed lies in Parquet files."""

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
    """Batches with records of one key or tag; ``latest`` asks only for the newest such record's batch."""

    handle: U32
    by: Literal["key", "tag"]
    word: bytes
    from_offset: Count = 0
    max_bytes: U32 = 1 << 20
    latest: bool = False


@attrs.frozen(slots=True)
class SubscribeRequest:
    """Exactly one of ``shard`` and ``filter`` is given; ``start`` and ``value`` are those of `Start`.

    A filter without a group may also start at "committed", behind the lsn of the reply, and end behind ``until_lsn``.
    After a restore from a backup ``common_lsn`` is the lsn up to which the client has the same history as the server:
    a start at an offset then begins no later than at the first record with a higher lsn.
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


@attrs.frozen(slots=True)
class SubscribeReply:
    """``lsn``: newest committed lsn at the moment the subscription began; a filter is resumed from behind it."""

    lsn: Count = 0


@attrs.frozen(slots=True)
class UnsubscribeRequest:
    subscription: U32


@attrs.frozen(slots=True)
class ShardEvent:
    """What happens to the set of shards behind a subscription.

    Attributes:
        event: ``added`` announces a shard_ref before its first PUSH; ``removed`` ends it (deleted); ``error`` ends it
            with ``status``, ``code``, ``message``, ``details``; ``progress`` says that all records up to ``lsn`` were
            pushed, ``end`` that besides nothing more comes. Others are to be ignored.
        offset: With ``added``: offset at which the subscription starts in this shard; -1 if the group decides.
        shard_id: With ``added``: number of the shard, which tells a new shard from a deleted one of the same name.
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
    """One page of a shard's cursors by name: those that sort behind ``after``."""

    shard: str
    after: str = ""
    limit: U32 = 1000


@attrs.frozen(slots=True)
class CursorListReply:
    """Cursors sorted by the bytes of their names; ``more`` asks for another page."""

    cursors: list[Cursor]
    more: bool = False


@attrs.frozen(slots=True)
class CursorCommitRequest:
    """``expected_version``: 0 for "must not exist", null for unconditional."""

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
    """``expected_version``: 0 for "must not exist", null for unconditional. ``expires_at_us``: 0 for never."""

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
    """One page of keys with ``prefix``, sorted, behind ``after``."""

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
    """A condition: the cursor, if there is one, lies at ``max_offset`` or before it."""

    shard: str
    name: str
    max_offset: Count


@attrs.frozen(slots=True)
class CommitRequest:
    """Appends and state changes that are made together or not at all; no key may be there twice.

    They are made only if all of ``cursors`` hold at that moment.
    """

    appends: list[ShardBatch] = attrs.Factory(list)
    puts: list[StatePutRequest] = attrs.Factory(list)
    deletes: list[StateDeleteRequest] = attrs.Factory(list)
    cursors: list[CursorCheck] = attrs.Factory(list)


@attrs.frozen(slots=True)
class BatchAppended:
    """Level reached and first offset of a batch."""

    level: U32
    base_offset: Count


@attrs.frozen(slots=True)
class CommitReply:
    """What became of the appends and the puts, in their order."""

    appended: list[BatchAppended]
    values: list[StateValue]


@attrs.frozen(slots=True)
class ProducerOpenRequest:
    name: str


@attrs.frozen(slots=True)
class SnapshotReply:
    path: str
    lsn: int


@attrs.frozen(slots=True)
class Operation:
    """Body types of an operation; None stands for a fixed body or for a direction that carries nothing."""

    request: type | None
    reply: Any


# A dict reply is the free-form map of STATUS.
OPERATIONS: Final[dict[Op, Operation]] = {
    Op.HELLO: Operation(HelloRequest, HelloReply),
    Op.PING: Operation(Empty, Empty),
    Op.STATUS: Operation(Empty, dict[str, Any]),
    Op.END_CLIENT: Operation(EndClientRequest, EndClientReply),
    Op.SNAPSHOT: Operation(Empty, SnapshotReply),
    Op.CREATE_SHARD: Operation(CreateShardRequest, ShardInfo),
    Op.OPEN_SHARD: Operation(OpenShardRequest, OpenShardReply),
    Op.CLOSE_SHARD: Operation(HandleRequest, Empty),
    Op.LIST_SHARDS: Operation(ListShardsRequest, ListShardsReply),
    Op.DESCRIBE_SHARD: Operation(DescribeShardRequest, DescribedShard),
    Op.DELETE_SHARD: Operation(NameRequest, Empty),
    Op.SET_MODE: Operation(SetModeRequest, ShardInfo),
    Op.CONFIGURE_SHARD: Operation(ConfigureShardRequest, ShardInfo),
    Op.SEAL: Operation(SealRequest, ShardInfo),
    Op.TRIM: Operation(TrimRequest, ShardInfo),
    Op.APPEND: Operation(None, None),
    Op.APPENDED: Operation(None, None),
    Op.FETCH: Operation(None, None),
    Op.FIND_OFFSET: Operation(FindOffsetRequest, FindOffsetReply),
    Op.FETCH_INDEXED: Operation(FetchIndexedRequest, None),
    Op.SUBSCRIBE: Operation(SubscribeRequest, SubscribeReply),
    Op.UNSUBSCRIBE: Operation(UnsubscribeRequest, Empty),
    Op.CREDIT: Operation(None, None),
    Op.PUSH: Operation(None, None),
    Op.SHARD_EVENT: Operation(None, ShardEvent),
    Op.ACKNOWLEDGE: Operation(None, None),
    Op.CURSOR_GET: Operation(CursorRequest, CursorReply),
    Op.CURSOR_LIST: Operation(CursorListRequest, CursorListReply),
    Op.CURSOR_COMMIT: Operation(CursorCommitRequest, Cursor),
    Op.CURSOR_DELETE: Operation(CursorDeleteRequest, Empty),
    Op.STATE_GET: Operation(StateGetRequest, StateGetReply),
    Op.STATE_PUT: Operation(StatePutRequest, StateValue),
    Op.STATE_DELETE: Operation(StateDeleteRequest, Empty),
    Op.STATE_SCAN: Operation(StateScanRequest, StateScanReply),
    Op.COMMIT: Operation(CommitRequest, CommitReply),
    Op.PRODUCER_OPEN: Operation(ProducerOpenRequest, ProducerIdentity),
}

_encoder = msgspec.msgpack.Encoder()
_request_decoders: Final[dict[Op, msgspec.msgpack.Decoder[Any]]] = {
    op: msgspec.msgpack.Decoder(operation.request)
    for op, operation in OPERATIONS.items()
    if operation.request is not None
}
_reply_decoders: Final[dict[Op, msgspec.msgpack.Decoder[Any]]] = {
    op: msgspec.msgpack.Decoder(operation.reply) for op, operation in OPERATIONS.items() if operation.reply is not None
}
_EMPTY_MAP: Final = b"\x80"


def encode(message: object) -> bytes:
    """Encode a request or reply body.

    Raises:
        LocalProtocolError: A field holds a value that MessagePack cannot carry.
    """
    try:
        return _encoder.encode(message)
    except (TypeError, OverflowError, UnicodeEncodeError, msgspec.EncodeError) as fault:
        raise LocalProtocolError(f"{type(message).__name__} cannot be sent: {fault}") from fault


def decode_request(op: Op, body: bytes | memoryview) -> Any:
    """Decode a request body to the type `OPERATIONS` names. An empty body stands for an empty map.

    Raises:
        RemoteProtocolError: Not MessagePack, a wrong type, or a missing field; names operation and path.
    """
    return _decode(_request_decoders, "request", op, body)


def decode_reply(op: Op, body: bytes | memoryview) -> Any:
    """Decode the body of a good reply (or of a SHARD_EVENT); see `decode_request`."""
    return _decode(_reply_decoders, "reply", op, body)


def _decode(decoders: dict[Op, msgspec.msgpack.Decoder[Any]], direction: str, op: Op, body: bytes | memoryview) -> Any:
    decoder = decoders.get(op)
    if decoder is None:
        raise RemoteProtocolError(f"{op.name} has no MessagePack {direction}")
    try:
        return decoder.decode(body if len(body) else _EMPTY_MAP)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise RemoteProtocolError(f"{op.name} {direction}: {fault}") from fault
