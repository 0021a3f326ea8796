"""Errors on the wire: the table of error numbers, the body of an error reply, and protocol errors.

An error raised in the engine reaches the client as the same class with the same message and attributes. An exception
that is not a `StorageError` is written only to the server's log: the client gets "internal_error" without details.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import msgspec

from journal.protocol.frames import build
from shards import errors
from shards.errors import StorageError


class ProtocolError(StorageError):
    """The rules of the protocol were broken; the connection cannot continue. The subclass names the side."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """This side was about to break the rules: a bug of the calling program."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the rules, or is not a journal peer."""


class InternalError(StorageError):
    """An unexpected exception in the server; its log has the details."""

    code = "internal_error"


class UnknownOperationError(StorageError):
    """The server does not support the operation number: it is older than the client."""

    code = "unknown_operation"


class UnknownHandleError(StorageError):
    """The handle is not open on this connection, was closed, or its shard was deleted: open the shard again."""

    code = "unknown_handle"


class UnknownSubscriptionError(StorageError):
    """No subscription with this number is open on this connection."""

    code = "unknown_subscription"


class AuthenticationError(StorageError):
    """HELLO had no credentials, or credentials that are not valid."""

    code = "authentication_failed"


class NotAuthorizedError(StorageError):
    """The peer is authenticated, but has no right to do this."""

    code = "not_authorized"


class QuotaExceededError(StorageError):
    """The principal, or all principals together, reached a quota; the request was not carried out."""

    code = "quota_exceeded"
    retriable = True


class ShuttingDownError(StorageError):
    """The server is stopping in order; the request was not carried out. Connect again and repeat it."""

    code = "shutting_down"
    retriable = True


class ConnectionLostError(StorageError):
    """The connection ended before the reply arrived: the request may or may not have been carried out."""

    code = "connection_lost"
    retriable = True


class ServerRestoredError(errors.StorageFailedError):
    """The server's data was restored from a backup, or another server has replaced it: its history is another one.

    Data that the client remembers may belong to the lost history. Only raised by clients; never sent on the wire.
    """


class UnlistedError(StorageError):
    """An error number that this version does not define.

    Attributes:
        remote_code: The code that the server sent.
        remote_retriable: Whether a retry may help, according to the server.
    """

    code = "unlisted"

    def __init__(self, message: str, remote_code: str, remote_retriable: bool) -> None:
        super().__init__(message)
        self.remote_code = remote_code
        self.remote_retriable = remote_retriable


# Numbers are part of the protocol: stable, never used again.
ERROR_NUMBERS: Final[dict[type[StorageError], int]] = {
    InternalError: 1,
    ProtocolError: 2,
    UnknownOperationError: 3,
    UnknownHandleError: 4,
    UnknownSubscriptionError: 5,
    AuthenticationError: 6,
    ShuttingDownError: 7,
    errors.FormatVersionError: 8,
    errors.InvalidRequestError: 9,
    errors.InvalidNameError: 10,
    errors.LimitExceededError: 11,
    errors.OverloadedError: 12,
    NotAuthorizedError: 13,
    QuotaExceededError: 14,
    errors.ShardNotFoundError: 20,
    errors.ShardExistsError: 21,
    errors.ShardDamagedError: 22,
    errors.OffsetOutOfRangeError: 23,
    errors.OffsetConflictError: 24,
    errors.IndexMissingError: 25,
    errors.DurabilityUnavailableError: 26,
    errors.BatchError: 30,
    errors.SequenceGapError: 31,
    errors.StaleEpochError: 32,
    errors.UnknownProducerError: 33,
    errors.SequenceLostError: 34,
    errors.VersionConflictError: 40,
    errors.CursorConflictError: 41,
    errors.DiskFullError: 50,
    errors.StorageFailedError: 51,
    errors.CorruptionError: 52,
    errors.DataDirectoryError: 53,
    errors.ConversionFailedError: 54,
    errors.NotOwnerError: 55,
    errors.LogUnavailableError: 56,
    errors.FileUnavailableError: 57,
    StorageError: 60,
}
ERROR_CLASSES: Final[dict[int, type[StorageError]]] = {
    **{number: cls for cls, number in ERROR_NUMBERS.items()},
    ERROR_NUMBERS[ProtocolError]: RemoteProtocolError,
}


@attrs.frozen(slots=True)
class ErrorBody:
    """Body of an error reply.

    Attributes:
        code: Stable name of the error.
        message: For people: the object, the value found, the values allowed, and what can be done.
        retriable: The same request may succeed later without being changed.
        details: Attributes of the error; which ones depends on the class.
    """

    code: str
    message: str
    retriable: bool = False
    details: dict[str, Any] = attrs.Factory(dict)


# Attributes that are sent in `details`, so that the other side can rebuild the same exception.
DETAILS: Final[dict[type[StorageError], tuple[str, ...]]] = {
    errors.OffsetOutOfRangeError: ("shard", "offset", "start_offset", "next_offset"),
    errors.OffsetConflictError: ("shard", "expected_offset", "next_offset"),
    errors.VersionConflictError: ("what", "expected_version", "found_version"),
    errors.CursorConflictError: ("shard", "name", "max_offset", "found_offset"),
    errors.CorruptionError: ("path", "position", "problem"),
    errors.SequenceGapError: ("expected_sequence",),
    errors.SequenceLostError: ("expected_sequence",),
    errors.NotOwnerError: ("owner",),
}
_OF_SEQUENCES: Final = (errors.SequenceGapError, errors.SequenceLostError)


_TEXTS: Final = frozenset(("shard", "name", "what", "path", "problem", "owner"))
"""The attributes that are texts; all others are numbers."""


def _with_expected_sequence(
    cls: type[errors.SequenceGapError | errors.SequenceLostError],
) -> Callable[[str, dict[str, Any]], StorageError]:
    def rebuild(message: str, details: dict[str, Any]) -> StorageError:
        expected = details.get("expected_sequence")
        return cls(message, expected if isinstance(expected, int) else None)

    return rebuild


def _out_of(cls: Callable[..., StorageError], names: tuple[str, ...]) -> Callable[[str, dict[str, Any]], StorageError]:
    return lambda message, details: cls(*[_detail(details, name) for name in names])


def _detail(details: dict[str, Any], name: str) -> int | str:
    value = details[name]
    kind = str if name in _TEXTS else int
    if not isinstance(value, kind):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected {kind.__name__}")
    return value


_REBUILD: Final[dict[type[StorageError], Callable[[str, dict[str, Any]], StorageError]]] = {
    **{cls: _out_of(cls, names) for cls, names in DETAILS.items() if cls not in _OF_SEQUENCES},
    **{cls: _with_expected_sequence(cls) for cls in _OF_SEQUENCES},
}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ErrorBody)


def error_number(error: BaseException) -> int:
    """Number of an exception's class, or of its nearest listed ancestor; "internal_error" if there is none."""
    for cls in type(error).__mro__:
        number = ERROR_NUMBERS.get(cls)
        if number is not None:
            return number
    return ERROR_NUMBERS[InternalError]


def describe_error(error: BaseException) -> ErrorBody:
    """Body of an error reply. An exception that is not a `StorageError` is not described."""
    if not isinstance(error, StorageError):
        error = InternalError("the server met an unexpected error; its log has the details")
    names = next((DETAILS[cls] for cls in type(error).__mro__ if cls in DETAILS), ())
    details = {name: getattr(error, name) for name in names}
    return ErrorBody(error.code, str(error), error.retriable, details)


def encode_error_body(error: BaseException) -> tuple[int, bytes]:
    """Make (status, body) of an error reply; see `encode_error` for the complete frame."""
    return error_number(error), _encoder.encode(describe_error(error))


def encode_error(correlation: int, op: int, error: BaseException) -> bytes:
    """Make the error reply to request ``correlation``. An exception that is not a `StorageError` is not described."""
    status, body = encode_error_body(error)
    return build(op, correlation, body, status=status)


def decode_error(status: int, body: bytes | memoryview) -> StorageError:
    """Rebuild the error of a reply with a non-zero status.

    Returns:
        An instance of the class that was raised on the other side; `UnlistedError` for a number that this version does
        not define; `RemoteProtocolError` if the body is not an error body.
    """
    try:
        error = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return RemoteProtocolError(f"error reply with status {status} has no readable body: {fault}")
    return decode_error_parts(status, error.code, error.message, error.details, retriable=error.retriable)


def decode_error_parts(
    status: int, code: str, message: str, details: dict[str, Any], *, retriable: bool = False
) -> StorageError:
    """Rebuild an error from its number and parts, as in error replies and shard events."""
    cls = ERROR_CLASSES.get(status)
    if cls is None:
        return UnlistedError(f"{code} (error {status}): {message}", code, retriable)
    rebuild = _REBUILD.get(cls)
    if rebuild is None:
        return cls(message)
    try:
        return rebuild(message, details)
    except KeyError as missing:
        return RemoteProtocolError(f"error {code} lacks the detail {missing}: {message}")
    except TypeError as wrong:
        return RemoteProtocolError(f"error {code} has a detail of the wrong type: {wrong}: {message}")


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed later without being changed."""
    if isinstance(error, UnlistedError):
        return error.remote_retriable
    return isinstance(error, StorageError) and error.retriable
