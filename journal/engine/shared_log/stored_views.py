"""Checkpoints of the views in the log store: with one, a server with an empty directory need not read the whole log.

A checkpoint has the files of the views as of a position of the log. It has no log files. So it is stored only when
everything that was in log files at that position has been converted or dropped since. Then a server that reads the log
from there to its end needs none of these files. Meanwhile the records of segments name log files, which do not exist on
another machine. Their places are taken by files of the same size without content, until the log says that they are
dropped.
"""

from __future__ import annotations

import logging
import posixpath
import secrets
import struct
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

import trio

from journal.engine.shared_log.manifests import Manifest, ManifestFile, decode_manifest, encode_manifest
from journal.engine.shared_log.stored_files import StoredFiles
from journal.engine.shared_log.writer import ResumePoint
from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.logstore.checkpoints import Checkpoint, create_checkpoint, list_checkpoints, read_checkpoint
from journal.logstore.collection import collect
from journal.logstore.driver import drive
from journal.logstore.errors import LogDamagedError
from journal.logstore.keys import FIRST_EPOCH, FileName, Position, checkpoint_key
from journal.logstore.objects import ID_BYTES
from journal.logstore.ownership import Member, check_owned
from journal.logstore.pieces import list_files, piece_count
from journal.logstore.steps import Steps
from journal.logstore.store import LogStore
from shards.seams.file_system import FileSystem
from shards.segments.segment_paths import log_path

_T = TypeVar("_T")

LOG_ENDS: Final = "LOG_ENDS"
"""Which log files the records of segments name, and their sizes: a file beside those of RocksDB."""

_CURRENT: Final = "CURRENT"
"""The file without which a directory is no store."""

_PART: Final = ".part"

_LOG_END: Final = struct.Struct("<QQQ")

_log = logging.getLogger("journal.engine")


def encode_log_ends(ends: Iterable[tuple[int, int, int]]) -> bytes:
    """The content of `LOG_ENDS`.

    Args:
        ends: (shard id, base offset, end position) of each log file.
    """
    return b"".join(_LOG_END.pack(*end) for end in ends)


def decode_log_ends(content: bytes) -> Iterator[tuple[int, int, int]]:
    """The reverse of `encode_log_ends`."""
    return _LOG_END.iter_unpack(content)


class StoredViews:
    """The checkpoints of one store.

    Args:
        store: The log store. Closed by the caller.
        member: This server, and the store.
        stored: The files in the log store.
        files: The file system.
        off_loop: Reads and writes files.

    Attributes:
        files: The files in the log store.
        oldest, newest: The positions of the oldest and the newest checkpoint that is known; None if none is.
    """

    def __init__(
        self, store: LogStore, member: Member, stored: StoredFiles, files: FileSystem, off_loop: OffLoop
    ) -> None:
        self._store = store
        self._member = member
        self._file_system = files
        self._off_loop = LimitedOffLoop(off_loop)
        self._limiter = trio.CapacityLimiter(1)
        self._manifests: dict[Position, Manifest] = {}
        self._from_epoch = FIRST_EPOCH
        self.files = stored

    @property
    def oldest(self) -> Position | None:
        return min(self._manifests, default=None)

    @property
    def newest(self) -> Position | None:
        return max(self._manifests, default=None)

    def names(self, name: FileName) -> bool:
        """Whether a checkpoint that is known names a file."""
        return any(file.name == name for manifest in self._manifests.values() for file in manifest.files)

    async def load(self) -> None:
        """Read the manifests of all checkpoints.

        Raises:
            FormatVersionError, LogStoreError: One cannot be read.
        """
        root = self._member.root
        positions = await self._drive(list_checkpoints(root))
        found = {position: self._manifests[position] for position in positions if position in self._manifests}
        for position in positions:
            if position in found:
                continue
            checkpoint = await self._drive(read_checkpoint(root, self._member.store_id, position))
            if checkpoint is not None:
                found[position] = decode_manifest(checkpoint_key(root, position), checkpoint.manifest)
        self._manifests = found

    # By an owner

    async def publish(self, point: ResumePoint, directory: str, epoch: int) -> None:
        """Store a checkpoint, unless there is one at its position. Files that an earlier one has are not stored again.

        Args:
            point: Where reading goes on.
            directory: The copy of the views.
            epoch: The epoch that this server owns.

        Raises:
            StoreDeposedError: Another server owns the store.
            ConversionFailedError: The log store does not take a file.
            LogStoreError: The log store cannot be used at present.
            OSError: A file cannot be read.
        """
        stored = await self._drive(list_files(self._member.root))
        # A checkpoint may name a file that does not exist any more.
        known = {
            file.sha256: file
            for manifest in self._manifests.values()
            for file in manifest.files
            if _is_stored(file, stored)
        }
        files: list[ManifestFile] = []
        new: list[tuple[FileName, str]] = []
        for path in await self._off_loop(partial(self._file_system.listdir, directory)):
            content = await self.files.digest(f"{directory}/{path}")
            same = known.get(content.sha256)
            file_id = secrets.token_hex(8) if same is None else same.file_id
            file = ManifestFile(path, file_id, content.size_bytes, content.sha256)
            files.append(file)
            if same is None:
                known[content.sha256] = file
                new.append((file.name, f"{directory}/{path}"))
        async with self.files.stored(new):
            await self._drive(check_owned(self._member.root, epoch))
            checkpoint = Checkpoint(point.position, point.next_lsn, encode_manifest(files))
            nonce = secrets.token_bytes(ID_BYTES)
            is_new = await self._drive(
                create_checkpoint(self._member.root, self._member.store_id, self._member.node_id, nonce, checkpoint)
            )
            if is_new:
                self._manifests[point.position] = Manifest(tuple(files))

    async def collect(self, epoch: int) -> None:
        """Delete the slots and checkpoints that the last two whole checkpoints make superfluous.

        Raises:
            StoreDeposedError: Another server owns the store.
            FormatVersionError, LogStoreError: The log store cannot be used at present, or something in it is damaged.
        """
        stored = await self._drive(list_files(self._member.root))
        await self.load()
        await self._drive(check_owned(self._member.root, epoch))
        broken = {position for position, manifest in self._manifests.items() if not _is_whole(manifest, stored)}
        self._from_epoch = await self._drive(collect(self._member, epoch, self._from_epoch, broken))
        await self.load()

    # By a server with an empty directory

    async def restore(self, state: str, log: str) -> bool:
        """Write the newest whole checkpoint into the directory of the views, durably.

        Args:
            state: The directory of the views, in which there is no store yet.
            log: The directory of the log files.

        Returns:
            Whether there is one.

        Raises:
            FormatVersionError, LogStoreError: The log store cannot be read, or something in it is damaged or missing.
            OSError: The disk refused.
        """
        tried: dict[Position, ManifestFile] = {}
        while True:
            await self.load()
            positions = [position for position in self._manifests if position not in tried]
            if not positions:
                break
            position = max(positions)
            missing = await self._restore(self._manifests[position], state, log)
            if missing is not None:
                # It was left by a server that had lost the store; or newer ones have replaced it.
                tried[position] = missing
            else:
                _log.info(
                    "began with the checkpoint at epoch %d, slot %d of the log store", position.epoch, position.slot
                )
                return True
        if tried:
            await self._off_loop(partial(self._prepare, state))
            newest = max(tried)
            raise LogDamagedError(
                f"{checkpoint_key(self._member.root, newest)} names the file {tried[newest].name}, which is not in the "
                f"log store, and there is no other whole checkpoint (tried: {len(tried)}): restore the log store"
            )
        return False

    async def _restore(self, manifest: Manifest, state: str, log: str) -> ManifestFile | None:
        """Returns the first file that is missing; None if all are written."""
        await self._off_loop(partial(self._prepare, state))
        for file in manifest.files:
            path = f"{state}/{file.path}"
            if not await self._fetch(file, f"{path}{_PART}" if file.path == _CURRENT else path):
                return file
        await self._off_loop(partial(self._make_log_files, state, log))
        # The file without which there is no store gets its name last and whole: a crash before it leaves no store.
        await self._off_loop(partial(self._file_system.sync_directory, state))
        await self._off_loop(partial(self._file_system.rename, f"{state}/{_CURRENT}{_PART}", f"{state}/{_CURRENT}"))
        await self._off_loop(partial(self._file_system.sync_directory, state))
        return None

    def _prepare(self, directory: str) -> None:
        """Make the directory if it is missing, and remove what an attempt before left in it."""
        self._file_system.mkdir(directory)
        self._file_system.sync_directory(posixpath.dirname(directory))
        for name in self._file_system.listdir(directory):
            if not name.startswith(".") and name != "lost+found":
                self._file_system.remove(f"{directory}/{name}")

    async def _fetch(self, file: ManifestFile, path: str) -> bool:
        content = await self.files.fetch(file.name, path)
        if content is None:
            return False
        if (content.size_bytes, content.sha256) != (file.size_bytes, file.sha256):
            raise LogDamagedError(
                f"the file {file.name} in the log store is not the {file.path} that a checkpoint names: it has "
                f"{content.size_bytes} bytes and SHA-256 {content.sha256}, not {file.size_bytes} and {file.sha256}"
            )
        return True

    def _make_log_files(self, state: str, log: str) -> None:
        """Make files without content in place of the log files that records of segments name."""
        file = self._file_system.open(f"{state}/{LOG_ENDS}", write=False)
        try:
            content = file.pread(file.size(), 0)
        finally:
            file.close()
        directories: set[str] = set()
        for shard_id, base_offset, end in decode_log_ends(content):
            path = log_path(log, shard_id, base_offset)
            directory = posixpath.dirname(path)
            if directory not in directories:
                self._file_system.mkdir(directory)
                directories.add(directory)
            out = self._file_system.open(path, create=True)
            try:
                out.truncate(0)
                out.truncate(end)
            finally:
                out.close()
        if directories:
            self._file_system.sync_all(log)
        self._file_system.remove(f"{state}/{LOG_ENDS}")

    async def _drive(self, steps: Steps[_T]) -> _T:
        return await drive(self._store, steps, self._limiter)


def _is_whole(manifest: Manifest, stored: dict[FileName, int]) -> bool:
    return all(_is_stored(file, stored) for file in manifest.files)


def _is_stored(file: ManifestFile, stored: dict[FileName, int]) -> bool:
    return stored.get(file.name, 0) == piece_count(file.size_bytes)
