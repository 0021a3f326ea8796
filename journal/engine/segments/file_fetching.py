"""Fetching the shared files that the data directory of a follower lacks, from the log store.

An entry that names a file is folded without it. At the end of the log the file is fetched, if it is still needed then:
what was replaced or trimmed later in the log is not, and may have been deleted from the log store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

import trio

from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.logstore.errors import LogDamagedError, LogStoreError
from journal.logstore.keys import FileName
from shards.errors import ConversionFailedError, StorageFailedError
from shards.seams.file_system import FileSystem
from shards.views.shared_files import FileKey, SharedFileRecord, SharedFiles

_LOOK_AGAIN_S: Final = 10.0

_log = logging.getLogger("journal.engine")


class FileFetcher:
    """Fetches what one data directory lacks.

    Args:
        stored: The files in the log store.
        records: The shared files that the views know of.
        segment_files: Moves files into place.
        files: The file system.
        off_loop: Does what blocks.
        root: The directory of all Parquet segments.
        checkpoint_lsn: Which files have live records is known of the entries up to this lsn.
    """

    def __init__(
        self,
        stored: StoredFiles,
        records: SharedFiles,
        segment_files: SegmentFiles,
        files: FileSystem,
        off_loop: OffLoop,
        root: str,
        checkpoint_lsn: int,
    ) -> None:
        self._stored = stored
        self._records = records
        self._segment_files = segment_files
        self._files = files
        self._off_loop = LimitedOffLoop(off_loop)
        self._root = root
        self._checkpoint_lsn = checkpoint_lsn
        self._there: set[FileKey] = set()
        self._seen_generation: int | None = None
        self._look_again_at = 0.0
        self._missing: list[SharedFileRecord] = []

    async def fetch(self, *, is_last: bool) -> list[SharedFileRecord]:
        """Fetch the files that may be needed and are not there.

        Args:
            is_last: This server has read the whole log and owns the store: every file is looked for once more.
                Otherwise one that was not in the log store is looked for again only after a while.

        Returns:
            What is missing in the log store, too, when it was looked for last. It is not needed any more, unless
            `is_last`: an entry that this server has not read yet has replaced it. Then it is needed if a shard still
            has records in it.

        Raises:
            LogStoreError: The log store cannot be read, or a file in it is damaged.
            StorageFailedError: A file could not be written here.
        """
        is_seen = self._records.generation == self._seen_generation and trio.current_time() < self._look_again_at
        if is_seen and not is_last:
            return self._missing
        missing = self._missing = []
        self._seen_generation = self._records.generation
        # If this fails, all that is missing is looked for the next time.
        self._look_again_at = 0.0
        fetched = 0
        for record in self._records:
            is_needed = record.live_records > 0 or record.lsn > self._checkpoint_lsn
            if not is_needed or record.key in self._there:
                continue
            place = record.path(self._root)
            if not await self._off_loop(partial(self._files.exists, place)):
                if not await self._fetch(record, place):
                    missing.append(record)
                    continue
                fetched += 1
            self._there.add(record.key)
        self._look_again_at = trio.current_time() + _LOOK_AGAIN_S if missing else float("inf")
        if fetched:
            _log.info("fetched %d files of the history from the log store", fetched)
        return missing

    async def fetch_ahead(self, records: Iterable[SharedFileRecord]) -> bool:
        """Fetch files before the entries that name them are folded, since clients read meanwhile.

        Returns:
            Whether all are there. One may be missing in the log store, because a later entry has replaced it.

        Raises:
            LogStoreError, StorageFailedError: As for `fetch`.
        """
        are_there = True
        for record in records:
            if await self._provide(record):
                self._there.add(record.key)
            else:
                are_there = False
        return are_there

    async def _provide(self, record: SharedFileRecord) -> bool:
        place = record.path(self._root)
        return await self._off_loop(partial(self._files.exists, place)) or await self._fetch(record, place)

    async def _fetch(self, record: SharedFileRecord, place: str) -> bool:
        prefix = self._segment_files.new_prefix(record.file_id)
        path = f"{prefix}-fetched"
        try:
            try:
                content = await self._stored.fetch(FileName(*record.key), path)
            except LogStoreError:
                # It is fetched again, under another name. The parts of many attempts would fill the disk.
                await self._segment_files.discard_shared(prefix)
                raise
            if content is not None:
                if (content.size_bytes, content.sha256) != (record.size_bytes, record.digest.hex()):
                    raise LogDamagedError(
                        f"the file {FileName(*record.key)} in the log store is not the one that the log names: it has "
                        f"{content.size_bytes} bytes and SHA-256 {content.sha256}, not {record.size_bytes} and "
                        f"{record.digest.hex()}"
                    )
                await self._segment_files.place_shared(prefix, [(path, place)], ())
            await self._segment_files.discard_shared(prefix)
        except (ConversionFailedError, OSError) as error:
            raise StorageFailedError(
                f"{place} could not be fetched from the log store: {error}. Free space or repair the disk, then start "
                "again"
            ) from error
        return content is not None
