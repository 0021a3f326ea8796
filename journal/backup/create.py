"""Making a backup of a data directory that stays as it is meanwhile: a snapshot, or one that nobody uses.

A file that lies there as the newest backup has it is not read; one whose content is stored already is read, not copied.
So the next backup copies what is new, and a backup that was interrupted goes on where its contents were last synced.
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
class Made:
    """What a backup came to.

    Attributes:
        backup: Its directory.
        number: Its number there.
        lsn: Every entry up to this one is in it.
        files: How many files it has.
        size_bytes: Of all of them together.
        copied_files: Those that were not there yet.
        copied_bytes: Of those.
        freed_bytes: What went with older backups, and with what an interrupted one left.
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
    """The lsn of the last whole group in the journal of a directory at rest; 0 if there is none.

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


def back_up(
    files: FileSystem,
    source: str,
    target: str,
    *,
    lsn: int,
    now_us: int,
    keep: int,
    progress: Progress | None = None,
    part_bytes: int = PART_BYTES,
) -> Made:
    """Add a backup to a backup directory, and let go of all but the newest ones.

    It is durable when this returns. Stopped at any moment before, it leaves the backups that were there.

    Args:
        files: The file system.
        source: A snapshot, or a data directory that nobody uses.
        target: The backup directory; made if it is not there.
        lsn: What the source goes up to.
        now_us: The time.
        keep: How many backups stay, with this one.
        progress: Called now and then with the bytes read and compared so far.
        part_bytes: What is stored is synced and noted as stored after so many bytes.

    Raises:
        DataDirectoryError: The target holds something else, or the source went away.
        CorruptionError: An older manifest is damaged.
        OSError: The disk refused.
    """
    with opened_for_writing(files, target, read_format(files, source)) as backup, backup.objects() as objects:
        numbers = backup.numbers()
        making = _Making(files, source, objects, progress)
        number = numbers[-1] + 1 if numbers else 1
        before = backup.entries(numbers[-1]) if numbers else iter(())
        try:
            header = Header(VERSION, number, backup.node_id, lsn, now_us)
            manifest = backup.write(header, making.entries(before), objects, part_bytes)
        except FileNotFoundError as error:
            if not (error.filename or "").startswith(f"{source}/"):
                raise
            raise DataDirectoryError(
                f"{error.filename} went away while it was being copied: the connection to the server was lost, or "
                f"somebody changed the directory. Run the backup again"
            ) from error
        freed = backup.prune(keep)
        seal = manifest.seal
        return Made(target, number, lsn, seal.files, seal.size_bytes, making.copied_files, making.copied_bytes, freed)


class _Making:
    """One walk over the source, beside one over the newest backup."""

    def __init__(self, files: FileSystem, source: str, objects: Objects, progress: Progress | None) -> None:
        self._files = files
        self._source = source
        self._objects = objects
        self._progress = progress
        self._done_bytes = 0
        self.copied_files = 0
        self.copied_bytes = 0

    def entries(self, before: Iterator[FileEntry]) -> Iterator[FileEntry]:
        """The entries of the source's files, whose objects are there when they are given."""
        known = next(before, None)
        for path in paths_of(self._files, self._source):
            while known is not None and order_of(known.path) < order_of(path):
                known = next(before, None)
            yield self._entry(path, known if known is not None and known.path == path else None)
        for _ in before:
            # Nothing of a manifest counts before it was read to its end.
            pass

    def _entry(self, path: str, known: FileEntry | None) -> FileEntry:
        file = self._files.open(f"{self._source}/{path}", write=False)
        try:
            # In this order: what is written in between makes the next backup look again.
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
