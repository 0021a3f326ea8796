"""The error classes of the storage formats and views, in one tree.

Every message names the object, the value found, the values allowed and, if there is one, what can be done. Errors that
may be sent to a client have a ``code``; `journal.protocol.errors` maps codes to wire numbers and back, so an error that
is raised in the engine reaches a client as the same class. `way_out` has advice about errors of the operating system.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Final, TypeVar


class StorageError(Exception):
    """Base class of all errors that this package raises on purpose.

    Attributes:
        code: Stable snake_case name, the same in logs, on the wire and in the documentation.
        retriable: Whether the same request may succeed later without being changed.
    """

    code: ClassVar[str] = "storage_error"
    retriable: ClassVar[bool] = False


_Error = TypeVar("_Error", bound=StorageError)


def afresh(error: _Error) -> _Error:
    """Return an error that is kept and raised repeatedly without the traceback of earlier raises.

    Otherwise an exception collects the frames, and all objects in them, of every raise: an error that is raised for
    thousands of callers would fill the memory.
    """
    return error.with_traceback(None)


class BatchError(StorageError):
    """Bytes are not a valid record batch: too short, wrong magic, wrong checksum, impossible column."""

    code = "bad_batch"


class CorruptionError(StorageError):
    """Stored bytes differ from what was written.

    Args:
        path: The damaged file.
        position: Byte position in that file.
        problem: What is wrong there, with expected and found values.
    """

    code = "corruption"

    def __init__(self, path: str, position: int, problem: str) -> None:
        super().__init__(f"{path} at byte {position}: {problem}")
        self.path = path
        self.position = position
        self.problem = problem


class FormatVersionError(StorageError):
    """A file, directory or peer uses a newer version of a format than this program supports."""

    code = "format_version"


class InvalidNameError(StorageError):
    """A shard, cursor, group or producer name, or a topic filter, breaks the naming rules."""

    code = "invalid_name"


class InvalidRequestError(StorageError):
    """A request is well-formed but impossible to carry out."""

    code = "invalid_request"


class ShardNotFoundError(StorageError):
    """No shard has this name."""

    code = "shard_not_found"


class ShardExistsError(StorageError):
    """A shard with this name exists already."""

    code = "shard_exists"


class ShardDamagedError(StorageError):
    """The shard is stopped because its stored data is damaged; other shards continue."""

    code = "shard_damaged"


class OffsetOutOfRangeError(StorageError):
    """The offset was trimmed or does not exist yet.

    Attributes:
        start_offset: First offset that was not trimmed.
        next_offset: Offset that the next record will get.
    """

    code = "offset_out_of_range"

    def __init__(self, shard: str, offset: int, start_offset: int, next_offset: int) -> None:
        super().__init__(
            f"offset {offset} of shard {shard!r} is out of range: it holds offsets from {start_offset} "
            f"up to but not including {next_offset}; read from one of these, from 'earliest' or from 'latest'"
        )
        self.shard = shard
        self.offset = offset
        self.start_offset = start_offset
        self.next_offset = next_offset


class OffsetConflictError(StorageError):
    """A conditional append expected another next offset than the shard's."""

    code = "offset_conflict"

    def __init__(self, shard: str, expected_offset: int, next_offset: int) -> None:
        super().__init__(
            f"append to shard {shard!r} expected next offset {expected_offset}, but it is {next_offset}; "
            f"read the records in between and decide again"
        )
        self.shard = shard
        self.expected_offset = expected_offset
        self.next_offset = next_offset


class VersionConflictError(StorageError):
    """A compare-and-set on a cursor or state key found another version than expected."""

    code = "version_conflict"

    def __init__(self, what: str, expected_version: int, found_version: int) -> None:
        super().__init__(
            f"{what} has version {found_version}, not the expected {expected_version}; read it and decide again"
        )
        self.what = what
        self.expected_version = expected_version
        self.found_version = found_version


class CursorConflictError(StorageError):
    """A commit required that a cursor is at most at an offset, but it is after it."""

    code = "cursor_conflict"

    def __init__(self, shard: str, name: str, max_offset: int, found_offset: int) -> None:
        super().__init__(
            f"cursor {name!r} of shard {shard!r} is at offset {found_offset}, after {max_offset}; read it and "
            f"decide again"
        )
        self.shard = shard
        self.name = name
        self.max_offset = max_offset
        self.found_offset = found_offset


class StaleEpochError(StorageError):
    """A producer, broker or session owner with a newer epoch has taken over; this one is permanently fenced."""

    code = "stale_epoch"


class UnknownProducerError(StorageError):
    """The producer id was never opened on this node."""

    code = "unknown_producer"


class SequenceGapError(StorageError):
    """A producer's batch does not follow its last accepted one: an earlier batch is missing or was refused.

    Attributes:
        expected_sequence: The sequence that the store would accept next, if it is known.
    """

    code = "sequence_gap"
    retriable = True

    def __init__(self, message: str, expected_sequence: int | None = None) -> None:
        super().__init__(message)
        self.expected_sequence = expected_sequence


class SequenceLostError(StorageError):
    """A producer's batch cannot be stored under its sequence any more, and is not acknowledged.

    It was lost with the memory while later batches of its producer are kept, or the server has no state of the producer
    any more and does not know whether the batch is stored. Appended as new, its records come after the later ones.

    Attributes:
        expected_sequence: The sequence that the store would accept next, if it is known.
    """

    code = "sequence_lost"

    def __init__(self, message: str, expected_sequence: int | None = None) -> None:
        super().__init__(message)
        self.expected_sequence = expected_sequence


class IndexMissingError(StorageError):
    """A read by key or tag needs an index that the shard was not created with."""

    code = "index_missing"


class LimitExceededError(StorageError):
    """A configured limit would be exceeded; the message names the limit, the value and the setting."""

    code = "limit_exceeded"


class OverloadedError(StorageError):
    """A bounded resource is full at present; the request was not carried out and may be sent again."""

    code = "overloaded"
    retriable = True


class DiskFullError(StorageError):
    """The disk is nearly full: appends are refused before it is completely full, reads continue."""

    code = "disk_full"
    retriable = True


class LogUnavailableError(DiskFullError):
    """The system in which the log of the store lies does not answer, is full or refuses: appends wait or are refused.

    As after a full disk, nothing is lost: the write is repeated until the system takes it.
    """

    code = "log_unavailable"


class FileUnavailableError(StorageError):
    """Records are in a Parquet file that this server has not fetched from the log store yet.

    Nothing is lost: it has the records as soon as the log store gives the file, and other servers may have them now.
    """

    code = "file_unavailable"
    retriable = True


class DurabilityUnavailableError(StorageError):
    """A durable acknowledgement was requested for a shard in memory mode."""

    code = "durability_unavailable"


class StorageFailedError(StorageError):
    """A write or fsync failed; nothing more is acknowledged until the data directory is opened again."""

    code = "storage_failed"


class NotOwnerError(StorageFailedError):
    """The server does not own its store, or no longer: another server of the cluster does, or none at present.

    What it had not acknowledged may be stored or not. A client connects to another server and sends it again.

    Attributes:
        owner: ``HOST:PORT`` of the server that owns the store; empty if it is not known.
    """

    code = "not_owner"
    retriable = True

    def __init__(self, owner: str) -> None:
        where = f"the server at {owner} owns" if owner else "another server of the cluster owns, or will own,"
        super().__init__(f"{where} the store now; connect to that one and repeat what was not acknowledged")
        self.owner = owner


class ConversionFailedError(StorageError):
    """A closed segment could not be converted to Parquet. It stays a log file, no record is lost, and it is retried."""

    code = "conversion_failed"
    retriable = True


class DataDirectoryError(StorageError):
    """The data directory cannot be used: locked by another process, not writable, or not a data directory."""

    code = "data_directory"


_FREE_SPACE: Final = "free space on its file system"
_FREE_QUOTA: Final = "free space, or raise the disk quota of the user of this process"
_PERMISSION: Final = "give the user of this process permission to read and write it"
_READ_ONLY: Final = "its file system is mounted read-only: mount it for writing"
_DISK: Final = "its disk or file system has failed: see the kernel's log (dmesg), and restore a backup if data is lost"
_DESCRIPTORS: Final = "allow more open files (ulimit -n, LimitNOFILE)"

_ADVICE: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_QUOTA,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _READ_ONLY,
    errno.EIO: _DISK,
    errno.EUCLEAN: _DISK,
    errno.ENOENT: "create the directory, or mount its file system",
    errno.ENOTDIR: "a part of the path is a file: name a directory",
    errno.EEXIST: "a part of the path is a file: name a directory",
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
}


def way_out(error: OSError) -> str:
    """What the user can do about the error, without a full stop."""
    return _ADVICE.get(error.errno or 0, "check its disk and its permissions")
