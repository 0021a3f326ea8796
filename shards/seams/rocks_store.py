"""An `OrderedStore` in one RocksDB, by rocksdict in raw mode. RocksDB is used only here and in `rocks_scan`.

All families are in the one default column family, each key after one byte for its family. This keeps the promise of
`OrderedStore.write`: there is one memtable, so its content reaches the disk as a prefix of the writes, and no recorded
lsn can be ahead of the content of any family. With column families this would need atomic flush. rocksdict has that
option, but its ``flush()`` flushes one column family only; the calls that flush all of them either report no failure
(``compact_range``) or make a whole checkpoint on disk.

The prefix bytes are part of the stored format and never change their meaning.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from shards.errors import CorruptionError, DiskFullError, StorageFailedError
from shards.quantities import format_size
from shards.seams.file_system import make_durable_directory
from shards.seams.held_directory import OwnedDirectory, replaced_text
from shards.seams.os_file_system import OsFileSystem
from shards.seams.rocks_opening import raise_in_use, raise_opening_error, refuse_lost_directory
from shards.seams.rocks_scan import RocksScan
from shards.seams.store import Family, Mutations
from shards.seams.write_queue import Batch, WriteQueue

FAMILY_PREFIXES: dict[Family, bytes] = {
    Family.META: b"\x01",
    Family.CATALOGUE: b"\x02",
    Family.SEGMENTS: b"\x03",
    Family.CURSORS: b"\x04",
    Family.STATE: b"\x05",
    Family.PRODUCERS: b"\x06",
    Family.KEY_INDEX: b"\x07",
    Family.FILES: b"\x08",
}

_STALLED = "Result incomplete: Write stall"
_NO_SPACE = "IO error: No space left on device"
_LOOK_AGAIN_S = 0.01


class RocksStore:
    """An `OrderedStore` in a directory of its own, which is locked against other processes while it is open.

    Memory is bounded by three write buffers, the block cache, the index blocks of `open_files` table files, and the
    queue of waiting writes.

    RocksDB blocks a writer, and with it every thread of the process, while its buffers are full or its compaction is
    behind, and accepts nothing while its disk is full. It runs without its write-ahead log: `flush` writes the whole
    memtable to disk, and writes after the last flush are lost in a crash (or kept, up to one consistent later point),
    which suits views that are replayed from the journal. So a write only needs memory and never waits here: writes that
    RocksDB does not accept at once wait in a queue, in order, and are read from there.

    Args:
        path: The directory; it is created if it does not exist.
        write_buffer_bytes: Size at which the memtable is written to disk automatically. Up to three of them exist.
        cache_bytes: Size of the block cache.
        open_files: Largest number of open table files.
        queue_bytes: Largest size of the queue. Callers should stop writing long before (`queued_bytes`): a write beyond
            it waits for RocksDB, and fails if its disk is full.

    Raises:
        CorruptionError: The directory's content is damaged.
        DataDirectoryError: Another process holds the directory, or it cannot be written.
    """

    def __init__(
        self,
        path: str,
        *,
        write_buffer_bytes: int = 16 << 20,
        cache_bytes: int = 8 << 20,
        open_files: int = 64,
        queue_bytes: int = 64 << 20,
    ) -> None:
        self._path = path
        self._write_options = WriteOptions()
        # rocksdict's type stub shows these attributes as methods.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._write_options.no_slowdown = True
        self._queue = WriteQueue()
        self._is_full = False
        self._queue_bytes = queue_bytes
        self._flushing = threading.Lock()
        self._failure: str | None = None
        refuse_lost_directory(path)
        directory = _held(path)
        try:
            # RocksDB writes tables when it likes: all of them belong into the directory that was opened.
            self._db: Rdict | None = Rdict(
                directory.lasting_path, _options(write_buffer_bytes, cache_bytes, open_files)
            )
        except Exception as error:
            directory.release()
            raise_opening_error(path, error, directory.with_path(str(error)))
        # Behind the database: when a store is dropped, its attributes are freed in their order, and RocksDB needs the
        # directory until the end.
        self._directory = directory

    def get(self, family: Family, key: bytes) -> bytes | None:
        db = self._open_db()
        if self._queue and (queued := self._queue.get(FAMILY_PREFIXES[family] + key)) is not None:
            return queued[1]
        try:
            value: bytes | None = db.get(FAMILY_PREFIXES[family] + key)
        except Exception as error:
            self._raise(error)
        return value

    def scan(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        byte = FAMILY_PREFIXES[family]
        return self._scan().items(byte + prefix, None if start is None else byte + start, reverse=reverse)

    def scan_in_steps(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes] | None]:
        byte = FAMILY_PREFIXES[family]
        return self._scan().items_in_steps(byte + prefix, None if start is None else byte + start)

    def _scan(self) -> RocksScan:
        # One for each scan: a part of this store that refers to it would keep it from being freed when it is dropped.
        return RocksScan(self._open_db, self._queue, self._raise)

    def write(self, mutations: Mutations) -> None:
        db = self._writable_db()
        if self._queue:
            self._make_room(db)
            if self._queue.put_behind(_prefixed(mutations)):
                return
        batch = WriteBatch(raw_mode=True)
        for family, key, value in mutations:
            if value is None:
                batch.delete(FAMILY_PREFIXES[family] + key)
            else:
                batch.put(FAMILY_PREFIXES[family] + key, value)
        try:
            self._write_now(db, batch)
        except Exception as error:
            if not self._may_wait(error):
                self._raise(error)
            self._queue.put(_prefixed(mutations))

    def _write_now(self, db: Rdict, batch: WriteBatch) -> None:
        db.write(batch, self._write_options)

    def _may_wait(self, error: Exception) -> bool:
        """Whether RocksDB has accepted nothing of a batch, and will accept it later."""
        return str(error).startswith((_STALLED, _NO_SPACE))

    def _make_room(self, db: Rdict) -> None:
        """Limit the queue: the last resort for callers that do not stop writing, such as a long recovery."""
        if self._queue.size_bytes > self._queue_bytes:
            try:
                self._catch_up(db, self._queue.taken)
            except DiskFullError as error:
                self._failure = (
                    f"{error}; {format_size(self._queue.size_bytes)} wait to be written there, the limit is "
                    f"{format_size(self._queue_bytes)}"
                )
                raise StorageFailedError(self._failure) from error

    @property
    def queued_bytes(self) -> int:
        return self._queue.size_bytes

    def catch_up(self) -> None:
        db = self._writable_db()
        self._look_for_space(db)
        self._catch_up(db, self._queue.taken)

    def _look_for_space(self, db: Rdict) -> None:
        """Return if RocksDB's disk is not full, or not any more.

        A flush cannot test this: during RocksDB's own check for space, every five seconds, a flush ends that check.
        """
        if self._is_full:
            try:
                self._write_now(db, WriteBatch(raw_mode=True))
            except Exception as error:
                if not self._may_wait(error):
                    self._raise(error)
                if not str(error).startswith(_STALLED):
                    raise self._disk_full() from error
            self._is_full = False

    def _catch_up(self, db: Rdict, batches: int) -> None:
        """Return when this many of all batches that ever waited are written.

        Raises:
            DiskFullError: RocksDB's disk is full. RocksDB checks every five seconds whether it still is.
        """
        while self._queue.written < batches:
            try:
                self._queue.write_next(lambda batch: self._write_now(db, _write_batch(batch)))
            except Exception as error:
                if not self._may_wait(error):
                    self._raise(error)
                if not str(error).startswith(_STALLED):
                    raise self._disk_full() from error
                # RocksDB has no event to wait for that would not block every other thread.
                time.sleep(_LOOK_AGAIN_S)

    def _disk_full(self) -> DiskFullError:
        self._is_full = True
        return DiskFullError(
            f"{self._path}: No space left on device; free some space there. Appends are then accepted again without "
            f"a restart; reads continue"
        )

    def flush(self) -> None:
        with self._flushing:
            db = self._writable_db()
            self.check_directory()
            self._look_for_space(db)
            self._catch_up(db, self._queue.taken)
            try:
                db.flush(True)
            except Exception as error:
                # The table file that could not be written or synced is removed; its content is still in memory.
                if self._may_wait(error):
                    raise self._disk_full() from error
                self._raise(error)

    def check_directory(self) -> None:
        """Take nothing more when the path means another directory than the one that was opened.

        Nothing is lost: RocksDB writes into the directory that was opened. But the next start would open the other one.
        """
        if found := self._directory.found_instead:
            self._failure = replaced_text(self._path, found)
            raise StorageFailedError(self._failure)

    def copy_to(self, path: str) -> None:
        with self._flushing:
            db = self._open_db()
            try:
                # Tables are hard links, so both must be on one file system. The object holds RocksDB's lock while it
                # exists, so it is not assigned to a name.
                Checkpoint(db).create_checkpoint(path)
            except Exception as error:
                text = self._directory.with_path(str(error))
                raise StorageFailedError(f"the store in {self._path} cannot be copied to {path}: {text}") from error

    def compact(self) -> None:
        """Rewrite all tables as one sorted run, without deleted and replaced entries; blocks until it is done.

        RocksDB reports no failure of this; if it cannot write a table, it keeps the old one.
        """
        with self._flushing:
            db = self._writable_db()
            db.flush(True)
            db.compact_range(None, None)

    def close(self) -> None:
        # A flush in another thread uses the database; closing it in the meantime would make the flush fail.
        with self._flushing:
            db, self._db = self._db, None
            if db is None:
                return
            # RocksDB flushes once more, and reports a failure. That does not matter: what `flush` did not make durable
            # was not promised. The lock is released when the object is freed.
            if self._directory.lasting_path == self._path and self._directory.found_instead:
                # It would flush into another directory. One more reference keeps it from being freed, as after a kill.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
                return
            with contextlib.suppress(Exception):
                db.close()
            self._directory.release()

    def _open_db(self) -> Rdict:
        if self._db is None:
            raise StorageFailedError(f"the store in {self._path} is closed; open it again")
        return self._db

    def _writable_db(self) -> Rdict:
        # RocksDB may accept writes again after some failures. A failed sync is final here.
        if self._failure is not None:
            raise StorageFailedError(self._failure)
        return self._open_db()

    def _raise(self, error: Exception) -> NoReturn:
        """Convert an exception of rocksdict (a plain `Exception` with RocksDB's text) to an error of this package."""
        text = self._directory.with_path(str(error))
        if text.startswith("Corruption"):
            raise CorruptionError(self._path, 0, f"RocksDB reports: {text}") from error
        self._failure = f"the store in {self._path} failed: {text}; nothing more is written until it is opened again"
        raise StorageFailedError(self._failure) from error


def _held(path: str) -> OwnedDirectory:
    """Create the directory of a store if it does not exist, and hold it."""
    try:
        make_durable_directory(OsFileSystem(), path)
        return OwnedDirectory(path)
    except BlockingIOError as error:
        raise_in_use(path, error)
    except OSError as error:
        raise_opening_error(path, error, str(error))


def _prefixed(mutations: Mutations) -> Batch:
    return [(FAMILY_PREFIXES[family] + key, value) for family, key, value in mutations]


def _write_batch(batch: Batch) -> WriteBatch:
    made = WriteBatch(raw_mode=True)
    for key, value in batch:
        if value is None:
            made.delete(key)
        else:
            made.put(key, value)
    return made


def _options(write_buffer_bytes: int, cache_bytes: int, open_files: int) -> Options:
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(cache_bytes))
    tables.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_max_open_files(open_files)
    options.set_max_background_jobs(2)
    # A table that is half deletions is compacted soon: until then every scan over them has to skip each.
    options.add_compact_on_deletion_collector_factory(256, 128, 0.5)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    return options
