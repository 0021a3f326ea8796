"""The messages of the JSON sub-protocol: what each request has, how it is read, what goes back. Pure.

`docs/json-protocol.md` describes them; what the requests do is `journal.server.json_protocol.operations`.
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
"""Largest whole number that every JSON reader gives exactly."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Time: TypeAlias = Annotated[int, Meta(ge=0, le=min(MAX_TIME_US, LARGEST_NUMBER))]
RequestId: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)] | Annotated[str, Meta(max_length=64)]


class Request(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", kw_only=True):
    """What every request may have: the id under which it is answered."""

    id: RequestId | None = None


class From(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin: ``value`` is the offset, the time in microseconds or the lsn."""

    at: StartKind
    value: Number = 0

    def start(self) -> Start:
        """The same as the engine takes it."""
        return Start(self.at, self.value)


class Header(Struct, frozen=True, forbid_unknown_fields=True):
    """One header of a record."""

    name: str
    value: str | None = None
    value_base64: bytes | None = None


class NewRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A record to append; bytes are given as text or as base64."""

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
    """How a shard is kept that is created because it is not there."""

    mode: Mode | None = None


class Hello(Request, frozen=True, tag="hello"):
    """The first message: who asks."""

    client: Annotated[str, Meta(max_length=255)] = ""
    credentials: dict[str, str] | None = None


class Ping(Request, frozen=True, tag="ping"):
    """Is anybody there."""


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
    """Have records pushed from now on; ``tail`` is the number under which they come."""

    tail: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    shard: str | None = None
    filter: str | None = None
    start: From = From("latest")
    credit_bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 1 << 18


class Credit(Request, frozen=True, tag="credit"):
    """The client takes this many bytes more."""

    tail: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    bytes: Annotated[int, Meta(ge=1, le=1 << 30)]


class Untail(Request, frozen=True, tag="untail"):
    """No more pushes."""

    tail: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


AnyRequest: TypeAlias = Hello | Ping | List | Describe | Append | Read | Tail | Credit | Untail


class _Envelope(Struct):
    """What can still be read of a request that is none."""

    op: str = ""
    id: RequestId | None = None


class BadRequestError(RemoteProtocolError):
    """A message that is no request.

    Attributes:
        id: The id that it has all the same.
    """

    def __init__(self, message: str, id: RequestId | None) -> None:  # noqa: A002 it is called so in the protocol
        super().__init__(message)
        self.id = id


OPERATIONS: Final = tuple(str(kind.__struct_config__.tag) for kind in AnyRequest.__args__)
"""The names of all operations."""

_requests: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_envelopes = msgspec.json.Decoder(_Envelope)
encode_json = msgspec.json.Encoder().encode


def decode_request(message: str) -> AnyRequest:
    """Read a request.

    Raises:
        BadRequestError: It is none; the message says where it differs.
    """
    try:
        return _requests.decode(message)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _fault(message, error) from error


def _fault(message: str, error: Exception) -> BadRequestError | UnknownOperationError:
    try:
        envelope = _envelopes.decode(message)
    except msgspec.ValidationError as problem:
        return BadRequestError(f"this is no request: {problem}", None)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return BadRequestError(f"a message of {len(message)} characters is no JSON: {error}", None)
    if envelope.op not in OPERATIONS:
        names = ", ".join(OPERATIONS)
        return BadRequestError(f"operation {envelope.op[:64]!r} is unknown; there are {names}", envelope.id)
    return BadRequestError(f"{envelope.op}: {error}", envelope.id)


def encode_result(id: RequestId | None, result: object) -> bytes:  # noqa: A002
    """The reply to a request that was carried out."""
    return encode_json({"id": id, "result": result})


def encode_error(id: RequestId | None, error: BaseException) -> bytes:  # noqa: A002
    """The reply to one that was not. An exception that is no `StorageError` is not described."""
    return encode_json({"id": id, "error": error_fields(error)})


def error_fields(error: BaseException) -> dict[str, Any]:
    """An error as clients see it."""
    body = describe_error(error)
    fields: dict[str, Any] = {"code": body.code, "message": body.message, "retriable": body.retriable}
    if body.details:
        fields["details"] = body.details
    return fields
