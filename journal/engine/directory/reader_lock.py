"""The lock of commands that open a data directory only to read it, for a short time, and how a start waits for it.

A command that reads a stopped node's directory opens it as a server does, so it holds LOCK while it reads. It also
holds the lock of ``reading/`` in the directory, from before it takes LOCK until after it has released it. So a start
that finds LOCK taken can tell a reader, which will finish soon, from another server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from journal.engine.directory.data_directory import DataDirectory, open_directory
from shards.errors import DataDirectoryError
from shards.seams.file_system import FileSystem

READER_PATIENCE_S: Final = 60.0
"""How long a start waits for readers."""
_LOOK_AGAIN_S: Final = 0.05

_DIRECTORY: Final = "reading"

_log = logging.getLogger("journal.engine")


@contextmanager
def reader_lock(files: FileSystem, path: str) -> Iterator[None]:
    """Be the only reader of a data directory for the length of a block, in which the directory is opened and closed.

    Raises:
        DataDirectoryError: It is not a data directory, it cannot be written, or another reader uses it.
    """
    if not files.exists(f"{path}/FORMAT"):
        raise DataDirectoryError(f"{path} is not a data directory: it has no FORMAT file")
    try:
        files.mkdir(f"{path}/{_DIRECTORY}")
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {path} cannot be opened: {error}; reading a data directory needs write access to it"
        ) from error
    lock = files.lock(f"{path}/{_DIRECTORY}")
    try:
        yield
    finally:
        lock.release()


async def open_after_readers(files: FileSystem, path: str, store_id: str = "") -> DataDirectory:
    """Open a data directory as `data_directory.open_directory` does, once no reader uses it any more.

    Raises:
        DataDirectoryError: A process that is not a reader uses it, or a reader did not finish within
            `READER_PATIENCE_S`; or it cannot be used.
        FormatVersionError: A newer program made it.
        CorruptionError: Its FORMAT file cannot be read.
    """
    deadline = trio.current_time() + READER_PATIENCE_S
    is_told = False
    while True:
        try:
            return open_directory(files, path, store_id)
        except DataDirectoryError as error:
            refusal = error
        # A directory of another program gets no lock file.
        if not files.exists(f"{path}/FORMAT") or not files.exists(f"{path}/{_DIRECTORY}"):
            raise refusal
        try:
            lock = files.lock(f"{path}/{_DIRECTORY}")
        except DataDirectoryError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise refusal from error
        else:
            # No reader has the directory now, and none can take it before this block ends.
            try:
                return open_directory(files, path, store_id)
            finally:
                lock.release()
        if trio.current_time() > deadline:
            raise DataDirectoryError(
                f"{refusal}; it is a reader of the directory and has not finished after {READER_PATIENCE_S:g} s"
            ) from refusal
        if not is_told:
            is_told = True
            _log.info("waiting for a reader of the data directory: %s", refusal)
        # Waiting for a lock would need a thread; a reader finishes within moments.
        await trio.sleep(_LOOK_AGAIN_S)
