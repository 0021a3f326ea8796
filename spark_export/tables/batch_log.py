"""The planned batches of a table: a file for each, put there durably before the batch is read, and never changed.

::

    table/_journal/
      LOCK                 held by the process that keeps the table up to date
      batch-00000012.json  where the batch begins and ends in each shard

The Delta log says how many batches the table has. So the file of the last one says where the next begins. If there is
one more file, a crash has prevented its commit: that batch is done again, with the same records.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from typing import Final

import attrs

from shards.seams.file_system import FileSystem, make_durable_directory
from spark_export.errors import UnreadableError
from spark_export.positions import StreamPosition
from spark_export.tables.errors import TableConflictError

DIRECTORY: Final = "_journal"
_VERSION: Final = 1
_FILE: Final = re.compile(r"batch-(\d{8,})\.json")
_UNFINISHED: Final = re.compile(r"writing-[0-9a-f]+\.tmp")


@attrs.frozen(slots=True)
class PlannedBatch:
    """One batch.

    Attributes:
        number: From 1 on.
        start: Where the batch before ended.
        end: Where it ends.
        begins_anew: Whether all rows of earlier batches are removed with its commit.
    """

    number: int
    start: StreamPosition
    end: StreamPosition
    begins_anew: bool = False

    def encode(self) -> bytes:
        """Encode as JSON."""
        members = {
            "version": _VERSION,
            "batch": self.number,
            "begins_anew": self.begins_anew,
            "start": self.start.encode(),
            "end": self.end.encode(),
        }
        return json.dumps(members, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes, where: str) -> PlannedBatch:
        """Decode the result of `encode`.

        Raises:
            UnreadableError: It is not valid, or was written by a newer version.
        """
        try:
            found = json.loads(content)
            if found["version"] != _VERSION:
                raise UnreadableError(
                    f"{where} has version {found['version']}, this program knows version {_VERSION}: use a newer one"
                )
            start, end = StreamPosition.decode(found["start"]), StreamPosition.decode(found["end"])
            return cls(int(found["batch"]), start, end, bool(found["begins_anew"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableError(f"{where} is not the plan of a batch: {error!r} in {content[:80]!r}") from error


class BatchLog:
    """The planned batches of one table.

    Args:
        files: The file system.
        root: Directory of the table.
    """

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self.directory = f"{root}/{DIRECTORY}"
        """Directory of the files."""

    def make(self) -> None:
        """Make the directory, durably."""
        make_durable_directory(self._files, self.directory)

    def read(self, number: int) -> PlannedBatch | None:
        """The batch with a number; None if it was not planned.

        Raises:
            UnreadableError: Its file is damaged.
            OSError: It cannot be read.
        """
        path = self._path(number)
        try:
            file = self._files.open(path, write=False)
        except FileNotFoundError:
            return None
        try:
            return PlannedBatch.decode(file.pread(file.size(), 0), path)
        finally:
            file.close()

    def put(self, batch: PlannedBatch) -> None:
        """Store a batch, durably, whole or not at all.

        Raises:
            TableConflictError: Another process has planned this batch.
            OSError: The disk refused.
        """
        aside = f"{self.directory}/writing-{secrets.token_hex(4)}.tmp"
        file = self._files.open(aside, create=True)
        try:
            file.pwritev([batch.encode()], 0)
            file.fsync()
        finally:
            file.close()
        path = self._path(batch.number)
        try:
            # A link, unlike a rename, replaces nothing.
            self._files.link(aside, path)
        except FileExistsError as error:
            raise TableConflictError(f"{path} was written by another process; only one may keep a table") from error
        finally:
            self._files.remove(aside)
        self._files.sync_directory(self.directory)

    def withdraw(self, number: int) -> None:
        """Remove the plan of a batch that was not committed, durably."""
        self._files.remove(self._path(number))
        self._files.sync_directory(self.directory)

    def sync(self) -> None:
        """Make what is there durable: the process that put it there may have ended before its sync."""
        self._files.sync_directory(self.directory)

    def tidy(self, last: int) -> None:
        """Remove the files of batches before the last committed one, and what crashes left."""
        for name in self._files.listdir(self.directory):
            found = _FILE.fullmatch(name)
            if (found is not None and int(found[1]) < last) or _UNFINISHED.fullmatch(name):
                with suppress(FileNotFoundError):
                    self._files.remove(f"{self.directory}/{name}")

    def _path(self, number: int) -> str:
        return f"{self.directory}/batch-{number:08}.json"
