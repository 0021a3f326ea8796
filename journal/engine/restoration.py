"""The first start of a restored data directory; the record of it is in `directory.restores`."""

from __future__ import annotations

import logging

from journal.engine.directory.restores import Restores, read_restore_marker, remove_restore_marker
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from shards.seams.file_system import FileSystem

_log = logging.getLogger("journal.engine")


class Restoration:
    """Applies the marker that `journal restore` left in a data directory, if there is one.

    Args:
        files: The file system.
        directory: The data directory.
        restores: The node's restores.

    Raises:
        CorruptionError: The marker cannot be read.

    Attributes:
        is_new: There is a marker that was not applied yet.
    """

    def __init__(self, files: FileSystem, directory: str, restores: Restores) -> None:
        self._files = files
        self._directory = directory
        self._restores = restores
        self._marker = read_restore_marker(files, directory)
        self.is_new = self._marker is not None and not restores.has(self._marker.restore_id)

    def begin(self, table: ShardTable, views: Views, *, next_lsn: int, now_us: int) -> None:
        """Continue with much higher numbers than those in the backup. Durable with the next checkpoint.

        REQUIRES: the whole journal is replayed, and no lsn was assigned since.
        """
        assert self._marker is not None  # is_new
        restore = self._restores.add(self._marker.restore_id, next_lsn=next_lsn, now_us=now_us)
        views.lsns_reserved = restore.lsn_after
        table.restored_lsn = restore.lsn_after
        for shard in table.open_shards():
            shard.note_restore(restore.lsn_after)
        _log.warning(
            "restored from a backup: what was acknowledged after lsn %d is not in it; lsns continue at %d",
            restore.lsn_before,
            restore.lsn_after,
        )

    async def finish(self, checkpointer: Checkpointer) -> None:
        """Make the restore durable and remove the marker, before any client is served.

        Raises:
            DiskFullError: There is no space for a checkpoint.
        """
        if self.is_new:
            await checkpointer.require_checkpoint()
        if self._marker is not None:
            remove_restore_marker(self._files, self._directory)
