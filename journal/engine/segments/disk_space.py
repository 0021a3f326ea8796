"""Space on the disks of a node: appends are refused before one is full, and accepted again when there is space."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from journal.engine.write.commands import Commands
from shards.errors import DiskFullError, LogUnavailableError
from shards.quantities import format_size
from shards.seams.file_system import FileSystem

_log = logging.getLogger("journal.maintenance")

_PARTS = ("journal", "log", "sealing", "sealed", "state")
_SHARE_OF_APPENDS = 2
"""Appends are refused when they would use any of the reserve, other changes when only this part of it is left."""


class DiskSpace:
    """Free space of the data directory and of the directories in it, each of which may be a file system of its own.

    Args:
        files: The file system.
        directory: The data directory. It is named for all directories that share its disk.
        reserve_bytes: Appends are refused while any of them has less free space than this.
        commands: Changes that free no space are refused as well.

    Attributes:
        full: The error for appends while a disk is nearly full. Read for every chunk of appends: no property.
        free_bytes: Free bytes of the fullest of them, when it was last checked.
    """

    def __init__(self, files: FileSystem, directory: str, reserve_bytes: int, commands: Commands) -> None:
        self._files = files
        self._directories: Sequence[str] = (directory, *(f"{directory}/{part}" for part in _PARTS))
        self._reserve_bytes = reserve_bytes
        self._commands = commands
        self.full: DiskFullError | None = None
        self.free_bytes = 0

    def look(self, waits: DiskFullError | None) -> None:
        """Check the free space.

        Args:
            waits: The error of the store of the views if it waits for space.

        Raises:
            OSError: A directory is missing.
        """
        full = waits or self._too_little()
        self.refuse_for(full)
        if full is not None and waits is None and self.free_bytes * _SHARE_OF_APPENDS >= self._reserve_bytes:
            # Consumers have to commit their cursors, since this allows records to be trimmed.
            self._commands.refuse = None

    def refuse_for(self, full: DiskFullError | None) -> None:
        """Refuse appends and changes with this error from now on; None: accept them."""
        if full is not None and self.full is None:
            _log.warning("appends are refused: %s", full)
        elif full is None and self.full is not None:
            why = f"{format_size(self.free_bytes)} are free"
            if isinstance(self.full, LogUnavailableError):
                why = "the log store takes writes"
            _log.info("appends are accepted again: %s", why)
        self.full = full
        self._commands.refuse = full

    def _too_little(self) -> DiskFullError | None:
        free = {directory: self._files.free_bytes(directory) for directory in self._directories}
        fullest = min(free, key=free.__getitem__)
        self.free_bytes = free[fullest]
        if self.free_bytes >= self._reserve_bytes:
            return None
        return DiskFullError(
            f"the disk of {fullest} has {format_size(self.free_bytes)} left, under the reserve of "
            f"{format_size(self._reserve_bytes)} (storage.disk_reserve_bytes); free some space, trim shards or shorten "
            "retention. Reads continue"
        )
