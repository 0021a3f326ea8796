"""Checks a backup directory: every object against its digest, and each backup as a data directory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from journal.backup.directory import BackupDirectory, opened_for_reading
from journal.backup.objects import digest_of
from journal.backup.reading import BackupFiles, views_of
from journal.check.report import Progress, Report
from shards.errors import CorruptionError, FormatVersionError
from shards.seams.file_system import FileSystem
from shards.seams.store import OrderedStore

CheckFiles = Callable[[FileSystem, str, Report, Progress | None, Callable[[str], OrderedStore]], None]


def check_backups(
    files: FileSystem,
    path: str,
    report: Report,
    progress: Progress | None,
    open_store: Callable[[str], OrderedStore],
    check_files: CheckFiles,
) -> None:
    """Check all backups of a directory.

    Args:
        files: The file system.
        path: The backup directory.
        report: Gets the findings. A file of backup 3 is called ``PATH/@3/...``.
        progress: Called with the bytes read so far.
        open_store: Opens a store of views.
        check_files: Checks a data directory.

    Raises:
        DataDirectoryError: It is in use.
    """
    with opened_for_reading(files, path) as backup:
        numbers = backup.numbers()
        if not numbers:
            report.note(path, 0, "there is no complete backup here yet: the first one was interrupted")
        whole: dict[str, bool] = {}
        for number in numbers:
            try:
                backup.read(number)
            except (CorruptionError, FormatVersionError) as error:
                problem = error.problem if isinstance(error, CorruptionError) else str(error)
                report.damage(backup.manifest_path(number), 0, f"{problem}; remove this file; its backup is lost")
                continue
            if _check_objects(files, backup, number, report, progress, whole):
                seen = BackupFiles(files, backup, number)
                with ExitStack() as stack:
                    views = stack.enter_context(views_of(seen))
                    check_files(seen, seen.root, report, progress, lambda _, views=views: open_store(views))  # type: ignore[misc]


def _check_objects(
    files: FileSystem,
    backup: BackupDirectory,
    number: int,
    report: Report,
    progress: Progress | None,
    whole: dict[str, bool],
) -> bool:
    """Compare the objects of a backup that no earlier one had with their digests; returns whether all are intact."""

    def tell(size_bytes: int) -> None:
        report.counts.bytes_read += size_bytes
        if progress is not None:
            progress(report.counts.bytes_read)

    is_whole = True
    for entry in backup.entries(number):
        if entry.sha256 not in whole:
            problem = _problem_of(files, backup.object_path(entry.sha256), entry.sha256, entry.size_bytes, tell)
            whole[entry.sha256] = not problem
            if problem:
                report.damage(
                    backup.object_path(entry.sha256),
                    0,
                    f"{problem}; it is {entry.path} of backup {number}. Remove the object and back up again: if the "
                    f"node still has the file, it is copied again",
                )
        is_whole = is_whole and whole[entry.sha256]
    return is_whole


def _problem_of(files: FileSystem, path: str, sha256: str, size_bytes: int, tell: Callable[[int], None]) -> str:
    if not files.exists(path):
        return "the object is missing"
    try:
        file = files.open(path, write=False)
        try:
            found_bytes = file.size()
            if found_bytes != size_bytes:
                return f"expected {size_bytes} bytes, found {found_bytes}"
            found = digest_of(file, size_bytes, tell)
        finally:
            file.close()
    except OSError as error:
        return f"the object cannot be read: {error}"
    return "" if found == sha256 else f"expected digest {sha256}, found {found}"
