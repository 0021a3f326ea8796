"""The files of one queue in a directory: their names, which driver may add files, and how a file is added durably.

| name | meaning |
| --- | --- |
| ``<queue>-<first>-<next>.parquet`` (or ``.ndjson``) | a batch; both offsets have 20 digits |
| ``.<queue>.epoch`` | the highest epoch that has taken over, 20 digits; its lock protects all other files |
| ``.<queue>-*.tmp`` | a batch that is being written, or was when a process died |
| ``.<queue>.probe`` | exists while it is tested whether the directory accepts files |

Invariant: only complete, synced files have a name without a leading dot, and no two of a queue overlap. So the position
is the highest ``<next>`` of all names.

All functions block. Errors of the system are raised as `OSError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from broker_adapter.sinks.batch import Batch
from broker_adapter.sinks.errors import DriverFencedError, SinkUnavailableError

_DIGITS: Final = 20
_PROBE_BYTES: Final = 4_096
_MODE: Final = 0o644


class QueueFiles:
    """Access of one driver to the files of a queue. Each call holds the lock, across processes, until it returns.

    Args:
        suffix: Suffix of the files: ``.parquet``.
        epoch: Epoch of the driver.
    """

    def __init__(self, directory: Path, queue_id: str, suffix: str, epoch: int) -> None:
        self._directory = directory
        self._queue_id = queue_id
        self._suffix = suffix
        self._epoch = epoch
        self._name = re.compile(rf"{re.escape(queue_id)}-\d{{{_DIGITS}}}-(\d{{{_DIGITS}}})\.[a-z]+")
        self._temporary = re.compile(rf"\.{re.escape(queue_id)}-\d{{{_DIGITS}}}-\d{{{_DIGITS}}}\.[a-z]+\.tmp")
        self._position: int | None = None
        self._turn = 0

    def new_turn(self) -> int:
        """Return the token that `put` needs from now on; earlier tokens become invalid, also for calls in progress.

        This call does not block.
        """
        self._turn += 1
        return self._turn

    def probe(self) -> None:
        """Test whether the directory accepts files.

        Raises:
            DriverFencedError: A later driver has taken over.
        """
        with self._locked() as file:
            self._refuse_stale(_read_epoch(file))
            path = self._directory / f".{self._queue_id}.probe"
            try:
                _write_synced(path, bytes(_PROBE_BYTES))
            finally:
                path.unlink(missing_ok=True)

    def take_over(self) -> int | None:
        """Lock out drivers of lower epochs, and return the position.

        Raises:
            DriverFencedError: A later driver has taken over.
        """
        with self._locked() as file:
            stored = _read_epoch(file)
            self._refuse_stale(stored)
            if stored < self._epoch:
                _write_epoch(file, self._epoch)
            # Later files follow these names, so names that a dead driver did not sync are synced first.
            _sync_directory(self._directory)
            found: int | None = None
            for name in os.listdir(self._directory):
                if match := self._name.fullmatch(name):
                    found = max(found or 0, int(match[1]))
                elif self._temporary.fullmatch(name):
                    (self._directory / name).unlink(missing_ok=True)
            self._position = found or 0
        return found

    def put(self, batch: Batch, contents: bytes, turn: int) -> None:
        """Add a file. Must not return before it would survive a crash of the machine.

        Raises:
            DriverFencedError: A later driver has taken over.
            SinkUnavailableError: The batch is not after the position, or the position was not read.
        """
        with self._locked() as file:
            stored = _read_epoch(file)
            self._refuse_stale(stored)
            if turn != self._turn or self._position is None or stored < self._epoch:
                raise SinkUnavailableError(f"{self._directory}: the position is not known; it has to be read first")
            if batch.first_offset < self._position:
                raise SinkUnavailableError(
                    f"{self._directory} has everything up to offset {self._position} of {self._queue_id}; "
                    f"a batch from {batch.first_offset} overlaps that"
                )
            first, after = (f"{offset:0{_DIGITS}d}" for offset in (batch.first_offset, batch.next_offset))
            name = f"{self._queue_id}-{first}-{after}{self._suffix}"
            temporary = self._directory / f".{name}.tmp"
            try:
                _write_synced(temporary, contents)
                os.rename(temporary, self._directory / name)
            except OSError:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
            # From here on all readers see it, synced or not: later batches follow it.
            self._position = batch.next_offset
            _sync_directory(self._directory)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        # The system releases the lock when the file is closed, however the process ends.
        file = os.open(self._directory / f".{self._queue_id}.epoch", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _refuse_stale(self, stored: int) -> None:
        if stored > self._epoch:
            raise DriverFencedError(
                f"{self._directory} has seen epoch {stored} of {self._queue_id}; this driver has {self._epoch}"
            )


def _read_epoch(file: int) -> int:
    digits = os.pread(file, _DIGITS, 0)
    if not digits:
        return 0
    if len(digits) != _DIGITS or not digits.isdigit():
        raise OSError(errno.EINVAL, "the epoch file is damaged; remove it once no bridge uses the directory")
    return int(digits)


def _write_epoch(file: int, epoch: int) -> None:
    # In place and with a fixed length: a few bytes within a sector are written completely or not at all.
    os.pwrite(file, f"{epoch:0{_DIGITS}d}\n".encode(), 0)
    os.fsync(file)


def _write_synced(path: Path, contents: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    try:
        rest = memoryview(contents)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def _sync_directory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
