"""Free space of the directories of a node. Each may be on a file system of its own."""

from __future__ import annotations

from collections.abc import Sequence

from shards.errors import DiskFullError
from shards.seams.file_system import FileSystem


class DiskWatch:
    """Checks the free space of several directories.

    Args:
        files: The file system.
        directories: Directories in which files grow. The data directory is first: it is named for all that share its
            disk.
        reserve_bytes: Appends are refused while any of them has less free space than this.

    Attributes:
        free_bytes: Free bytes of the fullest of them, when it was last checked.
    """

    def __init__(self, files: FileSystem, directories: Sequence[str], reserve_bytes: int) -> None:
        self._files = files
        self._directories = directories
        self._reserve_bytes = reserve_bytes
        self.free_bytes = 0

    def look(self) -> DiskFullError | None:
        """Return the error for appends if there is too little space; None if there is enough everywhere.

        Raises:
            OSError: A directory is missing.
        """
        free = {directory: self._files.free_bytes(directory) for directory in self._directories}
        fullest = min(free, key=free.__getitem__)
        self.free_bytes = free[fullest]
        if self.free_bytes >= self._reserve_bytes:
            return None
        return DiskFullError(
            f"the disk of {fullest} has {self.free_bytes} bytes left, under the reserve of {self._reserve_bytes} "
            f"(storage.disk_reserve_bytes); free some space, trim shards or shorten retention. Reads continue"
        )
