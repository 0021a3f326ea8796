"""The table of operations with their MessagePack bodies, and the encoding and decoding of these bodies.

Fixed bodies, which have no MessagePack, are in `journal.protocol.frames`.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgspec

from journal.protocol.errors import LocalProtocolError, RemoteProtocolError
from journal.protocol.frames import Op
from journal.protocol.messages import (
    CommitReply,
    CommitRequest,
    ConfigureShardRequest,
    CreateShardRequest,
    CursorCommitRequest,
    CursorDeleteRequest,
    CursorListReply,
    CursorListRequest,
    CursorReply,
    CursorRequest,
    DescribedShard,
    DescribeShardRequest,
    Empty,
    EndClientReply,
    EndClientRequest,
    FetchIndexedRequest,
    FindOffsetReply,
    FindOffsetRequest,
    HandleRequest,
    HelloReply,
    HelloRequest,
    ListShardsReply,
    ListShardsRequest,
    NameRequest,
    OpenShardReply,
    OpenShardRequest,
    ProducerOpenRequest,
    RollRequest,
    SetModeRequest,
    ShardEvent,
    SnapshotReply,
    StateDeleteRequest,
    StateGetReply,
    StateGetRequest,
    StatePutRequest,
    StateScanReply,
    StateScanRequest,
    SubscribeReply,
    SubscribeRequest,
    TrimRequest,
    UnsubscribeRequest,
)
from shards.model import Cursor, ProducerIdentity, ShardInfo, StateValue


@attrs.frozen(slots=True)
class Operation:
    """Body types of an operation; None for a fixed body, or if there is no message in that direction."""

    request: type | None
    reply: Any


# A dict reply is the map of STATUS, whose fields may change.
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
    Op.ROLL: Operation(RollRequest, ShardInfo),
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
        LocalProtocolError: The value of a field cannot be encoded as MessagePack.
    """
    try:
        return _encoder.encode(message)
    except (TypeError, OverflowError, UnicodeEncodeError, msgspec.EncodeError) as fault:
        raise LocalProtocolError(f"{type(message).__name__} cannot be sent: {fault}") from fault


def decode_request(op: Op, body: bytes | memoryview) -> Any:
    """Decode a request body to its type in `OPERATIONS`. An empty body is decoded like an empty map.

    Raises:
        RemoteProtocolError: Not MessagePack, a wrong type, or a missing field; it names operation and path.
    """
    return _decode(_request_decoders, "request", op, body)


def decode_reply(op: Op, body: bytes | memoryview) -> Any:
    """Decode the body of a successful reply (or of a SHARD_EVENT); see `decode_request`."""
    return _decode(_reply_decoders, "reply", op, body)


def _decode(decoders: dict[Op, msgspec.msgpack.Decoder[Any]], direction: str, op: Op, body: bytes | memoryview) -> Any:
    decoder = decoders.get(op)
    if decoder is None:
        raise RemoteProtocolError(f"{op.name} has no MessagePack {direction}")
    try:
        return decoder.decode(body if len(body) else _EMPTY_MAP)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        # It is MessagePack with other fields, as a server of another version sends it.
        is_other_version = direction == "reply" and isinstance(fault, msgspec.ValidationError)
        cause = "; the server may be of another version" if is_other_version else ""
        raise RemoteProtocolError(f"{op.name} {direction}: {fault}{cause}") from fault
