"""The messages of the JSON sub-protocol: their fields, decoding and encoding. Pure.

`docs/json-protocol.md` describes them; `journal.server.json_protocol.operations` carries out the requests.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from journal.protocol.errors import RemoteProtocolError, UnknownOperationError, describe_error
from shards.format.columns import MAX_TIME_US
from shards.model import Mode
from shards.position import Start, StartKind

SUBPROTOCOL: Final = "journal-json.v1"

LARGEST_NUMBER: Final = 2**53 - 1
"""The largest integer that every JSON reader can represent exactly."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Time: TypeAlias = Annotated[int, Meta(ge=0, le=min(MAX_TIME_US, LARGEST_NUMBER))]
RequestId: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)] | Annotated[str, Meta(max_length=64)]


class Request(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", kw_only=True):
    """Base of all requests: the id that the reply repeats."""

    id: RequestId | None = None


class From(Struct, frozen=True, forbid_unknown_fields=True):
    """A start position: ``value`` is the offset, the time in microseconds or the lsn."""

    at: StartKind
    value: Number = 0

    def start(self) -> Start:
        """Convert to the type of the engine."""
        return Start(self.at, self.value)


class Header(Struct, frozen=True, forbid_unknown_fields=True):
    """One header of a record."""

    name: str
    value: str | None = None
    value_base64: bytes | None = None


class NewRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A record to append; bytes are encoded as text or as base64."""

    value: str | None = None
    value_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    topic: str = ""
    timestamp_us: Time = 0
    headers: list[Header] = []
    tags: list[str] = []
    expires_at_us: Time = 0


class NewShard(Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a shard that is created because it does not exist."""

    mode: Mode | None = None


class Hello(Request, frozen=True, tag="hello"):
    """The first message, with the client's credentials."""

    client: Annotated[str, Meta(max_length=255)] = ""
    credentials: dict[str, str] | None = None


class Ping(Request, frozen=True, tag="ping"):
    """Heartbeat; the reply has no content."""


class List(Request, frozen=True, tag="list"):
    """One page of shards by name."""

    filter: str = "#"
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class Describe(Request, frozen=True, tag="describe"):
    """A shard with its segments."""

    shard: str


class Append(Request, frozen=True, tag="append"):
    """Append records, all of them or none."""

    shard: str
    records: Annotated[list[NewRecord], Meta(min_length=1, max_length=100_000)]
    ack: Literal["default", "memory", "durable"] = "default"
    expected_offset: Number | None = None
    create: NewShard | None = None


class Read(Request, frozen=True, tag="read"):
    """Read from an offset on; wait for the next record if there is none."""

    shard: str
    start: From = From("earliest")
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 24)] = 1 << 20
    wait_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0


class Tail(Request, frozen=True, tag="tail"):
    """Push records from now on; the pushes carry the number ``tail``."""

    tail: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    shard: str | None = None
    filter: str | None = None
    start: From = From("latest")
    credit_bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 1 << 18


class Credit(Request, frozen=True, tag="credit"):
    """Grant this many more bytes for pushes."""

    tail: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    bytes: Annotated[int, Meta(ge=1, le=1 << 30)]


class Untail(Request, frozen=True, tag="untail"):
    """End the pushes of a tail."""

    tail: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


AnyRequest: TypeAlias = Hello | Ping | List | Describe | Append | Read | Tail | Credit | Untail


class _Envelope(Struct):
    """The fields that are read from an invalid request for the error message."""

    op: str = ""
    id: RequestId | None = None


class BadRequestError(RemoteProtocolError):
    """A message that is not a valid request.

    Attributes:
        id: Its id, if that could be read.
    """

    def __init__(self, message: str, id: RequestId | None) -> None:  # noqa: A002 it is called so in the protocol
        super().__init__(message)
        self.id = id


OPERATIONS: Final = tuple(str(kind.__struct_config__.tag) for kind in AnyRequest.__args__)
"""Names of all operations."""

_requests: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_envelopes = msgspec.json.Decoder(_Envelope)
encode_json = msgspec.json.Encoder().encode


def decode_request(message: str) -> AnyRequest:
    """Decode a request.

    Raises:
        BadRequestError: It is not valid; the message says where.
    """
    try:
        return _requests.decode(message)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _fault(message, error) from error


def _fault(message: str, error: Exception) -> BadRequestError | UnknownOperationError:
    try:
        envelope = _envelopes.decode(message)
    except msgspec.ValidationError as problem:
        return BadRequestError(f"this is not a request: {problem}", None)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return BadRequestError(f"a message of {len(message)} characters is not JSON: {error}", None)
    if envelope.op not in OPERATIONS:
        names = ", ".join(OPERATIONS)
        return BadRequestError(f"operation {envelope.op[:64]!r} is unknown; operations are {names}", envelope.id)
    return BadRequestError(f"{envelope.op}: {error}", envelope.id)


def encode_result(id: RequestId | None, result: object) -> bytes:  # noqa: A002
    """Encode the reply to a successful request."""
    return encode_json({"id": id, "result": result})


def encode_error(id: RequestId | None, error: BaseException) -> bytes:  # noqa: A002
    """Encode the reply to a failed request. An exception that is not a `StorageError` is not described."""
    return encode_json({"id": id, "error": error_fields(error)})


def error_fields(error: BaseException) -> dict[str, Any]:
    """The fields of an error in a reply."""
    body = describe_error(error)
    fields: dict[str, Any] = {"code": body.code, "message": body.message, "retriable": body.retriable}
    if body.details:
        fields["details"] = body.details
    return fields
