"""Checks a whole data directory: its FORMAT, the journal, the views, the segments, and files without a record.

A backup directory is checked here, too: each of its backups as the data directory that a restore would create.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from journal.backup import is_backup
from journal.check.backups import check_backups
from journal.check.delta_table import check_delta_table
from journal.check.journal_files import CheckedJournal, check_journal, report_missing
from journal.check.log_files import check_segment
from journal.check.report import Finding, Progress, Report
from journal.check.sealed_files import SealedPass
from journal.check.views import CheckedViews, ViewPass
from journal.engine.directory.data_directory import MARKER, check_markers, is_complete, read_format, read_store_id
from shards.delta.log_library import LogLibrary
from shards.errors import CorruptionError, DataDirectoryError, StorageFailedError
from shards.seams.file_system import FileSystem
from shards.seams.os_file_system import OsFileSystem
from shards.seams.store import OrderedStore
from shards.segments.segment_paths import FAN_OUT

_FAN = re.compile("[0-9a-f]{2}")
_KNOWN = frozenset(
    (
        *("LOCK", "FORMAT", "SERVER", "RESTORED", "lost+found"),
        *("journal", "log", "reading", "sealed", "sealing", "snapshots", "state"),
    )
)


def _open_rocks_store(path: str) -> OrderedStore:
    from shards.seams.rocks_store import RocksStore

    return RocksStore(path)


def _open_delta_library() -> LogLibrary | None:
    try:
        from shards.delta.library import DeltaLibrary
    except ImportError:
        return None
    return DeltaLibrary()


def check_directory(
    path: str,
    progress: Progress | None = None,
    *,
    files: FileSystem | None = None,
    open_store: Callable[[str], OrderedStore] = _open_rocks_store,
    open_delta_library: Callable[[], LogLibrary | None] | None = None,
) -> Report:
    """Check a data directory that no server uses, or a backup directory, and report its damage.

    No data is changed; memory use is bounded by the largest batch and the number of findings.

    Args:
        path: The data directory, or the backup directory.
        progress: Called from time to time with the bytes read so far.
        files: The file system.
        open_store: Opens the views.
        open_delta_library: Returns what reads the log of the Delta table on this file system, or None if it is not
            installed. By default the library for files of the operating system; on others the log is not checked.

    Returns:
        Counts, damages and notes.

    Raises:
        DataDirectoryError: A server uses the directory, or it is not a data or backup directory.
        FormatVersionError: A newer program made it.
    """
    if files is None and open_delta_library is None:
        open_delta_library = _open_delta_library
    files = files or OsFileSystem()
    path = path.rstrip("/") or "/"
    report = Report(path)
    if is_backup(files, path):
        # Restored, a copy of a shared log belongs to a server on its own, which cannot read again what is missing.
        check_backups(files, path, report, progress, open_store, partial(_check, may_be_copy=False))
        return report
    if not files.exists(path):
        raise DataDirectoryError(f"there is no directory {path}; name a data or backup directory")
    if not files.exists(f"{path}/FORMAT") and not files.exists(f"{path}/journal"):
        raise DataDirectoryError(f"{path} is not a data directory: it has neither a FORMAT file nor a journal")
    lock = files.lock(path)
    try:
        _check_markers(files, path, report)
        _check(files, path, report, progress, open_store)
        if open_delta_library is not None:
            check_delta_table(files, f"{path}/sealed", report, open_delta_library())
    finally:
        lock.release()
    return report


def _check(
    files: FileSystem,
    path: str,
    report: Report,
    progress: Progress | None,
    open_store: Callable[[str], OrderedStore],
    *,
    may_be_copy: bool = True,
) -> None:
    node_id = _check_format(files, path, report)
    if node_id is not None and _is_half_made(files, path):
        report.note(path, 0, "its first start was interrupted before anything was stored; the next start completes it")
        return
    for name in files.listdir(path):
        if name not in _KNOWN:
            report.note(f"{path}/{name}", 0, "a data directory contains no such name")
    journal = CheckedJournal()
    if files.exists(f"{path}/journal"):
        journal = check_journal(files, f"{path}/journal", report, progress)
    else:
        report.damage(f"{path}/journal", 0, "the directory of the journal is missing")
    views = _check_views(files, path, report, open_store)
    is_copy = may_be_copy and node_id is not None and bool(read_store_id(files, path))
    # Without views nothing is known to be durable outside the journal.
    checkpoint = views.node.checkpoint if views is not None else 0
    is_incomplete = journal.report_missing_files(f"{path}/journal", report, checkpoint, is_copy=is_copy)
    if views is None:
        for name in ("log", "sealed"):
            what = f"the {name} segments were not checked: the views that describe them cannot be read"
            report.note(f"{path}/{name}", 0, what)
        return
    _check_agreement(files, path, node_id, views, journal, report, is_copy=is_copy)
    for segment in views.segments.values():
        try:
            # What drops it may be in the files of the journal that are missing.
            may_be_missing = (
                (is_copy and is_incomplete)
                or journal.drops(segment.shard_id, segment.flushed_offset)
                or journal.converts(segment.shard_id, segment.base_offset)
            )
            check_segment(files, segment, report, progress, may_be_missing=may_be_missing, is_copy=is_copy)
        except OSError as error:
            report.damage(segment.path, 0, f"the file cannot be read: {error}")
    known = {name for segment in views.segments.values() for name in (segment.path, segment.index_path)}
    for file in _log_files(files, f"{path}/log", report):
        if file not in known:
            report.note(file, 0, "no record refers to this file: a recovery creates it again, or it is a leftover")
    SealedPass(files, path, views, journal, report, progress).check()


def _check_agreement(
    files: FileSystem,
    path: str,
    node_id: str | None,
    views: CheckedViews,
    journal: CheckedJournal,
    report: Report,
    *,
    is_copy: bool,
) -> None:
    """Check that views and journal belong to this node and to each other, by the rules of a start."""
    directory = f"{path}/journal"
    try:
        if node_id is not None:
            views.node.require_node(f"{path}/state", node_id)
        was_complete = files.exists(f"{path}/FORMAT") and is_complete(files, path)
        expected = views.node.expected(was_complete=was_complete, is_copy=False)
        if journal.has_groups or max(journal.numbers, default=0) > 1:
            expected.check_use(directory)
    except CorruptionError as error:
        report.damage(error.path, error.position, error.problem)
        return
    try:
        expected.check_files(directory, journal.numbers)
        if journal.next_lsn is not None:
            expected.check_end(directory, journal.next_lsn)
    except CorruptionError as error:
        report_missing(report, Finding(error.path, error.position, error.problem), is_copy=is_copy)


def _is_half_made(files: FileSystem, path: str) -> bool:
    """Whether the first start of a new directory was interrupted before anything was stored."""
    return (
        not is_complete(files, path)
        and not files.exists(f"{path}/state")
        and not any(
            set(files.listdir(f"{path}/{name}")) - {MARKER, f"{MARKER}.new"}
            for name in ("journal", "log", "sealed")
            if files.exists(f"{path}/{name}")
        )
    )


def _check_format(files: FileSystem, path: str, report: Report) -> str | None:
    """Id of the node; None if it cannot be read."""
    name = f"{path}/FORMAT"
    if not files.exists(name):
        report.damage(name, 0, "the file is missing")
        return None
    try:
        return read_format(files, path)
    except CorruptionError as error:
        report.damage(error.path, error.position, error.problem)
        return None


def _check_markers(files: FileSystem, path: str, report: Report) -> None:
    try:
        if files.exists(f"{path}/FORMAT") and is_complete(files, path):
            check_markers(files, path, read_format(files, path))
    except CorruptionError as error:
        report.damage(error.path, error.position, error.problem)


def _check_views(
    files: FileSystem, path: str, report: Report, open_store: Callable[[str], OrderedStore]
) -> CheckedViews | None:
    state = f"{path}/state"
    if not files.exists(state):
        report.damage(state, 0, "the directory of the views is missing")
        return None
    try:
        store = open_store(state)
    except CorruptionError as error:
        report.damage(error.path, error.position, error.problem)
        return None
    except StorageFailedError as error:
        report.damage(state, 0, str(error))
        return None
    try:
        return ViewPass(store, state, f"{path}/log", f"{path}/sealed", report).check()
    finally:
        store.close()


def _log_files(files: FileSystem, log: str, report: Report) -> Iterator[str]:
    if not files.exists(log):
        report.damage(log, 0, f"the directory of the log segments is missing (it has up to {FAN_OUT} subdirectories)")
        return
    for name in files.listdir(log):
        if _FAN.fullmatch(name):
            for file in files.listdir(f"{log}/{name}"):
                yield f"{log}/{name}/{file}"
        elif name != MARKER:
            yield f"{log}/{name}"
