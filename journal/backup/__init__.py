"""Backups: a directory with copies of one node's files, taken from a snapshot or from a data directory at rest.

`making` copies in, `restoring` copies out, `directory` is what lies between, `manifest` its format. Nothing here knows
how a running server is asked for a snapshot.
"""

from journal.backup.create import Made, back_up, newest_lsn
from journal.backup.directory import BackupDirectory, is_backup
from journal.backup.restore import Restored, restore

__all__ = ["BackupDirectory", "Made", "Restored", "back_up", "is_backup", "newest_lsn", "restore"]
