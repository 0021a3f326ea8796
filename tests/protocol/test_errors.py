"""An error means the same at both ends; what is not meant for a peer is not sent."""

from __future__ import annotations

import pytest

from journal.protocol import Op, RemoteProtocolError, decode_error, encode_error, errors
from journal.protocol.frames import HEADER
from shards import errors as storage
from shards.errors import StorageError

SAMPLES: list[StorageError] = [
    storage.OffsetOutOfRangeError("a", 9, 1, 5),
    storage.OffsetConflictError("a", 4, 5),
    storage.VersionConflictError("cursor 'x'", 1, 2),
    storage.CursorConflictError("a", "group/g", 4, 5),
    storage.CorruptionError("log/7", 4096, "body_crc expected 1, found 2"),
    storage.SequenceGapError("expected 4, got 7", 4),
]
SPECIAL = {type(sample) for sample in SAMPLES} | {errors.ProtocolError}
SAMPLES += [cls("what happened") for cls in errors.ERROR_NUMBERS if cls not in SPECIAL]


def over_the_wire(error: BaseException) -> StorageError:
    frame = encode_error(5, Op.FETCH, error)
    length, op, status, correlation = HEADER.unpack_from(frame)
    assert (length, op, correlation) == (len(frame), Op.FETCH, 5)
    return decode_error(status, frame[HEADER.size :])


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: error.code)
def test_error_arrives_as_what_it_was(error: StorageError) -> None:
    there = over_the_wire(error)
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert there.__dict__ == error.__dict__
    assert there.code == error.code


def test_numbers_are_stable() -> None:
    assert {cls.code: number for cls, number in errors.ERROR_NUMBERS.items()} == {
        "internal_error": 1, "protocol_error": 2, "unknown_operation": 3, "unknown_handle": 4,
        "unknown_subscription": 5, "authentication_failed": 6, "shutting_down": 7, "format_version": 8,
        "invalid_request": 9, "invalid_name": 10, "limit_exceeded": 11, "overloaded": 12, "not_authorized": 13,
        "quota_exceeded": 14, "shard_not_found": 20,
        "shard_exists": 21, "shard_damaged": 22, "offset_out_of_range": 23, "offset_conflict": 24,
        "index_missing": 25, "durability_unavailable": 26, "bad_batch": 30, "sequence_gap": 31, "stale_epoch": 32,
        "unknown_producer": 33, "sequence_lost": 34, "version_conflict": 40, "cursor_conflict": 41, "disk_full": 50,
        "storage_failed": 51, "corruption": 52, "data_directory": 53, "conversion_failed": 54,
        "not_owner": 55, "log_unavailable": 56, "file_unavailable": 57, "storage_error": 60,
    }  # fmt: skip


def test_every_storage_error_has_a_number() -> None:
    unlisted = [cls for cls in StorageError.__subclasses__() if cls.__module__ == "shards.errors"]
    assert [cls for cls in unlisted if cls not in errors.ERROR_NUMBERS] == []


def test_our_fault_arrives_as_the_other_sides() -> None:
    assert type(over_the_wire(errors.LocalProtocolError("x"))) is RemoteProtocolError
    assert type(over_the_wire(errors.RemoteProtocolError("x"))) is RemoteProtocolError


def test_unexpected_exception_reveals_nothing() -> None:
    there = over_the_wire(KeyError("password of /etc/secret"))
    assert type(there) is errors.InternalError
    assert "secret" not in str(there)


def test_a_subclass_travels_as_its_listed_ancestor() -> None:
    class Special(storage.ShardNotFoundError):
        pass

    assert type(over_the_wire(Special("no shard"))) is storage.ShardNotFoundError


def test_unlisted_number_keeps_name_and_retriable() -> None:
    frame = encode_error(1, 2, storage.OverloadedError("later"))
    there = decode_error(60000, frame[HEADER.size :])
    assert isinstance(there, errors.UnlistedError)
    assert there.remote_code == "overloaded"
    assert errors.is_retriable(there)


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x80", b"\x81\xa4code\x01", b"\x81\xa4code\xa1\xff"])
def test_unreadable_error_body_is_a_protocol_error(body: bytes) -> None:
    assert type(decode_error(23, body)) is RemoteProtocolError


def test_missing_detail_is_a_protocol_error() -> None:
    _, body = errors.encode_error_body(storage.ShardNotFoundError("x"))
    assert type(decode_error(errors.ERROR_NUMBERS[storage.OffsetOutOfRangeError], body)) is RemoteProtocolError
