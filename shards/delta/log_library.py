"""What reads the log of a Delta table and makes checkpoints of it, as an interface without pyarrow and the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import attrs

from shards.delta.actions import PresentFile
from shards.delta.log_files import newest_checkpoint, sync_checkpoints
from shards.seams.file_system import FileSystem

CHECKPOINT_EVERY: Final = 50
"""A checkpoint of a log is made after so many commits."""


class UnreadableTableError(Exception):
    """The log of the table is damaged, or of a kind that this program does not write."""


@attrs.frozen
class TableState:
    """What the log of the table says.

    Attributes:
        version: Its version.
        schema: Its schema, as decoded JSON.
        is_plain: Whether every reader and writer knows its version of the protocol.
        partitions: Its partition columns.
        lsn: The lsn of its newest commit; -1 if it is the table of another program.
        files: Its files by path.
    """

    version: int
    schema: object
    is_plain: bool
    partitions: tuple[str, ...]
    lsn: int
    files: Mapping[str, PresentFile]


class LogLibrary(Protocol):
    """Reads the log of a table, and makes checkpoints of it."""

    def read(self, root: str) -> TableState:
        """Read the newest version.

        Raises:
            UnreadableTableError: The log cannot be read.
            OSError: The disk refused.
        """
        ...

    def make_checkpoint(self, root: str) -> None:
        """Write a checkpoint of the newest version, which need not be durable.

        Raises:
            OSError: It could not be written.
        """
        ...

    def remove_old_versions(self, root: str) -> None:
        """Remove parts of the log that are older than the table keeps them, and before a checkpoint.

        Raises:
            OSError: They could not be removed.
        """
        ...


def tidy_log(files: FileSystem, root: str, library: LogLibrary, version: int) -> None:
    """Make a durable checkpoint of the log when it is time, and remove old parts of the log.

    Args:
        files: The file system.
        root: The directory of the table.
        library: Makes the checkpoint.
        version: The newest version of the table.

    Raises:
        OSError: It was not made, which changes nothing for readers; the next commit may try again.
    """
    if version - max(newest_checkpoint(files, root), 0) < CHECKPOINT_EVERY:
        return
    library.make_checkpoint(root)
    sync_checkpoints(files, root)
    library.remove_old_versions(root)
