"""The record of a node's restores from backups, so that it never assigns the same number twice.

A backup holds everything up to an lsn. Numbers that the node assigned after it (lsns, which are also versions of state
and cursors, ids of shards and producers; epochs of producers) are not in it, but clients may remember them. So a
restored node continues with much higher numbers: `journal restore` leaves a marker in the directory, and the first
start applies it.
"""

from __future__ import annotations

from typing import Final

import attrs
import msgspec

from journal.engine.directory.json_files import read_json, replace_json
from shards.errors import CorruptionError, DataDirectoryError
from shards.history import HistoryGap
from shards.seams.file_system import FileSystem
from shards.seams.store import Family, Mutations, OrderedStore

LEAST_LSN_STEP: Final = 1 << 40
"""lsns continue at least this far above the backup: more than 31 days of 400,000 entries a second."""

LSNS_PER_SECOND: Final = 1 << 19
"""lsns also continue above this number for each second since 2020, which a node cannot have reached before. So two
restores from one backup do not begin at the same lsn."""

LARGEST_LSN: Final = (1 << 53) - 1
"""The largest integer that JSON clients can represent exactly."""

LEAST_EPOCH_STEP: Final = 1 << 16
"""The same for epochs of producers, which continue above the number of seconds since 2020."""

META_KEY: Final = b"restores"
MARKER: Final = "RESTORED"

_MOST_TOLD: Final = 100
_ZERO_US: Final = 1_577_836_800_000_000  # 2020-01-01 UTC
_SECOND_US: Final = 1_000_000


@attrs.frozen(slots=True)
class RestoreMarker:
    """Content of the file RESTORED in a data directory.

    Attributes:
        restore_id: Random, so that a start that was interrupted applies the restore only once.
        number: The backup's number in its directory.
    """

    restore_id: str
    number: int


@attrs.frozen(slots=True)
class Restore:
    """One restore of this node.

    Attributes:
        restore_id: As in the marker.
        lsn_before: The newest lsn in the backup.
        lsn_after: The first lsn that was assigned after it. A client that remembers an lsn between the two
            remembers data that this node no longer has.
        first_epoch: Producers that are opened get this epoch or a higher one.
        restored_us: When the restored directory was first started.
    """

    restore_id: str
    lsn_before: int
    lsn_after: int
    first_epoch: int
    restored_us: int


_encoder = msgspec.msgpack.Encoder(order="sorted")
_decoder = msgspec.msgpack.Decoder(list[Restore])


def decode_restores(value: bytes) -> list[Restore]:
    """Decode the value stored under `META_KEY`.

    Raises:
        CorruptionError: The value is damaged.
    """
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError as error:
        raise CorruptionError("the list of restores", 0, str(error)) from error


class Restores:
    """The restores of a node, oldest first.

    Args:
        store: The store of the views, which holds the list.

    Attributes:
        all: The restores.
    """

    def __init__(self, store: OrderedStore) -> None:
        stored = store.get(Family.META, META_KEY)
        self.all: list[Restore] = [] if stored is None else decode_restores(stored)

    @property
    def newest_lsn(self) -> int:
        """The first lsn after the newest restore; shards with a lower id are older than it. 0 without a restore."""
        return self.all[-1].lsn_after if self.all else 0

    @property
    def first_epoch(self) -> int:
        """Producers that are opened from now on get this epoch or a higher one; 0 without a restore."""
        return self.all[-1].first_epoch if self.all else 0

    def has(self, restore_id: str) -> bool:
        """Whether a restore was applied already."""
        return any(restore.restore_id == restore_id for restore in self.all)

    def add(self, restore_id: str, *, next_lsn: int, now_us: int) -> Restore:
        """Apply a restore. It is durable when the mutations of `save` are durable.

        Args:
            restore_id: From the marker.
            next_lsn: The lsn that the node would assign next without the restore.
            now_us: The time of day in microseconds since 1970.

        Raises:
            DataDirectoryError: The range of lsns is used up.
        """
        passed_us = max(0, now_us - _ZERO_US)
        lsn_after = max(next_lsn + LEAST_LSN_STEP, passed_us * LSNS_PER_SECOND // _SECOND_US)
        if lsn_after > LARGEST_LSN:
            raise DataDirectoryError(
                f"after {len(self.all)} restores lsns would continue at {lsn_after}, over the largest, {LARGEST_LSN}. "
                f"Is the system clock right? Otherwise copy the records into a new data directory"
            )
        first_epoch = max(self.first_epoch + LEAST_EPOCH_STEP, passed_us // _SECOND_US)
        restore = Restore(restore_id, next_lsn - 1, lsn_after, first_epoch, now_us)
        self.all.append(restore)
        return restore

    def told(self) -> list[dict[str, int]]:
        """The newest restores as values of the protocol, oldest first."""
        return [
            {"lsn_before": one.lsn_before, "lsn_after": one.lsn_after, "restored_us": one.restored_us}
            for one in self.all[-_MOST_TOLD:]
        ]

    def gaps(self) -> list[HistoryGap]:
        """The newest restores as gaps in the lsns, oldest first."""
        return [HistoryGap(one.lsn_before, one.lsn_after) for one in self.all[-_MOST_TOLD:]]

    def save(self, mutations: Mutations) -> None:
        """Add the list of restores to ``mutations``."""
        if self.all:
            mutations.put(Family.META, META_KEY, _encoder.encode(self.all))


def write_restore_marker(files: FileSystem, directory: str, marker: RestoreMarker) -> None:
    """Write the marker into a data directory that has no FORMAT yet. Durable once the directory is synced."""
    replace_json(files, f"{directory}/{MARKER}", attrs.asdict(marker))


def read_restore_marker(files: FileSystem, directory: str) -> RestoreMarker | None:
    """Return the marker in a data directory; None if it was not restored, or the restore was applied already.

    Raises:
        CorruptionError: The file cannot be read.
    """
    path = f"{directory}/{MARKER}"
    if not files.exists(path):
        return None
    content = read_json(files, path)
    try:
        return msgspec.convert(content, RestoreMarker)
    except msgspec.ValidationError as error:
        raise CorruptionError(path, 0, f"expected the marker of a restore, found {content!r}") from error


def remove_restore_marker(files: FileSystem, directory: str) -> None:
    """Remove the marker durably. REQUIRES: the restore that it names is durable."""
    files.remove(f"{directory}/{MARKER}")
    files.sync_directory(directory)
