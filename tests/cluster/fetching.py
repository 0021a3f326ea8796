"""What fetches the files of a follower, over a file system in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from journal.engine.segments.file_fetching import FileFetcher
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.shared_log.transfers import DirectTransfers
from journal.engine.state.unfetched_files import UnfetchedFiles
from journal.engine.wal.disk import at_once
from journal.logstore import LogStore, run
from journal.logstore.keys import FileName
from journal.logstore.ownership import Member
from journal.logstore.pieces import Piece, put_piece
from shards.seams.memory_file_system import MemoryFileSystem
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Mutations
from shards.views.shared_files import SharedFileRecord, SharedFiles

DAY: Final = 20_784
CONTENT: Final = b"content"


def record_of(file_id: int) -> SharedFileRecord:
    return SharedFileRecord(DAY, file_id, 7, 1, 5, 0, 0, hashlib.sha256(CONTENT).digest())


def put(store: LogStore, member: Member, file_id: int) -> None:
    """Store a file as an owner does."""
    run(store, put_piece(member, bytes(16), FileName(DAY, file_id), 0, Piece(CONTENT, 1)))


class Follower:
    """The files of a follower whose views name some, and that has none of them."""

    def __init__(self, store: LogStore, member: Member, names: Sequence[SharedFileRecord]) -> None:
        self.files = MemoryFileSystem()
        for name in ("sealed", "sealing", "log"):
            self.files.mkdir(f"/data/{name}")
        self._views = MemoryStore()
        self._records = SharedFiles(self._views)
        self.name(*names)
        self.unfetched = UnfetchedFiles()
        transfers = DirectTransfers(store, member, self.files, at_once)
        self.fetcher = FileFetcher(
            StoredFiles(store, member, self.files, at_once, transfers),
            self._records,
            SegmentFiles(self.files, "/data", at_once),
            self.files,
            at_once,
            self.unfetched,
            "/data/sealed",
            lambda: 0,
        )

    def name(self, *records: SharedFileRecord) -> None:
        """The views name these files, too."""
        mutations = Mutations()
        for record in records:
            self._records.fold_put(mutations, record)
        self._views.write(mutations)

    def has(self, record: SharedFileRecord) -> bool:
        place = record.path("/data/sealed")
        return self.files.exists(place) and self.files.open(place, write=False).pread(100, 0) == CONTENT
