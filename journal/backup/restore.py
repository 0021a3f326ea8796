"""Restoring: creating a data directory from a backup.

The file FORMAT, without which no server opens the directory, is written last. Until then another file next to it has
the number of the backup and of the files that were synced, so that an interrupted restore can continue. Files after
those are copied again: they may be readable without being on the disk. A third file informs the first server that opens
the directory that it was restored, see `journal.engine.directory.restores`.

A backup of a copy of a shared log becomes the directory of a server on its own: the log store knows nothing of the
restore, and may be lost.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable

import attrs

from journal.backup.directory import PART_BYTES, BackupDirectory, Manifest, opened_for_reading
from journal.backup.manifest import FileEntry
from journal.backup.objects import chunks_of, digest_of
from journal.backup.tree import DIRECTORIES
from journal.engine.directory.data_directory import drop_store_id, write_markers
from journal.engine.directory.json_files import read_json, replace_json
from journal.engine.directory.restores import RestoreMarker, write_restore_marker
from shards.errors import CorruptionError, DataDirectoryError
from shards.seams.file_system import FileSystem, OpenDirectory, make_durable_directory

Progress = Callable[[int], None]

_MARKER = "RESTORING"
_ASIDE = ".restoring"


@attrs.frozen(slots=True)
class RestoreResult:
    """The result of a restore.

    Attributes:
        directory: The data directory.
        number: Number of the backup.
        lsn: It contains every entry up to this one.
        files: Number of its files.
        size_bytes: Size of all of them together.
        copied_files: Number of files that an interrupted restore had not copied already.
        former_store: Id of the store whose log the directory was a copy of, 32 hexadecimal digits; empty if there was
            none.
    """

    directory: str
    number: int
    lsn: int
    files: int
    size_bytes: int
    copied_files: int
    former_store: str


def restore(
    files: FileSystem,
    source: str,
    target: str,
    *,
    number: int | None = None,
    progress: Progress | None = None,
    part_bytes: int = PART_BYTES,
) -> RestoreResult:
    """Create a data directory from a backup and compare every file with its digest; durable on return.

    Args:
        files: The file system.
        source: The backup directory.
        target: A directory that is empty, does not exist, or contains an interrupted restore of this same backup.
        number: Which backup; None for the newest.
        progress: Called from time to time with the bytes processed so far.
        part_bytes: Copied files are synced after this many bytes, and not copied again after an interruption.

    Raises:
        DataDirectoryError: The backup does not exist, or the target contains something else.
        CorruptionError: The backup is damaged.
        OSError: The disk refused.
    """
    with opened_for_reading(files, source) as backup:
        if number is None:
            numbers = backup.numbers()
            if not numbers:
                raise DataDirectoryError(f"{source} has no complete backup yet; run `journal backup` to its end")
            number = numbers[-1]
        manifest = backup.read(number)
        if not files.exists(target):
            _make_marked(files, target, _mark_of(manifest))
        lock = files.lock(target)
        try:
            # Opened before the first write, so that its sync reports every failure to write a file back.
            root = files.open_directory(target)
            try:
                restoring = _RestoreRun(files, backup, manifest, target, root, progress, part_bytes)
                restoring.run()
            finally:
                root.close()
        finally:
            lock.release()
        header, last = manifest.header, manifest.last_line
        return RestoreResult(
            target,
            number,
            header.lsn,
            last.files,
            last.size_bytes,
            restoring.copied_files,
            _store_id_of(backup, files, number),
        )


def _store_id_of(backup: BackupDirectory, files: FileSystem, number: int) -> str:
    """Id of the store whose log the directory in a backup is a copy of, or an empty string."""
    digest = next(entry.sha256 for entry in backup.entries(number) if entry.path == "FORMAT")
    content = read_json(files, backup.object_path(digest))
    return str(content.get("store", "")) if isinstance(content, dict) else ""


def _mark_of(manifest: Manifest) -> dict[str, object]:
    """What the marker of an unfinished restore says: which backup it is."""
    return {
        "node_id": manifest.header.node_id,
        "number": manifest.header.number,
        "sha256": manifest.last_line.lines_sha256,
    }


def _make_marked(files: FileSystem, target: str, wanted: dict[str, object]) -> None:
    """Create a target that is marked as an unfinished restore from the moment that it exists.

    A server would treat an empty directory, which a killed restore could leave otherwise, as a new node.

    Raises:
        DataDirectoryError: The temporary name is in use.
    """
    target = posixpath.normpath(target)
    aside = f"{target}{_ASIDE}"
    make_durable_directory(files, aside)
    others = [name for name in files.listdir(aside) if name not in (_MARKER, f"{_MARKER}.new")]
    if others:
        raise DataDirectoryError(
            f"{aside} is in the way: a restore creates its directory under this name first, but it contains "
            f"{', '.join(others[:3])}; remove or rename it"
        )
    replace_json(files, f"{aside}/{_MARKER}", wanted)
    files.sync_directory(aside)
    files.rename(aside, target)
    files.sync_directory(posixpath.dirname(target) or ".")


class _RestoreRun:
    def __init__(
        self,
        files: FileSystem,
        backup: BackupDirectory,
        manifest: Manifest,
        target: str,
        root: OpenDirectory,
        progress: Progress | None,
        part_bytes: int,
    ) -> None:
        self._files = files
        self._backup = backup
        self._manifest = manifest
        self._target = target
        self._wanted = _mark_of(manifest)
        self._root = root
        self._progress = progress
        self._part_bytes = part_bytes
        self._unsynced_bytes = 0
        self._synced_files = 0
        self._done_bytes = 0
        self._made: set[str] = set()
        self.copied_files = 0

    def run(self) -> None:
        files, target = self._files, self._target
        if self._is_there():
            # The process before was killed after FORMAT got its name, which may not be durable yet.
            files.sync_directory(target)
            files.remove(f"{target}/{_MARKER}")
            files.sync_directory(target)
            return
        for name in DIRECTORIES:
            files.mkdir(f"{target}/{name}")
        last: FileEntry | None = None
        for count, entry in enumerate(self._backup.entries(self._manifest.header.number), 1):
            if entry.path == "FORMAT":
                last = entry
                continue
            self._bring(entry, f"{target}/{entry.path}", was_synced=count <= self._synced_files)
            if self._unsynced_bytes >= self._part_bytes:
                self._root.sync_all()
                self._unsynced_bytes = 0
                replace_json(files, f"{target}/{_MARKER}", {**self._wanted, "synced_files": count})
        if last is None:
            raise CorruptionError(self._manifest.path, 0, "the backup has no file FORMAT")
        write_markers(files, target, self._manifest.header.node_id)
        self._bring(last, f"{target}/FORMAT.new", was_synced=False)
        drop_store_id(files, f"{target}/FORMAT.new")
        # Without it, a server would assign numbers again that were assigned after the backup.
        write_restore_marker(files, target, RestoreMarker(secrets.token_hex(8), self._manifest.header.number))
        self._root.sync_all()
        files.rename(f"{target}/FORMAT.new", f"{target}/FORMAT")
        files.sync_directory(target)
        files.remove(f"{target}/{_MARKER}")
        files.sync_directory(target)

    def _is_there(self) -> bool:
        """Check the content of the target; True if only the marker is left to be removed.

        A directory with FORMAT may have been used since then: its files are not changed.
        """
        files, target = self._files, self._target
        found = [name for name in files.listdir(target) if name not in ("LOCK", f"{_MARKER}.new", "lost+found")]
        if not found:
            replace_json(files, f"{target}/{_MARKER}", self._wanted)
            files.sync_directory(target)
            return False
        if _MARKER not in found:
            raise DataDirectoryError(
                f"{target} is not empty: it contains {', '.join(found[:3])}; choose an empty directory to restore into"
            )
        begun = read_json(files, f"{target}/{_MARKER}")
        if isinstance(begun, dict):
            synced_files = begun.pop("synced_files", 0)
            self._synced_files = synced_files if isinstance(synced_files, int) else 0
        if begun != self._wanted:
            raise DataDirectoryError(
                f"{target} contains a part of another backup ({begun}); finish restoring that one, or choose an empty "
                f"directory"
            )
        return "FORMAT" in found

    def _bring(self, entry: FileEntry, path: str, *, was_synced: bool) -> None:
        if was_synced and self._is_brought(entry, path):
            return
        if self._files.exists(path):
            self._files.remove(path)
        self._copy(entry, path, sync=was_synced or not self._root.reports_errors)
        self.copied_files += 1
        self._unsynced_bytes += entry.size_bytes

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

    def _copy(self, entry: FileEntry, path: str, *, sync: bool) -> None:
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
                # Zeros are written too: journal files have all their blocks allocated from the beginning.
                for chunk in chunks_of(source, entry.size_bytes):
                    file.pwritev([chunk], position)
                    position += len(chunk)
                found = digest_of(file, position, self._tell)
                if sync:
                    file.fsync()
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
