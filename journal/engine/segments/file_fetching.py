"""Fetching the shared files that the data directory of a follower lacks, from the log store.

An entry that names a file is folded without it. At the end of the log the file is fetched, if it is still needed then:
what was replaced or trimmed later in the log is not, and may have been deleted from the log store. While the log store
does not give files, the log is followed, and the store is taken over, without them (`FetchPass`, `fetch_the_rest`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.state.unfetched_files import UnfetchedFiles
from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.logstore.errors import MAY_PASS, LogDamagedError, LogStoreError
from journal.logstore.keys import FileName
from shards.errors import ConversionFailedError, StorageError, StorageFailedError
from shards.seams.file_system import FileSystem
from shards.views.shared_files import FileKey, SharedFileRecord, SharedFiles

_T = TypeVar("_T")

_LOOK_AGAIN_S: Final = 10.0

PATIENCE_S: Final = 5.0
"""So long the next file may take before the log is followed without it."""

_log = logging.getLogger("journal.engine")


class FileFetcher:
    """Fetches what one data directory lacks.

    Args:
        stored: The files in the log store.
        records: The shared files that the views know of.
        segment_files: Moves files into place.
        files: The file system.
        off_loop: Does what blocks.
        unfetched: Is told which files are not here.
        root: The directory of all Parquet segments.
        checkpoint_lsn: Returns up to which lsn it is known of entries which of their files have live records.
        damaged: Called with a file in the log store that is damaged, in place of an error.

    Attributes:
        fetched_at: When a file was fetched last, by trio's clock.
    """

    def __init__(
        self,
        stored: StoredFiles,
        records: SharedFiles,
        segment_files: SegmentFiles,
        files: FileSystem,
        off_loop: OffLoop,
        unfetched: UnfetchedFiles,
        root: str,
        checkpoint_lsn: Callable[[], int],
        damaged: Callable[[SharedFileRecord, LogStoreError], None] | None = None,
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
        self._unfetched = unfetched
        self._damaged = damaged
        self.fetched_at = 0.0

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
        wanted = await self._look()
        for record in wanted:
            if self._records.get(record.key) is None:
                # It was dropped while another one was fetched.
                self._unfetched.forget(record.key)
            elif await self._fetch_or_note(record):
                self._there.add(record.key)
                self.fetched_at = trio.current_time()
            else:
                missing.append(record)
        self._look_again_at = trio.current_time() + _LOOK_AGAIN_S if missing else float("inf")
        if len(missing) < len(wanted):
            _log.info("fetched %d files of the history from the log store", len(wanted) - len(missing))
        return missing

    async def _look(self) -> list[SharedFileRecord]:
        """The files that may be needed and are not there. That they are unfetched is noted."""
        wanted: list[SharedFileRecord] = []
        for record in self._records:
            if self._is_needed(record) and record.key not in self._there:
                if await self._off_loop(partial(self._files.exists, record.path(self._root))):
                    self._there.add(record.key)
                else:
                    wanted.append(record)
        self._unfetched.add(record.key for record in wanted)
        # Others may have been noted meanwhile.
        for key in self._unfetched.keys.difference(record.key for record in wanted):
            found = self._records.get(key)
            if found is None or key in self._there or not self._is_needed(found):
                self._unfetched.forget(key)
        return wanted

    def _is_needed(self, record: SharedFileRecord) -> bool:
        return record.live_records > 0 or record.lsn > self._checkpoint_lsn()

    async def _fetch_or_note(self, record: SharedFileRecord) -> bool:
        try:
            return await self._fetch(record)
        except LogStoreError as error:
            if self._damaged is None or isinstance(error, MAY_PASS):
                raise
            self._damaged(record, error)
            return False

    def note_unfetched(self, records: Iterable[SharedFileRecord]) -> None:
        """Entries that name these files are folded next: those that are not known to be here are noted."""
        self._unfetched.add(record.key for record in records if record.key not in self._there)

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
        is_here = await self._off_loop(partial(self._files.exists, record.path(self._root)))
        return is_here or await self._fetch(record)

    async def _fetch(self, record: SharedFileRecord) -> bool:
        place = record.path(self._root)
        prefix = self._segment_files.new_prefix(record.file_id)
        path = f"{prefix}-fetched"
        try:
            try:
                content = await self._stored.fetch(FileName(*record.key), path)
            except (LogStoreError, trio.Cancelled) as error:
                if isinstance(error, LogStoreError):
                    self._unfetched.reason = str(error)
                # It is fetched again, under another name. The parts of many attempts would fill the disk.
                with trio.CancelScope(shield=True):
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
        if content is not None:
            self._unfetched.fetched(record.key)
        return content is not None


class Attempts(Protocol):
    """Repeats a request for files until the log store answers it."""

    async def __call__(self, request: Callable[[], Awaitable[_T]], /) -> _T: ...


class FetchPass:
    """Fetches the files of a follower beside the reading of the log, which goes on without them if that takes long.

    Args:
        fetcher: Fetches them.
        until_fetched: Repeats the requests.
        unfetched: The files that are not here.
        nursery: Runs the task. To be cancelled when the log is not followed any more.
    """

    def __init__(
        self, fetcher: FileFetcher, until_fetched: Attempts, unfetched: UnfetchedFiles, nursery: trio.Nursery
    ) -> None:
        self._fetcher = fetcher
        self._until_fetched = until_fetched
        self._unfetched = unfetched
        self._nursery = nursery
        self._ended: trio.Event | None = None
        self._missing: list[SharedFileRecord] = []
        self._failure: StorageError | None = None
        self._is_slow = False

    async def provide(self, records: Sequence[SharedFileRecord]) -> bool:
        """Fetch files before the entries that name them are folded, unless that takes too long.

        Returns:
            Whether there may be records in them: otherwise the log store has not got one any more.

        Raises:
            LogStoreError, StorageFailedError: As for `FileFetcher.fetch`.
        """
        self._check()
        if not records or self._unfetched:
            # They are fetched after those that are not here already.
            return True
        with trio.move_on_after(PATIENCE_S):
            return await self._until_fetched(partial(self._fetcher.fetch_ahead, records))
        self._is_slow = True
        _log.warning("the log is followed without files that it names: %s", self._unfetched.reason or "no answer yet")
        return True

    async def all_there(self, *, is_last: bool, waits: bool) -> list[SharedFileRecord] | None:
        """Have all files fetched that may be needed and are not there.

        Args:
            is_last: See `FileFetcher.fetch`.
            waits: Wait until that is done, as long as the log store gives a file after the other.

        Returns:
            See `FileFetcher.fetch`; None if it is under way.

        Raises:
            LogStoreError, StorageFailedError: As for `FileFetcher.fetch`.
        """
        self._check()
        if self._is_under_way and is_last and not await self._wait():
            return None
        if not self._is_under_way:
            self._ended = trio.Event()
            if not self._is_slow:
                # From now on it has to get on.
                self._fetcher.fetched_at = trio.current_time()
            self._nursery.start_soon(self._run, self._ended, is_last)
            # It takes no time if there is nothing to fetch.
            waits = waits or not self._unfetched
        return self._missing if waits and await self._wait() else None

    @property
    def _is_under_way(self) -> bool:
        return self._ended is not None and not self._ended.is_set()

    async def _run(self, ended: trio.Event, is_last: bool) -> None:
        try:
            self._missing = await self._until_fetched(partial(self._fetcher.fetch, is_last=is_last))
            self._is_slow = False
        except StorageError as error:
            # Raised to the reader of the log, at the next call.
            self._failure = error
        finally:
            ended.set()

    async def _wait(self) -> bool:
        """Wait until it is done; False if no file came for a while."""
        assert self._ended is not None
        while not self._ended.is_set():
            with trio.move_on_at(self._fetcher.fetched_at + PATIENCE_S) as waiting:
                await self._ended.wait()
            if waiting.cancelled_caught and trio.current_time() >= self._fetcher.fetched_at + PATIENCE_S:
                return False
        self._check()
        return True

    def _check(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class LeftFiles:
    """The files that a server had not fetched when it took the store over. It serves without them meanwhile.

    Args:
        fetcher: Makes what fetches them, given what is called for a damaged one.
        until_fetched: Repeats the requests.
        unfetched: The files that are not here.
        checkpoint_lsn: Returns the lsn of the last checkpoint.
        checkpoint_soon: Asks for another one.
    """

    def __init__(
        self,
        fetcher: Callable[[Callable[[SharedFileRecord, LogStoreError], None]], FileFetcher],
        until_fetched: Attempts,
        unfetched: UnfetchedFiles,
        checkpoint_lsn: Callable[[], int],
        checkpoint_soon: Callable[[], None],
    ) -> None:
        self._fetcher = fetcher(self._damaged)
        self._until_fetched = until_fetched
        self._unfetched = unfetched
        self._checkpoint_lsn = checkpoint_lsn
        self._checkpoint_soon = checkpoint_soon

    async def fetch(self) -> None:
        """Return when all are here, or are not needed any more.

        One that is damaged or missing in the log store, too, is looked for again and again, until it was put back.

        Raises:
            StorageFailedError: A file could not be written here.
        """
        if self._unfetched:
            _log.warning(
                "%d files of the history are not here: what is in them cannot be read until the log store gives them",
                len(self._unfetched),
            )
        while self._unfetched:
            for record in await self._until_fetched(partial(self._fetcher.fetch, is_last=True)):
                if record.lsn > self._checkpoint_lsn():
                    # Perhaps it is not needed: the checkpoint tells.
                    self._checkpoint_soon()
                else:
                    self._problem(record, f"the log store has not got the file {FileName(*record.key)}")
            if self._unfetched:
                await trio.sleep(_LOOK_AGAIN_S)

    def _damaged(self, record: SharedFileRecord, error: LogStoreError) -> None:
        self._problem(record, str(error))

    def _problem(self, record: SharedFileRecord, problem: str) -> None:
        if self._unfetched.note_problem(record.key, problem):
            _log.error(
                "%s. Shards have records in it: put it back. A server that has fetched it has it as sealed/%s",
                problem,
                record.path("").lstrip("/"),
            )
