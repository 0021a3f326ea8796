"""Looks at the log of the Delta table. What is wrong with it is a note and no damage: a start makes the table anew.

Whether it has all shared files is not looked at: a commit that a crash prevented is made by the next start.
"""

from __future__ import annotations

from journal.check.report import Report
from shards.delta.log_files import LOG, exists, is_in_the_way
from shards.delta.log_library import LogLibrary, UnreadableTableError
from shards.seams.file_system import FileSystem

_ANEW = "the next start makes it anew"


def check_delta_table(files: FileSystem, root: str, report: Report, library: LogLibrary | None) -> None:
    """Note a log that cannot be read, and files that it names and that are missing.

    Args:
        files: The file system.
        root: The directory of all Parquet segments.
        report: Gets the notes.
        library: Reads the log; None if it is not installed.
    """
    log = f"{root}/{LOG}"
    try:
        if not files.exists(root):
            return
        if is_in_the_way(files, root):
            report.note(log, 0, f"the log of the Delta table is not a directory: {_ANEW}")
        elif exists(files, root):
            if library is None:
                report.note(log, 0, "the Delta table was not checked: the library deltalake is not installed")
            else:
                _check_files(files, root, report, library)
    except UnreadableTableError as error:
        report.note(log, 0, f"the log of the Delta table cannot be read: {error}; {_ANEW}")
    except OSError as error:
        report.note(log, 0, f"the Delta table was not checked: {error}")


def _check_files(files: FileSystem, root: str, report: Report, library: LogLibrary) -> None:
    table = library.read(root)
    for path in sorted(table.files):
        if not files.exists(f"{root}/{path}"):
            problem = f"the file is missing, and version {table.version} of the Delta table names it"
            report.note(f"{root}/{path}", 0, f"{problem}: readers of the table fail, if they need it")
