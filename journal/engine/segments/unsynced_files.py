"""Files that were written and are not synced yet. Each stays open until its sync, so that no write error is lost.

When the kernel fails to write a dirty page back in the background, it marks the page clean and reports the error once,
to open descriptors. If the file was closed in the meantime, the kernel may drop its inode from the cache together with
the error: a descriptor that is opened later syncs a clean file and succeeds. So a file is synced by the descriptor that
wrote it. For many files that would need too many descriptors; then one `syncfs` on a directory that was opened before
all of them reports write errors of any of them.
"""

from __future__ import annotations

import posixpath

from shards.errors import CorruptionError, StorageFailedError
from shards.seams.file_system import File, FileSystem, Identity
from shards.seams.held_directory import replaced_text

_OPEN_AT_MOST = 32


class UnsyncedFiles:
    """Files of one directory tree that are written and not synced. Used by one thread at a time, except `forget`.

    Args:
        files: The file system.
        root: The directory of the tree. It exists and is on one file system; it is kept open until `close`. The files
            are in the directories below it.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = files.open_directory(root)
        self._directories = {
            path: found for name in files.listdir(root) if (found := files.identity(path := f"{root}/{name}"))
        }
        self._open: dict[str, File] = {}
        self._paths: dict[str, Identity] = {}
        self._forgotten: set[str] = set()
        self._are_all_open = True

    def make_directory(self, path: str) -> None:
        """Create a directory below the root for files that will be opened, if there is none yet.

        Raises:
            StorageFailedError: It was there, and is not any more or is another one.
            OSError: It cannot be created.
        """
        if path in self._directories:
            self._require_directory(path)
            return
        self._files.mkdir(path)
        found = self._files.identity(path)
        if found is not None:
            self._directories[path] = found

    def _require_directory(self, path: str) -> None:
        found = self._files.identity(path)
        if found != self._directories.get(path):
            raise StorageFailedError(
                replaced_text(path, "nothing is there" if found is None else "another directory is there")
            )

    def open(self, path: str) -> File:
        """Open or create a file for writing. It counts as unsynced from now on; the caller must not close it.

        Raises:
            OSError: It cannot be opened; nothing has changed.
        """
        return self._opened(path, create=True)

    def open_written(self, path: str, size_bytes: int) -> File:
        """Open a file to which ``size_bytes`` were written before, to append to it. The caller must not close it.

        Raises:
            CorruptionError: It is missing or shorter. A new file would have a hole in place of acknowledged records.
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
            # Of the first time: what was written by then must not be in a file that was replaced by a copy.
            self._paths.setdefault(path, file.identity())
        return file

    def create(self, path: str) -> File:
        """Create a file for writing; an existing one is removed first. The caller must not close it.

        Raises:
            OSError: It cannot be created.
        """
        left = self._open.pop(path, None)
        if left is not None:
            left.close()
        self._paths.pop(path, None)
        if self._files.exists(path):
            self._files.remove(path)
        return self.open(path)

    def sync_content(self, path: str) -> None:
        """Make the content of an open file durable. After a crash its directory entry may still be missing.

        Raises:
            OSError: The disk failed. This is final: the kernel may mark pages as clean that were not written.
        """
        self._open[path].fdatasync()

    def limit(self) -> None:
        """Limit the number of open files. Call it after each run of writes.

        Raises:
            OSError: The disk failed. This is final.
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
        """Return when everything written so far is durable, including the directory entries of the files.

        Raises:
            OSError: The disk failed. This is final.
            StorageFailedError: A file or its directory is not the one that was written any more.
        """
        self._close_forgotten()
        if not self._paths:
            return
        self._require_directories()
        paths = sorted(self._paths)
        if not self._are_all_open or (len(paths) > _OPEN_AT_MOST and self._root.reports_errors):
            # One call for all files of the file system costs less than thousands of small ones.
            self._root.sync_all()
        else:
            self._sync_open_files()
            for directory in sorted({posixpath.dirname(path) for path in paths}):
                self._files.sync_directory(directory)
                self._files.sync_directory(posixpath.dirname(directory))
        self._require_in_place()
        self._close_all()
        self._paths.clear()
        self._are_all_open = True

    def _require_directories(self) -> None:
        for directory in {posixpath.dirname(path) for path in self._paths}:
            self._require_directory(directory)

    def _require_in_place(self) -> None:
        self._require_directories()
        for path, written in self._paths.items():
            found = self._files.identity(path)
            if found != written and path not in self._forgotten:
                raise StorageFailedError(
                    f"{path} is not the file that was written: {'nothing' if found is None else 'another file'} is "
                    f"there. It was moved or replaced while it was in use; the journal has everything that was "
                    f"written to it. Put the file back, if there was one, and start again"
                )

    def forget(self, *paths: str) -> None:
        """Note that these files will be removed: they need no sync. Any thread may call it."""
        self._forgotten.update(paths)

    @property
    def has_forgotten(self) -> bool:
        """Whether removed files are still open, so that their space is not free: call `limit`."""
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
                # The errors of the others are read as well; otherwise they would appear at the next start's syncs.
                failure = failure or error
        if failure is not None:
            raise failure

    def _close_forgotten(self) -> None:
        while self._forgotten:
            path = self._forgotten.pop()
            self._paths.pop(path, None)
            file = self._open.pop(path, None)
            if file is not None:
                file.close()

    def _close_all(self) -> None:
        while self._open:
            _, file = self._open.popitem()
            file.close()
