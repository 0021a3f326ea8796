"""Backups: a directory with copies of one node's files, made from a snapshot or from a stopped node's data directory.

`create` makes backups, `restore` reads them back, `directory` is the backup directory, `manifest` its format. How a
snapshot is requested from a running server is not part of this package.
"""

from journal.backup.create import BackupResult, Source, back_up, newest_lsn
from journal.backup.directory import BackupDirectory, is_backup
from journal.backup.restore import RestoreResult, restore

__all__ = [
    "BackupDirectory",
    "BackupResult",
    "RestoreResult",
    "Source",
    "back_up",
    "is_backup",
    "newest_lsn",
    "restore",
]
