"""What a node remembers of having been restored from backups, so that it gives no number out twice.

A backup holds what was there up to an lsn. What the node gave out after it (lsns, which are also versions of state and
cursors, ids of shards and of producers; epochs of producers) is not in it and may be remembered elsewhere. So a
restored node goes on far above: `journal restore` leaves a marker in the directory, and the first start takes it over.
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
"""So far at least lsns go on above the backup: more than 31 days of 400,000 entries a second."""

LSNS_PER_SECOND: Final = 1 << 19
"""They also go on above this number for each second since 2020, which no life of the node has reached before. So two
restores from one backup do not begin at the same lsn."""

LARGEST_LSN: Final = (1 << 53) - 1
"""JSON clients get no larger number exactly."""

LEAST_EPOCH_STEP: Final = 1 << 16
"""The same for epochs of producers, which go on above the seconds since 2020."""

META_KEY: Final = b"restores"
MARKER: Final = "RESTORED"

_MOST_TOLD: Final = 100
_ZERO_US: Final = 1_577_836_800_000_000  # 2020-01-01 UTC
_SECOND_US: Final = 1_000_000


@attrs.frozen(slots=True)
class RestoreMarker:
    """What the file RESTORED in a data directory says.

    Attributes:
        restore_id: Random, so that a start which was interrupted takes it over once.
        number: The backup's number in its directory.
    """

    restore_id: str
    number: int


@attrs.frozen(slots=True)
class Restore:
    """One restore of this node.

    Attributes:
        restore_id: As in the marker.
        lsn_before: The newest lsn of the history that the backup holds.
        lsn_after: The first lsn that was given out after it. Whoever remembers an lsn between the two remembers
            something that this node no longer has.
        first_epoch: Producers that are opened get at least this epoch.
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
    """Read what is stored under `META_KEY`.

    Raises:
        CorruptionError: It is damaged.
    """
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError as error:
        raise CorruptionError("the list of restores", 0, str(error)) from error


class Restores:
    """The restores of a node, oldest first.

    Args:
        store: Has them.

    Attributes:
        all: The restores.
    """

    def __init__(self, store: OrderedStore) -> None:
        stored = store.get(Family.META, META_KEY)
        self.all: list[Restore] = [] if stored is None else decode_restores(stored)

    @property
    def newest_lsn(self) -> int:
        """The first lsn after the newest restore: shards with a lower id are older than it. 0 without a restore."""
        return self.all[-1].lsn_after if self.all else 0

    @property
    def first_epoch(self) -> int:
        """Producers that are opened from now on get at least this epoch; 0 without a restore."""
        return self.all[-1].first_epoch if self.all else 0

    def has(self, restore_id: str) -> bool:
        """Whether a restore was taken over already."""
        return any(restore.restore_id == restore_id for restore in self.all)

    def add(self, restore_id: str, *, next_lsn: int, now_us: int) -> Restore:
        """Take over a restore; it counts when what `save` puts is durable.

        Args:
            restore_id: Of the marker.
            next_lsn: What the node would give out next without the restore.
            now_us: The time.

        Raises:
            DataDirectoryError: No lsns are left for it.
        """
        passed_us = max(0, now_us - _ZERO_US)
        lsn_after = max(next_lsn + LEAST_LSN_STEP, passed_us * LSNS_PER_SECOND // _SECOND_US)
        if lsn_after > LARGEST_LSN:
            raise DataDirectoryError(
                f"after {len(self.all)} restores lsns would go on from {lsn_after}, over the largest of {LARGEST_LSN}. "
                f"Is the clock right? Otherwise bring the records into a new data directory"
            )
        first_epoch = max(self.first_epoch + LEAST_EPOCH_STEP, passed_us // _SECOND_US)
        restore = Restore(restore_id, next_lsn - 1, lsn_after, first_epoch, now_us)
        self.all.append(restore)
        return restore

    def told(self) -> list[dict[str, int]]:
        """The newest ones as clients see them, oldest first."""
        return [
            {"lsn_before": one.lsn_before, "lsn_after": one.lsn_after, "restored_us": one.restored_us}
            for one in self.all[-_MOST_TOLD:]
        ]

    def gaps(self) -> list[HistoryGap]:
        """The newest ones as gaps in the lsns, oldest first."""
        return [HistoryGap(one.lsn_before, one.lsn_after) for one in self.all[-_MOST_TOLD:]]

    def save(self, mutations: Mutations) -> None:
        """Record them."""
        if self.all:
            mutations.put(Family.META, META_KEY, _encoder.encode(self.all))


def write_restore_marker(files: FileSystem, directory: str, marker: RestoreMarker) -> None:
    """Leave the marker in a data directory that has no FORMAT yet. Durable once the directory is synced."""
    replace_json(files, f"{directory}/{MARKER}", attrs.asdict(marker))


def read_restore_marker(files: FileSystem, directory: str) -> RestoreMarker | None:
    """The marker in a data directory; None if it was not restored, or that was taken over already.

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
    """Remove the marker for good. REQUIRES: what it asks for is durable."""
    files.remove(f"{directory}/{MARKER}")
    files.sync_directory(directory)
