"""Making a data directory of a backup.

The file FORMAT, without which no server opens the directory, comes last: until then it is nobody's data directory, and
a file beside it tells which backup it is going to be, so that a restore that was interrupted can go on. Another file
tells the first server that opens the directory that it was restored, see `journal.restores`.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable
from contextlib import suppress

import attrs

from journal.backup.directory import BackupDirectory, Manifest, chunks_of, digest_of, opened_for_reading
from journal.backup.manifest import FileEntry
from journal.backup.tree import DIRECTORIES
from journal.data_directory import write_markers
from journal.json_files import read_json, replace_json
from journal.restores import RestoreMarker, write_restore_marker
from shards.errors import CorruptionError, DataDirectoryError
from shards.file_system import FileSystem, make_durable_directory

Progress = Callable[[int], None]

_MARKER = "RESTORING"


@attrs.frozen(slots=True)
class Restored:
    """What a restore came to.

    Attributes:
        directory: The data directory.
        number: The backup that it was made of.
        lsn: Every entry up to this one is in it.
        files: How many files it has.
        size_bytes: Of all of them together.
        copied_files: Those that an interrupted restore had not brought already.
    """

    directory: str
    number: int
    lsn: int
    files: int
    size_bytes: int
    copied_files: int


def restore(
    files: FileSystem, source: str, target: str, *, number: int | None = None, progress: Progress | None = None
) -> Restored:
    """Make a data directory of a backup, every file compared with its digest; durable when this returns.

    Args:
        files: The file system.
        source: The backup directory.
        target: A directory that is empty, or not there, or holds an interrupted restore of this same backup.
        number: Which backup; the newest if it is not named.
        progress: Called now and then with the bytes done so far.

    Raises:
        DataDirectoryError: There is no such backup, or the target holds something else.
        CorruptionError: The backup is damaged.
        OSError: The disk refused.
    """
    with opened_for_reading(files, source) as backup:
        if number is None:
            numbers = backup.numbers()
            if not numbers:
                raise DataDirectoryError(f"{source} has no whole backup yet; run `journal backup` to its end")
            number = numbers[-1]
        manifest = backup.read(number)
        make_durable_directory(files, target)
        lock = files.lock(target)
        try:
            restoring = _Restoring(files, backup, manifest, target, progress)
            restoring.run()
        finally:
            lock.release()
        header, seal = manifest.header, manifest.seal
        return Restored(target, number, header.lsn, seal.files, seal.size_bytes, restoring.copied_files)


class _Restoring:
    def __init__(
        self, files: FileSystem, backup: BackupDirectory, manifest: Manifest, target: str, progress: Progress | None
    ) -> None:
        self._files = files
        self._backup = backup
        self._manifest = manifest
        self._target = target
        self._progress = progress
        self._done_bytes = 0
        self._made: set[str] = set()
        self.copied_files = 0

    def run(self) -> None:
        files, target = self._files, self._target
        if self._is_there():
            files.remove(f"{target}/{_MARKER}")
            return
        for name in DIRECTORIES:
            files.mkdir(f"{target}/{name}")
        last: FileEntry | None = None
        for entry in self._backup.entries(self._manifest.header.number):
            if entry.path == "FORMAT":
                last = entry
            else:
                self._bring(entry, f"{target}/{entry.path}")
        if last is None:
            raise CorruptionError(self._manifest.path, 0, "the backup has no file FORMAT")
        write_markers(files, target, self._manifest.header.node_id)
        self._bring(last, f"{target}/FORMAT.new")
        # Without it, a server would go on with numbers that were given out after the backup.
        write_restore_marker(files, target, RestoreMarker(secrets.token_hex(8), self._manifest.header.number))
        try:
            files.sync_all(target)
        except OSError:
            # What is there may not be on the disk, and the next sync would not tell of it again: bring all of it anew.
            with suppress(OSError):
                for entry in self._backup.entries(self._manifest.header.number):
                    name = "FORMAT.new" if entry.path == "FORMAT" else entry.path
                    files.remove(f"{target}/{name}")
            raise
        files.rename(f"{target}/FORMAT.new", f"{target}/FORMAT")
        files.sync_directory(target)
        files.remove(f"{target}/{_MARKER}")
        files.sync_directory(target)

    def _is_there(self) -> bool:
        """Look at what the target holds; True if nothing is left to do but to remove the marker.

        A directory with FORMAT may have been used since then: nothing of it is touched.
        """
        files, target = self._files, self._target
        found = [name for name in files.listdir(target) if name not in ("LOCK", f"{_MARKER}.new", "lost+found")]
        wanted = {
            "node_id": self._manifest.header.node_id,
            "number": self._manifest.header.number,
            "sha256": self._manifest.seal.sealed_sha256,
        }
        if not found:
            replace_json(files, f"{target}/{_MARKER}", wanted)
            files.sync_directory(target)
            return False
        if _MARKER not in found:
            raise DataDirectoryError(
                f"{target} is not empty: it holds {', '.join(found[:3])}; choose an empty directory to restore into"
            )
        begun = read_json(files, f"{target}/{_MARKER}")
        if begun != wanted:
            raise DataDirectoryError(
                f"{target} holds part of another backup ({begun}); restore that one to its end, or choose an empty "
                f"directory"
            )
        return "FORMAT" in found

    def _bring(self, entry: FileEntry, path: str) -> None:
        if not self._is_brought(entry, path):
            self._copy(entry, path)
            self.copied_files += 1

    def _is_brought(self, entry: FileEntry, path: str) -> bool:
        if not self._files.exists(path):
            return False
        file = self._files.open(path, write=False)
        try:
            if file.size() != entry.size_bytes:
                return False
            done_bytes = self._done_bytes
            is_same = digest_of(file, entry.size_bytes, self._tell) == entry.sha256
        finally:
            file.close()
        if not is_same:
            self._done_bytes = done_bytes
        return is_same

    def _copy(self, entry: FileEntry, path: str) -> None:
        directory = posixpath.dirname(path)
        if directory not in self._made:
            self._files.mkdir(directory)
            self._made.add(directory)
        stored = self._backup.object_path(entry.sha256)
        if not self._files.exists(stored):
            raise CorruptionError(stored, 0, f"the object is missing; it is {entry.path} of the backup")
        source = self._files.open(stored, write=False)
        try:
            file = self._files.open(path, create=True)
            try:
                file.truncate(0)
                position = 0
                # Zeros are written too: journal files have all their blocks from the beginning.
                for chunk in chunks_of(source, entry.size_bytes):
                    file.pwritev([chunk], position)
                    position += len(chunk)
                found = digest_of(file, position, self._tell)
            finally:
                file.close()
        finally:
            source.close()
        if found != entry.sha256:
            raise CorruptionError(
                stored,
                0,
                f"expected content with digest {entry.sha256}, found {found}; it is {entry.path} of the backup",
            )

    def _tell(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._done_bytes)
