"""The files that were written and are not synced yet. Each stays open until it is, so that no write error is lost.

When the kernel fails to write a dirty page back in the background, it marks the page clean and tells the error once, to
descriptors that are open. A file that was closed meanwhile may leave the kernel's inode cache, and the error with it: a
descriptor that is opened later syncs a clean file and succeeds. So a file is synced by the descriptor that wrote it.
Of many files that would be too many descriptors; then one `syncfs` on a directory that was opened before all of them
reports what any of them lost.
"""

from __future__ import annotations

import posixpath

from shards.errors import CorruptionError
from shards.seams.file_system import File, FileSystem

_OPEN_AT_MOST = 32


class UnsyncedFiles:
    """Files of one directory tree, written and not synced. Used by one thread at a time, except `forget`.

    Args:
        files: The file system.
        root: The directory of the tree, which exists and lies in one file system. It is held open from now on.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = files.open_directory(root)
        self._open: dict[str, File] = {}
        self._paths: set[str] = set()
        self._forgotten: set[str] = set()
        self._are_all_open = True

    def open(self, path: str) -> File:
        """Open a file to write to it, or make it. It counts as unsynced from now on; it must not be closed.

        Raises:
            OSError: It cannot be opened; nothing has changed.
        """
        return self._opened(path, create=True)

    def open_written(self, path: str, size_bytes: int) -> File:
        """Open a file of which so many bytes were written before, to write behind them. It must not be closed.

        Raises:
            CorruptionError: It is missing or shorter. Made anew it would have a hole where acknowledged records were.
            OSError: It cannot be opened; nothing has changed.
        """
        way_out = (
            "put the file back and start again: the journal has what comes after it. If it is lost, restore a backup"
        )
        try:
            file = self._opened(path, create=False)
        except FileNotFoundError as error:
            raise CorruptionError(
                path, 0, f"the file is missing, but {size_bytes} bytes were written to it; {way_out}"
            ) from error
        found_bytes = file.size()
        if found_bytes < size_bytes:
            raise CorruptionError(
                path, found_bytes, f"the file ends here, but {size_bytes} bytes were written to it; {way_out}"
            )
        return file

    def _opened(self, path: str, *, create: bool) -> File:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self._files.open(path, create=create)
            self._paths.add(path)
        return file

    def create(self, path: str) -> File:
        """Make a file anew to write to it: one that is there goes first. It must not be closed.

        Raises:
            OSError: It cannot be made.
        """
        left = self._open.pop(path, None)
        if left is not None:
            left.close()
        if self._files.exists(path):
            self._files.remove(path)
        return self.open(path)

    def sync_content(self, path: str) -> None:
        """Make durable what was written to a file that is open. Its directory entry may still be missing after a crash.

        Raises:
            OSError: The disk failed. It is final: the kernel may count pages as written that are not.
        """
        self._open[path].fdatasync()

    def limit(self) -> None:
        """Keep the number of open files bounded. Call it after each run of writes.

        Raises:
            OSError: The disk failed. It is final.
        """
        self._close_forgotten()
        if len(self._open) <= _OPEN_AT_MOST:
            return
        if self._root.reports_errors:
            self._are_all_open = False
        else:
            self._sync_open_files()
        self._close_all()

    def sync(self) -> None:
        """Return when everything written so far is durable, with the directory entries of the files.

        Raises:
            OSError: The disk failed. It is final.
        """
        self._close_forgotten()
        if not self._paths:
            return
        paths = sorted(self._paths)
        if not self._are_all_open or (len(paths) > _OPEN_AT_MOST and self._root.reports_errors):
            # One call for all files of the file system costs less than thousands of small ones.
            self._root.sync_all()
        else:
            self._sync_open_files()
            for directory in sorted({posixpath.dirname(path) for path in paths}):
                self._files.sync_directory(directory)
                self._files.sync_directory(posixpath.dirname(directory))
        self._close_all()
        self._paths.clear()
        self._are_all_open = True

    def forget(self, *paths: str) -> None:
        """These files are going away: they need no sync. Any thread may call it."""
        self._forgotten.update(paths)

    @property
    def has_forgotten(self) -> bool:
        """Whether files that went away are still open, and their space is not free: call `limit`."""
        return bool(self._forgotten)

    def close(self) -> None:
        """Close everything, synced or not."""
        self._close_all()
        self._root.close()

    def _sync_open_files(self) -> None:
        failure: OSError | None = None
        for file in self._open.values():
            try:
                file.fdatasync()
            except OSError as error:
                # The errors of the others are taken notice of as well. Untold, they would fail the next start's syncs.
                failure = failure or error
        if failure is not None:
            raise failure

    def _close_forgotten(self) -> None:
        while self._forgotten:
            path = self._forgotten.pop()
            self._paths.discard(path)
            file = self._open.pop(path, None)
            if file is not None:
                file.close()

    def _close_all(self) -> None:
        while self._open:
            _, file = self._open.popitem()
            file.close()
