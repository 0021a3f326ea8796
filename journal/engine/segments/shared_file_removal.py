"""Removal of shared files to which nothing refers any more."""

from __future__ import annotations

from collections.abc import Callable

from journal.engine.segments.lifecycle import SegmentFiles
from shards.seams.store import Mutations, OrderedStore
from shards.views.shared_files import FileKey, SharedFileRecord, SharedFiles


class SharedFileRemoval:
    """Removes shared files of one engine, after checkpoints.

    Args:
        files: The records of shared files.
        store: Has these records.
        segment_files: Removes the files.
        root: The directory of all Parquet segments.
        checkpoint_lsn: The lsn of the last checkpoint before the start. A quiet node may not make one for days, so what
            that one found is removed, too.
        may_remove: Returns whether a file to which nothing refers may be removed already.
    """

    def __init__(
        self,
        *,
        files: SharedFiles,
        store: OrderedStore,
        segment_files: SegmentFiles,
        root: str,
        checkpoint_lsn: int,
        may_remove: Callable[[FileKey], bool],
    ) -> None:
        self._files = files
        self._store = store
        self._segment_files = segment_files
        self._root = root
        self._may_remove = may_remove
        self._unneeded: list[SharedFileRecord] = files.removable(checkpoint_lsn)

    def look(self, checkpoint_lsn: int, now_us: int) -> None:
        """Note which files have dead records, and find those to which nothing refers, as of a checkpoint."""
        mutations = Mutations()
        self._files.note_dead(mutations, checkpoint_lsn, now_us)
        if len(mutations):
            self._store.write(mutations)
        self._unneeded = self._files.removable(checkpoint_lsn)

    async def remove(self) -> None:
        """Remove the files to which nothing referred at the last checkpoint, as soon as each may be removed.

        Their records go afterwards. A crash in between leaves them, and the next checkpoint removes the files again.

        Raises:
            DiskFullError: The disk refused to remove a file.
        """
        removable = [file for file in self._unneeded if self._may_remove(file.key)]
        if not removable:
            return
        await self._segment_files.remove_shared([file.path(self._root) for file in removable])
        mutations = Mutations()
        for file in removable:
            self._files.fold_delete(mutations, file.key)
        self._store.write(mutations)
        self._unneeded = [file for file in self._unneeded if file not in removable]
