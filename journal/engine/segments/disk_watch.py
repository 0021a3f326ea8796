"""How much space the directories of a node have left. Each may lie in a file system of its own."""

from __future__ import annotations

from collections.abc import Sequence

from shards.errors import DiskFullError
from shards.seams.file_system import FileSystem


class DiskWatch:
    """Looks at the free space of several directories.

    Args:
        files: The file system.
        directories: Where files grow, the data directory first: it is named where others lie in the same file system.
        reserve_bytes: How much each of them must have left for appends to be taken.

    Attributes:
        free_bytes: What the fullest of them had left when it was last looked at.
    """

    def __init__(self, files: FileSystem, directories: Sequence[str], reserve_bytes: int) -> None:
        self._files = files
        self._directories = directories
        self._reserve_bytes = reserve_bytes
        self.free_bytes = 0

    def look(self) -> DiskFullError | None:
        """Why appends are to be refused for lack of space; None if there is enough everywhere.

        Raises:
            OSError: A directory is gone.
        """
        free = {directory: self._files.free_bytes(directory) for directory in self._directories}
        fullest = min(free, key=free.__getitem__)
        self.free_bytes = free[fullest]
        if self.free_bytes >= self._reserve_bytes:
            return None
        return DiskFullError(
            f"the disk of {fullest} has {self.free_bytes} bytes left, under the reserve of {self._reserve_bytes} "
            f"(storage.disk_reserve_bytes); free some space, trim shards or shorten retention. Reads go on"
        )
