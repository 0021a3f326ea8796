"""Making a backup of a data directory that does not change in the meantime: a snapshot, or one that is not in use.

A file that is unchanged since the newest backup is not read; one whose content is stored already is read, not copied.
So the next backup copies only what is new, and an interrupted backup continues where its contents were last synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from journal.backup.directory import PART_BYTES, opened_for_writing
from journal.backup.manifest import VERSION, FileEntry, Header, order_of
from journal.backup.objects import Objects, digest_of
from journal.backup.tree import paths_of
from journal.engine.directory.data_directory import read_format
from journal.engine.wal.journal_file import FIRST_GROUP_POSITION, JournalFileHeader, list_journal_files
from journal.engine.wal.recovery import Expected, Recovered, read_journal
from shards.errors import CorruptionError, DataDirectoryError
from shards.seams.file_system import FileSystem

Progress = Callable[[int], None]


@attrs.frozen(slots=True)
class BackupResult:
    """The result of a backup.

    Attributes:
        backup: The backup directory.
        number: Number of the backup there.
        lsn: It contains every entry up to this one.
        files: Number of its files.
        size_bytes: Size of all of them together.
        copied_files: Number of files that were not stored yet.
        copied_bytes: Size of these.
        freed_bytes: Bytes freed by removing older backups and leftovers of interrupted ones.
    """

    backup: str
    number: int
    lsn: int
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int
    freed_bytes: int


def newest_lsn(files: FileSystem, journal: str) -> int:
    """The lsn of the last complete group in the journal of a directory that is not in use; 0 if there is none.

    Raises:
        CorruptionError: The journal is damaged.
    """
    used = list_journal_files(files, journal)
    if not used:
        return 0
    _, oldest = used[0]
    file = files.open(oldest, write=False)
    try:
        header = JournalFileHeader.decode(oldest, file.pread(FIRST_GROUP_POSITION, 0))
    finally:
        file.close()
    found = Recovered()
    for _ in read_journal(files, journal, found, Expected(header.first_lsn - 1)):
        pass
    return found.next_lsn - 1


@attrs.frozen(slots=True)
class Source:
    """What is backed up.

    Attributes:
        path: A snapshot, or a data directory that is not in use.
        lsn: The last lsn in it.
    """

    path: str
    lsn: int


def back_up(
    files: FileSystem,
    source: Source,
    target: str,
    *,
    now_us: int,
    keep: int,
    progress: Progress | None = None,
    part_bytes: int = PART_BYTES,
) -> BackupResult:
    """Add a backup to a backup directory, and remove all but the newest ones.

    It is durable on return. If it is stopped before, the existing backups are unchanged.

    Args:
        files: The file system.
        source: What is backed up.
        target: The backup directory; created if it does not exist.
        now_us: The time of day in microseconds since 1970.
        keep: Number of backups to keep, including this one.
        progress: Called from time to time with the bytes read and compared so far.
        part_bytes: Stored contents are synced and recorded as stored after this many bytes.

    Raises:
        DataDirectoryError: The target contains something else, or a file of the source disappeared.
        CorruptionError: An older manifest is damaged.
        OSError: The disk refused.
    """
    with opened_for_writing(files, target, read_format(files, source.path)) as backup, backup.objects() as objects:
        numbers = backup.numbers()
        making = _SourceWalk(files, source.path, objects, progress)
        number = numbers[-1] + 1 if numbers else 1
        before = backup.entries(numbers[-1]) if numbers else iter(())
        try:
            header = Header(VERSION, number, backup.node_id, source.lsn, now_us)
            manifest = backup.write(header, making.entries(before), objects, part_bytes)
        except FileNotFoundError as error:
            if not (error.filename or "").startswith(f"{source.path}/"):
                raise
            raise DataDirectoryError(
                f"{error.filename} disappeared while it was being copied: the connection to the server was lost, or "
                f"the directory was changed. Run the backup again"
            ) from error
        freed = backup.prune(keep)
        last = manifest.last_line
        return BackupResult(
            target, number, source.lsn, last.files, last.size_bytes, making.copied_files, making.copied_bytes, freed
        )


class _SourceWalk:
    """A walk over the files of the source, in parallel with one over the newest backup."""

    def __init__(self, files: FileSystem, source: str, objects: Objects, progress: Progress | None) -> None:
        self._files = files
        self._source = source
        self._objects = objects
        self._progress = progress
        self._done_bytes = 0
        self.copied_files = 0
        self.copied_bytes = 0

    def entries(self, before: Iterator[FileEntry]) -> Iterator[FileEntry]:
        """The entries of the source's files; their objects are stored when they are returned."""
        known = next(before, None)
        for path in paths_of(self._files, self._source):
            while known is not None and order_of(known.path) < order_of(path):
                known = next(before, None)
            yield self._entry(path, known if known is not None and known.path == path else None)
        for _ in before:
            # Nothing of a manifest is valid before it was read completely.
            pass

    def _entry(self, path: str, known: FileEntry | None) -> FileEntry:
        file = self._files.open(f"{self._source}/{path}", write=False)
        try:
            # In this order: a change in between makes the next backup read the file again.
            modified_ns = file.modified_ns()
            size_bytes = file.size()
            if (
                known is not None
                and (known.size_bytes, known.modified_ns) == (size_bytes, modified_ns)
                and self._objects.has(known.sha256, size_bytes)
            ):
                self._tell(size_bytes)
                return known
            sha256 = digest_of(file, size_bytes, self._tell)
            if not self._objects.has(sha256, size_bytes):
                stored = self._objects.put(file, size_bytes, lambda _: None)
                if stored != sha256:
                    raise CorruptionError(
                        f"{self._source}/{path}", 0, f"read twice, it has digest {sha256} and then {stored}"
                    )
                self.copied_files += 1
                self.copied_bytes += size_bytes
            return FileEntry(path, size_bytes, modified_ns, sha256)
        finally:
            file.close()

    def _tell(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._done_bytes)
